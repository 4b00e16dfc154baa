"""Put private functions in place of their calls.

before  %0 = call @layer(%x, %w)
after   the ops of @layer; the function is gone
"""

from __future__ import annotations

import io

from jaxlib.mlir import ir

from autoshard.ir.attributes import CHECKPOINT_NAME, FRONTEND_ATTRIBUTES
from autoshard.ir.checkpoint_names import name_value
from autoshard.ir.locations import op_name, place
from autoshard.ir.module import functions_of
from autoshard.ir.native import run_native

_HELD = (FRONTEND_ATTRIBUTES, "no_inline")
"""Attributes of calls and functions that say something of the function as a whole."""

_VMAP = "vmap("
"""In the names of what stands under ``jax.vmap``."""


def inline_calls(module: ir.Module, *, names_callers: bool = False) -> int:
    """Inline every call that says nothing but what to call; how many there were.

    Ops keep their own attributes, so a plan on the module stays one. What a call under ``jax.vmap``
    becomes has its name in front of its own, as XLA writes it.

    Args:
        module: Without recursion.
        names_callers: Ops without a line of their own, as those of a function of ``jax.numpy``, get
            that of the call.
    """
    functions = functions_of(module)
    located = _Located(names_callers)
    count = 0
    expanded: set[ir.Block] = set()

    def expand(block: ir.Block) -> None:
        nonlocal count
        if block in expanded:
            return
        expanded.add(block)
        for op in [op.operation for op in block.operations]:
            for inner in _blocks(op):
                expand(inner)
            if op.name != "func.call":
                continue
            callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            for inner in callee.regions[0].blocks:
                expand(inner)
            if not _is_held(op) and not _is_held(callee) and len(callee.regions[0].blocks) == 1:
                _inline(op, callee, located)
                count += 1

    expand(functions["main"].regions[0].blocks[0])
    run_native(module, "builtin.module(symbol-dce)", verify=False)
    return count


def _is_held(op: ir.Operation) -> bool:
    return any(name in op.attributes for name in _HELD)


def _blocks(op: ir.Operation) -> list[ir.Block]:
    """Blocks in which ops of the program stand; those of reducers and sorts hold no calls."""
    if op.name not in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
        return []
    return [block for region in op.regions for block in region.blocks]


class _Located:
    """Locations of ops that calls become."""

    def __init__(self, names_callers: bool) -> None:
        self._names_callers = names_callers
        self._known: dict[tuple[ir.Location, ir.Location], ir.Location] = {}

    def place(self, op: ir.Operation, call: ir.Location) -> None:
        """Let ``op`` stand where it is called, if nothing says where it stands."""
        if not self._names_callers and _VMAP not in op_name(call):
            return
        for block in _blocks(op):
            for inner in block.operations:
                self.place(inner.operation, call)
        own = op.location
        if (own, call) not in self._known:
            self._known[own, call] = self._placed(own, call)
        op.location = self._known[own, call]

    def _placed(self, own: ir.Location, call: ir.Location) -> ir.Location:
        name = op_name(call)
        if _VMAP in name:
            child = own.child_loc if isinstance(own, ir.NameLoc) else own
            own = ir.Location.name(f"{name}/{op_name(own)}", child)
        has_line = place(own) is not None or not self._names_callers
        return own if has_line else ir.Location.callsite(own, [call])


def _inline(call: ir.Operation, callee: ir.Operation, located: _Located) -> None:
    """Copy the callee's ops before the call, and erase the call."""
    body = callee.regions[0].blocks[0]
    mapped: dict[ir.Value, ir.Value] = dict(zip(body.arguments, call.operands, strict=True))
    point = ir.InsertionPoint(call)
    for op in body.operations:
        operation = op.operation
        if operation.name == "func.return":
            returned = [mapped[value] for value in operation.operands]
            for result, value in zip(call.results, returned, strict=True):
                result.replace_all_uses_with(value)
            if CHECKPOINT_NAME in call.attributes and len(returned) == 1:
                name_value(returned[0], call.attributes[CHECKPOINT_NAME])
            break
        copy = operation.clone(ip=point).operation
        substitute(copy, mapped)
        located.place(copy, call.location)
        mapped.update(zip(operation.results, copy.results, strict=True))
    call.erase()


def substitute(op: ir.Operation, mapped: dict[ir.Value, ir.Value]) -> None:
    """Let an op, and all ops in it, read other values."""
    for number, value in enumerate(op.operands):
        if value in mapped:
            op.operands[number] = mapped[value]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                substitute(inner.operation, mapped)


def bytes_of(module: ir.Module) -> bytes:
    """The module as bytecode, locations included."""
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()


def replace_body(module: ir.Module, other: ir.Module) -> None:
    """Give ``module`` the ops and attributes of ``other``, which is of the same context."""
    for op in list(module.body.operations):
        op.operation.erase()
    for op in list(other.body.operations):
        module.body.append(op)
    for name in other.operation.attributes:
        module.operation.attributes[name] = other.operation.attributes[name]
