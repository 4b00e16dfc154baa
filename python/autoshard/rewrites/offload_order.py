"""The order of an update that reads the host's memory: one parameter after the other.

    before  m0 = move(..)  m1 = move(..)  n0 = b * m0 + g0  n1 = b * m1 + g1  p0 - n0  p1 - n1
    after   m0 = move(..)  n0 = b * m0 + g0  p0 - n0        m1 = move(..)  n1 = ..  p1 - n1

Optimizers work on one tree after the other, so that all momenta would be on the device before the
first parameter is updated. Each parameter is updated as soon as its gradient is there, and what
comes from the host for one waits until what the one before sends there has arrived.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator

from autoshard.importer.work import is_elementwise
from autoshard.ir import mlir
from autoshard.ir.host_memory import DEVICE, PINNED_HOST, moved_to
from autoshard.ir.module import functions_of

_MOVABLE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("broadcast_in_dim", "constant", "iota", "reduce", "reshape", "slice", "transpose"),
        *("concatenate", "pad", "dynamic_slice", "return"),
    )
) | {"func.return", "sdy.sharding_constraint"}
"""Besides what works element by element."""


def bring_together(module: mlir.Module, block: mlir.Block) -> None:
    """Put what depends on a value that comes from the host right behind what else it reads.

    Leaves what a matmul, a loop or the like reads where it is: that is the model, not its update.
    """
    end = block.operations[len(block.operations) - 1].operation
    functions = functions_of(module)
    order = {op.operation: number for number, op in enumerate(block.operations)}
    moved: set[mlir.Operation] = set()
    is_movable: dict[str, bool] = {}
    for op in order:
        if moved_to(op) == DEVICE and isinstance(op.operands[0], mlir.BlockArgument):
            found = _readers(op, end)
            if all(_may_move(reader, functions, is_movable) for reader in found):
                moved |= found
    if not moved:
        return
    light = {op for op in order if op not in moved and _is_light(op, functions, is_movable)}
    stay = [op for op in order if op not in moved and op not in light]
    numbers = [order[op] for op in stay]
    ready_at: dict[mlir.Operation, int] = {}
    for op, number in order.items():
        makers = [maker for value in op.operands if (maker := _maker(value))]
        follows = op in moved or op in light
        ready_at[op] = max((ready_at[one] for one in makers), default=-1) if follows else number
    # Parameters before states: what makes a parameter needs all of its states.
    ends = [maker for value in end.operands if (maker := _maker(value))]
    updates = [op for op in ends if op in moved and moved_to(op) != PINNED_HOST]
    updates.sort(key=ready_at.__getitem__)
    places = [stay[bisect(numbers, ready_at[op])] for op in updates]
    rest = sorted(moved, key=order.__getitem__)
    done: set[mlir.Operation] = set()
    before: list[mlir.Operation] = []
    waits: list[tuple[mlir.Operation, list[mlir.Operation]]] = []
    for op, place in (*zip(updates, places, strict=True), *((op, end) for op in rest)):

        def comes_along(one: mlir.Operation, behind: int = order[place]) -> bool:
            return one in moved or (one in light and order[one] > behind)

        last, before = before, []
        for ready in _with_sources(op, comes_along, done):
            ready.move_before(place)
            if last and moved_to(ready) == DEVICE:
                waits.append((ready, last))
            for store in _stores(ready):
                if store in moved and store not in done:
                    done.add(store)
                    store.move_before(place)
                    before.append(store)
        before = before or last
    # Last, because the hash of an op changes with its operands.
    for load, stores in waits:
        _wait(load, stores)


def _wait(load: mlir.Operation, stores: list[mlir.Operation]) -> None:
    """Let a value come from the host only after others have gone there.

    All states of the parameter before: one that nothing waits for stays on the device until the
    end of the step. Without any order XLA starts all copies at once, as early as it can: with 8
    states of 64 MiB a compiler takes 833 MiB for temporaries, and 321 MiB
    like this (docs/use/host.md).
    """
    values = [load.operands[0], *(store.results[0] for store in stores)]
    barrier = mlir.Operation.create(
        "stablehlo.optimization_barrier",
        results=[value.type for value in values],
        operands=values,
        loc=load.location,
        ip=mlir.InsertionPoint(load),
    )
    load.operands[0] = barrier.results[0]


def _stores(op: mlir.Operation) -> list[mlir.Operation]:
    """The moves of an op's results to the host."""
    readers = [use.owner.operation for result in op.results for use in result.uses]
    return [reader for reader in readers if moved_to(reader) == PINNED_HOST]


def _with_sources(
    op: mlir.Operation,
    comes_along: Callable[[mlir.Operation], bool],
    done: set[mlir.Operation],
) -> Iterator[mlir.Operation]:
    """What ``op`` needs of what comes along, sources first, and it itself; nothing twice."""
    waiting = [op]
    while waiting:
        current = waiting[-1]
        if current in done:
            waiting.pop()
            continue
        sources = [maker for value in current.operands if (maker := _maker(value))]
        missing = [one for one in sources if one not in done and comes_along(one)]
        if missing:
            waiting += reversed(missing)
            continue
        waiting.pop()
        done.add(current)
        yield current


def _readers(op: mlir.Operation, end: mlir.Operation) -> set[mlir.Operation]:
    """The op and all that depends on it, but the end of the block."""
    found, waiting = {op}, [op]
    while waiting:
        for result in waiting.pop().results:
            for use in result.uses:
                reader = use.owner.operation
                if reader != end and reader not in found:
                    found.add(reader)
                    waiting.append(reader)
    return found


def _may_move(
    op: mlir.Operation, functions: dict[str, mlir.Operation], known: dict[str, bool]
) -> bool:
    name = op.name
    if name == "func.call":
        callee = mlir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if callee not in known:
            body = functions[callee].regions[0].blocks[0].operations
            known[callee] = all(_may_move(each.operation, functions, known) for each in body)
        return known[callee]
    return name in _MOVABLE or is_elementwise(name) or moved_to(op) is not None


def _is_light(
    op: mlir.Operation, functions: dict[str, mlir.Operation], known: dict[str, bool]
) -> bool:
    """It is put where it is needed, as what an optimizer makes of gradients alone."""
    is_end = op.name in ("func.return", "stablehlo.return")
    return not is_end and moved_to(op) is None and _may_move(op, functions, known)


def movable_of(module: mlir.Module) -> Callable[[mlir.Operation], bool]:
    """Whether an op of the module may run wherever its operands are there: no matmul, loop, ..."""
    functions = functions_of(module)
    known: dict[str, bool] = {}
    return lambda op: _may_move(op, functions, known)


def _maker(value: mlir.Value) -> mlir.Operation | None:
    """The op that makes a value; None for an argument."""
    owner = value.owner
    return None if isinstance(owner, mlir.Block) else owner.operation
