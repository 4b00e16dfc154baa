"""What a pass is, and how text becomes its options."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import textwrap
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from autoshard.errors import PassOptionError
from autoshard.ir import mlir


@dataclass(frozen=True)
class Pass(ABC):
    """One step over a module: it reads attributes and writes attributes.

    A subclass is a frozen dataclass. Its fields are the options: the field ``mem_coeff`` is the
    option ``mem-coeff``, the string after the field is its help, and its annotation says what it
    takes: ``bool``, ``int``, ``float``, ``str``, ``Literal[...]``, ``X | None`` (text ``none``)
    or ``tuple[X, ...]`` (text ``a,b``). Every option has a default. The first sentence of the
    class docstring is what ``autoshard-opt --help`` prints.
    """

    name: ClassVar[str]
    """What users write: ``autoshard-...``."""

    def __post_init__(self) -> None:
        """Refuse values of other types than the fields say; a subclass calls it first.

        Raises:
            PassOptionError: ``enable="no"`` for a bool, or the like.
        """
        hints = _hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not _takes(hints[field.name], value):
                raise PassOptionError(
                    f"{self.name}: option {field.name.replace('_', '-')}={value!r}: expected"
                    f" {_type_text(hints[field.name])}."
                )
            if isinstance(value, np.generic):  # plans are written as JSON, which has none of numpy
                object.__setattr__(self, field.name, value.item())

    @abstractmethod
    def run(self, module: mlir.Module) -> None:
        """Change ``module`` in place.

        Raises:
            AutoshardError: The module does not allow the step; the module may be half changed
                and must not be used.
        """


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a pass, as users see it."""

    name: str
    """Text form: ``mem-coeff``."""
    field: str
    """Dataclass field: ``mem_coeff``."""
    type_text: str
    """What it takes: ``integer``, ``gather|scatter``, ..."""
    default_text: str
    help: str


@functools.cache
def options_of(pass_type: type[Pass]) -> tuple[Option, ...]:
    """The options of a pass in the order of its fields."""
    hints = _hints(pass_type)
    docs = _field_docs(pass_type)
    return tuple(
        Option(
            name=field.name.replace("_", "-"),
            field=field.name,
            type_text=_type_text(hints[field.name]),
            default_text=_value_text(_default_of(field)),
            help=docs.get(field.name, ""),
        )
        for field in dataclasses.fields(pass_type)
    )


P = TypeVar("P", bound=Pass)


def make_pass(pass_type: type[P], options: Mapping[str, str]) -> P:
    """Build a pass from option texts.

    Args:
        pass_type: The pass.
        options: Option name (``trip-count`` or ``trip_count``) -> text of its value.

    Raises:
        PassOptionError: An option the pass does not have, or a value it does not take.
    """
    hints = _hints(pass_type)
    known = {option.name: option for option in options_of(pass_type)}
    values: dict[str, Any] = {}
    for name, text in options.items():
        option = known.get(name.replace("_", "-"))
        if option is None:
            raise PassOptionError(_unknown_option(pass_type.name, name, known))
        try:
            values[option.field] = _parse_value(hints[option.field], text)
        except ValueError as error:
            raise PassOptionError(
                f"{pass_type.name}: option {option.name}={text}: expected {option.type_text}. "
                f"Default: {option.name}={option.default_text}."
            ) from error
    return pass_type(**values)


def no_cluster(pass_name: str) -> PassOptionError:
    """What is wrong with a pass that needs a cluster and has none."""
    return PassOptionError(
        f"{pass_name}: no cluster is given: times depend on the chips and their links. Give"
        " cluster=v5e:4x4, or the path of a TOML file."
    )


def summary_of(pass_type: type[Pass]) -> str:
    """The first sentence of the pass's docstring, on one line."""
    text = inspect.getdoc(pass_type) or ""
    return " ".join(text.split("\n\n")[0].split())


