"""Cut the loops over layers of a step into parts for the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autoshard.cluster import Cluster
from autoshard.importer.stage_ops import stage_of_mark
from autoshard.ir import mlir
from autoshard.ir.attributes import ALIASING_OUTPUT
from autoshard.ir.boundary import entries_at, main_function
from autoshard.ir.module import operations_of
from autoshard.planned.op_seconds import block_seconds, op_seconds
from autoshard.planned.write import populate_rules, remove_rules
from autoshard.rewrites.layer_loops.loops import LayerLoop, layer_loop
from autoshard.rewrites.layer_loops.narrow import convert_stacks
from autoshard.rewrites.layer_loops.parts import ProgramParts, RowParts
from autoshard.rewrites.layer_loops.refusals import too_large
from autoshard.rewrites.layer_loops.rows import RowValues
from autoshard.rewrites.layer_loops.shares import Share, parts_of_groups, shares_of
from autoshard.rewrites.layer_loops.write import write_parts
from autoshard.rewrites.micro_batches.inline import inline
from autoshard.rewrites.stage_tasks.tasks import outer_uses

_MOST = 1.5
"""Times its share of the step that a loop may take on one stage; no cuts elsewhere make up for
more."""


def cut_layer_loops(
    module: mlir.Module,
    stages: int,
    cluster: Cluster,
    batch: Sequence[int],
    slack: float,
    chunks: int = 1,
) -> ProgramParts:
    """Cut loops that are too much for a stage, and arrays with a row for each of their trips.

    Args:
        module: A train step as lowered; calls are inlined where it has loops. A step in which
            nothing is to be cut, or that has marks of stages, stays as it is otherwise. Expects its
            context.
        stages: How many.
        cluster: By whose chip ops are timed.
        batch: Numbers of the arguments of ``main`` that hold the batch, which are not cut.
        slack: Times the least seconds of the slowest stage that it may take for fewer parts.
        chunks: Parts of the model on each stage; loops have the numbers of their parts as marks.

    Returns:
        Where the arguments and results of ``main`` are.

    Raises:
        PlanError: The trips of a loop that is too much for one stage do not fall equally on more.
    """
    operations = operations_of(module.operation)
    if not any(op.name == "stablehlo.while" for op in operations) or any(
        stage_of_mark(op) >= 0 for op in operations
    ):
        return _as_it_is(main_function(module))
    inline(module)
    main = main_function(module)
    block = main.regions[0].blocks[0]
    convert_stacks([op.operation for op in block.operations])
    ops = [op.operation for op in block.operations][:-1]
    loops = layer_loops_of(ops)
    if not loops:
        return _as_it_is(main)
    operations = operations_of(module.operation)
    each = op_seconds(module, operations, replace(cluster, dims=()))
    seconds = [its for _, its in block_seconds(operations, each, block)]
    frozen = {block.arguments[number] for number in batch}
    populate_rules(module)
    try:
        values = RowValues(ops, loops, frozen, ties_of(main))
    finally:
        remove_rules(module)
    groups = argument_groups(values, block)
    shares = shares_of(values, seconds, groups)
    cut = parts_of_groups(values, shares, stages, chunks, slack)
    _check_shares(values, shares, cut, stages, chunks)
    if not cut:
        return _as_it_is(main)
    return write_parts(module, main, values, cut, _early(ops, frozen))


def _as_it_is(main: mlir.Operation) -> ProgramParts:
    block = main.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    return ProgramParts.of_whole(len(block.arguments), len(end.operands))


def layer_loops_of(ops: Sequence[mlir.Operation]) -> dict[int, LayerLoop]:
    """The loops of a block that can be cut by their trips, by number."""
    found: dict[int, LayerLoop] = {}
    for number, op in enumerate(ops):
        if op.name == "stablehlo.while" and not isinstance(read := layer_loop(op), str):
            found[number] = read
    return found


def ties_of(main: mlir.Operation) -> dict[mlir.Value, mlir.Value]:
    """Arguments and the results that take their memory, both ways."""
    block = main.regions[0].blocks[0]
    results = block.operations[len(block.operations) - 1].operation.operands
    ties: dict[mlir.Value, mlir.Value] = {}
    entries = entries_at(main, "arg_attrs")
    for argument, entry in zip(block.arguments, entries, strict=True):
        if ALIASING_OUTPUT in entry:
            result = results[mlir.IntegerAttr(entry[ALIASING_OUTPUT]).value]
            ties[argument], ties[result] = result, argument
    return ties


def argument_groups(values: RowValues, block: mlir.Block) -> list[int]:
    """Groups of loops of which arguments have rows: weights, not steps of time."""
    found = (values.rows_of(argument) for argument in block.arguments)
    return sorted({rows.group for rows in found if rows is not None})


def _early(
    ops: Sequence[mlir.Operation], frozen: set[mlir.Value]
) -> Callable[[mlir.Operation], bool]:
    """Tells ops that are made of arguments alone, and of none that holds the batch."""
    late: set[mlir.Value] = set(frozen)
    made: set[mlir.Value] = set()
    for op in ops:
        read = [user.operands[operand] for user, operand in outer_uses(op)]
        if op.name == "stablehlo.while" or any(value in late for value in read):
            late.update(op.results)
        elif any(isinstance(value, mlir.BlockArgument) or value in made for value in read):
            made.update(op.results)
    return lambda op: any(result in made for result in op.results)


def _check_shares(
    values: RowValues,
    shares: Sequence[Share],
    cut: Mapping[int, RowParts],
    stages: int,
    chunks: int,
) -> None:
    """Raise where a part of a group of loops is too much for a stage.

    Other loops stay whole, and are refused where stages are chosen, if they are too much there.
    """
    whole = sum(share.seconds for share in shares)
    for share in shares:
        if share.group is None:
            continue
        parts = cut[share.group].count if share.group in cut else 1
        its = share.seconds / parts
        if its * stages * chunks > _MOST * whole:
            first = values.loops_of(share.group)[0]
            asked = stages, chunks
            raise too_large(
                values.ops[first], its / whole, asked, share.trips, parts if cut else None
            )
