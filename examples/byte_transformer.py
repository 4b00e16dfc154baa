"""Train a byte-level transformer on 8 virtual devices: with a handful of annotations, with none.

The model is plain flax.nnx, the optimizer optax.adamw, the text Python's own standard library.
Once only the matmuls that hold weights and the embedding say how they are split; every other op,
backward pass and optimizer included, is left to sharding propagation. Once nothing is said at all,
and the automatic mode searches for the fastest plan. Both runs are compared with the unsharded one
step by step.

    python examples/byte_transformer.py --output ./demo-output
"""

from __future__ import annotations

import argparse
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from rich.bar import Bar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import autoshard
from autoshard.planned.collective import Collective, traffic
from autoshard.report.plan_table import collective_table as summary_table
from autoshard.report.plan_table import estimate_lines
from autoshard.verify.hlo_collectives import hlo_collectives

MESH = "dp=2,tp=4"
CLUSTER = "cpu:8"
LAYOUT = autoshard.Layout((2, 4), ("dp", "tp"))
BYTES = 256

COMPARED_STEPS = 20
TOLERANCE = 1e-5
"""Largest allowed difference of the losses in the compared steps, relative."""

Batch = tuple[np.ndarray, np.ndarray]
Step = Callable[[Any, Any, Batch], tuple[jax.Array, Any, Any]]
Losses = np.ndarray


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of a batch."""

    features: int = 128
    heads: int = 8
    layers: int = 4
    tokens: int = 64
    """Length of a text in bytes."""
    batch: int = 16
    """Texts a step."""


@dataclass(frozen=True)
class Ops:
    """The ops of the model that say how they are split."""

    columns: Any
    """``dot_general`` with a weight whose columns are cut."""
    rows: Any
    """``dot_general`` with a weight whose rows are cut."""
    look_up: Any
    """``take`` from a table of embeddings."""


UNMARKED = Ops(jax.lax.dot_general, jax.lax.dot_general, partial(jnp.take, axis=0))

# The annotations: activations are (batch, tokens, features), and the batch is cut by dp.
_ACTIVATIONS = LAYOUT("dp", "None", "None")
MARKED = Ops(
    autoshard.shard(UNMARKED.columns, in_strategy=(_ACTIVATIONS, LAYOUT("None", "tp"))),
    autoshard.shard(UNMARKED.rows, in_strategy=(LAYOUT("dp", "None", "tp"), LAYOUT("tp", "None"))),
    autoshard.shard(UNMARKED.look_up, in_strategy=(LAYOUT("tp", "None"), LAYOUT("dp", "None"))),
)


class Attention(nnx.Module):
    """Causal self-attention, written without a thought of devices."""

    def __init__(self, config: Config, ops: Ops, rngs: nnx.Rngs) -> None:
        size = config.features
        self.heads = config.heads
        self.query = nnx.Linear(size, size, use_bias=False, dot_general=ops.columns, rngs=rngs)
        self.key = nnx.Linear(size, size, use_bias=False, dot_general=ops.columns, rngs=rngs)
        self.value = nnx.Linear(size, size, use_bias=False, dot_general=ops.columns, rngs=rngs)
        self.merge = nnx.Linear(size, size, dot_general=ops.rows, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, tokens, features = x.shape
        split = (batch, tokens, self.heads, features // self.heads)
        query, key, value = (f(x).reshape(split) for f in (self.query, self.key, self.value))
        scores = jnp.einsum("bshk,bthk->bhst", query, key) / np.sqrt(split[-1])
        causal = jnp.tril(jnp.ones((tokens, tokens), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhst,bthk->bshk", weights, value)
        return self.merge(mixed.reshape(x.shape))


class Block(nnx.Module):
    """Attention and a feed-forward network, each with its norm and residual."""

    def __init__(self, config: Config, ops: Ops, rngs: nnx.Rngs) -> None:
        size = config.features
        self.attention_norm = nnx.LayerNorm(size, rngs=rngs)
        self.attention = Attention(config, ops, rngs)
        self.feed_norm = nnx.LayerNorm(size, rngs=rngs)
        self.widen = nnx.Linear(size, 4 * size, dot_general=ops.columns, rngs=rngs)
        self.narrow = nnx.Linear(4 * size, size, dot_general=ops.rows, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x))
        return x + self.narrow(jax.nn.gelu(self.widen(self.feed_norm(x))))


class ByteTransformer(nnx.Module):
    """Logits ``(batch, tokens, 256)`` of the next byte, from bytes ``(batch, tokens)``."""

    def __init__(self, config: Config, ops: Ops, rngs: nnx.Rngs) -> None:
        self.look_up = ops.look_up
        self.embedding = nnx.Embed(BYTES, config.features, rngs=rngs)
        self.position = nnx.Param(
            0.02 * jax.random.normal(rngs.params(), (config.tokens, config.features))
        )
        self.blocks = nnx.List([Block(config, ops, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.features, rngs=rngs)
        self.head = nnx.Linear(
            config.features, BYTES, use_bias=False, dot_general=ops.columns, rngs=rngs
        )

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.look_up(self.embedding.embedding[...], ids) + self.position[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Training:
    """A train step and where it starts."""

    step: Step
    """``(parameters, optimizer state, (bytes, next bytes)) -> (loss, parameters, state)``."""
    parameters: Any
    state: Any


def training(config: Config, ops: Ops = MARKED) -> Training:
    """The transformer with adamw; the same parameters at every call."""
    graph, parameters = nnx.split(ByteTransformer(config, ops, nnx.Rngs(0)))
    optimizer = optax.adamw(1e-3)

    def loss_of(parameters: Any, batch: Batch) -> jax.Array:
        ids, next_ids = batch
        logits = nnx.merge(graph, parameters)(ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits, next_ids).mean()

    def train_step(parameters: Any, state: Any, batch: Batch) -> tuple[jax.Array, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
        updates, state = optimizer.update(gradients, state, parameters)
        return loss, optax.apply_updates(parameters, updates), state

    return Training(train_step, parameters, optimizer.init(parameters))


def standard_library() -> np.ndarray:
    """Python's standard library sources, one after the other, as uint8."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return np.frombuffer(b"".join(p.read_bytes() for p in sorted(folder.glob("*.py"))), np.uint8)


