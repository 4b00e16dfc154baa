"""Values that are the same number in whatever order they are added up.

Arguments are drawn as multiples of 1/8 of at most 1/2. Sums and products of such numbers are exact
in double precision while their bits fit, 52 of them; other functions round. What is exact is
compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, frexp, log2, prod

from autoshard.ir import mlir
from autoshard.ir.attributes import (
    STAGE_EXCHANGE,
    STAGE_GATHER,
    STAGE_NUMBER,
    STAGE_PERMUTE,
    STAGE_SUM,
    custom_call_target,
)
from autoshard.planned.module import PlannedModule
from autoshard.rewrites.lockstep.step import stages_around
from autoshard.verify.check.attributes import Constant
from autoshard.verify.check.part import entry_of
from autoshard.verify.check.shapes.elements import IDENTITY_TARGETS

_BITS = 52
"""Bits of a float64's fraction."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Multiples of ``2**bottom`` of at most ``2**top``."""

    top: int
    bottom: int

    @property
    def fit(self) -> bool:
        """In a float64."""
        return self.top - self.bottom <= _BITS

    def times(self, count: int) -> Bits:
        """The sum of so many."""
        return Bits(self.top + ceil(log2(count)) if count > 1 else self.top, self.bottom)


_DRAWN = Bits(0, -3)
_WHOLE = Bits(32, 0)
"""Integers of up to 32 bits; of more, they do not fit behind a product."""
_LOGICAL = Bits(0, 0)

_MOVES = frozenset(
    {
        *(
            f"stablehlo.{name}"
            for name in (
                *("abs", "broadcast_in_dim", "clamp", "concatenate", "dynamic_slice", "gather"),
                *("dynamic_update_slice", "maximum", "minimum", "negate", "optimization_barrier"),
                *("pad", "reshape", "reverse", "select", "slice", "transpose"),
            )
        ),
        *("sdy.sharding_constraint", "sdy.reshard"),
    }
)
"""Ops whose result has elements of the operands, up to their sign."""

_MOVING_TARGETS = IDENTITY_TARGETS | {STAGE_PERMUTE, STAGE_GATHER, STAGE_EXCHANGE}
"""Custom calls that are such ops."""

_ADDS = frozenset({"stablehlo.add", "stablehlo.maximum", "stablehlo.minimum"})
"""What the region of a reduction may do."""


def exact_values(plan: PlannedModule) -> set[mlir.Value]:
    """Values of ``main``'s outermost block that are exact."""
    entry = entry_of(plan)
    known: dict[mlir.Value, Bits | None] = {
        value: _of_type(value) for value, _ in entry.body.arguments
    }
    for planned in entry.body.ops[:-1]:
        op = planned.op
        bits = _bits(op, [known.get(value) for value in op.operands])
        if bits is not None and not bits.fit:
            bits = None
        known.update((result, bits) for result in op.results)
    return {value for value, bits in known.items() if bits is not None}


def _of_type(value: mlir.Value) -> Bits | None:
    """What an argument may be."""
    if not isinstance(value.type, mlir.RankedTensorType):
        return None
    element = mlir.RankedTensorType(value.type).element_type
    if isinstance(element, mlir.IntegerType):
        return _LOGICAL if element.width == 1 else _WHOLE if element.width <= 32 else None
    return _DRAWN if isinstance(element, mlir.FloatType) else None


def _bits(op: mlir.Operation, operands: Sequence[Bits | None]) -> Bits | None:
    """Bits of the results of an op; None where it may round."""
    if op.name == "stablehlo.constant":
        return _of_constant(op)
    target = custom_call_target(op)
    if op.name == "stablehlo.iota" or target == STAGE_NUMBER:
        return _of_type(op.results[0]) and _WHOLE
    known = [bits for bits in operands if bits is not None]
    if len(known) != len(operands) or not known or not len(op.results):
        return None
    widest = Bits(max(bits.top for bits in known), min(bits.bottom for bits in known))
    kind = mlir.RankedTensorType(op.results[0].type).element_type
    if op.name in _MOVES or target in _MOVING_TARGETS:
        return widest
    if target == STAGE_SUM:
        return widest.times(stages_around(op))
    if op.name == "stablehlo.compare":
        return _LOGICAL
    if isinstance(kind, mlir.IntegerType) and not len(op.regions):
        # whatever it is, it is made of exact numbers only
        return _of_type(op.results[0])
    if op.name == "stablehlo.convert":
        return widest
    if op.name in ("stablehlo.add", "stablehlo.subtract"):
        return widest.times(2)
    if op.name == "stablehlo.multiply":
        return Bits(known[0].top + known[1].top, known[0].bottom + known[1].bottom)
    if op.name in ("stablehlo.dot_general", "stablehlo.convolution"):
        product = Bits(known[0].top + known[1].top, known[0].bottom + known[1].bottom)
        return product.times(_elements(op.operands[1]))
    if op.name in ("stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter"):
        return widest.times(_elements(op.operands[0]) + 1) if _only_adds(op) else None
    return None


def _of_constant(op: mlir.Operation) -> Bits | None:
    whole = _of_type(op.results[0])
    if whole is not _DRAWN:
        return whole
    constant = Constant.of(op)
    if not constant.is_splat:
        return None
    value = constant.first.real
    if value == 0 or value in (float("inf"), float("-inf")):
        return _LOGICAL  # where a maximum or a mask begins
    if value != value:
        return None
    part, exponent = frexp(value)
    numerator, _ = abs(part).as_integer_ratio()
    return Bits(exponent, exponent - numerator.bit_length())


def _only_adds(op: mlir.Operation) -> bool:
    """Whether a region is one addition, maximum or minimum."""
    (block,) = op.regions[0].blocks
    ops = [inner.operation.name for inner in block.operations]
    return len(ops) == 2 and ops[0] in _ADDS


def _elements(value: mlir.Value) -> int:
    return prod(mlir.RankedTensorType(value.type).shape)
