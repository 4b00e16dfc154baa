"""A step lowered for the devices of a stage, which is taken to be one program for all stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from autoshard.errors import AutoshardError
from autoshard.frontend.lower import Source, Traced
from autoshard.frontend.request import Request
from autoshard.ir.lowering import LoweredProgram
from autoshard.pipeline.options import Pipeline


@dataclass
class StageSources:
    """What a step is lowered to."""

    traced: Traced
    lowers_each: bool = False
    """Is it lowered for each number of stages?"""
    program: LoweredProgram | None = None
    """What it is taken to be for all numbers of stages; None: it is lowered for each."""
    _own: dict[int, Source | None] = field(default_factory=dict[int, "Source | None"])
    """By number of stages."""

    def alone(self, request: Request) -> Source:
        """The step for all devices at once, of a request without a pipeline."""
        source = self.traced.source(request)
        if not self.lowers_each and not source.has_mesh:
            self.program = source.program
        return source

    def of(self, request: Request) -> Source:
        """The step of a request with a pipeline."""
        return self.traced.source(request, self.program)

    def own(self, request: Request) -> Source | None:
        """The step lowered for its stages alone, once for each number of them.

        Returns:
            None: There it is another program, as one that asks how many devices there are.
        """
        stages = cast(Pipeline, request.stages).stages
        if stages not in self._own:
            try:
                own = self.traced.source(request)
            except AutoshardError:
                own = None
            is_same = own is not None and own.program.is_same(cast(LoweredProgram, self.program))
            self._own[stages] = own if is_same else None
        return self._own[stages]
