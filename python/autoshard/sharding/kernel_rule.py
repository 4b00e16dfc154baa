"""Rules of kernels as users write them: ``"b h q d, b k s d, b k s d -> b h q d; h = k * g"``.

A name is a *factor*: an index that dims of several arrays share. A dim that is made of two of them,
the heads of grouped queries, is written ``(k g)``, major factor first, or named by an equation
behind a semicolon. ``_`` is a dim that every device has whole, ``*`` an array that every device has
whole, ``()`` a scalar.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from autoshard.errors import StrategyError
from autoshard.sharding.sdy_text import factor_symbol

Dims = tuple[tuple[str, ...], ...]
"""The factors of each dim of an array, major first."""

_DIM = re.compile(r"\(([^()]*)\)|([^\s()]+)")
_NAME = re.compile(r"[A-Za-z]\w*")
_WHOLE_ARRAY = "*"
_WHOLE_DIM = "_"


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Which dims of the arrays of a kernel belong together."""

    text: str
    operands: tuple[Dims | None, ...]
    """None: an array of any rank that every device has whole."""
    results: tuple[Dims | None, ...]
    sums: frozenset[str]
    """Factors over whose parts the results of devices are added."""
    whole: frozenset[str]
    """Factors that are not cut."""
    given: tuple[tuple[str, int], ...] = ()
    """Factors with sizes that no dim alone need say."""

    @property
    def cuttable(self) -> tuple[str, ...]:
        """The factors that may be cut, in the order of the text."""
        names = (name for tensor in self.tensors for dim in tensor or () for name in dim)
        return tuple(name for name in dict.fromkeys(names) if name not in self.whole)

    @property
    def tensors(self) -> tuple[Dims | None, ...]:
        """Operands, then results."""
        return (*self.operands, *self.results)

    def factors_of(self, tensor: Dims | None) -> frozenset[str]:
        """The cuttable factors that an array has."""
        return frozenset(name for dim in tensor or () for name in dim) - self.whole

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """How long each factor is.

        Args:
            shapes: Of the operands, or of operands and results.

        Raises:
            StrategyError: The shapes are none that the rule is for.
        """
        tensors = self.tensors[: len(shapes)] if len(shapes) > len(self.operands) else self.operands
        if len(shapes) != len(tensors):
            raise self._error(f"is for {len(tensors)} arrays, the kernel has {len(shapes)}")
        dims: list[tuple[tuple[str, ...], int]] = []
        for number, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
            if tensor is None:
                continue
            if len(tensor) != len(shape):
                raise self._error(
                    f"has {len(tensor)} dims for {self._array(number)}, whose shape is"
                    f" {tuple(shape)}"
                )
            dims += zip(tensor, shape, strict=True)
        return self._solved(dims)

    def _solved(self, dims: Sequence[tuple[tuple[str, ...], int]]) -> dict[str, int]:
        found = dict(self.given)
        for _ in dims:
            for names, size in dims:
                unknown = [name for name in names if name not in found]
                rest = prod(found[name] for name in names if name in found)
                if len(unknown) == 1 and rest and size % rest == 0:
                    found[unknown[0]] = size // rest
                elif not unknown and rest != size:
                    text = " * ".join(f"{name}={found[name]}" for name in names)
                    raise self._error(f"has a dim of size {size} where {text}")
        for names, size in dims:
            for name in names:
                if name not in found:
                    raise self._error(
                        f"does not say how a dim of size {size} falls into {' * '.join(names)}:"
                        " each of these but one must divide it, and be known from another dim"
                    )
        return found

    def shape(self, number: int, sizes: dict[str, int]) -> tuple[int, ...] | None:
        """Shape of operand or result ``number`` for these factor sizes; None where any will do."""
        tensor = self.tensors[number]
        return None if tensor is None else tuple(prod(sizes[n] for n in dim) for dim in tensor)

    def to_sdy(self, shapes: Sequence[Sequence[int]]) -> str:
        """In Shardy's notation, ``([i, jk])->([i, jk]) {i=8, j=2, k=4} need_replication={k}``.

        Args:
            shapes: Of operands and results.
        """
        sizes = self.sizes(shapes)
        whole = [name for name in sizes if name in self.whole]
        texts: list[str] = []
        for tensor, shape in zip(self.tensors, shapes, strict=True):
            dims = tensor
            if dims is None:
                dims = tuple((f"*{len(texts)} {dim}",) for dim in range(len(shape)))
                sizes |= {name: size for (name,), size in zip(dims, shape, strict=True)}
                whole += [name for (name,) in dims]
            symbols = {name: factor_symbol(index) for index, name in enumerate(sizes)}
            texts.append(f"[{', '.join(''.join(symbols[n] for n in dim) for dim in dims)}]")
        symbols = {name: factor_symbol(index) for index, name in enumerate(sizes)}
        count = len(self.operands)
        sides = ", ".join(texts[:count]), ", ".join(texts[count:])
        text = f"({sides[0]})->({sides[1]})"
        text += f" {{{', '.join(f'{symbols[n]}={size}' for n, size in sizes.items())}}}"
        for kind, names in (("reduction", self.sums), ("need_replication", whole)):
            if names:
                listed = ", ".join(symbol for name, symbol in symbols.items() if name in names)
                text += f" {kind}={{{listed}}}"
        return text

    def with_batch(self, batched: Sequence[bool]) -> KernelRule:
        """The rule where these operands, and all results, have one more dim in front."""
        name = _new_name("v", self)
        operands = (
            (((name,), *tensor) if tensor is not None else None) if has_batch else tensor
            for tensor, has_batch in zip(self.operands, batched, strict=True)
        )
        results = (None if tensor is None else ((name,), *tensor) for tensor in self.results)
        # An array of any rank stays one: what is whole on every device needs no dim of its own.
        return replace(self, operands=tuple(operands), results=tuple(results))

    def _array(self, number: int) -> str:
        count = len(self.operands)
        return f"operand {number}" if number < count else f"result {number - count}"

    def _error(self, what: str) -> StrategyError:
        return StrategyError(f'the rule "{self.text}" {what}.')


