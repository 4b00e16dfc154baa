"""What starts several processes in ``examples/launch``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import yaml

import autoshard

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LAUNCH = EXAMPLES / "launch"
STEPS = 4
sys.path.insert(0, str(EXAMPLES))

import several_processes as example  # noqa: E402


def test_two_processes_train_as_one_and_leave_a_checkpoint_that_one_reads(tmp_path: Path) -> None:
    words = ["--steps", str(STEPS), "--checkpoint", str(tmp_path)]
    done = subprocess.run(
        [LAUNCH / "one_machine.sh", *words],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    params, state = example.initial()
    value = None
    for number in range(STEPS):
        params, state, value = jax.jit(example.train_step)(params, state, *example.batch_of(number))
    assert "2 processes, 8 devices: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("loss ")
    np.testing.assert_allclose(float(done.stdout.split()[-1]), float(value), rtol=1e-5)
    here = autoshard.plan(
        example.train_step,
        *example.initial(),
        *example.batch_of(0),
        mode="data_parallel",
        cluster="cpu:4",
    )
    with ocp.StandardCheckpointer() as checkpointer:
        read = checkpointer.restore(tmp_path / "state", here.abstract_arguments[:2])
    assert {leaf.sharding for leaf in jax.tree.leaves(read)} <= set(
        jax.tree.leaves(here.in_shardings[:2])
    )
    # Adam makes steps of gradients that are zero but for rounding: the next loss is what is equal.
    after = [
        jax.jit(example.train_step)(*jax.device_get(each), *example.batch_of(STEPS))[-1]
        for each in (read, (params, state))
    ]
    np.testing.assert_allclose(*map(float, after), rtol=1e-5)


@pytest.mark.parametrize("name", ["one_machine.sh", "cloud_tpu.sh", "slurm.sbatch"])
def test_scripts_are_read_by_their_shell(name: str) -> None:
    path = LAUNCH / name
    shell = path.read_text().splitlines()[0].removeprefix("#!")
    subprocess.run([shell, "-n", path], check=True)
    assert "several_processes.py" in path.read_text()


def test_the_job_of_kubernetes_is_one_of_several_processes() -> None:
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    assert job["spec"]["completionMode"] == "Indexed"
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert pod["containers"][0]["command"][1] == "examples/several_processes.py"
