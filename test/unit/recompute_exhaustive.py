"""Small train steps by JAX, and all that could be decided about their values: each set of decisions
is written and costed, so that the pass is compared with the best there is, not with an estimate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from plan_cases import whole_products

from autoshard.errors import DoesNotFitError
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.boundary import main_function
from autoshard.ir.inline import bytes_of, inline_calls
from autoshard.passes.memory_limit import MEMORY_MARGIN
from autoshard.passes.recompute import Recompute, recomputed_module
from autoshard.planned.given_plan import Costed, cost_of_module
from autoshard.rewrites.recomputation.block import Block, erase_unread
from autoshard.rewrites.recomputation.choice import Choice
from autoshard.rewrites.recomputation.decision import Fate
from autoshard.rewrites.recomputation.question import BlockQuestion, Rules
from autoshard.rewrites.recomputation.write import write_choice
from autoshard.search.plan_pass import PlanProgram

CLUSTERS = ("cpu:2", "v5e:2x2", "h100:2")
NO_LIMIT = "1000TiB"


@dataclass(frozen=True)
class Cost:
    """Bytes and seconds of one rewritten module."""

    peak_bytes: float
    step_seconds: float

    def rank(self, limit: float) -> tuple[bool, float]:
        """Smaller is better, as for the pass: within the limit, by seconds; in its margin by bytes
        times seconds."""
        aim = (1 - MEMORY_MARGIN) * limit
        return self.peak_bytes > limit, self.step_seconds * max(self.peak_bytes, aim)


@dataclass(frozen=True)
class Compared:
    """What the pass found beside the best of all decisions."""

    values: int
    """To be decided."""
    best: Cost
    found: Cost | None
    """None: refused."""
    limit: float

    @property
    def gap(self) -> float:
        """By which share the pass is worse; 0 or less: it is as good. Infinite: it refused."""
        if self.found is None:
            return float("inf")
        _, best = self.best.rank(self.limit)
        is_over, found = self.found.rank(self.limit)
        return float("inf") if is_over else found / best - 1


def compared(seed: int, most: int) -> Compared | None:
    """One random step; None: fewer than two values wait in it, or more than ``most``, or nothing
    makes it fit."""
    draw = random.Random(seed)
    cluster = whole_products(draw.choice(CLUSTERS))
    step, arguments = random_step(draw)
    host = draw.random() < 0.3
    lowered = jax.jit(step, donate_argnums=0).lower(*arguments).as_text()
    module = parse_bytes(lowered.encode(), new_context(), "step")
    options = PlanProgram(
        cluster=cluster.name, compiler=str(cluster.compiler), memory_limit=NO_LIMIT
    )
    _, planned = options.planned(module)
    with planned.module.context, mlir.Location.unknown():
        inline_calls(planned.module)
        erase_unread(main_function(planned.module).regions[0].blocks[0])
        costed = cost_of_module(planned.module, cluster)
        free = _cost(costed)
        limit = draw.uniform(0.4, 0.95) * free.peak_bytes
        question = BlockQuestion(Block(costed), 0.3 * free.peak_bytes, Rules(host=host))
        if not 2 <= len(question.items) <= most:
            return None
        best = min(_all(question), key=lambda cost: cost.rank(limit))
        if best.peak_bytes > int(limit):
            return None
        try:
            made = recomputed_module(
                planned.module,
                cluster,
                Recompute(memory_limit=str(int(limit)), host_offload=host),
            )
            found = _cost(cost_of_module(made.module, cluster))
        except DoesNotFitError:
            found = None
    return Compared(len(question.items), best, found, int(limit))


def _all(question: BlockQuestion) -> Iterator[Cost]:
    """Every set of decisions about a block, as written."""
    costed = question.block.costed
    module = costed.imported.module
    original = bytes_of(module)
    for ways in itertools.product(*((Fate.KEEP, *fates) for fates in question.fates)):
        chosen = {number: fate for number, fate in enumerate(ways) if fate is not Fate.KEEP}
        choice = Choice(question, chosen, question.effect(chosen))
        if not chosen or choice.effect.answer.seconds == float("inf"):
            if not chosen:
                yield _cost(costed)
            continue
        copy = parse_bytes(original, module.context, "copy")
        yield _cost(
            write_choice(choice, lambda made=copy: cost_of_module(made, costed.cluster), copy)
        )


def _cost(costed: Costed) -> Cost:
    plan, host = costed.plan, costed.host_traffic
    return Cost(plan.peak_bytes - host.counted_bytes, plan.step_seconds + host.exposed_seconds)


# Steps

Step = tuple[Callable[..., Any], Sequence[Any]]


def random_step(draw: random.Random) -> Step:
    """A gradient step of a small network, and the shapes of its parameters and batch."""
    return draw.choice((_mlp, _mlp, _attention, _scan))(draw)


def type_of(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _step_of(forward: Callable[..., Any], weights: Any, x: Any) -> Step:
    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(lambda w: jnp.mean(forward(w, x) ** 2))(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return step, (weights, x)


def _activation(draw: random.Random) -> Callable[[Any], Any]:
    return draw.choice((jnp.tanh, jax.nn.gelu, jax.nn.silu, jnp.sin, lambda h: jnp.exp(-h * h)))


def _mlp(draw: random.Random) -> Step:
    widths = [draw.choice((64, 128, 256)) for _ in range(draw.randint(2, 5))]
    acts = [_activation(draw) for _ in widths[1:]]
    scales = draw.random() < 0.4

    def forward(weights: Any, x: Any) -> Any:
        for weight, act in zip(weights, acts, strict=True):
            x = act(x @ weight)
            if scales:
                x = x / (1 + jnp.sum(x * x, axis=-1, keepdims=True))
        return x

    weights = [type_of(*pair) for pair in itertools.pairwise(widths)]
    return _step_of(forward, weights, type_of(draw.choice((512, 2048)), widths[0]))


def _attention(draw: random.Random) -> Step:
    width, length = draw.choice((32, 64)), draw.choice((64, 128))
    out = draw.random() < 0.5

    def forward(weights: Any, x: Any) -> Any:
        q, k, v = (x @ weights[name] for name in "qkv")
        scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) / width**0.5)
        mixed = scores @ v
        return jnp.tanh(mixed @ weights["o"]) if out else mixed

    weights = {name: type_of(width, width) for name in ("qkvo" if out else "qkv")}
    return _step_of(forward, weights, type_of(draw.choice((8, 32)), length, width))


def _scan(draw: random.Random) -> Step:
    width, layers = draw.choice((64, 128)), draw.choice((3, 4))
    acts = [_activation(draw) for _ in range(draw.randint(1, 2))]
    names = "ab"[: len(acts)]

    def body(h: Any, weights: Any) -> Any:
        for name, act in zip(names, acts, strict=True):
            h = act(h @ weights[name])
        return h, None

    def forward(weights: Any, x: Any) -> Any:
        return jax.lax.scan(body, x, weights)[0]

    weights = {name: type_of(layers, width, width) for name in names}
    return _step_of(forward, weights, type_of(draw.choice((512, 2048)), width))
