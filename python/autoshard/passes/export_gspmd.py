"""Write a plan so that GSPMD builds exactly it.

before  module attributes {autoshard.mesh = "dp=2,tp=4"}
        func @main(%x: tensor<4x8xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}"})
        %y = stablehlo.tanh %x {mhlo.sharding = "{devices=[2,4]<=[8]}",
                                autoshard.strategy = "[{dp}, {tp}] -> [{dp}, {tp}]"}
after   func @main(%x: tensor<4x8xf32> {mhlo.sharding = "{devices=[1,8]<=[8]}"})
        %c = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,4]<=[8]}"}
        %y = stablehlo.tanh %c
        %r = stablehlo.custom_call @Sharding(%y) {mhlo.sharding = "{devices=[2,4]<=[8]}"}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.exporter.gspmd import GspmdForm
from autoshard.exporter.pin import export
from autoshard.ir import mlir
from autoshard.passes.base import Pass


@dataclass(frozen=True)
class ExportGspmd(Pass):
    """Pin a plan for GSPMD; compile the result with jax_use_shardy_partitioner off.

    Runs after a planning pass. GSPMD takes ``mhlo.sharding`` on an op as a hint only, so every
    value becomes a ``Sharding`` custom call, and every operand that its op wants elsewhere is
    resharded right before it. Nothing of the plan's own attributes stays inside.
    """

    name: ClassVar[str] = "autoshard-export-gspmd"

    def run(self, module: mlir.Module) -> None:
        """Raises AutoshardError when the plan is not complete; the module is then unchanged."""
        export(module, GspmdForm())
