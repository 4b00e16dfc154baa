"""Predicted and measured step times on 8 virtual CPU devices, before and after calibration.

    python bench/truth/calibrate_cpu.py [--cluster FILE] [--budget SECONDS] [--rounds N]

Calibrates (or reads a file that a calibration wrote), then runs small train and inference steps,
each split in several ways: over the batch, over columns and rows of matrices, over heads, experts,
the vocabulary, and as the automatic mode decides. "before" is what the cost model says with the
built-in constants of cpu:8, "after" with the measured ones; the plan is the same in all columns of
a row. Plans of "auto" were made with the built-in constants, of "auto, file" with measured ones.
Rows are sorted by |log(after / measured)|, worst first. Spearman is the rank correlation of
predicted and measured seconds over all rows; since programs differ in size more than ways to split
one do, pairs of splits of one program that are in the wrong order are listed, too. Exits with 1 if
Spearman is below 0.8 after calibration.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

import autoshard
from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, estimate_planned

LEAST_SPEARMAN = 0.8
RATE = 1e-3


@dataclass(frozen=True)
class Case:
    """One program, split in one way."""

    program: str
    split: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: dict[str, int] | None = None
    """None: the automatic mode."""
    in_shardings: Any = None
    """None, with a mesh: data parallel."""
    is_train: bool = True
    """The first result is the first argument of the next step."""


def normal(*shape: int, seed: int = 0) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return jnp.asarray(values * (shape[-2] ** -0.5 if len(shape) > 1 else 1.0))


def train_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - RATE * g, params, grads), value

    return step


def mlp(params: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def mlp_loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((mlp(params, x) - y) ** 2)


def attention(params: Any, x: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, params[name]) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k) * q.shape[-1] ** -0.5)
    mixed = jnp.einsum("bhst,bthk->bshk", scores, v)
    return x + jnp.einsum("bshk,hkd->bsd", mixed, params["o"])


def attention_loss(params: Any, x: Any) -> Any:
    return jnp.mean(attention(params, x) ** 2)


def convnet_loss(params: Any, x: Any, y: Any) -> Any:
    for kernel in params["kernels"]:
        x = jax.lax.conv_general_dilated(
            x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
    logits = x.mean((1, 2)) @ params["head"]
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * y, -1))


def language_loss(params: Any, tokens: Any) -> Any:
    x = params["table"][tokens]
    x = x + jax.nn.gelu(x @ params["up"]) @ params["down"]
    logits = jax.nn.log_softmax(x @ params["table"].T)
    return -jnp.mean(logits[:, 0])


def experts_loss(params: Any, x: Any) -> Any:
    gates = jax.nn.softmax(x @ params["router"])
    hidden = jax.nn.gelu(jnp.einsum("td,edf->etf", x, params["up"]))
    mixed = jnp.einsum("etf,efd,te->td", hidden, params["down"], gates)
    return jnp.mean((x + mixed) ** 2)


def recurrent_loss(params: Any, x: Any) -> Any:
    def cell(state: Any, token: Any) -> Any:
        state = jnp.tanh(token @ params["in"] + state @ params["state"])
        return state, None

    start = jnp.zeros((x.shape[0], params["state"].shape[0]))
    return jnp.mean(jax.lax.scan(cell, start, x.swapaxes(0, 1))[0] ** 2)


def norm_loss(params: Any, x: Any) -> Any:
    for scale in params["scales"]:
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        x = jax.nn.softmax(x * scale) + jnp.tanh(x)
    return jnp.mean(x**2)


DATA, MODEL, BOTH = {"data": 8}, {"model": 8}, {"data": 4, "model": 2}


def cases() -> Iterator[Case]:
    """Twenty-six, of nine programs."""
    columns = {"up": P(None, "model"), "down": P("model", None)}
    weights = {"up": normal(512, 2048), "down": normal(2048, 512)}
    step = train_step(mlp_loss)
    batch = (normal(1024, 512), normal(1024, 512))
    whole = P()
    fsdp = {"up": P("data", None), "down": P("data", None)}
    yield Case("mlp train", "batch", step, (weights, *batch), DATA)
    yield Case("mlp train", "model", step, (weights, *batch), MODEL, (columns, whole, whole))
    yield Case("mlp train", "both", step, (weights, *batch), BOTH, (columns, P("data"), P("data")))
    yield Case("mlp train", "fsdp", step, (weights, *batch), DATA, (fsdp, P("data"), P("data")))
    yield Case("mlp train", "auto", step, (weights, *batch))

    small = {"up": normal(128, 256), "down": normal(256, 128)}
    pairs = (normal(64, 128), normal(64, 128))
    yield Case("small mlp train", "batch", step, (small, *pairs), DATA)
    yield Case("small mlp train", "model", step, (small, *pairs), MODEL, (columns, whole, whole))
    yield Case("small mlp train", "auto", step, (small, *pairs))

    few = (normal(16, 512),)
    yield Case("mlp infer, 16 rows", "batch", mlp, (weights, *few), DATA, is_train=False)
    yield Case("mlp infer, 16 rows", "model", mlp, (weights, *few), MODEL, (columns, whole), False)
    yield Case("mlp infer, 16 rows", "auto", mlp, (weights, *few), is_train=False)

    heads = {name: normal(256, 8, 32) for name in "qkv"} | {"o": normal(8, 32, 256)}
    by_head = dict.fromkeys("qkv", P(None, "model")) | {"o": P("model")}
    step = train_step(attention_loss)
    x = normal(16, 128, 256)
    yield Case("attention train", "batch", step, (heads, x), DATA)
    yield Case("attention train", "model", step, (heads, x), MODEL, (by_head, whole))
    yield Case("attention train", "both", step, (heads, x), BOTH, (by_head, P("data")))

    kernels = [normal(3, 3, 3, 32), normal(3, 3, 32, 64), normal(3, 3, 64, 128)]
    network = {"kernels": kernels, "head": normal(128, 16)}
    images = (normal(32, 64, 64, 3), jax.nn.one_hot(jnp.arange(32) % 16, 16))
    step = train_step(convnet_loss)
    yield Case("convnet train", "batch", step, (network, *images), DATA)
    yield Case("convnet train", "auto", step, (network, *images))

    table = {"table": normal(8192, 128), "up": normal(128, 512), "down": normal(512, 128)}
    by_word = {"table": P("model"), "up": P(None, "model"), "down": P("model")}
    tokens = jnp.arange(512) * 13 % 8192
    step = train_step(language_loss)
    yield Case("embedding train", "batch", step, (table, tokens), DATA)
    yield Case("embedding train", "model", step, (table, tokens), MODEL, (by_word, whole))
    yield Case("embedding train", "auto", step, (table, tokens))

    experts = {
        "router": normal(128, 8),
        "up": normal(8, 128, 256),
        "down": normal(8, 256, 128),
    }
    by_expert = {"router": whole, "up": P("model"), "down": P("model")}
    step = train_step(experts_loss)
    x = normal(512, 128)
    yield Case("experts train", "batch", step, (experts, x), DATA)
    yield Case("experts train", "model", step, (experts, x), MODEL, (by_expert, whole))

    recurrent = {"in": normal(128, 256), "state": normal(256, 256)}
    by_column = {"in": P(None, "model"), "state": P(None, "model")}
    step = train_step(recurrent_loss)
    x = normal(64, 32, 128)
    yield Case("recurrent train", "batch", step, (recurrent, x), DATA)
    yield Case("recurrent train", "model", step, (recurrent, x), MODEL, (by_column, whole))

    norms = {"scales": [normal(512), normal(512)]}
    step = train_step(norm_loss)
    x = normal(2048, 512)
    yield Case("norms train", "batch", step, (norms, x), DATA)
    yield Case("norms train", "model", step, (norms, x), MODEL, (P("model"), P(None, "model")))
    yield Case("norms infer", "batch", norm_loss, (norms, x), DATA, is_train=False)


@dataclass
class Row:
    case: Case
    run: Callable[[], None]
    plan: autoshard.Plan
    samples: list[float]

    @property
    def measured(self) -> float:
        return median(self.samples)

    def predicted(self, cluster: Cluster) -> float:
        module = parse_bytes(self.plan.bytecode, new_context(), self.plan.name)
        return estimate_planned(module, cluster, RecursiveProgramming(), {}).step_seconds


def prepare(case: Case, cluster: str | Cluster = "cpu:8") -> Row:
    options: dict[str, Any] = {"mode": "semi_auto", "in_shardings": case.in_shardings}
    if case.mesh is None:
        options = {"mode": "auto"}
    elif case.in_shardings is None:
        options = {"mode": "data_parallel", "batch_argnums": range(1, len(case.args))}
    step = autoshard.jit(case.fn, cluster=cluster, mesh=case.mesh, **options)
    plan = step.plan(*case.args)
    placed = jax.tree.map(jax.device_put, list(case.args), list(plan.in_shardings))

    def run() -> None:
        result = jax.block_until_ready(step(*placed))
        if case.is_train:
            placed[0] = result[0]

    run()
    run()
    return Row(case, run, plan, [])


def spearman(xs: list[float], ys: list[float]) -> float:
    """Rank correlation; nobody has equal values here."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (xs, ys)]
    return float(np.corrcoef(*ranks)[0, 1])


