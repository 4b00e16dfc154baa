"""When gradients are made in a backward pass that computes layers again: at most a layer late.

    before  %b:2 = optimization_barrier %x2, %dy2  ..  %g2 = dot_general ..
            %c:2 = optimization_barrier %x1, %dy1  ..  %g1 = dot_general ..
            %d:2 = optimization_barrier %x0, %dy0  ..  update %g2  update %g1
    after   %d:3 = optimization_barrier %x0, %dy0, %g2  ..  update %d#2  update %g1

Only updates read the gradient of a parameter, so a compiler may make it when it likes. Some make it
beside collectives that it hides, layers later, and all that is recomputed for it waits: with data
parallelism that of every layer (``schedule.late_gradients`` in docs/design/compilers.md).
``jax.checkpoint`` has a barrier where a layer begins to be computed again, which is kept until the
program is scheduled. The layer after the next begins when the gradients are there; those of the
next still hide what is gathered for it. For other compilers the program stays as it is: peaks fall
there as well or rise, and steps take up to 9% longer (docs/design/memory.md).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

from autoshard.cluster import Cluster
from autoshard.ir import mlir
from autoshard.ir.boundary import main_function
from autoshard.ir.host_memory import PINNED_HOST, moved_to
from autoshard.ir.module import operations_of
from autoshard.rewrites.offload_order import movable_of

BARRIER = "stablehlo.optimization_barrier"
MATMULS = ("stablehlo.dot_general", "stablehlo.convolution")
SUM = "stablehlo.reduce"

_Op = TypeVar("_Op")

_CONSTANTS = ("stablehlo.constant", "stablehlo.broadcast_in_dim", "stablehlo.iota")

BARRIERS_LATE = 1
"""How many barriers may come before a gradient. With none it hides no gather of the next layer."""


def bound_gradients(
    module: mlir.Module, cluster: Cluster, operations: Sequence[mlir.Operation]
) -> Sequence[mlir.Operation]:
    """Let barriers of recomputed layers wait for gradients. Expects the module's context.

    Args:
        module: Changed in place if the cluster's compiler makes gradients late.
        cluster: What it is planned for.
        operations: All there are, as ``operations_of`` gives them.

    Returns:
        All there are then.
    """
    if not cluster.compiler.does("schedule.late_gradients"):
        return operations
    if not any(op.name == BARRIER for op in operations):
        return operations
    block = main_function(module).regions[0].blocks[0]
    ops = [op.operation for op in block.operations]
    # What is said of a barrier's results is said of all of them.
    barriers = [n for n, op in enumerate(ops) if op.name == BARRIER and _is_of_layer(op)]
    if not barriers:  # those of a step in micro-batches are in its loop
        return operations
    order = {op: number for number, op in enumerate(ops)}
    updates = of_updates(ops, movable_of(module))
    is_gradient = is_gradient_of(updates)
    waiting: dict[int, list[tuple[mlir.Operation, list[mlir.Operation]]]] = {}
    for number, op in enumerate(ops):
        if op.name != SUM and op.name not in MATMULS:
            continue
        following = barriers[bisect(barriers, number) :][: BARRIERS_LATE + 1]
        if not following:
            break
        if is_gradient(op):
            before = _readers_before(number, ops, order, following[-1])
            waiting.setdefault(following[-1], []).append((op, before))
    # Last, because the hash of an op changes with its operands.
    for number, gradients in waiting.items():
        # What is computed from another one of them goes behind the barrier with it.
        behind = {reader for _, readers in gradients for reader in readers}
        _wait(ops[number], [each for each in gradients if each[0] not in behind])
    return operations_of(module.operation)


def is_gradient_of(updates: AbstractSet[mlir.Operation]) -> Callable[[mlir.Operation], bool]:
    """Whether a matmul or a sum makes a gradient for which something waits that others made."""

    def is_read_by_others(value: mlir.Value) -> bool:
        return any(use.owner.operation not in updates for use in value.uses)

    def made_of(op: mlir.Operation) -> Iterator[tuple[mlir.Operation, bool]]:
        for value in op.operands:
            maker = value.owner
            if not isinstance(maker, mlir.Block) and maker.name not in _CONSTANTS:
                yield maker.operation, is_read_by_others(value)

    def is_part(op: mlir.Operation) -> bool:
        return op in updates and op.name != SUM

    def is_gradient(op: mlir.Operation) -> bool:
        if not all(reader in updates for reader in _readers(op)):
            return False
        return op.name != SUM or (has_dims(op) and sums_activations(op, made_of, is_part))

    return is_gradient


def sums_activations(
    op: _Op, made_of: Callable[[_Op], Iterable[tuple[_Op, bool]]], is_part: Callable[[_Op], bool]
) -> bool:
    """Is a sum made of what others than updates read as well?

    Those of the gradient of an activation are the gradients of a bias, or of the scale of a norm.
    Sums of gradients, as for their norm, are parts of updates.

    Args:
        op: The sum.
        made_of: The makers of the operands of an op that are no constants and no arguments, with
            whether others than updates read what they make.
        is_part: Is an op a part of an update, and no sum?
    """
    seen, waiting = {op}, [op]
    while waiting:
        for maker, is_read_by_others in made_of(waiting.pop()):
            if is_read_by_others:
                return True
            if is_part(maker) and maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return False


def has_dims(op: mlir.Operation) -> bool:
    """Is its result no single number, as a loss is?"""
    return mlir.RankedTensorType(op.results[0].type).rank > 0


def _is_of_layer(barrier: mlir.Operation) -> bool:
    """May a layer be computed again behind a barrier?

    Not if it waits until something has gone to the host: updates do, which read gradients.
    """
    makers = (value.owner for value in barrier.operands)
    return not len(barrier.attributes) and not any(
        not isinstance(maker, mlir.Block) and moved_to(maker.operation) == PINNED_HOST
        for maker in makers
    )


def _readers(op: mlir.Operation) -> Iterator[mlir.Operation]:
    return (use.owner.operation for result in op.results for use in result.uses)


def of_updates(
    ops: Sequence[mlir.Operation], may_move: Callable[[mlir.Operation], bool]
) -> set[mlir.Operation]:
    """Ops of a block of which no matmul, loop or the like reads anything, and the block's end."""
    found = {ops[-1]}
    for op in reversed(ops[:-1]):
        if may_move(op) and all(reader in found for reader in _readers(op)):
            found.add(op)
    return found