def batches(text: np.ndarray, config: Config, steps: int) -> Iterator[Batch]:
    """``steps`` batches of texts that start anywhere; the same at every call."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        starts = random.integers(0, len(text) - config.tokens, config.batch)
        texts = text[starts[:, None] + np.arange(config.tokens + 1)].astype(np.int32)
        yield texts[:, :-1], texts[:, 1:]


def train(
    name: str, step: Step, start: Training, data: Sequence[Batch], console: Console
) -> Losses:
    """Run ``step`` over ``data`` and show how far it is.

    Returns:
        The loss of every step, float64 of shape ``(steps,)``.
    """
    parameters, state = start.parameters, start.state
    losses: list[float] = []
    columns = (
        TextColumn(f"{name:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=len(data), loss=float("nan"))
        for batch in data:
            loss, parameters, state = step(parameters, state, batch)
            losses.append(float(loss))
            progress.update(task, advance=1, loss=losses[-1])
    return np.array(losses)


def relative_differences(unsharded: Losses, sharded: Losses) -> Losses:
    """``|sharded - unsharded| / |unsharded|``, step by step."""
    return np.abs(sharded - unsharded) / np.abs(unsharded)


def loss_table(unsharded: Losses, runs: Sequence[tuple[str, Losses]]) -> Table:
    """The loss curves at some twenty steps."""
    table = Table(title="Loss")
    headings = ["step", "one device"]
    for name, _ in runs:
        headings += [name, "relative difference"]
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("from 0 to the first loss")
    count = len(unsharded)
    for step in sorted({*range(0, count, max(1, count // 20)), count - 1}):
        cells = [str(step + 1), f"{unsharded[step]:.6f}"]
        for _, losses in runs:
            difference = relative_differences(unsharded, losses)[step]
            cells += [f"{losses[step]:.6f}", f"{difference:.1e}"]
        bar = Bar(size=unsharded[0], begin=0, end=unsharded[step], width=30, color="cyan")
        table.add_row(*cells, bar)
    return table


def plan_table(plan: autoshard.Plan, file: str) -> Table:
    """How the arguments lie on the devices; blocks that lie alike are one row."""
    table = Table(title=f"Plan (in full: {file})")
    table.add_column("how many", justify="right")
    for heading in ("argument", "shape", "sharding", "on one device"):
        table.add_column(heading)
    rows: Counter[tuple[str, ...]] = Counter()
    for value in plan.arguments:
        name = re.sub(r"\[\d+\]", "[*]", value.name.removesuffix(".value"))
        name = re.sub(r"\.(mu|nu)\[", ".mu,nu[", name)
        shapes = (str(value.shape), str(value.sharding), str(value.local_shape))
        rows[(name, *shapes)] += 1
    for cells, count in rows.items():
        table.add_row(str(count), *map(Text, cells))
    return table


def collective_table(predicted: Sequence[Collective], found: Sequence[Collective]) -> Table:
    """Collectives of one step by kind and axes: what the plan asks for, what XLA made."""
    table = Table(title="Collectives of one step; KiB that one device sends")
    table.add_column("kind")
    table.add_column("axes")
    for heading in ("predicted", "KiB", "found", "KiB"):
        table.add_column(heading, justify="right")
    sides = (traffic(predicted), traffic(found))
    for kind, axes in sorted({*sides[0], *sides[1]}, key=lambda key: (key[0].value, str(key[1]))):
        cells: list[str] = []
        for side in sides:
            seen = side.get((kind, axes))
            cells += [f"{seen.runs}", f"{seen.total_bytes / 1024:,.1f}"] if seen else ["-", "-"]
        table.add_row(kind.value, ", ".join(map(str, axes or ("irregular",))), *cells)
    return table


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="where files go")
    parser.add_argument("--steps", type=int, default=120, help="training steps (120)")
    parser.add_argument("--layers", type=int, default=Config.layers, help="blocks of the model")
    options = parser.parse_args()
    if options.steps < COMPARED_STEPS:
        parser.error(f"--steps {options.steps}: at least {COMPARED_STEPS} steps are compared")
    return options


@dataclass(frozen=True)
class Run:
    """One way to split the step, and what came of it."""

    name: str
    """Also of its files."""
    title: str
    step: Any
    ops: Ops
    plan: autoshard.Plan
    lowered: Any
    losses: Losses


def run(
    name: str,
    title: str,
    ops: Ops,
    config: Config,
    data: Sequence[Batch],
    console: Console,
    **options: Any,
) -> Run:
    """Plan, compile, show and train.

    Args:
        name: Of the run and its files.
        title: What is said of it.
        ops: Marked or not.
        config: Sizes.
        data: All batches.
        console: Where it is shown.
        options: Of ``autoshard.jit``.
    """
    console.rule(title)
    start = training(config, ops)
    step = autoshard.jit(start.step, donate_argnums=(0, 1), **options)
    arguments = (start.parameters, start.state, data[0])
    plan = step.plan(*arguments)
    if plan.summary is not None:
        show_choice(plan, console)
    console.print(plan_table(plan, f"{name}/plan.txt"))
    lowered = step.lower(*arguments)
    found = hlo_collectives(lowered.compile().as_text(), plan.mesh)
    console.print(collective_table(plan.collectives, found))
    losses = train(f"8 devices, {name}", step, start, data, console)
    return Run(name, title, step, ops, plan, lowered, losses)


def show_choice(plan: autoshard.Plan, console: Console) -> None:
    """What the search chose, and what its plan costs by its own estimate."""
    assert plan.summary is not None
    console.print(f"The search made the mesh {plan.mesh} of {plan.cluster}:")
    for line in estimate_lines(plan.summary):
        console.print(f"  {line}", highlight=False)
    console.print("What it expects to take longest of the communication:")
    console.print(summary_table(plan.summary, most=5))


def write(one: Run, output: Path) -> None:
    """Leave a run's plan and modules in a folder of its name."""
    folder = output / one.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.txt").write_text(f"{one.plan}\n")
    (folder / "planned.mlir").write_text(one.plan.to_mlir())
    (folder / "exported.mlir").write_text(one.lowered.as_text(debug_info=True))
    one.plan.save(folder / "plan.json")


