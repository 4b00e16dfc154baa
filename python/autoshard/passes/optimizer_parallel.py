"""Spread optimizer states, gradients and parameters over the axes that replicate them.

before  autoshard.mesh = "data=8", the parameter %w, its momentum %m and the gradient are on every
        device:
        %g = stablehlo.dot_general %x, %dy ..  {mhlo.sharding = "{replicated}"}
after   level 2: %m and %g are cut by data, the gradient is reduce-scattered, each device updates
        its part of the parameter, and the parts are gathered
        %g = stablehlo.dot_general %x, %dy ..  {mhlo.sharding = "{devices=[8,1]<=[8]}"}

Only the update of the parameters is planned again, by sharding propagation; everything else stays
as planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any, ClassVar, cast

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.errors import PassOptionError, PlanError
from autoshard.importer.dataflow import dataflow
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.importer.pins import core_pin
from autoshard.importer.program import import_program
from autoshard.importer.roles import Role, argument_roles
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, PLAN, attribute_of
from autoshard.ir.boundary import main_function
from autoshard.ir.types import tensor_bytes
from autoshard.passes.base import Pass
from autoshard.passes.split_axis import split_axis
from autoshard.planned.given_plan import GivenPlan
from autoshard.planned.summarize import main_values
from autoshard.planned.write import (
    explain,
    forget_plan,
    mesh_of,
    populate_rules,
    remove_rules,
    write_plan,
)
from autoshard.rewrites.given_arguments import arguments_called
from autoshard.rewrites.parameter_update import ParameterUpdate, SpreadOptions
from autoshard.sharding import Mesh, from_hlo

_LEVELS = (1, 2, 3)


@dataclass(frozen=True)
class OptimizerParallel(Pass):
    """Spread optimizer states, gradients and parameters over the axes that replicate them.

    Runs on a planned module. What the user pinned stays. Which argument is a parameter or a state
    is found by structure, or given.
    """

    name: ClassVar[str] = "autoshard-optimizer-parallel"

    level: int = 1
    """1: optimizer states; 2: gradients, too, so that they are reduce-scattered; 3: parameters,
    too, which are gathered for each use."""

    threshold_kb: float = 64
    """Parameters and states of fewer KiB on a device stay as they are."""

    shard_size: int | None = None
    """Spread over this many neighbours only, others keep copies; an axis is split for it if need
    be. none: over all devices."""

    gradient_accumulation_shard: bool = True
    """Are buffers that add up gradients of micro-batches spread, too?"""

    parameters: tuple[str | int, ...] = ()
    """Arguments that are parameters, by name (params) or number among all arrays, from 0; none:
    found by structure."""

    states: tuple[str | int, ...] = ()
    """Arguments that are optimizer state, likewise."""

    trip_count: int = 100
    """Assumed trips of loops whose count cannot be read from the program."""

    def __post_init__(self) -> None:
        for field, said in (("parameters", self.parameters), ("states", self.states)):
            object.__setattr__(self, field, _texts(said))
        super().__post_init__()
        for option, value, wanted, holds in (
            ("level", self.level, "1, 2 or 3", self.level in _LEVELS),
            ("threshold-kb", self.threshold_kb, "0 or more", self.threshold_kb >= 0),
            (
                "shard-size",
                self.shard_size,
                "none, or 2 or more",
                self.shard_size is None or self.shard_size > 1,
            ),
            ("trip-count", self.trip_count, "0 or more", self.trip_count >= 0),
        ):
            if not holds:
                raise PassOptionError(
                    f"{self.name}: option {option}={value} is out of range. Give {wanted}."
                )

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        with module.context, mlir.Location.unknown():
            if self.shard_size is not None:
                _make_shard_axis(module, self.shard_size)
            mesh = mesh_of(module).without_unit_axes()
            populate_rules(module)
            imported = import_program(
                module, mesh, unknown_trip_count=self.trip_count, keep_strategies=False
            )
            given = GivenPlan(imported)
            main = main_values(imported).op
            flow = dataflow(module)
            roles = argument_roles(main, flow, _given_roles(self, main))
            options = SpreadOptions(
                self.level, self.threshold_kb, self.shard_size, self.gradient_accumulation_shard
            )
            update = ParameterUpdate(imported, flow, roles, given.value_dims(), options)
            update.spread()
            if update.pins:
                write_plan(module, imported, _planned_again(imported, given, update))
                if PLAN in module.operation.attributes:
                    forget_plan(module)  # which this one replaces
            remove_rules(module)


def _texts(said: Any) -> tuple[str, ...]:
    """One name or number, or several."""
    is_one = isinstance(said, str) or not isinstance(said, Iterable)
    return tuple(map(str, cast("Iterable[Any]", (said,) if is_one else said)))


def _make_shard_axis(module: mlir.Module, wanted: int) -> None:
    """Split the axis that replicates most of the arguments, unless axes fit as they are."""
    mesh = mesh_of(module)
    sets = (
        found
        for count in range(1, len(mesh.axes) + 1)
        for found in combinations(mesh.axis_sizes, count)
    )
    if any(prod(found) == wanted for found in sets):
        return
    copied = _copied_bytes(module, mesh)
    names = [axis.name for axis in mesh.axes if axis.size % wanted == 0 and copied[axis.name] > 0]
    if not names:
        raise PlanError(
            f"{OptimizerParallel.name}: shard-size={wanted}, but the mesh {mesh} has no axes of"
            f" {wanted} devices together, and none that replicates arguments and that {wanted}"
            " divides. Choose a size that divides the number of replicas."
        )
    split_axis(module, mesh, max(names, key=lambda name: copied[name]), wanted)


def _copied_bytes(module: mlir.Module, mesh: Mesh) -> Mapping[str, float]:
    """Bytes of the arguments that each axis replicates."""
    main = main_function(module)
    function = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value)
    entries = attribute_of(main, "arg_attrs")
    copied = dict.fromkeys(mesh.axis_names, 0.0)
    for type_, entry in zip(
        function.inputs, [] if entries is None else mlir.ArrayAttr(entries), strict=False
    ):
        attributes = mlir.DictAttr(entry)
        if MHLO_SHARDING not in attributes or not isinstance(type_, mlir.RankedTensorType):
            continue
        sharding = from_hlo(mlir.StringAttr(attributes[MHLO_SHARDING]).value, mesh, type_.rank)
        used = {ref.name for axes in sharding.dims for ref in axes}
        for name in copied.keys() - used:
            copied[name] += tensor_bytes(type_)
    return copied


def _planned_again(
    imported: ImportedProgram, given: GivenPlan, update: ParameterUpdate
) -> _core.CorePlan:
    """The given plan with the update planned anew, by the bytes that it sends."""
    program = imported.program.changed(
        axis_sizes=[axis.size for axis in imported.mesh.axes],
        pins=[core_pin(pinned) for pinned in update.all_pins()],
    )
    try:
        plan = _core.propagate(program)
    except _core.Contradiction as error:
        raise explain(imported, error) from error
    row_of = [given.row(tuple(tuple(axes) for axes in dims)) for dims in plan.shardings]
    changed = update.changed_ops()
    strategies = [
        given.strategy_row(
            *(tuple(NO_VALUE if r == NO_VALUE else row_of[r] for r in side) for side in sides)
        )
        for sides in plan.strategies
    ]
    of_op = plan.op_strategy
    op_strategy = [
        strategies[of_op[number]] if is_changed else given.strategy(op)
        for number, (op, is_changed) in enumerate(zip(imported.core_ops, changed, strict=True))
    ]
    # Checks the plan, and counts its bytes; these do not depend on the cluster.
    cluster = Cluster.of(f"cpu:{imported.mesh.size}")
    value_sharding = [row_of[row] for row in plan.value_sharding]
    return given.checked(program, cluster, 0.0, value_sharding, op_strategy)


def _given_roles(options: OptimizerParallel, main: mlir.Operation) -> dict[int, Role]:
    found: dict[int, Role] = {}
    for role, wanted in (
        (Role.PARAMETER, options.parameters),
        (Role.OPTIMIZER_STATE, options.states),
    ):
        called = arguments_called(main, map(str, wanted), options.name)
        found.update(dict.fromkeys(called, role))
    return found
