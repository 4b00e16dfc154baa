"""Write a plan into a module such that a partitioner cannot change it.

Every value of rank 1 or more gets a closed constraint right after the op that makes it, and all
its readers read the constrained value. An operand that its op wants elsewhere is redistributed by
a constraint right before the op; close readers that want the same share that copy, and those that
want a part of it cut it from there. A reader far behind the others gets a copy of its own, behind
a barrier, because the plan has not kept the first one until then. What a callee reads in one
sharding only is handed over in that sharding. Loops are pinned at their operands, block arguments,
yields and results.

Values of rank 0 get no constraint: a scalar has one placement only, it is whole on every device,
so a constraint could say nothing and would only stand between ops that fuse. Neither does what a
matmul gives to a reshape or transpose that takes it as it is: the constraint behind that one says
the same, and compilers join the two where nothing stands between them. Some join even two matmuls,
and compute the first again for every tile of the second: queries in attention's scores, if nothing
else is done to them (``fusion.repeats_batched_matmuls`` in docs/design/compilers.md). There a
barrier stands between the two.

Constants, iotas and broadcast scalars are made again for every sharding that a reader wants:
their values are known on every device, so nothing has to travel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from autoshard.errors import PlanError
from autoshard.exporter.blocks import BlockOp, Emitter, Enter, added_parts, block_op, free_channels
from autoshard.exporter.blocks.cropped import crop_whole_images
from autoshard.exporter.join import join_reshapes
from autoshard.exporter.starts import keep_slices_apart
from autoshard.exporter.steps import only_cuts, redistribution_steps
from autoshard.ir import mlir, stablehlo
from autoshard.ir.attributes import MHLO_SHARDING, NUM_PARTITIONS, NUM_REPLICAS, SDY_SHARDING
from autoshard.ir.locations import place
from autoshard.ir.one_device import is_on_one_device
from autoshard.planned.module import (
    OWN_PREFIX,
    Kind,
    Placement,
    PlannedBlock,
    PlannedFunction,
    PlannedModule,
    PlannedOp,
    read_plan,
)
from autoshard.sharding.padding import padded_shape
from autoshard.sharding.sharding import Sharding

_NEAR_SHARE, _NEAR_OPS = 1 / 16, 64
"""Readers of a value share a copy while the next one is at most this part of the program's ops
away, or this many: ``search_copy_distance`` of the core counts the same."""

_NO_OPS_OF_CORE = frozenset(
    {
        *("func.call", "func.return", "stablehlo.return"),
        *("stablehlo.while", "stablehlo.case", "stablehlo.if"),
        *("stablehlo.optimization_barrier", "stablehlo.constant", "stablehlo.iota"),
    }
)
"""What the core's program has no op for: calls are what they call, values pass through others."""

_DOT = "stablehlo.dot_general"
_MATMULS = frozenset({_DOT, "stablehlo.convolution"})
_VIEWS = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
"""Ops that compilers make a part of the matmul before them."""


class Form(ABC):
    """What a pinned module looks like for one partitioner."""

    boundary_attribute: ClassVar[str]
    """The attribute that carries the sharding of an entry function's argument or result."""

    def begin(self, plan: PlannedModule) -> None:
        """Called once, before any other method; may add to the module."""
        self._mesh = plan.mesh
        self._channels = free_channels(plan.module)

    def emitter(
        self, where: mlir.InsertionPoint, why: mlir.Location, enter: Enter | None = None
    ) -> Emitter:
        """Writes ops on whole values, or on blocks for ``on_blocks``; see ``Emitter``."""
        return Emitter(where, why, self._mesh, self._channels, enter)

    @abstractmethod
    def boundary(self, sharding: Placement) -> mlir.Attribute:
        """The attribute of an argument or result."""

    @abstractmethod
    def constraint(
        self, value: mlir.Value, sharding: Placement, where: mlir.InsertionPoint, why: mlir.Location
    ) -> mlir.Value:
        """``value`` held in ``sharding``; the new op says it comes from ``why``."""

    @abstractmethod
    def on_blocks(self, op: BlockOp, where: mlir.InsertionPoint) -> list[mlir.Value]:
        """The results of ``op``, which every device computes on its own blocks."""


