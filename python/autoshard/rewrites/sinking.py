"""Make values no earlier than they are read.

before  %a = convert %w
        .. 100 ops ..
        %b = dot_general %x, %a
after   .. 100 ops ..
        %a = convert %w
        %b = dot_general %x, %a
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir import mlir


def sink(ops: Sequence[mlir.Operation]) -> None:
    """Move ops of one block, in their order, to their first readers."""
    for op in reversed(ops):
        first: mlir.Operation | None = None
        for result in op.results:
            for use in result.uses:
                reader = ancestor_in(op.block, use.owner.operation)
                if first is None or reader.is_before_in_block(first):
                    first = reader
        if first is not None:
            op.move_before(first)


def ancestor_in(block: mlir.Block, op: mlir.Operation) -> mlir.Operation:
    """The op of ``block`` that ``op`` is, or in which it stands."""
    while op.block != block:
        parent = op.parent
        assert parent is not None, "an op inside of the block"
        op = parent.operation
    return op
