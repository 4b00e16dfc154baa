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
    """The stage of each part; none where there is one part, which may be anywhere."""

    @property
    def is_cut(self) -> bool:
        """Are there several parts?"""
        return len(self.numbers) > 1

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

    stages: tuple[int, ...]
    """The stage of each part of the rows, in the order of the rows."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.stages)