def main() -> int:
    """Train three times, compare, and leave everything in a folder.

    Returns:
        1 if the losses of the compared steps differ by more than ``TOLERANCE``.
    """
    options = parse_arguments()
    jax.config.update("jax_num_cpu_devices", 8)
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    console = Console(record=True, width=None if sys.stdout.isatty() else 120)
    config = Config(layers=options.layers)
    text = standard_library()
    data = list(batches(text, config, options.steps))
    size = sum(leaf.size for leaf in jax.tree.leaves(training(config).parameters))
    console.print(
        f"A byte-level transformer of {size:,} parameters on {len(text):,} bytes of Python's"
        f" standard library, {jax.device_count()} virtual devices"
    )

    marked = run(
        "marked",
        f"Its matmuls and its embedding are marked for the mesh {MESH}",
        MARKED,
        config,
        data,
        console,
        mesh=MESH,
    )
    searched = run(
        "automatic",
        f"Nothing is marked; all that is said is cluster={CLUSTER}",
        UNMARKED,
        config,
        data,
        console,
        cluster=CLUSTER,
    )
    runs = (marked, searched)

    console.rule("All against one device")
    start = training(config, UNMARKED)
    unsharded = train("one device, jax.jit", jax.jit(start.step), start, data, console)
    console.print(loss_table(unsharded, [(one.name, one.losses) for one in runs]))
    difference = max(
        relative_differences(unsharded, one.losses)[:COMPARED_STEPS].max() for one in runs
    )
    console.print(
        f"Largest relative difference of the first {COMPARED_STEPS} losses: {difference:.1e}"
        f" (allowed: {TOLERANCE:.0e})"
    )

    for one in runs:
        write(one, output)
    losses = np.column_stack(
        (np.arange(1, len(unsharded) + 1), unsharded, *(one.losses for one in runs))
    )
    heading = ",".join(("step", "one device", *(one.name for one in runs)))
    np.savetxt(output / "losses.csv", losses, "%d" + ",%.9g" * 3, header=heading)
    console.save_text(str(output / "report.txt"), clear=False)
    console.save_html(str(output / "report.html"))
    console.print(f"Written to {output}: {', '.join(sorted(p.name for p in output.iterdir()))}")
    return int(not difference <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
