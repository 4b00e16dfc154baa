"""Sharding constraints of a program: how many it has, and the program without them.

before  %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {}]>
        return %1
after   return %0
"""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.ir.attributes import custom_call_target
from autoshard.ir.module import operations_to_plan


def constraints_of(module: mlir.Module) -> list[mlir.Operation]:
    """What ``jax.lax.with_sharding_constraint`` became, for Shardy or for GSPMD.

    Those in the body of a ``jax.shard_map`` are left out: they are of one device's part.
    """
    return [
        op
        for op in operations_to_plan(module.operation)
        if op.name == "sdy.sharding_constraint" or custom_call_target(op) == "Sharding"
    ]


def drop_constraints(module: mlir.Module) -> None:
    """Let every reader of a constraint read what is constrained."""
    for op in constraints_of(module):
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
