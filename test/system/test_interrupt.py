"""Ctrl-C while a program is planned: the best plan so far."""

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

says, pressed = Task.says, []

def press_when_wanted(task, text):
    says(task, text)
    if not pressed and "best" in text:
        pressed.append(text)
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

params = [(array(1024, 64 * n), array(64 * n, 1024)) for n in range(5, 37)]

def plan():
    return autoshard.plan(step, params, array(2048, 1024), cluster="v5p:4x4x4")

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    first = plan()
    print([str(one.message) for one in caught if "interrupted" in str(one.message)])
print(first.mesh.size, len(first.record.ops) > 0)
"""


def test_an_interrupted_search_gives_its_best_plan(tmp_path):
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
    warned, compared = run.stdout.splitlines()
    assert "planning was interrupted: the best plan of" in warned
    assert "is taken, a step of" in warned
    assert compared == "64 True"
