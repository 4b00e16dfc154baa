"""Pipelines in Shardy's MPMD dialect: run op by op, and given to Shardy's own partitioner."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from mpmd_run import MpmdRun
from test_examples import pipeline as example
from test_pipelines import arguments, step

import autoshard
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.passes.base import make_pass
from autoshard.passes.pipeline import run_passes
from autoshard.passes.registry import pass_type
from autoshard.pipeline.instructions import Run, Send, instructions_of

ORACLE = Path(__file__).parent / "shardy_mpmd.py"
RATE = np.float32(1)


def exported(plan, form):
    """The text of a plan's pipeline in the dialect."""
    module = parse_bytes(plan.to_mlir().encode(), new_context(), "plan")
    options = {"cluster": "cpu:8", "schedule": plan.pipeline.schedule, "form": form}
    run_passes(module, [make_pass(pass_type("autoshard-export-mpmd"), options)])
    return print_module(module).decode()


@cache
def plan_of(stages, schedule, chunks):
    """A network with tied ends in 4 micro-batches, which donates its parameters."""
    asked = autoshard.Pipeline(stages, 4, schedule, chunks)
    return autoshard.plan(
        step, *arguments(), RATE, cluster="cpu:8", pipeline=asked, batch_argnums=1, donate_argnums=0
    )


@pytest.mark.parametrize(("stages", "schedule", "chunks"), [(2, "1f1b", 2), (4, "zero_bubble", 1)])
def test_the_exported_step_is_bit_equal(stages, schedule, chunks):
    run = MpmdRun(exported(plan_of(stages, schedule, chunks), "calls"))
    given = [np.asarray(leaf) for leaf in jax.tree.leaves((*arguments(), RATE))]
    wanted = jax.tree.leaves(jax.jit(step)(*arguments(), RATE))
    found = run(*given)
    for result, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(result), np.asarray(right))
    assert {len(result.sharding.device_set) for result in found} == {8 // stages}


def partitioned(text, form, folder):
    """What Shardy makes of a text."""
    file = folder / "exported.mlir"
    file.write_text(text)
    command = [sys.executable, str(ORACLE), str(file), form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # the passes log to it, too


@cache
def example_plan():
    """The byte-level transformer of the example: tied embedding, clip, Adam."""
    params = example.parameters(2)
    batch = next(iter(example.batches(1)))
    return autoshard.plan(
        example.train_step,
        *(params, example.OPTIMIZER.init(params), batch),
        cluster="cpu:8",
        pipeline=autoshard.Pipeline(4, 4, "zero_bubble"),
        donate_argnums=(0, 1),
    )


@pytest.mark.parametrize("plan", [lambda: plan_of(2, "1f1b", 2), example_plan])
def test_shardy_takes_the_fragments_as_they_are(plan, tmp_path):
    step, stages = plan().pipeline.step, plan().pipeline.asked.stages
    fragments = partitioned(exported(plan(), "fragments"), "fragments", tmp_path)
    calls = partitioned(exported(plan(), "calls"), "calls", tmp_path)
    assert fragments["given"] == calls["given"]
    # Of results that are equal, whatever their shardings, Shardy leaves one.
    assert [op[:-2] for op in fragments["left"]] == [op[:-2] for op in fragments["given"]]
    assert [op[:2] for op in fragments["ifrt"]] == [op[:2] for op in calls["ifrt"]]

    instructions = instructions_of(step.program, step.schedule)
    runs = [each for each in instructions.steps if isinstance(each, Run)]
    tasks = {task.name: task for task in step.program.tasks}
    read = [info for info in fragments["read"] if info["task"] != "micro_batch_numbers"]
    assert [(info["mesh"], info["task"], info["micro_batch"]) for info in read] == [
        (f"stage{tasks[run.task].stage}", run.task, run.micro_batch) for run in runs
    ]
    deferred = {name for name, task in tasks.items() if task.is_deferred}
    assert {info["task"] for info in read if info["half"] == "DROP_TRANSFERRED"} == deferred
    works = zip(step.program.calls, step.schedule.works, strict=True)
    backward = {call.task.name for call, work in works if work.name[:1] in "BIW"}
    assert {info["task"] for info in read if info["passes"] == [1]} == backward
    assert {info["part"] for info in read} == set(range(stages * step.program.chunks))

    size = 8 // stages
    where = [f"[{', '.join(map(str, range(at, at + size)))}]" for at in range(0, 8, size)]
    called = [devices for name, devices, _ in calls["ifrt"] if name == "ifrt.Call"]
    assert len(called) == len(fragments["read"])
    assert set(called) == {f"#ifrt<devices{its}>" for its in where}
    copied = sum(count for name, _, count in calls["ifrt"] if name == "ifrt.CopyArrays")
    sends = [each for each in instructions.steps if isinstance(each, Send)]
    assert copied == sum(len(send.results) for send in sends)
