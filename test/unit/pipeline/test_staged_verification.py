"""Compiled tasks beside planned ones, with a compiler of the test's own."""

import json

import jax
import numpy as np
import pytest

import autoshard
from autoshard.pipeline.staged_verification import verify_staged_step
from autoshard.pipeline.values import signature
from autoshard.planned.given_plan import cost_of_module
from autoshard.verify.ahead_of_time import CompiledProgram

STAGE = autoshard.Cluster.parse("cpu:2")
USABLE = STAGE.usable_memory_bytes


def layers(weights, x):
    def loss(weights):
        hidden = x
        for stage, own in enumerate(weights):
            layer = autoshard.pipeline_stage(lambda h, w: jax.numpy.maximum(h @ w, 0), stage)
            hidden = layer(hidden, own)
        return hidden.sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - g for w, g in zip(weights, gradients, strict=True)], value


@pytest.fixture(scope="module")
def step():
    weights = [np.ones((8, 8), "f")] * 4
    pipeline = autoshard.Pipeline(4, 4, "1f1b")
    plan = autoshard.plan(
        layers, weights, np.ones((16, 8), "f"), cluster="cpu:8", mesh="d=2", pipeline=pipeline
    )
    return plan.pipeline.step


def verified(step, made_for, **fields):
    """What comes of programs with these fields; the clusters that they are compiled for.

    Args:
        step: The pipeline.
        made_for: The bytes that a program takes of a device of a cluster; None: it does not fit.
        fields: Others of the program.
    """
    clusters = []

    def compiler(module, cluster, **_):
        clusters.append(cluster)
        needed = made_for(cluster)
        return CompiledProgram(
            target=cluster.name,
            compiler="a compiler",
            partitioner="shardy",
            fits=needed is not None and needed <= cluster.usable_memory_bytes,
            needed_bytes=needed or 2 * USABLE,
            peak_bytes=needed,
            usable_bytes=cluster.usable_memory_bytes,
            compile_seconds=1.0,
            host_bytes=0,
            **fields,
        )

    return compiled(step, compiler=compiler), clusters


def compiled(step, **options):
    return verify_staged_step(
        step,
        STAGE,
        use_shardy=True,
        timeout=1,
        device_order=None,
        compiler_options=None,
        **options,
    )


HLO = """
HloModule task, entry_computation_layout={()->f32[]}

ENTRY %main () -> f32[] {
  ROOT %zero = f32[] constant(0)
}
"""


def test_equal_tasks_are_compiled_once_and_what_they_take_counts_at_the_peak_of_a_stage(step):
    found, clusters = verified(step, lambda _: 1 << 20, hlo_text=HLO)
    assert len(found.tasks) == 15
    assert clusters == [STAGE] * 9
    assert found.fits
    assert found.reserved_bytes == {}
    for stage, peak in enumerate(found.peak_bytes):
        own = [task.name for task in step.program.tasks if task.stage == stage]
        beside = (step.kept_bytes[name] - step.held_bytes(name) for name in own)
        assert peak == max(beside) + (1 << 20)
    assert found.step_seconds < step.step_seconds


def test_a_task_that_takes_all_there_is_is_compiled_beside_what_else_the_stage_has(step):
    found, clusters = verified(step, lambda cluster: cluster.usable_memory_bytes, hlo_text=HLO)
    assert found.fits
    assert max(found.peak_bytes) == USABLE
    again = {cluster.usable_memory_bytes for cluster in clusters} - {USABLE}
    assert again == {USABLE - reserved for reserved in found.reserved_bytes.values()}
    beside = {name: step.kept_bytes[name] - step.held_bytes(name) for name in found.tasks}
    assert found.reserved_bytes == {name: bytes_ for name, bytes_ in beside.items() if bytes_}


def test_a_stage_may_be_too_large_although_each_task_fits(step):
    found, _ = verified(step, lambda _: USABLE, hlo_text=HLO)
    assert not found.fits
    assert not found.ok
    assert found.reserved_bytes == {}
    assert "DOES NOT FIT into the" in str(found)


def test_a_task_that_does_not_fit_leaves_no_peak_and_nothing_to_schedule(step):
    found, clusters = verified(step, lambda _: None)
    assert found.peak_bytes is None
    assert found.step_seconds is None
    assert not found.fits
    assert clusters == [STAGE] * 9
    assert "does not fit" in str(found)


def test_memory_is_known_of_programs_that_the_compiler_cannot_print(step):
    found, _ = verified(step, lambda _: 1 << 20, no_hlo_text="it cannot")
    assert found.fits
    assert found.step_seconds is None
    assert found.as_planned is None
    said = json.loads(json.dumps(found.to_json()))
    assert [stage["compiled_peak_bytes"] for stage in said["stages"]] == list(found.peak_bytes)
    assert said["compiled_step_seconds"] is None


def test_a_sum_of_gradients_counts_once_as_its_task_is_costed(step):
    name = "stage3_loop3"
    known = signature(step.modules[name])
    whole = sum(value.local_bytes for value in (*known.arguments, *known.results))
    donated = sum(known.arguments[at].local_bytes for at in step.donations[name])
    assert donated > 0
    assert step.held_bytes(name) == whole - donated
    alone = cost_of_module(step.modules[name], STAGE).plan.peak_bytes
    assert step.costs[name].transient_bytes > alone - whole


def test_no_compilers_at_all_are_refused(step):
    with pytest.raises(autoshard.PlanError, match="Give 1 or more"):
        compiled(step, processes=0)
