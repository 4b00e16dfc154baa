"""Small programs whose best plan can be found by trying everything: random ones and real blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.cluster import Cluster
from autoshard.importer import import_program
from autoshard.importer.imported_program import ImportedProgram
from autoshard.ir import mlir, new_context
from autoshard.ir.module import parse_bytes, print_module
from autoshard.passes.import_strategies import ImportStrategies
from autoshard.passes.sharding_propagation import populate_rules
from autoshard.sharding import Mesh

MOST_OPS = 12
CLUSTERS = (
    "h100:2",
    "v5e:2x2",
    "h100:4",
    "cpu:6",
    "h100:8",
    "v5p:2x2x2",
    "h100:2x4",
    "v5e:2x4",
    "v5e:4x4",
    "v5p:2x2x4",
    "h100:2x8",
)
"""Clusters of at most 16 devices."""

Shape = tuple[int, ...]

_WITHOUT_CASTS = ":without=matmul.rounds_operands"
WHOLE_PRODUCTS = f"xla-tpu-0.0.42{_WITHOUT_CASTS}"
"""A compiler for TPUs that multiplies float32 as it is: limits of memory in tests of decisions are
those of values that the program has, not of casts. Propagation in a module knows of none."""


def whole_products(cluster: str) -> Cluster:
    """A cluster whose compiler multiplies so."""
    found = Cluster.of(cluster)
    return found.with_compiler(f"{found.compiler}{_WITHOUT_CASTS}")


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def lower(fn: Callable[..., Any], *args: Any, donate: Sequence[int] = ()) -> mlir.Module:
    """The module of ``fn``, in a context of its own."""
    lowered = jax.jit(fn, donate_argnums=tuple(donate), keep_unused=True).lower(*args)
    return parse_bytes(print_module(lowered.compiler_ir("stablehlo"), "bytecode"), new_context())


def imported(module: mlir.Module, mesh: Mesh) -> ImportedProgram:
    """The core's program of a module without annotations."""
    with module.context, mlir.Location.unknown():
        module.operation.attributes["autoshard.mesh"] = mlir.StringAttr.get(str(mesh))
        ImportStrategies().run(module)
        populate_rules(module)
        return import_program(module, mesh)


# Random programs

_SIZES = (8, 16, 48, 128, 512, 4096)


