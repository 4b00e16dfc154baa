"""One of two processes with two CPU devices each: plans, runs, and prints what it found.

python two_processes.py FOLDER PORT NUMBER
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import autoshard

X = np.arange(32.0 * 64, dtype=np.float32).reshape(32, 64) % 7 - 3
WEIGHTS = {
    "up": np.arange(64.0 * 256, dtype=np.float32).reshape(64, 256) % 5 / 64,
    "down": np.arange(256.0 * 64, dtype=np.float32).reshape(256, 64) % 3 / 64,
}
P = jax.sharding.PartitionSpec
MODES: dict[str, dict[str, Any]] = {
    "auto": {"cluster": "cpu:4"},
    "semi_auto": {
        "mesh": "dp=2,tp=2",
        "in_shardings": ({"up": P(None, "tp"), "down": None}, P("dp")),
    },
    "data_parallel": {"mode": "data_parallel"},
    "host memory": {"cluster": "cpu:4"},
}


def step(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.mean((jnp.maximum(x @ weights["up"], 0) @ weights["down"] - x) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def step_on_host(state: Any, x: Any) -> Any:
    """As ``step``, with a momentum that lives in the memory of the host."""
    weights, momentum = state
    momentum = autoshard.in_host_memory(momentum)
    after, value = step(weights, x)
    momentum = jax.tree.map(lambda m, w, new: m / 2 + (new - w), momentum, weights, after)
    return (jax.tree.map(jnp.add, weights, momentum), momentum), value


FUNCTIONS: dict[str, Any] = {"host memory": step_on_host}


def start(mode: str) -> Any:
    """What a mode's step updates."""
    zeros = jax.tree.map(np.zeros_like, WEIGHTS)
    return (WEIGHTS, zeros) if mode in FUNCTIONS else WEIGHTS


def of_this_process(array: np.ndarray, sharding: Any) -> jax.Array:
    """A global array, of which each process gives its own devices' blocks."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def main() -> None:
    """Print a line of JSON for each mode."""
    for mode, options in MODES.items():
        jitted = autoshard.jit(FUNCTIONS.get(mode, step), donate_argnums=0, **options)
        plan = jitted.plan(start(mode), X)
        placed = jax.tree.map(of_this_process, (start(mode), X), plan.in_shardings)
        if mode == "data_parallel":
            rows = np.split(X, 2)[jax.process_index()]
            placed = placed[0], jax.make_array_from_process_local_data(plan.in_shardings[1], rows)
        said = [
            str(plan.mesh),
            *(str(value.sharding) for value in (*plan.arguments, *plan.results)),
        ]
        text = jitted.lower(*placed).as_text()
        module = hashlib.sha256(text.encode()).hexdigest()
        losses: list[float] = []
        weights, x = placed
        for _ in range(2):
            weights, loss = jitted(weights, x)
            losses.append(float(loss))
        print(
            json.dumps(
                {
                    "mode": mode,
                    "plan": said,
                    "module": module,
                    "losses": losses,
                    "kinds": sorted(
                        {leaf.sharding.memory_kind for leaf in jax.tree.leaves(weights)}
                    ),
                }
            ),
            flush=True,
        )


def written_and_read(folder: str) -> None:
    """Train, write by orbax, read under another plan, and train there."""
    options = MODES["semi_auto"]
    jitted = autoshard.jit(step, **options)
    placed = jax.tree.map(of_this_process, (WEIGHTS, X), jitted.plan(WEIGHTS, X).in_shardings)
    weights, _ = jitted(*placed)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/state", weights)
    other = autoshard.jit(step, mode="data_parallel")
    plan = other.plan(WEIGHTS, X)
    with ocp.StandardCheckpointer() as checkpointer:
        weights = checkpointer.restore(f"{folder}/state", plan.abstract_arguments[0])
    x = of_this_process(X, plan.in_shardings[1])
    print(json.dumps({"restored": float(other(weights, x)[1])}), flush=True)


def unlike(number: int) -> None:
    """Run a plan that only this process has, and then one that only process 0 has."""
    cut = [P("data"), P(None, "data")][number]
    pins = {"in_shardings": ({"up": None, "down": cut}, None), "mesh": "data=4"}
    limits = [None, 1000]
    for options in (pins, {"cluster": "cpu:4", "memory_limit": limits[number]}):
        try:
            autoshard.jit(step, **options)(WEIGHTS, X)
        except autoshard.PlanError as error:
            print(json.dumps({"refused": str(error)}), flush=True)


if __name__ == "__main__":
    folder, port, number = sys.argv[1:]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(number))
    main()
    written_and_read(folder)
    unlike(int(number))
