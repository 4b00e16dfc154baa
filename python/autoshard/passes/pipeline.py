"""Read a pass pipeline and run it: autoshard's passes and jaxlib's, in any order."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autoshard.errors import ParseError, PassError, PassOptionError
from autoshard.ir import mlir
from autoshard.ir.isolated import MAY_ABORT, run_isolated
from autoshard.ir.native import (
    UnknownNativePassError,
    anchors_of,
    check_native,
    is_native,
    native_options,
    nested,
    run_native,
    verify,
)
from autoshard.ir.native_passes import NATIVE_SUMMARIES
from autoshard.passes.base import Pass, make_pass, nearest
from autoshard.passes.registry import ALL_PASSES, pass_type

_MODULE = "builtin.module"
_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_SPACE = re.compile(r"\s*")
_OPTION_NAME = re.compile(r"[A-Za-z0-9_\-]+")
_CLOSING = {"{": "}", "[": "]", "(": ")"}


@dataclass(frozen=True, slots=True)
class NativePass:
    """One of jaxlib's own passes, under the op it runs on."""

    name: str
    options: str = ""
    """As in the pipeline text, without braces."""
    anchors: tuple[str, ...] = (_MODULE,)
    """From the outside: ``("builtin.module", "func.func")``."""

    @property
    def text(self) -> str:
        """The pipeline that runs just this pass."""
        return nested(self.anchors, self.name, self.options)


Step = Pass | NativePass


def parse_pipeline(text: str) -> tuple[Step, ...]:
    """The passes of ``builtin.module(a{x=1 y=2},func.func(b),c)``, in order.

    ``builtin.module(...)`` around the list may be left out.

    Raises:
        ParseError: The text is not a pipeline; the place is ``pipeline:1:column``.
        PassOptionError: An unknown pass or option, or a value the option does not take.
    """
    reader = _PipelineReader(text)
    found = reader.elements((), end="")
    if len(found) == 1 and isinstance(found[0], _Nested) and found[0].anchor == _MODULE:
        found = found[0].elements
    return tuple(_steps(found, (_MODULE,)))


def parse_pass(name: str, options: str = "") -> Step:
    """One pass by name, nested under the op it runs on.

    Args:
        name: ``autoshard-...`` or one of jaxlib's.
        options: ``x=1 y=2``.

    Raises:
        PassOptionError: An unknown pass or option, or a value the option does not take.
    """
    anchors = (_MODULE,)
    if name not in ALL_PASSES and is_native(name):
        anchors = anchors_of(name)
    return _step(name, options, anchors)


def is_pass(name: str) -> bool:
    """Whether ``name`` is a pass of autoshard or of the installed jaxlib."""
    return name in ALL_PASSES or is_native(name)


def unknown_pass(name: str) -> PassOptionError:
    """The error for a name that is no pass."""
    hint = nearest(name, [*ALL_PASSES, *NATIVE_SUMMARIES])
    return PassOptionError(
        f'unknown pass "{name}".{hint} autoshard-opt --list-passes shows all passes.'
    )


def run_passes(
    module: mlir.Module,
    passes: Iterable[Step | str],
    *,
    started: Callable[[str], None] | None = None,
    print_after: Callable[[str, mlir.Module], None] | None = None,
    timing: Callable[[str, float], None] | None = None,
) -> None:
    """Run passes in order on ``module``, in place, and verify the module after each.

    Args:
        module: After an error it may be half changed and must not be used.
        passes: Passes, or texts that ``parse_pipeline`` reads.
        started: Called with the pass name before each pass.
        print_after: Called with the pass name and the module after each pass.
        timing: Called with the pass name and its seconds after each pass.

    Raises:
        AutoshardError: A pass refuses the module.
        PassError: A native pass fails, or a pass leaves a module that does not verify.
    """
    for step in _all_steps(passes):
        if started is not None:
            started(step.name)
        start = time.perf_counter()
        _run_step(module, step)
        if timing is not None:
            timing(step.name, time.perf_counter() - start)
        if print_after is not None:
            print_after(step.name, module)


def _all_steps(passes: Iterable[Step | str]) -> list[Step]:
    return [
        step
        for item in passes
        for step in (parse_pipeline(item) if isinstance(item, str) else (item,))
    ]


def _run_step(module: mlir.Module, step: Step) -> None:
    if isinstance(step, NativePass):
        run = run_isolated if step.name in MAY_ABORT else run_native
        run(module, step.text)
        return
    with module.context, mlir.Location.unknown(module.context):
        step.run(module)
    try:
        verify(module)
    except PassError as error:
        raise PassError(
            f"{step.name} left an invalid module: {error.message}", error.location, error.notes
        ) from error


@dataclass(frozen=True, slots=True)
class _Named:
    """``name{options}`` in a pipeline text."""

    name: str
    options: str


@dataclass(frozen=True, slots=True)
class _Nested:
    """``anchor(elements)`` in a pipeline text."""

    anchor: str
    elements: list[_Named | _Nested]


