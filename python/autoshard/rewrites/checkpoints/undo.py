"""Undo all that ``jax.checkpoint`` left in a module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.ir import mlir, parse_bytes
from autoshard.ir.inline import bytes_of, inline_calls, replace_body
from autoshard.ir.module import functions_of
from autoshard.rewrites.checkpoints.host import keep_on_device
from autoshard.rewrites.checkpoints.scans import undo_in_scans
from autoshard.rewrites.checkpoints.still import say_still_computed
from autoshard.rewrites.checkpoints.straight import inner_blocks, join


@dataclass(frozen=True, slots=True)
class Undone:
    """What was undone."""

    joined: int
    """Ops that were computed twice."""
    read: int
    """Values that a loop reads now in place of computing them."""
    moved: int
    """Moves between the memories of host and device."""


def undo_checkpoints(module: mlir.Module) -> Undone:
    """Compute everything once, and keep it on the device; what cannot be undone is warned of.

    A module in which nothing is to be undone stays as it is.
    """
    with module.context, mlir.Location.unknown():
        copy = parse_bytes(bytes_of(module), module.context, "checkpoints")
        inline_calls(copy)
        moved = keep_on_device(copy)
        joined = read = 0
        main = functions_of(copy)["main"].regions[0].blocks[0]
        for block in _blocks(main):
            joined += join(block)
            read += undo_in_scans(block)
        say_still_computed(main)
        if moved or joined or read:
            replace_body(module, copy)
    return Undone(joined, read, moved)


def _blocks(block: mlir.Block) -> Iterator[mlir.Block]:
    """A block behind those of its loops and branches, as they are when it is their turn."""
    for op in [op.operation for op in block.operations]:
        for inner in inner_blocks(op):
            yield from _blocks(inner)
    yield block
