"""One of two processes, the second of which dies before its first step; the first one waits for it.

python dying_process.py PORT NUMBER
"""

from __future__ import annotations

import os
import sys

import jax
from two_processes import MODES, WEIGHTS, X, of_this_process, step

import autoshard

HEARTBEAT_SECONDS = 10
"""After which JAX takes a process for dead; 100 where nothing is said."""


def main(port: str, number: int) -> None:
    """Plan, and run one step, or die."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}", 2, number, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
    )
    jitted = autoshard.jit(step, **MODES["auto"])
    shardings = jitted.plan(WEIGHTS, X).in_shardings
    placed = jax.tree.map(of_this_process, (WEIGHTS, X), shardings)
    if number == 1:
        os._exit(3)
    print("loss", float(jitted(*placed)[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
