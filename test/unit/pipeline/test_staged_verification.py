"""Compiled tasks beside planned ones, with a compiler of the test's own."""

import jax
import numpy as np
import pytest

import autoshard
from autoshard.pipeline.staged_verification import verify_staged_step
from autoshard.verify.ahead_of_time import CompiledProgram

USABLE = 1 << 30


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


def verified(step, **fields):
    """What comes of programs with these fields; the number of compiles."""
    compiled = []

    def compiler(module, cluster, **_):
        compiled.append(module)
        return CompiledProgram(
            target=cluster.name,
            compiler="a compiler",
            partitioner="shardy",
            needed_bytes=1000,
            usable_bytes=USABLE,
            compile_seconds=1.0,
            host_bytes=0,
            **fields,
        )

    found = verify_staged_step(
        step,
        autoshard.Cluster.parse("cpu:2"),
        use_shardy=True,
        timeout=1,
        device_order=None,
        compiler_options=None,
        compiler=compiler,
    )
    return found, len(compiled)


HLO = """
HloModule task, entry_computation_layout={()->f32[]}

ENTRY %main () -> f32[] {
  ROOT %zero = f32[] constant(0)
}
"""


def test_equal_tasks_are_compiled_once_and_temporaries_count_at_the_peak_of_a_stage(step):
    found, count = verified(step, fits=True, temporary_bytes=1 << 20, hlo_text=HLO)
    assert len(found.tasks) == 15
    assert count == 9
    assert found.fits
    for planned, compiled in zip(step.peak_bytes, found.compiled.peak_bytes, strict=True):
        assert 0 < compiled - (1 << 20) <= planned
    assert found.compiled.step_seconds < step.step_seconds


def test_a_stage_may_be_too_large_although_each_task_fits(step):
    found, _ = verified(step, fits=True, temporary_bytes=USABLE, hlo_text=HLO)
    assert not found.fits
    assert not found.ok
    assert "DOES NOT FIT into the 1 GiB" in str(found)


def test_a_task_that_does_not_fit_leaves_nothing_to_schedule(step):
    found, _ = verified(step, fits=False)
    assert found.compiled is None
    assert not found.fits
    assert "does not fit" in str(found)