def _readers_before(
    number: int, ops: Sequence[mlir.Operation], order: Mapping[mlir.Operation, int], end: int
) -> list[mlir.Operation]:
    """All that is computed from the results of an op and stands before another, in order."""
    found, waiting = set[int](), [number]
    while waiting:
        for reader in _readers(ops[waiting.pop()]):
            at = order[reader]
            if at < end and at not in found:
                found.add(at)
                waiting.append(at)
    return [ops[at] for at in sorted(found)]


def _wait(
    barrier: mlir.Operation, gradients: list[tuple[mlir.Operation, list[mlir.Operation]]]
) -> None:
    """Let a barrier pass gradients on, to readers that come behind it."""
    values = [*barrier.operands, *(op.results[0] for op, _ in gradients)]
    wider = mlir.Operation.create(
        BARRIER,
        results=[value.type for value in values],
        operands=values,
        loc=barrier.location,
        ip=mlir.InsertionPoint(barrier),
    )
    passed_on = list(wider.results)
    for old in barrier.results:
        old.replace_all_uses_with(passed_on.pop(0))
    last = wider
    for (op, readers), value in zip(gradients, passed_on, strict=True):
        op.results[0].replace_all_uses_except(value, wider)
        for reader in readers:
            reader.move_after(last)
            last = reader
    barrier.erase()
