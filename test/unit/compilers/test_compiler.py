"""Rows of compilers: each changes what some analysis answers, has its sources, and is chosen."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler_answers import GPU, TPU
from core.test_program_memory import read
from core.test_stored_for_collectives import (
    ATTENTION,
    LAYER,
    backward,
    scattered,
)
from jax.ad_checkpoint import checkpoint_name

import autoshard
from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES, Constant
from autoshard.cluster.stages import cluster_of_a_stage
from autoshard.compilers import compiler as compilers
from autoshard.compilers.compiler import (
    COMPILERS,
    UNKNOWN,
    Compiler,
    Value,
    compiler_for,
    read_compiler,
    read_rules,
)
from autoshard.errors import AutoshardWarning, ClusterError, DoesNotFitError, PlanError
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.passes.lockstep import Lockstep
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.rewrites.lockstep.seconds import lockstep_seconds
from autoshard.rewrites.lockstep.write import Shape

MIB = 2**20
GATHER, SCATTER, REDUCE, *_ = _core.CollectiveKind

# What a row changes: memory of a program, seconds of a collective, a plan, a text


@dataclass(frozen=True)
class Memory:
    """Bytes and points of a program, before anything is cut."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    base: Mapping[str, float]
    changed: float

    def answers(self, row: str) -> tuple[Any, Any]:
        """Under the base, and with the row changed."""
        return self._answer(self.base), self._answer({**self.base, row: self.changed})

    def _answer(self, compiler: Mapping[str, float]) -> Any:
        found = read(self.function, *self.shapes, compiler=compiler)
        return found.live_ranges, found.reads, found.writes, found.points, found.peak()


@dataclass(frozen=True)
class Seconds:
    """One collective; the devices are ``cluster``'s, all along one axis."""

    kind: _core.CollectiveKind
    held: float
    cluster: str
    changed: Value

    def answers(self, row: str) -> tuple[Any, Any]:
        cluster = Cluster.parse(self.cluster)
        return self._answer(cluster), self._answer(changed(cluster, row, self.changed))

    def _answer(self, cluster: Cluster) -> float:
        mesh = autoshard.Mesh.parse(f"x={cluster.num_devices}")
        core = cluster.to_core(mesh)
        sizes = [cluster.num_devices]
        step = _core.Step(self.kind, 1, sizes[0], self.held)
        return _core.collective_compiled_seconds(step, core, sizes)


@dataclass(frozen=True)
class Planned:
    """The plan of a text whose arguments and results are cut over eight devices."""

    text: str
    rows: int
    cluster: str
    changed: Value
    memory: float | None = None
    twice: bool = False
    """On two times eight devices that do the same."""

    def answers(self, row: str) -> tuple[Any, Any]:
        cluster = Cluster.parse(self.cluster)
        # What a ring copies takes hardly any time, so that all that may be one is.
        chip = replace(cluster.chip, memory_bandwidth=Constant(1e18, "a test"))
        if self.memory is not None:
            chip = replace(chip, memory_bytes=Constant(self.memory, "a test"))
        cluster = replace(cluster, chip=chip)
        return self._answer(cluster), self._answer(changed(cluster, row, self.changed))

    def _answer(self, cluster: Cluster) -> Any:
        text = self.text.replace("CUT", '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}')
        text = text.replace("WHOLE", "{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}")
        text = text.replace("COLUMNS", '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}')
        text = text.replace("ROWS", str(self.rows))
        mesh = "x=8,y=2" if self.twice else "x=8"
        text = text.replace('["x"=8]', '["x"=8, "y"=2]') if self.twice else text
        module = parse_bytes(text.encode(), new_context(), "step")
        summary = search_module(module, cluster, RecursiveProgramming(mesh=mesh)).summary
        return (
            *(summary.step_seconds, summary.scheduled_seconds),
            *(summary.peak_bytes_per_device, summary.collectives),
        )


@dataclass(frozen=True)
class Computed:
    """Seconds of a function of matrices on a chip with slow memory and slow vector units."""

    function: Callable[..., Any] | str
    """Or the module as text."""
    changed: Value
    operands: int = 1

    def answers(self, row: str) -> tuple[Any, Any]:
        cluster = Cluster.parse("v5p:1x1x1")
        slow = Constant(1e6, "a test")
        chip = replace(cluster.chip, memory_bandwidth=slow, vector_flops=slow)
        cluster = replace(cluster, chip=chip)
        return self._seconds(cluster), self._seconds(changed(cluster, row, self.changed))

    def _seconds(self, cluster: Cluster) -> float:
        text = self.function
        if not isinstance(text, str):
            matrix = jax.ShapeDtypeStruct(MATRIX, jnp.float32)
            text = jax.jit(text).lower(*[matrix] * self.operands).as_text()
        module = parse_bytes(text.encode(), new_context(), "step")
        return search_module(module, cluster, RecursiveProgramming()).summary.step_seconds


