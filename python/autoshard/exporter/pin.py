"""Write a plan into a module such that a partitioner cannot change it.

Every value of rank 1 or more gets a closed constraint right after the op that makes it, and all
its readers read the constrained value. An operand that its op wants elsewhere is resharded by
a constraint right before the op; ``copies`` says who shares it. What a callee reads in one sharding
only is handed over in that sharding. Loops are pinned at their operands, block arguments, yields
and results.

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

from autoshard.exporter.blocks import BlockOp, Emitter, added_parts, block_op
from autoshard.exporter.blocks.cropped import crop_whole_images
from autoshard.exporter.callees import Callees, name_of
from autoshard.exporter.constraints import Constraints
from autoshard.exporter.copies import Copies
from autoshard.exporter.distances import Distances
from autoshard.exporter.form import Form
from autoshard.exporter.join import join_reshapes
from autoshard.exporter.matmuls import JoinedViews, is_contracted_in_a_batch
from autoshard.exporter.plan_attributes import (
    drop_own,
    drop_plan,
    set_partition_count,
    write_boundary,
)
from autoshard.exporter.starts import keep_slices_apart
from autoshard.exporter.transposed_sums import turn_transposed_sums
from autoshard.ir import mlir
from autoshard.planned.module import (
    Kind,
    PlannedBlock,
    PlannedFunction,
    PlannedModule,
    PlannedOp,
    read_plan,
)


def export(module: mlir.Module, form: Form) -> None:
    """Pin every value of a planned module, and take the plan's own attributes away.

    Raises:
        AutoshardError: The plan is not complete or cannot hold; the module is as it was.
    """
    with module.context:
        pin(read_plan(module), form)


def pin(plan: PlannedModule, form: Form) -> None:
    """As ``export``, for a plan that has been read. Expects the module's context to be current."""
    set_partition_count(plan)
    form.begin(plan)
    plan = turn_transposed_sums(join_reshapes(plan))
    constraints = Constraints(
        form,
        has_all_to_all=plan.has_all_to_all,
        padded_to=plan.mesh.size if plan.pads else 1,
    )
    callees, distances = Callees(plan), Distances(plan)
    for function in plan.functions:
        _Pinner(plan, form, constraints, callees, distances).pin(function)
    drop_own(plan.module.operation)


class _Pinner:
    """One walk over one function; ``copies`` follows every value through it."""

    def __init__(
        self,
        plan: PlannedModule,
        form: Form,
        constraints: Constraints,
        callees: Callees,
        distances: Distances,
    ) -> None:
        self.form = form
        self.constraints = constraints
        self.callees = callees
        self.distances = distances
        self.one_device_meshes = plan.one_device_meshes
        self.repeats_batched_matmuls = plan.may_be_compiled_so("fusion.repeats_batched_matmuls")
        self.copies = Copies(constraints, callees, distances)
        self.joined = JoinedViews(self.copies)
        self.replaced: list[tuple[mlir.Operation, list[mlir.Value]]] = []

    def pin(self, function: PlannedFunction) -> None:
        """Pin all values, those of inner blocks included, and the boundary."""
        handed = self.callees.arguments(name_of(function.op))
        values = [value for value, _ in function.body.arguments]
        body = PlannedBlock(tuple(zip(values, handed, strict=True)), function.body.ops)
        self._block(body, pin_arguments=not function.is_entry)
        for op, values in reversed(self.replaced):
            for result, value in zip(op.results, values, strict=True):
                result.replace_all_uses_with(value)  # readers in regions that are not planned
            op.erase()
        write_boundary(function, self.form)

    def _block(self, block: PlannedBlock, pin_arguments: bool) -> None:
        with self.copies.inside(block):
            start = mlir.InsertionPoint(block.ops[0].op)
            for argument, sharding in block.arguments:
                value = argument
                if pin_arguments and next(iter(argument.uses), None) is not None:
                    value = self.constraints.held(argument, sharding, start, argument.location)
                self.copies.become(argument, value, sharding)
            following = [planned.op for planned in block.ops[1:]]
            for planned, next_op in zip(block.ops, [*following, None], strict=True):
                ops = self.distances.ops_of(planned)
                self._op(planned, next_op)
                self.copies.go_past(ops)

    def _op(self, planned: PlannedOp, next_op: mlir.Operation | None) -> None:
        op = planned.op
        if planned.kind is Kind.DROPPED:
            op.erase()
            return
        if planned.kind is Kind.IDENTITY:
            self._identity(planned)
            return
        operands = op.operands
        for index, wanted in enumerate(self.callees.operands(planned)):
            operand = operands[index]
            value = self.copies.read(operand, wanted, op)
            if value != operand:
                operands[index] = value
        for block in planned.blocks:
            self._block(block, pin_arguments=True)
        emit = self.form.emitter(mlir.InsertionPoint(op), op.location)
        self._keep_slices_apart(planned, emit)
        crop_whole_images(planned, emit)
        on_blocks = block_op(planned)
        if on_blocks is not None:
            self._on_blocks(planned, on_blocks)
            return
        drop_plan(planned, self.form, self.one_device_meshes)
        if planned.kind is Kind.RECOMPUTED:
            self.copies.be_recomputed(op, planned.results[0])
        elif next_op is not None:
            self._results(planned, mlir.InsertionPoint(next_op))

    def _keep_slices_apart(self, planned: PlannedOp, emit: Emitter) -> None:
        """What is written before the operands lies as they do, or GSPMD may cut a clamped index."""
        op = planned.op
        before = list(op.operands)
        keep_slices_apart(planned, emit)
        for index, (known, wanted) in enumerate(zip(before, planned.operands, strict=True)):
            if op.operands[index] != known:
                operand, where = op.operands[index], mlir.InsertionPoint(op)
                op.operands[index] = self.constraints.held(operand, wanted, where, op.location)

    def _identity(self, planned: PlannedOp) -> None:
        """The readers of a mark or an old constraint read its operand, in the plan's sharding."""
        op = planned.op
        (sharding,) = planned.results
        value = self.copies.pass_on(op.operands[0], op.results[0], sharding, op)
        self.replaced.append((op, [value]))

    def _results(self, planned: PlannedOp, where: mlir.InsertionPoint) -> None:
        """Pin what an op gives, which stays as it is."""
        op = planned.op
        repeats = self.repeats_batched_matmuls and is_contracted_in_a_batch(op)
        for result, computed, final in zip(
            op.results, planned.computed, planned.results, strict=True
        ):
            value = result
            is_repeated = repeats and computed is not None
            if is_repeated or not self.joined.take(planned, result, computed, final):
                at = where, op.location
                scattered = self.joined.scattered(planned)
                value = self.constraints.added_up(value, computed, scattered, *at)
                if is_repeated:
                    value = self.constraints.behind_barrier(value, *at)
                value = self.constraints.placed(value, computed, final, *at)
            self.copies.become(result, value, final)

    def _on_blocks(self, planned: PlannedOp, on_blocks: BlockOp) -> None:
        """Write an op that every device computes on its own blocks."""
        op = planned.op
        where = mlir.InsertionPoint(op)
        values = self.form.on_blocks(on_blocks, where)
        if on_blocks.is_partial:
            values = [added_parts(value, where, op.location) for value in values]
        values = [
            self.constraints.placed(value, computed, final, where, op.location)
            for value, computed, final in zip(
                values, planned.computed, planned.results, strict=True
            )
        ]
        for result, value, final in zip(op.results, values, planned.results, strict=True):
            self.copies.become(result, value, final)
        self.replaced.append((op, values))
