"""Values in the memory of the host, and ops that run there, as XLA reads them in a module.

mhlo.memory_kind = "pinned_host"                 an argument or result of main
stablehlo.custom_call @annotate_device_placement {
  mhlo.frontend_attributes = {_xla_buffer_placement = "device"}}   moves a value
func.call @look_up {
  mhlo.frontend_attributes = {_xla_compute_type = "host"}}         runs on the host
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from jaxlib.mlir import ir

from autoshard.ir.attributes import FRONTEND_ATTRIBUTES, MEMORY_KIND, SDY_SHARDING
from autoshard.ir.boundary import entries_at, with_attribute
from autoshard.ir.module import functions_of

PINNED_HOST = "pinned_host"
DEVICE = "device"

PLACEMENT = "annotate_device_placement"
"""Target of the custom calls that move a value to another memory."""

_PLACEMENT_KIND = "_xla_buffer_placement"
COMPUTE_TYPE = "_xla_compute_type"


def move(value: ir.Value, kind: str, where: ir.InsertionPoint, why: ir.Location) -> ir.Operation:
    """A new op whose result is ``value`` in a memory. Expects the module's context."""
    said = ir.DictAttr.get({_PLACEMENT_KIND: ir.StringAttr.get(kind)})
    return ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={
            "call_target_name": ir.StringAttr.get(PLACEMENT),
            "backend_config": ir.StringAttr.get(""),
            # Else it would be removed as an op that does nothing.
            "has_side_effect": ir.BoolAttr.get(True),
            FRONTEND_ATTRIBUTES: said,
        },
        loc=why,
        ip=where,
    )


def moved_to(op: ir.Operation) -> str | None:
    """The memory to which an op moves its operand; None for all other ops."""
    if op.name != "stablehlo.custom_call":
        return None
    if ir.StringAttr(op.attributes["call_target_name"]).value != PLACEMENT:
        return None
    return _frontend(op, _PLACEMENT_KIND)


def runs_on_host(op: ir.Operation) -> bool:
    """Whether an op, or all that a call calls, is computed by the host."""
    return _frontend(op, COMPUTE_TYPE) == "host"


def free_on_host(module: ir.Module) -> None:
    """Take ``sdy.sharding`` off what the host computes, so that planning chooses."""
    functions = functions_of(module)
    waiting: list[ir.Operation] = []

    def find_host(op: ir.Operation) -> ir.WalkResult:
        if op.name == "func.call" and runs_on_host(op):
            waiting.append(op)
        return ir.WalkResult.ADVANCE

    def free(op: ir.Operation) -> ir.WalkResult:
        if SDY_SHARDING in op.attributes:
            del op.attributes[SDY_SHARDING]
        if op.name == "func.call":
            waiting.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(find_host)
    freed: set[str] = set()
    while waiting:
        call = waiting.pop()
        if SDY_SHARDING in call.attributes:
            del call.attributes[SDY_SHARDING]
        name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if name not in freed:
            freed.add(name)
            functions[name].walk(free)


def run_on_device(op: ir.Operation) -> None:
    """Let the device compute what the host should. Expects the module's context."""
    said = {named.name: named.attr for named in ir.DictAttr(op.attributes[FRONTEND_ATTRIBUTES])}
    del said[COMPUTE_TYPE]
    if said:
        op.attributes[FRONTEND_ATTRIBUTES] = ir.DictAttr.get(said)
    else:
        del op.attributes[FRONTEND_ATTRIBUTES]


def set_memory_kinds(
    main: ir.Operation, side: Literal["arg_attrs", "res_attrs"], numbers: Collection[int]
) -> None:
    """Put arguments or results of ``main`` into the memory of the host."""
    with_attribute(main, side, MEMORY_KIND, ir.StringAttr.get(PINNED_HOST), numbers)


def on_host(main: ir.Operation, side: Literal["arg_attrs", "res_attrs"]) -> frozenset[int]:
    """Numbers of the arguments or results of ``main`` that are in the memory of the host."""
    host = ir.StringAttr.get(PINNED_HOST, main.context)
    return frozenset(
        number
        for number, entry in enumerate(entries_at(main, side))
        if MEMORY_KIND in entry and entry[MEMORY_KIND] == host
    )


def _frontend(op: ir.Operation, name: str) -> str | None:
    if FRONTEND_ATTRIBUTES not in op.attributes:
        return None
    said = ir.DictAttr(op.attributes[FRONTEND_ATTRIBUTES])
    return ir.StringAttr(said[name]).value if name in said else None
