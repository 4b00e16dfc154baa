"""A two-tower recommender whose user table is several tables: three ways to hold it, side by side.

One tower turns four features of a user into vectors, by sub-tables of very different length, the
other one the number of an item; the score is their product, trained on clicks with optax.adam. The
table of the users is

    replicated   on every device, the batch cut in all: plain data parallelism
    rows         cut in equal parts by rows: what is looked up is summed over all devices
    uneven       cut where its sub-tables end, with autoshard.manual_split: nothing is sent

    python examples/two_tower.py [--table replicated rows uneven] [--steps 40]

The printed table has what a device holds of the table and of its two moments in Adam, and what it
sends in a step, by plan; and the loss, which is that of one device for all three.
"""

from __future__ import annotations

import argparse
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
from autoshard.verify.collective import total_bytes

How = Literal["replicated", "rows", "uneven"]
Parameters = dict[str, Any]
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]

USERS = (6_000, 200, 9_000, 400)
"""Rows of each sub-table: one for each feature of a user."""
ITEMS, WIDTH, BATCH = 500, 32, 1024
DISTINCT = 4
"""Batches; they come again and again."""
MESH = "dp=2,tp=4"

LAYOUT = autoshard.Layout((2, 4), ("dp", "tp"))
look_up = partial(jnp.take, axis=0)


@dataclass(frozen=True)
class Lookup:
    """How the user table is held and read."""

    look_up: Callable[[Any, Any], Any]
    pack: Callable[[Any], Any]
    """The table as the parameters have it."""
    unpack: Callable[[Any], Any]


def lookup_of(how: How) -> Lookup:
    """One of the three ways."""

    def same(table: Any) -> Any:
        return table

    if how == "uneven":
        strategy = (LAYOUT("tp", "None"), LAYOUT("dp", "tp"))
        split = autoshard.manual_split(look_up, USERS, strategy)
        return Lookup(split, split.pack, split.unpack)
    if how == "replicated":
        return Lookup(look_up, same, same)
    strategy = (LAYOUT("tp", "None"), LAYOUT("dp", "None"))
    return Lookup(autoshard.shard(look_up, in_strategy=strategy), same, same)


def initial_parameters(how: How) -> Parameters:
    """Tables of normally distributed vectors, and the layer that joins the features of a user."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (0.1 * random.normal(size=shape)).astype(np.float32)

    users, items = normal(sum(USERS), WIDTH), normal(ITEMS, WIDTH)
    join = normal(len(USERS) * WIDTH, WIDTH)
    return {"users": lookup_of(how).pack(users), "items": items, "join": join}


def training(look_up_user: Callable[[Any, Any], Any]) -> tuple[Any, Callable[..., Any]]:
    """The optimizer's start and one step."""
    optimizer = optax.adam(0.01)

    def loss(parameters: Parameters, users: Any, items: Any, clicks: Any) -> jax.Array:
        features = look_up_user(parameters["users"], users).reshape(len(users), -1)
        scores = jnp.sum((features @ parameters["join"]) * parameters["items"][items], -1)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(scores, clicks))

    def step(parameters: Parameters, state: Any, users: Any, items: Any, clicks: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, users, items, clicks)
        updates, state = optimizer.update(gradients, state, parameters)
        return value, optax.apply_updates(parameters, updates), state

    return optimizer.init, step


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


def train(how: How, steps: int, *, sharded: bool = True) -> tuple[list[float], Parameters, Any]:
    """Losses, the parameters with the user table as it is read, and the plan if there is one."""
    lookup = lookup_of(how)
    init, step = training(lookup.look_up if sharded else look_up)
    parameters = initial_parameters(how if sharded else "replicated")
    state = init(parameters)
    mode = "data_parallel" if how == "replicated" else "semi_auto"
    run: Any = autoshard.jit(step, mesh=MESH, mode=mode) if sharded else jax.jit(step)
    plan = run.plan(parameters, state, *next(batches(1))) if sharded else None
    losses: list[float] = []
    for batch in batches(steps):
        value, parameters, state = run(parameters, state, *batch)
        losses.append(float(value))
    parameters = jax.device_get(parameters)
    if sharded:
        parameters["users"] = lookup.unpack(parameters["users"])
    return losses, parameters, plan


def held_bytes(plan: Any) -> int:
    """Of the user table and its moments, on one device."""
    tables = [value for value in plan.arguments if value.name.endswith("['users']")]
    return sum(4 * int(np.prod(value.local_shape)) for value in tables)


def main() -> None:
    """Train in the ways that are asked for, and print them beside each other."""
    parser = argparse.ArgumentParser(description="A two-tower recommender, three ways.")
    ways: tuple[How, ...] = get_args(How)
    parser.add_argument("--table", nargs="+", choices=ways, default=ways)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    shown = Table("user table", "held by a device", "sent by a device", "first loss", "last loss")
    for how in options.table:
        losses, _, plan = train(how, options.steps)
        held, sent = f"{held_bytes(plan):,} B", f"{total_bytes(plan.collectives):,.0f} B"
        shown.add_row(how, held, sent, f"{losses[0]:.6f}", f"{losses[-1]:.6f}")
    losses, _, _ = train("replicated", options.steps, sharded=False)
    shown.add_row("one device", "", "", f"{losses[0]:.6f}", f"{losses[-1]:.6f}")
    print(shown)


if __name__ == "__main__":
    main()
