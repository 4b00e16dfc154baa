"""What fusions read, beside the elements of each operand that their results depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib import _hlo  # pyright: ignore[reportMissingModuleSource, reportAttributeAccessIssue]

from autoshard.verify.fusion_reads import fusion_reads
from autoshard.verify.hlo_program import HloProgram

_hlo_any: Any = _hlo
X = (8, 6, 4)


def read_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[list[float], float]:
    """Elements of each operand that are read, and the share that is computed."""
    specs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    lowered: Any = jax.jit(function, keep_unused=True).lower(*specs).compiler_ir("hlo")
    text = lowered.as_hlo_module().to_string(_hlo_any.HloPrintOptions())
    program = HloProgram.parse(text)
    (entry,) = (each for each in program.computations.values() if each.is_entry)
    reads = fusion_reads(entry)
    return [reads.operand_bytes.get(k, 4 * np.prod(s)) / 4 for k, s in enumerate(shapes)], (
        reads.computed
    )


def needed_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[int]:
    """Elements of each operand that the results depend on."""
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(1, 2, shape) for shape in shapes]

    def total(*arguments: Any) -> Any:
        results = function(*arguments)
        rows = enumerate(jax.tree.leaves(results))
        return sum(jnp.sum(row * jnp.asarray(rng.uniform(1, 2, row.shape))) for _, row in rows)

    gradients = jax.grad(total, tuple(range(len(shapes))))(*arguments)
    return [int(np.count_nonzero(gradient)) for gradient in gradients]


EXACT: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "slice of a sum": (lambda x, y: (x * y + x)[2:5, :, 1:2], (X, X)),
    "slice of a slice": (lambda x: (x * 2)[1:7, 2:6][2:4] * 3, (X,)),
    "slice of a product with a row": (lambda x, row: (x * row)[:, :, 1:3], (X, (4,))),
    "part of one that is joined": (
        lambda x, y: (jnp.concatenate([x, y], 2) * 2)[:, :, 1:6],
        (X, X),
    ),
    "one that is joined and not needed": (
        lambda x, y: (jnp.concatenate([x, y], 1) * 2)[:, :6] + y[0, 0, 0],
        (X, X),
    ),
    "transposed": (lambda x: (jnp.transpose(x, (2, 0, 1)) * 2)[1:3, 4:5], (X,)),
    "sum of rows": (lambda x: jnp.sum(x * x, 1)[3:5, 2:3], (X,)),
    "padded": (lambda x: (jax.lax.pad(x, 0.0, ((1, 2, 0), (0, 0, 0), (0, 0, 0))) * 2)[3:6], (X,)),
    "flat rows": (lambda x: (jnp.reshape(x, (48, 4)) * 2)[12:24, 1:2], (X,)),
    "rows of what was flat": (lambda x: (jnp.reshape(x, X) * 2)[2:4, :, :3], ((48, 4),)),
    "a part of a row": (lambda x: (jnp.reshape(x, (8, 3, 2, 4)) * 2)[:, :, :, 1:2], (X,)),
    "each device's part": (
        lambda x: jax.lax.dynamic_slice(x * 2 + 1, (3, 0, 0), (2, 6, 4))[:, 1:3],
        (X,),
    ),
    "two slices of one": (lambda x: ((x * 2)[0:2], (x * 2)[1:4]), (X,)),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_is_read_is_what_results_depend_on(name: str) -> None:
    function, shapes = EXACT[name]
    read, computed = read_of(function, *shapes)
    needed = needed_of(function, *shapes)
    if name == "one that is joined and not needed":
        # The scalar's element and none of the joined part.
        assert read == [float(needed[0]), 1.0]
    else:
        assert read == [float(count) for count in needed]
    assert computed < 1


def test_without_slices_everything_is_read() -> None:
    assert read_of(lambda x, y: jnp.concatenate([x, y]) * 2, X, X) == ([192.0, 192.0], 1.0)


def test_two_places_that_only_devices_know_are_the_whole() -> None:
    def both(x: Any, i: Any, j: Any) -> Any:
        x = x * 2
        return [jax.lax.dynamic_slice(x, (k.astype(int), 0, 0), (2, 6, 4)) for k in (i, j)]

    assert read_of(both, X, (), ())[0][0] == 192.0


@pytest.mark.parametrize(("rows", "read"), [(3, 3 * 6 * 4), (20, 8 * 6 * 4)])
def test_a_gather_computes_what_it_takes(rows: int, read: int) -> None:
    numbers = jax.lax.GatherDimensionNumbers((1, 2), (0,), (0,))

    def taken(x: Any, i: Any) -> Any:
        return jax.lax.gather(x * 2, i.astype(int), numbers, (1, 6, 4))

    assert read_of(taken, X, (rows, 1))[0][0] == read


@pytest.mark.parametrize(("tables", "rows", "read"), [(1, 3, 72), (1, 20, 480), (2, 3, 144)])
def test_rows_of_a_table_are_read_as_often_as_they_are_taken(
    tables: int, rows: int, read: int
) -> None:
    numbers = jax.lax.GatherDimensionNumbers((1, 2), (0,), (0,))

    def taken(x: Any, *indices: Any) -> Any:
        found = [jax.lax.gather(x, jnp.abs(i).astype(int), numbers, (1, 6, 4)) for i in indices]
        return sum(found) * 2

    assert read_of(taken, X, *[(rows, 1)] * tables)[0][0] == read


def test_one_of_each_row_is_read_where_a_gather_takes_one() -> None:
    numbers = jax.lax.GatherDimensionNumbers((), (0, 1, 2), (0, 1, 2))

    def taken(x: Any, i: Any) -> Any:
        return jax.lax.gather(jnp.abs(x), i.astype(int), numbers, (1, 1, 1))

    assert read_of(taken, X, (48, 3))[0][0] == 48


STEPS: list[Callable[[Any, np.random.Generator], Any]] = [
    lambda x, rng: x * 2,
    lambda x, rng: jnp.flip(x, 0) + 1,
    lambda x, rng: jnp.transpose(x, rng.permutation(x.ndim)),
    lambda x, rng: jnp.reshape(x, (-1, x.shape[-1])),
    lambda x, rng: jnp.reshape(x, x.size),
    lambda x, rng: jax.lax.pad(x, x.dtype.type(0), [(1, 0, 0)] * x.ndim),
    lambda x, rng: jnp.concatenate([x, x * 3], int(rng.integers(x.ndim))),
    lambda x, rng: jnp.sum(x, int(rng.integers(x.ndim))) if x.ndim > 1 else x,
    lambda x, rng: x[tuple(slice(n // 3, n // 3 + int(rng.integers(1, n + 1))) for n in x.shape)],
]


@pytest.mark.parametrize("seed", range(40))
def test_random_chains_read_all_that_is_needed(seed: int) -> None:
    def chain(x: Any) -> Any:
        rng = np.random.default_rng(seed)
        for step in rng.integers(len(STEPS), size=8):
            x = STEPS[step](x, rng)
        return x

    (read,), _ = read_of(chain, X)
    (needed,) = needed_of(chain, X)
    assert needed <= read <= 192
