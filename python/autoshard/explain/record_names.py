"""What ops are called, so that the names outlive a release of JAX, and in which phase they run.

JAX names an op ``jit(step)/transpose(jvp(Model))/layers/3/mlp/dot_general``. The words that are
JAX's own say how the op came about; those of the user's scopes stay: ``Model/layers/3/mlp``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autoshard import _core
from autoshard.explain.folding import common_name, of_any_layer
from autoshard.ir import mlir
from autoshard.ir.locations import CallStacks
from autoshard.planned.summarize import short_name


class Phase(Enum):
    """What a part of a training step is for."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    """Forward values that ``jax.checkpoint`` computes again."""
    BACKWARD = "backward"
    UPDATE = "update"
    """Behind the last op of the backward half: the optimizer."""
    STEP = "step"
    """The whole of a program that takes no gradient."""


Numbers = NDArray[np.int32]
"""One for each op."""

_Item = TypeVar("_Item", bound=Hashable)
_Integer = TypeVar("_Integer", np.int32, np.int64)

_PHASES = tuple(phase.value for phase in Phase)
_NUMBER_OF = {phase: number for number, phase in enumerate(Phase)}

_WRAPPED = re.compile(r"^(\w+)\((.*)\)$")
_TRANSFORMS = frozenset({"jit", "pjit", "jvp", "transpose", "vmap", "remat", "checkpoint"})
_OF_JAX = frozenset(
    {
        "",
        "body",
        "checkpoint",
        "closed_call",
        "cond",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "eval_jaxpr",
        "pjit",
        "remat",
        "rematted_computation",
        "scan",
        "while",
    }
)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names around an op say."""

    path: str
    """``Model/layers/3/mlp``; empty if there are no scopes of the user."""
    phase: Phase | None
    """None: they do not say."""
    of_any_layer: str
    """The path with stars for the numbers of layers."""


def scope_of(name: str) -> Scope:
    """Scope of a name of JAX without its last part, which is the op's.

    Example: ``jit(step)/transpose(jvp(Model))/while/body/mlp`` is ``Model/mlp``, backward.
    """
    parts: list[str] = []
    for number, part in enumerate(name.split("/")):
        is_root = number == 0 and part.startswith("jit(")
        word = "" if is_root or part.startswith("jit:") else _unwrapped(part)
        # What jnp.einsum calls itself is no scope of the user.
        if word not in _OF_JAX and "->" not in word and parts[-1:] != [word]:
            parts.append(word)
    path = "/".join(parts)
    return Scope(path, _phase(name), of_any_layer(path))


@cache
def _unwrapped(part: str) -> str:
    """``Model`` of ``transpose(jvp(Model))``."""
    while (found := _WRAPPED.match(part)) is not None and found[1] in _TRANSFORMS:
        part = found[2]
    return part


def _phase(name: str) -> Phase | None:
    if "rematted_computation" in name:
        return Phase.RECOMPUTE
    if "transpose(" in name:
        return Phase.BACKWARD
    return Phase.FORWARD if "jvp(" in name else None


