"""Build the loop over micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard import _core
from autoshard._core import CutKind, Where
from autoshard.errors import PlanError
from autoshard.importer.micro_batch_cuts import adds_up, cut_of, kind_of
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MICRO_BATCHES, custom_call_target
from autoshard.ir.boundary import main_function
from autoshard.ir.constants import constant, splat_of, zeros
from autoshard.ir.locations import lines_of
from autoshard.ir.module import operations_of, structure_of, with_its_ops
from autoshard.ir.reading import shape_of
from autoshard.planned.write import populate_rules, remove_rules
from autoshard.rewrites.counted_indices import counted_indices_as_batches
from autoshard.rewrites.micro_batches import leaving
from autoshard.rewrites.micro_batches.barriers import pass_by
from autoshard.rewrites.micro_batches.counting import number_in_loops
from autoshard.rewrites.micro_batches.inline import inline
from autoshard.rewrites.micro_batches.parts import Part, Parts
from autoshard.rewrites.micro_batches.refusals import refusal
from autoshard.rewrites.micro_batches.resize import (
    kernel_configs,
    resize_attributes,
    resize_values,
)
from autoshard.rewrites.numbering import has_effect


@dataclass(frozen=True, slots=True)
class MicroBatched:
    """What was made of a program."""

    whole: tuple[str, ...]
    """``file:line`` of what is computed of the whole batch before the loop."""
    each: tuple[str, ...]
    """Places of what is added up over each micro-batch by itself, as the user says."""


def into_micro_batches(
    module: mlir.Module, arguments: Sequence[int], count: int, per_micro_batch: Sequence[str] = ()
) -> MicroBatched:
    """Rewrite ``main`` so that a loop works through the batch.

    Args:
        module: As lowered, before planning; its calls are inlined. Expects its context.
        arguments: Numbers of the arguments of ``main`` that hold examples in dim 0.
        count: Micro-batches.
        per_micro_batch: Lines, ``model.py:41``, whose sums are taken of each micro-batch where
            they are needed in the middle of the step.

    Raises:
        PlanError: It cannot be done exactly; the module is half changed.
    """
    inline(module)
    counted_indices_as_batches(module)
    populate_rules(module)
    operations = operations_of(module.operation)
    named = _named(operations, per_micro_batch)
    times = find_times(module, operations, arguments, count, named)
    remove_rules(module)
    if not any(where == Where.LOOP for where in times.where):
        raise PlanError(
            f"micro_batches={count}: nothing in the program is computed of the batch in parts. Give"
            " the arguments that hold it, or leave micro_batches out.",
            place(main_function(module).location),
        )
    _check_effects(operations, times, count)
    places = _Rewriter(module, operations, times, count)
    found = MicroBatched(_lines(operations, times.whole), _lines(operations, times.each))
    places.write()
    return found


def find_times(
    module: mlir.Module,
    operations: Sequence[mlir.Operation],
    arguments: Sequence[int],
    count: int,
    each: Sequence[int] = (),
) -> _core.MicroBatchTimes:
    """When each value is known.

    Args:
        module: Without calls; its ops have their factor rules.
        operations: All of them, as ``operations_of`` gives them.
        arguments: Of ``main``, that hold the batch.
        count: Micro-batches.
        each: Numbers of ops whose sums may be those of each micro-batch.

    Raises:
        PlanError: ``count`` does not divide the batch, or the program cannot be cut.
    """
    main = main_function(module)
    for number in arguments:
        argument = main.regions[0].blocks[0].arguments[number]
        shape = shape_of(argument)
        if not shape or shape[0] % count or not shape[0]:
            raise PlanError(
                f"micro_batches={count} do not divide dim 0 of argument {number}, of shape"
                f" {tuple(shape)}, which holds the batch. Choose another number, or say which"
                " arguments hold the batch.",
                place(argument.location),
            )
    try:
        return _core.micro_batch_times(
            structure_of(module),
            main=operations.index(main),
            arguments=arguments,
            micro_batches=count,
            each=each,
            describe=lambda number: cut_of(operations[number]),
        )
    except _core.CannotMicroBatch as error:
        raise refusal(operations, error, count) from error


def _check_effects(
    operations: Sequence[mlir.Operation], times: _core.MicroBatchTimes, count: int
) -> None:
    """Raise where the loop would do ``count`` times what a step does once."""
    for number, where in enumerate(times.where):
        if where != Where.LOOP:
            continue
        for op in with_its_ops(operations[number]):
            if has_effect(op) and kind_of(op) == CutKind.PLAIN:
                called = custom_call_target(op) or op.name
                raise PlanError(
                    f"micro_batches={count}: {called} does more than make its results, as a print"
                    " does, and would run in every micro-batch. Take it out of the step, or leave"
                    " micro_batches out.",
                    place(op.location),
                )


def _named(operations: Sequence[mlir.Operation], lines: Sequence[str]) -> list[int]:
    """Ops that stand at one of ``lines``, on any level of the call stack."""
    if not lines:
        return []
    found: list[int] = []
    missing = set(lines)
    for number, op in enumerate(operations):
        stack = lines_of(op.location)
        met = {said for said in lines for line in stack if _ends_with(line, said)}
        if met:
            found.append(number)
            missing -= met
    if missing:
        raise PlanError(
            f"per_micro_batch: no op of the program stands at {sorted(missing)[0]}. Give lines as"
            " errors show them, model.py:41."
        )
    return found


def _ends_with(line: str, said: str) -> bool:
    return line == said or line.endswith("/" + said)


def _lines(operations: Sequence[mlir.Operation], numbers: Sequence[int]) -> tuple[str, ...]:
    found = (place(operations[number].location) for number in numbers)
    return tuple(dict.fromkeys(where.rsplit(":", 1)[0] for where in found if where))


class _Rewriter:
    """Edits ops where they stand, then moves those of the loop into it.

    Ops are equal to themselves alone, but their hashes are of what they say: while they are edited
    they are found by their place, not in sets.
    """

    def __init__(
        self,
        module: mlir.Module,
        operations: list[mlir.Operation],
        times: _core.MicroBatchTimes,
        count: int,
    ) -> None:
        self.operations = operations
        self.times = times
        self.count = count
        self.block = main_function(module).regions[0].blocks[0]
        self.end = self.block.operations[len(self.block.operations) - 1].operation
        self.why = main_function(module).location
        self.integer = mlir.RankedTensorType.get([], mlir.IntegerType.get_signless(32))
        end = mlir.InsertionPoint(self.end)
        # Before what the loop takes; stands for the number of the micro-batch until there is one.
        self.number = constant(self.integer, "0", end, self.why)
        for op in self._at(Where.LOOP):
            op.move_before(self.end)
        # Behind it: the loop is written here.
        self.place = constant(self.integer, "0", end, self.why)
        self.waiting = self._at(Where.AFTER)
        for op in self.waiting:
            op.move_before(self.end)
        self.parts = Parts(count, self.integer, mlir.InsertionPoint(self.number))

    def _at(self, where: Where) -> list[mlir.Operation]:
        """Ops of the function itself that run before, in or behind the loop."""
        return [
            op
            for op, its in zip(self.operations, self.times.where, strict=True)
            if its == where and op.block == self.block and op != self.end
        ]

    def write(self) -> None:
        """The whole change."""
        times, operations = self.times, self.operations
        configs = kernel_configs(operations, times.slices, self.count)
        number_of = number_in_loops(
            operations,
            [n for n in times.counting if kind_of(operations[n]) == CutKind.LOOP],
            self.number.results[0],
        )
        captured = {(use.op, use.operand) for use in times.captured}
        for need in times.needs:
            op = operations[need.op]
            part = Part(need.dim, need.stride, self.count)
            is_outside = (need.op, need.operand) in captured
            captured.discard((need.op, need.operand))
            self.parts.read(op, need.operand, part, number_of(op), is_outside)
        changed = resize_values(operations, times.slices, self.count)
        for once in times.once:
            op = operations[once.op]
            made = leaving.count_once(op, once.operand, number_of(op))
            if (once.op, once.operand) in captured:
                captured.discard((once.op, once.operand))
                self.parts.captured.append((made, 1))
        for op in changed:
            resize_attributes(op)
        for number, config in configs.items():
            operations[number].attributes["backend_config"] = mlir.StringAttr.get(config)
        scaled = {
            number: leaving.scaled(operations[number], self.count)
            for number in times.each
            if adds_up(operations[number])
        }
        results = self._leaving(scaled)
        moved = pass_by(operations, [(one.op, one.result) for one in times.passed])
        uses = [moved.get(use, (operations[use[0]], use[1])) for use in sorted(captured)]
        self._loop(results, [*uses, *self.parts.captured])

    def _leaving(self, scaled: Mapping[int, mlir.Value]) -> list[leaving.Leaving]:
        times, operations = self.times, self.operations

        def made(one: _core.MadeResult) -> mlir.Value:
            return scaled.get(one.op, operations[one.op].results[one.result])

        cut = {
            (slice_.op, slice_.index): Part(slice_.dim, slice_.stride, self.count)
            for slice_ in times.slices
            if slice_.region < 0
        }
        number = self.number.results[0]
        return [
            *(leaving.a_sum(made(one)) for one in times.sums),
            *(
                leaving.a_stack(made(one), cut[one.op, one.result], number, self.parts)
                for one in times.stacks
            ),
            *(leaving.the_last(made(one)) for one in times.last),
            *(leaving.a_mean(made(one), self.count) for one in times.means),
        ]

    def _loop(
        self, results: Sequence[leaving.Leaving], captured: Sequence[tuple[mlir.Operation, int]]
    ) -> None:
        where = mlir.InsertionPoint(self.place)
        inside = self._inside()
        given = list(dict.fromkeys(op.operands[operand] for op, operand in captured))
        given = [value for value in given if not _is_constant(value)]
        first = constant(self.integer, "0", where, self.why).results[0]
        empty = [
            zeros(one.type, where, leaving.maker_of(one.value).location).results[0]
            for one in results
        ]
        carried = [first, *given, *empty]
        types = [value.type for value in carried]
        loop = mlir.Operation.create(
            "stablehlo.while",
            results=types,
            operands=carried,
            attributes={MICRO_BATCHES: mlir.UnitAttr.get()},
            regions=2,
            loc=self.why,
            ip=where,
        )
        locations = [self.why] * len(types)
        self._condition(loop.regions[0].blocks.append(*types, arg_locs=locations))
        body = loop.regions[1].blocks.append(*types, arg_locs=locations)
        for op in inside:
            body.append(op)
        self._capture(body, dict(zip(given, body.arguments[1:], strict=False)), captured)
        following = self._update(results, body.arguments[1 + len(given) :])
        self.number.results[0].replace_all_uses_with(body.arguments[0])
        self.number.erase()
        at_end = mlir.InsertionPoint(body)
        one = constant(self.integer, "1", at_end, self.why).results[0]
        following_number = mlir.Operation.create(
            "stablehlo.add",
            results=[self.integer],
            operands=[body.arguments[0], one],
            loc=self.why,
            ip=at_end,
        ).results[0]
        mlir.Operation.create(
            "stablehlo.return",
            operands=[following_number, *body.arguments[1 : 1 + len(given)], *following],
            loc=self.why,
            ip=at_end,
        )
        made = loop.results[1 + len(given) :]
        self._read_behind(
            {one.value: one.finish(total, where) for one, total in zip(results, made, strict=True)}
        )
        self.place.erase()

    def _inside(self) -> list[mlir.Operation]:
        """What stands between the two places: ops of the loop, and those that were written."""
        found: list[mlir.Operation] = []
        is_inside = False
        for op in self.block.operations:
            if op.operation == self.place:
                break
            if is_inside:
                found.append(op.operation)
            is_inside |= op.operation == self.number
        return found

    def _read_behind(self, finished: Mapping[mlir.Value, mlir.Value]) -> None:
        """Let ops behind the loop read what it hands out."""
        for top in (*self.waiting, self.end):
            for op in with_its_ops(top):
                for operand, value in enumerate(op.operands):
                    if value in finished:
                        op.operands[operand] = finished[value]

    def _capture(
        self,
        body: mlir.Block,
        arguments: dict[mlir.Value, mlir.Value],
        captured: Sequence[tuple[mlir.Operation, int]],
    ) -> None:
        """Let ops read what the loop carries; constants are written again."""
        where = mlir.InsertionPoint.at_block_begin(body)
        copies: dict[mlir.Value, mlir.Value] = {}
        for op, operand in captured:
            value = op.operands[operand]
            if value in arguments:
                op.operands[operand] = arguments[value]
                continue
            if value not in copies:
                copies[value] = leaving.maker_of(value).clone(ip=where).operation.results[0]
            op.operands[operand] = copies[value]

    def _update(
        self, results: Sequence[leaving.Leaving], carried: Sequence[mlir.Value]
    ) -> list[mlir.Value]:
        """What the loop carries on, written right behind what it is made of."""
        return [
            one.update(before, mlir.InsertionPoint.after(leaving.maker_of(one.value)))
            for one, before in zip(results, carried, strict=True)
        ]

    def _condition(self, block: mlir.Block) -> None:
        where = mlir.InsertionPoint(block)
        limit = constant(self.integer, str(self.count), where, self.why).results[0]
        truth = mlir.RankedTensorType.get([], mlir.IntegerType.get_signless(1))
        compare = mlir.Operation.create(
            "stablehlo.compare",
            results=[truth],
            operands=[block.arguments[0], limit],
            attributes={
                "comparison_direction": mlir.Attribute.parse("#stablehlo<comparison_direction LT>")
            },
            loc=self.why,
            ip=where,
        )
        mlir.Operation.create("stablehlo.return", operands=compare.results, loc=self.why, ip=where)


def _is_constant(value: mlir.Value) -> bool:
    owner = value.owner
    return not isinstance(owner, mlir.Block) and splat_of(owner.operation) is not None
