"""A language model that does not fit, and what makes room for it: four ways, one switch more each.

A decoder-only transformer on bytes with AdamW, parameters and both moments in float32; the batch is
split over all devices, and

    data        everything else is on every device: an error that says by how much it does not fit
    optimizer   optimizer_parallel=3 spreads moments, gradients and parameters: it fits
    recompute   and recompute="auto" computes forward values again: a larger batch, or model
    host        and autoshard.in_host_memory keeps the moments on the host: a still larger model

    python examples/language_model.py [--ways data optimizer recompute host]
    python examples/language_model.py --train 20

The first command looks for the largest batch of a model of 6.4 billion parameters, then for the
largest model, on 16 chips of TPU v5e, by planned memory alone: shapes are enough, nothing is
allocated. What it finds is compiled by libtpu where that is installed, and one step less where the
compiler needs more than there is. The second one trains a small model on 8 virtual devices in all
ways, on the sources of Python's standard library.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import autoshard
import byte_transformer
from autoshard.verify.verification import Verification
from byte_transformer import BYTES

CLUSTER = "v5e:4x4"
MEMORY_LIMIT = "14.4GiB"
"""Memory that a plan may use, of the 15.75 GiB that libtpu gives a program on v5e."""
STEPS = {"batch": 16, "layers": 8}
"""What a size is a multiple of: one text a device, or eight layers."""
TRAINED_ON = "cpu:8"
SMALL_SHARE = 0.8
"""Memory where values are computed again, as a share of what the small model needs."""
OPTIMIZER = optax.adamw(3e-4)

Parameters = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of a batch."""

    features: int = 4096
    heads: int = 32
    layers: int = 32
    tokens: int = 512
    """Length of a text in bytes."""
    batch: int = 16
    """Texts a step."""
    dtype: Any = jnp.bfloat16
    """Type of the arithmetic; parameters are float32."""


SMALL = Config(features=64, heads=4, layers=3, tokens=64, batch=16, dtype=jnp.float32)


@dataclass(frozen=True)
class Way:
    """What is done about memory."""

    name: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of ``autoshard.plan`` and ``autoshard.jit``, beside ``ALWAYS``."""
    states_on_host: bool = False


ALWAYS: dict[str, Any] = {"mode": "data_parallel", "donate_argnums": (0, 1)}
SPREAD: dict[str, Any] = {"optimizer_parallel": 3}
AGAIN: dict[str, Any] = SPREAD | {"recompute": "auto"}
WAYS = (
    Way("data"),
    Way("optimizer", SPREAD),
    Way("recompute", AGAIN),
    Way("host", AGAIN, states_on_host=True),
)


# The model


def parameter_shapes(config: Config) -> Parameters:
    """Shapes of the parameters; those of all layers are stacked in front."""
    size, layers = config.features, config.layers

    def struct(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {
        "embedding": struct(BYTES, size),
        "position": struct(config.tokens, size),
        "layers": {
            "attention_gain": struct(layers, size),
            "query": struct(layers, size, size),
            "key": struct(layers, size, size),
            "value": struct(layers, size, size),
            "merge": struct(layers, size, size),
            "feed_gain": struct(layers, size),
            "widen": struct(layers, size, 4 * size),
            "narrow": struct(layers, 4 * size, size),
        },
        "gain": struct(size),
        "head": struct(size, BYTES),
    }


def normed(x: jax.Array, gain: jax.Array) -> jax.Array:
    """``x`` over the root of its mean square, times ``gain``."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-5)
    return (wide * scale).astype(x.dtype) * gain.astype(x.dtype)


