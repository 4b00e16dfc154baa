"""A two-tower recommender whose user table is several tables: four ways to hold it, side by side.

One tower turns four features of a user into vectors, by sub-tables of very different length, the
other one the number of an item; the score is their product, trained on clicks with optax.adam. The
table of the users is

    replicated   on every device, the batch cut in all: plain data parallelism
    rows         cut in equal parts by rows: what is looked up is summed over all devices
    uneven       cut where its sub-tables end, with autoshard.manual_split: nothing is sent
    host         in the memory of the host, cut by columns, looked up and updated there, with
                 autoshard.on_host: the device holds nothing of it

    python examples/two_tower.py [--table replicated rows uneven host] [--steps 40]

The printed table has what a device and its host hold of the table and of its two moments in Adam,
and what a device sends to other devices in a step, by plan; and the loss, which is that of one
device for all. Where libtpu is installed, each way is compiled for eight chips of TPU v5e, and
the bytes of all arguments are shown: on XLA's CPU devices the host's memory is the device's.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich import print
from rich.table import Table

import autoshard
from autoshard.planned.collective import total_bytes

How = Literal["replicated", "rows", "uneven", "host"]
Parameters = dict[str, Any]
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]

USERS = (6_000, 200, 9_000, 400)
"""Rows of each sub-table: one for each feature of a user."""
ITEMS, WIDTH, BATCH = 500, 32, 1024
DISTINCT = 4
"""Batches; they come again and again."""
MESH = "dp=2,tp=4"
COMPILED_FOR = "v5e:2x4"

LAYOUT = autoshard.Layout((2, 4), ("dp", "tp"))
look_up = partial(jnp.take, axis=0)


@dataclass(frozen=True)
class Lookup:
    """How the user table is held and read."""

    look_up: Callable[[Any, Any], Any]
    pack: Callable[[Any], Any]
    """The table as the parameters have it."""
    unpack: Callable[[Any], Any]
    update: Callable[..., Any]
    """Update of the table: ``(table, gradient, optimizer state) -> (table, state)``."""


OPTIMIZER = optax.adam(0.01)


def update(parameter: Any, gradient: Any, state: Any) -> tuple[Any, Any]:
    """One step of Adam on one parameter."""
    change, state = OPTIMIZER.update(gradient, state, parameter)
    return optax.apply_updates(parameter, change), state


def lookup_of(how: How) -> Lookup:
    """One of the three ways."""

    def same(table: Any) -> Any:
        return table

    if how == "uneven":
        strategy = (LAYOUT("tp", "None"), LAYOUT("dp", "tp"))
        split = autoshard.manual_split(look_up, USERS, strategy)
        return Lookup(split, split.pack, split.unpack, update)
    if how == "replicated":
        return Lookup(look_up, same, same, update)
    if how == "host":
        # A host has no collectives: all of a row's part is where its columns are.
        strategy = (LAYOUT("None", ("dp", "tp")), LAYOUT("None", "None"))
        on_host = autoshard.on_host(autoshard.shard(look_up, in_strategy=strategy))
        return Lookup(on_host, same, same, autoshard.on_host(update))
    strategy = (LAYOUT("tp", "None"), LAYOUT("dp", "None"))
    return Lookup(autoshard.shard(look_up, in_strategy=strategy), same, same, update)


def initial_parameters(how: How) -> Parameters:
    """Tables of normally distributed vectors, and the layer that joins the features of a user."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (0.1 * random.normal(size=shape)).astype(np.float32)

    users, items = normal(sum(USERS), WIDTH), normal(ITEMS, WIDTH)
    join = normal(len(USERS) * WIDTH, WIDTH)
    return {"users": lookup_of(how).pack(users), "items": items, "join": join}


def initial_state(parameters: Parameters) -> dict[str, Any]:
    """State of the optimizer, for each parameter."""
    return {name: OPTIMIZER.init(value) for name, value in parameters.items()}


def train_step(
    look_up_user: Callable[[Any, Any], Any] = look_up, update_users: Callable[..., Any] = update
) -> Callable[..., Any]:
    """``(parameters, state, users, items, clicks) -> (loss, parameters, state)``."""

    def loss(parameters: Parameters, users: Any, items: Any, clicks: Any) -> jax.Array:
        features = look_up_user(parameters["users"], users).reshape(len(users), -1)
        scores = jnp.sum((features @ parameters["join"]) * parameters["items"][items], -1)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(scores, clicks))

    def step(parameters: Parameters, state: Any, users: Any, items: Any, clicks: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, users, items, clicks)
        updated: dict[str, Any] = {}
        for name, parameter in parameters.items():
            change = update_users if name == "users" else update
            updated[name] = change(parameter, gradients[name], state[name])
        parameters = {name: made[0] for name, made in updated.items()}
        return value, parameters, {name: made[1] for name, made in updated.items()}

    return step


