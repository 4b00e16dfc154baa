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
from autoshard.recomputation.block import Block

_SCOPE = re.compile(r"rematted_computation.*autoshard_recompute_mp([01])_po([01])")
_IN_SCOPE = re.compile(r"autoshard_recompute_mp([01])_po([01])")

_OURS = frozenset(("mhlo.sharding", "autoshard.strategy", "autoshard.pin"))


def scope_of(mp_comm_recompute: bool, parallel_optimizer_comm_recompute: bool) -> str:
    """The name scope that carries the switches."""
    return (
        f"autoshard_recompute_mp{int(mp_comm_recompute)}_po{int(parallel_optimizer_comm_recompute)}"
    )


@dataclass(frozen=True, slots=True)
class Switches:
    """Of one marked function."""

    mp_comm_recompute: bool
    parallel_optimizer_comm_recompute: bool


def switches_of(op: mlir.Operation) -> Switches | None:
    """Of the function that an op is computed again for; None where it is not marked, or is not
    computed again."""
    found = _SCOPE.search(_name(op.location))
    return None if found is None else Switches(found[1] == "1", found[2] == "1")


def has_switches(module: mlir.Module) -> bool:
    """Does a marked function keep something that ``jax.checkpoint`` would not?"""
    found = False

    def visit(op: mlir.Operation) -> mlir.WalkResult:
        nonlocal found
        switch = _IN_SCOPE.search(_name(op.location))
        found = found or (switch is not None and "0" in (switch[1], switch[2]))
        return mlir.WalkResult.INTERRUPT if found else mlir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _name(location: mlir.Location) -> str:
    return location.name_str if isinstance(location, mlir.NameLoc) else ""


def keep_marked(block: Block) -> int:
    """Obey the switches in straight-line code; how many ops read what was kept instead.

    Raises:
        PlanError: What is to be kept was made in a loop, which does not keep it.
    """
    first: dict[Hashable, mlir.Value] = {}
    number: dict[mlir.Value, Hashable] = {}
    changed = 0
    for position, op in enumerate(block.ops):
        switches = switches_of(op)
        if op.name == "stablehlo.optimization_barrier":
            for result, operand in zip(op.results, op.operands, strict=True):
                number[result] = number.get(operand, operand)
            continue
        key = _key(op, number)
        if switches is not None and not switches.parallel_optimizer_comm_recompute:
            changed += _read_parameters(block, position, number)
        for index, result in enumerate(op.results):
            known = None if key is None else first.get((key, index))
            if known is None:
                number[result] = result
                if key is not None:
                    first[(key, index)] = result
                continue
            number[result] = known
            if switches is None or not _is_kept(block, position, switches):
                continue
            result.replace_all_uses_with(known)
            changed += 1
        if switches is not None and not switches.mp_comm_recompute:
            _check_has_twin(block, position, op, number)
    return changed


def check_loops(block: Block) -> None:
    """In loops the switches cannot keep anything; refuse them where they would have to.

    Raises:
        PlanError: An op in a loop sends something again that it is told to keep.
    """
    in_main = set(block.ops)
    for op, sends_result, sends_operand in block.sending_ops():
        switches = None if op in in_main else switches_of(op)
        if switches is None:
            continue
        if sends_result and not switches.mp_comm_recompute:
            raise PlanError(
                f"{op.name}: mp_comm_recompute=False, but the op is in the body of a loop, which"
                " does not keep its result for another loop. Unroll the loop, or leave the switch"
                " out.",
                place(op.location),
            )
        if sends_operand and not switches.parallel_optimizer_comm_recompute:
            raise PlanError(
                f"{op.name}: parallel_optimizer_comm_recompute=False, but the op is in the body of"
                " a loop, which does not keep gathered parameters for another loop. Unroll the"
                " loop, or leave the switch out.",
                place(op.location),
            )


def check_gathers(block: Block) -> None:
    """Refuse to gather parameters again where a switch forbids it.

    Raises:
        PlanError: Nobody keeps the gathered parameter so long.
    """
    for position in sorted(block.gathers):
        op = block.ops[position]
        switches = switches_of(op)
        if switches is not None and not switches.parallel_optimizer_comm_recompute:
            raise PlanError(
                f"{op.name}: parallel_optimizer_comm_recompute=False, but its parameter would be"
                " gathered again: the copy of the forward pass is gone by then. Leave the switch"
                " out, or pin the parameter whole with in_shardings.",
                place(op.location),
            )


def _is_kept(block: Block, position: int, switches: Switches) -> bool:
    if position in block.collective and not switches.mp_comm_recompute:
        return True
    return not switches.parallel_optimizer_comm_recompute and all(
        _comes_from_parameters(block, number) for number in block.operands[position]
    )


def _comes_from_parameters(block: Block, number: int) -> bool:
    return number in block.made_of_arguments


def _check_has_twin(
    block: Block, position: int, op: mlir.Operation, number: dict[mlir.Value, Hashable]
) -> None:
    for result in op.results:
        if position in block.collective and number[result] == result:
            raise PlanError(
                f"{op.name}: mp_comm_recompute=False, but the forward pass has no such op whose"
                " result could be kept. Leave the switch out for this function.",
                place(op.location),
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
        if known is not None and known in block.made_of_arguments:
            op.operands[place_] = source
            changed += 1
    return changed


def _key(op: mlir.Operation, number: dict[mlir.Value, Hashable]) -> Hashable | None:
    """The same for ops that compute the same; None for ops that may not be merged."""
    if op.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if", "func.call"):
        return None
    if "has_side_effect" in op.attributes:
        return None
    attributes = tuple(
        (named.name, named.attr) for named in _attributes(op) if named.name not in _OURS
    )
    inner = tuple(
        (inner.operation.name, tuple((n.name, n.attr) for n in _attributes(inner.operation)))
        for region in op.regions
        for block in region.blocks
        for inner in block.operations
    )
    operands = tuple(number.get(value, value) for value in op.operands)
    return (op.name, attributes, inner, operands, tuple(result.type for result in op.results))


def _attributes(op: mlir.Operation) -> list[mlir.NamedAttribute]:
    return [op.attributes[index] for index in range(len(op.attributes))]
