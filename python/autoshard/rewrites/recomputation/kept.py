"""Keep what ``autoshard.recompute``'s switches say, between loops and for gathered parameters.

mp_comm_recompute=False
before  the second of two loops computes a sum over devices again, as the first one did
after   the first loop stacks the sum, and the second one reads it
parallel_optimizer_comm_recompute=False
before  forward and backward ops gather a parameter, each for itself
after   %w2 = stablehlo.convert %w, whose sharding is the gathered one; all of them read %w2,
        of which a loop stacks what another loop reads
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, STRATEGY
from autoshard.planned.given_plan import Dims
from autoshard.rewrites.numbering import Numbering
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.loops import Pair, body_of, invariant_slots, pairs_of
from autoshard.rewrites.recomputation.marks import (
    is_backward,
    no_twin,
    scope_switches,
    switches_of,
)
from autoshard.rewrites.recomputation.more_stacks import Kept, stack_more
from autoshard.rewrites.recomputation.stacker import Stacker
from autoshard.sharding import Sharding, format_sharding, to_v2


@dataclass(slots=True)
class _Gathered:
    """A parameter that ops read gathered."""

    source: mlir.Value
    """As it is held, in the block of the first reader."""
    dims: Dims
    """How it is read."""
    readers: list[tuple[mlir.Operation, int]] = field(
        default_factory=list[tuple[mlir.Operation, int]]
    )


def keep_in_loops(block: Block, blocks: Mapping[mlir.Block, Block]) -> bool:
    """Obey the switches between the first pair of loops of a block for which they say something.

    Args:
        block: Where the loops stand; they are written anew, so that nothing read holds afterwards.
        blocks: The bodies of all loops.

    Returns:
        Whether something was changed.

    Raises:
        PlanError: What is to be kept is made by no op of the first loop.
    """
    for pair in pairs_of(block):
        first, second = blocks[body_of(pair.first)], blocks[body_of(pair.second)]
        numbers = _numbers(pair)
        kept = [*_kept_sums(second, numbers), *_kept_gathers(first, second, numbers)]
        is_changed = _keep_whole_arrays(block, pair, second)
        if kept:
            stack_more(pair, Stacker.of_plan(block, pair), kept)
        if kept or is_changed:
            return True
    return False


def _keep_whole_arrays(block: Block, pair: Pair, second: Block) -> bool:
    """Let the second loop take parameters from the first one, where that has them gathered."""
    said = (scope_switches(op) for op in second.ops)
    if all(found is None or found.parallel_optimizer_comm_recompute for found in said):
        return False
    gathered = {
        pair.first.operands[slot]: pair.first.results[slot]
        for slot in invariant_slots(pair.first)
        if _is_parameter(block, block.number_of.get(pair.first.operands[slot], -1))
    }
    is_changed = False
    for slot in invariant_slots(pair.second):
        init = pair.second.operands[slot]
        if init not in gathered:
            continue
        made, wanted = _held(block, gathered[init]), _held(block, pair.second.results[slot])
        if made == wanted and made != _held(block, init):
            pair.second.operands[slot] = gathered[init]
            is_changed = True
    return is_changed


def keep_gathered(block: Block) -> bool:
    """Gather a parameter once for all ops of marked functions in a block; was there something?"""
    numbers = _own_numbers(block)
    found: list[_Gathered] = []
    _collect_gathers(block, numbers, found)
    shared = [one for one in found if len({reader for reader, _ in one.readers}) > 1]
    for one in shared:
        gathered = _gather(block, one)
        for op, number in one.readers:
            op.operands[number] = gathered
    return bool(shared)


def _own_numbers(block: Block) -> Numbering:
    numbers = Numbering()
    for op in block.ops:
        numbers.read(op)
    return numbers


def _collect_gathers(block: Block, numbers: Numbering, found: list[_Gathered]) -> None:
    """Add what ops of marked functions read gathered of parameters, by the numbers of these."""
    own = _own_numbers(block)
    for op in block.ops:
        switches = scope_switches(op)
        if switches is None or switches.parallel_optimizer_comm_recompute:
            continue
        for number, wanted in _gathered_operands(block, op, own):
            source = numbers.of(op.operands[number])
            assert isinstance(source, mlir.Value), "an array"
            for one in found:
                if one.source == source and _only_cuts(one.dims, wanted):
                    one.readers.append((op, number))
                    break
            else:
                found.append(_Gathered(source, wanted, [(op, number)]))


def _gathered_operands(block: Block, op: mlir.Operation, own: Numbering) -> list[tuple[int, Dims]]:
    """Operands made of parameters alone that an op reads in larger parts than they are held."""
    costs, value_of = block.costs, block.costed.imported.value_of
    core = costs.core_number(op)
    if core == NO_VALUE:
        return []
    operands, _ = costs.strategies[costs.op_strategy[core]]
    found: list[tuple[int, Dims]] = []
    for number, (value, row) in enumerate(zip(op.operands, operands, strict=True)):
        held = value_of.get(value, NO_VALUE)
        known = _number_of(block, own, value)
        if held == NO_VALUE or row == NO_VALUE or not _is_parameter(block, known):
            continue
        wanted = _dims(costs.shardings[row])
        if not _only_cuts(_dims(costs.shardings[costs.value_sharding[held]]), wanted):
            found.append((number, wanted))
    return found


def _dims(rows: object) -> Dims:
    return tuple(tuple(axes) for axes in rows)  # type: ignore[attr-defined]


def _only_cuts(before: Dims, after: Dims) -> bool:
    return all(new[: len(old)] == old for old, new in zip(before, after, strict=True))


def _gather(block: Block, one: _Gathered) -> mlir.Value:
    """An op before the first reader whose result is the gathered parameter."""
    text = format_sharding(_held(block, one.source))
    position = {op: number for number, op in enumerate(block.ops)}
    first = min((op for op, _ in one.readers), key=lambda op: position[op])
    made = mlir.Operation.create(
        "stablehlo.convert",
        results=[one.source.type],
        operands=[one.source],
        attributes={
            MHLO_SHARDING: mlir.StringAttr.get(to_v2(_sharding(block, one.dims))),
            STRATEGY: mlir.StringAttr.get(f"{text} -> {text}"),
        },
        loc=first.location,
        ip=mlir.InsertionPoint(first),
    )
    return made.results[0]


def _sharding(block: Block, dims: Dims) -> Sharding:
    """With the names of the plan's axes."""
    row = next(n for n, rows in enumerate(block.costs.shardings) if _dims(rows) == dims)
    return block.costed.shardings[row]


