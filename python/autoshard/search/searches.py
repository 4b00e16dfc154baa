"""What searches of a program found while no plan of it fits, for those that follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoshard.errors import DoesNotFitError
from autoshard.passes.recompute import FittedPlans, Recompute
from autoshard.passes.recursive_programming import PlannedProgram, ReadProgram

_Within = tuple[float, float]
"""Bytes that a plan may need, and seconds that its step may take."""


@dataclass
class SearchedProgram:
    """A program that was read, and what was found within which limits."""

    program: ReadProgram
    _found: dict[_Within, PlannedProgram | DoesNotFitError] = field(
        default_factory=dict[_Within, PlannedProgram | DoesNotFitError]
    )
    _fitted: list[tuple[PlannedProgram, Recompute, FittedPlans]] = field(
        default_factory=list[tuple[PlannedProgram, Recompute, FittedPlans]]
    )

    def searched(
        self,
        limit: float,
        most_seconds: float,
        search: Callable[[], PlannedProgram],
    ) -> PlannedProgram:
        """What was found within so many bytes, or what ``search`` finds.

        Raises:
            DoesNotFitError: No plan fits the memory, or none did that may need more.
        """
        for (most, seconds), error in self._found.items():
            if isinstance(error, DoesNotFitError) and limit <= most and seconds == most_seconds:
                raise error
        found = self._found.get((limit, most_seconds))
        if found is None:
            try:
                found = search()
            except DoesNotFitError as error:
                self._found[limit, most_seconds] = error
                raise
            self._found[limit, most_seconds] = found
        assert isinstance(found, PlannedProgram)
        return found

    def fitted(
        self, found: PlannedProgram, recomputing: Recompute, fit: Callable[[], FittedPlans]
    ) -> FittedPlans:
        """What was made of one of its plans to let values go, or what ``fit`` makes."""
        for plan, rules, fitted in self._fitted:
            if plan is found and rules == recomputing:
                return fitted
        fitted = fit()
        self._fitted.append((found, recomputing, fitted))
        return fitted


class Searches:
    """Programs by the arguments that live in the memory of the host.

    All have the same options, but for memory and time. Once a plan of a program is taken, its
    module is nobody else's.
    """

    def __init__(self) -> None:
        self._programs: dict[tuple[int, ...], SearchedProgram] = {}

    def of(self, on_host: Sequence[int], read: Callable[[], ReadProgram]) -> SearchedProgram:
        """The program with these arguments there; ``read`` reads it."""
        key = tuple(on_host)
        if key not in self._programs:
            self._programs[key] = SearchedProgram(read())
        return self._programs[key]

    def taken(self, on_host: Sequence[int]) -> None:
        """A plan of this program is handed on."""
        self._programs.pop(tuple(on_host), None)
