"""What ops are called, so that the names outlive a release of JAX, and in which phase they run.

JAX names an op ``jit(step)/transpose(jvp(Model))/layers/3/mlp/dot_general``. The words that are
JAX's own say how the op came about; those of the user's scopes stay: ``Model/layers/3/mlp``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from types import MappingProxyType

from autoshard.explain.folding import common_name, of_any_layer
from autoshard.ir import mlir
from autoshard.ir.locations import CallStacks, op_name
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
    """Names, phases and call stacks of the ops of a program, in its order."""

    def __init__(
        self,
        ops: Sequence[mlir.Operation],
        classes: Sequence[int],
        locations: Sequence[int],
        casts: Mapping[int, mlir.Type] = MappingProxyType({}),
    ) -> None:
        """Read the ops, what is alike of them once.

        Args:
            ops: Of the core.
            classes: A number for each, as ``ImportedProgram.op_classes`` has them.
            locations: Likewise, as ``ImportedProgram.op_locations``.
            casts: Those for whom the op stands that reads them, and what they make.
        """
        self.stacks = CallStacks()
        self.classes = classes
        self.locations = locations
        self._kinds: dict[int, tuple[str, tuple[mlir.Type, ...]]] = {}
        self._places: dict[int, tuple[Scope, int]] = {}
        for kind, first in _firsts(classes):
            op = ops[first]
            if first in casts:
                self._kinds[kind] = ("convert", (casts[first],))
            else:
                self._kinds[kind] = (short_name(op), tuple(result.type for result in op.results))
        known: dict[str, Scope] = {}
        for at, first in _firsts(locations):
            location = ops[first].location
            around = op_name(location).rpartition("/")[0]
            if around not in known:
                known[around] = scope_of(around)
            self._places[at] = (known[around], self.stacks.number(location))
        scopes = {at: scope for at, (scope, _) in self._places.items()}
        frames = {at: frame for at, (_, frame) in self._places.items()}
        self.frames = list(map(frames.__getitem__, locations))
        """For each op the number of its innermost frame; -1: none."""
        self.phases = _phases(scopes, locations)
        """For each op a value of ``Phase``."""
        self._lines = [
            f"@{frame.file.rpartition('/')[2]}:{frame.line}" for frame in self.stacks.frames
        ]

    def word(self, number: int) -> str:
        """``dot_general``; of a call of something opaque what it calls."""
        return self._kinds[self.classes[number]][0]

    def types(self, number: int) -> tuple[mlir.Type, ...]:
        """Those of an op's results."""
        return self._kinds[self.classes[number]][1]

    def scope(self, number: int) -> Scope:
        """What the names around an op say."""
        return self._places[self.locations[number]][0]

    def name(self, number: int) -> str:
        """``model/layers/3/mlp/dot_general@mlp.py:41``: an id without its last number."""
        return self._in_scope(self.scope(number).path, number)

    def common_name(self, members: Sequence[int]) -> str:
        """The same for ops of one word and line whose scopes differ in numbers of layers only."""
        places = dict.fromkeys(map(self.locations.__getitem__, members))
        paths = dict.fromkeys(self._places[at][0].path for at in places)
        return self._in_scope(common_name(list(paths)), members[0])

    def _in_scope(self, path: str, number: int) -> str:
        word = self.word(number)
        return (f"{path}/{word}" if path else word) + self.line(number)

    def line(self, number: int) -> str:
        """``@mlp.py:41``; empty where the line is not known."""
        frame = self.frames[number]
        return "" if frame < 0 else self._lines[frame]

    def location(self, number: int) -> str | None:
        """``file:line`` of an op."""
        frame = self.frames[number]
        if frame < 0:
            return None
        found = self.stacks.frames[frame]
        return f"{found.file}:{found.line}" if found.line else found.file


def _firsts(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each number that is there, with the index of the first; in the order of these."""
    last = len(numbers) - 1
    first = dict(zip(reversed(numbers), range(last, -1, -1), strict=True))
    yield from sorted(first.items(), key=itemgetter(1))


def _phases(scopes: Mapping[int, Scope], of_op: Sequence[int]) -> list[str]:
    """The phase of every op, from those whose names say it; its scope is ``scopes[of_op]``.

    JAX writes the forward half first, then the backward one, then what the optimizer does. An op
    whose name does not say, such as one of a function that was inlined, is of the phase where it
    stands; behind the forward half, what is in a scope of its is the backward half of that scope.
    """
    are_backward = {n for n, scope in scopes.items() if scope.phase is Phase.BACKWARD}
    first = next((number for number, at in enumerate(of_op) if at in are_backward), None)
    if first is None:
        return [Phase.STEP.value] * len(of_op)
    behind = next(number for number, at in enumerate(reversed(of_op)) if at in are_backward)
    last = len(of_op) - 1 - behind
    forward = {scopes[one].path for one in set(of_op[:first])} - {""}
    of_forward = {n for n, scope in scopes.items() if scope.path in forward}
    for number in range(len(of_op) - 1, last, -1):
        if of_op[number] in of_forward:
            last = number
            break

    def said(begin: int, end: int, else_: Phase) -> list[str]:
        phases = {n: (scope.phase or else_).value for n, scope in scopes.items()}
        return list(map(phases.__getitem__, of_op[begin:end]))

    return [
        *said(0, first, Phase.FORWARD),
        *said(first, last + 1, Phase.BACKWARD),
        *said(last + 1, len(of_op), Phase.UPDATE),
    ]