def export(module: mlir.Module, form: Form) -> None:
    """Pin every value of a planned module, and take the plan's own attributes away.

    Raises:
        AutoshardError: The plan is not complete or cannot hold; the module is as it was.
    """
    with module.context:
        pin(read_plan(module), form)


def pin(plan: PlannedModule, form: Form) -> None:
    """As ``export``, for a plan that has been read. Expects the module's context to be current."""
    _set_partition_count(plan)
    form.begin(plan)
    plan = join_reshapes(plan)
    ways = _Ways(plan.has_all_to_all, plan.mesh.size if plan.pads else 1)
    calls = _Calls(plan)
    repeats = plan.may_be_compiled_so("fusion.repeats_batched_matmuls")
    for function in plan.functions:
        _Pinner(form, ways, calls, plan.one_device_meshes, repeats).pin(function)
    _drop_own(plan.module.operation)


def _is_contracted_in_a_batch(op: mlir.Operation) -> bool:
    """Whether all that is done to the result of a matmul is a batch of matmuls over its columns.

    Reshapes may stand between.
    """
    if op.name != _DOT:
        return False
    (value,) = op.results
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return False
        reader = uses[0].owner.operation
        if reader.name != "stablehlo.reshape":
            break
        (value,) = reader.results
    if reader.name != _DOT:
        return False
    numbers = stablehlo.DotDimensionNumbers(reader.attributes["dot_dimension_numbers"])
    is_left = uses[0].operand_number == 0
    contracted = (
        numbers.lhs_contracting_dimensions if is_left else numbers.rhs_contracting_dimensions
    )
    last = mlir.RankedTensorType(value.type).rank - 1
    return bool(numbers.lhs_batching_dimensions) and list(contracted) == [last]


def _set_partition_count(plan: PlannedModule) -> None:
    """``mhlo.num_partitions`` becomes the mesh's size; a module traced without a mesh says 1."""
    attributes = plan.module.operation.attributes
    number = attributes.get(NUM_PARTITIONS)
    count = 1 if number is None else mlir.IntegerAttr(number).value
    if count not in (1, plan.mesh.size):
        raise PlanError(
            f"the module was lowered for {count} partitions, the plan's mesh {plan.mesh} has "
            f"{plan.mesh.size} devices. Lower it under the plan's mesh, or under none.",
            place(plan.module.operation.location),
        )
    int32 = mlir.IntegerType.get_signless(32)
    attributes[NUM_PARTITIONS] = mlir.IntegerAttr.get(int32, plan.mesh.size)
    attributes[NUM_REPLICAS] = mlir.IntegerAttr.get(int32, 1)


def _drop_own(op: mlir.Operation) -> None:
    attributes = op.attributes
    for name in [name for name in attributes if name.startswith(OWN_PREFIX)]:
        del attributes[name]


