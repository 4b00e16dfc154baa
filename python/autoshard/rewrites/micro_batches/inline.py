"""Calls become the ops that they call, so that each op of the program stands in one place."""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.ir.inline import inline_calls
from autoshard.ir.module import operations_of
from autoshard.rewrites.composites import expand_composites


def inline(module: mlir.Module) -> None:
    """Expand composites without a rule of their own, and all calls that say nothing else."""
    expand_composites(operations_of(module.operation))
    inline_calls(module, names_callers=True)
