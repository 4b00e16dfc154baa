"""Write the plan of one stage as the program of all stages, which run in lockstep.

before  func @main(%w: tensor<4x8x8xf32> {autoshard.stage_rows = 0 : i32, mhlo.sharding = ..})
after   func @main(%w: tensor<8x8x8xf32>
                       {sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {}, {"data"}]>})
          sdy.manual_computation(%w) manual_axes={"stage"} (%w: tensor<4x8x8xf32>) ..
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.errors import PlanError
from autoshard.exporter.pin import export
from autoshard.exporter.shardy import ShardyForm
from autoshard.ir import mlir
from autoshard.ir.boundary import main_function
from autoshard.passes.base import Pass
from autoshard.rewrites.lockstep.export import export_lockstep, rows_at
from autoshard.rewrites.lockstep.step import lockstep_of


@dataclass(frozen=True)
class ExportLockstep(Pass):
    """Pin a plan for Shardy as autoshard-export-shardy does, and let all stages run it at once.

    Runs on what autoshard-lockstep has made, once it is planned on the devices of a stage. The
    program is manual over an axis of the stages, and the partitioner's over all others.
    """

    name: ClassVar[str] = "autoshard-export-lockstep"

    def run(self, module: mlir.Module) -> None:
        """Raises AutoshardError when the plan is not complete; the module is then unchanged."""
        with module.context, mlir.Location.unknown():
            shape = lockstep_of(module)
            if shape is None:
                raise PlanError(
                    f"{self.name}: the program is not in lockstep. Run autoshard-lockstep, with"
                    " stages=2 or more, before it is planned, or take autoshard-export-shardy."
                )
            main = main_function(module)
            arguments, results = rows_at(main, "arg_attrs"), rows_at(main, "res_attrs")
        export(module, ShardyForm())
        with module.context, mlir.Location.unknown():
            export_lockstep(module, shape.stages, arguments, results)
