"""Write a plan so that Shardy builds exactly it.

before  module attributes {autoshard.mesh = "dp=2,tp=4"}
        func @main(%x: tensor<4x8xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}"})
        %y = stablehlo.tanh %x {mhlo.sharding = "{devices=[2,4]<=[8]}",
                                autoshard.strategy = "[{dp}, {tp}] -> [{dp}, {tp}]"}
after   sdy.mesh @mesh = <["dp"=2, "tp"=4]>
        func @main(%x: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"dp", "tp"}]>})
        %c = sdy.sharding_constraint %x <@mesh, [{"dp"}, {"tp"}]>
        %y = stablehlo.tanh %c
        %r = sdy.sharding_constraint %y <@mesh, [{"dp"}, {"tp"}]>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.exporter.pin import export
from autoshard.exporter.shardy import ShardyForm
from autoshard.ir import mlir
from autoshard.passes.base import Pass


@dataclass(frozen=True)
class ExportShardy(Pass):
    """Pin a plan for Shardy, JAX's default partitioner.

    Runs after a planning pass. Shardings on ops would be dropped by XLA without a word, so every
    value becomes an ``sdy.sharding_constraint``, and every operand that its op wants elsewhere is
    resharded right before it. Nothing of the plan's own attributes stays.
    """

    name: ClassVar[str] = "autoshard-export-shardy"

    def run(self, module: mlir.Module) -> None:
        """Raises AutoshardError when the plan is not complete; the module is then unchanged."""
        export(module, ShardyForm())
