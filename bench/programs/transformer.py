"""Train steps of published decoder-only transformers, from shapes alone.

    python bench/programs/transformer.py llama2-70b [--layers 80] [--scan] [--remat] [-o FILE]

Forward, backward and AdamW. One network in flax.nnx for all of them; ``MODELS`` says in what they
differ, with the source of every size. Matmuls run in bfloat16; norms, softmax and loss in float32.
Nothing is ever allocated: parameters are ``jax.ShapeDtypeStruct``.

Left out: dropout, and attention kernels that never write their scores.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

LORA_RANK = 16
"""With scale 1, on query, key, value and output: MindFormers, lora_llama2_7b.yaml."""


@dataclass(frozen=True)
class Config:
    """Sizes of a model and of one step."""

    features: int
    hidden: int
    """Width of the feed-forward layers."""
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int
    parameters: int
    """As published, or as the published checkpoint has them."""
    tolerance: float = 0.0
    """How far, of ``parameters``, the model here may be from them."""
    tokens: int = 4096
    """Length of a sequence."""
    batch: int = 32
    """Sequences a step."""
    feed_forward: Literal["gated", "gelu"] = "gated"
    """SiLU(gate) * up, or GELU."""
    norm: Literal["rms", "layer"] = "rms"
    positions: Literal["rotary", "alibi", "learned"] = "rotary"
    qkv_bias: bool = False
    bias: bool = False
    """Whether every matrix has one."""
    tied: bool = False
    """The embedding is the output matrix, too."""
    normalized_head: bool = False
    """Columns of the output matrix have length 1."""
    query_layer: bool = False
    """One more layer on top, whose queries are learned positions."""
    parameter_dtype: str = "float32"
    """``float32`` or ``bfloat16``; the optimizer's state has it as well."""
    lora: int = 0
    """Rank; 0: all parameters are trained. With it the others are frozen, in bfloat16."""
    scan: bool = False
    """One loop over stacked layers instead of every layer on its own."""
    fused: bool = False
    """One matrix for query, key and value, and one for gate and up: fewer and larger ops."""
    remat: bool = False
    """Keep only the inputs of the layers for the backward pass."""
    constraints: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """How values inside are cut: ``residual`` (normed or not), ``heads``, ``mixed``, ``hidden`` or
    ``logits``, and what a ``PartitionSpec`` takes. Needs a mesh in JAX's context."""


_LLAMA = Config(4096, 11_008, 32, 32, 32, 32_000, 6_738_415_616)
_BAICHUAN = Config(4096, 11_008, 32, 32, 32, 125_696, 7_505_973_248, normalized_head=True)
_QWEN = Config(
    4096, 11_008, 32, 32, 32, 151_936, 7_721_324_544, tokens=2048, batch=64, qkv_bias=True
)
_PANGU = Config(
    2560,
    10_240,
    32,
    32,
    31,
    40_000,
    2_600_000_000,
    tolerance=0.03,
    tokens=1024,
    batch=128,
    feed_forward="gelu",
    norm="layer",
    positions="learned",
    bias=True,
    tied=True,
    query_layer=True,
)

MODELS = {
    "llama2-7b": _LLAMA,
    "llama2-13b": dataclasses.replace(
        _LLAMA,
        features=5120,
        hidden=13_824,
        heads=40,
        kv_heads=40,
        layers=40,
        parameters=13_015_864_320,
        batch=16,
    ),
    "llama2-70b": dataclasses.replace(
        _LLAMA,
        features=8192,
        hidden=28_672,
        heads=64,
        kv_heads=8,
        layers=80,
        parameters=68_976_648_192,
        batch=64,
    ),
    "baichuan2-7b": _BAICHUAN,
    "baichuan2-13b": dataclasses.replace(
        _BAICHUAN,
        features=5120,
        hidden=13_696,
        heads=40,
        kv_heads=40,
        layers=40,
        parameters=13_896_668_160,
        positions="alibi",
        batch=16,
    ),
    "qwen-7b": _QWEN,
    "qwen-14b": dataclasses.replace(
        _QWEN,
        features=5120,
        hidden=13_696,
        heads=40,
        kv_heads=40,
        layers=40,
        vocabulary=152_064,
        parameters=14_167_290_880,
        batch=32,
    ),
    "gpt3-175b": Config(
        12_288,
        49_152,
        96,
        96,
        96,
        51_200,
        175_000_000_000,
        tolerance=0.01,
        tokens=2048,
        batch=256,
        feed_forward="gelu",
        norm="layer",
        positions="learned",
        bias=True,
        tied=True,
    ),
    "pangu-alpha-2.6b": _PANGU,
    "pangu-alpha-13b": dataclasses.replace(
        _PANGU,
        features=5120,
        hidden=20_480,
        heads=40,
        kv_heads=40,
        layers=39,
        parameters=13_100_000_000,
        batch=64,
    ),
}
"""By name. Batch sizes are ours: about as many tokens a device as the published configurations give
8 devices.

Sources:
    llama2: Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models", and the
        meta-llama/Llama-2-*-hf configurations.
    baichuan2: Yang et al. 2023, "Baichuan 2: Open Large-scale Language Models" (table 2: rotary
        positions in 7B, ALiBi in 13B; NormHead), and the Baichuan2-*-Base configurations.
    qwen: Bai et al. 2023, "Qwen Technical Report" (bias on query, key and value only), and the
        Qwen-7B and Qwen-14B configurations, whose ``intermediate_size`` counts gate and up.
    gpt3-175b: Brown et al. 2020, "Language Models are Few-Shot Learners" (table 2.1), its
        vocabulary padded as by Megatron-LM.
    pangu-alpha: Zeng et al. 2021, "PanGu-alpha: Large-scale Autoregressive Pretrained Chinese
        Language Models with Auto-parallel Computation" (31 and 39 layers under the query layer;
        parameters rounded as there), and MindFormers' run_pangualpha_*.yaml, which count the query
        layer.
"""


