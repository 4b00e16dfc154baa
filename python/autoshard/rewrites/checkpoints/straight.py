"""Join ops that one block computes twice, on both sides of a barrier.

before  %h = stablehlo.tanh %a
        %b:2 = stablehlo.optimization_barrier %a, %dy
        %h2 = stablehlo.tanh %b#0
        %g = stablehlo.multiply %b#1, %h2
after   %h = stablehlo.tanh %a
        %g = stablehlo.multiply %dy, %h

MLIR's own pass for equal ops joins none of these: it looks through no barrier, takes kernels for
calls with effects, and leaves loops alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir import mlir
from autoshard.rewrites.numbering import Numbering

BARRIER = "stablehlo.optimization_barrier"

Barriers = frozenset[mlir.Operation]


def join(block: mlir.Block) -> int:
    """Join ops behind barriers with equal ones before; those barriers are gone.

    Barriers behind which nothing is computed again stay: they are the user's.

    Returns:
        How many ops were joined.
    """
    numbers = Numbering(joins_loops=True)
    behind: dict[mlir.Value, Barriers] = {}
    twice: list[mlir.Operation] = []
    needless: set[mlir.Operation] = set()
    for op in [op.operation for op in block.operations]:
        numbers.read(op)
        if op.name == BARRIER:
            for result, operand in zip(op.results, op.operands, strict=True):
                behind[result] = behind.get(operand, Barriers()) | {op}
            continue
        passed = Barriers().union(*(behind.get(value, ()) for value in read_by(op)))
        if not passed:
            continue
        behind.update((result, passed) for result in op.results)
        if len(op.results) and all(numbers.twin(result) for result in op.results):
            twice.append(op)
            needless |= passed
    for op in reversed(twice):
        for result in op.results:
            twin = numbers.twin(result)
            assert twin is not None
            result.replace_all_uses_with(twin)
        op.erase()
    for barrier in needless:
        drop_barrier(barrier)
    return len(twice)


def drop_barrier(barrier: mlir.Operation) -> None:
    """Let readers take what the barrier takes."""
    for result, operand in zip(barrier.results, barrier.operands, strict=True):
        result.replace_all_uses_with(operand)
    barrier.erase()


def read_by(op: mlir.Operation) -> list[mlir.Value]:
    """What an op reads, in its regions, too."""
    if not len(op.regions):
        return list(op.operands)
    found: list[mlir.Value] = []

    def visit(inner: mlir.Operation) -> mlir.WalkResult:
        found.extend(inner.operands)
        return mlir.WalkResult.ADVANCE

    op.walk(visit)
    return found


def inner_blocks(op: mlir.Operation) -> Sequence[mlir.Block]:
    """Blocks of loops and branches, in which programs stand of their own."""
    if op.name not in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
        return ()
    return [block for region in op.regions for block in region.blocks]
