"""A planned module as it runs on one device, and what neither form of it shall have.

The plan's attributes, shardings, constraints and marks go; what is computed stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autoshard.ir import mlir
from autoshard.ir.attributes import (
    ALIASING_OUTPUT,
    BUFFER_DONOR,
    MEMORY_KIND,
    MHLO_SHARDING,
    NUM_PARTITIONS,
    NUM_REPLICAS,
    SDY_SHARDING,
)
from autoshard.ir.boundary import main_function
from autoshard.ir.host_memory import PLACEMENT, run_on_device, runs_on_host
from autoshard.ir.module import functions_of, operations_of
from autoshard.planned.module import OWN_PREFIX
from autoshard.rewrites.lockstep.export import export_lockstep, rows_at
from autoshard.sharding import Axis, Mesh
from autoshard.sharding.sdy_text import mesh_to_sdy
from autoshard.verify.check.shapes.elements import IDENTITY_TARGETS

_IDENTITIES = frozenset(
    {"sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier", "sdy.data_flow_edge"}
)
_SAID = frozenset({MHLO_SHARDING, SDY_SHARDING})
_OF_STORAGE = frozenset({ALIASING_OUTPUT, BUFFER_DONOR, MEMORY_KIND})
"""Attributes of arguments and results that say where they are kept."""


def without_storage(module: mlir.Module) -> None:
    """Compute all in the memory of the devices, and give no argument's storage away."""
    with module.context:
        _replace_by_operand(
            op
            for op in operations_of(module.operation)
            if op.name == "stablehlo.custom_call"
            and mlir.StringAttr(op.attributes["call_target_name"]).value == PLACEMENT
        )
        for op in operations_of(module.operation):
            if runs_on_host(op):
                run_on_device(op)
        for function in functions_of(module).values():
            _drop_entries(function, lambda name: name in _OF_STORAGE)


def with_whole_stages(module: mlir.Module, stages: int) -> None:
    """Leave nothing of a plan but the stages in lockstep, each on one device."""
    with module.context, mlir.Location.unknown():
        rows = rows_at(main_function(module), "arg_attrs")
        results = rows_at(main_function(module), "res_attrs")
        without_plan(module)
        mesh = mlir.Attribute.parse(mesh_to_sdy(Mesh((Axis("whole", 1),))))
        mlir.Operation.create(
            "sdy.mesh",
            attributes={"sym_name": mlir.StringAttr.get("mesh"), "mesh": mesh},
            ip=mlir.InsertionPoint.at_block_begin(module.body),
        )
        export_lockstep(module, stages, rows, results)


def without_plan(module: mlir.Module) -> None:
    """Leave nothing that says how to split the module."""
    with module.context:
        ops = operations_of(module.operation)
        for op in ops:
            if op.name == "sdy.sharding_group":
                op.erase()
            elif _is_identity(op):
                _replace_by_operand([op])
            else:
                _drop_said(op)
        for function in functions_of(module).values():
            _drop_entries(function, lambda name: name in _SAID or name.startswith(OWN_PREFIX))
        for op in list(module.body.operations):
            if op.operation.name == "sdy.mesh":
                op.operation.erase()
        int32 = mlir.IntegerType.get_signless(32)
        for name in (NUM_PARTITIONS, NUM_REPLICAS):
            module.operation.attributes[name] = mlir.IntegerAttr.get(int32, 1)


def _is_identity(op: mlir.Operation) -> bool:
    if op.name in _IDENTITIES:
        return True
    return (
        op.name == "stablehlo.custom_call"
        and mlir.StringAttr(op.attributes["call_target_name"]).value in IDENTITY_TARGETS
    )


def _replace_by_operand(ops: Iterable[mlir.Operation]) -> None:
    for op in list(ops):
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()


def _drop_said(op: mlir.Operation) -> None:
    attributes = op.attributes
    for name in list(attributes):
        if name in _SAID or name.startswith(OWN_PREFIX):
            del attributes[name]


def _drop_entries(function: mlir.Operation, is_dropped: Callable[[str], bool]) -> None:
    for key in ("arg_attrs", "res_attrs"):
        if key not in function.attributes:
            continue
        kept: list[mlir.Attribute] = []
        for item in mlir.ArrayAttr(function.attributes[key]):
            entries = mlir.DictAttr(item)
            named = [entries[number] for number in range(len(entries))]
            kept.append(
                mlir.DictAttr.get(
                    {entry.name: entry.attr for entry in named if not is_dropped(entry.name)}
                )
            )
        function.attributes[key] = mlir.ArrayAttr.get(kept)