def named(name: str, **changes: Any) -> Config:
    """The model called ``name``, or ``name-lora``, with other settings."""
    config = MODELS[name.removesuffix("-lora")]
    if name.endswith("-lora"):
        changes = {"lora": LORA_RANK, **changes}
    return dataclasses.replace(config, **changes)


class Positions(NamedTuple):
    """What every layer needs to know of positions; made once a step."""

    mask: jax.Array
    """``(heads or 1, 1, tokens, tokens)``, added to scores: very low where a query may not look."""
    cosine: jax.Array | None
    sine: jax.Array | None
    """``(tokens, 1, features of a head / 2)``."""


def positions(config: Config) -> Positions:
    """The causal mask, and angles of the rotary embedding or the biases of ALiBi."""
    at = jnp.arange(config.tokens, dtype=jnp.float32)
    mask = jnp.where(at[:, None] >= at, 0.0, -1e30)[None, None]
    if config.positions == "alibi":
        slopes = np.array(alibi_slopes(config.heads), np.float32)
        mask = mask + slopes[:, None, None, None] * (at - at[:, None])
    if config.positions != "rotary":
        return Positions(mask, None, None)
    half = config.features // config.heads // 2
    frequency = 10_000.0 ** (-np.arange(half, dtype=np.float32) / half)
    angle = at[:, None, None] * frequency
    return Positions(mask, *(f(angle).astype(jnp.bfloat16) for f in (jnp.cos, jnp.sin)))


def alibi_slopes(heads: int) -> list[float]:
    """How fast each head forgets.

    2^(-8/n), 2^(-16/n), .. for n heads, a power of two; other numbers of heads take those of the
    power below, and every second one of twice that.

    Source:
        Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input
        Length Extrapolation".
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]


def mesh_for_constraints(axes: Mapping[str, int]) -> jax.sharding.AbstractMesh:
    """A mesh in whose context ``constraints`` are only asked for; JAX 0.12 makes others."""
    auto = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=auto)


def constrain(config: Config, x: jax.Array, what: str) -> jax.Array:
    """``x``, cut as ``config.constraints`` says of ``what``."""
    for name, spec in config.constraints:
        if name == what:
            return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(*spec))
    return x


def rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Rotary position embedding of ``(batch, tokens, heads, features)``."""
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((left * cosine - right * sine, right * cosine + left * sine), axis=-1)


def _linear(config: Config, size: int, out: int, rngs: nnx.Rngs, bias: bool, lora: bool) -> Any:
    frozen = jnp.bfloat16 if config.lora else jnp.dtype(config.parameter_dtype)
    given: dict[str, Any] = {
        "use_bias": bias,
        "dtype": jnp.bfloat16,
        "param_dtype": frozen,
        "rngs": rngs,
    }
    if not (config.lora and lora):
        return nnx.Linear(size, out, **given)
    return nnx.LoRALinear(
        size,
        out,
        lora_rank=config.lora,
        lora_dtype=jnp.bfloat16,
        lora_param_dtype=jnp.dtype(config.parameter_dtype),
        **given,
    )


def _norm(config: Config, rngs: nnx.Rngs) -> Any:
    kind = nnx.RMSNorm if config.norm == "rms" else nnx.LayerNorm
    frozen = jnp.bfloat16 if config.lora else jnp.dtype(config.parameter_dtype)
    return kind(config.features, epsilon=1e-5, dtype=jnp.bfloat16, param_dtype=frozen, rngs=rngs)


