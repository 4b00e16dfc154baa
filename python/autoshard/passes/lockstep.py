"""Let equal stages of a pipeline run one program, each with its part of the layers of a loop.

before  %h = stablehlo.while(%n = 0, %h = %x, %w = %w) : n < 8                       // %w: 8x4x4
after   %r = stablehlo.while(%t = 0, %h = 0, %hs = 0) : t < 5           // 4 micro-batches, 2 stages
          %x = %t - %stage < 0 or > 3 ? none : %xs[%t - %stage]
          %h = stablehlo.while(%n = 0, %h = %stage == 0 ? %x : %h, %w = %w) : n < 4  // %w: 4x4x4
          yields %t + 1, stage_permute(%h), %hs with %h at %t - %stage
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.errors import PassOptionError
from autoshard.ir import mlir
from autoshard.ir.boundary import main_function
from autoshard.passes.base import Pass
from autoshard.passes.micro_batch import MicroBatch
from autoshard.passes.pipeline_stages import check_micro_batches
from autoshard.rewrites.lockstep.one_stage import into_one_stage
from autoshard.rewrites.lockstep.step import check_lockstep, into_lockstep
from autoshard.rewrites.lockstep.write import Shape


@dataclass(frozen=True)
class Lockstep(Pass):
    """Make of a step the program of one of several equal stages, which all run it in lockstep.

    Loops over layers are cut by trips, one part a stage; a micro-batch goes through them stage by
    stage, and its gradients back. What surrounds them, stages do for an equal share of the
    micro-batches each. Runs before planning, in place of autoshard-micro-batch; what is planned is
    one stage, and autoshard-export-lockstep makes one program of all.
    """

    name: ClassVar[str] = "autoshard-lockstep"

    stages: int = 1
    """How many; 1: nothing is changed."""

    micro_batches: int = 1
    """How many; a multiple of the stages."""

    batch: tuple[str | int, ...] = ()
    """As of autoshard-micro-batch."""

    per_micro_batch: tuple[str, ...] = ()
    """As of autoshard-micro-batch."""

    delay: int = 1
    """Turns until the next stage goes on: with 2 what it needs travels while the stages compute,
    and pipelines fill and drain for twice as long."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", tuple(map(str, self.batch)))
        super().__post_init__()
        if self.stages < 1 or self.micro_batches < 1 or self.delay not in (1, 2):
            raise PassOptionError(
                f"{self.name}: stages={self.stages} micro-batches={self.micro_batches}"
                f" delay={self.delay}: expected 1 or more, and a delay of 1 or 2."
            )

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        if self.stages == 1:
            return
        check_micro_batches(self.micro_batches, self.stages)
        cut = MicroBatch(self.micro_batches, self.batch, self.per_micro_batch)
        with module.context, mlir.Location.unknown():
            check_lockstep(module, self.stages, self.micro_batches)
            batch = cut.arguments(module, main_function(module))
            into_one_stage(module, self.stages, batch)
        MicroBatch(self.micro_batches, tuple(batch), self.per_micro_batch).run(module)
        with module.context, mlir.Location.unknown():
            into_lockstep(module, Shape(self.stages, self.micro_batches, self.delay))
