"""Write moves of planned values to the memory of the host and back."""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, STRATEGY
from autoshard.ir.host_memory import move
from autoshard.sharding import Sharding, format_sharding, to_v2


def write_move(
    value: mlir.Value, kind: str, sharding: Sharding, point: mlir.InsertionPoint
) -> mlir.Value:
    """``value`` in a memory, cut as it is.

    Args:
        value: Of a planned module, or made of one by other moves.
        kind: ``PINNED_HOST`` or ``DEVICE``.
        sharding: Of the value.
        point: Where the move is written.
    """
    made = move(value, kind, point, value.location)
    text = format_sharding(sharding)
    made.attributes[MHLO_SHARDING] = mlir.StringAttr.get(to_v2(sharding))
    made.attributes[STRATEGY] = mlir.StringAttr.get(f"{text} -> {text}")
    return made.results[0]
