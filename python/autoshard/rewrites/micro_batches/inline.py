"""Calls become the ops that they call, so that each op of the program stands in one place."""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.ir.inline import inline_calls
from autoshard.ir.module import operations_of
from autoshard.ir.native import nested, run_native
from autoshard.rewrites.composites import expand_composites

_INLINE = nested(("builtin.module",), "inline", "default-pipeline=")
_UNUSED = nested(("builtin.module",), "symbol-dce")


def inline(module: mlir.Module) -> None:
    """Expand composites without a rule of their own, and all calls that say nothing else.

    MLIR's own pass does most; it leaves calls in loops, which are copied here.
    """
    expand_composites(operations_of(module.operation))
    for step in (_INLINE, _UNUSED):
        run_native(module, step, verify=False)
    inline_calls(module)
