"""Slices and updates at places that are known become static ones.

before  %1 = stablehlo.dynamic_slice %x, %c2, %c0, sizes = [4, 8]            // %c2: 2, %c0: 0
        %2 = stablehlo.dynamic_update_slice %zeros, %y, %c0, %c2             // of one element
after   %1 = stablehlo.slice %x [2:6, 0:8]
        %2 = stablehlo.pad %y, %zero, low = [0, 2], high = [..]

XLA's simplifier does the same before it partitions a program: a pad needs no memory of its own, and
each device can have a part of the dims that are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autoshard.ir import mlir
from autoshard.ir.constants import splat_of
from autoshard.ir.reading import element_of, ints, shape_of

_SLICE, _UPDATE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"
AT_PLACES = frozenset((_SLICE, _UPDATE))


def known_places_as_static(operations: Iterable[mlir.Operation]) -> bool:
    """Rewrite all ops of which it is proven; was there any? Expects the modules' context.

    Args:
        operations: Others than those of ``AT_PLACES`` are left as they are, and those that say how
            they are split.
    """
    has_any = False
    for op in operations:
        if op.name == _SLICE and set(op.attributes) <= {"slice_sizes"}:
            made = _slice(op)
        elif op.name == _UPDATE and not len(op.attributes):
            made = _pad(op)
        else:
            continue
        if made is not None:
            op.results[0].replace_all_uses_with(made.results[0])
            op.erase()
            has_any = True
    return has_any


def _slice(op: mlir.Operation) -> mlir.Operation | None:
    sizes = ints(op, "slice_sizes", [])
    starts = _starts(op.operands[1:], shape_of(op.operands[0]), sizes)
    if starts is None:
        return None
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    said = {"start_indices": starts, "limit_indices": ends, "strides": [1] * len(sizes)}
    return _made(op, "stablehlo.slice", [op.operands[0]], said)


def _pad(op: mlir.Operation) -> mlir.Operation | None:
    whole, part = shape_of(op.operands[0]), shape_of(op.operands[1])
    starts = _starts(op.operands[2:], whole, part)
    value = _element(op.operands[0], op)
    if starts is None or value is None:
        return None
    ends = [size - start - own for size, start, own in zip(whole, starts, part, strict=True)]
    said = {
        "edge_padding_low": starts,
        "edge_padding_high": ends,
        "interior_padding": [0] * len(whole),
    }
    return _made(op, "stablehlo.pad", [op.operands[1], value], said)


def _made(
    op: mlir.Operation,
    name: str,
    operands: Sequence[mlir.Value],
    said: dict[str, list[int]],
) -> mlir.Operation:
    numbers = {key: mlir.DenseI64ArrayAttr.get(value) for key, value in said.items()}
    return _before(op, name, op.results[0].type, operands, numbers)


def _before(
    op: mlir.Operation,
    name: str,
    type_: mlir.Type,
    operands: Sequence[mlir.Value],
    attributes: Mapping[str, mlir.Attribute],
) -> mlir.Operation:
    return mlir.Operation.create(
        name,
        results=[type_],
        operands=list(operands),
        attributes=dict(attributes),
        loc=op.location,
        ip=mlir.InsertionPoint(op),
    )


def _starts(
    places: Iterable[mlir.Value], whole: Sequence[int], part: Sequence[int]
) -> list[int] | None:
    """Where a part begins: what would leave the whole is moved back into it."""
    found: list[int] = []
    for place, size, own in zip(places, whole, part, strict=True):
        maker = _maker(place)
        element = splat_of(maker) if maker else None
        if not isinstance(element, mlir.IntegerAttr):
            return None
        found.append(min(max(element.value, 0), size - own))
    return found


def _element(value: mlir.Value, before: mlir.Operation) -> mlir.Value | None:
    """The element of a tensor of equal constants, as a tensor of rank 0; None: it is none."""
    maker = _maker(value)
    if maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        (source,) = maker.operands
        maker = _maker(source)
        is_constant = maker is not None and splat_of(maker) is not None
        return source if is_constant and not shape_of(source) else None
    element = splat_of(maker) if maker else None
    if element is None:
        return None
    type_ = mlir.RankedTensorType.get([], element_of(value), loc=before.location)
    splat = mlir.DenseElementsAttr.get_splat(type_, element)
    return _before(before, "stablehlo.constant", type_, [], {"value": splat}).results[0]


def _maker(value: mlir.Value) -> mlir.Operation | None:
    return None if isinstance(value.owner, mlir.Block) else value.owner.operation
