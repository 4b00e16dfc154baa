"""Stages of steps: who is where, what crosses, and that the step stays what it was."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_micro_batches import module_of, sgd, whole_numbers

import autoshard
from autoshard.cluster import Cluster
from autoshard.errors import PassOptionError, PlanError
from autoshard.ir import mlir
from autoshard.ir.attributes import LEVEL, MICRO_BATCHES, STAGE
from autoshard.ir.boundary import main_function
from autoshard.ir.compile import compile_module
from autoshard.ir.lowering import lower_marks
from autoshard.ir.micro_batch_loop import micro_batch_loop
from autoshard.ir.module import operations_of
from autoshard.ir.native import verify
from autoshard.passes.micro_batch import MicroBatch
from autoshard.passes.pipeline import run_passes
from autoshard.passes.pipeline_stages import PipelineStages
from autoshard.rewrites.stages import TimedStep

BATCH, WIDTH = 8, 4


def layers(count, seed=0):
    return [whole_numbers((WIDTH, WIDTH), seed + n, -1, 2) for n in range(count)]


def batch():
    return whole_numbers((BATCH, WIDTH), 50), whole_numbers((BATCH, WIDTH), 51)


def chain(params, x, y):
    for w in params:
        x = jnp.maximum(x @ w, 0)
    return jnp.sum((x - y) ** 2)


class Staged:
    """A step in micro-batches and stages."""

    def __init__(self, step, arguments, stages, count=4, **options):
        with lower_marks():
            module = module_of(step, arguments)
        sizes = [len(jax.tree.leaves(argument)) for argument in arguments]
        first = sizes[0]  # the batch is all but the first argument
        passes = [
            MicroBatch(micro_batches=count, batch=tuple(range(first, sum(sizes)))),
            PipelineStages(stages=stages, cluster="cpu:1", **options),
        ]
        run_passes(module, passes)
        verify(module)
        self.arguments, self.module = arguments, module
        main = main_function(module)
        self.loop = micro_batch_loop(main)
        self.body = self.loop.regions[1].blocks[0]
        self.main = main.regions[0].blocks[0]

    def check(self, step):
        """Its results are those of the step, and no op reads what is not there yet."""
        compiled = compile_module(self.module, jax.devices()[:1])
        found = compiled.run(*map(np.asarray, jax.tree.leaves(self.arguments)))
        wanted = jax.tree.leaves(jax.jit(step)(*self.arguments))
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for block in (self.body, self.main):
            for op in block.operations:
                check_order(op.operation, block)
        return self

    def tasks(self, block):
        return Counter(
            (labels[0], labels[1])
            for op in block.operations
            if (labels := labels_of(op.operation)) is not None
        )

    def crossing(self):
        """Types of the arrays that cross in the loop, each once for every stage that reads it."""
        found = set()
        for op in self.body.operations:
            for number, result in enumerate(op.operation.results):
                for use in result.uses:
                    ends = labels_of(op.operation), labels_of(top(use.owner, self.body))
                    if None not in ends and ends[0][0] != ends[1][0]:
                        found.add((op.operation, number, ends[0][0], ends[1][0], str(result.type)))
        return [each[2:] for each in found]

    def stage_of(self, name):
        """Stages of the ops of one name in the loop, in their order."""
        return [
            labels_of(op.operation)[0]
            for op in self.body.operations
            if op.operation.name == f"stablehlo.{name}"
        ]


def labels_of(op):
    if STAGE not in op.attributes:
        return None
    return op.attributes[STAGE].value, op.attributes[LEVEL].value


def top(op, block):
    found = op.operation
    while found.block != block:
        found = found.parent.operation
    return found


def is_before(op, block):
    """Is an op before the loop over micro-batches of its block?"""
    loops = [each.operation for each in block.operations if MICRO_BATCHES in each.attributes]
    return bool(loops) and op.is_before_in_block(loops[0])


def check_order(op, block):
    """An op is behind what it reads, by one level more where the stages differ."""
    labels = labels_of(op)
    if labels is None:
        return
    for inner in operations_of(op):
        for value in inner.operands:
            owner = value.owner
            if not hasattr(owner, "operation") or owner.operation.block != block:
                continue
            before = labels_of(owner.operation)
            if before is None:  # the loop
                continue
            if is_before(owner.operation, block) and not is_before(op, block):
                continue  # levels count anew behind the loop
            assert labels[1] >= before[1] + (before[0] != labels[0]), (op.name, labels, before)


def test_a_chain_is_cut_into_equal_stages_and_gradients_go_back():
    step, arguments = sgd(chain), (layers(8), *batch())
    staged = Staged(step, arguments, 4).check(step)
    dots = staged.stage_of("dot_general")
    forward, backward = dots[:8], dots[8:]
    assert forward == sorted(forward)
    assert set(forward) == {0, 1, 2, 3}
    # Of each layer but the first the gradients of its input and of its weights.
    assert backward == [stage for stage in reversed(forward) for _ in range(2)][:15]
    assert sorted(staged.tasks(staged.body), key=lambda task: task[1]) == [
        (0, 0), (1, 1), (2, 2), (3, 3), (2, 4), (1, 5), (0, 6),
    ]  # fmt: skip
    small = f"tensor<{BATCH // 4}x{WIDTH}xf32>"
    assert sorted(staged.crossing()) == sorted(
        [(s, s + 1, small) for s in range(3)] + [(s + 1, s, small) for s in range(3)]
    )


def test_gradients_of_a_shared_weight_meet_once_a_step():
    def tied(params, x, y):
        table, rest = params[0], params[1:]
        return chain([table, *rest, table.T], x, y)

    step, arguments = sgd(tied), (layers(3), *batch())
    staged = Staged(step, arguments, 2).check(step)
    weights = f"tensor<{WIDTH}x{WIDTH}xf32>"
    assert weights not in [type_ for _, _, type_ in staged.crossing()]
    assert len(staged.loop.results) == len(staged.body.arguments)


def test_a_sum_that_is_added_to_itself_is_split_over_its_stages():
    def doubled(params, x, y):
        table, rest = params[0] + params[0], params[1:]
        return chain([table, *rest, table.T], x, y)

    step, arguments = sgd(doubled), (layers(3), *batch())
    staged = Staged(step, arguments, 2).check(step)
    assert f"tensor<{WIDTH}x{WIDTH}xf32>" not in [type_ for _, _, type_ in staged.crossing()]


def test_a_clip_by_the_norm_of_all_gradients_takes_two_more_levels():
    def step(params, x, y):
        loss, gradients = jax.value_and_grad(chain)(params, x, y)
        norm = sum(jnp.sum(g * g) for g in gradients)
        # A power of two, so that the quotient is exact.
        scale = jnp.exp2(-jnp.ceil(jnp.log2(1 + norm)))
        return [p - scale * g for p, g in zip(params, gradients, strict=True)], loss

    arguments = (layers(4), *batch())
    staged = Staged(step, arguments, 2).check(step)
    assert {level for _, level in staged.tasks(staged.main)} == {0, 1, 2}
    assert (1, 1) not in staged.tasks(staged.main)


def test_what_updates_read_of_no_gradient_is_computed_by_each_stage():
    def step(state, x, y):
        params, rate = state
        loss, gradients = jax.value_and_grad(chain)(params, x, y)
        power = rate
        for _ in range(50):  # read twice each: there are 2 ** 50 ways to the first one
            power = power * power
        return ([p - power * g for p, g in zip(params, gradients, strict=True)], rate), loss

    arguments = ((layers(4), np.float32(1)), *batch())
    staged = Staged(step, arguments, 2).check(step)
    products = [
        labels_of(op.operation)[0]
        for op in staged.main.operations
        if op.operation.name == "stablehlo.multiply" and not op.operation.results[0].type.shape
    ]
    assert Counter(products) == {0: 50, 1: 50}


def test_a_skip_over_stages_is_sent_to_who_reads_it():
    def skip(params, x, y):
        kept = x @ params[0]
        for w in params[1:]:
            x = jnp.maximum(x @ w, 0)
        return jnp.sum((x * kept - y) ** 2)

    step, arguments = sgd(skip), (layers(5), *batch())
    Staged(step, arguments, 2).check(step)


def test_two_streams_cross_together():
    def streams(params, x, y):
        other = 2 * x
        for a, b in zip(params[::2], params[1::2], strict=True):
            x, other = jnp.maximum(x @ a + other, 0), jnp.maximum(other @ b, 0)
        return jnp.sum((x + other - y) ** 2)

    step, arguments = sgd(streams), (layers(8), *batch())
    staged = Staged(step, arguments, 2).check(step)
    assert Counter(ends[:2] for ends in staged.crossing()) == {(0, 1): 2, (1, 0): 2}


def test_what_is_computed_again_is_with_the_gradients_that_need_it():
    def again(params, x, y):
        @jax.checkpoint
        def pair(x, a, b):
            return jnp.maximum(jnp.maximum(x @ a, 0) @ b, 0)

        for a, b in zip(params[::2], params[1::2], strict=True):
            x = pair(x, a, b)
        return jnp.sum((x - y) ** 2)

    step, arguments = sgd(again), (layers(8), *batch())
    staged = Staged(step, arguments, 2).check(step)
    assert set(staged.tasks(staged.body)) == {(0, 0), (1, 1), (0, 2)}
    assert len(staged.crossing()) == 2


def test_masks_of_the_batch_are_made_on_every_stage():
    def masked(params, x, y):
        mask = (x[:, :1] > 0).astype(x.dtype)
        for w in params:
            x = jnp.maximum(x @ w, 0) * mask
        return jnp.sum((x - y) ** 2)

    step, arguments = sgd(masked), (layers(4), *batch())
    staged = Staged(step, arguments, 2).check(step)
    small = f"tensor<{BATCH // 4}x{WIDTH}xf32>"
    assert {type_ for _, _, type_ in staged.crossing()} == {small}


def marked(stages):
    def loss(params, x, y):
        for w, stage in zip(params, stages, strict=True):
            layer = autoshard.pipeline_stage(lambda w, x: jnp.maximum(x @ w, 0), stage)
            x = layer(w, x)
        return jnp.sum((x - y) ** 2)

    return loss


def test_marks_say_where_the_cuts_are():
    loss = marked([0, 0, 0, 0, 0, 1])
    step, arguments = sgd(loss), (layers(6), *batch())
    staged = Staged(step, arguments, 2).check(step)
    assert staged.stage_of("dot_general")[:6] == [0, 0, 0, 0, 0, 1]
    assert "@autoshard.pipeline_stage" not in str(staged.module)


def test_marks_order_what_the_program_does_not():
    def towers(params, x, y):
        one = autoshard.pipeline_stage(lambda x: chain_of(params[:2], x), 1)(x)
        other = autoshard.pipeline_stage(lambda x: chain_of(params[2:], x), 0)(x)
        return jnp.sum((one + other - y) ** 2)

    def chain_of(params, x):
        for w in params:
            x = jnp.maximum(x @ w, 0)
        return x

    step, arguments = sgd(towers), (layers(4), *batch())
    staged = Staged(step, arguments, 2).check(step)
    assert staged.stage_of("dot_general")[:4] == [1, 1, 0, 0]


def test_a_loop_inside_of_a_stage_is_marked_by_what_it_does():
    def loss(params, x, y):
        inner = autoshard.pipeline_stage(lambda x: jnp.maximum(x @ params[1], 0), 1)
        x = jnp.maximum(x @ params[0], 0)
        x, _ = jax.lax.scan(lambda x, _: (inner(x), None), x, length=2)
        return jnp.sum((x - y) ** 2)

    step, arguments = sgd(loss), (layers(2), *batch())
    staged = Staged(step, arguments, 2).check(step)
    assert set(staged.stage_of("while")) == {1}


@pytest.mark.parametrize(
    ("stages", "loss", "said"),
    [
        (2, marked([0, 1, 0, 1]), r"test_stages.py:\d+:\d+: a value is marked as on stage 0, and"),
        (2, marked([0, 0, 1, 2]), r"test_stages.py:\d+:\d+: .* says stage 2, and there are 2"),
        (3, marked([0, 0, 2, 2]), "leave a stage nothing to do|marked as on stage"),
        (4, chain, "stages=4: the step has 2 products"),
    ],
)
def test_stages_that_cannot_be_are_refused(stages, loss, said):
    arguments = (layers(2 if loss is chain else 4), *batch())
    with pytest.raises(PlanError, match=said):
        Staged(sgd(loss), arguments, stages)


def test_a_loop_over_all_layers_is_refused_with_the_way_out():
    def scanned(params, x, y):
        body = lambda x, w: (jnp.maximum(x @ w, 0), None)  # noqa: E731
        x, _ = jax.lax.scan(body, x @ params[0][0], params[0])
        return jnp.sum((x @ params[0][1] - y) ** 2)

    arguments = ([np.stack(layers(40))], *batch())
    with pytest.raises(PlanError, match=r"test_stages.py:\d+:\d+: .*one loop takes .*unroll=True"):
        Staged(sgd(scanned), arguments, 2)


def test_a_loop_with_marks_of_several_stages_is_refused():
    def loss(params, x, y):
        def body(x, w):
            x = autoshard.pipeline_stage(x @ w, 0)
            return autoshard.pipeline_stage(jnp.maximum(x, 0), 1), None

        x, _ = jax.lax.scan(body, x, params[0])
        return jnp.sum((x - y) ** 2)

    arguments = ([np.stack(layers(4))], *batch())
    with pytest.raises(PlanError, match=r"stages 0 and 1 are in one loop"):
        Staged(sgd(loss), arguments, 2)


def test_counts_that_do_not_go_together_are_refused():
    arguments = (layers(4), *batch())
    with pytest.raises(PlanError, match="micro_batches=2 is smaller than stages=4"):
        Staged(sgd(chain), arguments, 4, count=2)
    with pytest.raises(PlanError, match=r"8 devices of .* do not fall on 3 stages"):
        run_passes(module_of(chain, arguments), [PipelineStages(stages=3, cluster="cpu:8")])
    with pytest.raises(PlanError, match="has no loop over micro-batches"):
        run_passes(module_of(chain, arguments), [PipelineStages(stages=2, cluster="cpu:8")])
    with pytest.raises(PassOptionError, match="no cluster is given"):
        PipelineStages(stages=2)


def test_chunks_lie_on_the_stages_in_turn():
    step, arguments = sgd(chain), (layers(8), *batch())
    staged = Staged(step, arguments, 2, chunks=2).check(step)
    forward = staged.stage_of("dot_general")[:8]
    assert [a for n, a in enumerate(forward) if n == 0 or forward[n - 1] != a] == [0, 1, 0, 1]
    assert sorted(staged.tasks(staged.body), key=lambda task: task[1]) == [
        (0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5), (0, 6),
    ]  # fmt: skip


def test_marks_are_numbers_of_parts_where_stages_have_several():
    step, arguments = sgd(marked([0, 1, 1, 2, 3])), (layers(5), *batch())
    staged = Staged(step, arguments, 2, chunks=2).check(step)
    assert staged.stage_of("dot_general")[:5] == [0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([0, 1, 2, 4], r"says part 4 of the model, and 2 stages with chunks=2 have 4, 0 to 3"),
        ([0, 2, 1, 3], r"marked as on part 1, and other marks lead to part 2"),
        ([0, 1, 1, 3], r"leave a part nothing to do. Mark something of every part, 0 to 3"),
        ([None] * 3, r"stages=2 chunks=2: the step has 3 products .* each of 4 parts needs one"),
    ],
)
def test_parts_that_cannot_be_are_refused(parts, said):
    loss = chain if parts[0] is None else marked(parts)
    with pytest.raises(PlanError, match=said):
        Staged(sgd(loss), (layers(len(parts)), *batch()), 2, chunks=2)


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (4, 1), (2, 2), (2, 3)])
def test_parts_of_the_model_are_those_of_the_cut(stages, chunks):
    module = module_of(sgd(chain), (layers(6), *batch()))
    run_passes(module, [MicroBatch(4, tuple(str(6 + n) for n in range(2)))])
    with module.context, mlir.Location.unknown():
        step = TimedStep.of(module, 4, Cluster.of("h100:1"), "stage")
        cut, parts = (of(stages, chunks, 1.05) for of in (step.cut, step.parts))
    assert parts.seconds == cut.seconds
    assert [(it.op, it.bytes, it.values) for it in parts.cuts] == [
        (it.op, it.bytes, it.values) for it in cut.cuts
    ]
    assert cut.places
    assert not parts.places


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (3, 1), (2, 3)])
def test_parts_on_the_line_are_exact_where_cuts_are_between_layers(stages, chunks):
    module = module_of(sgd(chain), (layers(6), *batch()))
    run_passes(module, [MicroBatch(4, tuple(str(6 + n) for n in range(2)))])
    with module.context, mlir.Location.unknown():
        step = TimedStep.of(module, 4, Cluster.of("h100:1"), "stage")
        exact, about = (of(stages, chunks, 1.05) for of in (step.parts, step.parts_on_line))
    assert about.seconds == pytest.approx(exact.seconds, rel=1e-12)
    assert [cut.op for cut in about.cuts] == [cut.op for cut in exact.cuts]
