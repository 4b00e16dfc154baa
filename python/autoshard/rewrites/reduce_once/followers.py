"""Ops that hand parts of sums on: they do to each part what they did to the sum."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autoshard.ir import mlir
from autoshard.ir.constants import constant
from autoshard.ir.reading import ints, shape_of
from autoshard.rewrites.reduce_once.blocks import Blocks, open_pins, write
from autoshard.sharding import Sharding
from autoshard.sharding.text import OpStrategy

_FIRST_START = {"stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2}
"""Ops with an operand for the start in each dim, from this operand on."""
_BESIDE = frozenset(("stablehlo.multiply", "stablehlo.divide", "stablehlo.select"))
"""Ops that may read what is no part beside parts, of the same shape."""


def write_follower(
    op: mlir.Operation, parts: Collection[int], blocks: Blocks, strategy: OpStrategy, held: Sharding
) -> None:
    """Let an op work on all parts; its result, and the operands that are parts, have their types.

    Args:
        op: One of those of ``linear``; it may be replaced.
        parts: Operands that are parts.
        blocks: Over which axes.
        strategy: As planned before.
        held: How the result was held.
    """
    wanted = [
        blocks.sharding(each) if operand in parts else blocks.freed(each)
        for operand, each in enumerate(strategy.operands)
    ]
    for operand, value in enumerate(op.operands):
        if op.name in _BESIDE and operand not in parts and not _is_one_for_all(op, value):
            op.operands[operand] = blocks.spread(value, strategy.operands[operand], op)
            wanted[operand] = blocks.sharding(strategy.operands[operand])
    open_pins(op, (0,))
    _write_dims(op, blocks)
    result = blocks.sharding(strategy.results[0])
    if op.name in _FIRST_START:
        first = _FIRST_START[op.name]
        wanted[first:first] = [Sharding(blocks.mesh, ())] * blocks.count
        op = _start_in_front(op, first, blocks)
    write(op, [blocks.sharding(held)], OpStrategy(tuple(wanted), (result,)))


def _is_one_for_all(op: mlir.Operation, value: mlir.Value) -> bool:
    """A predicate without dims selects among arrays with any."""
    return op.name == "stablehlo.select" and not shape_of(value)


def _write_dims(op: mlir.Operation, blocks: Blocks) -> None:
    """Dims and sizes that an op names, behind those of the parts."""
    count, sizes = blocks.count, blocks.sizes
    front = list(range(count))
    if op.name == "stablehlo.transpose":
        _set(op, "permutation", [*front, *_shifted(op, "permutation", count)])
    elif op.name == "stablehlo.broadcast_in_dim":
        _set(op, "broadcast_dimensions", [*front, *_shifted(op, "broadcast_dimensions", count)])
    elif op.name == "stablehlo.reduce":
        _set(op, "dimensions", _shifted(op, "dimensions", count))
    elif op.name == "stablehlo.slice":
        for name, inserted in (
            ("start_indices", [0] * count),
            ("limit_indices", sizes),
            ("strides", [1] * count),
        ):
            _set(op, name, [*inserted, *ints(op, name, [])])
    elif op.name == "stablehlo.pad":
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding"):
            _set(op, name, [0] * count + ints(op, name, []))
    elif op.name == "stablehlo.dynamic_slice":
        _set(op, "slice_sizes", [*sizes, *ints(op, "slice_sizes", [])])
    elif op.name == "stablehlo.concatenate":
        dim = mlir.IntegerAttr(op.attributes["dimension"])
        op.attributes["dimension"] = mlir.IntegerAttr.get(dim.type, dim.value + count)


def _shifted(op: mlir.Operation, name: str, count: int) -> list[int]:
    return [dim + count for dim in ints(op, name, [])]


def _set(op: mlir.Operation, name: str, numbers: Sequence[int]) -> None:
    op.attributes[name] = mlir.DenseI64ArrayAttr.get(list(numbers))


def _start_in_front(op: mlir.Operation, first: int, blocks: Blocks) -> mlir.Operation:
    """Write an op anew with a start of 0 in each dim of the parts."""
    start = op.operands[first].type
    zero = constant(start, "0", mlir.InsertionPoint(op), op.location)
    write(zero, [Sharding(blocks.mesh, ())], like=op)
    operands = [
        *list(op.operands)[:first],
        *[zero.results[0]] * blocks.count,
        *list(op.operands)[first:],
    ]
    attributes = {
        op.attributes[index].name: op.attributes[index].attr for index in range(len(op.attributes))
    }
    made = mlir.Operation.create(
        op.name,
        results=[op.results[0].type],
        operands=operands,
        attributes=attributes,
        loc=op.location,
        ip=mlir.InsertionPoint(op),
    )
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()
    return made
