"""``jax.lax.ragged_dot``: the matmuls of experts, planned as a kernel that may be cut in every dim.

Where JAX has nothing for it but every row once for each expert, a device multiplies the rows of one
expert after those of another.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax._src.lax import lax  # pyright: ignore[reportPrivateUsage]
from jax.interpreters import mlir

from autoshard.ir.kernel import Call, is_in_composite, lowered_for
from autoshard.ir.local_functions import LocalFunction
from autoshard.ir.lowering import (
    Rules,
    lower,
    lowering_rule,
    marks_are_lowered,
    on_device,
)
from autoshard.kernels.calls import RAGGED_DOT
from autoshard.kernels.experts import (
    OfExperts,
    bind_experts,
    dim_of_rows,
    experts_rule,
    makes_weights,
    only_rows_of,
    running_sum,
)

_lax: Any = jax.lax
_PRIMITIVE: Any = lax.ragged_dot_general_p


@dataclass(frozen=True)
class RaggedDot:
    """A ``ragged_dot_general`` of three arrays, said without JAX."""

    operands: Sequence[tuple[Sequence[int], str]]
    """Shapes and types of rows, matrices and sizes."""
    numbers: Any
    """Fields of ``jax.lax.RaggedDotDimensionNumbers``, in their order."""
    precision: Sequence[str] | None
    """Names of ``jax.lax.Precision``, one an operand; None: the default."""
    dtype: str | None
    """Type of the result; None: that of rows and matrices."""

    @property
    def structs(self) -> list[jax.ShapeDtypeStruct]:
        """Rows, matrices and sizes."""
        return [jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype in self.operands]

    @contextlib.contextmanager
    def traced(self) -> Generator[Callable[..., Any]]:
        """The function of JAX, within settings of JAX that its types need."""
        (left, right), batch = self.numbers[0]
        dims = ((tuple(left), tuple(right)), tuple(map(tuple, batch)))
        numbers = _lax.RaggedDotDimensionNumbers(dims, *map(tuple, self.numbers[1:]))
        names = self.precision

        def call(*arrays: Any) -> Any:
            return _lax.ragged_dot_general(
                *arrays,
                numbers,
                precision=None if names is None else tuple(_lax.Precision[it] for it in names),
                preferred_element_type=self.dtype,
            )

        with jax.enable_x64(any(struct.dtype.itemsize == 8 for struct in self.structs)):
            yield call

    def lowered(self, platform: str) -> bytes:
        """A module that calls it as the kernel that it is planned as."""
        with on_device(None), self.traced() as call:
            structs = tuple(self.structs)
            made = lower(jax.jit(call), structs, {}, None, platform, rules=ragged_dot_rules)
        return made.bytecode

    def key(self) -> str:
        """All of it, as one line."""
        return f"{RAGGED_DOT}{json.dumps(astuple(self), separators=(',', ':'))}"


def local_ragged_dot(key: str) -> LocalFunction:
    """The function of one device that a key says: ``RaggedDot.key()`` and a platform."""
    said, platform = key.removeprefix(RAGGED_DOT).rsplit(" ", 1)
    described = RaggedDot(*json.loads(said))
    structs = described.structs
    with described.traced() as function:
        jaxpr: Any = jax.make_jaxpr(function)(*structs)
    (equation,) = (each for each in jaxpr.eqns if each.primitive is _PRIMITIVE)
    call = _call(equation.params, structs)
    rows, matrices, sizes = (struct.dtype for struct in structs)
    del sizes  # the kernel is given numbers of experts in its place
    return lowered_for(call, (rows, matrices, jnp.int32, jnp.int32), platform)


def ragged_dot_rules() -> Rules:
    """How ``ragged_dot_general`` is lowered."""
    return ((_PRIMITIVE, _lower),)


def _lower(context: Any, *operands: Any, **params: Any) -> Any:
    lhs, rhs, sizes, *offset = context.avals_in
    numbers = params["ragged_dot_dimension_numbers"]
    has_batch = bool(numbers.dot_dimension_numbers[1][0])
    if not marks_are_lowered() or is_in_composite() or offset or has_batch or sizes.ndim != 1:
        rule = lowering_rule(_PRIMITIVE, context.module_context.platforms[0])
        return rule(context, *operands, **params)
    call = _call(params, (lhs, rhs, sizes))

    def planned(lhs: Any, rhs: Any, sizes: Any) -> Any:
        experts = jnp.arange(sizes.shape[0], dtype=jnp.int32)
        return bind_experts(call, lhs, rhs, sizes, experts)

    return cast(Any, mlir).lower_fun(planned, multiple_results=True)(context, *operands)


def _call(params: Mapping[str, Any], operands: Sequence[Any]) -> Call:
    """The kernel of rows, matrices and sizes of these types."""
    lhs, rhs, sizes = operands
    numbers = params["ragged_dot_dimension_numbers"]
    local = OfExperts(numbers, _OfJax(numbers, tuple(params.items())), sizes.shape[0])
    rule = experts_rule("ragged_dot", numbers, lhs.ndim, rhs.ndim)
    return Call("ragged_dot", local, rule, described=_described(params, operands))


def _described(params: Mapping[str, Any], operands: Sequence[Any]) -> str:
    """The key of it; empty where a precision is no name."""
    precision, dtype = params["precision"], params["preferred_element_type"]
    each = precision if isinstance(precision, tuple) else (precision,) * 2
    if any(not isinstance(one, _lax.Precision | None) for one in each):
        return ""
    numbers = params["ragged_dot_dimension_numbers"]
    return RaggedDot(
        [(tuple(aval.shape), str(aval.dtype)) for aval in operands],
        (
            numbers.dot_dimension_numbers,
            numbers.lhs_ragged_dimensions,
            numbers.rhs_group_dimensions,
        ),
        None if precision is None else [(one or _lax.Precision.DEFAULT).name for one in each],
        None if dtype is None else str(jnp.dtype(dtype)),
    ).key()


@dataclass(frozen=True)
class _OfJax:
    """The product by ``ragged_dot_general`` itself, or as matmuls of one expert's rows each."""

    numbers: Any
    params: tuple[tuple[str, Any], ...]

    def __call__(self, lhs: Any, rhs: Any, sizes: Any, has_all: bool) -> Any:
        at_once, by_tiles = self._at_once, functools.partial(self._by_tiles, has_all=has_all)
        if lhs.shape[self._ragged_dim] <= FEW_ROWS or not sizes.shape[0]:
            return at_once(lhs, rhs, sizes)
        if makes_weights(self.numbers):
            return by_tiles(lhs, rhs, sizes)
        return _lax.platform_dependent(lhs, rhs, sizes, tpu=at_once, default=by_tiles)

    @property
    def _ragged_dim(self) -> int:
        (dim,) = self.numbers.lhs_ragged_dimensions
        return dim

    @property
    def _contracted(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Dims of both operands over which it adds up."""
        return self.numbers.dot_dimension_numbers[0]

    def _product_of_all(self, lhs: Any, rhs: Any, sizes: Any) -> Any:
        return _PRIMITIVE.bind(lhs, rhs, sizes, **dict(self.params))

    def _at_once(self, lhs: Any, rhs: Any, sizes: Any) -> Any:
        made = self._product_of_all(lhs, rhs, sizes)
        if makes_weights(self.numbers):
            return made
        return only_rows_of(sizes, made, dim_of_rows(self.numbers))

    def _by_tiles(self, lhs: Any, rhs: Any, sizes: Any, has_all: bool) -> Any:
        """The same as matmuls of one expert's rows each.

        JAX and XLA write every row once for each expert where they have no kernel for it, that is
        but on TPUs, and there for gradients of weights.
        """
        made: Any = jax.eval_shape(self._product_of_all, lhs, rhs, sizes)
        num_rows = lhs.shape[self._ragged_dim]
        result = jnp.zeros(made.shape, made.dtype)
        tiles = _Tiles.of(sizes, num_rows)
        count = tiles.most if has_all else tiles.count
        if makes_weights(self.numbers):
            return self._weights(tiles, count, lhs, rhs, result)
        return self._rows(tiles, count, lhs, rhs, result)

    def _rows(self, tiles: _Tiles, count: Any, lhs: Any, rhs: Any, result: Any) -> Any:
        (group,) = self.numbers.rhs_group_dimensions
        left, right = self._contracted
        contracted = (left, tuple(dim - (dim > group) for dim in right))

        def put(number: Any, result: Any) -> Any:
            matrix = _lax.dynamic_index_in_dim(rhs, tiles.expert[number], group, keepdims=False)
            made = self._product(tiles.rows(number, lhs, self._ragged_dim), matrix, contracted)
            return tiles.put(number, result, dim_of_rows(self.numbers), made.astype(result.dtype))

        return _lax.fori_loop(0, count, put, result)

    def _weights(self, tiles: _Tiles, count: Any, lhs: Any, rhs: Any, result: Any) -> Any:
        left, right = self._contracted
        wide = jnp.promote_types(result.dtype, jnp.float32)
        kept = wide if jnp.issubdtype(result.dtype, jnp.floating) else result.dtype

        def put(number: Any, carried: tuple[Any, Any]) -> tuple[Any, Any]:
            result, added = carried
            rows = tiles.mine(number, tiles.rows(number, lhs, self._ragged_dim), self._ragged_dim)
            dim = right[left.index(self._ragged_dim)]
            others = tiles.mine(number, tiles.rows(number, rhs, dim), dim)
            made = self._product(rows, others, self._contracted, kept)
            expert = tiles.expert[number]
            is_next = (number > 0) & (expert == tiles.expert[number - 1])
            added = jnp.where(is_next, added, jnp.zeros((), kept)) + made
            matrix = added.astype(result.dtype)
            return _lax.dynamic_update_index_in_dim(result, matrix, expert, 0), added

        zeros = jnp.zeros(result.shape[1:], kept)
        return _lax.fori_loop(0, count, put, (result, zeros))[0]

    def _product(self, left: Any, right: Any, contracted: Any, dtype: Any = None) -> Any:
        params = dict(self.params)
        wanted = params["preferred_element_type"] if dtype is None else dtype
        return jax.lax.dot_general(
            left,
            right,
            (contracted, ((), ())),
            precision=params["precision"],
            preferred_element_type=wanted,
        )


@dataclass(frozen=True)
class _Tiles:
    """Rows cut into parts of equal length that each begin with an expert's rows, or go on with
    them; what is behind the expert's last row in a part is not its own."""

    num_rows: int
    size: int
    """Rows of a part."""
    most: int
    """Parts, however rows are shared out."""
    count: Any
    """Parts that have rows; those behind have none."""
    expert: Any
    """Number of the expert of each part."""
    first: Any
    """Its own rows."""
    end: Any

    @classmethod
    def of(cls, sizes: Any, num_rows: int) -> _Tiles:
        """The parts of this many rows, sorted by expert, of ``sizes`` rows each."""
        num_experts = sizes.shape[0]
        # Half of an expert's rows if all have equally many: half a part is lost for each, and
        # there are three for each expert, however many rows there are.
        half = num_rows // (2 * num_experts) // _LANES * _LANES
        size = min(num_rows, max(_LANES, half))
        most = -(-num_rows // size) + num_experts - 1
        ends = running_sum(sizes)
        parts = -(-sizes // size)
        last = running_sum(parts)
        number = jnp.arange(most, dtype=jnp.int32)
        expert = jnp.sum(last[None, :] <= number[:, None], 1, dtype=jnp.int32)
        expert = jnp.minimum(expert, num_experts - 1)
        first = (ends - sizes)[expert] + (number - (last - parts)[expert]) * size
        end = jnp.where(number < last[-1], jnp.minimum(first + size, ends[expert]), first)
        return cls(num_rows, size, most, last[-1], expert, first, end)

    def rows(self, number: Any, value: Any, dim: int) -> Any:
        """Rows of a part. Of the last ones the part begins before its own rows."""
        return _lax.dynamic_slice_in_dim(value, self.first[number], self.size, dim)

    def mine(self, number: Any, part: Any, dim: int, otherwise: Any = None) -> Any:
        """A part with zeros, or what else is given, in rows that are not its own."""
        start = jnp.minimum(self.first[number], self.num_rows - self.size)
        row = start + jax.lax.broadcasted_iota(jnp.int32, part.shape, dim)
        is_own = (row >= self.first[number]) & (row < self.end[number])
        return jnp.where(is_own, part, jnp.zeros_like(part) if otherwise is None else otherwise)

    def put(self, number: Any, whole: Any, dim: int, part: Any) -> Any:
        """The whole with the part's own rows."""
        before = self.rows(number, whole, dim)
        part = self.mine(number, part, dim, before)
        return _lax.dynamic_update_slice_in_dim(whole, part, self.first[number], dim)


_LANES = 128
"""Rows of which parts have a multiple: tiles of matmuls on all machines."""
FEW_ROWS = 256
"""Rows with which all matrices are multiplied in no more time than they are read in."""
