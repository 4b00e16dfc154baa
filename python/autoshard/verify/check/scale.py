"""The same program with smaller sizes.

before  %y = dot_general %x, %w : (tensor<8192x4096xf32>, tensor<4096x11008xf32>)
after   %y = dot_general %x, %w : (tensor<16x16xf32>, tensor<16x32xf32>)

Ops, shardings and strategies stay. Sizes that are cut into equal parts still are, those that are
not still are not, and what holds between sizes (``shapes``) still holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from autoshard.ir import mlir
from autoshard.planned.module import Placement, PlannedBlock, PlannedModule, PlannedOp, read_plan
from autoshard.verify.check.attributes import shape_of
from autoshard.verify.check.shapes.program import shapes_of
from autoshard.verify.check.shapes.shapes import Shapes
from autoshard.verify.check.sizes import Least, Size, Sizes

_LEAST = Least()


@dataclass(frozen=True, slots=True)
class Scaled:
    """What became of the sizes of a program."""

    before: int
    """Elements of all values."""
    after: int
    sizes: tuple[tuple[int, int], ...]
    """Each size above 1 and what it has become, largest first; one size may have become several."""


def scale(module: mlir.Module, leasts: Sequence[Least] = (_LEAST,), few: int = 0) -> Scaled:
    """Make the sizes of a planned module small.

    Args:
        module: Planned; its types and attributes change.
        leasts: How small: the first that leaves at most ``few`` elements, else the last.
        few: Elements of all values.

    Raises:
        PlanError: There is no plan on the module, or it does not hold.
    """
    with module.context, mlir.Location.unknown(module.context):
        plan = read_plan(module)
        shapes = shapes_of(module)
        _keep_cuts(plan, shapes)
        tensors = {
            value: (tuple(map(shapes.sizes.resolved, shape)), tuple(shape_of(value)))
            for value, shape in shapes.of.items()
            if isinstance(value.type, mlir.RankedTensorType)
        }
        counted = Counter(tensors.values())
        before = sum(count * prod(olds) for (_, olds), count in counted.items())
        new, after = shapes.sizes.old_of, before
        for least in leasts:
            new = _Chosen(shapes.sizes, counted, least)
            after = sum(count * prod(map(new, sizes)) for (sizes, _), count in counted.items())
            if after <= few:
                break
        for rewrite in shapes.rewrites:
            rewrite(new)
        changes: set[tuple[int, int]] = set()
        for value, (sizes, olds) in tensors.items():
            chosen = tuple(map(new, sizes))
            changes |= {pair for pair in zip(olds, chosen, strict=True) if pair[0] > 1}
            if chosen != olds:
                type_ = mlir.RankedTensorType(value.type)
                value.set_type(
                    mlir.RankedTensorType.get(chosen, type_.element_type, type_.encoding)
                )
        for function in shapes.functions:
            set_function_type(function)
        return Scaled(before, after, tuple(sorted(changes, reverse=True)))


class _Chosen:
    """What sizes become."""

    def __init__(
        self, sizes: Sizes, shapes: Iterable[tuple[tuple[Size, ...], object]], least: Least
    ) -> None:
        self.sizes = sizes
        self.atoms = sizes.chosen({size for shape, _ in shapes for size in shape}, least)
        self.known: dict[Size, int] = {}

    def __call__(self, size: Size) -> int:
        value = self.known.get(size)
        if value is None:
            value = self.known[size] = self.sizes.resolved(size).value(self.atoms)
        return value


def set_function_type(function: mlir.Operation) -> None:
    """Write what a function takes and returns as its type. Expects the context."""
    (block,) = function.regions[0].blocks
    last = block.operations[len(block.operations) - 1]
    type_ = mlir.FunctionType.get(
        [argument.type for argument in block.arguments], [value.type for value in last.operands]
    )
    function.attributes["function_type"] = mlir.TypeAttr.get(type_)


# Cuts -------------------------------------------------------------------------------------------


def _keep_cuts(plan: PlannedModule, shapes: Shapes) -> None:
    """All that the plan cuts stays cut alike."""

    def keep(value: mlir.Value, placement: Placement | None) -> None:
        if placement is None:
            return
        for size, pieces in zip(shapes.of.get(value, ()), placement.sharding.tile, strict=False):
            shapes.sizes.keep_cut(size, pieces)

    for function in plan.functions:
        (block,) = function.op.regions[0].blocks
        last = block.operations[len(block.operations) - 1]
        for value, placement in zip(last.operands, function.results, strict=True):
            keep(value, placement)
        for planned in _ops(function.body, keep):
            for value, placement in zip(planned.op.operands, planned.operands, strict=False):
                keep(value, placement)
            for sides in (planned.computed, planned.results):
                for value, placement in zip(planned.op.results, sides, strict=False):
                    keep(value, placement)


def _ops(
    block: PlannedBlock, keep: Callable[[mlir.Value, Placement | None], None]
) -> Iterator[PlannedOp]:
    for value, placement in block.arguments:
        keep(value, placement)
    for planned in block.ops:
        yield planned
        for inner in planned.blocks:
            yield from _ops(inner, keep)
