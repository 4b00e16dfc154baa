"""Pallas kernels that Triton compiles: what is derived of their blocks; parts are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

import autoshard
from autoshard.errors import AutoshardWarning
from autoshard.frontend.part_of_grid import call_of
from autoshard.frontend.triton_kernels import is_for_triton, proven_of_blocks
from autoshard.importer.kernels import ProvenKernel

Index = Callable[..., Any]
ROWS, COLUMNS = 8, 16


def call(
    body: Callable[..., None],
    grid: tuple[int, ...],
    blocks: Sequence[tuple[tuple[int | None, ...], Index]],
    shapes: Sequence[tuple[int, ...]],
    **options: Any,
) -> Callable[..., Any]:
    """A kernel; the last of the blocks and shapes are its result's."""
    options = {"compiler_params": triton.CompilerParams(), **options}
    specs = [pl.BlockSpec(block, index) for block, index in blocks]
    made = jax.ShapeDtypeStruct(shapes[-1], jnp.float32)
    return pl.pallas_call(
        body, grid=grid, in_specs=specs[:-1], out_specs=specs[-1], out_shape=made, **options
    )


def params_of(kernel: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> tuple[Any, Any]:
    """The primitive of a kernel's call, and its parameters."""
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes[:-1]]
    (equation,) = jax.make_jaxpr(kernel)(*structs).eqns
    return equation.primitive, equation.params