def layer(config: Config, x: jax.Array, p: Parameters) -> jax.Array:
    """Causal self-attention and a feed-forward network, each with its norm and residual."""
    y = normed(x, p["attention_gain"])
    heads = (*x.shape[:2], config.heads, -1)
    query, key, value = ((y @ p[name]).reshape(heads) for name in ("query", "key", "value"))
    scores = jnp.einsum("bshk,bthk->bhst", query, key, preferred_element_type=jnp.float32)
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jnp.where(causal, scores * query.shape[-1] ** -0.5, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhst,bthk->bshk", weights, value).reshape(x.shape)
    x = x + mixed @ p["merge"]
    return x + jax.nn.gelu(normed(x, p["feed_gain"]) @ p["widen"]) @ p["narrow"]


def loss(config: Config, p: Parameters, ids: jax.Array, next_ids: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next bytes."""
    x = (p["embedding"][ids] + p["position"]).astype(config.dtype)
    # Before the loop, so that it stacks no converted parameters for the backward pass.
    layers = jax.tree.map(lambda w: w.astype(config.dtype), p["layers"])

    def body(x: jax.Array, weights: Parameters) -> tuple[jax.Array, None]:
        return layer(config, x, weights), None

    x, _ = jax.lax.scan(body, x, layers)
    logits = (normed(x, p["gain"]) @ p["head"].astype(x.dtype)).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, next_ids).mean()


def train_step(config: Config, way: Way = WAYS[0]) -> Callable[..., Any]:
    """``(parameters, optimizer state, bytes, next bytes) -> (loss, parameters, state)``."""

    def step(p: Parameters, state: Any, ids: jax.Array, next_ids: jax.Array) -> Any:
        if way.states_on_host:
            state = autoshard.in_host_memory(state)
        value, gradients = jax.value_and_grad(partial(loss, config))(p, ids, next_ids)
        updates, state = OPTIMIZER.update(gradients, state, p)
        return value, optax.apply_updates(p, updates), state

    return step


# Planning: how large a batch, how large a model


def arguments(config: Config) -> tuple[Any, ...]:
    """Shapes of the arguments of a step."""
    p = parameter_shapes(config)
    ids = jax.ShapeDtypeStruct((config.batch, config.tokens), jnp.int32)
    return p, jax.eval_shape(OPTIMIZER.init, p), ids, ids


def planned(way: Way, config: Config, cluster: str, limit: float | str | None) -> autoshard.Plan:
    """The step's plan for a cluster; an ``autoshard.DoesNotFitError`` if it needs more memory."""
    options = ALWAYS | way.options | {"cluster": cluster, "memory_limit": limit}
    return autoshard.plan(train_step(config, way), *arguments(config), **options)


def largest(fits: Callable[[int], bool], step: int) -> int:
    """The largest multiple of ``step`` that fits if all smaller ones do; 0 if none does."""
    below, above = 0, step
    while fits(above):
        below, above = above, 2 * above
    while above - below > step:
        middle = (below + above) // 2 // step * step
        below, above = (middle, above) if fits(middle) else (below, middle)
    return below


def rows(way: Way, size: str, compiles: bool) -> Iterator[list[str]]:
    """The table's rows of the largest batch, or number of layers, that fits.

    A step less, as long as the compiler needs more than there is.
    """
    step = STEPS[size]

    def fits(number: int) -> bool:
        try:
            planned(way, replace(Config(), **{size: number}), CLUSTER, MEMORY_LIMIT)
        except autoshard.DoesNotFitError as error:
            if number == step:
                print(f"{way.name}: {error}")
            return False
        return True

    found = largest(fits, step)
    for number in range(max(found, step), 0, -step):
        config = replace(Config(), **{size: number})
        plan = planned(way, config, CLUSTER, MEMORY_LIMIT if found else None)
        compiled = plan.verify() if compiles else None
        yield cells(way, config, plan, compiled, fits=bool(found))
        if not found or compiled is None or compiled.fits:
            return


HEADINGS = (
    *("way", "layers", "parameters", "batch", "allowed", "planned GiB", "fits", "compiled GiB"),
    *("fits", "on the host GiB", "step s", "computed again s", "compiled step s"),
)


def cells(
    way: Way, config: Config, plan: autoshard.Plan, compiled: Verification | None, *, fits: bool
) -> list[str]:
    """A row of the table: what the plan and the compiler say; bytes are those of one device."""
    count = sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(config)))
    needed = step = ""
    if compiled is not None:
        program = compiled.program
        live = program.live_bytes if program.fits else None
        size = live or program.needed_bytes
        needed = f"{size / 2**30:.2f}"
        step = f"{compiled.estimate.step_seconds:.2f}" if compiled.estimate else ""
    summary = plan.summary
    assert summary is not None, "a plan for a cluster"
    return [
        *(way.name, str(config.layers), f"{count / 1e9:.1f} B", str(config.batch)),
        *(MEMORY_LIMIT, f"{plan.peak_bytes / 2**30:.2f}", _yes(fits)),
        *(needed, _yes(compiled.fits) if compiled else ""),
        *(f"{summary.host_bytes_per_device / 2**30:.2f}", f"{plan.step_seconds:.2f}"),
        *(f"{summary.recompute_seconds:.2f}", step),
    ]


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def show_plans(ways: Sequence[Way], compiles: bool, console: Console) -> None:
    """Largest batches of one model, then largest models of the smallest batch."""
    table = Table(*HEADINGS, title=CLUSTER)
    for size, of_size in (
        ("batch", [way for way in ways if not way.states_on_host]),
        ("layers", [way for way in ways if "recompute" in way.options]),
    ):
        for way in of_size:
            for row in rows(way, size, compiles):
                table.add_row(*row)
    console.print(table)
    if not compiles:
        console.print(r"All numbers are planned; pip install 'autoshard\[tpu]' to compile them.")


