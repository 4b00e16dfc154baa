"""Make matmuls that are sums over devices and are transposed the other way round.

    before  %g = dot_general %dy, %x, contracting_dims = [0] x [0] : [out, in], a sum over devices
            %t = transpose %g, dims = [1, 0] : [in, out]
    after   %t = dot_general %x, %dy, contracting_dims = [0] x [0] : [in, out], likewise

JAX writes gradients of weights so. Compilers join the two themselves, but not where a collective
comes between them: the gradient lies transposed in memory then, and some copy the parameter and
its moments so that they lie alike, and back when they are updated (``layout.transposed_sums`` in
docs/design/compilers.md). Of weights of experts a transpose is left, that of [in, experts, out] to
[experts, in, out], which keeps the last dim where it is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import shape_of
from autoshard.planned.module import Kind, Placement, PlannedBlock, PlannedModule, PlannedOp

_MATMUL = "stablehlo.dot_general"
_TRANSPOSE = "stablehlo.transpose"
_NUMBERS = "dot_dimension_numbers"
_PRECISION = "precision_config"
_ORDER = "permutation"
_TILE = ("layout.tile_rows", "layout.tile_columns")


def turn_transposed_sums(plan: PlannedModule) -> PlannedModule:
    """The same plan, of a module whose sums over devices are made as they are read.

    Expects the context of the module, which it changes, to be current. Sums that others read as
    well stay, batches of matmuls, and what fills tiles of memory in another order. Where the
    compiler does not copy what is read beside them, the plan stays as it is.
    """
    if not plan.may_be_compiled_so("layout.transposed_sums"):
        return plan
    functions = tuple(replace(each, body=_turned_in(plan, each.body)) for each in plan.functions)
    return replace(plan, functions=functions)


def _turned_in(plan: PlannedModule, block: PlannedBlock) -> PlannedBlock:
    transposes = {
        planned.op.operands[0]: planned
        for planned in block.ops
        if planned.op.name == _TRANSPOSE and planned.kind is Kind.COMPUTE
    }
    turned: dict[int, PlannedOp] = {}
    """By ``id`` of what a planned op stands in place of; of a transpose only if one is left."""
    gone: list[PlannedOp] = []
    for planned in block.ops:
        if planned.op.name != _MATMUL or planned.op.results[0] not in transposes:
            continue
        reader = transposes[planned.op.results[0]]
        if _is_transposed_sum(planned, reader) and _lies_in_rows(plan, reader):
            turned |= _turned(plan, planned, reader)
            gone += [reader, planned]
    left_out = {id(planned) for planned in gone} - set(turned)
    ops: list[PlannedOp] = []
    for planned in block.ops:
        if id(planned) not in left_out:
            inner = tuple(_turned_in(plan, each) for each in planned.blocks)
            ops.append(turned.get(id(planned)) or replace(planned, blocks=inner))
    for planned in gone:
        planned.op.erase()
    return replace(block, ops=tuple(ops))


def _is_transposed_sum(planned: PlannedOp, reader: PlannedOp) -> bool:
    """Whether a matmul adds up over devices, and a transpose alone reads it, whose last dim is the
    last one that the left operand gives."""
    (computed,), (wanted,) = planned.computed, reader.operands
    if len(list(planned.op.results[0].uses)) != 1 or computed is None or wanted is None:
        return False
    is_moved = planned.results[0] is not computed or wanted is not computed
    if planned.results[0] not in (computed, wanted) or (
        is_moved and reader.computed != reader.results
    ):
        return False
    numbers = stablehlo.DotDimensionNumbers(planned.op.attributes[_NUMBERS])
    left, rank = _kept(planned, numbers), len(shape_of(planned.op.results[0]))
    if numbers.lhs_batching_dimensions or not 0 < left < rank:
        return False
    operand = planned.operands[0]
    is_sum = operand is not None and any(
        operand.sharding.dims[dim] for dim in numbers.lhs_contracting_dimensions
    )
    return is_sum and _order(reader)[-1] == left - 1


def _lies_in_rows(plan: PlannedModule, reader: PlannedOp) -> bool:
    """Whether what a device has of a transposed sum fills tiles row by row as well as otherwise.

    Arguments lie as they fill tiles. Example: 4,096 x 1,376 have the 4,096 as columns.
    """
    (placement,) = reader.results
    if plan.compiler is None or placement is None:
        return True
    sizes = placement.sharding.local_shape(shape_of(reader.op.results[0]))
    high, wide = (int(plan.compiler.answers[name]) for name in _TILE)

    def padding(rows: int, columns: int) -> float:
        return -(-rows // high) * high * -(-columns // wide) * wide / (rows * columns)

    return wide == 0 or padding(*sizes[-2:]) <= min(
        padding(rows, columns) for rows, columns in permutations(sizes, 2)
    )


def _order(transpose: PlannedOp) -> list[int]:
    return list(mlir.DenseI64ArrayAttr(transpose.op.attributes[_ORDER]))


def _kept(planned: PlannedOp, numbers: stablehlo.DotDimensionNumbers) -> int:
    """How many dims of the left operand of a matmul without a batch are in its result."""
    return len(shape_of(planned.op.operands[0])) - len(numbers.lhs_contracting_dimensions)


def _turned(plan: PlannedModule, planned: PlannedOp, reader: PlannedOp) -> dict[int, PlannedOp]:
    """The matmul with its operands swapped, and the transpose if one is left."""
    op = planned.op
    numbers = stablehlo.DotDimensionNumbers(op.attributes[_NUMBERS])
    shape = shape_of(op.results[0])
    kept, rank = _kept(planned, numbers), len(shape)
    swap = [*range(kept, rank), *range(kept)]
    attributes = {name: op.attributes[name] for name in op.attributes}
    attributes[_NUMBERS] = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=[],
        rhs_batching_dimensions=[],
        lhs_contracting_dimensions=numbers.rhs_contracting_dimensions,
        rhs_contracting_dimensions=numbers.lhs_contracting_dimensions,
    )
    if _PRECISION in attributes:
        asked = list(mlir.ArrayAttr(attributes[_PRECISION]))
        attributes[_PRECISION] = mlir.ArrayAttr.get(asked[::-1])
    element = mlir.RankedTensorType(op.results[0].type).element_type
    sizes = [shape[dim] for dim in swap]
    made = mlir.Operation.create(
        _MATMUL,
        results=[mlir.RankedTensorType.get(sizes, element, loc=op.location)],
        operands=[op.operands[1], op.operands[0]],
        attributes=attributes,
        loc=op.location,
        ip=mlir.InsertionPoint(op),
    )

    def swapped(placement: Placement | None) -> Placement:
        assert placement is not None
        return plan.placement(tuple(placement.sharding.dims[dim] for dim in swap))

    result, operands = reader.op.results[0], planned.operands[::-1]
    computed = (swapped(planned.computed[0]),)
    order = [swap.index(dim) for dim in _order(reader)]
    if order == list(range(rank)):
        result.replace_all_uses_with(made.results[0])
        return {id(planned): PlannedOp(made, Kind.COMPUTE, operands, computed, reader.results)}
    rest = mlir.Operation.create(
        _TRANSPOSE,
        results=[result.type],
        operands=[made.results[0]],
        attributes={_ORDER: mlir.DenseI64ArrayAttr.get(order)},
        loc=reader.op.location,
        ip=mlir.InsertionPoint(reader.op),
    )
    result.replace_all_uses_with(rest.results[0])
    held, wanted = (swapped(planned.results[0]),), (swapped(reader.operands[0]),)
    return {
        id(planned): PlannedOp(made, Kind.COMPUTE, operands, computed, held),
        id(reader): PlannedOp(rest, Kind.COMPUTE, wanted, reader.computed, reader.results),
    }