class _Recipe:
    """Steps that build values from earlier ones; the same for shapes and for tracers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.arguments: list[Shape] = []
        self.shapes: list[Shape] = []
        self.steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        for _ in range(int(self.random.integers(1, 3))):
            self.argument(tuple(self.size() for _ in range(int(self.random.integers(2, 4)))))
        for _ in range(int(self.random.integers(3, 11))):
            self.step()

    def size(self) -> int:
        return int(self.random.choice(_SIZES))

    def pick(self, rank: int | None = None) -> int | None:
        """A value, later ones more often."""
        found = [i for i, s in enumerate(self.shapes) if s and rank in (None, len(s))]
        if not found:
            return None
        weights = np.arange(1, len(found) + 1, dtype=float)
        return int(self.random.choice(found, p=weights / weights.sum()))

    def argument(self, shape: Shape) -> int:
        # Arguments come first, so that the function's parameters are its first values.
        self.arguments.append(shape)
        self.steps.append((_take_argument(len(self.arguments) - 1), ()))
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def apply(self, fn: Callable[..., Any], *operands: int) -> None:
        made = jax.eval_shape(fn, *(struct(*self.shapes[i]) for i in operands))
        self.steps.append((fn, operands))
        self.shapes.append(tuple(made.shape))

    def step(self) -> None:
        kinds = (
            "dot",
            "dot",
            "dot",
            "add",
            "exp",
            "transpose",
            "sum",
            "reshape",
            "batch_dot",
            "spread",
            "slice",
            "concatenate",
            "gather",
        )
        kind = str(self.random.choice(kinds))
        value = self.pick()
        if value is None:
            return
        shape = self.shapes[value]
        if kind == "dot":
            other = self.argument((shape[-1], self.size()))
            self.apply(lambda a, b: a @ b, value, other)
        elif kind == "add":
            same = [i for i, s in enumerate(self.shapes) if s == shape]
            self.apply(jnp.add, value, int(self.random.choice(same)))
        elif kind == "exp":
            self.apply(jnp.exp, value)
        elif kind == "transpose":
            self.apply(jnp.transpose, value)
        elif kind == "sum":
            axis = int(self.random.integers(len(shape)))
            self.apply(lambda a: jnp.sum(a, axis), value)
        elif kind == "reshape" and shape[-1] % 8 == 0:
            self.apply(lambda a: a.reshape(*a.shape[:-1], 8, a.shape[-1] // 8), value)
        elif kind == "batch_dot" and len(shape) == 3:
            other = self.argument((shape[0], shape[2], self.size()))
            self.apply(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), value, other)
        elif kind == "spread" and len(shape) < 3:
            size = self.size()
            self.apply(lambda a: jnp.broadcast_to(a[..., None], (*a.shape, size)), value)
        elif kind == "slice":
            self.apply(lambda a: a[: a.shape[0] // 2], value)
        elif kind == "concatenate":
            self.apply(lambda a: jnp.concatenate((a, a)), value)
        elif kind == "gather" and len(shape) == 2:
            index = self.argument((self.size(),))
            self.apply(lambda a, i: a.at[i.astype(jnp.int32)].get(mode="clip"), value, index)

    def function(self, *args: jax.Array) -> tuple[jax.Array, ...]:
        values: list[Any] = []
        for fn, operands in self.steps:
            made = fn(*(values[i] for i in operands))
            values.append(args[made] if isinstance(made, int) else made)
        read = {i for _, operands in self.steps for i in operands}
        return tuple(v for i, v in enumerate(values) if i not in read)


def _take_argument(number: int) -> Callable[[], int]:
    return lambda: number


def random_module(seed: int) -> mlir.Module:
    """A program of a few ops; the same one for a seed."""
    recipe = _Recipe(seed)
    return lower(recipe.function, *(struct(*shape) for shape in recipe.arguments))


def random_cases(count: int) -> list[tuple[int, str]]:
    """Seeds and clusters of ``count`` programs of 2 to ``MOST_OPS`` ops."""
    cases: list[tuple[int, str]] = []
    seed = 0
    while len(cases) < count:
        mesh = Mesh.parse("a=2")
        if 2 <= imported(random_module(seed), mesh).program.num_ops <= MOST_OPS:
            cases.append((seed, CLUSTERS[len(cases) % len(CLUSTERS)]))
        seed += 1
    return cases


# Real blocks, each small enough


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.exp(jnp.einsum("bhsd,bhtd->bhst", q, k))
    weights = scores / jnp.sum(scores, -1, keepdims=True)
    return jnp.einsum("bhst,bhtd->bhsd", weights, v)


def mlp(x: Any, up: Any, down: Any) -> Any:
    return jnp.maximum(x @ up, 0) @ down


def mlp_gradient(x: Any, up: Any, down: Any, dy: Any) -> Any:
    hidden = jnp.maximum(x @ up, 0)
    dh = dy @ down.T
    return hidden.T @ dy, x.T @ dh


def convolution(image: Any, kernel: Any, bias: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    return jnp.maximum(
        jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=dims) + bias,
        0,
    )


def layer_norm(x: Any, gain: Any) -> Any:
    centred = x - jnp.mean(x, -1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True))
    return centred * scale * gain


def embedding(table: Any, tokens: Any, head: Any) -> Any:
    return table.at[tokens].get(mode="promise_in_bounds") @ head


def moe_dispatch(x: Any, gates: Any, up: Any, down: Any) -> Any:
    sent = jnp.einsum("td,tec->ecd", x, gates)
    hidden = jnp.maximum(jnp.einsum("ecd,edf->ecf", sent, up), 0)
    back = jnp.einsum("ecf,efd->ecd", hidden, down)
    return jnp.einsum("ecd,tec->td", back, gates)


def adam_update(p: Any, m: Any, v: Any, g: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * (g * g)
    return p - m * jax.lax.rsqrt(v), m, v


def cross_entropy(x: Any, head: Any, targets: Any) -> Any:
    logits = x @ head
    return jnp.sum(targets * (logits - jnp.log(jnp.sum(jnp.exp(logits), -1, keepdims=True))))


def gated_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (jnp.tanh(x @ gate) * (x @ up)) @ down


BLOCKS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "attention": (attention, (struct(16, 32, 1024, 128),) * 3, ()),
    "mlp": (mlp, (struct(8192, 4096), struct(4096, 16384), struct(16384, 4096)), ()),
    "mlp gradient": (
        mlp_gradient,
        (struct(8192, 4096), struct(4096, 16384), struct(16384, 4096), struct(8192, 4096)),
        (),
    ),
    "convolution": (
        convolution,
        (struct(256, 56, 56, 64), struct(3, 3, 64, 64), struct(64)),
        (),
    ),
    "layer norm": (layer_norm, (struct(8192, 4096), struct(4096)), ()),
    "embedding": (
        embedding,
        (struct(256_000, 1024), struct(64, 512, dtype=jnp.int32), struct(1024, 1024)),
        (),
    ),
    "moe dispatch": (
        moe_dispatch,
        (struct(4096, 1024), struct(4096, 8, 640), struct(8, 1024, 4096), struct(8, 4096, 1024)),
        (),
    ),
    "adam update": (adam_update, (struct(4096, 16384),) * 4, (0, 1, 2)),
    "cross entropy": (
        cross_entropy,
        (struct(8192, 1024), struct(1024, 32_000), struct(8192, 32_000)),
        (),
    ),
    "gated mlp": (
        gated_mlp,
        (struct(512, 4096), struct(4096, 11_008), struct(4096, 11_008), struct(11_008, 4096)),
        (),
    ),
}
"""Function, arguments and donated arguments."""


def block_module(name: str) -> mlir.Module:
    fn, arguments, donated = BLOCKS[name]
    return lower(fn, *arguments, donate=donated)


# Train steps of equal layers


def transformer(width: int, heads: int, size: int, hidden: int, *tokens: int) -> mlir.Module:
    """A train step of four layers, of more classes of ops than are searched to the end."""

    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(lambda w: jnp.mean(forward(w, x) ** 2))(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    def forward(weights: Any, x: Any) -> Any:
        for wq, wk, wv, wo, up, down in weights:
            q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in (wq, wk, wv))
            scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k), -1)
            x = x + jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", scores, v), wo)
            x = x + jax.nn.gelu(x @ up) @ down
        return x

    cut = struct(width, heads, size)
    layer = (
        cut,
        cut,
        cut,
        struct(heads, size, width),
        struct(width, hidden),
        struct(hidden, width),
    )
    return lower(step, [layer] * 4, struct(*tokens, width), donate=(0,))


def mlp_with_heads(heads: int) -> mlir.Module:
    """The train step of docs/use/explain.md: few meshes have an axis that divides ``heads``."""

    def mlp(layer: Any, x: Any) -> Any:
        return jax.nn.gelu(x @ layer["up"]) @ layer["down"]

    def loss(params: Any, x: Any, labels: Any) -> Any:
        for layer in params["layers"]:
            x = x + mlp(layer, x)
        scores = jnp.einsum("bd,hdk->bhk", x, params["heads"])
        return jnp.mean((scores - labels) ** 2)

    def step(params: Any, x: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, labels)
        return jax.tree.map(lambda w, g: w - 0.01 * g, params, gradients), value

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return struct(*shape, dtype=jnp.bfloat16)

    layer = {"up": array(4096, 16384), "down": array(16384, 4096)}
    params = {"layers": [layer] * 24, "heads": array(heads, 4096, 100)}
    return lower(step, params, array(8192, 4096), array(8192, heads, 100))
