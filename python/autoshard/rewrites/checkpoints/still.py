"""What the backward half computes again although ``jax.checkpoint`` was undone, to be said."""

from __future__ import annotations

from collections import Counter

from autoshard.importer.work import MATRIX_OPS
from autoshard.ir import mlir, place
from autoshard.ir.diagnostics import warn
from autoshard.ir.locations import op_name
from autoshard.rewrites.checkpoints.straight import inner_blocks

_AGAIN = "rematted_computation"
"""In JAX's name of an op that a checkpoint computes again."""

_LOOPS = frozenset(("stablehlo.while", "stablehlo.case", "stablehlo.if"))
_WORK = MATRIX_OPS | frozenset(
    f"stablehlo.{name}" for name in ("custom_call", "composite", "sort", "fft", "cholesky")
)
"""Ops that take time wherever they stand. Derivatives are computed there, too, by other ops."""


def say_still_computed(block: mlir.Block) -> int:
    """Warn of every line of the user that is still computed again; how many there are."""
    found: Counter[tuple[str | None, bool]] = Counter()
    locations: dict[tuple[str | None, bool], mlir.Location] = {}
    for op in _still(block):
        key = (place(op.location), op.name in _LOOPS)
        found[key] += 1
        locations.setdefault(key, op.location)
    for key, count in found.items():
        what = "a loop" if key[1] else "an op" if count == 1 else f"{count} ops"
        why = (
            "it stacks more than the loop of the forward half"
            if key[1]
            else "nothing in the forward half is known to be the same, or it stands in another loop"
        )
        warn(
            f"policy='replace': {what} of this jax.checkpoint stays computed again in the backward"
            f" half: {why}. Take jax.checkpoint off this function, or its loop out of it.",
            locations[key],
        )
    return len(found)


def _still(block: mlir.Block) -> list[mlir.Operation]:
    found: list[mlir.Operation] = []
    for op in [op.operation for op in block.operations]:
        if _AGAIN in op_name(op.location) and (op.name in _WORK or op.name in _LOOPS):
            found.append(op)
            continue
        for inner in inner_blocks(op):
            found += _still(inner)
    return found
