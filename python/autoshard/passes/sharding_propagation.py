"""From a few pins to a sharding for every value, at the least resharding.

before  %1 = stablehlo.dot_general %x, %w ..       with autoshard.pin on some values
after   %1 = stablehlo.dot_general %x, %w .. {
            autoshard.strategy = "[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]",
            mhlo.sharding = "{devices=[2,4]<=[8]}"}

The search is in passes/planning/propagation.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard import _core
from autoshard.errors import PassOptionError, PlanError
from autoshard.importer.imported_program import ImportedProgram
from autoshard.importer.program import import_program
from autoshard.ir import mlir
from autoshard.ir.attributes import PLAN
from autoshard.ir.boundary import allow_all_to_all
from autoshard.passes.base import Pass
from autoshard.planned.write import (
    explain,
    forget_plan,
    mesh_of,
    populate_rules,
    remove_rules,
    write_plan,
)


@dataclass(frozen=True)
class ShardingPropagation(Pass):
    """Give every value a sharding and every op a strategy, at the least resharding.

    Reads the pins that ``autoshard-import-strategies`` writes. Least means: over all plans that
    keep the pins, the sum over all reshards of trips x (bytes a device sends + 1 KiB a
    collective); of equal ones the plan that splits more work.
    """

    name: ClassVar[str] = "autoshard-sharding-propagation"

    trip_count: int = 100
    """Assumed trips of loops whose count cannot be read from the program."""

    sweeps: int = 2
    """Rounds over the mesh axes, one at a time, after the first one."""

    enable_alltoall: bool = True
    """Reshard by all-to-alls, too; false: by gathers, slices and permutes only."""

    needs_pins: bool = True
    """Refuse a module in which nothing is pinned; false: then everything is on every device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value in (("trip-count", self.trip_count), ("sweeps", self.sweeps)):
            if value < 0:
                raise PassOptionError(
                    f"{self.name}: option {option}={value} is negative. Give 0 or more."
                )

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        with module.context, mlir.Location.unknown():
            mesh = mesh_of(module)
            allow_all_to_all(module, self.enable_alltoall)
            populate_rules(module)
            imported = import_program(module, mesh, unknown_trip_count=self.trip_count)
            if mesh.size > 1 and self.needs_pins:
                check_pins(imported)
            try:
                plan = _core.propagate(imported.program, sweeps=self.sweeps)
            except _core.Contradiction as error:
                raise explain(imported, error) from error
            write_plan(module, imported, plan)
            remove_rules(module)
            if PLAN in module.operation.attributes:
                forget_plan(module)  # which this one replaces


def check_pins(imported: ImportedProgram) -> None:
    """Propagation needs something to propagate."""
    if not any(pin.is_users for pin in imported.pins):
        raise PlanError(
            "there is no operator that is configured with a sharding strategy: nothing to "
            "propagate. Mark an op with autoshard.shard(fn, in_strategy=..), give in_shardings, "
            "or let the automatic mode choose."
        )