@dataclass(frozen=True)
class Text:
    """What is exported for a cluster."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    cluster: str
    changed: Value

    def answers(self, row: str) -> tuple[Any, Any]:
        cluster = Cluster.parse(self.cluster)
        off = cluster.with_compiler(f"{cluster.compiler}:without={row}")
        assert (cluster.compiler.answers[row], off.compiler.answers[row]) == (True, self.changed)
        return self._answer(cluster), self._answer(off)

    def _answer(self, cluster: Cluster) -> Any:
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in self.shapes]
        text = jax.jit(self.function).lower(*arguments).as_text()
        module = parse_bytes(text.encode(), new_context(), "step")
        search_module(module, cluster, RecursiveProgramming())
        run_passes(module, ["autoshard-export-shardy"])
        return re.sub(rb"autoshard\.plan = .*", b"", print_module(module))


@dataclass(frozen=True)
class Exposed(Text):
    """Seconds for which a step waits for its host."""

    def _answer(self, cluster: Cluster) -> float:
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in self.shapes]
        plan = autoshard.plan(self.function, *arguments, cluster=cluster)
        return plan.summary.host_exposed_seconds


@dataclass(frozen=True)
class HandedOn(Text):
    """What tasks of a pipeline of two stages need besides what they take and give."""

    def _answer(self, cluster: Cluster) -> dict[str, float]:
        x, weight = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in self.shapes)
        pipeline = autoshard.Pipeline(2, 2, "1f1b")
        arguments = ([weight] * 2, x)
        plan = autoshard.plan(
            self.function, *arguments, cluster=cluster, pipeline=pipeline, batch_argnums=1
        )
        assert plan.pipeline is not None
        return {name: cost.transient_bytes for name, cost in plan.pipeline.step.costs.items()}


@dataclass(frozen=True)
class Sent(Text):
    """Bytes that a step sends to its host and back to fit 90% of what it takes; -1: it does not."""

    def _answer(self, cluster: Cluster) -> float:
        weight, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in self.shapes)
        arguments = ([weight] * 6, x)
        options: dict[str, Any] = {"cluster": cluster, "donate_argnums": 0}
        free = autoshard.plan(self.function, *arguments, **options).peak_bytes
        options |= {"host_offload": "auto", "memory_limit": int(0.9 * free)}
        try:
            plan = autoshard.plan(self.function, *arguments, **options)
        except DoesNotFitError:
            return -1.0
        return plan.summary.host_transfer_bytes


@dataclass(frozen=True)
class Turns:
    """Seconds of a step of two stages in lockstep, of which one goes on two turns after the
    other."""

    cluster: str
    changed: Value

    def answers(self, row: str) -> tuple[Any, Any]:
        cluster = Cluster.parse(self.cluster)
        return self._seconds(cluster), self._seconds(changed(cluster, row, self.changed))

    def _seconds(self, cluster: Cluster) -> float:
        def step(x: Any, w: Any) -> Any:
            return jax.lax.scan(lambda h, own: (h @ own, None), x, w)[0].sum()

        shapes = (64, 64), (4, 64, 64)
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        text = jax.jit(step).lower(*arguments).as_text()
        module = parse_bytes(text.encode(), new_context(), "step")
        run_passes(module, [Lockstep(2, 4, batch=("0",), delay=2)])
        stage = cluster_of_a_stage(cluster, 2)
        search_module(module, stage, RecursiveProgramming())
        return lockstep_seconds(module, Shape(2, 4, 2), stage, cluster, 0.0).step_seconds


def changed(cluster: Cluster, row: str, value: Value) -> Cluster:
    """The same devices with another answer of their compiler to one rule."""
    answers = MappingProxyType({**cluster.compiler.answers, row: value})
    other = replace(cluster)
    other.__dict__["compiler"] = replace(cluster.compiler, answers=answers)
    return other


def deep(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        h = x
        for weight in weights:
            h = jnp.tanh(h @ weight)
        return jnp.sum(h.astype(jnp.float32) ** 2)

    gradients = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def sent_by_trips(x: Any, w: Any) -> Any:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["product"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    @partial(jax.checkpoint, policy=policy)
    def layer(h: Any, own: Any) -> Any:
        return jnp.tanh(checkpoint_name(h @ own, "product")), None

    return jax.grad(lambda w: jax.lax.scan(layer, x, w)[0].sum())(w)


def product_of_tanh(x: Any, w: Any) -> Any:
    return jnp.sqrt(jnp.tanh(x) @ w)


def product_and_tanh(x: Any, w: Any) -> Any:
    product = x @ w
    return jnp.sort(product), jnp.tanh(product)


def scores_of_heads(queries: Any, keys: Any) -> Any:
    heads = (each.reshape(8, 16, 4, 16) for each in (queries, keys))
    return jnp.einsum("bqhd,bkhd->bhqk", *heads)


def twice(made: Callable[..., Any]) -> Callable[..., Any]:
    """A value that two kernels read."""

    def function(x: Any, a: Any) -> Any:
        y = made(x, a)
        return jnp.sort(jnp.abs(y)).sum() + jnp.sort(jnp.square(y)).sum()

    return function


def softmax_cast(x: Any, w: Any) -> Any:
    e = jnp.exp(x @ w)
    p = (e / e.sum(-1, keepdims=True)).astype(jnp.bfloat16)
    z = (p @ w.astype(jnp.bfloat16)) @ p
    return z + e.sum(0) * z


def cross_entropy(x: Any, w: Any) -> Any:
    e = jnp.exp(x @ w)
    return jnp.sort(e / e.sum(1, keepdims=True))


def probabilities_of_batches(x: Any, y: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("bik,bjk->bij", x, y))


def masked_probabilities(x: Any, scores: Any, rows: Any, mask: Any) -> Any:
    p = jnp.exp(scores - rows) / rows * mask
    return jnp.einsum("bij,bjk->bik", p, x), jnp.einsum("bij,bik->bjk", p, x)


def gradient_of_softmax(x: Any, dy: Any) -> Any:
    exponentials = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    return exponentials * (dy - jnp.sum(dy * exponentials, -1, keepdims=True))


def probability_of_labels(x: Any, w: Any) -> Any:
    logits = x @ w
    probabilities = logits - jnp.log(jnp.exp(logits).sum(1, keepdims=True))
    return jnp.take_along_axis(probabilities, jnp.zeros((64, 1), int), 1), logits @ w


def gradient_at_labels(x: Any, g: Any, w: Any) -> Any:
    def at_labels(x: Any) -> Any:
        return jnp.take_along_axis(x, jnp.zeros((64, 1), int), 1)

    return jnp.tanh(jax.vjp(at_labels, x)[1](g)[0]) @ w


def long_chain(x: Any, w: Any) -> Any:
    first = made = jnp.sort(x, 0)
    for number in range(60):
        made = jnp.maximum(made, 0.1 * number) if number % 2 else made + 0.1
    return made @ w, first.T @ made


def leaky(x: Any) -> Any:
    made = jnp.sort(x, 0)
    mask = made > 0
    return jnp.where(mask, made, 0.1 * made).sum(0), jnp.where(mask, 1.0, 0.1)


def cast_of_argument(x: Any) -> Any:
    narrow = x.astype(jnp.bfloat16)
    return jnp.max(narrow, 0), narrow.T + 1


def one_query(q: Any, k: Any, w: Any) -> Any:
    """Scores of four heads, two for each of the keys."""
    keys = jnp.repeat(jnp.tanh(k), 2, axis=1)
    return jnp.einsum("bhqd,bhkd->bhqk", q, keys) @ w


def repeated_keys(q: Any, k: Any) -> Any:
    """Scores of eight heads, four for each of the keys."""
    return jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(jnp.tanh(k), 4, axis=2))


def biased_gelu(x: Any, w: Any, b: Any, g: Any) -> Any:
    """And its gradient, with a bias that is computed."""
    value, pull = jax.vjp(lambda b: jax.nn.gelu(x @ w + jnp.tanh(b), approximate=False), b)
    return jnp.sort(value @ w), pull(jnp.sort(g))


def erfc_activation(x: Any, a: Any, b: Any) -> Any:
    x = x @ a
    e = jax.lax.erfc(x)
    made = x * e
    return jnp.sort(made @ b) @ made, jnp.sqrt(e) @ b


def sum_beside_a_matmul(a: Any, b: Any, c: Any, d: Any) -> Any:
    stored = a + b + c
    total = stored + d
    return jnp.sin(total), jnp.cos(total), stored @ a


def recomputed_activation(x: Any, a: Any, b: Any, dy: Any) -> Any:
    x = x @ a
    t = jnp.tanh(x)
    d_x = (dy @ b) * (t + x * (1 - t * t))
    return (x * t).T @ dy, d_x @ a


def transposed_argument(x: Any, layers: Any) -> Any:
    stack = jnp.swapaxes(layers, 0, 1)
    return jax.lax.scan(lambda x, w: (x + w.sum(), None), x, stack)[0]


def transposed_product(x: Any, w: Any) -> Any:
    return (x @ w) * jnp.sqrt((w @ x).T)


def kept_scores(x: Any, y: Any) -> Any:
    """Scores of a batch leave the program with their rows last, and are read in another order."""
    scores = jnp.swapaxes(jnp.einsum("bqd,bkd->bqk", x, x), 1, 2)
    return scores, jnp.sqrt(scores + y)


def kept_for_gradients(weights: Any, x: Any) -> Any:
    """Gradients of layers whose scores lie with their rows last."""

    def loss(weights: Any) -> Any:
        hidden = x
        for own in weights:
            keys = hidden @ own
            scores = jnp.swapaxes(jnp.einsum("bqd,bkd->bqk", keys, keys), 1, 2)
            hidden = jnp.einsum("bkq,bkd->bqd", jnp.exp(scores) * jnp.sin(scores), keys)
        return hidden.sum()

    return jax.grad(loss)(weights)


def stacked(w: Any, x: Any) -> Any:
    """The gradient of a scan whose stack lies otherwise than it is taken."""

    def loss(w: Any) -> Any:
        def body(h: Any, _: Any) -> tuple[Any, None]:
            return jnp.tanh((h @ w).T), None

        return jax.lax.scan(body, x, None, length=64)[0].sum()

    return jax.grad(loss)(w)


def converted_stack(x: Any, w: Any) -> Any:
    def body(c: Any, layer: Any) -> Any:
        return c @ layer.astype(jnp.bfloat16), None

    return jax.lax.scan(body, x.astype(jnp.bfloat16), w)[0]


def residual(x: Any, w: Any, y: Any) -> Any:
    z = jnp.sort(y, 1)
    made = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
    return jnp.sort(made * z[0, 0, 0, 0], 0)


def softmax(x: Any, w: Any) -> Any:
    y = jnp.sort(x @ w)
    return jnp.sort(y / y.max(1, keepdims=True))


def chain(x: Any, w: Any) -> Any:
    return jnp.sort(jnp.sort(jnp.sort(x @ w)) @ w)


def attention_scores(x: Any, w: Any, k: Any) -> Any:
    queries = (x @ w).reshape(8, 16, 4, 8)
    return jnp.einsum("bqhd,bkhd->bhqk", queries, k)


def window_scores(x: Any) -> Any:
    """A batch of products that fill no tile."""
    return jnp.exp(jnp.einsum("bik,bjk->bij", x, x))


def gathered_and_scattered(x: Any, y: Any) -> Any:
    """By one table, which is computed."""
    rows = jnp.abs(jnp.arange(64)[:, None] - jnp.arange(64)) % 7
    return jnp.sort(x[rows, rows]), y.at[rows, rows].add(x)


def heads(x: Any, w: Any) -> Any:
    return jnp.tanh((x @ w).reshape(64, 4, 8)).sum()


def weight_gradient(w: Any, x: Any) -> Any:
    return w - jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)


def checkpointed(*weights: Any) -> Any:
    x = weights[0]

    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = jax.checkpoint(lambda w, y: y + jnp.tanh(y @ w))(w, y)
        return jnp.sum(y)

    gradients = jax.grad(loss)(weights[1:])
    return [w - 0.1 * g for w, g in zip(weights[1:], gradients, strict=True)]


def gradient_of_maxima(x: Any, gradient: Any) -> Any:
    def maxima(x: Any) -> Any:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 1), (2, 1), "VALID")

    return jax.vjp(maxima, jnp.exp(x))[1](gradient)


def messages(x: Any, y: Any) -> Any:
    """Rows are changed and added up as their numbers say."""
    numbers = jnp.abs(y[:, 0]).astype(jnp.int32)
    return jnp.zeros_like(x[:8]).at[numbers].add(jnp.maximum(x, y) * 2)


def two_scans(x: Any, y: Any) -> Any:
    """What a loop stacks is read before the next one begins."""
    for _ in range(2):
        _, kept = jax.lax.scan(lambda c, _: (c @ y, jnp.sin(c)), x, None, length=8)
        x = x + jnp.max(kept, 0)
    return x


PADDED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<64x4x9x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>},
    %w: tensor<4x4x2x2xf32>)
    -> (tensor<64x4x9x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}) {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
      window = {stride = [1, 1], pad = [[0, 1], [0, 1]], rhs_dilate = [1, 1]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<64x4x9x9xf32>, tensor<4x4x2x2xf32>) -> tensor<64x4x9x9xf32>
  return %y : tensor<64x4x9x9xf32>
}
"""
ODD = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<4096x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %w: tensor<4096x33xbf16>)
    -> (tensor<4096x33xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4096x4096xbf16>, tensor<4096x33xbf16>) -> tensor<4096x33xbf16>
  return %y : tensor<4096x33xbf16>
}
"""

DEPTHWISE = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<64x64x9x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>},
    %w: tensor<64x1x3x3xf32>)
    -> (tensor<64x64x9x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}) {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
      window = {stride = [1, 1], pad = [[1, 1], [1, 1]], rhs_dilate = [1, 1]}
      {batch_group_count = 1 : i64, feature_group_count = 64 : i64}
      : (tensor<64x64x9x9xf32>, tensor<64x1x3x3xf32>) -> tensor<64x64x9x9xf32>
  return %y : tensor<64x64x9x9xf32>
}
"""

