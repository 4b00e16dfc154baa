"""Write the loops of a step in lockstep, in place of its loop over micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.constants import constant, zeros
from autoshard.ir.reading import element_of, shape_of
from autoshard.rewrites.lockstep.calls import (
    Direction,
    exchanged,
    from_stage_before,
    gathered,
    of_all_stages,
    stage_number,
)
from autoshard.rewrites.lockstep.steps import Chain, Kind, Step, Steps, Total
from autoshard.rewrites.recomputation.loops import maker_of
from autoshard.rewrites.stage_tasks.tasks import outer_uses


@dataclass(frozen=True, slots=True)
class Shape:
    """How many stages and micro-batches are in lockstep, and how far apart."""

    stages: int
    micro_batches: int
    """A multiple of the stages."""
    delay: int = 1
    """Turns from one stage to the next: 2 if what is handed on has a turn to travel."""

    @property
    def share(self) -> int:
        """Micro-batches of which a stage does what all could do."""
        return self.micro_batches // self.stages

    @property
    def turns(self) -> int:
        """How many a loop over layers has."""
        return self.micro_batches + self.delay * (self.stages - 1)


def write_steps(steps: Steps, shape: Shape) -> None:
    """Replace the loop over micro-batches.

    Args:
        steps: Of it.
        shape: How many stages and micro-batches.

    Raises:
        PlanError: A value that is no array goes from one loop to another.
    """
    _Writer(steps, shape).write()


@dataclass
class _Kept:
    """A value of all micro-batches, behind the loop that makes it."""

    share: mlir.Value | None = None
    """For the micro-batches of the stage."""
    all: mlir.Value | None = None
    """For all of them."""


class _Writer:
    def __init__(self, steps: Steps, shape: Shape) -> None:
        self.steps = steps
        self.shape = shape
        self.loop = steps.loop
        self.where = mlir.InsertionPoint(self.loop)
        self.why = self.loop.location
        self.kept: dict[mlir.Value, _Kept] = {}
        self.read_in: dict[mlir.Value, set[Kind]] = {}
        """In which kinds of loops a value is read that another loop makes."""

    def write(self) -> None:
        """The whole change."""
        ordered = self.steps.ordered
        for step in ordered:
            for value in self._fetched(step):
                self.read_in.setdefault(value, set()).add(step.key.kind)
        self.number = stage_number(self.where, self.why)
        results: dict[int, mlir.Value] = {}
        for step in ordered:
            results.update(_StepWriter(self, step).write())
        for slot, result in enumerate(self.loop.results):
            made = results[slot] if slot in results else self.loop.operands[slot]
            result.replace_all_uses_with(made)
        self.loop.erase()

    def _fetched(self, step: Step) -> list[mlir.Value]:
        """Values that a loop reads and another one makes, in the order of their first use."""
        return [value for value in self.reads(step) if value in self.steps.made]

    def reads(self, step: Step) -> list[mlir.Value]:
        """What a loop reads from outside: values of other loops, and what it is given."""
        found: dict[mlir.Value, None] = {}
        seen: set[mlir.Value] = set()

        def read(value: mlir.Value) -> None:
            if value in seen:
                return
            seen.add(value)
            steps = self.steps
            if value in steps.given:
                found[value] = None
            elif value in steps.free and value != steps.number:
                maker = maker_of(value)
                assert maker is not None
                for each in steps.reads_of(maker):
                    read(each)
            elif value in steps.made and (steps.made[value] != step.key or value in steps.finals):
                found[value] = None

        for op in step.ops:
            for value in self.steps.reads_of(op):
                read(value)
        for total in step.totals:
            read(total.value)
        return list(found)

    def keep(self, step: Step, value: mlir.Value, stack: mlir.Value) -> None:
        """Say where a value of all micro-batches is, for those that read it.

        Args:
            step: The loop that makes it.
            value: Of one micro-batch.
            stack: What that loop has made of it.
        """
        kept = self.kept.setdefault(value, _Kept())
        if step.key.kind is not Kind.EACH and value not in self.steps.finals:
            kept.all = stack
            return
        share = stack
        if step.chain is not None:
            share = self._of_the_last_stage(stack, step.chain.direction)
        kept.share = share
        if self.read_in[value] - {Kind.EACH}:
            kept.all = gathered(share, self.shape.stages, self.where, self.why)

    def _of_the_last_stage(self, stack: mlir.Value, direction: Direction) -> mlir.Value:
        """The share of each stage of what the last one has made."""
        shape = self.shape
        whole = self.slice(stack, 0, shape.micro_batches)
        last = shape.stages - 1 if direction is Direction.UP else 0
        parts = exchanged(whole, self.where, self.why)
        return self.slice(parts, last * shape.share, (last + 1) * shape.share)

    def slice(self, value: mlir.Value, start: int, limit: int) -> mlir.Value:
        """A part of the first dim."""
        others = list(shape_of(value))[1:]
        return mlir.Operation.create(
            "stablehlo.slice",
            results=[mlir.RankedTensorType.get([limit - start, *others], element_of(value))],
            operands=[value],
            attributes={
                "start_indices": mlir.DenseI64ArrayAttr.get([start, *(0 for _ in others)]),
                "limit_indices": mlir.DenseI64ArrayAttr.get([limit, *others]),
                "strides": mlir.DenseI64ArrayAttr.get([1] * (1 + len(others))),
            },
            loc=self.why,
            ip=self.where,
        ).results[0]


@dataclass(frozen=True, slots=True)
class _Turn:
    """Which micro-batch a stage works on in a turn."""

    batch: mlir.Value
    """Its number, of one that is there in any turn."""
    place: mlir.Value
    """Where its values are put."""
    is_there: mlir.Value | None = None
    """Is there one? None: always."""
    is_first: mlir.Value | None = None
    """Is it the stage that begins?"""


@dataclass
class _StepWriter:
    """Writes one loop."""

    whole: _Writer
    step: Step
    values: dict[mlir.Value, mlir.Value] = field(default_factory=dict["mlir.Value", "mlir.Value"])
    """What values of a micro-batch are in the new body."""

    def __post_init__(self) -> None:
        writer, step = self.whole, self.step
        self.steps, self.shape, self.why = writer.steps, writer.shape, writer.why
        kind = step.key.kind
        share, batches = self.shape.share, self.shape.micro_batches
        self.trips = {Kind.EACH: share, Kind.ROWS: batches, Kind.LAYERS: self.shape.turns}[kind]
        self.slots = {Kind.EACH: share, Kind.ROWS: batches, Kind.LAYERS: batches + 1}[kind]
        """Micro-batches of which values are kept; the last one of ``LAYERS`` is none."""
        read = writer.reads(step)
        self.outer = {value: self._outer(value) for value in read}
        made = [result for op in step.ops for result in op.results]
        self.stacked = [value for value in made if value in writer.read_in]
        self.chain: Chain | None = step.chain

    def _outer(self, value: mlir.Value) -> mlir.Value:
        """What has a value of all micro-batches before the loop."""
        if value in self.steps.given:
            return self.steps.given[value]
        kept = self.whole.kept[value]
        found = kept.share if self.step.key.kind is Kind.EACH else kept.all
        assert found is not None
        return found

    def write(self) -> dict[int, mlir.Value]:
        """The loop, and what the loop over micro-batches hands out of it, by slot."""
        where, why, step = self.whole.where, self.why, self.step
        number = self.whole.number
        handed = self._handed()
        given = list(dict.fromkeys([number, *self.outer.values()]))
        first = constant(number.type, "0", where, why).results[0]
        stacks = [zeros(self._stack_type(value), where, why).results[0] for value in self.stacked]
        buffers = [zeros(value.type, where, why).results[0] for value in handed]
        starts = [total.start for total in step.totals]
        operands = [first, *given, *starts, *stacks, *buffers]
        types = [value.type for value in operands]
        made = mlir.Operation.create(
            "stablehlo.while", results=types, operands=operands, regions=2, loc=why, ip=where
        )
        self._condition(made.regions[0].blocks.append(*types, arg_locs=[why] * len(types)))
        body = made.regions[1].blocks.append(*types, arg_locs=[why] * len(types))
        arguments = list(body.arguments)
        self.ip = mlir.InsertionPoint(body)
        self.inside = dict(zip(given, arguments[1:], strict=False))
        rest = arguments[1 + len(given) :]
        totals, rest = rest[: len(starts)], rest[len(starts) :]
        stacks_now, buffers_now = rest[: len(stacks)], rest[len(stacks) :]
        self.turn = self._turn(arguments[0])
        self.values[self.steps.number] = self.turn.batch
        following = self._ops(buffers_now)
        ends = [
            self._total(total, argument)
            for total, argument in zip(step.totals, totals, strict=True)
        ]
        ends += [
            self._put(stack, self.values[value])
            for value, stack in zip(self.stacked, stacks_now, strict=True)
        ]
        counted = self._op("add", number.type, arguments[0], self._integer(1))
        mlir.Operation.create(
            "stablehlo.return",
            operands=[counted, *arguments[1 : 1 + len(given)], *ends, *following],
            loc=why,
            ip=self.ip,
        )
        results = list(made.results)[1 + len(given) :]
        for value, stack in zip(self.stacked, results[len(starts) :], strict=False):
            self.whole.keep(step, value, stack)
        return {
            total.slot: self._finished(total, result)
            for total, result in zip(step.totals, results, strict=False)
        }

    def _finished(self, total: Total, result: mlir.Value) -> mlir.Value:
        if total.is_sum and not total.is_own:
            return of_all_stages(result, "stablehlo.add", self.whole.where, self.why)
        return result

    def _handed(self) -> list[mlir.Value]:
        """What goes from stage to stage, as many times as turns lie between them."""
        if self.chain is None:
            return []
        op = self.chain.loop.op
        return [op.results[slot] for slot in self.chain.carried] * self.shape.delay

    def _stack_type(self, value: mlir.Value) -> mlir.Type:
        if not isinstance(value.type, mlir.RankedTensorType):
            maker = maker_of(value)
            raise PlanError(
                f"execution='lockstep': a value of type {value.type} would be kept for several"
                " micro-batches, and is no array. Take execution='stages'.",
                None if maker is None else place(maker.location),
            )
        return mlir.RankedTensorType.get([self.slots, *shape_of(value)], element_of(value))

    def _turn(self, turn: mlir.Value) -> _Turn:
        number, shape = self.inside[self.whole.number], self.shape
        kind = self.step.key.kind
        if kind is Kind.ROWS:
            return _Turn(turn, turn)
        if kind is Kind.EACH:
            first = self._op("multiply", turn.type, number, self._integer(shape.share))
            return _Turn(self._op("add", turn.type, first, turn), turn)
        assert self.chain is not None
        before = number
        if self.chain.direction is Direction.DOWN:
            before = self._op("subtract", turn.type, self._integer(shape.stages - 1), number)
        zero, last = self._integer(0), self._integer(shape.micro_batches - 1)
        late = before
        if shape.delay > 1:
            late = self._op("multiply", turn.type, before, self._integer(shape.delay))
        batch = self._op("subtract", turn.type, turn, late)
        begun = self._compare("GE", batch, zero)
        is_there = self._op("and", begun.type, begun, self._compare("LE", batch, last))
        one = self._op("minimum", turn.type, self._op("maximum", turn.type, batch, zero), last)
        none = self._integer(shape.micro_batches)
        slot = self._op("select", turn.type, is_there, one, none)
        return _Turn(one, slot, is_there, self._compare("EQ", before, zero))

    def _ops(self, buffers: Sequence[mlir.Value]) -> list[mlir.Value]:
        """All ops of a turn; what is handed on to the next one."""
        following: list[mlir.Value] = []
        for op in self.step.ops:
            if self.chain is not None and op == self.chain.loop.op:
                following = self._layers(self.chain, buffers)
            else:
                self._clone(op, [self._read(value) for value in self.steps.reads_of(op)])
        return following

    def _layers(self, chain: Chain, buffers: Sequence[mlir.Value]) -> list[mlir.Value]:
        """The layers of the stage."""
        op, count = chain.loop.op, len(chain.carried)
        reads = [self._read(value) for value in self.steps.reads_of(op)]
        assert self.turn.is_first is not None
        for slot, before in zip(chain.carried, buffers[:count], strict=True):
            reads[slot] = self._op("select", before.type, self.turn.is_first, reads[slot], before)
        sent: list[mlir.Value] = []
        if self.shape.delay > 1:  # what was made a turn ago travels while this turn computes
            sent = [self._from_before(value, chain) for value in buffers[count:]]
        made = self._clone(op, reads)
        results = [made.results[slot] for slot in chain.carried]
        if self.shape.delay > 1:
            return [*sent, *results]
        return [self._from_before(value, chain) for value in results]

    def _from_before(self, value: mlir.Value, chain: Chain) -> mlir.Value:
        return from_stage_before(value, chain.direction, self.ip, self.why)

    def _clone(self, op: mlir.Operation, reads: Sequence[mlir.Value]) -> mlir.Operation:
        made = op.clone(ip=self.ip).operation
        for (user, operand), value in zip(outer_uses(made), reads, strict=True):
            user.operands[operand] = value
        self.values.update(zip(op.results, made.results, strict=True))
        return made

    def _read(self, value: mlir.Value) -> mlir.Value:
        """A value of the micro-batch."""
        steps = self.steps
        value = steps.before(value)
        is_made_here = steps.made.get(value) == self.step.key and value not in steps.finals
        if value in steps.given:
            return self.inside[self.outer[value]]
        if value in steps.made and not is_made_here:
            return self._fetched(value)
        if value not in self.values:
            maker = maker_of(value)
            assert maker is not None
            assert value in steps.free
            self._clone(maker, [self._read(each) for each in steps.reads_of(maker)])
        return self.values[value]

    def _fetched(self, value: mlir.Value) -> mlir.Value:
        """A value that another loop has made for this micro-batch."""
        if value in self.values:
            return self.values[value]
        stack = self.inside[self.outer[value]]
        is_shared = self.step.key.kind is Kind.EACH
        index = self.turn.place if is_shared else self.turn.batch
        sizes = [1, *shape_of(value)]
        zero = self._integer(0)
        part = mlir.Operation.create(
            "stablehlo.dynamic_slice",
            results=[mlir.RankedTensorType.get(sizes, element_of(value))],
            operands=[stack, index, *(zero for _ in sizes[1:])],
            attributes={"slice_sizes": mlir.DenseI64ArrayAttr.get(sizes)},
            loc=self.why,
            ip=self.ip,
        ).results[0]
        self.values[value] = self._op("reshape", value.type, part)
        return self.values[value]

    def _put(self, stack: mlir.Value, value: mlir.Value) -> mlir.Value:
        """The stack with the value of this micro-batch."""
        sizes = [1, *shape_of(value)]
        one = self._op("reshape", mlir.RankedTensorType.get(sizes, element_of(value)), value)
        zero = self._integer(0)
        return self._op(
            "dynamic_update_slice",
            stack.type,
            stack,
            one,
            self.turn.place,
            *(zero for _ in sizes[1:]),
        )

    def _total(self, total: Total, before: mlir.Value) -> mlir.Value:
        """What the loop hands out, after a turn; turns without a micro-batch add nothing."""
        value = self._read(total.value)
        if not total.is_sum:
            if self.turn.is_there is None:
                return value
            return self._op("select", value.type, self.turn.is_there, value, before)
        if self.turn.is_there is not None:
            nothing = zeros(value.type, self.ip, self.why).results[0]
            value = self._op("select", value.type, self.turn.is_there, value, nothing)
        return self._op("add", before.type, before, value)

    def _op(self, name: str, type_: mlir.Type, *operands: mlir.Value) -> mlir.Value:
        return mlir.Operation.create(
            f"stablehlo.{name}", results=[type_], operands=list(operands), loc=self.why, ip=self.ip
        ).results[0]

    def _integer(self, value: int) -> mlir.Value:
        return constant(self.whole.number.type, str(value), self.ip, self.why).results[0]

    def _compare(self, how: str, left: mlir.Value, right: mlir.Value) -> mlir.Value:
        return _compare(how, left, right, self.ip, self.why)

    def _condition(self, block: mlir.Block) -> None:
        where = mlir.InsertionPoint(block)
        limit = constant(block.arguments[0].type, str(self.trips), where, self.why).results[0]
        is_more = _compare("LT", block.arguments[0], limit, where, self.why)
        mlir.Operation.create("stablehlo.return", operands=[is_more], loc=self.why, ip=where)


def _compare(
    how: str,
    left: mlir.Value,
    right: mlir.Value,
    where: mlir.InsertionPoint,
    why: mlir.Location,
) -> mlir.Value:
    truth = mlir.RankedTensorType.get([], mlir.IntegerType.get_signless(1))
    direction = mlir.Attribute.parse(f"#stablehlo<comparison_direction {how}>")
    return mlir.Operation.create(
        "stablehlo.compare",
        results=[truth],
        operands=[left, right],
        attributes={"comparison_direction": direction},
        loc=why,
        ip=where,
    ).results[0]
