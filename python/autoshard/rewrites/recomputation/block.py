"""The ops of ``main``, or of a loop's body, as numbers: who makes what, who reads it, where it is
stored and what it costs.

Positions are those of the ops in the block. Moments are the program points of the core
(passes/memory/program_memory.h).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property

from autoshard import _core
from autoshard._core import Place, Storage
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.work import MATRIX_OPS, is_elementwise
from autoshard.ir import mlir
from autoshard.ir.boundary import main_function
from autoshard.planned.given_plan import Costed
from autoshard.planned.host_traffic import host_link
from autoshard.planned.summarize import line_of, main_values
from autoshard.rewrites.numbering import has_effect
from autoshard.rewrites.recomputation.gaps import Gap, gaps_of
from autoshard.rewrites.recomputation.plan_costs import PlanCosts, reshards_sent

_HELD = frozenset(
    (
        "stablehlo.while",
        "stablehlo.case",
        "stablehlo.if",
        "stablehlo.optimization_barrier",
        "stablehlo.rng",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.send",
        "stablehlo.recv",
        "func.call",
        "sdy.manual_computation",
    )
)
"""Ops that are never computed again: loops for their cost, the others for their meaning."""


_LOOPS = frozenset(("stablehlo.while", "stablehlo.case", "stablehlo.if"))


@dataclass(slots=True)
class Value:
    """One SSA value of the block."""

    maker: int
    """Position of the op that makes it; -1 for arguments."""
    kind: Storage
    core: int
    """The core's value; -1 for scalars."""
    bytes: float
    """On one device."""
    end: int
    """Moment from which its memory is free."""
    readers: list[int] = field(default_factory=list[int])
    """Positions, in order, each once."""


def blocks_of(costed: Costed) -> list[mlir.Block]:
    """``main`` and the bodies of its loops, outer ones first."""
    found = [main_values(costed.imported).op.regions[0].blocks[0]]
    for block in found:
        loops = (op for op in block.operations if op.operation.name == "stablehlo.while")
        found.extend(loop.operation.regions[1].blocks[0] for loop in loops)
    return found