LOCAL = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx512xf32> WHOLE, %dz: tensor<ROWSx512xf32> WHOLE,
    %v: tensor<512x4096xf32> COLUMNS, %w: tensor<4096x512xf32> CUT)
    -> (tensor<4096x512xf32> CUT, tensor<ROWSx4096xf32> COLUMNS) {
  %y = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0]
    : (tensor<ROWSx512xf32>, tensor<512x4096xf32>) -> tensor<ROWSx4096xf32>
  %dw = stablehlo.dot_general %y, %dz, contracting_dims = [0] x [0]
    : (tensor<ROWSx4096xf32>, tensor<ROWSx512xf32>) -> tensor<4096x512xf32>
  %dy = stablehlo.dot_general %dz, %w, contracting_dims = [1] x [1]
    : (tensor<ROWSx512xf32>, tensor<4096x512xf32>) -> tensor<ROWSx4096xf32>
  %dx = stablehlo.dot_general %dy, %v, contracting_dims = [1] x [1]
    : (tensor<ROWSx4096xf32>, tensor<512x4096xf32>) -> tensor<ROWSx512xf32>
  %u = stablehlo.dot_general %dx, %v, contracting_dims = [1] x [0]
    : (tensor<ROWSx512xf32>, tensor<512x4096xf32>) -> tensor<ROWSx4096xf32>
  return %dw, %u : tensor<4096x512xf32>, tensor<ROWSx4096xf32>
}
"""
BEFORE_A_LOOP = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx512xf32> WHOLE, %v: tensor<512x4096xf32> COLUMNS,
    %c: tensor<ROWSx512xf32> CUT, %w: tensor<512x512xf32> WHOLE)
    -> (tensor<512x4096xf32> COLUMNS, tensor<ROWSx512xf32> CUT) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %trips = stablehlo.constant dense<4> : tensor<i32>
  %y = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0]
    : (tensor<ROWSx512xf32>, tensor<512x4096xf32>) -> tensor<ROWSx4096xf32>
  %dv = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
    : (tensor<ROWSx512xf32>, tensor<ROWSx4096xf32>) -> tensor<512x4096xf32>
  %trip, %made = stablehlo.while(%t = %first, %in = %c) : tensor<i32>, tensor<ROWSx512xf32>
    cond {
      %goes_on = stablehlo.compare LT, %t, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %goes_on : tensor<i1>
    } do {
      %next = stablehlo.add %t, %one : tensor<i32>
      %out = stablehlo.dot_general %in, %w, contracting_dims = [1] x [0]
        : (tensor<ROWSx512xf32>, tensor<512x512xf32>) -> tensor<ROWSx512xf32>
      stablehlo.return %next, %out : tensor<i32>, tensor<ROWSx512xf32>
    }
  return %dv, %made : tensor<512x4096xf32>, tensor<ROWSx512xf32>
}
"""
TWO_SUMS = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<ROWSx64xf32> CUT, %y: tensor<ROWSx64xf32> CUT)
    -> (tensor<64x64xf32> WHOLE, tensor<64x64xf32> WHOLE) {
  %v = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0]
    : (tensor<ROWSx64xf32>, tensor<ROWSx64xf32>) -> tensor<64x64xf32>
  %w = stablehlo.dot_general %y, %y, contracting_dims = [0] x [0]
    : (tensor<ROWSx64xf32>, tensor<ROWSx64xf32>) -> tensor<64x64xf32>
  return %v, %w : tensor<64x64xf32>, tensor<64x64xf32>
}
"""
SMALL, LARGE = 8 * 256, 8 * 16384
MATRIX = (64, 64)
RINGS = scattered(8, 4096)
GATHERS = scattered(3, 4096).replace("WHOLE", "CUT")
SUMS = backward(6, 4096)
SCORES = ATTENTION.replace("WEIGHT", "WHOLE")
COLUMNS = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %y = stablehlo.tanh %x : tensor<64x64xf32>
  return %y : tensor<64x64xf32>
}
"""

