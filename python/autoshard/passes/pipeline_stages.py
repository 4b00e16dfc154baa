"""Say of every op on which stage of a pipeline it is, and when in a micro-batch's way.

before  %h = stablehlo.dot_general %x, %a ..
        %m = stablehlo.custom_call @autoshard.pipeline_stage(%h) {autoshard.stage = 1 : i32}
        %y = stablehlo.dot_general %m, %b ..
after   %h = stablehlo.dot_general %x, %a .. {autoshard.level = 0 : i32, autoshard.stage = 0 : i32}
        %y = stablehlo.dot_general %h, %b .. {autoshard.level = 1 : i32, autoshard.stage = 1 : i32}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.cluster import Cluster
from autoshard.cluster.stages import cluster_of_a_stage
from autoshard.errors import PassOptionError, PlanError
from autoshard.ir import mlir
from autoshard.ir.attributes import PIPELINE_STAGES
from autoshard.ir.micro_batch_loop import micro_batches_of
from autoshard.passes.base import Pass, no_cluster
from autoshard.rewrites.stages import into_stages


@dataclass(frozen=True)
class PipelineStages(Pass):
    """Give every op of a step in micro-batches its stage and level.

    Marks of ``autoshard.pipeline_stage`` are kept; what they leave open is cut where stages take
    equally long and few bytes cross. Gradients follow what they are of. Runs behind
    autoshard-micro-batch.
    """

    name: ClassVar[str] = "autoshard-pipeline-stages"

    stages: int = 1
    """How many; at most as many as there are micro-batches. 1: nothing is changed."""

    cluster: str = ""
    """By whose chip ops are timed, h100:4x8 or a TOML file; must be given. Stages must divide its
    devices, unless it has only one."""

    chunks: int = 1
    """Parts of the model on each stage, for interleaved schedules; part n is on stage n % stages,
    and marks are numbers of parts."""

    slack: float = 1.05
    """How many times as long as it must the slowest stage may take where fewer bytes cross then."""

    def __post_init__(self) -> None:
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
        cluster = Cluster.of(self.cluster)
        if cluster.num_devices > 1:  # one device is a chip alone, by which ops are timed
            cluster_of_a_stage(cluster, self.stages)
        with module.context, mlir.Location.unknown():
            if PIPELINE_STAGES in module.operation.attributes:
                raise PlanError(f"{self.name}: the module has stages already.")
            micro_batches = micro_batches_of(module)
            check_micro_batches(micro_batches, self.stages)
            into_stages(module, self.stages, micro_batches, cluster, self.slack, self.chunks)


def check_micro_batches(micro_batches: int, stages: int) -> None:
    """Raise where a pipeline could never be full.

    Raises:
        PlanError: There are fewer micro-batches than stages.
    """
    if micro_batches < stages:
        raise PlanError(
            f"micro_batches={micro_batches} is smaller than stages={stages}: some stage would never"
            f" have anything to do. The number of micro-batches must be larger than or equal to the"
            f" number of stages: give micro_batches={stages} or more, or fewer stages."
        )