def check_gathers(blocks: Sequence[Block]) -> None:
    """Refuse to compute again in loops within loops, where parameters may be gathered again.

    Raises:
        PlanError: Parameters are cut, and what is computed again is neither beside its forward
            pass nor in the second loop of a pair.
    """
    main, costs = blocks[0], blocks[0].costs
    held = (main.core.value(number) for number in range(len(main.block.arguments)))
    rows = {
        costs.value_sharding[one.in_program]
        for one in held
        if one.is_parameter and one.in_program >= 0
    }
    if not any(any(costs.shardings[row]) for row in rows):
        return
    beside = {body_of(pair.second) for block in blocks for pair in pairs_of(block)}
    for block in blocks:
        said = [(op, scope_switches(op)) for op in block.ops]
        marked = [op for op, one in said if one and not one.parallel_optimizer_comm_recompute]
        again = [op for op in marked if switches_of(op) is not None]
        if again and block.block not in beside and all(map(is_backward, marked)):
            raise no_twin(again[0], "parallel_optimizer_comm_recompute=False")


# Between loops


def _numbers(pair: Pair) -> Numbering:
    """What the second loop computes, by the values of the first one that are the same."""
    numbers = Numbering()
    first, second = body_of(pair.first), body_of(pair.second)
    same: dict[mlir.Value, mlir.Value] = {}
    for slot in invariant_slots(pair.first):
        argument = first.arguments[slot]
        same[pair.first.operands[slot]] = same[pair.first.results[slot]] = argument
    index = pair.stacks[0]
    numbers.number[index.index] = _INDEX
    for op in first.operations:
        if index.index not in list(op.operation.results):
            numbers.read(op.operation)
    for slot in invariant_slots(pair.second):
        if pair.second.operands[slot] in same:
            numbers.number[second.arguments[slot]] = same[pair.second.operands[slot]]
    numbers.number[index.read_index] = _INDEX
    reads = {read: stack.value for stack in pair.stacks for read in stack.reads}
    for op in second.operations:
        operation = op.operation
        if operation in reads:
            value = reads[operation]
            numbers.number[operation.results[0]] = numbers.of(value)
        elif index.read_index not in list(operation.results):
            numbers.read(operation)
    return numbers


_INDEX: Hashable = "number of the layer"


def _kept_sums(second: Block, numbers: Numbering) -> list[Kept]:
    """Results of collectives that the first loop has."""
    found: list[Kept] = []
    for op in second.ops:
        switches = switches_of(op)
        if switches is None or switches.mp_comm_recompute or not second.costs.sends_result(op):
            continue
        for result in op.results:
            twin = numbers.of(result)
            if not isinstance(twin, mlir.Value) or twin == result:
                raise no_twin(op, "mp_comm_recompute=False")
            readers = [(use.owner.operation, use.operand_number) for use in result.uses]
            found.append(Kept(twin, _held(second, twin), readers))
    return found


def _held(block: Block, value: mlir.Value) -> Sharding:
    core = block.costed.imported.value_of[value]
    return block.costed.shardings[block.costs.value_sharding[core]]


def _kept_gathers(first: Block, second: Block, numbers: Numbering) -> list[Kept]:
    """Gathered parameters of the first loop, which an op of their own gathers from now on."""
    forward: list[_Gathered] = []
    _collect_gathers(first, numbers, forward)
    merged = [_Gathered(one.source, one.dims) for one in forward]
    _collect_gathers(second, numbers, merged)
    found: list[Kept] = []
    for one, later in zip(forward, merged, strict=False):
        if later.readers:
            gathered = _gather(first, one)
            for op, number in one.readers:
                op.operands[number] = gathered
            found.append(Kept(gathered, _sharding(first, one.dims), later.readers))
    return found + _kept_parameters(second, numbers)


def _kept_parameters(second: Block, numbers: Numbering) -> list[Kept]:
    """What marked functions read of parameters that both loops gather before: slices, casts."""
    own = _own_numbers(second)
    found: dict[mlir.Value, Kept] = {}
    for op in second.ops:
        switches = scope_switches(op)
        if switches is None or switches.parallel_optimizer_comm_recompute:
            continue
        for number, operand in enumerate(op.operands):
            twin = numbers.of(operand)
            if _number_of(second, own, operand) in second.gathered and twin != own.of(operand):
                assert isinstance(twin, mlir.Value), "an array"
                kept = found.setdefault(twin, Kept(twin, _held(second, twin), []))
                kept.readers.append((op, number))
    return list(found.values())


def _is_parameter(block: Block, number: int) -> bool:
    """Is a value made of parameters alone? -1: one of another block."""
    return number >= 0 and block.core.value(number).is_parameter


def _number_of(block: Block, own: Numbering, value: mlir.Value) -> int:
    """Number of the first value of a block that is the same; -1 for one of another block."""
    source = own.of(value)
    return block.number_of.get(source, -1) if isinstance(source, mlir.Value) else -1