def nearest(name: str, candidates: Iterable[str]) -> str:
    """`` Did you mean "x"?`` with the closest candidate, or nothing when none is close."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f' Did you mean "{close[0]}"?' if close else ""


def _unknown_option(pass_name: str, name: str, known: Mapping[str, Option]) -> str:
    if not known:
        return f'{pass_name}: unknown option "{name}": this pass has no options.'
    hint = nearest(name, known)
    return f'{pass_name}: unknown option "{name}".{hint} Options: {", ".join(known)}.'


@functools.cache
def _hints(pass_type: type[Pass]) -> dict[str, Any]:
    return get_type_hints(pass_type)


def _default_of(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise TypeError(f"option {field.name} has no default")


def _field_docs(pass_type: type[Pass]) -> dict[str, str]:
    """Field name -> the string literal that follows it in the source."""
    docs: dict[str, str] = {}
    for owner in reversed(pass_type.__mro__):
        if not (issubclass(owner, Pass) and owner is not Pass):
            continue
        source = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        body = cast(ast.ClassDef, source.body[0]).body
        for field, doc in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(doc, ast.Expr)
                and isinstance(doc.value, ast.Constant)
                and isinstance(doc.value.value, str)
            ):
                docs[field.target.id] = " ".join(doc.value.value.split())
    return docs


def _is_union(annotation: object) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


_SCALAR_TEXT = {bool: "true|false", int: "integer", float: "number", str: "text"}


def _type_text(annotation: Any) -> str:
    if annotation in _SCALAR_TEXT:
        return _SCALAR_TEXT[annotation]
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    if _is_union(annotation):
        return " or ".join(
            "none" if arg is types.NoneType else _type_text(arg) for arg in get_args(annotation)
        )
    if get_origin(annotation) is tuple:
        return f"{_type_text(get_args(annotation)[0])},..."
    raise TypeError(f"a pass option cannot have type {annotation}")


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(_value_text(item) for item in cast(tuple[object, ...], value))
    return str(value)


def _parse_value(annotation: Any, text: str) -> Any:
    """``text`` as a value of ``annotation``; ValueError when it is none."""
    if annotation is bool:
        return {"true": True, "1": True, "false": False, "0": False}[_one_of(text, _BOOL_TEXTS)]
    if annotation is int or annotation is float or annotation is str:
        return annotation(text)
    if get_origin(annotation) is Literal:
        choices = {str(choice): choice for choice in get_args(annotation)}
        return choices[_one_of(text, choices)]
    if _is_union(annotation):
        return _parse_union(get_args(annotation), text)
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        return tuple(_parse_value(item, part.strip()) for part in text.split(",") if part.strip())
    raise TypeError(f"a pass option cannot have type {annotation}")


def _parse_union(annotations: tuple[Any, ...], text: str) -> Any:
    if types.NoneType in annotations and text == "none":
        return None
    for annotation in annotations:
        if annotation is types.NoneType:
            continue
        try:
            return _parse_value(annotation, text)
        except ValueError:
            continue  # the next member of the union may take it
    raise ValueError(text)


def _takes(annotation: Any, value: Any) -> bool:
    """Is ``value`` of a type that ``annotation`` names? Numbers of numpy count as Python's."""
    if annotation is bool:
        return isinstance(value, bool | np.bool_)
    if annotation is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, float | np.floating) or _takes(int, value)
    if _is_union(annotation):
        return any(_takes(member, value) for member in get_args(annotation))
    if get_origin(annotation) is Literal:  # the pass says which ones there are
        return isinstance(value, tuple(map(type, get_args(annotation))))
    if get_origin(annotation) is tuple:
        members = cast("tuple[Any, ...]", value)
        return isinstance(value, tuple) and all(
            _takes(get_args(annotation)[0], member) for member in members
        )
    return isinstance(value, annotation)


_BOOL_TEXTS = ("true", "1", "false", "0")


def _one_of(text: str, choices: Iterable[str]) -> str:
    if text not in choices:
        raise ValueError(text)
    return text
