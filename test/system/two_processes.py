"""One of two processes with two CPU devices each: plans, runs, and prints what it found.

python two_processes.py PORT NUMBER
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
}


def step(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.mean((jnp.maximum(x @ weights["up"], 0) @ weights["down"] - x) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def of_this_process(array: np.ndarray, sharding: Any) -> jax.Array:
    """A global array, of which each process gives its own devices' blocks."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def main() -> None:
    """Print a line of JSON for each mode."""
    for mode, options in MODES.items():
        jitted = autoshard.jit(step, donate_argnums=0, **options)
        plan = jitted.plan(WEIGHTS, X)
        placed = jax.tree.map(of_this_process, (WEIGHTS, X), plan.in_shardings)
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
            json.dumps({"mode": mode, "plan": said, "module": module, "losses": losses}), flush=True
        )


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
    port, number = sys.argv[1:]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(number))
    main()
    unlike(int(number))