class Block:
    """The ops of one block of a planned module without calls."""

    def __init__(self, costed: Costed, number: int = 0, beside: Block | None = None) -> None:
        """Read a block of ``blocks_of(costed)``; 0 is main.

        Args:
            costed: The planned module.
            number: Which of its blocks.
            beside: Another block of the same ``costed``: what holds for all is not read again.
        """
        assert beside is None or beside.costed is costed
        self.costed = costed
        self.number = number
        self._beside = beside
        self.costs = costs = PlanCosts(costed) if beside is None else beside.costs
        self.main = main_values(costed.imported).op
        self.all = blocks_of(costed) if beside is None else beside.all
        """All blocks of the module, as ``blocks_of`` has them."""
        self.block = self.all[number]
        self.ops = [op.operation for op in self.block.operations]
        self.core_op = [costs.core_number(op) for op in self.ops]
        """Number of the op in the core; -1 for ops that it does not know, and for loops."""
        self.point = self._points(number > 0)
        """When the op at each position runs."""
        self.seconds = [costs.seconds_of_core(number) for number in self.core_op]
        """Seconds of all runs of the op at each position, with what operands and results send."""
        self.collective = {n for n, core in enumerate(self.core_op) if costs.sends_core(core)}
        """Positions of ops whose result is sent: sums over devices, mostly."""
        self.values: list[Value] = []
        self.ssa: list[mlir.Value] = []
        """Each of the values in the module."""
        self.number_of: dict[mlir.Value, int] = {}
        self.matmul_of: dict[int, int] = {}
        """Position of the matmul that a value is stored for, if that is not its maker."""
        self._signatures: dict[int, tuple[object, ...]] = {}
        self.operands: list[list[int]] = []
        """Values that the op at each position reads, those its regions read included."""
        self.results: list[list[int]] = []
        for argument in self.block.arguments:
            self._number(argument)
        self._read_ops()
        if costed.cluster.compiler.does("fusion.matmul_results"):
            self._store_behind_matmuls()

    def on(self, module: mlir.Module) -> Block:
        """The block of ``main`` in a copy of the module, to rewrite it there.

        ``costs``, ``costed`` and ``link`` stay those of the module that it was read from: they find
        no op of the copy.
        """
        assert self.number == 0
        other = copy(self)
        other.main = main_function(module)
        other.block = other.main.regions[0].blocks[0]
        other.ops = [op.operation for op in other.block.operations]
        made = (result for op in other.ops for result in op.results)
        other.ssa = [*other.block.arguments, *made]
        assert len(other.ssa) == len(self.ssa)
        other.number_of = {ssa: number for number, ssa in enumerate(other.ssa)}
        return other

    def _points(self, is_loop: bool) -> list[int]:
        """Ops that the core does not know run with the one before, a loop with its last op."""
        points, core_number = self.costs.points, self.costs.core_number
        known = [number for number in self.core_op if number >= 0]
        last = points[known[0]] if known and is_loop else 0
        found: list[int] = []
        for op, number in zip(self.ops, self.core_op, strict=True):
            if number >= 0:
                last = points[number]
            elif op.name in _LOOPS:
                inside = [core_number(inner) for inner in _inner(op)]
                last = max((points[one] for one in inside if one >= 0), default=last)
            found.append(last)
        return found

    def _store_behind_matmuls(self) -> None:
        """What is stored of a matmul is what the compiler computes of it before it is written.

        Its bias and the like, as far as nobody reads what is in between: a copy that read the bare
        product would have it stored as well.
        """
        for position, op in enumerate(self.ops):
            if op.name not in MATRIX_OPS or position in self.collective:
                continue
            value = self.values[self.results[position][0]]
            while value.kind is Storage.STORED and len(value.readers) == 1:
                (reader,) = value.readers
                name, results = self.ops[reader].name, self.results[reader]
                if not is_elementwise(name) and name != "stablehlo.reshape":
                    break
                behind = self.values[results[0]]
                if behind.kind is not Storage.FUSED or behind.bytes != value.bytes:
                    break
                value.kind, behind.kind = Storage.FUSED, Storage.STORED
                value.end, behind.end = behind.end, value.end
                self.matmul_of[results[0]] = position
                self.point[reader] = self.point[value.maker]
                value = behind

    def _read_ops(self) -> None:
        value_of, number_of, values = self.costed.imported.value_of, self.number_of, self.values
        returned = set(self.ops[-1].operands)
        for position, op in enumerate(self.ops):
            name, operands = op.name, [self._number(value) for value in op.operands]
            if len(op.regions):
                operands += [number_of[v] for v in _captured(op) if v in number_of]
            self.operands.append(operands)
            for number in dict.fromkeys(operands):
                values[number].readers.append(position)
            is_held = name in _HELD or has_effect(op)
            is_free = name in ("stablehlo.constant", "stablehlo.iota")
            results: list[int] = []
            for result in op.results:
                core, kind = value_of.get(result, NO_VALUE), Storage.KEPT
                if not (is_held or result in returned):
                    kind = self._storage(core, is_free)
                results.append(self._add(result, core, position, kind))
            self.results.append(results)

    def _storage(self, core: int, is_free: bool) -> Storage:
        """Where a value of the core is that may be computed again."""
        if is_free:
            return Storage.FREE
        if core == NO_VALUE:
            return Storage.KEPT
        if self.costed.imported.value_is_free[core]:
            return Storage.FREE
        return Storage.STORED if self.costs.is_stored(core) else Storage.FUSED

    def _number(self, ssa: mlir.Value) -> int:
        """Number of an operand; one that is made outside of the block is kept there."""
        number = self.number_of.get(ssa)
        if number is not None:
            return number
        core = self.costed.imported.value_of.get(ssa, NO_VALUE)
        return self._add(ssa, core, -1, Storage.KEPT)

    def _add(self, ssa: mlir.Value, core: int, maker: int, kind: Storage) -> int:
        end = 0 if core == NO_VALUE else self.costs.live_ranges[core][1]
        self.values.append(Value(maker, kind, core, self.costs.bytes_of(core), end))
        self.ssa.append(ssa)
        self.number_of[ssa] = number = len(self.values) - 1
        return number

    @cached_property
    def link(self) -> _core.HostLink:
        """The link to the host with what the program itself moves."""
        if self._beside is not None:
            return self._beside.link
        costed = self.costed
        return host_link(costed.imported, costed.plan, costed.mesh, costed.cluster)

    @cached_property
    def trips(self) -> list[float]:
        """How often the op at each position runs in a step."""
        return [self.costs.trips_of_core(number) for number in self.core_op]

    @cached_property
    def live_bytes(self) -> Sequence[float]:
        """On one device at each point."""
        return self.costed.plan.live_bytes

    @cached_property
    def core_at(self) -> list[int]:
        """Number in the core of the first op that runs at each position, or behind it.

        That of a loop is its first op; one more for the end.
        """
        after = len(self.costed.imported.core_ops)
        if self.number:
            last = max((n for n in self.core_op if n >= 0), default=after - 1)
            inside = (self.inner_ops(op) for op in self.ops if op.name in _LOOPS)
            after = max([last, *(numbers[-1] for numbers in inside if numbers)]) + 1
        found = [after]
        for op, number in zip(reversed(self.ops), reversed(self.core_op), strict=True):
            if number < 0 and op.name in _LOOPS:
                number = next(iter(self.inner_ops(op)), -1)
            found.append(number if number >= 0 else found[-1])
        return found[::-1]

    def inner_ops(self, op: mlir.Operation) -> list[int]:
        """Numbers in the core of the ops in the regions of ``op``, in order."""
        numbers = (self.costs.core_number(inner) for inner in _inner(op))
        return sorted(number for number in numbers if number >= 0)

    @cached_property
    def made_of_arguments(self) -> frozenset[int]:
        """Values that depend on parameters alone: arguments that a result replaces."""
        found = {self.number_of[self.block.arguments[n]] for n in self._parameters(self.block)}
        for position, results in enumerate(self.results):
            operands = [v for v in self.operands[position] if not self._is_index(v)]
            if operands and all(v in found for v in operands):
                found.update(results)
        return frozenset(found)

    def _parameters(self, block: mlir.Block) -> list[int]:
        """Arguments of a block that are parameters; of a loop those that it does not change."""
        owner = block.owner.operation
        if owner.name != "stablehlo.while":
            return list(self.costed.imported.state)
        outside = owner.block
        known = {outside.arguments[number] for number in self._parameters(outside)}
        end = block.operations[len(block.operations) - 1].operation
        return [
            number
            for number, (init, argument, yielded) in enumerate(
                zip(owner.operands, block.arguments, end.operands, strict=True)
            )
            if init in known and yielded == argument
        ]

    def _is_index(self, number: int) -> bool:
        """Is a value made of constants, or the number of a trip that says which layer is taken?"""
        type_ = self.ssa[number].type
        is_scalar = isinstance(type_, mlir.RankedTensorType) and type_.rank == 0
        return self.values[number].kind is Storage.FREE or (
            is_scalar and isinstance(mlir.RankedTensorType(type_).element_type, mlir.IntegerType)
        )

    @cached_property
    def gathers(self) -> frozenset[int]:
        """Positions of ops for which something made of parameters alone is sent."""
        plan = self.costed.plan
        table = plan.reshards
        places, indices, positions = table.place, table.index, table.position
        sent = {
            (indices[row], positions[row])
            for row in reshards_sent(plan)
            if places[row] is Place.OPERAND
        }
        position_of = {number: at for at, number in enumerate(self.core_op) if number >= 0}
        return frozenset(
            position
            for number, place in sent
            if (position := position_of.get(number)) is not None
            and place < len(self.operands[position])
            and self.operands[position][place] in self.made_of_arguments
        )

    @cached_property
    def gathered(self) -> frozenset[int]:
        """Values made of parameters alone, for which something was sent in this block."""
        found: set[int] = set()
        for position, results in enumerate(self.results):
            is_sent = position in self.collective or position in self.gathers
            if is_sent or any(v in found for v in self.operands[position]):
                found.update(v for v in results if v in self.made_of_arguments)
        return frozenset(found)

    @cached_property
    def demanders(self) -> list[list[int]]:
        """For each value the ops that read it from memory: its readers, and what reads fused ones.

        Positions in order.
        """
        found: list[list[int]] = [[] for _ in self.values]
        for number in range(len(self.values) - 1, -1, -1):
            value = self.values[number]
            positions = set(value.readers)
            for reader in value.readers:
                for result in self.results[reader]:
                    if self.values[result].kind is Storage.FUSED:
                        positions.update(found[result])
            found[number] = sorted(positions)
        return found

    @cached_property
    def stops(self) -> list[list[int]]:
        """For each value the ops at whose point it is read: demanders that are not fused."""
        fused = {
            position
            for position, results in enumerate(self.results)
            if results and all(self.values[v].kind is Storage.FUSED for v in results)
        }
        return [[p for p in positions if p not in fused] for positions in self.demanders]

    @cached_property
    def ready(self) -> list[int]:
        """For each op the point at which the last value from memory that it needs is there."""
        found: list[int] = []
        for operands in self.operands:
            ready = 0
            for number in operands:
                value = self.values[number]
                if value.maker < 0 or value.kind is Storage.FREE:
                    continue
                is_fused = value.kind is Storage.FUSED
                at = found[value.maker] if is_fused else self.point[value.maker]
                ready = max(ready, at)
            found.append(ready)
        return found

    def signature(self, number: int) -> tuple[object, ...]:
        """The same for equal values of equal layers: the op, its line and plan, what it reads."""
        if number not in self._signatures:
            self._signatures[number] = self._signature(number)
        return self._signatures[number]

    def _signature(self, number: int) -> tuple[object, ...]:
        value = self.values[number]
        op, core_op = self.ops[value.maker], self.core_op[value.maker]
        operands = self.operands[value.maker]
        return (
            op.name,
            str(self.ssa[number].type),
            line_of(op),
            self.costs.value_sharding[value.core],
            self.costs.op_strategy[core_op] if core_op >= 0 else -1,
            tuple((str(self.ssa[v].type), self.values[v].maker < 0) for v in operands),
        )

    @cached_property
    def gaps(self) -> list[Gap]:
        """Values that may go while they only wait, in the order of the program."""
        return gaps_of(self)

    @cached_property
    def core(self) -> _core.RecomputedBlock:
        """What the core is asked which ops run again with."""
        made = _core.RecomputedBlock(len(self.live_bytes))
        for number, value in enumerate(self.values):
            made.add_value(
                value.maker,
                value.kind,
                value.bytes,
                value.end,
                self.demanders[number],
                is_counted=value.core != NO_VALUE,
                is_parameter=number in self.made_of_arguments,
            )
        for position in range(len(self.ops)):
            made.add_op(
                self.operands[position],
                self.results[position],
                self.point[position],
                self.ready[position],
                self.seconds[position],
                sends=position in self.collective,
                gathers=position in self.gathers,
            )
        return made