LOGISTIC = """
func.func public @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %y = stablehlo.logistic %x : tensor<64x64xf32>
  return %y : tensor<64x64xf32>
}
"""
"""One op, of which JAX makes four."""

POOLED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %w: tensor<512x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, WCUT]>,
        tf.aliasing_output = 0 : i32},
    %x: tensor<ROWSx512xf32> CUT, %dp: tensor<ROWSx1024xf32> CUT)
    -> (tensor<512x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, WCUT]>}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<ROWSx512xf32>, tensor<512x4096xf32>) -> tensor<ROWSx4096xf32>
  %dy = "stablehlo.select_and_scatter"(%y, %dp, %zero) <{
      window_dimensions = array<i64: 1, 4>, window_strides = array<i64: 1, 4>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %more = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }, {
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<ROWSx4096xf32>, tensor<ROWSx1024xf32>, tensor<f32>) -> tensor<ROWSx4096xf32>
  %dw = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
    : (tensor<ROWSx512xf32>, tensor<ROWSx4096xf32>) -> tensor<512x4096xf32>
  %next = stablehlo.subtract %w, %dw : tensor<512x4096xf32>
  return %next : tensor<512x4096xf32>
}
"""
"""The gradient of maxima over windows, and one of weights that is scattered or, with whole weights,
summed."""

NEXT_WEIGHT = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %w: tensor<4096x4096xf32>
        {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>, tf.aliasing_output = 0 : i32},
    %m: tensor<4096x4096xf32> CUT, %v: tensor<4096x4096xf32> CUT)
    -> (tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %a = stablehlo.subtract %w, %m : tensor<4096x4096xf32>
  %b = stablehlo.add %w, %v : tensor<4096x4096xf32>
  %next = stablehlo.multiply %a, %b : tensor<4096x4096xf32>
  return %next : tensor<4096x4096xf32>
}
"""

SUMMED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [DIM]
      : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
  return %y : tensor<64xf32>
}
"""

PRODUCT = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<4096x4096xf32> CUT, %w: tensor<4096x4096xf32> CUT)
    -> (tensor<4096x4096xf32> CUT) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0], precision = [ASKED, ASKED]
      : (tensor<4096x4096xf32>, tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  return %y : tensor<4096x4096xf32>
}
"""

