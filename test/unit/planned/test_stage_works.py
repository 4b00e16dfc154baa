"""What stages do for a micro-batch, and what ops take on one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.passes.micro_batch import MicroBatch
from autoshard.passes.pipeline import run_passes
from autoshard.passes.pipeline_stages import PipelineStages
from autoshard.planned.op_seconds import op_seconds
from autoshard.planned.stage_works import stage_works

CLUSTER = Cluster.of("h100:1")


def chain(params, x, y):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def step(params, x, y):
    loss, gradients = jax.value_and_grad(chain)(params, x, y)
    return [p - 0.1 * g for p, g in zip(params, gradients, strict=True)], loss


def module_of(fn, *arguments):
    return parse_bytes(jax.jit(fn).lower(*arguments).as_text().encode(), new_context())


def arguments():
    return [jnp.ones((256, 256))] * 8, jnp.ones((4096, 256)), jnp.ones((4096, 256))


@pytest.fixture(scope="module")
def staged():
    module = module_of(step, *arguments())
    passes = [
        MicroBatch(micro_batches=4, batch=(8, 9)),
        PipelineStages(stages=2, cluster="h100:2"),
    ]
    run_passes(module, passes)
    return module


def works_of(module, **options):
    with module.context, mlir.Location.unknown():
        return stage_works(module, CLUSTER, **options)


def test_a_stage_goes_forward_and_back_and_the_last_one_does_both_at_once(staged):
    works = works_of(staged, splits_gradients=False)
    assert [(work.name, work.stage, work.after, work.ahead) for work in works] == [
        ("F", 0, (), 1),
        ("FB", 1, (0,), 0),
        ("B", 0, (0, 1), -1),
    ]


def test_what_nobody_waits_for_is_a_work_of_its_own(staged):
    whole, parts = (works_of(staged, splits_gradients=split) for split in (False, True))
    assert [(work.name, work.stage, work.is_deferred) for work in parts] == [
        ("F", 0, False),
        ("FB", 1, False),
        ("W", 1, True),
        ("I", 0, False),
        ("W", 0, True),
    ]
    assert sum(work.seconds for work in parts) == pytest.approx(sum(w.seconds for w in whole))
    # Nobody waits for the first stage's gradients.
    assert parts[3].seconds == pytest.approx(0, abs=1e-12)


def test_seconds_of_ops_add_up_to_those_of_the_plan_on_one_device():
    module = module_of(chain, *arguments())
    seconds = op_seconds(module, operations_of(module.operation), CLUSTER)
    plan = autoshard.plan(chain, *arguments(), cluster="h100:1")
    assert sum(seconds) == pytest.approx(plan.compute_seconds)
    assert len([took for took in seconds if took]) < len(seconds)
