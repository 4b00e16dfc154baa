"""Operations of a Pallas kernel's matmuls: over its grid, and over loops as they run there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import autoshard
from autoshard._core import Arithmetic, Work
from autoshard.frontend import pallas_flops
from autoshard.frontend.pallas_flops import Operations, operations
from autoshard.importer.work import work_of
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.kernels.calls import is_kernel_call

TILE = 16
ONE = 2 * TILE**3
"""Operations of one product of two tiles."""


def kernels(function: Callable[..., Any], *given: Any) -> list[dict[str, Any]]:
    """Parameters of every ``pallas_call`` of a function, in order."""
    found: list[dict[str, Any]] = []

    def look(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                found.append(equation.params)
                continue
            for value in jax.tree.leaves(equation.params):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    look(inner)

    look(jax.make_jaxpr(function)(*given).jaxpr)
    return found


def on_tiles(
    body: Callable[[Any, Any, Any, Callable[[], Any]], None], grid: tuple[int, ...], **options: Any
) -> dict[str, Any]:
    """A kernel of two tiles and as many integers as the grid is long, with its product as given.

    ``body`` gets its operands and result, and what multiplies the tiles.
    """

    def kernel(x: Any, numbers: Any, y: Any) -> None:
        body(x, numbers, y, lambda: x[...] @ x[...])

    tile = jax.ShapeDtypeStruct((TILE, TILE), jnp.float32)
    call = pl.pallas_call(kernel, grid=grid, out_shape=tile, **options)
    (params,) = kernels(call, tile, jax.ShapeDtypeStruct((grid[0],), jnp.int32))
    return params


def products(params: dict[str, Any]) -> float:
    return operations(params).matmul_flops / ONE


def add_up(y: Any, low: Any, high: Any, multiplied: Callable[[], Any]) -> None:
    y[...] = jax.lax.fori_loop(low, high, lambda _, sum: sum + multiplied(), jnp.zeros_like(y))


def test_operations_are_counted_over_loops_and_the_grid() -> None:
    params = on_tiles(lambda x, _, y, multiplied: add_up(y, 0, 5, multiplied), (4, 3))
    assert products(params) == 4 * 3 * 5


def test_the_authors_estimate_comes_first() -> None:
    estimate = pl.CostEstimate(flops=17, transcendentals=0, bytes_accessed=0)
    body = lambda x, _, y, multiplied: add_up(y, 0, 5, multiplied)  # noqa: E731
    assert operations(on_tiles(body, (4, 3), cost_estimate=estimate)).matmul_flops == 17


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (lambda i: 0, lambda i: i + 1, 36),
        (lambda i: i, lambda i: 8, 36),
        (lambda i: 0, lambda i: jax.lax.div(3 * i + 4, 2), sum((3 * i + 4) // 2 for i in range(8))),
        (lambda i: 0, lambda i: pl.cdiv(i * 16, 32), sum(-(-i * 16 // 32) for i in range(8))),
        (lambda i: 0, lambda i: (i - 3) // 2, sum(max(0, (i - 3) // 2) for i in range(8))),
        (lambda i: 0, lambda i: jnp.minimum(i, 3), 0 + 1 + 2 + 5 * 3),
        (lambda i: 0, lambda i: jnp.where(i < 2, 7, 1), 2 * 7 + 6),
        (lambda i: 0, lambda i: pl.num_programs(1) - i, 2 + 1),
    ],
    ids=["below", "above", "div", "cdiv", "floor", "minimum", "where", "num_programs"],
)
def test_a_loop_runs_as_often_as_the_place_in_the_grid_says(
    low: Callable[[Any], Any], high: Callable[[Any], Any], expected: int
) -> None:
    def body(x: Any, _: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        place = pl.program_id(0)
        add_up(y, low(place), high(place), multiplied)

    assert products(on_tiles(body, (8, 2))) == 2 * expected


@pytest.mark.parametrize(
    ("goes_on", "step", "first", "expected"),
    [
        (lambda n, i: n < i, 3, 0, sum(-(-i // 3) for i in range(8))),
        (lambda n, i: n <= i, 3, 0, sum(i // 3 + 1 for i in range(8))),
        (lambda n, i: n > i, -2, 9, sum(-(-(9 - i) // 2) for i in range(8))),
        (lambda n, i: n >= i, -2, 9, sum((9 - i) // 2 + 1 for i in range(8))),
        (lambda n, i: (n < i) & (n < 100), 3, 0, 8),
        (lambda n, i: n < i, 0, 0, 8),
    ],
    ids=["<", "<=", ">", ">=", "two conditions: once", "no step: once"],
)
def test_counters_go_up_and_down_in_steps(
    goes_on: Callable[[Any, Any], Any], step: int, first: int, expected: int
) -> None:
    def body(x: Any, _: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        place = pl.program_id(0)
        start = jnp.int32(first), jnp.zeros_like(y)
        _, y[...] = jax.lax.while_loop(
            lambda it: goes_on(it[0], place), lambda it: (it[0] + step, it[1] + multiplied()), start
        )

    assert products(on_tiles(body, (8,))) == expected


def test_loops_in_loops_run_as_often_as_the_trip_around_them_says() -> None:
    def body(x: Any, _: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        def outer(j: Any, total: Any) -> Any:
            return jax.lax.fori_loop(0, j, lambda _, sum: sum + multiplied(), total)

        y[...] = jax.lax.fori_loop(0, pl.program_id(0), outer, jnp.zeros_like(y))

    assert products(on_tiles(body, (7,))) == sum(j for i in range(7) for j in range(i))


def test_a_loop_of_known_length_hands_its_number_on() -> None:
    def body(x: Any, _: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        def outer(j: Any, total: Any) -> Any:
            return jax.lax.cond(j <= pl.program_id(0), lambda: total + multiplied(), lambda: total)

        y[...] = jax.lax.fori_loop(0, 5, outer, jnp.zeros_like(y))

    assert products(on_tiles(body, (7,))) == 1 + 2 + 3 + 4 + 3 * 5


def test_of_a_condition_that_branch_counts_which_the_place_chooses() -> None:
    def body(x: Any, numbers: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        @pl.when(pl.program_id(0) == 2)
        def _() -> None:
            y[...] = multiplied()

        @pl.when(numbers[pl.program_id(0)] == 2)
        def _() -> None:
            y[...] = multiplied()

    assert products(on_tiles(body, (7,))) == 1 + 7


def test_a_loop_whose_end_is_read_from_memory_counts_once() -> None:
    def body(x: Any, numbers: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        add_up(y, 0, numbers[pl.program_id(0)], multiplied)

    assert products(on_tiles(body, (7,))) == 7


def test_of_large_grids_places_are_looked_at_that_are_spread_over_all_dims() -> None:
    def body(x: Any, _: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        columns = pl.program_id(0) % 2 + pl.program_id(1)
        add_up(y, 0, columns, multiplied)

    grid = (2**14, 64)
    assert grid[0] * grid[1] > pallas_flops._MOST_POINTS
    exact = grid[0] * grid[1] * (0.5 + 31.5)
    assert products(on_tiles(body, grid)) == pytest.approx(exact, rel=1e-3)


def test_long_loops_of_equal_trips_are_counted_exactly() -> None:
    def body(x: Any, _: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        add_up(y, 0, pl.program_id(0) + 1, multiplied)

    assert products(on_tiles(body, (2048, 3))) == 3 * 2048 * 2049 / 2


# Attention


LENGTH, BLOCK, HEADS, WIDTH = 1024, 128, 2, 64


def gradient(is_causal: bool, batch: int = 2) -> tuple[Callable[..., Any], list[Any]]:
    """The gradient of attention, and its arguments."""
    given = jax.ShapeDtypeStruct((batch, LENGTH, HEADS, WIDTH), jnp.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later releases of JAX say so of it
        mha = pytest.importorskip("jax.experimental.pallas.ops.gpu.attention").mha

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(mha(q, k, v, None, causal=is_causal).astype(jnp.float32))

    return jax.grad(loss, (0, 1, 2)), [given] * 3


def attention(is_causal: bool, batch: int = 2) -> list[dict[str, Any]]:
    """Kernels of the attention and of its gradient: two of these."""
    function, given = gradient(is_causal, batch)
    return kernels(function, *given)


def test_causal_attention_reads_the_blocks_of_keys_before_its_queries() -> None:
    whole, causal = (
        [operations(each).matmul_flops for each in attention(it)] for it in (False, True)
    )
    product = 2 * 2 * HEADS * LENGTH**2 * WIDTH
    assert whole == [2 * product, 0, 7 * product]
    blocks, small = LENGTH // BLOCK, LENGTH // 32
    shares = (blocks + 1) / (2 * blocks), (small + 1) / (2 * small)
    assert causal == [2 * product * shares[0], 0, 7 * product * shares[1]]


def test_a_kernel_of_triton_waits_for_its_exponentials_and_other_operations() -> None:
    forward, _, backward = map(operations, attention(False))
    scores = 2 * HEADS * LENGTH**2
    # One for each score; a few for each row of each block beside.
    assert scores <= forward.exponentials <= scores * (1 + 2 / BLOCK)
    assert 2 * scores <= backward.exponentials <= 2.1 * scores
    # Scaled, masked by the largest so far, subtracted, added up and cast; sums of values.
    assert 5 * 2 * scores <= forward.vector_flops <= 10 * 2 * scores


def test_a_loop_of_products_and_exponentials_costs_both() -> None:
    def body(x: Any, _: Any, y: Any, multiplied: Callable[[], Any]) -> None:
        y[...] = jnp.exp(multiplied()).T + jnp.sum(x[...], axis=0)[None, :]

    params = on_tiles(body, (4, 3))
    places, tile = 12, TILE**2
    # Read, transposed and copied along costs nothing; a sum and a product's sum are operations.
    assert operations(params) == Operations(places * ONE, places * tile, places * 2 * 2 * tile)


def test_a_part_of_the_grid_does_that_part_of_the_work() -> None:
    for params, part in zip(attention(True, 6), attention(True, 2), strict=True):
        mapping = params["grid_mapping"]
        of_batch = next(n for n, size in enumerate(mapping.grid) if size == 6)
        grid = tuple(2 if n == of_batch else size for n, size in enumerate(mapping.grid))
        local = {**params, "grid_mapping": replace(mapping, grid=grid)}
        assert operations(local) == operations(params) * (1 / 3) == operations(part)


def test_kernels_have_the_arithmetic_of_their_products_not_of_statistics_in_float32() -> None:
    function, given = gradient(True)
    plan = autoshard.plan(function, *given, cluster="h100:1")
    module = parse_bytes(plan.bytecode, new_context(), "planned")
    with module.context:
        found = [work_of(op) for op in operations_of(module.operation) if is_kernel_call(op)]
    products = [each for each in found if each.work == Work.KERNEL]
    assert [each.arithmetic for each in products] == [Arithmetic.F16] * 2
    assert {"mha_forward", "mha_backward"} <= {op.name for op in plan.ops}