class OpNames:
    """Names, phases and call stacks of the ops of a program.

    What there is one of for each op is in arrays: Python looks at one op of each class, and of each
    location.
    """

    def __init__(
        self,
        ops: Sequence[mlir.Operation],
        classes: Numbers,
        locations: Numbers,
        casts: Mapping[int, mlir.Type] = MappingProxyType({}),
    ) -> None:
        """Read the ops.

        Args:
            ops: Of the core.
            classes: As ``ImportedProgram.op_classes``.
            locations: As ``ImportedProgram.op_locations``.
            casts: Those for whom the op stands that reads them, and what they make.
        """
        self.stacks = CallStacks()
        self._class_of, firsts = _numbered(classes)
        self._kinds = [
            ("convert", (casts[first],))
            if first in casts
            else (short_name(ops[first]), tuple(result.type for result in ops[first].results))
            for first in firsts
        ]
        """Word and types of results, of each class."""
        self._place_of, firsts = _numbered(locations)
        known: dict[str, int] = {}
        self._scopes: list[Scope] = []
        places: list[tuple[int, int]] = []
        for first in firsts:
            name, frame = self.stacks.named(ops[first].location)
            around = name[: max(0, name.rfind("/"))]
            scope = known.get(around)
            if scope is None:
                scope = known[around] = len(self._scopes)
                self._scopes.append(scope_of(around))
            places.append((scope, frame))
        self._scope_of_place, self._frame_of_place = np.array(places, np.int32).reshape(-1, 2).T
        self._scope_of = self._scope_of_place[self._place_of]
        self._path_of_scope, self._paths = _distinct(scope.path for scope in self._scopes)
        self._phases = _phases(self._scopes, self._scope_of)
        self._lines = [
            f"@{frame.file.rpartition('/')[2]}:{frame.line}" for frame in self.stacks.frames
        ]

    def alike(self, program: _core.Program, plan: _core.CorePlan) -> _core.AlikeOps:
        """Ops of equal layers that a plan cuts alike; a spot is a word at a line in a scope."""
        kinds, _ = _distinct(self._kinds)
        words, all_words = _distinct(word for word, _ in self._kinds)
        forms, _ = _distinct(scope.of_any_layer for scope in self._scopes)
        scopes, frames = self._scope_of_place, self._frame_of_place + 1
        places = _paired(forms[scopes], frames)[self._place_of]
        spots = _paired(self._path_of_scope[scopes], frames)[self._place_of]
        return _core.alike_ops(
            program,
            plan,
            kinds=kinds[self._class_of],
            places=places * np.int32(len(_PHASES)) + self._phases,
            spots=spots * np.int32(len(all_words)) + words[self._class_of],
        )

    def word(self, number: int) -> str:
        """``dot_general``; of a call of something opaque what it calls."""
        return self._kinds[self._class_of[number]][0]

    def types(self, number: int) -> tuple[mlir.Type, ...]:
        """Those of an op's results."""
        return self._kinds[self._class_of[number]][1]

    def scope(self, number: int) -> Scope:
        """What the names around an op say."""
        return self._scopes[self._scope_of[number]]

    def frame(self, number: int) -> int:
        """Number of an op's innermost frame; -1: none."""
        return int(self._frame_of_place[self._place_of[number]])

    def phase(self, number: int) -> str:
        """A value of ``Phase``."""
        return _PHASES[self._phases[number]]

    def name(self, number: int) -> str:
        """``model/layers/3/mlp/dot_general@mlp.py:41``: an id without its last number."""
        return self._in_scope(self.scope(number).path, number)

    def common_name(self, members: Sequence[int]) -> str:
        """The same for ops of one word and line whose scopes differ in numbers of layers only."""
        scopes = _once(self._scope_of[members])
        return self._in_scope(common_name([self._scopes[at].path for at in scopes]), members[0])

    def common_names(self, alike: _core.AlikeOps) -> list[str]:
        """The common name of each group."""
        count = len(self._paths)
        # Group and path as one number.
        of_op = alike.group_of.astype(np.int64) * count + self._path_of_scope[self._scope_of]
        pairs = _once(of_op)
        bounds = np.searchsorted(pairs, np.arange(len(alike.first) + 1) * count).tolist()
        pairs %= max(1, count)
        known: dict[bytes, str] = {}
        found: list[str] = []
        for first, begin, end in zip(alike.first, bounds, bounds[1:], strict=False):
            paths = pairs[begin:end]
            key = paths.tobytes()
            if key not in known:
                known[key] = common_name([self._paths[path] for path in paths.tolist()])
            found.append(self._in_scope(known[key], first))
        return found

    def _in_scope(self, path: str, number: int) -> str:
        word = self.word(number)
        return (f"{path}/{word}" if path else word) + self.line(number)

    def line(self, number: int) -> str:
        """``@mlp.py:41``; empty where the line is not known."""
        frame = self.frame(number)
        return "" if frame < 0 else self._lines[frame]

    def location(self, number: int) -> str | None:
        """``file:line`` of an op."""
        frame = self.frame(number)
        if frame < 0:
            return None
        found = self.stacks.frames[frame]
        return f"{found.file}:{found.line}" if found.line else found.file


def _numbered(numbers: Numbers) -> tuple[Numbers, list[int]]:
    """The numbers in the order of the first of each, from 0 on, and the indices of these."""
    numbers = numbers - numbers.min(initial=0)
    firsts = np.full(numbers.max(initial=-1) + 1, len(numbers), np.int32)
    firsts[numbers[::-1]] = np.arange(len(numbers), dtype=np.int32)[::-1]  # the last one stays
    order = np.argsort(firsts)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    firsts = firsts[order]
    return rank[numbers], firsts[firsts < len(numbers)].tolist()


def _distinct(items: Iterable[_Item]) -> tuple[Numbers, list[_Item]]:
    """For each item its number among those that differ, and these."""
    known: dict[_Item, int] = {}
    numbers = [known.setdefault(item, len(known)) for item in items]
    return np.array(numbers, np.int32), list(known)


def _once(numbers: NDArray[_Integer]) -> NDArray[_Integer]:
    """Each that is there once, in order; none is negative."""
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _paired(first: Numbers, second: Numbers) -> Numbers:
    """Numbers from 0 on, equal where those of both columns are; none of these is negative."""
    pairs = first.astype(np.int64) * (second.max(initial=0) + 1) + second
    return np.searchsorted(_once(pairs), pairs).astype(np.int32)


def _phases(scopes: Sequence[Scope], scope_of: Numbers) -> Numbers:
    """The phase of every op, from those whose names say it; its scope is ``scopes[scope_of]``.

    JAX writes the forward half first, then the backward one, then what the optimizer does. An op
    whose name does not say, such as one of a function that was inlined, is of the phase where it
    stands; behind the forward half, what is in a scope of its is the backward half of that scope.
    """

    def where(are: Iterable[bool], begin: int) -> list[int]:
        """The first and the last op from ``begin`` on in such a scope; empty if there is none."""
        found = np.flatnonzero(np.array(list(are), np.bool_)[scope_of[begin:]]) + begin
        return found[[0, -1]].tolist() if len(found) else []

    backward = where((scope.phase is Phase.BACKWARD for scope in scopes), 0)
    if not backward:
        return np.full(len(scope_of), _NUMBER_OF[Phase.STEP], np.int32)
    first, last = backward
    forward = {scopes[one].path for one in _once(scope_of[:first])} - {""}
    *_, last = [last, *where((scope.path in forward for scope in scopes), last + 1)]

    def said(begin: int, end: int, else_: Phase) -> Numbers:
        phases = np.array([_NUMBER_OF[scope.phase or else_] for scope in scopes], np.int32)
        return phases[scope_of[begin:end]]

    return np.concatenate(
        [
            said(0, first, Phase.FORWARD),
            said(first, last + 1, Phase.BACKWARD),
            said(last + 1, len(scope_of), Phase.UPDATE),
        ]
    )
