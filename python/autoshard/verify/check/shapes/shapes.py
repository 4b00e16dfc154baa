"""The sizes of all values of a program, as the rules of its ops find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoshard.ir import mlir
from autoshard.verify.check.attributes import shape_of
from autoshard.verify.check.sizes import Size, Sizes, number

Shape = tuple[Size, ...]
Rewrite = Callable[[Callable[[Size], int]], None]
"""Writes new sizes into the attributes of an op; is given what each size becomes."""


@dataclass(slots=True)
class Shapes:
    """The sizes of all values of a module's functions, and what must be rewritten with them."""

    sizes: Sizes = field(default_factory=Sizes)
    of: dict[mlir.Value, Shape] = field(default_factory=dict[mlir.Value, Shape])
    rewrites: list[Rewrite] = field(default_factory=list[Rewrite])
    functions: list[mlir.Operation] = field(default_factory=list[mlir.Operation])
    """Those that the entry reaches, itself first."""

    def of_operands(self, op: mlir.Operation) -> list[Shape]:
        """The shape of each operand."""
        return [self.of[value] for value in op.operands]

    def fresh(self, value: mlir.Value) -> Shape:
        """A shape of which nothing is known yet."""
        return tuple(self.sizes.fresh(old) for old in shape_of(value))

    def define(self, value: mlir.Value, shape: Sequence[Size]) -> None:
        """Write down the shape of a value."""
        self.of[value] = tuple(shape)

    def make_equal(self, one: Sequence[Size], other: Sequence[Size]) -> None:
        """Both are one shape from now on."""
        for mine, theirs in zip(one, other, strict=True):
            self.sizes.make_equal(mine, theirs)

    def keep(self, value: mlir.Value) -> None:
        """The shape of a value stays what it is."""
        for size in self.of.get(value, ()):
            self.sizes.keep(size)

    def keep_all(self, op: mlir.Operation) -> None:
        """All sizes that ``op`` sees stay as they are."""

        def visit(inner: mlir.Operation) -> mlir.WalkResult:
            for operand in inner.operands:
                self.keep(operand)
            return mlir.WalkResult.ADVANCE

        op.walk(visit)
        for result in op.results:
            self.define(result, [number(old) for old in shape_of(result)])

    def part(self, whole: Size, old: int) -> Size:
        """A part of a dim, all of it if it is that now."""
        if old == self.sizes.old_of(whole):
            return whole
        part = self.sizes.fresh(old)
        self.sizes.keep_above(whole, part)
        return part

    def keep_part(self, whole: Size, part: Size) -> None:
        """As ``part``, of a part that has a size."""
        if self.sizes.old_of(whole) == self.sizes.old_of(part):
            self.sizes.make_equal(whole, part)
        else:
            self.sizes.keep_above(whole, part)

    def write_sizes(self, op: mlir.Operation, name: str, sizes: Sequence[Size]) -> None:
        """The attribute ``name`` is a list of sizes."""

        def write(new: Callable[[Size], int]) -> None:
            op.attributes[name] = mlir.DenseI64ArrayAttr.get([new(size) for size in sizes])

        self.rewrites.append(write)


Rule = Callable[[mlir.Operation, Shapes], None]
"""Writes down the shapes of an op's results, and what holds between them and the operands'."""