def ordered_pairs(rows: list[Row], predicted: list[float]) -> tuple[int, list[str]]:
    """How many pairs of splits of one program differ, and those that the prediction turns round."""
    total, wrong = 0, list[str]()
    for a, b in itertools.combinations(range(len(rows)), 2):
        ratio = rows[a].measured / rows[b].measured
        if rows[a].case.program != rows[b].case.program or 1 / 1.2 < ratio < 1.2:
            continue
        total += 1
        if (predicted[a] > predicted[b]) != (ratio > 1):
            case = rows[a].case
            wrong.append(
                f"{case.program}: {case.split} / {rows[b].case.split} is {ratio:.2f},"
                f" predicted {predicted[a] / predicted[b]:.2f}"
            )
    return total, wrong


def machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", help="a file that a calibration wrote; else calibrate")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of calibration")
    parser.add_argument("--rounds", type=int, default=15, help="timings of each step")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    console = Console(width=None if sys.stdout.isatty() else 120)
    builtin = Cluster.parse("cpu:8")
    if options.cluster:
        cluster = Cluster.of(options.cluster)
    else:
        calibration = autoshard.calibrate(path=None, budget_seconds=options.budget)
        console.print(str(calibration))
        cluster = calibration.cluster
    # XLA names collectives of its own that a plan need not have; times are what counts here.
    warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
    rows: list[Row] = []
    automatic = [replace(case, split="auto, file") for case in cases() if case.mesh is None]
    for case in (*cases(), *automatic):
        start = time.perf_counter()
        rows.append(prepare(case, cluster if case.split == "auto, file" else "cpu:8"))
        took = time.perf_counter() - start
        print(f"{case.program}, {case.split}: {took:.1f} s", file=sys.stderr)
    # All programs in every round, so that a busy minute of the machine hits all alike.
    for _ in range(options.rounds):
        for row in rows:
            start = time.perf_counter()
            row.run()
            row.samples.append(time.perf_counter() - start)
    measured = [row.measured for row in rows]
    before = [row.predicted(builtin) for row in rows]
    after = [row.predicted(cluster) for row in rows]
    show(console, rows, before, after)
    print(f"machine: {machine()}, jax {jax.__version__}; medians of {options.rounds} runs")
    for name, predicted in (("before", before), ("after", after)):
        total, wrong = ordered_pairs(rows, predicted)
        print(
            f"{name} calibration: Spearman {spearman(predicted, measured):.3f} over {len(rows)}"
            f" steps; {total - len(wrong)} of {total} pairs of splits of one program, more than"
            " 20% apart, in the right order; median factor off"
            f" {median(np.exp(np.abs(np.log(np.divide(predicted, measured))))):.2f}"
        )
        for line in wrong:
            print(f"  in the wrong order: {line}")
    return 0 if spearman(after, measured) >= LEAST_SPEARMAN else 1


def show(console: Console, rows: list[Row], before: list[float], after: list[float]) -> None:
    table = Table("program", "split", "measured ms", "before ms", "after ms", "after / measured")
    order = sorted(range(len(rows)), key=lambda i: -abs(log(after[i] / rows[i].measured)))
    for i in order:
        table.add_row(
            rows[i].case.program,
            rows[i].case.split,
            *(f"{seconds * 1e3:.2f}" for seconds in (rows[i].measured, before[i], after[i])),
            f"{after[i] / rows[i].measured:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