BATCH = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<64x32x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>})
    -> (tensor<64x32x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) {
  %y = stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<64x32x32xbf16>, tensor<64x32x32xbf16>) -> tensor<64x32x32xbf16>
  return %y : tensor<64x32x32xbf16>
}
"""

HEADS = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<64x49x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>},
    %w: tensor<32x96xbf16> WHOLE)
    -> (tensor<64x3x49x49xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0]
      : (tensor<64x49x32xbf16>, tensor<32x96xbf16>) -> tensor<64x49x96xbf16>
  %z = stablehlo.reshape %y : (tensor<64x49x96xbf16>) -> tensor<64x49x3x32xbf16>
  %h = stablehlo.transpose %z, dims = [0, 2, 1, 3]
      : (tensor<64x49x3x32xbf16>) -> tensor<64x3x49x32xbf16>
  %s = stablehlo.dot_general %h, %h, batching_dims = [0, 1] x [0, 1],
      contracting_dims = [3] x [3] : (tensor<64x3x49x32xbf16>, tensor<64x3x49x32xbf16>)
      -> tensor<64x3x49x49xbf16>
  return %s : tensor<64x3x49x49xbf16>
}
"""

EXCHANGED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<ROWSx8192xf32> CUT, %w: tensor<8192x8192xf32> WHOLE)
    -> (tensor<ROWSx8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
        tensor<ROWSx8192xf32> CUT) {
  %z = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<ROWSx8192xf32>, tensor<8192x8192xf32>) -> tensor<ROWSx8192xf32>
  %y = stablehlo.tanh %x : tensor<ROWSx8192xf32>
  return %y, %z : tensor<ROWSx8192xf32>, tensor<ROWSx8192xf32>
}
"""

SHOWN: dict[str, Memory | Seconds | Planned | Text | Turns] = {
    "fusion.matmul_operands": Memory(product_of_tanh, (MATRIX, MATRIX), TPU, 0),
    "fusion.cheap_matmul_operands": Memory(
        lambda x, b: jnp.maximum(x @ x, 0) @ b, (MATRIX, MATRIX), GPU, 0
    ),
    "fusion.matmul_results": Memory(product_of_tanh, (MATRIX, MATRIX), TPU, 0),
    "fusion.matmul_side_results": Memory(product_and_tanh, (MATRIX, MATRIX), TPU, 0),
    "fusion.matmul_epilogues": Memory(product_of_tanh, (MATRIX, MATRIX), GPU, 0),
    "fusion.split_products": Memory(lambda x, w: jnp.sqrt(x @ w), ((64, 256), (256, 64)), GPU, 0),
    "fusion.summed_products": Memory(one_query, ((2, 4, 1, 64), (2, 2, 64, 64), (64, 64)), GPU, 0),
    "fusion.casts": Memory(softmax_cast, ((4, 64, 64),) * 2, TPU, 1),
    "fusion.masks": Memory(leaky, (MATRIX,), TPU, 0),
    "fusion.casts_of_arguments": Memory(
        cast_of_argument, (MATRIX,), {**TPU, "fusion.ignores_arguments": 0}, 0
    ),
    "fusion.stored_functions": Memory(
        twice(lambda x, a: jnp.tanh(x)), (MATRIX, MATRIX), GPU, _core.Expense.NEVER
    ),
    "fusion.stores_arguments_of_functions": Memory(
        biased_gelu, (MATRIX, MATRIX, MATRIX[:1], MATRIX), GPU, 0
    ),
    "fusion.most_reread": Memory(twice(lambda x, a: x * a), (MATRIX, MATRIX), GPU, 1.25),
    "fusion.most_operations": Memory(
        masked_probabilities, ((4, 16, 8), (4, 16, 16), (4, 16, 1), (16, 16)), TPU, 0
    ),
    "fusion.repeated_operations": Memory(long_chain, (MATRIX, MATRIX), TPU, 0),
    "fusion.ignores_arguments": Memory(
        twice(lambda x, a: x * a * a[0]), (MATRIX, MATRIX), {**GPU, "fusion.most_reread": 1.25}, 1
    ),
    "fusion.ignores_stored_functions": Memory(erfc_activation, (MATRIX,) * 3, TPU, 0),
    "fusion.most_operands": Memory(lambda x, a: 2 * (x * a), (MATRIX, MATRIX), GPU, 1),
    "fusion.reads_what_is_stored": Memory(sum_beside_a_matmul, (MATRIX,) * 4, GPU, 0),
    "fusion.two_results": Memory(recomputed_activation, (MATRIX,) * 4, GPU, 0),
    "fusion.short_products": Memory(probabilities_of_batches, ((4, 16, 8), (4, 16, 8)), TPU, 0),
    "fusion.several_results": Memory(
        twice(lambda x, a: jnp.sort(x) * jnp.sort(a)), (MATRIX, MATRIX), TPU, 0
    ),
    "fusion.stores_summed": Memory(
        cross_entropy, (MATRIX, MATRIX), {**GPU, "fusion.row_reductions": 0}, 1
    ),
    "fusion.summed_of_batches": Memory(cross_entropy, (MATRIX, MATRIX), TPU, 0),
    "fusion.row_reductions": Memory(softmax, (MATRIX, MATRIX), GPU, 0),
    "fusion.nested_reductions": Memory(gradient_of_softmax, (MATRIX, MATRIX), GPU, 1),
    "fusion.stores_gathered": Memory(probability_of_labels, (MATRIX, MATRIX), TPU, 0),
    "fusion.stores_scattered": Memory(gradient_at_labels, ((64, 64), (64, 1), (64, 64)), GPU, 0),
    "fusion.scattered_updates": Memory(messages, (MATRIX, MATRIX), GPU, 0),
    "fusion.window_operands": Memory(gradient_of_maxima, (MATRIX, (32, 64)), GPU, 0),
    "fusion.stored_pads": Memory(
        lambda x, _: jax.lax.pad(x * 2, 0.0, ((0, 1, 1), (0, 0, 0))) * 3, (MATRIX, MATRIX), TPU, 0
    ),
    "fusion.joined_columns": Memory(
        lambda x, a: jnp.concatenate([x + 1, a], 1).sum(1), (MATRIX, MATRIX), TPU, 0
    ),
    "fusion.gather_kernels": Memory(
        lambda x, a: jnp.tanh(x)[a[0].astype(int)].sum(1), (MATRIX, MATRIX), TPU, 0
    ),
    "fusion.index_bytes": Memory(gathered_and_scattered, (MATRIX, MATRIX), TPU, 0),
    "fusion.repeated_bytes": Memory(repeated_keys, ((2, 16, 8, 64), (2, 16, 2, 64)), TPU, 0),
    "fusion.reads_in_each": Memory(
        lambda x, a: (jnp.sort(jnp.abs(y := x * a)), y.sum(1)), (MATRIX, MATRIX), GPU, 0
    ),
    "fusion.kept_bytes": Computed(
        lambda x, a: (jnp.sort(jnp.abs(y := x * a)), y.sum(1)), 0.0, operands=2
    ),
    "fusion.overlaps_memory": Computed(lambda x: jnp.sin(2 * x) + 1, False),
    "fusion.joint_loops": Memory(lambda x, a: (x * a, x + a), (MATRIX, MATRIX), GPU, 0),
    "fusion.sibling_reductions": Memory(
        lambda x, a: jnp.sum(x * a, 0) / jnp.sum(x + a, 0), (MATRIX, MATRIX), GPU, 0
    ),
    "fusion.reduced_as_written": Memory(
        lambda x, a: ((y := jnp.maximum(x, a)) @ a, jnp.sum(y, 0)), (MATRIX, MATRIX), GPU, 0
    ),
    "fusion.whole_rows": Planned(SUMMED.replace("DIM", "1"), 64, "h100:8", 32.0),
    "fusion.whole_columns": Planned(SUMMED.replace("DIM", "0"), 64, "h100:8", 32.0),
    "fusion.packed_bytes": Planned(COLUMNS.replace("f32", "bf16"), 64, "v5p:2x2x2", 1e12),
    "fusion.batch_operand_bytes": Planned(BATCH, SMALL, "v5p:2x2x2", 1e12),
    "fusion.transposed_bytes": Planned(HEADS, SMALL, "v5p:2x2x2", 1e12),
    "fusion.stored_slices": Computed(
        lambda x: jax.lax.scan(lambda s, row: (s * row[:, None], None), x + 1, x)[0], False
    ),
    "fusion.transform_bytes": Computed(lambda x: jnp.fft.fft(x).real, 0.0),
    "fusion.matmul_tile_bytes": Planned(
        PRODUCT.replace("ASKED", "DEFAULT"), LARGE, "v5p:2x2x2", 1e-12
    ),
    "fusion.unaligned_rows": Planned(ODD, 64, "h100:8", 1.0),
    "fusion.convolution_channels": Planned(PADDED, SMALL, "h100:8", 1),
    "fusion.convolutions_on_vectors": Planned(DEPTHWISE, SMALL, "h100:8", 1.0),
    "fusion.multiplied_zeros": Planned(
        PADDED.replace("[[0, 1], [0, 1]]", "[[0, 3], [0, 3]]").replace("[1, 1]}", "[3, 3]}"),
        SMALL,
        "h100:8",
        False,
    ),
    "fusion.repeats_batched_matmuls": Text(
        attention_scores, ((8, 16, 32), (32, 32), (8, 16, 4, 8)), "v5p:2x2x1", False
    ),
    "matmul.rounds_operands": Planned(
        PRODUCT.replace("ASKED", "DEFAULT"), LARGE, "v5p:2x2x2", False
    ),
    "matmul.high_passes": Planned(PRODUCT.replace("ASKED", "HIGH"), LARGE, "v5p:2x2x2", 1),
    "matmul.highest_passes": Planned(PRODUCT.replace("ASKED", "HIGHEST"), LARGE, "v5p:2x2x2", 1),
    "layout.row_major_arguments": Memory(transposed_argument, (MATRIX, (8, 8, 64 * 64)), GPU, 0),
    "layout.row_major_matmuls": Memory(transposed_product, (MATRIX, MATRIX), GPU, 0),
    "layout.matmul_operands_in_order": Memory(scores_of_heads, ((8, 16, 64),) * 2, GPU, 0),
    "layout.ordered_batches": Memory(kept_scores, ((4, 16, 8), (4, 16, 16)), TPU, 0),
    "layout.row_major_stacks": Memory(stacked, (MATRIX, MATRIX), GPU, 0),
    "layout.converted_stacks": Memory(converted_stack, (MATRIX, (4, 64, 64)), TPU, 0),
    "layout.symmetric_padding": Planned(PADDED, SMALL, "h100:8", False),
    "layout.tile_rows": Memory(window_scores, ((16, 49, 32),), TPU, 16),
    "layout.tile_columns": Memory(window_scores, ((16, 49, 32),), TPU, 0),
    "layout.keeps_reshapes": Text(heads, ((64, 32), (32, 32)), "v5p:2x2x1", False),
    "layout.transposed_sums": Text(
        weight_gradient, ((1024, 1024), (65536, 1024)), "v5p:2x2x1", False
    ),
    "layout.chosen_results": HandedOn(
        kept_for_gradients, ((8, 64, 64), (64, 64)), "v5e:2x2", False
    ),
    "buffers.tuples_of_convolutions": Memory(
        residual, ((4, 8, 16, 16), (8, 8, 3, 3), (4, 8, 16, 16)), GPU, 0
    ),
    "buffers.keeps_reduced": Memory(
        softmax, (MATRIX, MATRIX), {**GPU, "fusion.row_reductions": 0}, 0
    ),
    "buffers.copies_gathered_arguments": Planned(NEXT_WEIGHT, SMALL, "v5p:2x2x2", False),
    "buffers.lending_results": Memory(chain, (MATRIX, MATRIX), GPU, 0),
    "buffers.window_indices": Planned(POOLED.replace("WCUT", '{"x"}'), LARGE, "h100:8", False),
    "buffers.filled_stacks": Memory(two_scans, (MATRIX, MATRIX), GPU, 0),
    "schedule.hides_gathers": Planned(GATHERS, LARGE, "v5p:2x2x2", True),
    "schedule.hides_sums": Planned(SUMS, LARGE, "h100:8", False),
    "schedule.hides_exchanges": Planned(EXCHANGED, 8192, "h100:8", False),
    "schedule.hides_hops": Turns("v5p:2x2x2", False),
    "schedule.late_sums": Planned(RINGS, LARGE, "h100:8", False),
    "schedule.late_local_gradients": Planned(LOCAL, SMALL, "h100:8", False),
    "schedule.local_gradients_behind_loops": Planned(BEFORE_A_LOOP, SMALL, "v5p:2x2x2", False),
    "schedule.late_batched_matmuls": Planned(SCORES, SMALL, "h100:8", False),
    "schedule.rings_in_order": Planned(RINGS, LARGE, "v5p:2x2x2", 5),
    "schedule.memory_share": Planned(SUMS, LARGE, "h100:8", 0.7, 2200 * MIB),
    "schedule.late_gradients": Text(checkpointed, (MATRIX,) * 5, "h100:8", False),
    "schedule.loops_wait_for_moves": Exposed(
        sent_by_trips, ((64, 64), (4, 64, 64)), "h100:1", False
    ),
    "schedule.fetches_at_once": Sent(deep, ((16384, 16384), (8192, 16384)), "v5p:1x1x1", False),
    "collectives.whole_slice_devices": Seconds(GATHER, MIB, "v5p:4x4x4", 0),
    "collectives.whole_plane_bytes": Seconds(GATHER, MIB, "v5e:8x8", 2.0**30),
    "collectives.zero_fill_share": Seconds(GATHER, MIB, "v5p:4x4x4", 0.2),
    "collectives.reduced_slice_devices": Planned(LAYER, SMALL, "v5p:2x2x2", 0),
    "collectives.ring_devices": Planned(LAYER, LARGE, "v5p:2x2x2", 0),
    "collectives.ring_matmul_share": Planned(LAYER, LARGE, "v5e:4x4", 1e9, twice=True),
    "collectives.ring_slice_share": Planned(LAYER, LARGE, "v5p:2x2x2", 1e9),
    "collectives.ring_result_passes": Planned(LAYER, LARGE, "v5p:2x2x2", 70.0),
    "collectives.ring_operand_passes": Planned(LAYER, LARGE, "v5p:2x2x2", 80.0),
    "collectives.joined_bytes": Seconds(REDUCE, MIB, "h100:8", 0.0),
    "collectives.tuple_bytes": Planned(TWO_SUMS, SMALL, "v5p:2x2x2", 0.0),
    "collectives.alone_bytes": Seconds(REDUCE, MIB, "h100:8", 2.0 * MIB),
    "collectives.parts_in_turn": Planned(COLUMNS, 64, "h100:8", False),
    "collectives.exchanges_outermost": Planned(EXCHANGED, 8192, "v5p:2x2x2", False),
    "functions.division": Computed(jnp.divide, 1e3, operands=2),
    "functions.remainder": Computed(jax.lax.rem, 1e3, operands=2),
    "functions.root": Computed(jax.lax.rsqrt, 1e3),
    "functions.exponential": Computed(jnp.exp, 1e3),
    "functions.logarithm": Computed(jnp.log, 1e3),
    "functions.logistic": Computed(LOGISTIC, 1e3),
    "functions.tanh": Computed(jnp.tanh, 1e3),
    "functions.error": Computed(jax.lax.erf, 1e3),
    "functions.error_complement": Computed(jax.lax.erfc, 1e3),
    "functions.sine": Computed(jax.lax.sin, 1e3),
    "functions.power": Computed(jax.lax.pow, 1e3, operands=2),
    "functions.other": Computed(jax.lax.erf_inv, 1e3),
}
"""By row, what shows it."""


def test_every_row_is_shown() -> None:
    assert list(SHOWN) == list(read_rules())


@pytest.mark.parametrize("row", SHOWN)
def test_a_row_changes_what_an_analysis_answers(row: str) -> None:
    before, after = SHOWN[row].answers(row)
    assert before != after


def test_positions_of_maxima_are_there_early_beside_scattered_sums_alone() -> None:
    """Two numbers of 4 bytes for each window of a device; the zeros are the result at once."""
    scattered, summed = (
        Planned(POOLED.replace("WCUT", cut), LARGE, "h100:8", False).answers(
            "buffers.window_indices"
        )
        for cut in ('{"x"}', "{}")
    )
    assert scattered[0][2] - scattered[1][2] == LARGE / 8 * 1024 * 2 * 4
    assert summed[0][2] == summed[1][2]


@pytest.mark.parametrize("row", ["fusion.casts", "collectives.joined_bytes", "schedule.late_sums"])
def test_an_answer_that_stays_changes_nothing(row: str) -> None:
    shown = SHOWN[row]
    compiler = GPU if row.startswith("schedule") else TPU
    assert not isinstance(shown, Text | Turns)
    same = compiler[row] if isinstance(shown, Memory) else Cluster.parse(shown.cluster).compiler
    value = same.answers[row] if isinstance(same, Compiler) else same
    before, after = replace(shown, changed=value).answers(row)
    assert before == after


# Files


def test_the_core_asks_what_the_rules_say() -> None:
    rules = {name: rule for name, rule in read_rules().items() if rule.in_core}
    assert set(rules) == set(_core.compiler_answers())
    nothing = compiler_for(UNKNOWN, "", "")
    assert nothing.to_core() == _core.compiler_answers()


@pytest.mark.parametrize("name", COMPILERS)
def test_every_answer_has_its_sources(name: str) -> None:
    file = read_compiler(name)
    assert set(file.rows) <= set(read_rules())
    for row, answers in file.rows.items():
        unknown = read_rules()[row].unknown
        for answer in answers:
            assert len(answer.seen) > 10, row
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", answer.date), row
            assert set(answer.chips) <= set(FAMILIES), row
            for value in (answer.value, *answer.chips.values()):
                assert type(value) is type(unknown), row


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"fusion.cast": 1.0}, "fusion.cast is 1.0.*no analysis asks for it"),
        ({"fusion.casts": 0.5}, "1 for yes or 0 for no"),
        ({"fusion.stored_functions": 5.0}, "an expense is needed"),
        ({"fusion.most_reread": float("nan")}, "0 or more is needed"),
        ({"schedule.rings_in_order": 1.5}, "a whole number from 0 on"),
        ({"collectives.zero_fill_share": 0.0}, "a share above 0"),
    ],
)
def test_the_core_refuses_answers_that_are_none(answers: dict[str, float], message: str) -> None:
    cluster = Cluster.parse("cpu:2")
    other = replace(cluster)
    other.__dict__["compiler"] = replace(cluster.compiler, answers=MappingProxyType({}))
    core = other.to_core(cluster.level_mesh())
    assert core.memory_bytes == cluster.usable_memory_bytes
    with pytest.raises(ValueError, match=message):
        _core.Cluster(
            matmul_flops=[1.0] * 5,
            vector_flops=1.0,
            memory_bytes=1.0,
            memory_bandwidth=1.0,
            tile_rows=1,
            tile_columns=1,
            matmul_efficiency=1.0,
            memory_efficiency=1.0,
            launch_seconds=0.0,
            dims=[],
            axes=[],
            compiler=answers,
        )


def test_the_page_of_compilers_is_what_the_files_say() -> None:
    bench = Path(__file__).resolve().parents[3] / "bench" / "truth" / "compiler_table.py"
    command = [sys.executable, str(bench), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# Which one


@pytest.mark.parametrize(
    ("cluster", "spec", "chosen"),
    [
        ("v5p:4x4x4", "", "xla-tpu-0.0.42"),
        ("v5p:1x1x1", "", "xla-tpu-0.0.42"),
        ("tpu7x:1x1x1", "", "xla-tpu-0.0.42"),
        ("h100:8", "", "xla-gpu-0.10.2"),
        ("cpu:8", "", "xla-cpu-0.12.0"),
        ("ascend910b:8", "", "unknown"),
        ("h100:8", "unknown", "unknown"),
        ("cpu:2", "xla-tpu-0.0.42", "xla-tpu-0.0.42"),
        ("v5p:4x4x4", "xla-tpu:without=fusion.casts", "xla-tpu-0.0.42:without=fusion.casts"),
        ("v5p:4x4x4", ":without=fusion.casts", "xla-tpu-0.0.42:without=fusion.casts"),
    ],
)
def test_a_cluster_has_the_compiler_of_its_chip_or_the_one_that_is_named(
    cluster: str, spec: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers.CompilerFile, "installed", lambda self: None)
    found = Cluster.of(cluster, spec)
    assert str(found.compiler) == chosen
    assert Cluster.of(found).is_named == (spec == "")


def test_links_do_not_tell_the_compiler() -> None:
    one_chip, slice_, gpus = (
        Cluster.parse(name).compiler.answers for name in ("v5p:1x1x1", "v5p:4x4x4", "h100:8")
    )
    assert one_chip == slice_
    assert one_chip != gpus


def test_rows_may_differ_by_chip() -> None:
    casts = {
        name: Cluster.parse(f"{name}:1x1x1").compiler.does("fusion.casts")
        for name in ("v4", "v5p", "tpu7x")
    }
    assert casts == {"v4": True, "v5p": False, "tpu7x": False}
    assert Cluster.parse("v5e:4x4").compiler.does("schedule.hides_gathers")


@pytest.mark.parametrize(
    ("wanted", "taken", "is_told"),
    [
        ("0.0.42", "0.0.42", False),
        ("0.0.42.1", "0.0.42", False),
        ("0.0.52", "0.0.42", True),
        ("0.0.9", "0.0.42", True),
    ],
)
def test_a_release_that_is_not_known_is_the_nearest_one_and_says_so_once(
    wanted: str, taken: str, is_told: bool
) -> None:
    compilers._warn_of_release.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            assert compiler_for(f"xla-tpu-{wanted}", "", "v5p").release == taken
    assert [each.category for each in told] == [AutoshardWarning] * is_told
    assert all(f"release {wanted} of xla-tpu" in str(each.message) for each in told)


def test_what_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    compilers._warn_of_release.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(compilers.CompilerFile, "installed", lambda self: "9.9")
    with pytest.warns(AutoshardWarning, match=r"release 9\.9 of xla-gpu"):
        assert Cluster.parse("h100:8").compiler.release == "0.10.2"


def test_rows_follow_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = read_compiler("xla-tpu")
    (old,) = file.rows["fusion.most_reread"]
    new = replace(old, value=2.0, release="0.0.50", chips={"v5e": 3.0})
    later = replace(file, rows={**file.rows, "fusion.most_reread": (old, new)})
    assert later.releases == ("0.0.42", "0.0.50")
    assert later.answers("0.0.42", "v5p")["fusion.most_reread"] == 1.25
    assert later.answers("0.0.50", "v5p")["fusion.most_reread"] == 2.0
    assert later.answers("0.0.50", "v5e")["fusion.most_reread"] == 3.0


def test_a_release_that_changes_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    file = read_compiler("xla-cpu")
    assert [each.release for each in file.unchanged] == ["0.12.0"]
    assert file.answers("0.12.0", "cpu") == file.answers("0.10.2", "cpu")
    monkeypatch.setattr(compilers.CompilerFile, "installed", lambda self: "0.12.0.1")
    assert Cluster.parse("cpu:8").compiler.release == "0.12.0"  # without a warning


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("xla-tup", r'no compiler "xla-tup" is known, only xla-cpu.*Did you mean "xla-tpu"\?'),
        ("xla-tpu:without=fusion.cast", r'no rule is called "fusion.cast".*mean "fusion.casts"\?'),
    ],
)
def test_names_that_mean_nothing_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Cluster.of("v5p:4x4x4", spec)


# Where users say it


def test_a_plan_keeps_its_compiler(tmp_path: Path) -> None:
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    plan = autoshard.plan(
        lambda x, w: jnp.tanh(x) @ w, shape, shape, cluster="cpu:2", compiler="xla-tpu-0.0.42"
    )
    assert plan.summary is not None
    cluster = plan.summary.read_cluster()
    assert str(cluster.compiler) == "xla-tpu-0.0.42"
    path = tmp_path / "two.toml"
    path.write_text(cluster.to_toml())
    assert Cluster.of(path) == cluster
    with pytest.raises(PlanError, match="compiler='xla-tpu' needs a cluster"):
        autoshard.plan(
            lambda x: x,
            shape,
            mesh="x=2",
            compiler="xla-tpu",
            mode="semi_auto",
            in_shardings=jax.sharding.PartitionSpec("x"),
        )


def test_a_chip_in_a_file_is_compiled_as_its_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "v5e:4x4"\n[chip]\nname = "mine"\nmemory_bytes = 9e9\n')
    cluster = Cluster.of(path)
    assert cluster.compiler.answers == Cluster.parse("v5e:4x4").compiler.answers
    path.write_text(cluster.to_toml())
    again = Cluster.of(path)
    assert (again, again.compiler.answers) == (cluster, cluster.compiler.answers)
    path.write_text(cluster.to_toml().replace('compiler = "xla-tpu"', 'compiler = "xla-gpu"'))
    assert Cluster.of(path).compiler.name == "xla-gpu"