@dataclass(slots=True)
class _Source:
    """What a value of the planned module has become."""

    value: mlir.Value
    sharding: Placement | None
    recomputed: mlir.Operation | None = None
    """The op to make again, where that is cheaper than to move its result."""
    copies: dict[Placement, mlir.Value] = field(default_factory=dict[Placement, mlir.Value])
    """Copies in other shardings that dominate the op at hand."""
    group_of: dict[Placement, int] = field(default_factory=dict[Placement, int])
    """Which readers share a copy."""
    group: int = 0
    """Number of the readers at hand: each is near to the one before, whatever it wants."""
    read_at: int | None = None
    """Where the last of them is: a number of ``_Pinner.position``."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """A reader of a value, and what it wants."""

    position: int
    wanted: Placement
    reader: mlir.Operation


class _Calls:
    """What is handed over to callees, and how many ops run in them."""

    def __init__(self, plan: PlannedModule) -> None:
        self.functions = {_name(function.op): function for function in plan.functions}
        self.handed: dict[str, tuple[Placement | None, ...]] = {}
        self.sizes: dict[str, int] = {}
        total = sum(self._size(f.body) for f in plan.functions if f.is_entry)
        self.near = max(_NEAR_OPS, int(_NEAR_SHARE * total))
        """Readers at most so many ops apart share a copy."""

    def arguments(self, name: str) -> tuple[Placement | None, ...]:
        """What a function gets: what all its readers of an argument want, else what is planned."""
        found = self.handed.get(name)
        if found is None:
            function = self.functions[name]
            found = self.handed[name] = (
                function.arguments if function.is_entry else self._only_wishes(function)
            )
        return found

    def _only_wishes(self, function: PlannedFunction) -> tuple[Placement | None, ...]:
        values = [value for value, _ in function.body.arguments]
        wishes: dict[mlir.Value, set[Placement | None]] = {value: set() for value in values}
        self._collect(function.body, wishes)
        return tuple(
            planned if planned is None or len(wishes[value]) != 1 else next(iter(wishes[value]))
            for value, planned in zip(values, function.arguments, strict=True)
        )

    def _collect(
        self, block: PlannedBlock, wishes: dict[mlir.Value, set[Placement | None]]
    ) -> None:
        for planned in block.ops:
            wanted = self.operands(planned)
            for number, operand in enumerate(planned.op.operands):
                if operand in wishes:
                    wishes[operand].add(wanted[number] if number < len(wanted) else None)
            for inner in planned.blocks:
                self._collect(inner, wishes)

    def operands(self, planned: PlannedOp) -> tuple[Placement | None, ...]:
        """What each operand of an op must be."""
        if planned.op.name != "func.call":
            return planned.operands
        return self.arguments(_callee(planned.op))

    def steps(self, planned: PlannedOp) -> int:
        """How many ops the core has for this one, those of callees and of one trip included."""
        op = planned.op
        inside = sum(map(self._size, planned.blocks))
        if op.name == "func.call":
            name = _callee(op)
            if name not in self.sizes:
                self.sizes[name] = self._size(self.functions[name].body)
            inside = self.sizes[name]
        is_one = (
            op.name not in _NO_OPS_OF_CORE
            and planned.kind in (Kind.COMPUTE, Kind.RECOMPUTED)
            and len(op.results) > 0
            and any(_is_tensor(value) for value in (*op.operands, *op.results))
        )
        return is_one + inside

    def _size(self, block: PlannedBlock) -> int:
        return sum(map(self.steps, block.ops))


def _name(function: mlir.Operation) -> str:
    return mlir.StringAttr(function.attributes["sym_name"]).value


def _is_tensor(value: mlir.Value) -> bool:
    """Of rank 1 or more."""
    return isinstance(value.type, mlir.RankedTensorType) and value.type.rank > 0


def _callee(call: mlir.Operation) -> str:
    return mlir.FlatSymbolRefAttr(call.attributes["callee"]).value


class _Ways:
    """From placement to placement; each way is searched once for a module."""

    def __init__(self, has_all_to_all: bool, padded_to: int) -> None:
        self.has_all_to_all = has_all_to_all
        self.padded_to = padded_to
        """Dims count as a multiple of this."""
        self.known: dict[tuple[Placement, Placement, mlir.Type], tuple[Placement, ...]] = {}
        self.between: dict[Sharding, Placement] = {}

    def steps(
        self, source: Placement, target: Placement, type_: mlir.Type
    ) -> tuple[Placement, ...]:
        """The placements to go through, ``target`` last."""
        key = (source, target, type_)
        found = self.known.get(key)
        if found is None:
            shape = padded_shape(mlir.RankedTensorType(type_).shape, self.padded_to)
            *middle, _ = redistribution_steps(
                source.sharding, target.sharding, shape, self.has_all_to_all
            )
            found = self.known[key] = (*map(self._placement, middle), target)
        return found

    def _placement(self, sharding: Sharding) -> Placement:
        return self.between.setdefault(sharding, Placement(sharding, sharding.rank))


class _Pinner:
    """One walk over one function; ``sources`` follows every value through it."""

    def __init__(
        self,
        form: Form,
        ways: _Ways,
        calls: _Calls,
        one_device_meshes: frozenset[str],
        repeats_batched_matmuls: bool,
    ) -> None:
        self.form = form
        self.ways = ways
        self.calls = calls
        self.one_device_meshes = one_device_meshes
        self.repeats_batched_matmuls = repeats_batched_matmuls
        self.sources: dict[mlir.Value, _Source] = {}
        self.copies_in_block: list[tuple[_Source, Placement]] = []
        self.replaced: list[tuple[mlir.Operation, list[mlir.Value]]] = []
        self.wishes: dict[mlir.Value, list[_Wish]] = {}
        self.joined: set[mlir.Value] = set()
        """Values that the constraint behind their only reader places."""
        self.position = 0
        """Ops before the one at hand, those that run inside them included."""

    def pin(self, function: PlannedFunction) -> None:
        handed = self.calls.arguments(_name(function.op))
        values = [value for value, _ in function.body.arguments]
        body = PlannedBlock(tuple(zip(values, handed, strict=True)), function.body.ops)
        self._block(body, pin_arguments=not function.is_entry)
        for op, values in reversed(self.replaced):
            for result, value in zip(op.results, values, strict=True):
                result.replace_all_uses_with(value)  # readers in regions that are not planned
            op.erase()
        self._boundary(function, "arg_attrs", function.arguments)
        self._boundary(function, "res_attrs", function.results)
        _drop_own(function.op)

    # Blocks and ops -------------------------------------------------------------------------

    def _block(self, block: PlannedBlock, pin_arguments: bool) -> None:
        outer_copies, self.copies_in_block = self.copies_in_block, []
        outer_wishes, self.wishes = self.wishes, self._wishes(block)
        outer_position = self.position
        start = mlir.InsertionPoint(block.ops[0].op)
        for argument, sharding in block.arguments:
            value = argument
            if pin_arguments and next(iter(argument.uses), None) is not None:
                value = self._held(argument, sharding, start, argument.location)
            self.sources[argument] = _Source(value, sharding)
        following = [planned.op for planned in block.ops[1:]]
        for planned, next_op in zip(block.ops, [*following, None], strict=True):
            self._op(planned, next_op)
            self.position += self.calls.steps(planned)
        for source, sharding in self.copies_in_block:
            source.copies.pop(sharding, None)
        self.copies_in_block = outer_copies
        self.wishes, self.position = outer_wishes, outer_position

    def _wishes(self, block: PlannedBlock) -> dict[mlir.Value, list[_Wish]]:
        """Who in the block wants what of a value, in order."""
        found: dict[mlir.Value, list[_Wish]] = {}
        position = self.position
        for planned in block.ops:
            if planned.kind is Kind.COMPUTE:
                for operand, wanted in zip(
                    planned.op.operands, self.calls.operands(planned), strict=False
                ):
                    if wanted is not None and wanted.rank:
                        found.setdefault(operand, []).append(_Wish(position, wanted, planned.op))
            position += self.calls.steps(planned)
        return found

    def _op(self, planned: PlannedOp, next_op: mlir.Operation | None) -> None:
        op = planned.op
        if planned.kind is Kind.DROPPED:
            op.erase()
            return
        if planned.kind is Kind.IDENTITY:
            self._identity(planned)
            return
        operands = op.operands
        for index, wanted in enumerate(self.calls.operands(planned)):
            operand = operands[index]
            value = self._read(operand, wanted, op)
            if value != operand:
                operands[index] = value
        for block in planned.blocks:
            self._block(block, pin_arguments=True)
        emit = self.form.emitter(mlir.InsertionPoint(op), op.location)
        keep_slices_apart(planned, emit)
        crop_whole_images(planned, emit)
        on_blocks = block_op(planned)
        if on_blocks is not None:
            self._on_blocks(planned, on_blocks)
            return
        self._drop_attributes(planned)
        if planned.kind is Kind.RECOMPUTED:
            self.sources[op.results[0]] = _Source(op.results[0], planned.results[0], op)
            return
        if next_op is not None:
            self._results(planned, mlir.InsertionPoint(next_op))

    def _results(self, planned: PlannedOp, where: mlir.InsertionPoint) -> None:
        op = planned.op
        for result, computed, final in zip(
            op.results, planned.computed, planned.results, strict=True
        ):
            repeats = self.repeats_batched_matmuls and _is_contracted_in_a_batch(op)
            if repeats and computed is not None:
                value = self._behind_barrier(result, computed, where, op.location)
                value = self._moved(value, computed, final, where, op.location)
                self.sources[result] = _Source(value, final)
                continue
            if self._is_joined(op, result, computed, final):
                self.joined.add(result)
                self.sources[result] = _Source(result, final)
                continue
            value = self._placed(result, computed, final, where, op.location)
            self.sources[result] = _Source(value, final)

    def _on_blocks(self, planned: PlannedOp, on_blocks: BlockOp) -> None:
        """Write an op that every device computes on its own blocks."""
        op = planned.op
        where = mlir.InsertionPoint(op)
        values = self.form.on_blocks(on_blocks, where)
        if on_blocks.is_partial:
            values = [added_parts(value, where, op.location) for value in values]
        values = [
            self._placed(value, computed, final, where, op.location)
            for value, computed, final in zip(
                values, planned.computed, planned.results, strict=True
            )
        ]
        for result, value, final in zip(op.results, values, planned.results, strict=True):
            self.sources[result] = _Source(value, final)
        self.replaced.append((op, values))

    def _is_joined(
        self,
        op: mlir.Operation,
        result: mlir.Value,
        computed: Placement | None,
        final: Placement | None,
    ) -> bool:
        """Whether a matmul, and the views that it is joined with, end behind ``result``'s reader.

        Then that reader's constraint says where ``result`` is.
        """
        if op.name not in _MATMULS and not (op.name in _VIEWS and op.operands[0] in self.joined):
            return False
        wishes = self.wishes.get(result, ())
        return (
            len(list(result.uses)) == 1
            and len(wishes) == 1
            and wishes[0].reader.name in _VIEWS
            and wishes[0].wanted is computed is final
        )

    def _identity(self, planned: PlannedOp) -> None:
        """The readers of a mark or an old constraint read its operand, in the plan's sharding."""
        op = planned.op
        source = self.sources[op.operands[0]]
        (sharding,) = planned.results
        if source.recomputed:
            self.sources[op.results[0]] = _Source(
                source.value, sharding, source.recomputed, source.copies
            )
            self.replaced.append((op, [source.value]))
            return
        value = self._read(op.operands[0], sharding, op)
        self.sources[op.results[0]] = _Source(value, sharding)
        self.replaced.append((op, [value]))

    # Values ---------------------------------------------------------------------------------

    def _placed(
        self,
        value: mlir.Value,
        computed: Placement | None,
        final: Placement | None,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        """What an op gives, held where it is computed, then brought to where it is planned."""
        value = self._held(value, computed, where, why)
        return self._moved(value, computed, final, where, why)

    def _held(
        self,
        value: mlir.Value,
        sharding: Placement | None,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        if sharding is None or not sharding.rank:
            return value
        return self.form.constraint(value, sharding, where, why)

    def _moved(
        self,
        value: mlir.Value,
        source: Placement | None,
        target: Placement | None,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        """``value``, held in ``source``, redistributed step by step."""
        if source is target or source is None or target is None or not target.rank:
            return value
        for step in self.ways.steps(source, target, value.type):
            value = self.form.constraint(value, step, where, why)
        return value

    def _read(
        self, operand: mlir.Value, wanted: Placement | None, reader: mlir.Operation
    ) -> mlir.Value:
        """``operand`` in the sharding its reader wants."""
        source = self.sources[operand]
        if source.recomputed:
            return self._made_again(source, wanted or source.sharding)
        if reader.name not in _NO_OPS_OF_CORE:
            if source.read_at is not None and not self._is_near(source.read_at):
                source.group += 1
            source.read_at = self.position
        if wanted is None or source.sharding is None or wanted is source.sharding:
            return source.value
        where = mlir.InsertionPoint(reader)
        copy = source.copies.get(wanted)
        if copy is None or source.group_of[wanted] != source.group:
            larger = self._larger_copy(operand, source, wanted)
            if larger is not None:
                start = self._read(operand, larger, reader)
                copy = self._moved(start, larger, wanted, where, reader.location)
            else:
                start = source.value
                if copy is not None:
                    start = self._behind_barrier(start, source.sharding, where, reader.location)
                copy = self._moved(start, source.sharding, wanted, where, reader.location)
            source.copies[wanted] = copy
            source.group_of[wanted] = source.group
            self.copies_in_block.append((source, wanted))
        return copy

    def _is_near(self, position: int) -> bool:
        return abs(self.position - position) <= self.calls.near

    def _larger_copy(
        self, operand: mlir.Value, source: _Source, wanted: Placement
    ) -> Placement | None:
        """A copy that a close reader has or will ask for, of which ``wanted`` is a part."""
        assert source.sharding is not None
        if only_cuts(source.sharding.sharding, wanted.sharding):
            return None
        for wish in self.wishes.get(operand, ()):
            if (
                wish.wanted is not wanted
                and wish.wanted is not source.sharding
                and self._is_near(wish.position)
                and only_cuts(wish.wanted.sharding, wanted.sharding)
            ):
                return wish.wanted
        return None

    def _behind_barrier(
        self, value: mlir.Value, sharding: Placement, where: mlir.InsertionPoint, why: mlir.Location
    ) -> mlir.Value:
        """The same value, such that no pass finds it equal to the first one."""
        behind = mlir.Operation.create(
            "stablehlo.optimization_barrier",
            results=[value.type],
            operands=[value],
            loc=why,
            ip=where,
        ).results[0]
        return self._held(behind, sharding, where, why)

    def _made_again(self, source: _Source, wanted: Placement | None) -> mlir.Value:
        """The result of a cheap op in the sharding its reader wants; the first asks for free."""
        op = source.recomputed
        if op is None or wanted is None or not wanted.rank:
            return source.value
        copy = source.copies.get(wanted)
        if copy is not None:
            return copy
        made = op.clone(ip=mlir.InsertionPoint(op)) if source.copies else op
        where = mlir.InsertionPoint.after(made)
        copy = self._held(made.results[0], wanted, where, op.location)
        source.copies[wanted] = copy
        return copy

    # Attributes -----------------------------------------------------------------------------

    def _drop_attributes(self, planned: PlannedOp) -> None:
        """Take the plan off the op, and shardings of its own, which the constraints now say.

        A call back into Python runs on one device and says so: that stays.
        """
        attributes = planned.op.attributes
        placed = (
            not planned.results
            or None in planned.results
            or is_on_one_device(planned.op, self.one_device_meshes)
        )
        for name in list(attributes):
            if name.startswith(OWN_PREFIX) or (
                name in (MHLO_SHARDING, SDY_SHARDING)
                and not (placed and name == self.form.boundary_attribute)
            ):
                del attributes[name]

    def _boundary(
        self, function: PlannedFunction, key: str, shardings: tuple[Placement | None, ...]
    ) -> None:
        attributes = function.op.attributes
        if key in attributes:
            old = [mlir.DictAttr(item) for item in mlir.ArrayAttr(attributes[key])]
        else:
            old = [mlir.DictAttr.get({}) for _ in shardings]
        new: list[mlir.Attribute] = []
        for entries, sharding in zip(old, shardings, strict=True):
            named = [entries[number] for number in range(len(entries))]
            kept = {
                entry.name: entry.attr
                for entry in named
                if entry.name not in (MHLO_SHARDING, SDY_SHARDING)
                and not entry.name.startswith(OWN_PREFIX)
            }
            if function.is_entry and sharding is not None:
                kept[self.form.boundary_attribute] = self.form.boundary(sharding)
            new.append(mlir.DictAttr.get(kept))
        attributes[key] = mlir.ArrayAttr.get(new)
