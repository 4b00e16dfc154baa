"""One of several processes with two CPU devices each: runs pipelines, says its parts of results.

python pipelines_of_processes.py FOLDER CASE,CASE COUNT PORT NUMBER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from processes import free_port
from tied_ends import tied_loss

import autoshard
from autoshard.cluster import devices

BATCH, WIDTH, STEPS = 24, 8, 2
P = jax.sharding.PartitionSpec
ADDRESS = "jax_cross_host_transfer_socket_address"


def unrolled(carried: Any, batch: jax.Array, last: jax.Array) -> Any:
    """Tied ends around layers, a state a weight, a count, and a norm of all gradients."""
    params, state = carried
    value, gradients = jax.value_and_grad(tied_loss)(params, batch)
    norm = sum(jnp.sum(jnp.sign(g) ** 2) for g in jax.tree.leaves(gradients))
    changed = jax.tree.map(lambda s, g: s + jnp.sign(g) * (norm > 0), state["sums"], gradients)
    params = jax.tree.map(lambda p, s: p * (1 - 2 * (s > 0)), params, changed)
    return (params, {"sums": changed, "count": state["count"] + 1}), (value, norm + last)


def scanned(carried: Any, batch: jax.Array, last: jax.Array) -> Any:
    """A loop over layers, each stage has some of its rows."""
    params, state = carried

    def layer(hidden: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
        return hidden + jnp.maximum(hidden @ weights, 0), None

    def loss(layers: jax.Array) -> jax.Array:
        return (jax.lax.scan(layer, batch, layers)[0] * batch).sum()

    value, gradient = jax.value_and_grad(loss)(params["layers"])
    changed = state["sums"]["layers"] + jnp.sign(gradient)
    params = {"layers": params["layers"] * (1 - 2 * (changed > 0))}
    return (params, {"sums": {"layers": changed}, "count": state["count"] + 1}), (
        value,
        value + last,
    )


def matrices(count: int) -> np.ndarray:
    """With one number a row, so that what goes through many layers stays exact."""
    random = np.random.default_rng(1)
    ones = np.broadcast_to(np.eye(WIDTH), (count, WIDTH, WIDTH))
    signs = random.integers(-1, 2, (count, 1, WIDTH))
    return (random.permuted(ones, axis=-1) * signs).astype(np.float32)


def arguments(fn: Any) -> tuple[Any, np.ndarray]:
    """Whole numbers: their sums are exact in any order."""
    ends, *layers = matrices(5)
    params: Any = {"ends": ends, "layers": layers}
    if fn is scanned:
        params = {"layers": np.stack(layers)}
    state = {"sums": jax.tree.map(np.zeros_like, params), "count": np.int32(0)}
    batch = np.random.default_rng(0).integers(-1, 2, (BATCH, WIDTH)).astype(np.float32)
    return (params, state), batch


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "1f1b": (unrolled, (2, 4, "1f1b"), {}),
    "gpipe of two chunks": (unrolled, (2, 4, "gpipe", 2), {}),
    "zero_bubble of whole batches": (
        unrolled,
        (2, 2, "zero_bubble"),
        {
            "mesh": "data=2",
            "in_shardings": (None, P("data"), None),
            "optimizer_parallel": autoshard.OptimizerParallel(level=3, threshold_kb=0),
        },
    ),
    "scan": (scanned, (2, 4, "1f1b"), {}),
    "scan in two chunks": (scanned, (2, 4, "1f1b", 2), {}),
    "three stages": (unrolled, (3, 3, "1f1b"), {}),
    "stages of three devices": (
        unrolled,
        (2, 4, "1f1b"),
        {"mesh": "data=3", "in_shardings": (None, P("data"), None)},
    ),
}
"""The step, ``Pipeline``, and options."""
SAVED = ("1f1b",)
"""Cases that also run by a plan that was saved."""
ACROSS_HOSTS = "across hosts"
"""From here on each stage has devices of each process."""


def parts_here(results: Any) -> list[Any]:
    """The parts of results that this process has: number, where, numbers."""
    found: list[Any] = []
    for number, array in enumerate(jax.tree.leaves(results)):
        for part in array.addressable_shards:
            sizes = zip(part.index, array.shape, strict=True)
            where = [dim.indices(size)[:2] for dim, size in sizes]
            found.append([number, where, np.asarray(part.data).tolist()])
    return found


def jitted(name: str, **options: Any) -> Any:
    """The step of a case."""
    fn, pipeline, own = CASES[name]
    stages, micro_batches, schedule, *chunks = pipeline
    asked = autoshard.Pipeline(stages, micro_batches, schedule, *chunks)
    cluster = f"cpu:{jax.device_count()}"
    given = {"cluster": cluster, "pipeline": asked, "donate_argnums": 0} | own | options
    return autoshard.jit(fn, **given)


def run(name: str, folder: Path) -> None:
    """Two steps of a case."""
    step = jitted(name)
    carried, batch = arguments(CASES[name][0])
    last = np.float32(0)
    plan = step.plan(carried, batch, last)
    steps = [step]
    if name in SAVED:
        path = folder / f"plan{jax.process_index()}.json"
        plan.save(path)
        steps.append(autoshard.jit(CASES[name][0], plan=str(path), donate_argnums=0))
    for ran in steps:
        found, batch_there, told = plan.place(carried, batch, last)
        losses: list[float] = []
        for _ in range(STEPS):
            before = found
            found, (told, norm) = ran(found, batch_there, told)
            losses += [float(told), float(norm)]
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        assert [leaf.sharding for leaf in jax.tree.leaves(found)] == list(
            jax.tree.leaves(plan.in_shardings[0])
        ), "the state lies where the next step reads it"
        say({"case": name, "losses": losses, "parts": parts_here(found)}, folder)


def say(what: Any, folder: Path) -> None:
    """Write a line for the test."""
    with (folder / f"said{jax.process_index()}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def refused(folder: Path) -> None:
    """Calls that are refused, in all processes before any of them runs a step."""
    number = jax.process_index()
    carried, batch = arguments(unrolled)
    here = jax.device_put(batch, jax.local_devices()[0])
    address = jax.config.read(ADDRESS)
    tried: list[tuple[str, Any, Any]] = [
        ("", jitted("1f1b"), batch),
        ("10.0.0.1:0", jitted("1f1b"), batch),
        (["", address][number], jitted("1f1b"), batch),
        (address, jitted("1f1b", cluster="cpu:2"), batch),
        (address, jitted(["1f1b", "gpipe of two chunks"][number]), batch),
        (address, jitted("1f1b", memory_limit=[None, 1][number]), batch),
        (address, jitted("1f1b", pipeline="auto", memory_limit=[1, None][number]), batch),
        (address, jitted("1f1b"), here),
    ]
    for its, step, given in tried:
        jax.config.update(ADDRESS, its)
        try:
            step(carried, given, 0.0)
        except autoshard.AutoshardError as error:
            say(str(error), folder)
    jax.config.update(ADDRESS, address)


def dies(folder: Path) -> None:
    """Run a step; then process 1 ends without a word, and the other one goes on."""
    step = jitted("1f1b")
    carried, batch = arguments(unrolled)
    carried, _ = step(carried, batch, 0.0)
    if jax.process_index() == 1:
        jax.block_until_ready(carried)
        os._exit(7)
    while True:
        carried, (value, _) = step(carried, batch, 0.0)
        say(float(value), folder)


def across_hosts(device: Any) -> Any:
    """An order of devices by which each stage has some of each process, as rows of chips do."""
    return device.id % jax.local_device_count(), device.process_index


def main() -> None:
    """Start as one of several processes."""
    folder, cases, count, port, number = sys.argv[1:]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update(ADDRESS, f"127.0.0.1:{free_port()}")
    jax.distributed.initialize(
        f"localhost:{port}",
        int(count),
        int(number),
        heartbeat_timeout_seconds=10,
        shutdown_timeout_seconds=10,
    )
    for case in cases.split(","):
        if case == ACROSS_HOSTS:
            devices.physical_place = across_hosts
        elif case in CASES:
            run(case, Path(folder))
        else:
            {"refused": refused, "dies": dies}[case](Path(folder))


if __name__ == "__main__":
    main()
