"""Write ``main`` anew, with a loop for each part of its layers, and values of rows as parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.ir import mlir
from autoshard.ir.attributes import ALIASING_OUTPUT, BUFFER_DONOR, FEEDS_ARGUMENT, STAGE
from autoshard.ir.boundary import attributes_at
from autoshard.ir.constants import constant, splat_of
from autoshard.rewrites.layer_loops.loops import LayerLoop
from autoshard.rewrites.layer_loops.parts import ArrayParts, ProgramParts, RowParts, part_shape
from autoshard.rewrites.layer_loops.rows import RowOp, Rows, RowValues, is_filler
from autoshard.rewrites.micro_batches.resize import resize_attributes
from autoshard.rewrites.recomputation.loops import body_of, invariant_slots, maker_of
from autoshard.rewrites.stage_tasks.tasks import outer_uses


def write_parts(
    module: mlir.Module,
    main: mlir.Operation,
    values: RowValues,
    cut: Mapping[int, RowParts],
    early: Callable[[mlir.Operation], bool],
) -> ProgramParts:
    """Rewrite ``main``.

    Args:
        module: Its ``main`` is replaced. Expects its context.
        main: Without calls.
        values: Of its block.
        cut: By group; other groups stay as they are.
        early: Whether an op is made of arguments alone that are the same for all micro-batches, so
            that no loop says its stage.

    Returns:
        Where its arguments and results are.
    """
    return PartsWriter(module, main, values, cut, early).write()


@dataclass
class PartsWriter:
    """Writes ``main`` anew with all parts of its rows; see ``write_parts``."""

    module: mlir.Module
    main: mlir.Operation
    values: RowValues
    cut: Mapping[int, RowParts]
    early: Callable[[mlir.Operation], bool] = lambda op: False
    found: dict[mlir.Value, list[mlir.Value]] = field(
        default_factory=dict["mlir.Value", "list[mlir.Value]"]
    )
    """Parts of values that have them, or what a value has become."""
    joined: dict[mlir.Value, mlir.Value] = field(default_factory=dict["mlir.Value", "mlir.Value"])
    sliced: dict[tuple[mlir.Value, int, int], list[mlir.Value]] = field(
        default_factory=dict["tuple[mlir.Value, int, int]", "list[mlir.Value]"]
    )

    def written(self, group: int) -> int:
        """How many parts of its rows the new program has."""
        return self.cut[group].count

    def write(self) -> ProgramParts:
        """The whole change."""
        old = self.main.regions[0].blocks[0]
        end = old.operations[len(old.operations) - 1].operation
        arguments = self._numbers(list(old.arguments))
        results = self._numbers(list(end.operands))
        types = [type_ for argument in old.arguments for type_ in self._types(argument)]
        out_types = [type_ for value in end.operands for type_ in self._types(value)]
        function = self._function(types, out_types, arguments, results)
        locations = [
            argument.location
            for argument, parts in zip(old.arguments, arguments, strict=True)
            for _ in parts.numbers
        ]
        block = function.regions[0].blocks.append(*types, arg_locs=locations)
        self.where = mlir.InsertionPoint(block)
        for argument, parts in zip(old.arguments, arguments, strict=True):
            self.become(argument, [block.arguments[number] for number in parts.numbers])
        for number, op in enumerate(list(self.values.ops)):
            self._write(number, op, block)
        given = [part for value in end.operands for part in self._given(value, end)]
        mlir.Operation.create("func.return", operands=given, loc=end.location, ip=self.where)
        for op in [op.operation for op in block.operations]:
            if is_filler(op) and not len(list(op.results[0].uses)):  # readers have smaller ones
                op.erase()
        self.main.erase()
        return ProgramParts(tuple(arguments), tuple(results))

    def become(self, value: mlir.Value, parts: list[mlir.Value]) -> None:
        """Say what a value is in the new program: its parts where it has rows."""
        self.found[value] = parts

    def _given(self, value: mlir.Value, end: mlir.Operation) -> list[mlir.Value]:
        """A result of the function, in parts where it has rows."""
        rows = self.rows(value)
        return [self.whole(value, end)] if rows is None else self.parts(value, rows)

    def rows(self, value: mlir.Value) -> Rows | None:
        """The rows of a value of a group that is cut."""
        rows = self.values.rows_of(value)
        return rows if rows is not None and rows.group in self.cut else None

    def _types(self, value: mlir.Value) -> list[mlir.Type]:
        rows = self.rows(value)
        if rows is None:
            return [value.type]
        count = self.cut[rows.group].count
        return [part_type(value.type, rows.dim, count)] * self.written(rows.group)

    def _numbers(self, values: Sequence[mlir.Value]) -> list[ArrayParts]:
        found: list[ArrayParts] = []
        count = 0
        for value in values:
            rows = self.rows(value)
            if rows is None:
                found.append(ArrayParts((count,)))
                count += 1
                continue
            parts = self.cut[rows.group]
            numbers = tuple(range(count, count + self.written(rows.group)))
            found.append(ArrayParts(numbers, rows.dim, parts.stages))
            count += len(numbers)
        return found

    def _function(
        self,
        types: Sequence[mlir.Type],
        out_types: Sequence[mlir.Type],
        arguments: Sequence[ArrayParts],
        results: Sequence[ArrayParts],
    ) -> mlir.Operation:
        attributes = {named.name: named.attr for named in _attributes(self.main)}
        entries = _boundary(self.main, arguments, results)
        signature = mlir.FunctionType.get(list(types), list(out_types))
        attributes["function_type"] = mlir.TypeAttr.get(signature)
        for side, at in entries.items():
            attributes[side] = mlir.ArrayAttr.get([mlir.DictAttr.get(entry) for entry in at])
        return mlir.Operation.create(
            "func.func",
            attributes=attributes,
            regions=1,
            loc=self.main.location,
            ip=mlir.InsertionPoint(self.main),
        )

    def _write(self, number: int, op: mlir.Operation, block: mlir.Block) -> None:
        loop = self.values.loops.get(number)
        if loop is not None:
            group = self.values.group_of_loop(number)
            if group in self.cut:
                self.write_loop(loop, group)
                return
        row_op = self.values.row_ops.get(number)
        if row_op is not None:
            group = self.values.group(row_op.group)
            if group in self.cut:
                self._write_rows(op, row_op, group)
                return
        for user, operand in outer_uses(op):
            user.operands[operand] = self.whole(user.operands[operand], user)
        block.append(op)

    def whole(self, value: mlir.Value, reader: mlir.Operation) -> mlir.Value:
        """All of a value, as it is now, for an op that reads it."""
        parts = self.found.get(value)
        if parts is None:
            return value
        if len(parts) == 1:
            return parts[0]
        if value not in self.joined:
            rows = self.rows(value)
            assert rows is not None
            dim = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), rows.dim)
            self.joined[value] = mlir.Operation.create(
                "stablehlo.concatenate",
                results=[value.type],
                operands=parts,
                attributes={"dimension": dim},
                loc=_location(value),
                ip=self.where,
            ).results[0]
        return self.joined[value]

    def parts(self, value: mlir.Value, rows: Rows) -> list[mlir.Value]:
        """The parts of a value along a dim; sliced where it is whole, or has other parts."""
        count = self.cut[rows.group].count
        if self.rows(value) == rows and len(self.found.get(value, ())) == count:
            return self.found[value]
        key = (value, rows.dim, count)
        if key not in self.sliced:
            whole = self.whole(value, maker_of(value) or self.main)
            type_ = part_type(value.type, rows.dim, count)
            self.sliced[key] = [
                self.fewer_elements(whole, type_) or self.slice(whole, type_, rows.dim, part)
                for part in range(self.written(rows.group))
            ]
        return self.sliced[key]

    def fewer_elements(self, whole: mlir.Value, type_: mlir.Type) -> mlir.Value | None:
        """A smaller array for one whose elements are equal; None for other values."""
        maker = maker_of(whole)
        if maker is None or not is_filler(maker):
            return None
        made = maker.clone(ip=self.where).operation
        if (splat := splat_of(maker)) is not None:
            made.attributes["value"] = mlir.DenseElementsAttr.get_splat(type_, splat)
        made.results[0].set_type(type_)
        return made.results[0]

    def slice(self, whole: mlir.Value, type_: mlir.Type, dim: int, part: int) -> mlir.Value:
        """One part of a value that is whole."""
        start = part * mlir.RankedTensorType(type_).shape[dim]
        shape = mlir.RankedTensorType(type_).shape
        starts = [start if at == dim else 0 for at in range(len(shape))]
        limits = [at + size for at, size in zip(starts, shape, strict=True)]
        attributes: dict[str, mlir.Attribute] = {
            "start_indices": mlir.DenseI64ArrayAttr.get(starts),
            "limit_indices": mlir.DenseI64ArrayAttr.get(limits),
            "strides": mlir.DenseI64ArrayAttr.get([1] * len(shape)),
        }
        return mlir.Operation.create(
            "stablehlo.slice",
            results=[type_],
            operands=[whole],
            attributes=attributes,
            loc=_location(whole),
            ip=self.where,
        ).results[0]

    def _write_rows(self, op: mlir.Operation, how: RowOp, group: int) -> None:
        """An op that works by rows, once for each part of them."""
        parts, count = self.cut[group], self.written(group)
        operands = [
            [self.whole(value, op)] * count if dim is None else self.parts(value, Rows(dim, group))
            for value, dim in zip(op.operands, how.operands, strict=True)
        ]
        made: list[mlir.Operation] = []
        for part in range(count):
            one = op.clone(ip=self.where).operation
            for number, given in enumerate(operands):
                one.operands[number] = given[part]
            for result, dim in zip(one.results, how.results, strict=True):
                if dim is not None:
                    result.set_type(part_type(result.type, dim, parts.count))
            resize_attributes(one)
            if self.early(op):
                _say_stage(one, parts.marks[part])
            made.append(one)
        for number, result in enumerate(op.results):
            own = [one.results[number] for one in made]
            if how.combines is None:
                self.become(result, own)
            else:
                self.found[result] = [self.combined(own, how, op)]

    def combined(self, parts: Sequence[mlir.Value], how: RowOp, op: mlir.Operation) -> mlir.Value:
        """What an op reduces all rows to, of what it reduces parts of them to."""
        total = parts[0]
        for part in parts[1:]:
            total = mlir.Operation.create(
                str(how.combines),
                results=[total.type],
                operands=[total, part],
                loc=op.location,
                ip=self.where,
            ).results[0]
        return total

    def taken(
        self, loop: LayerLoop, group: int
    ) -> tuple[dict[int, list[mlir.Value]], list[mlir.Value]]:
        """The parts of the stacks of a loop, by slot, and all that it carries, stacks as they were.

        What the ops of its body read from outside is read as it is now.
        """
        op = loop.op
        stacks = {slot: self.parts(op.operands[slot], Rows(0, group)) for slot in loop.stacks}
        carried = [
            op.operands[slot] if slot in stacks else self.whole(op.operands[slot], op)
            for slot in range(len(op.operands))
        ]
        for user, operand in outer_uses(op):
            if user.operation != op.operation:
                user.operands[operand] = self.whole(user.operands[operand], user)
        return stacks, carried

    def write_loop(self, loop: LayerLoop, group: int) -> None:
        """A loop, one part behind the other."""
        op, parts = loop.op, self.cut[group]
        count = parts.count
        stacks, carried = self.taken(loop, group)
        same = set(invariant_slots(op))
        results: dict[int, list[mlir.Value]] = {slot: [] for slot in stacks}
        for part in range(count):
            row_part = count - 1 - part if loop.is_downwards else part
            given = [
                stacks[slot][row_part] if slot in stacks else value
                for slot, value in enumerate(carried)
            ]
            made = loop_part(loop, given, count, self.where, part * (loop.trips // count))
            _say_stage(made, parts.marks[row_part])
            carried = [
                value if slot in same else made.results[slot] for slot, value in enumerate(carried)
            ]
            for slot in stacks:
                results[slot].append(made.results[slot])
        for slot, result in enumerate(op.results):
            if slot in stacks:
                self.found[result] = results[slot][::-1] if loop.is_downwards else results[slot]
            elif slot == loop.counter and len(list(result.uses)):
                last = constant(result.type, str(loop.trips), self.where, op.location)
                self.found[result] = [last.results[0]]
            else:
                self.found[result] = [carried[slot]]


FirstTrip = int | Callable[[mlir.Type, mlir.InsertionPoint], mlir.Value]
"""The number of a trip, or what writes it, as an integer of a type, inside of a loop."""


def loop_part(
    loop: LayerLoop,
    operands: Sequence[mlir.Value],
    count: int,
    where: mlir.InsertionPoint,
    first: FirstTrip,
) -> mlir.Operation:
    """Some of the trips of a loop, whose counter begins at 0.

    Args:
        loop: The whole.
        operands: What it carries: parts of stacks.
        count: Parts.
        where: It is written there.
        first: The number that its first trip has in the whole loop.
    """
    trips = loop.trips // count
    number = operands[loop.counter].type
    start = constant(number, "0", where, loop.op.location).results[0]
    made = loop.op.clone(ip=where).operation
    for slot, value in enumerate([*operands[: loop.counter], start, *operands[loop.counter + 1 :]]):
        made.operands[slot] = value
        made.results[slot].set_type(value.type)
        for region in made.regions:
            region.blocks[0].arguments[slot].set_type(value.type)
    condition, body = made.regions[0].blocks[0], body_of(made)
    compare = maker_of(condition.operations[len(condition.operations) - 1].operands[0])
    assert compare is not None
    before = mlir.InsertionPoint(compare)
    limit = compare.operands[1]
    compare.operands[1] = constant(number, str(trips), before, compare.location).results[0]
    _erase_unread([limit])
    ops = [op.operation for op in body.operations]
    begin = mlir.InsertionPoint.at_block_begin(body)
    row = constant(number, "0", begin, made.location)  # until it is known what else is counted
    unread: list[mlir.Value] = []
    for slot, stack in loop.stacks.items():
        for access in stack.accesses:
            op = ops[access.number]
            index = op.operands[access.index]
            unread.append(index)
            op.operands[access.index] = _as_type(row.results[0], index.type, op)
            if op.name == "stablehlo.dynamic_update_slice":
                op.results[0].set_type(operands[slot].type)
    _erase_unread(unread)
    counter = body.arguments[loop.counter]
    if first != 0:
        _number_trips(body, loop.counter, first)
    row.results[0].replace_all_uses_with(_row(loop, counter, trips, mlir.InsertionPoint(row)))
    row.erase()
    return made


def _row(
    loop: LayerLoop, counter: mlir.Value, trips: int, where: mlir.InsertionPoint
) -> mlir.Value:
    """The row of a part that belongs to its trip, written as JAX writes it."""
    if not loop.is_downwards:
        return counter

    def less(left: mlir.Value, right: mlir.Value) -> mlir.Value:
        return mlir.Operation.create(
            "stablehlo.subtract",
            results=[counter.type],
            operands=[left, right],
            loc=loop.op.location,
            ip=where,
        ).results[0]

    size = constant(counter.type, str(trips), where, loop.op.location).results[0]
    left = less(size, counter)
    return less(left, constant(counter.type, "1", where, loop.op.location).results[0])


def _as_type(value: mlir.Value, type_: mlir.Type, user: mlir.Operation) -> mlir.Value:
    if value.type == type_:
        return value
    return mlir.Operation.create(
        "stablehlo.convert",
        results=[type_],
        operands=[value],
        loc=user.location,
        ip=mlir.InsertionPoint(user),
    ).results[0]


def _erase_unread(values: Sequence[mlir.Value]) -> None:
    """Erase ops that made indices of rows, where nothing reads these any more."""
    waiting = list(dict.fromkeys(values))
    while waiting:
        op = maker_of(waiting.pop())
        if op is None or any(len(list(result.uses)) for result in op.results):
            continue
        waiting = [value for value in waiting if value not in list(op.results)]
        operands = list(op.operands)
        op.erase()
        waiting += [value for value in operands if value not in waiting]


def _number_trips(body: mlir.Block, counter: int, first: FirstTrip) -> None:
    """Let what reads the number of a trip, or of the next one, read that of the whole loop."""
    end = body.operations[len(body.operations) - 1].operation
    argument, step = body.arguments[counter], maker_of(end.operands[counter])
    assert step is not None
    begin = mlir.InsertionPoint.at_block_begin(body)
    for value, where in ((argument, begin), (step.results[0], mlir.InsertionPoint.after(step))):
        uses = [
            (use.owner.operation, use.operand_number)
            for use in value.uses
            if use.owner.operation != step
            and (use.owner.operation, use.operand_number) != (end, counter)
        ]
        if not uses:
            continue
        why = uses[0][0].location
        if callable(first):
            shift = first(value.type, where)
        else:
            shift = constant(value.type, str(first), where, why).results[0]
        whole = mlir.Operation.create(
            "stablehlo.add", results=[value.type], operands=[value, shift], loc=why, ip=where
        ).results[0]
        for user, operand in uses:
            user.operands[operand] = whole


def part_type(type_: mlir.Type, dim: int, count: int) -> mlir.Type:
    """The type of each of ``count`` equal parts of a tensor along ``dim``."""
    whole = mlir.RankedTensorType(type_)
    return mlir.RankedTensorType.get(part_shape(whole.shape, dim, count), whole.element_type)


def _say_stage(op: mlir.Operation, stage: int) -> None:
    op.attributes[STAGE] = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(32), stage)


def _location(value: mlir.Value) -> mlir.Location:
    maker = maker_of(value)
    return mlir.BlockArgument(value).location if maker is None else maker.location


def _attributes(op: mlir.Operation) -> list[mlir.NamedAttribute]:
    return [op.attributes[number] for number in range(len(op.attributes))]


def _boundary(
    main: mlir.Operation, arguments: Sequence[ArrayParts], results: Sequence[ArrayParts]
) -> dict[str, list[dict[str, mlir.Attribute]]]:
    """Attributes of arguments and results; each part has those of the whole.

    A part of an argument gives its memory to the same part of a result.
    """
    integer = mlir.IntegerType.get_signless(32)
    at: dict[str, list[dict[str, mlir.Attribute]]] = {"arg_attrs": [], "res_attrs": []}
    for entry, parts in zip(attributes_at(main, "arg_attrs"), arguments, strict=True):
        alias = entry.pop(ALIASING_OUTPUT, None)
        others = () if alias is None else results[mlir.IntegerAttr(alias).value].numbers
        for number in range(len(parts.numbers)):
            own = dict(entry)
            if len(others) == len(parts.numbers):
                own[ALIASING_OUTPUT] = mlir.IntegerAttr.get(integer, others[number])
            elif alias is not None:
                own[BUFFER_DONOR] = mlir.BoolAttr.get(True)
            at["arg_attrs"].append(own)
    for entry, parts in zip(attributes_at(main, "res_attrs"), results, strict=True):
        fed = entry.pop(FEEDS_ARGUMENT, None)
        others = () if fed is None else arguments[mlir.IntegerAttr(fed).value].numbers
        for number in range(len(parts.numbers)):
            own = dict(entry)
            if fed is not None and len(others) == len(parts.numbers):
                own[FEEDS_ARGUMENT] = mlir.IntegerAttr.get(fed.type, others[number])
            at["res_attrs"].append(own)
    return at
