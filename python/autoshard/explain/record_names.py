"""What ops are called, so that the names outlive a release of JAX, and in which phase they run.

JAX names an op ``jit(step)/transpose(jvp(Model))/layers/3/mlp/dot_general``. The words that are
JAX's own say how the op came about; those of the user's scopes stay: ``Model/layers/3/mlp``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from autoshard.explain.folding import of_any_layer
from autoshard.ir import mlir
from autoshard.ir.locations import CallStacks, op_name


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

    def __init__(self, ops: Sequence[mlir.Operation]) -> None:
        self.stacks = CallStacks()
        self.scopes: list[Scope] = []
        """One for each op."""
        self.frames: list[int] = []
        """For each op the number of its innermost frame; -1: none."""
        known: dict[str, Scope] = {}
        for op in ops:
            location = op.location
            around = op_name(location).rpartition("/")[0]
            if around not in known:
                known[around] = scope_of(around)
            self.scopes.append(known[around])
            self.frames.append(self.stacks.number(location))
        self.phases = _phases(self.scopes)
        self._lines = [
            f"@{frame.file.rpartition('/')[2]}:{frame.line}" for frame in self.stacks.frames
        ]

    def name(self, number: int, op: str) -> str:
        """``model/layers/3/mlp/dot_general@mlp.py:41``: an id without its last number."""
        path = self.scopes[number].path
        return (f"{path}/{op}" if path else op) + self.line(number)

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


def _phases(scopes: Sequence[Scope]) -> list[Phase]:
    """The phase of every op, from those whose names say it.

    JAX writes the forward half first, then the backward one, then what the optimizer does. An op
    whose name does not say, such as one of a function that was inlined, is of the phase where it
    stands; behind the forward half, what is in a scope of its is the backward half of that scope.
    """
    backward = [number for number, scope in enumerate(scopes) if scope.phase is Phase.BACKWARD]
    if not backward:
        return [Phase.STEP] * len(scopes)
    first, last = backward[0], backward[-1]
    forward = {scope.path for scope in scopes[:first] if scope.path}
    for number in range(len(scopes) - 1, last, -1):
        if scopes[number].path in forward:
            last = number
            break

    def where_it_stands(number: int) -> Phase:
        if number < first:
            return Phase.FORWARD
        return Phase.BACKWARD if number <= last else Phase.UPDATE

    return [scope.phase or where_it_stands(number) for number, scope in enumerate(scopes)]
