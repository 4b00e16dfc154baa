"""One training step on small integers, with techniques of hybrid parallelism switched on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec
from models import wrapped

import autoshard

Tree = Any

LAYERS, WIDTH, HEAD, DEVICES = 2, 32, 16, 8
ROWS, PADDED_ROWS = 512, 500
"""Examples of a batch. 8 devices divide neither 500 nor a half of it, a micro-batch."""
STEPS = 2
SPLIT = (10, 20, 30, 4)
OPTIMIZER = optax.sgd(0.5, momentum=0.5)

LEVELS = ("level 1", "level 2", "level 3")
TECHNIQUES = (
    *LEVELS,
    "recompute auto",
    "recompute marks",
    "host states",
    "manual split",
    "no all-to-all",
    "pad",
    "accumulate",
)

take = partial(jnp.take, axis=0)
look_up = autoshard.manual_split(take, SPLIT)


def doubled(x: Any) -> Any:
    return wrapped(2 * x)


@dataclass(frozen=True)
class Case:
    """A step with some techniques, over a scan or with its layers one after the other."""

    techniques: frozenset[str]
    scans: bool

    def __str__(self) -> str:
        """``scan: level 1 + pad``."""
        used = (name for name in TECHNIQUES if self.has(name))
        return f"{'scan' if self.scans else 'unrolled'}: {' + '.join(used)}"

    def has(self, technique: str) -> bool:
        """Is it switched on?"""
        return technique in self.techniques

    @property
    def level(self) -> int:
        """Level of optimizer parallelism; 0: none."""
        return next((n for n, name in enumerate(LEVELS, start=1) if self.has(name)), 0)

    def options(self) -> dict[str, Any]:
        """Options of ``autoshard.jit``, but ``memory_limit``."""
        found: dict[str, Any] = {"cluster": f"cpu:{DEVICES}", "donate_argnums": (0, 1)}
        if self.has("manual split"):
            rows = None if self.has("pad") else PartitionSpec(("dp", "tp"))
            pins = (None, None, {"x": rows, "indices": None})
            found |= {"mode": "semi_auto", "mesh": "dp=2,tp=4", "in_shardings": pins}
        else:
            found |= {"mode": "data_parallel", "batch_argnums": 2}
        if self.level:
            found["optimizer_parallel"] = autoshard.OptimizerParallel(
                level=self.level, threshold_kb=0
            )
        if self.has("recompute auto"):
            found["recompute"] = "auto"
        if self.has("no all-to-all"):
            found["enable_alltoall"] = False
        if self.has("pad"):
            found["indivisible"] = "pad"
        return found

    def step(self, shard: Callable[..., Any] = autoshard.shard) -> Callable[..., Tree]:
        """Parameters, optimizer state and batch to parameters, state and loss.

        Args:
            shard: How ops are marked; sizes that do not divide cannot be, outside of a plan.
        """
        by_columns = shard(doubled, in_strategy=((1, DEVICES),))
        by_rows = shard(doubled, in_strategy=((DEVICES, 1),))

        def layer(x: Any, w: Any) -> Any:
            hidden = wrapped(x @ w)
            return x + wrapped(jnp.maximum(hidden, 1.0) @ w)

        if self.has("recompute marks"):
            layer = autoshard.recompute(
                layer, mp_comm_recompute=False, parallel_optimizer_comm_recompute=False
            )

        def loss(parameters: Tree, batch: Tree) -> Any:
            x = batch["x"]
            if self.has("pad") and self.has("manual split"):
                x = by_rows(x)
            if self.has("manual split"):
                x = wrapped(x + look_up(parameters["table"], batch["indices"]).sum(1))
            if self.scans:
                x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, parameters["layers"])
            else:
                for number in range(LAYERS):
                    x = layer(x, parameters[f"layer {number}"])
            if self.has("no all-to-all"):
                x = by_rows(by_columns(x))
            return jnp.sum(jnp.square(wrapped(x @ parameters["head"]) - 1)) / 2

        def step(parameters: Tree, state: Tree, batch: Tree) -> Tree:
            if self.has("host states"):
                state = autoshard.in_host_memory(state)
            differentiate = jax.value_and_grad(loss)
            if self.has("accumulate"):
                differentiate = autoshard.accumulate_gradients(loss, STEPS, mean=False)
            value, gradients = differentiate(parameters, batch)
            gradients = jax.tree.map(wrapped, gradients)
            updates, state = OPTIMIZER.update(gradients, state, parameters)
            return optax.apply_updates(parameters, updates), state, value

        return step

    def arguments(self) -> tuple[Tree, Tree, Tree]:
        """The same numbers for every case of equal shapes."""
        random = np.random.default_rng(3)

        def draw(*shape: int) -> np.ndarray:
            return random.integers(-1, 2, shape).astype(np.float32)

        rows = PADDED_ROWS if self.has("pad") else ROWS
        layers = draw(LAYERS, WIDTH, WIDTH)
        parameters: Tree = {"head": draw(WIDTH, HEAD)}
        if self.scans:
            parameters["layers"] = layers
        else:
            parameters |= {f"layer {number}": layer for number, layer in enumerate(layers)}
        batch = {"x": draw(rows, WIDTH)}
        if self.has("manual split"):
            parameters["table"] = look_up.pack(draw(sum(SPLIT), WIDTH))
            columns = zip(look_up.offsets, SPLIT, strict=True)
            batch["indices"] = np.stack(
                [first + random.integers(0, size, rows) for first, size in columns], -1
            ).astype(np.int32)
        return parameters, jax.device_get(OPTIMIZER.init(parameters)), batch

    @property
    def plain(self) -> Case:
        """The case on one device: without what only says how a step is run."""
        matters = {"manual split", "no all-to-all", "pad", "accumulate"}
        return Case(self.techniques & matters, self.scans)

    def planned(self) -> tuple[Any, Tree]:
        """The jitted step and its arguments; its memory is short where that is the technique."""
        step, args, options = self.step(), self.arguments(), self.options()
        if self.has("recompute auto"):
            others = self.techniques - {"recompute auto", "recompute marks"}
            without = Case(others, self.scans)
            plan = autoshard.plan(without.step(), *args, **without.options())
            options["memory_limit"] = 0.97 * plan.peak_bytes
        return autoshard.jit(step, **options), args


def all_pairs() -> list[frozenset[str]]:
    """Every two techniques but two levels."""
    pairs = (frozenset(pair) for pair in combinations(TECHNIQUES, 2))
    return [pair for pair in pairs if not pair <= set(LEVELS)]
