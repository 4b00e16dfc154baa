"""One step on the devices of several processes, with a checkpoint: the same script in each of them.

    python examples/several_processes.py --steps 40 --checkpoint DIR
    python examples/several_processes.py --coordinator localhost:9876 --processes 2 --process 0

By itself it finds the others where JAX does: under Slurm, Open MPI and mpiexec, on Cloud TPUs and
in Kubernetes jobs. ``examples/launch`` has what starts it there; ``launch/one_machine.sh`` starts
two processes with four CPU devices each. Each process reads what its devices need of the batch,
which may be a part of the rows or all of them. With a folder that all processes see, the state is
restored from there, also where there were more or fewer devices, and written at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import autoshard

WIDTH, HIDDEN, ROWS = 64, 256, 256
OPTIMIZER = optax.adam(3e-3)


def train_step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        return jnp.square(jnp.tanh(x @ params["up"]) @ params["down"] - y).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def initial() -> Any:
    """Parameters and optimizer state, whole in each process."""
    up, down = jax.random.split(jax.random.key(0))
    params = {
        "up": jax.random.normal(up, (WIDTH, HIDDEN)) / WIDTH**0.5,
        "down": jax.random.normal(down, (HIDDEN, WIDTH)) / HIDDEN**0.5,
    }
    return params, OPTIMIZER.init(params)


def batch_of(step: int) -> tuple[np.ndarray, np.ndarray]:
    """In place of a file: a loader would read the rows that it is asked for."""
    x = np.random.default_rng(step).normal(size=(ROWS, WIDTH)).astype(np.float32)
    return x, np.roll(x, 1, axis=1)


def placed(arrays: Any, shardings: Any) -> Any:
    """Global arrays, of which each process gives what its devices have.

    Where each process has rows of its own, and the plan cuts them over processes, it is
    ``jax.make_array_from_process_local_data``.
    """

    def place(array: Any, sharding: Any) -> jax.Array:
        whole = np.asarray(array)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(place, arrays, shardings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int, help="the number of this one, from 0")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="that all processes see")
    given = parser.parse_args()
    jax.distributed.initialize(given.coordinator, given.processes, given.process)

    # Without cluster= it is the devices of all processes; each finds the same plan.
    step = autoshard.jit(train_step, donate_argnums=(0, 1))
    rows = [jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)] * 2
    plan = step.plan(*initial(), *rows)
    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes, {jax.device_count()} devices: {plan.mesh}")
    params, state = restored(given.checkpoint, plan)
    value: Any = jnp.inf
    for number in range(given.steps):
        batch = placed(batch_of(number), plan.in_shardings[2:])
        params, state, value = step(params, state, *batch)
    if given.checkpoint is not None:
        written(given.checkpoint, (params, state))
    if jax.process_index() == 0:
        print(f"loss {float(value):.6f}")


def restored(folder: Path | None, plan: autoshard.Plan) -> Any:
    """The state of the checkpoint as this plan has it, or a new one."""
    if folder is None or not (folder / "state").exists():
        return placed(initial(), plan.in_shardings[:2])
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore((folder / "state").resolve(), plan.abstract_arguments[:2])


def written(folder: Path, state: Any) -> None:
    """Every process writes its part."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((folder / "state").resolve(), state, force=True)


if __name__ == "__main__":
    main()
