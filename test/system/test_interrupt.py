"""Ctrl-C while a program is planned: the best plan so far, or a KeyboardInterrupt."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import os, signal, threading, time, warnings
import jax
import jax.numpy as jnp
import autoshard
from autoshard.progress import Task

says, wanted = Task.says, ["best"]

def press_when_wanted(task, text):
    says(task, text)
    if wanted and wanted[0] in text:
        wanted.clear()
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()

Task.says = press_when_wanted

def loss(params, x):
    for up, down in params:
        x = x + jnp.tanh(x @ up) @ down
    return jnp.mean(x**2)

def step(params, x):
    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params, x))

def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

def plan(layers):
    params = [(array(1024, 64 * n), array(64 * n, 1024)) for n in range(5, 5 + layers)]
    return autoshard.plan(step, params, array(2048, 1024), cluster="v5p:4x4x4")

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    first = plan(14)
    print([str(one.message) for one in caught if "interrupted" in str(one.message)])
print(first.mesh.size, len(first.record.ops) > 0)
wanted.append("levels, 0 compared")
try:
    plan(60)  # long before a plan is there
except KeyboardInterrupt:
    print("no plan yet")
"""


def test_an_interrupted_search_gives_its_best_plan_and_raises_where_it_has_none(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    warned, compared, last = run.stdout.splitlines()
    assert "planning was interrupted: the best plan of" in warned
    assert "is taken, a step of" in warned
    assert compared == "64 True"
    assert last == "no plan yet"
