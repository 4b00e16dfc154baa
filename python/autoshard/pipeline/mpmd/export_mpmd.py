"""Write a planned pipeline in the dialect of Shardy's pipelines, MPMD.

before  func.func @main(%x: tensor<8x4xf32> {autoshard.stage = 0 : i32, ..})
          stablehlo.while(..) { %h = func.call @stage0_loop0(%x, %m, %w) .. }
after   func.func @main(%x: !mpmd.mesh_tensor<"stage0", tensor<8x4xf32>, sharding=<@mesh, ..>>)
            attributes {topology = #mpmd.topology<<"stage0" : <["dp"=2]>>, ..>}
          %h = mpmd.fragment_call<mesh="stage0", origin=["stage0_loop0"]> @stage0_loop0(%x, ..)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.cluster import Cluster
from autoshard.cluster.stages import cluster_of_a_stage
from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MESH, PIPELINE_STAGES
from autoshard.ir.boundary import tied_arguments
from autoshard.ir.module import take_contents
from autoshard.passes.base import Pass, no_cluster
from autoshard.pipeline.mpmd.write import MpmdForm, write_mpmd
from autoshard.pipeline.order import step_by_rule
from autoshard.pipeline.task_prices import Machinery
from autoshard.schedule.rules import Rule


@dataclass(frozen=True)
class ExportMpmd(Pass):
    """Write a planned pipeline in Shardy's MPMD dialect, in the order of a schedule.

    Each stage is a mesh of the topology, each task a fragment on it for every micro-batch, and what
    crosses stages a transfer. Runs behind autoshard-pipeline-stages and planning; splits the step
    into tasks where autoshard-split-stages has not. Nothing of the plan's own attributes stays.
    """

    name: ClassVar[str] = "autoshard-export-mpmd"

    cluster: str = ""
    """All devices, h100:4x8 or a TOML file, by which tasks are timed; must be given."""

    schedule: Rule = "1f1b"
    """The rule by which stages choose what they do first."""

    form: MpmdForm = "calls"
    """calls: fragments call functions, equal tasks the same one, as Shardy's export leaves them;
    fragments: each has its ops in it, as Shardy's passes take them."""

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``. PlanError when the step has no stages or no plan."""
        if not self.cluster:
            raise no_cluster(self.name)
        attributes = module.operation.attributes
        for name, lacks, by in (
            (PIPELINE_STAGES, "its ops are on no stages", "autoshard-pipeline-stages"),
            (MESH, "nothing has been planned", "autoshard-recursive-programming"),
        ):
            if name not in attributes:
                raise PlanError(
                    f"the module has no {name}: {lacks}. Run {by} before.",
                    place(module.operation.location),
                )
        whole = Cluster.of(self.cluster)
        stage = cluster_of_a_stage(whole, mlir.IntegerAttr(attributes[PIPELINE_STAGES]).value)
        donated = {argument: result for result, argument in tied_arguments(module).items()}
        step = step_by_rule(module, self.schedule, Machinery(stage, whole), donated)
        made = write_mpmd(module, step, self.form)
        with module.context:
            take_contents(module, made)
