"""In which order the work of micro-batches is done by stages that run one program in lockstep.

The loop over micro-batches becomes several loops, one behind the other. Each op is in one of them:

    EACH    what all stages would do alike for a micro-batch, as embeddings and losses: each stage
            does it for its share of the micro-batches
    ROWS    what each stage does with its own rows of layers, for all micro-batches
    LAYERS  a loop over layers: in each turn a stage does its layers for the micro-batch that the
            stage before it has done the turn before, and then what it does with its rows only

An op is in the first loop behind all that it reads. What is light and made of the batch and of
values from outside is made again wherever it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from autoshard.errors import PlanError
from autoshard.importer.loops import trip_count
from autoshard.importer.stage_ops import is_light
from autoshard.ir import mlir, place
from autoshard.ir.attributes import (
    LOCKSTEP,
    STAGE_NUMBER,
    STAGE_ROWS,
    attribute_of,
    custom_call_target,
)
from autoshard.ir.constants import is_zeros
from autoshard.ir.module import operations_of
from autoshard.rewrites.layer_loops.loops import LayerLoop, layer_loop
from autoshard.rewrites.lockstep.calls import Direction
from autoshard.rewrites.recomputation.loops import body_of, invariant_slots, maker_of, yielded_of
from autoshard.rewrites.stage_tasks.tasks import outer_uses


class Kind(IntEnum):
    """What a loop over micro-batches does; smaller ones of a level come first."""

    EACH = 0
    ROWS = 1
    LAYERS = 2


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A loop, by the order in which they run."""

    level: int
    """How many loops over layers the longest way to its values goes through."""
    kind: Kind
    number: int = 0
    """Among the loops over layers of a level."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A loop over the layers of a stage, which goes on with what the stage before it has made."""

    loop: LayerLoop
    direction: Direction
    carried: tuple[int, ...]
    """Slots of what goes from stage to stage."""
    rows: frozenset[int]
    """Slots of arrays of which each stage has its own rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Total:
    """A value that the loop over micro-batches hands out."""

    slot: int
    value: mlir.Value
    """What each micro-batch makes."""
    start: mlir.Value
    is_sum: bool
    """False: that of the last micro-batch, which all compute alike."""
    is_own: bool
    """Has each stage its own?"""
    key: Key
    """Where it is made."""


@dataclass(eq=False)
class Step:
    """A loop of the new program."""

    key: Key
    ops: list[mlir.Operation] = field(default_factory=list["mlir.Operation"])
    """In program order."""
    chain: Chain | None = None
    totals: list[Total] = field(default_factory=list[Total])


class Steps:
    """Reads the loop over micro-batches of a step of one stage."""

    def __init__(self, loop: mlir.Operation, own: set[mlir.Value]) -> None:
        """Place all ops.

        Args:
            loop: Over micro-batches.
            own: Operands of it of which each stage has its own.

        Raises:
            PlanError: An op that cannot be done so.
        """
        self.loop = loop
        self.body = body_of(loop)
        self.number: mlir.Value = self.body.arguments[0]
        self.given = {
            self.body.arguments[slot]: loop.operands[slot] for slot in invariant_slots(loop)
        }
        self.own: set[mlir.Value] = {
            argument for argument, operand in self.given.items() if operand in own
        }
        """Values that differ from stage to stage."""
        self.free: set[mlir.Value] = {self.number, *self.given}
        """Values that are made again where they are read."""
        self.made: dict[mlir.Value, Key] = {}
        """The loop that makes a value."""
        self.finals: set[mlir.Value] = set()
        """Results of loops over layers that the last stage has."""
        self.passed: dict[mlir.Value, mlir.Value] = {}
        """Results of loops over layers that are as they were before."""
        self.steps: dict[Key, Step] = {}
        totals = self._totals()
        updates = [maker_of(yielded_of(loop)[slot]) for slot, _, is_sum in totals if is_sum]
        counted = maker_of(yielded_of(loop)[0])
        for op in self.body.operations:
            each = op.operation
            if each not in (*updates, counted) and each.name != "stablehlo.return":
                self._place(each)
        for slot, value, is_sum in totals:
            self._total(slot, self.before(value), is_sum)

    @property
    def ordered(self) -> list[Step]:
        """All loops, in the order in which they run."""
        return [self.steps[key] for key in sorted(self.steps)]

    def _step(self, key: Key) -> Step:
        return self.steps.setdefault(key, Step(key))

    def _totals(self) -> list[tuple[int, mlir.Value, bool]]:
        """Slots that the loop hands out, the value of a micro-batch, and whether it is added up."""
        found: list[tuple[int, mlir.Value, bool]] = []
        for slot, value in enumerate(yielded_of(self.loop)):
            argument = self.body.arguments[slot]
            if slot == 0 or value == argument:
                continue
            uses = [use.owner.operation for use in argument.uses]
            maker = maker_of(value)
            if not uses:
                found.append((slot, value, False))
                continue
            start = maker_of(self.loop.operands[slot])
            is_sum = (
                maker is not None
                and maker.name == "stablehlo.add"
                and uses == [maker]
                and start is not None
                and is_zeros(start)
            )
            if not is_sum:
                raise PlanError(
                    "execution='lockstep': a result has a part for each example, and stages share"
                    " the micro-batches of what makes it. Return sums or means over the batch"
                    " alone, or take execution='stages'.",
                    place(uses[0].location),
                )
            assert maker is not None
            left, right = maker.operands
            found.append((slot, right if left == argument else left, True))
        return found

    def reads_of(self, op: mlir.Operation) -> list[mlir.Value]:
        """Values of ``outer_uses(op)``, in its order."""
        read = [user.operands[operand] for user, operand in outer_uses(op)]
        return [self.before(value) for value in read]

    def before(self, value: mlir.Value) -> mlir.Value:
        """What a loop over layers was given, for a result that is the same."""
        if value not in self.passed:
            return value
        return self.passed[value]

    def _place(self, op: mlir.Operation) -> None:
        reads = self.reads_of(op)
        is_own = any(value in self.own for value in reads) or _says_stage(op)
        said = attribute_of(op, LOCKSTEP)
        if said is not None and op.name == "stablehlo.while":
            self._place_layers(op, Direction(mlir.StringAttr(said).value), reads)
            return
        _check_alike(op)
        if is_own:
            self.own.update(op.results)
        if _is_light(op) and all(value in self.free for value in reads):
            self.free.update(op.results)
            return
        key = self._behind(reads, is_own)
        self._step(key).ops.append(op)
        self.made.update(dict.fromkeys(op.results, key))

    def _behind(self, reads: Sequence[mlir.Value], is_own: bool) -> Key:
        """The first loop in which an op has all that it reads."""
        if not is_own:
            return Key(max((self._level(value) for value in reads), default=0), Kind.EACH)
        key = Key(0, Kind.ROWS)
        for value in reads:
            made = self.made.get(value)
            if made is None:
                continue
            if value in self.finals:
                made = Key(made.level + 1, Kind.ROWS)
            elif made.kind is Kind.EACH:
                made = Key(made.level, Kind.ROWS)
            key = max(key, made)
        return key

    def _level(self, value: mlir.Value) -> int:
        made = self.made.get(value)
        if made is None:
            return 0
        return made.level + (made.kind is Kind.LAYERS)

    def _place_layers(
        self, op: mlir.Operation, direction: Direction, reads: Sequence[mlir.Value]
    ) -> None:
        """A loop over layers."""
        found = layer_loop(op)
        rows = frozenset(int(slot) for slot in mlir.DenseI64ArrayAttr(op.attributes[STAGE_ROWS]))
        if isinstance(found, str) or not rows <= set(found.stacks):
            why = found if isinstance(found, str) else "rows of its arrays are read otherwise"
            raise PlanError(
                f"execution='lockstep': in micro-batches a loop over layers is none any more:"
                f" {why}. Take execution='stages'.",
                place(op.location),
            )
        for inner in operations_of(op)[1:]:
            _check_alike(inner)
        same = set(invariant_slots(op))
        carried = tuple(
            slot
            for slot in range(len(op.operands))
            if slot not in same and slot not in rows and slot != found.counter
        )
        for slot in carried:
            if op.operands[slot] in self.own:
                raise PlanError(
                    "execution='lockstep': a loop over layers begins with a value that each stage"
                    " makes of the weights of its own layers, and only the first layer begins."
                    " Begin with a value that is made of no stacked weights, or take"
                    " execution='stages'.",
                    place(op.location),
                )
        level = max((self._level(value) for value in reads), default=0)
        number = sum(1 for key in self.steps if key.level == level and key.kind is Kind.LAYERS)
        key = Key(level, Kind.LAYERS, number)
        step = self._step(key)
        step.chain = Chain(found, direction, carried, rows)
        step.ops.append(op)
        self.made.update(dict.fromkeys(op.results, key))
        for slot, result in enumerate(op.results):
            if slot in carried:
                self.finals.add(result)
            elif slot in same:
                self.passed[result] = self.before(op.operands[slot])
            elif slot in rows:
                self.own.add(result)

    def _total(self, slot: int, value: mlir.Value, is_sum: bool) -> None:
        is_own = value in self.own
        if is_own or value not in self.made or value in self.finals:
            key = self._behind([value], is_own)
        else:
            key = self.made[value]
        start = self.loop.operands[slot]
        self._step(key).totals.append(Total(slot, value, start, is_sum, is_own, key))


def _says_stage(op: mlir.Operation) -> bool:
    return any(custom_call_target(each) == STAGE_NUMBER for each in operations_of(op))


def _is_light(op: mlir.Operation) -> bool:
    return is_light(op) or custom_call_target(op) == STAGE_NUMBER


_BRANCHES = ("stablehlo.case", "stablehlo.if")


def _check_alike(op: mlir.Operation) -> None:
    """Raise where what an op does may depend on the micro-batch.

    Stages work on different ones at the same time, and on zeros before there is one: none may wait
    for a collective that the others do not reach, go round for ever, or say what nobody computes.
    """
    if op.name in _BRANCHES:
        what = "a branch is taken or not by a value of the program"
    elif op.name == "stablehlo.while" and trip_count(op, lambda value: value) is None:
        what = "a loop runs as often as a value of the program says"
    elif "callback" in (custom_call_target(op) or ""):
        what = "a call of Python is made"
    else:
        return
    raise PlanError(
        f"execution='lockstep': {what}, and stages, which work on different micro-batches at the"
        " same time, would go different ways, also for zeros before the first one. Write it"
        " without (jnp.where; a fixed number of trips), or take execution='stages'.",
        place(op.location),
    )