class Attention(nnx.Module):
    """Causal attention in which groups of heads share a key and a value."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.config = config
        size = config.features
        kv = size // config.heads * config.kv_heads
        bias = config.bias or config.qkv_bias
        if config.fused:
            self.qkv_proj = _linear(config, size, size + 2 * kv, rngs, bias, True)
        else:
            self.q_proj = _linear(config, size, size, rngs, bias, True)
            self.k_proj = _linear(config, size, kv, rngs, bias, True)
            self.v_proj = _linear(config, size, kv, rngs, bias, True)
        self.o_proj = _linear(config, size, size, rngs, config.bias, True)

    def __call__(self, asked: jax.Array, x: jax.Array, at: Positions) -> jax.Array:
        """Queries come from ``asked``, keys and values from ``x``."""
        config = self.config
        batch, tokens, size = x.shape
        groups = config.heads // config.kv_heads
        if config.fused:
            ends = (size, size + size // groups)
            query, key, value = jnp.split(self.qkv_proj(x), ends, axis=-1)
        else:
            query, key, value = self.q_proj(asked), self.k_proj(x), self.v_proj(x)
        query = query.reshape(query.shape[0], tokens, config.heads, -1)
        key = key.reshape(batch, tokens, config.kv_heads, -1)
        value = value.reshape(batch, tokens, config.kv_heads, -1)
        query = jnp.broadcast_to(query, (batch, *query.shape[1:]))
        query, key, value = (constrain(config, each, "heads") for each in (query, key, value))
        if at.cosine is not None and at.sine is not None:
            query, key = rotate(query, at.cosine, at.sine), rotate(key, at.cosine, at.sine)
        query = query.reshape(query.shape[0], tokens, config.kv_heads, groups, -1)
        scores = jnp.einsum("bskgd,btkd->bkgst", query, key, preferred_element_type=jnp.float32)
        scores = scores * query.shape[-1] ** -0.5
        if at.mask.shape[0] == 1:
            scores = scores + at.mask
        else:
            scores = scores + at.mask.reshape(config.kv_heads, groups, tokens, tokens)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        mixed = jnp.einsum("bkgst,btkd->bskgd", weights, value)
        mixed = constrain(config, mixed, "mixed")
        return self.o_proj(mixed.reshape(batch, tokens, -1))


class FeedForward(nnx.Module):
    """Two matrices with GELU between them, or three with a gate."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.config = config
        size, hidden = config.features, config.hidden
        if config.feed_forward == "gated" and config.fused:
            self.gate_up = _linear(config, size, 2 * hidden, rngs, config.bias, False)
        else:
            if config.feed_forward == "gated":
                self.gate_proj = _linear(config, size, hidden, rngs, config.bias, False)
            self.up_proj = _linear(config, size, hidden, rngs, config.bias, False)
        self.down_proj = _linear(config, hidden, size, rngs, config.bias, False)

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.config.feed_forward == "gelu":
            return self.down_proj(jax.nn.gelu(constrain(self.config, self.up_proj(x), "hidden")))
        if self.config.fused:
            both = self.gate_up(x).reshape(*x.shape[:-1], 2, self.config.hidden)
            gate, up = jnp.unstack(both, axis=-2)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(constrain(self.config, jax.nn.silu(gate) * up, "hidden"))


