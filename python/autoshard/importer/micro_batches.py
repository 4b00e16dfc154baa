"""In how many rounds a program works through its batch, as gradient accumulation does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto

from autoshard.importer.loops import trip_count
from autoshard.ir import mlir
from autoshard.ir.boundary import main_function
from autoshard.ir.module import functions_of
from autoshard.ir.reading import shape_of

_SAME_SHAPE = frozenset({"stablehlo.convert", "sdy.sharding_constraint", "stablehlo.custom_call"})
"""Ops through which the batch is followed: casts, constraints and marks. A custom call of another
kind does not keep type and shape of its only operand, or does no harm."""


class _Dim(Enum):
    OTHER = auto()
    BATCH = auto()
    PART = auto()
    """One of the two dims that a reshape makes of the batch."""


_Dims = tuple[_Dim, ...]


def accumulation_steps(module: mlir.Module, arguments: Iterable[int]) -> int:
    """Trips of the loop that reads one part of the batch after the other; 1 without such a loop.

    What counts is a dim 0 that is reshaped to two dims, one of which a counted loop walks
    through: ``x.reshape(steps, -1, *x.shape[1:])`` and a ``lax.scan`` over it. A loop over a dim
    that the argument itself has is none: that dim may be time.

    Args:
        module: As lowered by JAX, planned or not.
        arguments: Numbers of the arguments of ``main`` that hold the batch in dim 0.
    """
    functions = functions_of(module)
    block = main_function(module).regions[0].blocks[0]
    found: set[int] = set()
    for number in arguments:
        value = block.arguments[number]
        rank = len(mlir.RankedTensorType(value.type).shape)
        dims = (_Dim.BATCH, *[_Dim.OTHER] * (rank - 1))
        found.update(_loops_over_parts(value, dims, functions))
    return max(found, default=1)


def _loops_over_parts(
    value: mlir.Value,
    dims: _Dims,
    functions: dict[str, mlir.Operation],
    trips: int | None = None,
) -> Iterator[int]:
    """Trips of the loops that read one entry of a part of the batch after the other.

    Args:
        value: Holds the batch.
        dims: What its dims are.
        functions: Those of the module, by name.
        trips: Of the loop that ``value`` is carried through as it is; None outside of loops.
    """
    for use in value.uses:
        op = use.owner.operation
        name = op.name
        if name == "func.call":
            callee = functions[mlir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            inside = callee.regions[0].blocks[0].arguments[use.operand_number]
            yield from _loops_over_parts(inside, dims, functions, trips)
        elif name == "stablehlo.while":
            inside = op.regions[1].blocks[0].arguments[use.operand_number]
            count = trip_count(op, lambda value: value)
            if count is not None:
                yield from _loops_over_parts(inside, dims, functions, count)
        elif name == "stablehlo.dynamic_slice" and use.operand_number == 0:
            sizes = mlir.DenseI64ArrayAttr(op.attributes["slice_sizes"])
            for dim, size, whole in zip(dims, sizes, shape_of(value), strict=True):
                if dim is _Dim.PART and size == 1 and whole == trips:
                    yield whole
        elif (after := _dims_after(op, dims)) is not None:
            yield from _loops_over_parts(op.results[0], after, functions, trips)


def _dims_after(op: mlir.Operation, dims: _Dims) -> _Dims | None:
    """What the dims of the op's result are; None where the batch is not followed further."""
    if op.name == "stablehlo.transpose":
        order = mlir.DenseI64ArrayAttr(op.attributes["permutation"])
        return tuple(dims[source] for source in order)
    if op.name == "stablehlo.reshape":
        return _reshaped(dims, shape_of(op.operands[0]), shape_of(op.results[0]))
    if op.name in _SAME_SHAPE and len(op.operands) == 1 and len(op.results) == 1:
        return dims if shape_of(op.operands[0]) == shape_of(op.results[0]) else None
    return None


def _reshaped(dims: _Dims, before: Sequence[int], after: Sequence[int]) -> _Dims | None:
    """With the batch in two parts, if that is all that the reshape does."""
    if _Dim.BATCH not in dims or len(after) != len(before) + 1:
        return None
    at = dims.index(_Dim.BATCH)
    if (*before[:at], *before[at + 1 :]) != (*after[:at], *after[at + 2 :]):
        return None
    return (*dims[:at], _Dim.PART, _Dim.PART, *dims[at + 1 :])
