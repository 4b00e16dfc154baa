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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from autoshard.ir import mlir
from autoshard.ir.attributes import custom_call_target
from autoshard.ir.reading import shape_of

Dims = tuple[tuple[str, ...], ...]
"""The factors of each dim of an array, major first."""

_OF_ROW_FORWARD, _OF_ROW_BACKWARD = 60.0, 400.0
"""Operations for each feature of a row of queries."""
_BLOCK = 128
"""Positions of a block of scores, which is computed whole where a causal mask divides it."""

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
    share: float
    """Part of the scores that is computed: half of them where they are causal, and what of the
    blocks on the diagonal is beyond it."""
    config: dict[str, Any] = field(repr=False)

    @property
    def flops(self) -> float:
        """Floating point operations of the matmuls.

        Two matmuls forward; five backward, one of which computes the scores again.
        """
        size = self.factors
        scores = size["b"] * size["m"] * size["g"] * size["t"] * size["s"]
        key, value = size["d"], size["e"]
        matmuls = 3 * key + 2 * value if self.is_backward else key + value
        return 2.0 * self.share * scores * matmuls

    @property
    def exponentials(self) -> float:
        """Those for which the matrix units wait: one for each score, forward three of four."""
        scores = self._rows * self.factors["s"] * self.share
        return scores * (1.0 if self.is_backward else 0.75)

    @property
    def vector_flops(self) -> float:
        """Other operations on the vector units, for which the matrix units wait.

        Each row of queries is loaded, and normalised or added up, while no matmul runs. By 18
        published rates of an H100 (arXiv 2407.08608, figure 5) and 8 kernels on an H200
        (bench/truth/gpu_kernels.py).
        """
        of_row = _OF_ROW_BACKWARD if self.is_backward else _OF_ROW_FORWARD
        return of_row * self._rows * self.factors["d"]

    @property
    def _rows(self) -> int:
        return prod(self.factors[name] for name in "bmgt")

    @property
    def workspace_bytes(self) -> float:
        """What the gradient needs while it runs; the forward pass needs nothing.

        Gradients of queries are added up in float32, beside a number of each row of scores; those
        of keys and values are made for each head of queries where these share them. As cuDNN asks
        for it on a device (an H200 with jax 0.11.2: exact in five programs, but for 256 bytes);
        compilers without one do not know it.
        """
        if not self.is_backward:
            return 0.0
        size = self.factors
        heads = size["b"] * size["m"] * size["g"]
        queries = 4.0 * heads * size["t"] * (size["d"] + 1)
        if size["g"] == 1:
            return queries
        return queries + 2.0 * heads * size["s"] * (size["d"] + size["e"])

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
    shapes = [shape_of(value) for value in (*op.operands, *op.results)]
    try:
        config = json.loads(mlir.StringAttr(op.attributes[_CONFIG]).value)
        fields = config[_FIELDS]
        if fields.get("max_seg_per_batch", 1) > 1 or fields.get("is_paged_attention", False):
            return None
        batch, heads, queries, keys = map(int, fields[_SCORES]["dimensions"])
        call = _Call.of(fields, str(custom_call_target(op)), len(op.operands), shapes)
        groups = call.heads_of_keys
        sizes = dict(b=batch, m=groups, g=heads // groups, t=queries, s=keys)
        sizes |= dict(d=shapes[0][3], e=shapes[2][3])
        operands, results = call.operands(), call.results()
        is_causal = "CAUSAL" in fields["mask_type"]
        share = min(1.0, 0.5 + _BLOCK / 2 / keys) if is_causal else 1.0
        window = fields.get("sliding_window_length", 0)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not _fits(sizes, (*operands, *results), shapes):
        return None
    has_shared = {"b", "m"} - {name for dim in results[3] for name in dim} if call.has_dbias else ()
    return CudnnAttention(
        sizes,
        frozenset({"b", "m"}.difference(has_shared)),
        operands,
        results,
        call.is_backward,
        min(share, window / keys) if window else share,
        config,
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """Which arrays a call has, and how their dims are ordered."""

    shapes: list[tuple[int, ...]]
    """Shapes of operands, then of results."""
    num_operands: int
    is_heads_first: bool
    is_backward: bool
    has_bias: bool

    @classmethod
    def of(
        cls,
        fields: Mapping[str, Any],
        target: str,
        num_operands: int,
        shapes: list[tuple[int, ...]],
    ) -> _Call:
        is_backward = _FIRST_MATMUL[1] in fields
        batch_dims = fields[_FIRST_MATMUL[is_backward]]["lhs_batch_dimensions"]
        has_bias = "ScaleBias" in target
        return cls(shapes, num_operands, batch_dims == _HEADS_FIRST, is_backward, has_bias)

    @property
    def heads_of_keys(self) -> int:
        return self.shapes[1][1 if self.is_heads_first else 2]

    @property
    def has_dbias(self) -> bool:
        return self.is_backward and len(self.shapes) - self.num_operands == 5

    def operands(self) -> tuple[Dims, ...]:
        output = self._given(_QUERIES, "t", "e")
        found = [self._given(_QUERIES, "t", "d"), self._given(_KEYS, "s", "d")]
        found.append(self._given(_KEYS, "s", "e"))
        if self.is_backward:
            found += [_STATISTICS, output]
        if self.has_bias:
            found.append(self._bias())
        if self.is_backward:
            found.append(output)
        lengths: Dims = (("b",),)
        return (*found, *[lengths] * (self.num_operands - len(found)))

    def results(self) -> tuple[Dims, ...]:
        """Heads first, whatever order the operands have; JAX transposes them."""
        workspace: Dims = ((),)
        if not self.is_backward:
            made: Dims = (*_STATISTICS, ("e",))
            has_statistics = len(self.shapes) - self.num_operands == 3
            return (made, *([_STATISTICS] if has_statistics else []), workspace)
        gradients: list[Dims] = [
            (*_STATISTICS, ("d",)),
            (("b",), _KEYS, ("s",), ("d",)),
            (("b",), _KEYS, ("s",), ("e",)),
        ]
        return (*gradients, *([self._bias()] if self.has_dbias else []), workspace)

    def _given(self, heads: tuple[str, ...], position: str, feature: str) -> Dims:
        inner = (heads, (position,)) if self.is_heads_first else ((position,), heads)
        return (("b",), *inner, (feature,))

    def _bias(self) -> Dims:
        """Added to the scores; a dim of size 1 is shared."""
        shape = self.shapes[5 if self.is_backward else 3]
        full = (("b",), _QUERIES, ("t",), ("s",))
        return tuple(() if size == 1 else dim for size, dim in zip(shape, full, strict=True))


_QUERIES, _KEYS = ("m", "g"), ("m",)
"""Factors of the heads of queries, and of keys."""
_STATISTICS: Dims = (("b",), _QUERIES, ("t",))


def _fits(sizes: Mapping[str, int], tensors: Sequence[Dims], shapes: Sequence[Any]) -> bool:
    """Whether every dim is what its factors make up; one without factors may have any size."""
    return list(map(len, tensors)) == list(map(len, shapes)) and all(
        not names or prod(sizes[name] for name in names) == size
        for dims, shape in zip(tensors, shapes, strict=True)
        for names, size in zip(dims, shape, strict=True)
    )
