"""The switches of ``autoshard.recompute``, as they stand in the names of ops.

before  "../rematted_computation/autoshard_recompute_mp0_po1/dot_general": a sum over devices that
        is computed and sent again
after   its readers take the sum of the forward pass
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.rewrites.numbering import Numbering
from autoshard.rewrites.recomputation.block import Block

_SCOPE = re.compile(r"rematted_computation.*autoshard_recompute_mp([01])_po([01])")
_IN_SCOPE = re.compile(r"autoshard_recompute_mp([01])_po([01])")
_KEEPING = re.compile(rb"autoshard_recompute_mp(0_po[01]|1_po0)")


def scope_of(mp_comm_recompute: bool, parallel_optimizer_comm_recompute: bool) -> str:
    """The name scope that carries the switches."""
    return (
        f"autoshard_recompute_mp{int(mp_comm_recompute)}_po{int(parallel_optimizer_comm_recompute)}"
    )


@dataclass(frozen=True, slots=True)
class Switches:
    """Switches of one marked function."""

    mp_comm_recompute: bool
    parallel_optimizer_comm_recompute: bool


def switches_of(op: mlir.Operation) -> Switches | None:
    """Switches of the function that an op is computed again for; None where it is not marked, or is
    not computed again."""
    found = _SCOPE.search(_name(op.location))
    return None if found is None else Switches(found[1] == "1", found[2] == "1")


def scope_switches(op: mlir.Operation) -> Switches | None:
    """Switches of the marked function that an op belongs to, forward or backward."""
    found = _IN_SCOPE.search(_name(op.location))
    return None if found is None else Switches(found[1] == "1", found[2] == "1")


def is_backward(op: mlir.Operation) -> bool:
    """Does an op of a marked function belong to the backward pass?"""
    return "checkpoint/" in _name(op.location)


def has_switches(module: bytes) -> bool:
    """Does a marked function of a module keep something that ``jax.checkpoint`` would not?

    Args:
        module: As bytecode.
    """
    return _KEEPING.search(module) is not None


def _name(location: mlir.Location) -> str:
    return location.name_str if isinstance(location, mlir.NameLoc) else ""


def no_twin(op: mlir.Operation, switch: str) -> PlanError:
    """The error for an op that must not send again, but has no other one to take over from."""
    return PlanError(
        f"{op.name}: {switch}, but no op of the forward pass is known whose result could be kept"
        " for it: what is computed again must be in the same block, or in a jax.lax.scan beside"
        " that of the forward pass, not in loops within these. Leave the switch out for this"
        " function, or use one scan.",
        place(op.location),
    )


def keep_marked(block: Block) -> int:
    """Obey the switches in straight-line code; how many ops read what was kept instead.

    Raises:
        PlanError: What is to be kept was made in a loop, which does not keep it.
    """
    numbers = Numbering()
    changed = 0
    for position, op in enumerate(block.ops):
        switches = switches_of(op)
        if switches is not None and not switches.parallel_optimizer_comm_recompute:
            changed += _read_parameters(block, position, numbers.number)
        numbers.read(op)
        if switches is None or op.name == "stablehlo.optimization_barrier":
            continue
        for result in op.results:
            known = numbers.of(result)
            if isinstance(known, mlir.Value) and known != result:
                if _is_kept(block, position, switches):
                    result.replace_all_uses_with(known)
                    changed += 1
            elif block.core.op(position).sends and not switches.mp_comm_recompute:
                raise no_twin(op, "mp_comm_recompute=False")
    return changed


def _is_kept(block: Block, position: int, switches: Switches) -> bool:
    if block.core.op(position).sends and not switches.mp_comm_recompute:
        return True
    return not switches.parallel_optimizer_comm_recompute and all(
        block.core.value(number).is_parameter for number in block.core.operands(position)
    )


def _read_parameters(
    block: Block,
    position: int,
    number: dict[mlir.Value, Hashable],
) -> int:
    """Let an op read parameters as the forward pass does, not through the barrier."""
    op = block.ops[position]
    changed = 0
    for place_, value in enumerate(op.operands):
        source = number.get(value)
        if not isinstance(source, mlir.Value) or source == value:
            continue
        known = block.number_of.get(source)
        if known is not None and block.core.value(known).is_parameter:
            op.operands[place_] = source
            changed += 1
    return changed
