"""How an array of the user lies in a program that has parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def part_shape(shape: Sequence[int], dim: int, count: int) -> tuple[int, ...]:
    """Sizes of each of ``count`` equal parts along ``dim``."""
    return (*shape[:dim], shape[dim] // count, *shape[dim + 1 :])


@dataclass(frozen=True, slots=True)
class ArrayParts:
    """An argument or result, as arguments or results of ``main``."""

    numbers: tuple[int, ...]
    """In ``main``: one, or equal parts along ``dim`` in the order of the array."""
    dim: int = 0
    stages: tuple[int, ...] = ()
    """The stage that works on each part; none where there is one part, which may be anywhere."""

    @property
    def is_cut(self) -> bool:
        """Are there several parts?"""
        return len(self.numbers) > 1

    @property
    def places(self) -> tuple[int, ...]:
        """The stages on which it lies between steps, in its order, an equal block on each."""
        return tuple(dict.fromkeys(self.stages))

    @property
    def homes(self) -> tuple[int, ...]:
        """The stage on which each part lies between steps.

        Where stages have several parts of the model, rows of one stage are not next to each other,
        and an array of JAX has on a device what is: each stage then keeps as many rows as it works
        on, and others.

        Example: 2 stages work on parts (0, 1, 0, 1); they lie on (0, 0, 1, 1).
        """
        each = len(self.stages) // max(len(self.places), 1)
        return tuple(stage for stage in self.places for _ in range(each))

    @property
    def is_moved(self) -> bool:
        """Does some part lie elsewhere between steps?"""
        return self.homes != self.stages

    def part_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Sizes of a part of an array."""
        return part_shape(shape, self.dim, len(self.numbers)) if self.is_cut else tuple(shape)


@dataclass(frozen=True, slots=True)
class ProgramParts:
    """All arguments and results of a program, as it was."""

    arguments: tuple[ArrayParts, ...]
    results: tuple[ArrayParts, ...]

    @staticmethod
    def of_whole(arguments: int, results: int) -> ProgramParts:
        """Nothing is cut."""
        return ProgramParts(
            tuple(ArrayParts((number,)) for number in range(arguments)),
            tuple(ArrayParts((number,)) for number in range(results)),
        )

    @property
    def is_cut(self) -> bool:
        """Is any of them in several parts?"""
        return any(parts.is_cut for parts in (*self.arguments, *self.results))


@dataclass(frozen=True, slots=True)
class RowParts:
    """The parts into which the rows of a group of loops are cut."""

    marks: tuple[int, ...]
    """The part of the model that has each part of the rows, in the order of the rows: the stage,
    where stages have one part of the model each."""
    num_stages: int
    """A multiple of this is how many parts of the model there are."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.marks)

    @property
    def stages(self) -> tuple[int, ...]:
        """The stage of each."""
        return tuple(mark % self.num_stages for mark in self.marks)
