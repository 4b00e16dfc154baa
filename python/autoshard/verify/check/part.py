"""A part of a planned program, as a planned program of its own.

before  main(a) { b = f(a); c = g(b); d = h(c); return d }, keep g
after   main(b) { c = g(b); return c }

What ops that are gone have made comes in as arguments, and what only they have read goes out as
results, in the plan's shardings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, STAGE_ROWS
from autoshard.ir.boundary import attributes_at, entries_at
from autoshard.ir.module import operations_of
from autoshard.planned.module import Placement, PlannedFunction, PlannedModule
from autoshard.sharding.hlo_text import to_v2
from autoshard.sharding.sharding import Sharding
from autoshard.verify.check.scale import set_function_type

# Ops hash by what they are, not by which they are, and must not be keys while they change: here
# they go by their numbers in the outermost block.


def entry_of(plan: PlannedModule) -> PlannedFunction:
    """The function that is called from outside."""
    return next(function for function in plan.functions if function.is_entry)


def read_values(op: mlir.Operation) -> list[mlir.Value]:
    """Operands, and what the regions of ``op`` read from around it."""
    values = list(op.operands)
    if len(op.regions):
        for inner in operations_of(op)[1:]:
            values += inner.operands
    return values


def keep_part(
    plan: PlannedModule, kept: Collection[int], shown: Collection[int] | None = None
) -> None:
    """Let ``main`` be some of its ops, in their order.

    Args:
        plan: Of a module, which changes; it is of no use afterwards.
        kept: Numbers of ops of the outermost block.
        shown: Those of them whose results are returned; None: what ops that are gone have read.
    """
    entry = entry_of(plan)
    placements = dict(entry.body.arguments)
    rows = _rows_of_stages(entry.op)
    ops = [planned.op for planned in entry.body.ops]
    for planned in entry.body.ops[:-1]:
        placements.update(zip(planned.op.results, planned.results, strict=True))
    read_by_kept: set[mlir.Value] = set()
    read_by_gone: set[mlir.Value] = set()
    for number, op in enumerate(ops):
        (read_by_kept if number in kept else read_by_gone).update(read_values(op))
    with plan.module.context, mlir.Location.unknown(plan.module.context):
        (block,) = entry.op.regions[0].blocks
        out = [
            result
            for number in sorted(kept)
            for result in ops[number].results
            if isinstance(result.type, mlir.RankedTensorType)
            and (result in read_by_gone if shown is None else number in shown)
        ]
        gone = [op for number, op in enumerate(ops[:-1]) if number not in kept]
        for op in gone:
            for result in op.results:
                if result in read_by_kept:
                    argument = block.add_argument(result.type, mlir.Location.unknown())
                    placements[argument] = placements[result]
                    result.replace_all_uses_with(argument)
        return_values(ops[-1], out)
        for op in reversed(gone):
            op.erase()
        for number in reversed(range(len(block.arguments))):
            if next(iter(block.arguments[number].uses), None) is None:
                block.erase_argument(number)
        set_boundary(entry.op, placements, out)
        _set_rows_of_stages(entry.op, rows)


def _rows_of_stages(main: mlir.Operation) -> dict[mlir.Value, mlir.Attribute]:
    """The dim of each argument of which stages in lockstep have their own rows."""
    arguments = main.regions[0].blocks[0].arguments
    entries = zip(arguments, entries_at(main, "arg_attrs"), strict=True)
    return {value: entry[STAGE_ROWS] for value, entry in entries if STAGE_ROWS in entry}


def _set_rows_of_stages(main: mlir.Operation, rows: Mapping[mlir.Value, mlir.Attribute]) -> None:
    entries = attributes_at(main, "arg_attrs")
    for value, entry in zip(main.regions[0].blocks[0].arguments, entries, strict=True):
        if value in rows:
            entry[STAGE_ROWS] = rows[value]
    main.attributes["arg_attrs"] = mlir.ArrayAttr.get([mlir.DictAttr.get(e) for e in entries])


def return_values(last: mlir.Operation, values: Sequence[mlir.Value]) -> None:
    """Return these instead of what ``last`` returns."""
    where = mlir.InsertionPoint(last)
    mlir.Operation.create("func.return", operands=list(values), loc=last.location, ip=where)
    last.erase()


def set_boundary(
    function: mlir.Operation,
    placements: dict[mlir.Value, Placement | None],
    results: Sequence[mlir.Value],
) -> None:
    """Write the type of a function and the shardings of its arguments and results."""
    (block,) = function.regions[0].blocks
    set_function_type(function)
    for key, values in (("arg_attrs", list(block.arguments)), ("res_attrs", results)):
        said = [_attributes(value, placements[value]) for value in values]
        function.attributes[key] = mlir.ArrayAttr.get(said)


def _attributes(value: mlir.Value, placement: Placement | None) -> mlir.Attribute:
    """Attributes of an argument or result in ``placement``, whole where that would be padded."""
    if placement is None or not isinstance(value.type, mlir.RankedTensorType):
        return mlir.DictAttr.get({})
    sharding = placement.sharding
    shape = mlir.RankedTensorType(value.type).shape
    dims = tuple(
        axes if size % pieces == 0 else ()
        for axes, size, pieces in zip(sharding.dims, shape, sharding.tile, strict=True)
    )
    text = to_v2(Sharding(sharding.mesh, dims))
    return mlir.DictAttr.get({MHLO_SHARDING: mlir.StringAttr.get(text)})
