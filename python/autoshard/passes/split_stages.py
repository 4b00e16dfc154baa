"""Split a program in micro-batches into tasks, one function for each stage and level.

before  %r:2 = stablehlo.while(%m = 0, %sum = 0)
          %h = stablehlo.dot_general %x, %w {autoshard.stage = 0 : i32, autoshard.level = 0 : i32}
          %l = stablehlo.dot_general %h, %v {autoshard.stage = 1 : i32, autoshard.level = 1 : i32}
after   %r:2 = stablehlo.while(%m = 0, %x0 = %x, %w0 = %w, %v1 = %v, %sum = 0)
          %h0 = func.call @stage0_loop0(%x0, %m, %w0)
          %h1 = stablehlo.custom_call @autoshard.transfer(%h0) {autoshard.from = 0, ..}
          %l = func.call @stage1_loop1(%h1, %v1, %sum)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.ir import mlir
from autoshard.passes.base import Pass
from autoshard.rewrites.stage_tasks.program import read_stage_program
from autoshard.rewrites.stage_tasks.write import split_stages


@dataclass(frozen=True)
class SplitStages(Pass):
    """Make a function of each task: ops that agree in time, stage and level.

    Runs behind autoshard-micro-batch and autoshard-pipeline-stages, and behind planning if there is
    one: the functions keep the plan. What other tasks read is sent where the stage changes. Every
    value is then read on a stage that has it, which is checked.
    """

    name: ClassVar[str] = "autoshard-split-stages"

    defer: bool = False
    """Gradients of weights, for which nothing in the loop waits, become tasks of their own."""

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        with module.context, mlir.Location.unknown():
            split_stages(module, defers=self.defer)
            read_stage_program(module)
