"""The ops of ``main``, or of a loop's body, as numbers: who makes what, who reads it, where it is
stored and what it costs.

Positions are those of the ops in the block (passes/recomputation/block.h).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property

from autoshard import _core
from autoshard.ir import mlir
from autoshard.ir.module import operations_of
from autoshard.planned.given_plan import Costed
from autoshard.planned.host_traffic import host_link
from autoshard.planned.summarize import line_of, main_values
from autoshard.rewrites.numbering import has_effect
from autoshard.rewrites.recomputation.plan_costs import HELD, PlanCosts, is_index

_LEAST_LOOKED_AT = 0.005
"""Share of the peak: of fewer bytes equal values are not looked at for the kernels of copies."""

_LEAST_ROUNDS, _MOST_ROUNDS = 2, 8
"""How often kernels are found again for that, with another one of equal values each time."""

_OPS_LOOKED_AT = 20_000
"""More often than least in smaller programs: so many ops."""


def blocks_of(costed: Costed) -> list[mlir.Block]:
    """``main`` and the bodies of its loops, outer ones first."""
    found = [main_values(costed.imported).op.regions[0].blocks[0]]
    for block in found:
        loops = (op for op in block.operations if op.operation.name == "stablehlo.while")
        found.extend(loop.operation.regions[1].blocks[0] for loop in loops)
    return found


class Block:
    """The ops of one block of a planned module without calls, and its values by numbers."""

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
        self.costs = PlanCosts(costed) if beside is None else beside.costs
        owner, region = self.costs.blocks.blocks[number]
        operations = costed.imported.operations
        self.block = operations[owner].regions[region].blocks[0]
        arguments = list(self.block.arguments)
        self.core = self.costs.blocks.block(
            number, [at for at, value in enumerate(arguments) if is_index(value)]
        )
        """What makes and reads each value, where it is stored, and what ops cost."""
        self.ops = [operations[op] for op in self.core.ops_in_module]
        self._given = dict(enumerate(arguments)) | {
            number: self._first_read(number) for number in self.core.captured
        }
        """Values that no op of the block makes."""
        self._signatures: dict[int, tuple[object, ...]] = {}
        self._texts: dict[int, tuple[str, ...]] = {}
        self._lines: dict[mlir.Location, str | None] = {}
        self._besides: dict[tuple[bool, bool], Mapping[int, float]] = {}
        self._once: dict[str, Sequence[int]] = {}

    def on(self, module: mlir.Module) -> Block:
        """The block in a copy of the module, to rewrite it there.

        ``costs``, ``costed`` and ``link`` stay those of the module that it was read from: they find
        no op of the copy.
        """
        other = copy(self)
        owner, region = self.costs.blocks.blocks[self.number]
        operations = operations_of(module.operation)
        assert len(operations) == len(self.costed.imported.operations)
        other.block = operations[owner].regions[region].blocks[0]
        other.ops = [operations[op] for op in self.core.ops_in_module]
        other._given = dict(enumerate(other.block.arguments))
        other._given |= {number: other._first_read(number) for number in self.core.captured}
        return other

    def once(self, name: str, find: Callable[[], Sequence[int]]) -> Sequence[int]:
        """What is found out once for the block and all that ``on`` returns: numbers, or
        positions."""
        if name not in self._once:
            self._once[name] = find()
        return self._once[name]

    def ssa(self, number: int) -> mlir.Value:
        """A value in the module."""
        maker = self.core.value(number).maker
        if maker < 0:
            return self._given[number]
        return self.ops[maker].results[self.core.results(maker).index(number)]

    def _first_read(self, number: int) -> mlir.Value:
        reader = self.core.readers(number)[0]
        return self.ops[reader].operands[self.core.operands(reader).index(number)]

    @cached_property
    def number_of(self) -> dict[mlir.Value, int]:
        """Number of each value of the module that the block makes or reads."""
        return {self.ssa(number): number for number in range(self.core.num_values)}

    @cached_property
    def link(self) -> _core.HostLink:
        """The link to the host with what the program itself moves."""
        if self._beside is not None:
            return self._beside.link
        costed = self.costed
        return host_link(costed.imported, costed.plan, costed.mesh, costed.cluster)

    def trips(self, position: int) -> float:
        """How often an op runs in a step."""
        return self.costs.trips_of_core(self.core.op(position).in_program)

    @cached_property
    def live_bytes(self) -> Sequence[float]:
        """On one device at each point."""
        return self.costed.plan.live_bytes

    @cached_property
    def core_at(self) -> list[int]:
        """Number in the core of the first op that runs at each position, or behind it.

        That of a loop is its first op; one more for the end.
        """
        return self.costs.blocks.ops_at(self.number, self.core)

    def inner_ops(self, op: mlir.Operation) -> list[int]:
        """Numbers in the core of the ops in the regions of ``op``, in order."""
        numbers = (self.costs.core_number(inner) for inner in operations_of(op)[1:])
        return sorted(number for number in numbers if number >= 0)

    @cached_property
    def gathered(self) -> frozenset[int]:
        """Values made of parameters alone, for which something was sent in this block."""
        found: set[int] = set()
        core = self.core
        for position in range(len(self.ops)):
            op = core.op(position)
            is_sent = op.sends or op.gathers
            if is_sent or any(value in found for value in core.operands(position)):
                found.update(v for v in core.results(position) if core.value(v).is_parameter)
        return frozenset(found)

    def signature(self, number: int) -> tuple[object, ...]:
        """The same for equal values of equal layers: the op, its line and plan, what it reads."""
        if number not in self._signatures:
            self._signatures[number] = self._signature(number)
        return self._signatures[number]

    def _signature(self, number: int) -> tuple[object, ...]:
        core, costs = self.core, self.costs
        value = core.value(number)
        op, made = self.ops[value.maker], core.op(value.maker)
        # Ops of one class have the same name and types.
        op_class = self.costed.imported.read.class_of(made.in_module)
        if op_class not in self._texts:
            types = (str(operand.type) for operand in op.operands)
            self._texts[op_class] = op.name, str(self.ssa(number).type), *types
        location = op.location
        if location not in self._lines:
            self._lines[location] = line_of(op)
        return (
            self._texts[op_class],
            self._lines[location],
            costs.value_sharding[value.in_program],
            costs.op_strategy[made.in_program] if made.in_program >= 0 else -1,
            tuple(core.value(v).maker < 0 for v in core.operands(value.maker)),
        )

    def seconds_besides(self, keep_sent: bool, keep_parameters: bool) -> Mapping[int, float]:
        """Seconds that values add to a step where they are computed again, by their numbers,
        besides what the ops take where they stand: copies may be parts of other kernels.

        Only where they take more. By the kernels that are expected, copies of attention's shares
        may take less, as parts of the matmuls that read them; compiled, such copies were kernels of
        their own, and so were the sums behind them.

        Only those of ``main`` are looked at, of equal layers one for all of them; others in small
        programs alone.
        """
        key = keep_sent, keep_parameters
        if key not in self._besides:
            self._besides[key] = self._seconds_besides(*key) if self.number == 0 else {}
        return self._besides[key]

    def _seconds_besides(self, keep_sent: bool, keep_parameters: bool) -> dict[int, float]:
        alike: dict[tuple[object, ...], list[_core.Dropped]] = {}
        for gap in self.gaps:
            alike.setdefault(self.signature(gap.value.number), []).append(gap.value)
        costed, least = self.costed, _LEAST_LOOKED_AT * max(self.live_bytes, default=0.0)
        rounds = _OPS_LOOKED_AT // max(1, costed.imported.program.num_ops)
        fewest = 1 if rounds >= _MOST_ROUNDS else 2
        groups = [
            values
            for values in alike.values()
            if len(values) >= fewest
            and sum(self.core.value(one.number).bytes for one in values) >= least
        ]
        if not groups:
            return {}
        found = self.costs.blocks.seconds_besides(
            self.core,
            costed.plan,
            costed.cluster.to_core(costed.mesh, 0.0),
            groups,
            keep_sent=keep_sent,
            keep_parameters=keep_parameters,
            num_rounds=min(max(rounds, _LEAST_ROUNDS), _MOST_ROUNDS),
        )
        return {
            value.number: seconds
            for values, seconds in zip(groups, found, strict=True)
            for value in values
            if seconds > 0
        }

    @cached_property
    def gaps(self) -> list[_core.Gap]:
        """Values that may go while they only wait, in the order of the program.

        What the block returns, or the program keeps on the host, may not.
        """
        return self.core.gaps(sorted(self.costed.imported.host.values))


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
        for number in block.core.operands(position):
            maker = block.core.value(number).maker
            if maker >= 0:
                insort(waiting, maker)


def erase_unread(block: mlir.Block) -> None:
    """Erase all ops of a block that nobody reads, and those that only they read."""
    for op in reversed([op.operation for op in block.operations][:-1]):
        _erase_unread(op)


def _erase_unread(op: mlir.Operation) -> bool:
    """Erase an op if nobody reads it, and it does nothing else; is it gone?"""
    if any(next(iter(result.uses), None) is not None for result in op.results):
        return False
    name = op.name
    if name in HELD or name == "stablehlo.custom_call" or not name.startswith("stablehlo."):
        return False
    if has_effect(op):
        return False
    op.erase()
    return True
