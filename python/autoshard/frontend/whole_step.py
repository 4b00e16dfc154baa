"""Seconds of a pipeline's step before it is planned: a search in which one stage does all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.frontend.layer_parts import InParts
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.frontend.staged_planning import StagedSearch
from autoshard.importer.imported_program import ImportedProgram
from autoshard.passes.recursive_programming import ReadProgram, read_module, searched_seconds
from autoshard.pipeline.options import Pipeline
from autoshard.search.automatic import ALL_MEMORY, Job, seconds_with_sums_once


@dataclass(frozen=True, slots=True)
class WholeStep:
    """What a search finds for the devices of a stage that does the work of all stages."""

    seconds: float
    is_held_back: bool
    """Is it slower than with more memory?"""
    is_bound: bool = False
    """Has the search ended with a first plan that was too slow?"""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A step that was read."""

    bytecode: bytes
    examples: float
    """Share of the batch that is in a micro-batch."""
    read: ReadProgram

    def is_free(self) -> bool:
        """Is it the same for any devices, and known by its seconds of them alone?"""
        imported = self.read.imported
        is_pinned = self.read.has_mesh or bool(imported.pins)
        return not is_pinned and not imported.manual and not imported.host.values


class WholeSteps:
    """Searches for one stage that does all, which share what is read of the step.

    Two readings, in micro-batches of two sizes, are as good as one of any size: shapes, and what
    ops do, grow by as much for each example. Those of the newest program are kept. The second one
    is in micro-batches that the step was cut into before, where there are such.
    """

    def __init__(self, job_of: Callable[[Source, Request], Job]) -> None:
        """``job_of``: what a request asks of the search."""
        self._job_of = job_of
        self._readings: list[_Reading] = []

    def search(
        self, source: Source, request: Request, cut_before: int = 1, useful: float = math.inf
    ) -> WholeStep:
        """What the first search for a pipeline finds; nothing of it is written.

        What only adds to its seconds is left out: what is computed again, shardings that are
        preferred, inputs cut alike.

        Args:
            source: The step, lowered for the devices of a stage.
            request: With a pipeline.
            cut_before: Micro-batches that the step was cut into to time it; 1: it was not.
            useful: Slower steps are of no use: it may be told of them that they are, alone.

        Raises:
            DoesNotFitError: No plan fits the memory of all stages.
            PlanError: The step cannot be cut so.
        """
        stages = cast(Pipeline, request.stages).stages
        first = StagedSearch.of(source, request, stages, _no_plan).first(request)
        parts = InParts.of(source, first)
        if parts is not None:
            source, first = parts.source, parts.with_names(first)
        recomputing = first.recomputing()
        if first.spreading() is not None or (recomputing is not None and recomputing.decides):
            first = replace(first, memory_limit=ALL_MEMORY)
        if first.constraints == "prefer":
            first = replace(first, constraints="ignore")
        first = replace(first, pipeline=None)  # one for all numbers of stages
        options, cluster = self._job_of(source, first).options, cast(Cluster, source.cluster)
        bytecode = source.program.bytecode
        imported = self._known(bytecode, first)
        if imported is None and self._lacks(bytecode, cut_before):
            self._read(source, replace(first, micro_batches=cut_before))
            imported = self._known(bytecode, first)
        if imported is None:
            reading = self._read(source, first)
            if not reading.is_free():
                found = reading.read.searched(options, stages=stages)
                return WholeStep(seconds_with_sums_once(found), found.summary.mem_coeff > 0)
            imported = reading.read.imported
        seconds, mem_coeff = searched_seconds(imported, cluster, options, stages, useful)
        if mem_coeff is None:
            return WholeStep(seconds, is_held_back=False, is_bound=True)
        return WholeStep(seconds, mem_coeff > 0)

    def _lacks(self, bytecode: bytes, count: int) -> bool:
        """Is another reading, in so many micro-batches, the second one?"""
        sizes = [one.examples for one in self._readings if one.bytecode == bytecode]
        return count > 1 and len(sizes) == 1 and 1 / count not in sizes

    def _read(self, source: Source, request: Request) -> _Reading:
        job, cluster = self._job_of(source, request), cast(Cluster, source.cluster)
        bytecode, examples = source.program.bytecode, 1 / request.micro_batch_count
        self._readings = [one for one in self._readings if one.bytecode == bytecode][-1:]
        reading = _Reading(bytecode, examples, read_module(job.read(()), cluster, job.options))
        if reading.is_free():
            self._readings.append(reading)
        return reading

    def _known(self, bytecode: bytes, request: Request) -> ImportedProgram | None:
        """The step by what was read; None: that does not tell."""
        readings = [one for one in self._readings if one.bytecode == bytecode]
        examples = 1 / request.micro_batch_count
        for one in readings:
            if one.examples == examples:
                return one.read.imported
        if len(readings) < 2:
            return None
        one, other = readings
        others = other.read.imported.program
        found = one.read.imported.program.resized(one.examples, others, other.examples, examples)
        return None if found is None else replace(one.read.imported, program=found)


def _no_plan(source: Source, request: Request) -> Plan:
    raise PlanError(f"{source.name}: a search alone makes no plan.")
