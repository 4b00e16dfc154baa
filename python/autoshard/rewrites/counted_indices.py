"""Indices that only count along a dim of their own become batching dims of gathers and scatters.

before  %at = concatenate %rows, %column, dim = 1       // %rows counts: 0, 1, 2, ..
        scatter %x, %at, %updates  inserted [0, 1], scattered [0, 1]
after   scatter %x, %column, %updates  inserted [1], scattered [1], batching [0] x [0]

So ``x.at[jnp.arange(rows), column]`` says in its dim numbers that each row has its own elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.ir import mlir, stablehlo
from autoshard.ir.attributes import SDY_SHARDING_RULE
from autoshard.ir.constants import is_zeros
from autoshard.ir.module import operations_of
from autoshard.ir.reading import element_of, ints, shape_of


def counted_indices_as_batches(module: mlir.Module) -> None:
    """Rewrite all gathers and scatters of which it is proven. Expects the module's context."""
    for op in operations_of(module.operation):
        if op.name in ("stablehlo.gather", "stablehlo.scatter"):
            _rewrite(op)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Dim numbers, alike for gathers and scatters."""

    windows: tuple[int, ...]
    """Dims of windows in the result, or in the updates."""
    dropped: tuple[int, ...]
    """Dims of the operand that windows do not have."""
    batching: tuple[tuple[int, int], ...]
    """Dims of the operand, with those of the indices that they are."""
    indexed: tuple[int, ...]
    """Dims of the operand that the indices name, in the order of the index vector."""
    vector_dim: int

    @staticmethod
    def of(op: mlir.Operation) -> _Numbers:
        """Those of an op."""
        if op.name == "stablehlo.gather":
            its = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
            sides = its.operand_batching_dims, its.start_indices_batching_dims
            windows, dropped, indexed = (
                its.offset_dims,
                its.collapsed_slice_dims,
                its.start_index_map,
            )
        else:
            its = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
            sides = its.input_batching_dims, its.scatter_indices_batching_dims
            windows, dropped = its.update_window_dims, its.inserted_window_dims
            indexed = its.scattered_dims_to_operand_dims
        batching = tuple(zip(*sides, strict=True))
        return _Numbers(
            tuple(windows), tuple(dropped), batching, tuple(indexed), its.index_vector_dim
        )

    def write(self, op: mlir.Operation) -> None:
        """Make them those of an op."""
        operand, indices = ([pair[side] for pair in self.batching] for side in (0, 1))
        said = self.windows, self.dropped, operand, indices, self.indexed, self.vector_dim
        if op.name == "stablehlo.gather":
            op.attributes["dimension_numbers"] = stablehlo.GatherDimensionNumbers.get(*said)
        else:
            op.attributes["scatter_dimension_numbers"] = stablehlo.ScatterDimensionNumbers.get(
                *said
            )


def _rewrite(op: mlir.Operation) -> None:
    numbers, place = _Numbers.of(op), len(op.results) if op.name == "stablehlo.scatter" else 1
    operand, indices = op.operands[0], op.operands[place]
    joined = _maker(indices)
    if (
        joined is None
        or joined.name != "stablehlo.concatenate"
        or ints(joined, "dimension", []) != [numbers.vector_dim]
    ):
        return
    parts = list(joined.operands)
    if any(shape_of(part)[numbers.vector_dim] != 1 for part in parts):
        return
    batching, left = dict(numbers.batching), list[tuple[mlir.Value, int]]()
    for part, dim in zip(parts, numbers.indexed, strict=True):
        along = counted_dim(part)
        taken = (None, numbers.vector_dim, *batching.values())
        if along in taken or dim not in numbers.dropped:
            left.append((part, dim))
        elif shape_of(part)[along] == shape_of(operand)[dim]:
            batching[dim] = along
        else:
            left.append((part, dim))
    if len(left) == len(parts) or not left:
        return
    op.operands[place] = _joined([part for part, _ in left], numbers.vector_dim, joined)
    op.attributes["indices_are_sorted"] = mlir.BoolAttr.get(False)
    if SDY_SHARDING_RULE in op.attributes:
        del op.attributes[SDY_SHARDING_RULE]  # that of other dim numbers
    _Numbers(
        numbers.windows,
        tuple(dim for dim in numbers.dropped if dim not in batching),
        tuple(sorted(batching.items())),
        tuple(dim for _, dim in left),
        numbers.vector_dim,
    ).write(op)
    if not any(True for _ in joined.results[0].uses):
        joined.erase()


def _joined(parts: Sequence[mlir.Value], dim: int, before: mlir.Operation) -> mlir.Value:
    if len(parts) == 1:
        return parts[0]
    shape = list(shape_of(parts[0]))
    shape[dim] = len(parts)
    made = mlir.Operation.create(
        "stablehlo.concatenate",
        results=[mlir.RankedTensorType.get(shape, element_of(parts[0]))],
        operands=list(parts),
        attributes={"dimension": before.attributes["dimension"]},
        loc=before.location,
        ip=mlir.InsertionPoint(before),
    )
    return made.results[0]


def counted_dim(value: mlir.Value) -> int | None:
    """The dim along which each element of an array of integers is its own place; None: unknown.

    Example: 1 of ``[[0, 1, 2], [0, 1, 2]]``.
    """
    op = _maker(value)
    if op is None:
        argument = mlir.BlockArgument(value)
        return _of_carried(argument.owner.owner.operation, argument.arg_number)
    operands, result = list(op.operands), value
    match op.name:
        case "stablehlo.iota":
            return ints(op, "iota_dimension", [])[0] if _holds_places(result) else None
        case "stablehlo.broadcast_in_dim":
            along = counted_dim(operands[0])
            if along is None:
                return None
            to = ints(op, "broadcast_dimensions", [])[along]
            return to if shape_of(operands[0])[along] == shape_of(result)[to] else None
        case "stablehlo.reshape":
            return _through_reshape(operands[0], result)
        case "stablehlo.convert":
            return counted_dim(operands[0]) if _holds_places(result) else None
        case "stablehlo.select":
            is_wrapped = _is_never(operands[0])
            return counted_dim(operands[2]) if is_wrapped else None
        case "stablehlo.optimization_barrier":
            return counted_dim(operands[mlir.OpResult(value).result_number])
        case "sdy.sharding_constraint":
            return counted_dim(operands[0])
        case "stablehlo.while":
            return _of_carried(op, mlir.OpResult(value).result_number)
        case _:
            return None


def _maker(value: mlir.Value) -> mlir.Operation | None:
    """The op that makes a value; None of an argument of a block."""
    return None if isinstance(value, mlir.BlockArgument) else mlir.OpResult(value).owner.operation


def _of_carried(op: mlir.Operation, number: int) -> int | None:
    """The dim of what a loop carries and does not change."""
    if op.name != "stablehlo.while":
        return None
    body = op.regions[1].blocks[0]
    *_, end = body.operations
    if end.operation.operands[number] != body.arguments[number]:
        return None
    return counted_dim(op.operands[number])


def _through_reshape(operand: mlir.Value, result: mlir.Value) -> int | None:
    """Where only dims of size 1 come and go."""
    before, after = (
        [(dim, size) for dim, size in enumerate(shape_of(value)) if size != 1]
        for value in (operand, result)
    )
    along = counted_dim(operand)
    if [size for _, size in before] != [size for _, size in after]:
        return None
    found = [to for (dim, _), (to, _) in zip(before, after, strict=True) if dim == along]
    return found[0] if found else None


def _holds_places(value: mlir.Value) -> bool:
    """Has an array integers that are wide enough for all of its places?"""
    element = element_of(value)
    if not isinstance(element, mlir.IntegerType) or element.width < 8:
        return False
    return max(shape_of(value), default=0) <= 1 << (element.width - 1)


def _is_never(predicate: mlir.Value) -> bool:
    """Whether a predicate asks where places are below 0, as JAX does for numbers from the end."""
    op = _maker(predicate)
    if op is None or op.name != "stablehlo.compare":
        return False
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    first, second = op.operands
    return direction == "LT" and counted_dim(first) is not None and _are_zeros(second)


def _are_zeros(value: mlir.Value) -> bool:
    op = _maker(value)
    if op is None:
        return False
    if op.name == "stablehlo.broadcast_in_dim":
        return _are_zeros(op.operands[0])
    return is_zeros(op)
