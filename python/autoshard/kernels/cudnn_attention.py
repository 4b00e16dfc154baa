"""Attention kernels of cuDNN, as JAX calls them (``implementation="cudnn"``).

    forward   q, k, v, [bias], [lengths of q and of k]             -> o, [statistics], workspace
    backward  q, k, v, statistics, do, [bias], o, [lengths ..]     -> dq, dk, dv, [dbias], workspace

Batch and heads of keys may be cut: each part is a call of its own. The heads of queries that share
a head of keys stay together. Operands and results by position and the fields of the configuration:
JAX, jax/_src/cudnn/fused_attention_stablehlo.py (0.10.2), read on 2026-11-23.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from autoshard.ir import mlir
from autoshard.ir.attributes import custom_call_target
from autoshard.ir.reading import shape_of

Dims = tuple[tuple[str, ...], ...]
"""The factors of each dim of an array, major first."""

_TARGET = re.compile(r"__cudnn\$fmha(ScaleBias)?Softmax(Backward)?")
"""Without those that drop entries, whose pattern each part would repeat, and those of 8 bits."""
_CONFIG = "backend_config"
_FIELDS = "cudnn_fmha_backend_config"
_SCORES = "intermediate_tensor_shape"
_FIRST_MATMUL = ("bmm1_dot_dimension_numbers", "bmm2_grad_gemm2_dot_dimension_numbers")
"""Forward, backward: both are of tensors of queries and of keys as they are given."""
_HEADS_FIRST = ["0", "1"]
"""Its batch dims where tensors are ``(batch, heads, position, feature)``."""


@dataclass(frozen=True, slots=True)
class CudnnAttention:
    """What a call says of itself."""

    factors: dict[str, int]
    """Sizes: ``b`` batch, ``m`` heads of keys, ``g`` heads of queries for each of these, ``t`` and
    ``s`` positions of queries and of keys, ``d`` and ``e`` features of queries and of values."""
    cuttable: frozenset[str]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    is_backward: bool
    is_causal: bool
    config: dict[str, Any] = field(repr=False)

    @property
    def flops(self) -> float:
        """Floating point operations of the matmuls, of half the scores where they are causal.

        Two matmuls forward; five backward, one of which computes the scores again.
        """
        size = self.factors
        scores = size["b"] * size["m"] * size["g"] * size["t"] * size["s"]
        key, value = size["d"], size["e"]
        matmuls = 3 * key + 2 * value if self.is_backward else key + value
        return 2.0 * scores * matmuls * (0.5 if self.is_causal else 1.0)

    def config_for(self, batch: int, heads: int) -> str:
        """The configuration of a call on so many sequences and heads of queries."""
        fields = self.config[_FIELDS]
        scores = fields[_SCORES]
        dimensions = [str(batch), str(heads), *scores["dimensions"][2:]]
        changed = {**fields, _SCORES: {**scores, "dimensions": dimensions}}
        return json.dumps({**self.config, _FIELDS: changed})


def is_cudnn_attention(op: mlir.Operation) -> bool:
    """Whether ``op`` calls an attention kernel of a kind that ``cudnn_attention`` knows."""
    target = custom_call_target(op)
    return target is not None and _TARGET.fullmatch(target) is not None


def cudnn_attention(op: mlir.Operation) -> CudnnAttention | None:
    """The attention that ``op`` calls; None: another op, or one that cannot be cut.

    Those have pages of keys or several sequences in one row, or are of a form that nobody here has
    seen.
    """
    if not is_cudnn_attention(op):
        return None
    try:
        config = json.loads(mlir.StringAttr(op.attributes[_CONFIG]).value)
        fields = config[_FIELDS]
        if fields.get("max_seg_per_batch", 1) > 1 or fields.get("is_paged_attention", False):
            return None
        batch, heads, *positions = map(int, fields[_SCORES]["dimensions"])
        is_backward = _FIRST_MATMUL[1] in fields
        numbers = fields[_FIRST_MATMUL[is_backward]]
        is_heads_first = numbers["lhs_batch_dimensions"] == _HEADS_FIRST
        is_causal = "CAUSAL" in fields["mask_type"]
    except (KeyError, TypeError, ValueError):
        return None
    operands = [shape_of(value) for value in op.operands]
    results = [shape_of(value) for value in op.results]
    heads_dim = 1 if is_heads_first else 2
    if len(operands) < 3 or {len(shape) for shape in operands[:3]} != {4}:
        return None
    keys = operands[1][heads_dim]
    sizes = dict(b=batch, m=keys, g=heads // max(1, keys), t=positions[0], s=positions[1])
    sizes |= dict(d=operands[0][3], e=operands[2][3])
    placed = _arrays(op, sizes, is_heads_first, is_backward, (operands, results))
    if placed is None or not _fits(sizes, placed, (operands, results)):
        return None
    summed = {"b", "m"} - _names(placed[1][3]) if is_backward and len(results) == 5 else set[str]()
    return CudnnAttention(
        sizes,
        frozenset({"b", "m"} - summed),
        *placed,
        is_backward=is_backward,
        is_causal=is_causal,
        config=config,
    )


def _arrays(
    op: mlir.Operation,
    sizes: dict[str, int],
    is_heads_first: bool,
    is_backward: bool,
    shapes: tuple[list[tuple[int, ...]], list[tuple[int, ...]]],
) -> tuple[tuple[Dims, ...], tuple[Dims, ...]] | None:
    """The factors of operands and results; None where there are others than expected."""

    def given(heads: tuple[str, ...], position: str, feature: str) -> Dims:
        inner = (heads, (position,)) if is_heads_first else ((position,), heads)
        return (("b",), *inner, (feature,))

    queries, keys, workspace = ("m", "g"), ("m",), ((),)
    statistics: Dims = (("b",), queries, ("t",))
    made: Dims = (*statistics, ("e",))
    output = given(queries, "t", "e")
    first = [given(queries, "t", "d"), given(keys, "s", "d"), given(keys, "s", "e")]
    if is_backward:
        first += [statistics, output]
    bias: list[Dims] = []
    target = custom_call_target(op)
    if target is not None and "ScaleBias" in target:
        full = (("b",), queries, ("t",), ("s",))
        shape = shapes[0][len(first)]
        bias.append(tuple(() if size == 1 else dim for size, dim in zip(shape, full, strict=True)))
    operands = [*first, *bias, *([output] if is_backward else [])]
    lengths: Dims = (("b",),)
    missing = len(shapes[0]) - len(operands)
    if missing not in (0, 2):
        return None
    operands += [lengths] * missing
    if is_backward:
        gradients: list[Dims] = [
            (("b",), queries, ("t",), ("d",)),
            (("b",), keys, ("s",), ("d",)),
            (("b",), keys, ("s",), ("e",)),
        ]
        results = [*gradients, *bias[: len(shapes[1]) - 4], workspace]
    else:
        results = [made, *([statistics] if len(shapes[1]) == 3 else []), workspace]
    return (tuple(operands), tuple(results)) if len(results) == len(shapes[1]) else None


def _fits(
    sizes: dict[str, int],
    placed: tuple[tuple[Dims, ...], tuple[Dims, ...]],
    shapes: tuple[list[tuple[int, ...]], list[tuple[int, ...]]],
) -> bool:
    """Whether every dim is what its factors make up; one without factors may have any size."""
    for tensors, given in zip(placed, shapes, strict=True):
        for dims, shape in zip(tensors, given, strict=True):
            if len(dims) != len(shape):
                return False
            for names, size in zip(dims, shape, strict=True):
                product = 1
                for name in names:
                    product *= sizes[name]
                if names and product != size:
                    return False
    return True


def _names(dims: Dims) -> set[str]:
    return {name for dim in dims for name in dim}