def erase_unread_at(block: Block, positions: Iterable[int]) -> None:
    """Erase ops that nobody reads any more, as originals whose copies replace them.

    Args:
        block: As it was read.
        positions: Ops that may be read by nobody now; what they read is looked at, too.
    """
    waiting = sorted(set(positions))
    last = len(block.ops)
    while waiting:
        position = waiting.pop()
        if position == last:  # two ops read it
            continue
        last = position
        if not _erase_unread(block.ops[position]):
            continue
        for number in block.operands[position]:
            if block.values[number].maker >= 0:
                insort(waiting, block.values[number].maker)


def erase_unread(block: mlir.Block) -> None:
    """Erase all ops of a block that nobody reads, and those that only they read."""
    for op in reversed([op.operation for op in block.operations][:-1]):
        _erase_unread(op)


def _erase_unread(op: mlir.Operation) -> bool:
    """Erase an op if nobody reads it, and it does nothing else; is it gone?"""
    if any(next(iter(result.uses), None) is not None for result in op.results):
        return False
    name = op.name
    if name in _HELD or name == "stablehlo.custom_call" or not name.startswith("stablehlo."):
        return False
    if has_effect(op):
        return False
    op.erase()
    return True


def _inner(op: mlir.Operation) -> list[mlir.Operation]:
    """The ops in the regions of ``op``, at any depth."""
    found: list[mlir.Operation] = []

    def visit(inner: mlir.Operation) -> mlir.WalkResult:
        found.append(inner)
        return mlir.WalkResult.ADVANCE

    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                inner.operation.walk(visit)
    return found


def _captured(op: mlir.Operation) -> list[mlir.Value]:
    """Values that ops in the regions of ``op`` read."""
    if not len(op.regions):
        return []
    return [operand for inner in _inner(op) for operand in inner.operands]