# Training a small one


def initial_parameters(config: Config) -> Parameters:
    """Normally distributed, gains 1; the same at every call."""
    random = np.random.default_rng(0)

    def made(path: Any, leaf: Any) -> np.ndarray:
        if jax.tree_util.keystr(path).endswith("gain']"):
            return np.ones(leaf.shape, np.float32)
        return (0.05 * random.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(made, parameter_shapes(config))


def train(step: Any, config: Config, steps: int) -> list[float]:
    """The loss of every step."""
    parameters = initial_parameters(config)
    state = OPTIMIZER.init(parameters)
    sizes = byte_transformer.Config(tokens=config.tokens, batch=config.batch)
    losses: list[float] = []
    for batch in byte_transformer.batches(byte_transformer.standard_library(), sizes, steps):
        value, parameters, state = step(parameters, state, *batch)
        losses.append(float(value))
    return losses


def trained(way: Way, config: Config, steps: int) -> tuple[autoshard.Plan, list[float]]:
    """Train on 8 virtual devices: the plan and the losses.

    A step that recomputes gets less memory than it needs without.
    """
    limit = None
    if "recompute" in way.options:
        keeping = replace(way, options=SPREAD)
        limit = SMALL_SHARE * planned(keeping, config, TRAINED_ON, None).peak_bytes
    options = ALWAYS | way.options | {"cluster": TRAINED_ON, "memory_limit": limit}
    step: Any = autoshard.jit(train_step(config, way), **options)
    return step.plan(*arguments(config)), train(step, config, steps)


def show_training(ways: Sequence[Way], steps: int, console: Console) -> None:
    """Train in the ways that are asked for, and print them beside one device."""
    table = Table("way", "peak", "on the host", "computed again", "first loss", "last loss")
    for way in ways:
        plan, losses = trained(way, SMALL, steps)
        summary = plan.summary
        assert summary is not None, "a plan for a cluster"
        again = sum(value.bytes for value in summary.recomputed)
        held = (plan.peak_bytes, summary.host_bytes_per_device, again)
        table.add_row(
            way.name,
            *(f"{n / 1024:,.0f} KiB" for n in held),
            *(f"{n:.6f}" for n in (losses[0], losses[-1])),
        )
    losses = train(jax.jit(train_step(SMALL)), SMALL, steps)
    table.add_row("one device", "", "", "", f"{losses[0]:.6f}", f"{losses[-1]:.6f}")
    console.print(table)


def main() -> None:
    """Plan the large ones, or train the small one, in the ways that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [way.name for way in WAYS]
    parser.add_argument("--ways", nargs="+", choices=names, default=names)
    parser.add_argument("--train", type=int, metavar="STEPS", help="train a small one instead")
    parser.add_argument("--no-compile", action="store_true", help="planned numbers only")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    ways = [way for way in WAYS if way.name in options.ways]
    if options.train is None:
        compiles = importlib.util.find_spec("libtpu") is not None and not options.no_compile
        show_plans(ways, compiles, console)
        return
    jax.config.update("jax_num_cpu_devices", 8)
    show_training(ways, options.train, console)


if __name__ == "__main__":
    main()