def proven(kernel: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> ProvenKernel | None:
    return proven_of_blocks(params_of(kernel, shapes)[1])


def cut_dims(found: ProvenKernel | None) -> dict[int, tuple[int, tuple[int | None, ...]]]:
    """By dim of the grid: places that stay together, and the dims of arrays that are cut."""
    return {cut.grid_dim: (cut.unit, cut.dims) for cut in (found.cuts if found else ())}


def double(x: Any, y: Any) -> None:
    y[...] = 2 * x[...]


def placed(x: Any, y: Any) -> None:
    y[...] = x[...] + pl.program_id(0)


TILE = (ROWS, COLUMNS)
WHOLE = (4 * ROWS, 2 * COLUMNS)


@pytest.mark.parametrize(
    ("body", "reads", "writes", "expected"),
    [
        (double, lambda i, j: (i, j), lambda i, j: (i, j), {0: (1, (0, 0)), 1: (1, (1, 1))}),
        (placed, lambda i, j: (i, j), lambda i, j: (i, j), {1: (1, (1, 1))}),
        (double, lambda i, j: (0, j), lambda i, j: (i, j), {1: (1, (1, 1))}),
        (double, lambda i, j: ((i + 1) % 4, j), lambda i, j: (i, j), {1: (1, (1, 1))}),
        (double, lambda i, j: ((i + j) % 4, 0), lambda i, j: (i, j), {}),
        (double, lambda i, j: (i, j), lambda i, j: (i, 0), {0: (1, (0, 0))}),
    ],
    ids=["blocks", "asks its place", "no operand", "moved", "two dims", "result free"],
)
def test_dims_of_the_grid_that_blocks_follow_alone_may_be_cut(
    body: Callable[..., None], reads: Index, writes: Index, expected: dict[int, Any]
) -> None:
    kernel = call(body, (4, 2), [(TILE, reads), (TILE, writes)], [WHOLE, WHOLE])
    assert cut_dims(proven(kernel, [WHOLE, WHOLE])) == expected


def test_heads_that_share_keys_stay_together() -> None:
    def body(q: Any, k: Any, o: Any) -> None:
        o[...] = q[...] * k[...]

    shapes = [(6, *TILE), (3, *TILE), (6, *TILE)]
    block = (None, *TILE)
    queries, keys = (block, lambda h: (h, 0, 0)), (block, lambda h: (h // 2, 0, 0))
    kernel = call(body, (6,), [queries, keys, queries], shapes)
    assert cut_dims(proven(kernel, shapes)) == {0: (2, (0, 0, 0))}


def test_blocks_that_do_not_fill_their_dim_are_not_cut() -> None:
    kernel = call(double, (4,), [(TILE, lambda i: (i, 0))] * 2, [(30, COLUMNS)] * 2)
    assert proven(kernel, [(30, COLUMNS)] * 2) is None


def test_programs_that_add_to_memory_of_others_are_not_cut() -> None:
    def body(x: Any, total: Any, y: Any) -> None:
        triton.atomic_add(total, (0, 0), x[0, 0])
        y[...] = x[...]

    shapes = [WHOLE, (1, 1), WHOLE]
    tile = (TILE, lambda i, j: (i, j))
    kernel = call(body, (4, 2), [tile, ((1, 1), lambda i, j: (0, 0)), tile], shapes)
    assert proven(kernel, shapes) is None


def test_a_result_over_an_operand_is_cut_as_that() -> None:
    blocks = [(TILE, lambda i, j: (0, j)), (TILE, lambda i, j: (i, j))]
    kernel = call(double, (4, 2), blocks, [WHOLE, WHOLE], input_output_aliases={0: 0})
    assert cut_dims(proven(kernel, [WHOLE, WHOLE])) == {1: (1, (1, 1))}


def random_kernel(random: np.random.Generator) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """Two operands and a result of two leading dims, which follow a grid of three dims somehow."""
    grid = tuple(int(n) for n in random.choice([2, 4, 6], 3))

    def along(dim: int, kind: str) -> tuple[Index, int]:
        other = (dim + 1) % 3
        return {
            "same": (lambda *g: g[dim], grid[dim]),
            "half": (lambda *g: g[dim] // 2, grid[dim] // 2),
            "free": (lambda *g: 0, 1),
            "back": (lambda *g: grid[dim] - 1 - g[dim], grid[dim]),
            "both": (lambda *g: (g[dim] + g[other]) % grid[dim], grid[dim]),
        }[kind]

    def array(kinds: Sequence[str]) -> tuple[tuple[tuple[int | None, ...], Index], tuple[int, ...]]:
        dims = random.permutation(3)[:2]
        chosen = [along(int(dim), str(random.choice(kinds))) for dim in dims]
        index = lambda *g: (*(each(*g) for each, _ in chosen), 0)  # noqa: E731
        return ((None, None, ROWS), index), (*(count for _, count in chosen), ROWS)

    operands = [array(["same", "same", "half", "free", "back", "both"]) for _ in range(2)]
    result = array(["same", "same", "half"])
    asked = int(random.integers(0, 6))

    def body(x: Any, y: Any, z: Any) -> None:
        place = pl.program_id(asked) if asked < 3 else 0
        z[...] = x[...] + 2 * y[...] + place

    blocks, shapes = zip(*operands, result, strict=True)
    return call(body, grid, blocks, shapes), list(shapes)


@pytest.mark.parametrize("seed", range(30))
def test_every_part_of_a_random_kernel_is_that_part_of_the_whole(seed: int) -> None:
    random = np.random.default_rng(seed)
    kernel, shapes = random_kernel(random)
    primitive, params = params_of(kernel, shapes)
    found = proven_of_blocks(params)
    if found is None:
        return
    given = [random.integers(-3, 4, shape).astype(np.float32) for shape in shapes[:-1]]
    run = call_of(primitive, {**params, "interpret": True}, found, 2).function
    (whole,) = run(*given)
    for cut in found.cuts:
        parts = params["grid_mapping"].grid[cut.grid_dim] // cut.unit

        def part(array: Any, dim: int | None, number: int, parts: int = parts) -> Any:
            return array if dim is None else np.split(np.asarray(array), parts, dim)[number]

        for number in range(parts):
            blocks = [part(a, d, number) for a, d in zip(given, cut.dims[:-1], strict=True)]
            (made,) = run(*blocks)
            np.testing.assert_array_equal(made, part(whole, cut.dims[-1], number))


def test_random_kernels_have_something_to_cut() -> None:
    kernels = [random_kernel(np.random.default_rng(seed)) for seed in range(30)]
    assert sum(proven(*each) is not None for each in kernels) > 4


# Costs and plans


def product(x: Any, y: Any, z: Any) -> None:
    def step(k: Any, total: Any) -> Any:
        columns = pl.ds(16 * k, 16)
        return total + x[:, columns] @ y[columns, :]

    z[...] = jax.lax.fori_loop(0, 4, step, jnp.zeros_like(z))


def matmul(**options: Any) -> Callable[..., Any]:
    """Rows and columns in blocks of 16, of 64 x 64 matrices."""
    blocks: list[tuple[tuple[int | None, ...], Index]] = [
        ((16, 64), lambda i, j: (i, 0)),
        ((64, 16), lambda i, j: (0, j)),
        ((16, 16), lambda i, j: (i, j)),
    ]
    return call(product, (4, 4), blocks, [(64, 64)] * 3, **options)


def test_only_kernels_for_gpus_are_for_triton() -> None:
    _, params = params_of(matmul(), [(64, 64)] * 3)
    assert is_for_triton("cuda", params)
    assert not is_for_triton("tpu", params)
    _, params = params_of(matmul(interpret=True), [(64, 64)] * 3)
    assert not is_for_triton("cuda", params)


def rows(x: Any) -> Any:
    tile = ((16, x.shape[1]), lambda i: (i, 0))
    kernel = call(double, (x.shape[0] // 16,), [tile, tile], [x.shape, x.shape])
    return jnp.tanh(kernel(x)).sum()


@pytest.mark.parametrize("form", ["shardy", "gspmd"])
def test_a_plan_runs_the_kernel_on_a_part_of_its_grid(form: str) -> None:
    plan = autoshard.plan(rows, jax.ShapeDtypeStruct((2**17, 1024), jnp.float32), cluster="h100:8")
    (kernel,) = [op for op in plan.ops if op.name == "double"]
    assert "gpu" in kernel.strategy
    text = str(plan.exported(f"autoshard-export-{form}"))
    assert f"grid_x = {2**17 // 16 // 8} : i32" in text


def test_a_kernel_of_which_nothing_is_known_is_whole_and_plans_say_what_it_costs() -> None:
    def step(x: Any) -> Any:
        return call(placed, (64, 1), [((16, 1024), lambda i, j: (i, 0))] * 2, [x.shape] * 2)(x)

    message = r"1 kernels run whole on every device, .* of .*, with 8 MiB of operands and results"
    with pytest.warns(AutoshardWarning, match=r"test_triton_kernels\.py:.*" + message):
        autoshard.plan(step, jax.ShapeDtypeStruct((1024, 1024), jnp.float32), cluster="h100:8")
