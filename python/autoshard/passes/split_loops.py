"""Cut loops over layers by trips, so that stages of a pipeline lie between their parts.

before  %h, %s = stablehlo.while(%n = 0, %h = %x, %w = %w, %s = %zeros) : n < 8   // %w: 8x4x4
after   %h0, %s0 = stablehlo.while(%n = 0, %h = %x, %w = %w_0, %s = %zeros) : n < 4 {stage = 0}
        %h1, %s1 = stablehlo.while(%n = 0, %h = %h0, %w = %w_1, %s = %zeros) : n < 4 {stage = 1}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.cluster import Cluster
from autoshard.errors import PassOptionError
from autoshard.ir import mlir
from autoshard.ir.boundary import main_function
from autoshard.passes.base import Pass, no_cluster
from autoshard.passes.micro_batch import batch_by_structure
from autoshard.rewrites.given_arguments import arguments_called
from autoshard.rewrites.layer_loops.split import cut_layer_loops


@dataclass(frozen=True)
class SplitLoops(Pass):
    """Let each loop over layers that is too much for one stage be one loop a stage.

    Weights, gradients and states of an optimizer that have a row for each layer become as many
    arguments and results, and what is done to them is done to each part. Runs before
    autoshard-micro-batch. A step with marks of autoshard.pipeline_stage stays as it is.
    """

    name: ClassVar[str] = "autoshard-split-loops"

    stages: int = 1
    """How many. 1: nothing is changed."""

    cluster: str = ""
    """By whose chip ops are timed, h100:4x8 or a TOML file; must be given."""

    chunks: int = 1
    """Parts of the model on each stage, as of autoshard-pipeline-stages: as many parts of a loop at
    most, equally many on each stage."""

    batch: tuple[str | int, ...] = ()
    """Arguments that hold examples, which are not cut, by name or number from 0; none: found by
    structure."""

    slack: float = 1.05
    """How many times as long as it must the slowest stage may take where loops have fewer parts
    then."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", tuple(map(str, self.batch)))
        super().__post_init__()
        if self.stages < 1 or self.slack < 1 or self.chunks < 1:
            raise PassOptionError(
                f"{self.name}: stages={self.stages} chunks={self.chunks} slack={self.slack}:"
                " expected 1 or more."
            )
        if self.stages > 1 and not self.cluster:
            raise no_cluster(self.name)

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        if self.stages == 1:
            return
        with module.context, mlir.Location.unknown():
            main = main_function(module)
            if self.batch:
                batch = arguments_called(main, map(str, self.batch), self.name)
            else:
                batch = batch_by_structure(module, main)
            cluster = Cluster.of(self.cluster)
            cut_layer_loops(module, self.stages, cluster, batch, self.slack, self.chunks)
