"""The last search of a program, for another one within less memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autoshard.ir import mlir
from autoshard.passes.optimizer_parallel import OptimizerParallel
from autoshard.passes.recompute import Recompute
from autoshard.passes.recursive_programming import PlannedProgram, RecursiveProgramming
from autoshard.passes.reduce_once import SumsOnce


@dataclass(frozen=True, slots=True)
class Asked:
    """What a search is asked, besides memory and time."""

    program: object
    """The program, or what it is read from."""
    options: RecursiveProgramming
    spreading: OptimizerParallel | None
    recomputing: Recompute | None

    @staticmethod
    def of(
        program: object,
        options: RecursiveProgramming,
        spreading: OptimizerParallel | None,
        recomputing: Recompute | None,
    ) -> Asked:
        """What is asked by options that say memory and time, too."""
        options = replace(options, memory_limit="", time_limit=None)
        if recomputing is not None:
            recomputing = replace(recomputing, memory_limit="")
        return Asked(program, options, spreading, recomputing)


class LastSearch:
    """What the last search found.

    With less memory plans only get slower: one that keeps within it stays the fastest. What is done
    to a plan afterwards may need the rest, as sums that are reduced once.
    """

    def __init__(self) -> None:
        self._known: tuple[Asked, float, PlannedProgram] | None = None
        self._sums: SumsOnce | None = None

    def within(self, asked: Asked, limit: float) -> PlannedProgram | None:
        """What was found, if a search within less memory is no use; it stands on its module.

        Args:
            asked: Of that search.
            limit: Bytes that a plan may use of a device.
        """
        if self._known is None:
            return None
        known, most, found = self._known
        if asked != known or not found.limited_bytes <= limit <= most:
            return None
        return replace(found, summary=replace(found.summary, memory_limit=limit))

    @property
    def found(self) -> PlannedProgram | None:
        """What the last search found; None: nothing, or something else is done to it."""
        return None if self._known is None else self._known[2]

    def searched(
        self, asked: Asked, limit: float, search: Callable[[], PlannedProgram]
    ) -> PlannedProgram:
        """Search, and keep what is found until the next search begins.

        Args:
            asked: Of the search.
            limit: Bytes that a plan may use of a device.
            search: Finds a plan and writes it to its module, which nothing else is done to.
        """
        self.forget()  # the module goes before there is another one
        found = search()
        self._known = asked, limit, found
        return found

    def forget(self) -> None:
        """Keep nothing: the module is changed."""
        self._known = self._sums = None

    def sums_once(self, module: mlir.Module, read: Callable[[], SumsOnce]) -> SumsOnce:
        """The sums of a planned module; those of what was found are read once.

        Args:
            module: Any.
            read: Reads them.
        """
        if self._known is None or self._known[2].module is not module:
            return read()
        if self._sums is None:
            self._sums = read()
        return self._sums
