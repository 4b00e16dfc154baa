"""What a fusion reads and computes of the arrays that it names.

A kernel computes what its results are made of and no more: a slice at the end of a chain of
elementwise ops has only its own part of the chain computed, and of every operand only that part
read. XLA's cost analysis counts the part where the slice itself reads the operand, and all of it
where anything stands between. Here the part that is needed goes from the results to the operands,
as a box of each array.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from autoshard.verify.hlo_program import HloComputation, HloInstruction

_SLICED = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")
_DIMENSIONS = re.compile(r"\bdimensions=\{([\d,]*)\}")
_PADDING = re.compile(r"\bpadding=([\d_x-]+)")
_SLICE_SIZES = re.compile(r"\bslice_sizes=\{([\d,]*)\}")
_LAYOUT = re.compile(r"\{([\d,]*)[:}]")

_ELEMENTWISE = frozenset(
    (
        *("abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "compare"),
        *("complex", "convert", "copy", "cosine", "count-leading-zeros", "divide", "erf"),
        *("exponential", "exponential-minus-one", "floor", "imag", "is-finite", "log"),
        *("log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or"),
        *("popcnt", "power", "real", "reduce-precision", "remainder", "round-nearest-afz"),
        *("round-nearest-even", "rsqrt", "select", "shift-left", "shift-right-arithmetic"),
        *("shift-right-logical", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor"),
    )
)
_SLICES = frozenset(("slice", "dynamic-slice", "gather"))
_COMPUTES_NOTHING = frozenset(("parameter", "constant", "bitcast", "tuple", "get-tuple-element"))


@dataclass(frozen=True, slots=True)
class Interval:
    """Elements of one dim that are needed, from ``first`` up to ``end``."""

    first: int
    end: int
    place: str = ""
    """Where it begins, if only the devices know; then ``first`` is 0."""

    @property
    def size(self) -> int:
        """How many there are."""
        return self.end - self.first


Box = tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class FusionReads:
    """What the results of a fusion need."""

    operand_bytes: dict[int, float]
    """By operand: what is read of it, at most; all of one that is not here."""
    computed: float
    """The share of all elements of all instructions inside that is computed."""


def fusion_reads(computation: HloComputation) -> FusionReads:
    """What the results of a fused computation need, each of them whole."""
    if all(each.opcode not in _SLICES for each in computation.instructions):
        return FusionReads({}, 1.0)
    needed: dict[str, Box] = {}
    operand_bytes: dict[int, float] = {}
    taken: dict[str, float] = defaultdict(float)
    elements = computed = 0.0
    for instruction in reversed(computation.instructions):
        if instruction.is_root:
            needed[instruction.name] = _whole(instruction)
        box = needed.get(instruction.name)
        size, part = _elements(instruction), 0.0
        if box is not None:
            # Results that are tuples have no box, and are needed whole.
            part = prod(interval.size for interval in box) if len(instruction.arrays) == 1 else size
            for name, of_operand in _operand_boxes(instruction, box, computation):
                read = computation.by_name[name]
                if instruction.opcode == "gather" and read.parameter_number is not None:
                    # A row is read as often as it is taken.
                    taken[name] += part * read.arrays[0].bytes / read.arrays[0].elements
                    continue
                known = needed.get(name)
                shape = read.arrays[0].shape
                needed[name] = of_operand if known is None else _hull(known, of_operand, shape)
        number = instruction.parameter_number
        if number is not None:
            whole = sum(array.bytes for array in instruction.arrays)
            others = whole * part / size if size else 0.0
            operand_bytes[number] = others + taken[instruction.name]
        elif number is None and instruction.opcode not in _COMPUTES_NOTHING:
            elements += size
            computed += part
    return FusionReads(operand_bytes, computed / elements if elements else 1.0)


def _elements(instruction: HloInstruction) -> float:
    return float(sum(array.elements for array in instruction.arrays))


def _whole(instruction: HloInstruction) -> Box:
    arrays = instruction.arrays
    return tuple(Interval(0, size) for size in arrays[0].shape) if arrays else ()


def _hull(a: Box, b: Box, shape: Sequence[int]) -> Box:
    """The smallest box known to hold both."""
    return tuple(
        one
        if one == other
        else Interval(0, size)
        if one.place or other.place
        else Interval(min(one.first, other.first), max(one.end, other.end))
        for one, other, size in zip(a, b, shape, strict=True)
    )


def _operand_boxes(
    instruction: HloInstruction, box: Box, computation: HloComputation
) -> Iterator[tuple[str, Box]]:
    """What an instruction reads of its operands where ``box`` of its result is needed."""
    names = instruction.operands
    wholes = [_whole(computation.by_name[name]) for name in names]
    opcode = instruction.opcode
    result = _whole(instruction)
    boxes: list[Box | None] = list(wholes)
    if opcode in _ELEMENTWISE:
        boxes = [box if whole == result else whole for whole in wholes]
    elif opcode == "slice":
        boxes[0] = _of_slice(instruction, box, wholes[0])
    elif opcode == "dynamic-slice":
        boxes[0] = _of_dynamic_slice(names, box, result, wholes[0])
    elif opcode == "gather":
        boxes[0] = _of_gather(instruction, box, wholes[0])
    elif opcode == "broadcast":
        boxes[0] = tuple(box[dim] for dim in _dimensions(instruction))
    elif opcode == "transpose":
        for place, dim in enumerate(_dimensions(instruction)):
            boxes[0] = _replaced(boxes[0] or (), dim, box[place])
    elif opcode == "concatenate":
        boxes = _of_concatenate(_dimensions(instruction)[0], box, wholes)
    elif opcode == "reduce" and len(instruction.arrays) == 1:
        boxes[0] = _of_reduce(_dimensions(instruction), box, wholes[0])
    elif opcode == "pad":
        boxes[0] = _of_pad(instruction, box, wholes[0])
    elif opcode == "reshape" or (opcode == "bitcast" and _is_row_major(instruction, computation)):
        boxes[0] = _of_reshape(box, result, wholes[0])
    for name, of_operand in zip(names, boxes, strict=True):
        if of_operand is not None and computation.by_name[name].arrays:
            yield name, of_operand


def _dimensions(instruction: HloInstruction) -> list[int]:
    found = _DIMENSIONS.search(instruction.attributes)
    return [int(each) for each in found[1].split(",") if each] if found else []


def _replaced(box: Box, dim: int, interval: Interval) -> Box:
    return (*box[:dim], interval, *box[dim + 1 :])


def _of_slice(instruction: HloInstruction, box: Box, whole: Box) -> Box:
    found: list[Interval] = []
    for (first, end, step), needed, all_of_it in zip(
        _SLICED.findall(instruction.attributes), box, whole, strict=True
    ):
        start, stride = int(first), int(step or 1)
        if needed.place:
            # All that the slice takes.
            taken = Interval(start, int(end))
            found.append(needed if taken == all_of_it and stride == 1 else taken)
        else:
            last = start + (needed.end - 1) * stride
            found.append(Interval(start + needed.first * stride, last + 1))
    return tuple(found)


def _of_dynamic_slice(names: Sequence[str], box: Box, result: Box, whole: Box) -> Box:
    found: list[Interval] = []
    for dim, (needed, made, all_of_it) in enumerate(zip(box, result, whole, strict=True)):
        if made == all_of_it:
            found.append(needed)
        else:
            found.append(Interval(0, made.size, names[1 + dim]))
    return tuple(found)


def _of_gather(instruction: HloInstruction, box: Box, whole: Box) -> Box:
    """As many slices as results need, each of another place; where they are counts for nothing."""
    found = _SLICE_SIZES.search(instruction.attributes)
    if found is None:
        return whole
    sizes = [int(each) for each in found[1].split(",") if each]
    left = prod(interval.size for interval in box) / max(1, prod(sizes))
    needed: list[Interval] = []
    for size, all_of_it in zip(sizes, whole, strict=True):
        taken = min(all_of_it.size, max(1, ceil(left)) * size)
        left = left * size / taken if taken else 0.0
        is_all = taken == all_of_it.size
        needed.append(all_of_it if is_all else Interval(0, taken, instruction.name))
    return tuple(needed)


def _of_concatenate(dim: int, box: Box, wholes: Sequence[Box]) -> list[Box | None]:
    """None for an operand of which nothing is needed."""
    found: list[Box | None] = []
    begin = 0
    for whole in wholes:
        end = begin + whole[dim].size
        needed = box[dim]
        if needed.place:
            found.append(_replaced(box, dim, whole[dim]))
        else:
            first, last = max(needed.first, begin), min(needed.end, end)
            part = Interval(first - begin, last - begin)
            found.append(_replaced(box, dim, part) if first < last else None)
        begin = end
    return found


def _of_reduce(dims: Sequence[int], box: Box, whole: Box) -> Box:
    kept = iter(box)
    return tuple(all_of_it if dim in dims else next(kept) for dim, all_of_it in enumerate(whole))


def _of_pad(instruction: HloInstruction, box: Box, whole: Box) -> Box:
    found = _PADDING.search(instruction.attributes)
    if found is None:
        return whole
    needed: list[Interval] = []
    for text, interval, all_of_it in zip(found[1].split("x"), box, whole, strict=True):
        low, high, *interior = (int(each) for each in text.split("_"))
        first = max(0, min(interval.first - low, all_of_it.size))
        end = max(0, min(interval.end - low, all_of_it.size))
        is_moved = low != 0 or high != 0
        if any(interior) or (interval.place and is_moved) or first >= end:
            needed.append(all_of_it)
        else:
            needed.append(Interval(first, end, interval.place))
    return tuple(needed)


def _is_row_major(bitcast: HloInstruction, computation: HloComputation) -> bool:
    """Whether elements of a bitcast's operand and result lie in the order of their dims."""
    for each in (bitcast, computation.by_name[bitcast.operands[0]]):
        layout = _LAYOUT.search(each.result)
        order = ",".join(map(str, reversed(range(len(each.arrays[0].shape)))))
        if layout is not None and layout[1] != order:
            return False
    return True


def _of_reshape(box: Box, result: Box, whole: Box) -> Box:
    """Dims are taken in groups of equally many elements on both sides, the fewest in each."""
    found = list(whole)
    ours = [dim for dim, interval in enumerate(whole) if interval.size != 1]
    theirs = [dim for dim, interval in enumerate(result) if interval.size != 1]
    if not all(whole[dim].size for dim in ours):
        return whole
    while ours:
        group, of_result = [ours.pop(0)], [theirs.pop(0)]
        while (size := prod(whole[dim].size for dim in group)) != (
            other := prod(result[dim].size for dim in of_result)
        ):
            (group if size < other else of_result).append((ours if size < other else theirs).pop(0))
        first, *rest = of_result
        if box[first].place:
            if len(group) == len(of_result) == 1:
                found[group[0]] = box[first]
        elif all(box[dim] == result[dim] for dim in rest):
            # One run of elements, which lies in whole rows of the operand's first dim.
            row = size // whole[group[0]].size
            scale = size // result[first].size
            begin, end = box[first].first * scale, box[first].end * scale
            found[group[0]] = Interval(begin // row, -(-end // row))
    return tuple(found)