def batches(count: int) -> Iterator[Batch]:
    """Rows of the user table, one of each sub-table, items, and who clicked on what."""
    random = np.random.default_rng(1)
    offsets = np.cumsum((0, *USERS[:-1]))
    taste = random.normal(size=(2, sum(USERS) + ITEMS))
    made: list[Batch] = []
    for _ in range(min(count, DISTINCT)):
        columns = [
            first + random.integers(0, rows, BATCH)
            for first, rows in zip(offsets, USERS, strict=True)
        ]
        users, items = np.stack(columns, -1).astype(np.int32), random.integers(0, ITEMS, BATCH)
        likes = taste[0, users].sum(-1) * taste[1, sum(USERS) + items]
        made.append((users, items.astype(np.int32), (likes > 0).astype(np.float32)))
    for number in range(count):
        yield made[number % DISTINCT]


def plan_of(how: How, cluster: str | None = None) -> Any:
    """Plan of a step, from shapes alone, for the mesh or also for a cluster."""
    lookup = lookup_of(how)
    parameters = initial_parameters(how)
    arguments = (parameters, initial_state(parameters), *next(batches(1)))
    step = train_step(lookup.look_up, lookup.update)
    return autoshard.plan(step, *arguments, cluster=cluster, **options_of(how))


def options_of(how: How) -> dict[str, Any]:
    """Options of ``autoshard.jit``."""
    mode = "data_parallel" if how == "replicated" else "semi_auto"
    return {"mesh": MESH, "mode": mode, "donate_argnums": (0, 1)}


def train(how: How, steps: int, *, sharded: bool = True) -> tuple[list[float], Parameters]:
    """Losses, and the parameters with the user table as it is read."""
    lookup = lookup_of(how)
    run: Any = jax.jit(train_step())
    if sharded:
        run = autoshard.jit(train_step(lookup.look_up, lookup.update), **options_of(how))
    parameters = initial_parameters(how if sharded else "replicated")
    state = initial_state(parameters)
    losses: list[float] = []
    for batch in batches(steps):
        value, parameters, state = run(parameters, state, *batch)
        losses.append(float(value))
    parameters = jax.device_get(parameters)
    if sharded:
        parameters["users"] = lookup.unpack(parameters["users"])
    return losses, parameters


@dataclass(frozen=True)
class Held:
    """Bytes of the user table and its moments, for one device."""

    on_device: int
    on_host: int


def held_bytes(plan: Any) -> Held:
    """By the plan."""
    tables = [value for value in plan.arguments if "['users']" in value.name and value.shape]
    sizes = [(value.is_on_host, 4 * int(np.prod(value.local_shape))) for value in tables]
    return Held(
        sum(size for on_host, size in sizes if not on_host),
        sum(size for on_host, size in sizes if on_host),
    )


def main() -> None:
    """Train in the ways that are asked for, and print them beside each other."""
    parser = argparse.ArgumentParser(description="A two-tower recommender, four ways.")
    ways: tuple[How, ...] = get_args(How)
    parser.add_argument("--table", nargs="+", choices=ways, default=ways)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    has_compiler = importlib.util.find_spec("libtpu") is not None
    shown = Table("user table")
    headings = ["held by a device", "by its host", "sent to devices", "first loss", "last loss"]
    if has_compiler:
        headings += [f"arguments on {COMPILED_FOR}", "on its host"]
    for heading in headings:
        shown.add_column(heading, justify="right")
    for how in options.table:
        plan = plan_of(how)
        held = held_bytes(plan)
        counts = [held.on_device, held.on_host, round(total_bytes(plan.collectives))]
        losses, _ = train(how, options.steps)
        cells = [*(f"{count:,} B" for count in counts), *(f"{losses[n]:.6f}" for n in (0, -1))]
        if has_compiler:
            program = plan_of(how, COMPILED_FOR).verify().program
            cells += [f"{program.argument_bytes:,} B", f"{program.host_argument_bytes:,} B"]
        shown.add_row(how, *cells)
    losses, _ = train("replicated", options.steps, sharded=False)
    shown.add_row("one device", "", "", "", f"{losses[0]:.6f}", f"{losses[-1]:.6f}")
    print(shown)
    if not has_compiler:
        print(r"Nothing was compiled for a TPU: pip install 'autoshard\[tpu]'.")


if __name__ == "__main__":
    main()
