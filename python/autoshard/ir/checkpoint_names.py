"""Names that ``jax.ad_checkpoint.checkpoint_name`` gives values, kept in a lowered module.

JAX lowers the name to nothing. Here it stands on the op that makes the value; arguments of
functions and of loops have none.
"""

from __future__ import annotations

from typing import Any

from jax._src import ad_checkpoint, core
from jaxlib.mlir import ir

from autoshard.ir.attributes import CHECKPOINT_NAME, custom_call_target
from autoshard.ir.module import operations_of


def _named(ctx: Any, value: Any, *, name: str) -> list[Any]:
    """An identity that carries the name, until all is lowered."""
    del ctx
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={
            "call_target_name": ir.StringAttr.get(CHECKPOINT_NAME),
            CHECKPOINT_NAME: ir.StringAttr.get(name),
        },
    )
    return [call.results[0]]


NAMES: tuple[tuple[core.Primitive, Any], ...] = ((ad_checkpoint.name_p, _named),)
"""How names are lowered, in place of JAX's own rule; ``settle_names`` has to follow."""


def settle_names(module: ir.Module) -> None:
    """Put names that were just lowered on the ops that make what they name."""
    with module.context:
        for op in operations_of(module.operation):
            if custom_call_target(op) == CHECKPOINT_NAME:
                value = op.operands[0]
                name_value(value, op.attributes[CHECKPOINT_NAME])
                op.results[0].replace_all_uses_with(value)
                op.erase()


def name_value(value: ir.Value, name: ir.Attribute) -> None:
    """Give a value a name, unless it is an argument."""
    if not isinstance(value.owner, ir.Block):
        value.owner.operation.attributes[CHECKPOINT_NAME] = name


def checkpoint_name(value: ir.Value) -> str | None:
    """The name of a value; None if it has none, or was lowered by JAX alone."""
    owner = value.owner
    if isinstance(owner, ir.Block) or CHECKPOINT_NAME not in owner.operation.attributes:
        return None
    return ir.StringAttr(owner.operation.attributes[CHECKPOINT_NAME]).value


def checkpoint_names(module: ir.Module) -> set[str]:
    """All names in a module."""
    attributes = (op.attributes for op in operations_of(module.operation))
    return {
        ir.StringAttr(each[CHECKPOINT_NAME]).value for each in attributes if CHECKPOINT_NAME in each
    }