def _steps(elements: list[_Named | _Nested], anchors: tuple[str, ...]) -> list[Step]:
    steps: list[Step] = []
    for element in elements:
        if isinstance(element, _Nested):
            steps += _steps(element.elements, (*anchors, element.anchor))
        else:
            steps.append(_step(element.name, element.options, anchors))
    return steps


def _step(name: str, options: str, anchors: tuple[str, ...]) -> Step:
    if name in ALL_PASSES:
        if anchors != (_MODULE,):
            raise PassOptionError(
                f"{name} runs on {_MODULE}, not on {anchors[-1]}. "
                f"Move it out of {anchors[-1]}(...)."
            )
        return make_pass(pass_type(name), split_options(name, options))
    try:
        check_native(anchors, name, options)
    except UnknownNativePassError as error:
        raise unknown_pass(error.name) from error
    except PassOptionError as error:
        known = native_options(name)
        options_text = f" Options: {known}." if known and options else ""
        raise PassOptionError(f"{name}: {error.message}.{options_text}") from error
    return NativePass(name, options, anchors)


def split_options(name: str, text: str) -> dict[str, str]:
    """``x=1 y='a b' flag`` as a dict; a bare name means ``true``.

    Args:
        name: The pass, for errors.
        text: Options separated by spaces; a value with spaces stands in quotes or braces.

    Raises:
        PassOptionError: Not of this form, or an option given twice.
    """
    reader = _PipelineReader(text)
    options: dict[str, str] = {}
    while not reader.at_end():
        key = reader.match(_OPTION_NAME)
        if key is None:
            raise PassOptionError(
                f"{name}: cannot read options at {reader.rest()!r}. "
                "Write option=value, separated by spaces."
            )
        value = reader.value() if reader.take("=") else "true"
        if key in options:
            raise PassOptionError(f'{name}: option "{key}" is given twice.')
        options[key] = value
    return options


class _PipelineReader:
    """A cursor over a pipeline text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def elements(self, anchors: tuple[str, ...], end: str) -> list[_Named | _Nested]:
        """Elements separated by commas up to ``end`` (``""``: the end of the text)."""
        found: list[_Named | _Nested] = []
        if self._ends(end):
            return found
        while True:
            found.append(self._element(anchors))
            if self._ends(end):
                return found
            if not self.take(","):
                raise self._error('"," or ' + (f'"{end}"' if end else "the end"))

    def _element(self, anchors: tuple[str, ...]) -> _Named | _Nested:
        name = self.match(_NAME)
        if name is None:
            raise self._error("a pass name")
        if self.take("("):
            return _Nested(name, self.elements((*anchors, name), ")"))
        self._skip_space()
        if self._text[self._at : self._at + 1] == "{":
            return _Named(name, self._bracketed()[1:-1].strip())
        return _Named(name, "")

    def value(self) -> str:
        """An option's value: up to a space outside quotes and brackets."""
        start = self._at
        quote = self._text[self._at : self._at + 1]
        if quote and quote in "'\"":
            end = self._text.find(quote, self._at + 1)
            if end < 0:
                raise self._error(f"a closing {quote}")
            self._at = end + 1
            return self._text[start + 1 : end]
        while self._at < len(self._text) and not self._text[self._at].isspace():
            if self._text[self._at] in _CLOSING:
                self._bracketed()
            else:
                self._at += 1
        value = self._text[start : self._at]
        return value[1:-1] if value.startswith("{") and value.endswith("}") else value

    def _bracketed(self) -> str:
        """The text from the bracket under the cursor to the one that closes it."""
        start = self._at
        waiting: list[str] = []
        quote = ""
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if quote:
                quote = "" if character == quote else quote
            elif character in "'\"":
                quote = character
            elif character in _CLOSING:
                waiting.append(_CLOSING[character])
            elif character == waiting[-1]:
                waiting.pop()
                if not waiting:
                    return self._text[start : self._at]
        raise self._error(f'"{waiting[-1]}"')

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """What ``pattern`` matches after spaces, if it does; moves behind it."""
        self._skip_space()
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def take(self, character: str) -> bool:
        """Move over ``character`` if it comes next."""
        self._skip_space()
        if not self._text.startswith(character, self._at):
            return False
        self._at += len(character)
        return True

    def at_end(self) -> bool:
        """Whether only spaces are left."""
        self._skip_space()
        return self._at == len(self._text)

    def rest(self) -> str:
        """What has not been read."""
        return self._text[self._at :]

    def _ends(self, end: str) -> bool:
        return self.take(end) if end else self.at_end()

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _error(self, expected: str) -> ParseError:
        found = f'"{self._text[self._at]}"' if self._at < len(self._text) else "the end"
        return ParseError(
            f"expected {expected}, found {found} in {self._text!r}. "
            "A pipeline reads builtin.module(pass{option=value},func.func(pass)).",
            f"pipeline:1:{self._at + 1}",
        )