class Layer(nnx.Module):
    """One transformer layer, its norms before what they feed."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.config = config
        self.attention_norm = _norm(config, rngs)
        self.attention = Attention(config, rngs)
        self.feed_norm = _norm(config, rngs)
        self.mlp = FeedForward(config, rngs)

    def __call__(self, x: jax.Array, at: Positions, asked: jax.Array | None = None) -> jax.Array:
        config = self.config
        y = constrain(config, self.attention_norm(x), "residual")
        x = x + self.attention(y if asked is None else asked, y, at)
        x = constrain(config, x, "residual")
        y = constrain(config, self.feed_norm(x), "residual")
        return constrain(config, x + self.mlp(y), "residual")


class Transformer(nnx.Module):
    """The whole network: tokens in, logits out."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.config = config
        frozen = jnp.bfloat16 if config.lora else jnp.dtype(config.parameter_dtype)

        def embed(number: int) -> nnx.Embed:
            return nnx.Embed(
                number, config.features, dtype=jnp.bfloat16, param_dtype=frozen, rngs=rngs
            )

        self.embed_tokens = embed(config.vocabulary)
        if config.positions == "learned":
            self.position_embedding = embed(config.tokens)
        if config.scan:

            @nnx.split_rngs(splits=config.layers)
            @nnx.vmap(in_axes=0, out_axes=0)
            def stacked(rngs: nnx.Rngs) -> Layer:
                return Layer(config, rngs)

            self.layers = stacked(rngs)
        else:
            self.layers = nnx.List([Layer(config, rngs) for _ in range(config.layers)])
        if config.query_layer:
            self.top_position_embedding = embed(config.tokens)
            self.top_layer = Layer(config, rngs)
        self.norm = _norm(config, rngs)
        if not config.tied:
            self.lm_head = _linear(config, config.features, config.vocabulary, rngs, False, False)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        at = positions(config)
        x = self.embed_tokens(tokens)
        if config.positions == "learned":
            x = x + self.position_embedding(jnp.arange(config.tokens))
        x = self._through_layers(constrain(config, x, "residual"), at)
        if config.query_layer:
            asked = self.top_position_embedding(jnp.arange(config.tokens))[None]
            x = _top(config, self.top_layer, x, at, asked)
        x = self.norm(x)
        if config.tied:
            return self.embed_tokens.attend(x)
        if config.normalized_head:
            weights = self.lm_head.kernel[...].astype(jnp.float32)
            length = jnp.sqrt(jnp.sum(jnp.square(weights), axis=0) + 1e-12)
            return x @ (weights / length).astype(jnp.bfloat16)
        return self.lm_head(x)

    def _through_layers(self, x: jax.Array, at: Positions) -> jax.Array:
        if self.config.scan:

            def body(x: jax.Array, layer: Layer) -> jax.Array:
                return layer(x, at)

            # In a loop nothing can be merged across its trips: no barriers are needed.
            step = nnx.remat(body, prevent_cse=False) if self.config.remat else body
            return nnx.scan(step, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)

        def one(layer: Layer, x: jax.Array) -> jax.Array:
            return layer(x, at)

        call = nnx.remat(one) if self.config.remat else one
        for layer in self.layers:
            x = call(layer, x)
        return x


def _top(config: Config, layer: Layer, x: jax.Array, at: Positions, asked: jax.Array) -> jax.Array:
    def one(layer: Layer, x: jax.Array, asked: jax.Array) -> jax.Array:
        return layer(x, at, asked)

    return (nnx.remat(one) if config.remat else one)(layer, x, asked)


@dataclass(frozen=True)
class Step:
    """A train step and the shapes of its arguments."""

    function: Any
    arguments: tuple[Any, ...]
    roles: tuple[str, ...]
    """Role of each argument: params, opt_state, frozen (parameters that stay), batch."""
    num_parameters: int
    """Those of the published model: LoRA's own do not count."""


def train_step(config: Config) -> Step:
    """Forward, backward and AdamW; what LoRA freezes is an argument of its own."""
    model = nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0)))
    kind = nnx.LoRAParam if config.lora else nnx.Param
    graph, trained, frozen = nnx.split(model, kind, ...)
    shapes, kept = nnx.to_pure_dict(trained), nnx.to_pure_dict(frozen)
    optimizer = optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)

    def loss(p: Any, kept: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        network = nnx.merge(graph, filled(trained, p), filled(frozen, kept))
        logits = constrain(config, network(tokens), "logits").astype(jnp.float32)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))

    def step(p: Any, state: Any, kept: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(p, kept, tokens, targets)
        updates, state = optimizer.update(gradients, state, p)
        return optax.apply_updates(p, updates), state, value

    batch = jax.ShapeDtypeStruct((config.batch, config.tokens), jnp.int32)
    return Step(
        step,
        (shapes, jax.eval_shape(optimizer.init, shapes), kept, batch, batch),
        ("params", "opt_state", "frozen", "batch", "batch"),
        _count(kept) if config.lora else _count(shapes),
    )


def check_parameters(config: Config, count: int) -> None:
    """Check that the model is the published one.

    Raises:
        ValueError: It has another number of parameters.
    """
    if abs(count - config.parameters) > config.tolerance * config.parameters:
        raise ValueError(
            f"{count:,} parameters, published {config.parameters:,}: a size in MODELS is wrong."
        )


def filled(state: nnx.State[Any, Any], values: Any) -> nnx.State[Any, Any]:
    """``state`` with other values; the one given stays as it is."""
    filled = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(filled, values)
    return filled


def _count(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def main() -> None:
    from lowered import Command, lower  # beside this file, which is what Python sees of a script

    command = Command.read(__doc__, [name + end for name in MODELS for end in ("", "-lora")])
    config = named(command.model, **command.changes)
    step = train_step(config)
    if "layers" not in command.changes:
        check_parameters(config, step.num_parameters)
    made = lower(step.function, step.roles, *step.arguments)
    command.finish(made, f"{config}: {step.num_parameters:,} parameters")


if __name__ == "__main__":
    main()
