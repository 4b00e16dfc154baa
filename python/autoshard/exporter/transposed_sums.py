"""Make matmuls that are sums over devices and are transposed the other way round.

    before  %g = dot_general %dy, %x, contracting_dims = [0] x [0] : [out, in], a sum over devices
            %t = transpose %g, dims = [1, 0] : [in, out]
    after   %t = dot_general %x, %dy, contracting_dims = [0] x [0] : [in, out], likewise

JAX writes gradients of weights so. Compilers join the two themselves, but not where a collective
comes between them: the gradient lies transposed in memory then, and some copy the parameter and
its moments so that they lie alike, and back when they are updated (``layout.transposed_sums`` in
docs/design/compilers.md).
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import shape_of
from autoshard.planned.module import Kind, Placement, PlannedBlock, PlannedModule, PlannedOp

_MATMUL = "stablehlo.dot_general"
_TRANSPOSE = "stablehlo.transpose"
_NUMBERS = "dot_dimension_numbers"
_PRECISION = "precision_config"


def turn_transposed_sums(plan: PlannedModule) -> PlannedModule:
    """The same plan, of a module whose sums over devices are made as they are read.

    Expects the context of the module, which it changes, to be current. Sums that others read as
    well stay, and batches of matmuls. Where the compiler does not copy what is read beside them,
    the plan stays as it is.
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
    found: dict[int, PlannedOp] = {}
    gone: set[int] = set()
    for planned in block.ops:
        if planned.op.name != _MATMUL or planned.op.results[0] not in transposes:
            continue
        reader = transposes[planned.op.results[0]]
        if _is_transposed_sum(planned, reader):
            found[id(planned)] = _turned(plan, planned, reader)
            gone.add(id(reader))
    ops: list[PlannedOp] = []
    for planned in block.ops:
        if id(planned) in gone:
            continue
        inner = tuple(_turned_in(plan, each) for each in planned.blocks)
        ops.append(found.get(id(planned)) or replace(planned, blocks=inner))
    for planned in block.ops:
        if id(planned) in gone:
            planned.op.erase()
    for planned in block.ops:
        if id(planned) in found:
            planned.op.erase()
    return replace(block, ops=tuple(ops))


def _is_transposed_sum(planned: PlannedOp, reader: PlannedOp) -> bool:
    """Whether a matmul adds up over devices, and is read by a transpose alone that swaps what its
    operands give to it."""
    (computed,), (wanted,) = planned.computed, reader.operands
    if len(list(planned.op.results[0].uses)) != 1 or computed is None or wanted is None:
        return False
    if planned.results[0] not in (computed, wanted) or reader.computed != reader.results:
        return False
    numbers = stablehlo.DotDimensionNumbers(planned.op.attributes[_NUMBERS])
    left, rank = _kept(planned, numbers), len(shape_of(planned.op.results[0]))
    order = list(mlir.DenseI64ArrayAttr(reader.op.attributes["permutation"]))
    if numbers.lhs_batching_dimensions or order != [*range(left, rank), *range(left)]:
        return False
    operand = planned.operands[0]
    return operand is not None and any(
        operand.sharding.dims[dim] for dim in numbers.lhs_contracting_dimensions
    )


def _kept(planned: PlannedOp, numbers: stablehlo.DotDimensionNumbers) -> int:
    """How many dims of the left operand of a matmul without a batch are in its result."""
    return len(shape_of(planned.op.operands[0])) - len(numbers.lhs_contracting_dimensions)


def _turned(plan: PlannedModule, planned: PlannedOp, reader: PlannedOp) -> PlannedOp:
    """The matmul with its operands swapped, in place of the transpose."""
    op = planned.op
    numbers = stablehlo.DotDimensionNumbers(op.attributes[_NUMBERS])
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
    made = mlir.Operation.create(
        _MATMUL,
        results=[reader.op.results[0].type],
        operands=[op.operands[1], op.operands[0]],
        attributes=attributes,
        loc=op.location,
        ip=mlir.InsertionPoint(op),
    )
    reader.op.results[0].replace_all_uses_with(made.results[0])
    (computed,) = planned.computed
    assert computed is not None
    kept = _kept(planned, numbers)
    dims = computed.sharding.dims
    placed: Placement = plan.placement((*dims[kept:], *dims[:kept]))
    return PlannedOp(made, Kind.COMPUTE, planned.operands[::-1], (placed,), reader.results)