def read_kernel_rule(text: str, sums: Iterable[str] = (), whole: Iterable[str] = ()) -> KernelRule:
    """The rule that a text says.

    Args:
        text: ``"b h q d, b k s d -> b h q d; h = k * g"``, see the head of the module.
        sums: Factors of operands that no result has, and over whose parts results are added.
        whole: Factors that are not cut.

    Raises:
        StrategyError: The text is none, or a factor of it would be cut wrongly.
    """
    arrays, *equations = text.split(";")
    if arrays.count("->") != 1:
        raise _error(text, 'needs one "->" between operands and results')
    groups = dict(_equation(text, equation) for equation in equations)
    anonymous: list[str] = []
    sides = [
        tuple(_array(text, part, groups, anonymous) for part in side.split(","))
        for side in arrays.split("->")
    ]
    rule = KernelRule(
        text.strip(), sides[0], sides[1], frozenset(sums), frozenset((*whole, *anonymous))
    )
    _check_names(rule)
    _check_results(rule)
    return rule


def _equation(text: str, equation: str) -> tuple[str, tuple[str, ...]]:
    left, equals, right = (part.strip() for part in equation.partition("="))
    names = tuple(name.strip() for name in right.split("*"))
    if not equals or not all(map(_NAME.fullmatch, (left, *names))):
        raise _error(text, f'has "{equation.strip()}" where an equation as h = k * g is expected')
    return left, names


def _array(
    text: str, part: str, groups: dict[str, tuple[str, ...]], anonymous: list[str]
) -> Dims | None:
    part = part.strip()
    if part == _WHOLE_ARRAY:
        return None
    if not part:
        raise _error(text, "has an array without dims: write () for a scalar")
    dims: list[tuple[str, ...]] = []
    for inside, single in _DIM.findall("" if part == "()" else part):
        names = tuple(inside.split()) if inside else groups.get(single, (single,))
        if names == (_WHOLE_DIM,):
            names = (f"_{len(anonymous)}",)
            anonymous += names
        elif not names or not all(map(_NAME.fullmatch, names)):
            raise _error(text, f'has "{single or inside}" where the name of a factor is expected')
        dims.append(names)
    listed = [name for dim in dims for name in dim]
    twice = [name for name in listed if listed.count(name) > 1]
    if twice:
        raise _error(text, f"has {twice[0]} twice in one array; only one dim of it can be cut")
    return tuple(dims)


def _check_names(rule: KernelRule) -> None:
    known = {name for tensor in rule.tensors for dim in tensor or () for name in dim}
    for what, names in (("sums", rule.sums), ("whole", rule.whole)):
        unknown = sorted(names - known)
        if unknown:
            raise _error(rule.text, f"has no factor {unknown[0]}, which {what}= names")
    both = sorted(rule.sums & rule.whole)
    if both:
        raise _error(rule.text, f"cannot have {both[0]} in sums= and in whole=")


def _check_results(rule: KernelRule) -> None:
    """Each result has all factors that may be cut, but for those that are added."""
    given = _union(rule, rule.operands)
    made = _union(rule, rule.results)
    for name in rule.cuttable:
        if name in rule.sums:
            if name in made:
                raise _error(rule.text, f"has {name}, which sums= names, in a result")
            if any(name in dim and len(dim) > 1 for it in rule.operands for dim in it or ()):
                raise _error(rule.text, f"has {name}, which sums= names, in a dim of two factors")
        elif name not in given:
            raise _error(
                rule.text,
                f"has {name} in results only: devices cannot tell which part of it is theirs. Name"
                " it in whole=",
            )
        elif name not in made:
            raise _error(
                rule.text,
                f"has {name} in operands only: name it in sums= if what devices make of its parts"
                " is added, in whole= if each of them needs all of it",
            )
        elif not all(name in rule.factors_of(result) for result in rule.results):
            raise _error(
                rule.text,
                f"has {name} in some results only: what devices make of its parts would not be the"
                " same in the others. Name it in whole=, or make a kernel of those results alone",
            )


def _union(rule: KernelRule, tensors: Collection[Dims | None]) -> frozenset[str]:
    return frozenset[str]().union(*map(rule.factors_of, tensors))


def _new_name(prefix: str, rule: KernelRule) -> str:
    known = {name for tensor in rule.tensors for dim in tensor or () for name in dim}
    return next(name for n in range(len(known) + 1) if (name := f"{prefix}{n}") not in known)


def _error(text: str, what: str) -> StrategyError:
    return StrategyError(f'the rule "{text.strip()}" {what}.')
