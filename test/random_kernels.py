"""Random Pallas kernels, which can be run whole or on a part of their grid.

Every array has blocks of 8 x 128 behind its leading dims, which follow the grid. Numbers are small
integers, so that sums are exact in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TILE = (8, 128)
TABLE = 4
Index = Callable[[Sequence[Any], Any], Any]
"""An integer from the place in the grid and the table."""


@dataclass(frozen=True)
class Along:
    """How one leading dim of an array follows the grid."""

    index: Index
    """The block's index from the place in the grid and the table."""
    blocks: int
    block: int


@dataclass(frozen=True)
class RandomKernel:
    """A kernel with a table, some operands and one result."""

    grid: tuple[int, ...]
    semantics: tuple[str, ...]
    operands: tuple[tuple[Along, ...], ...]
    result: tuple[Along, ...]
    value: Index
    """What the body adds to each block."""
    starts: Callable[[Sequence[Any]], Any]
    """Whether the sum is begun anew at this place."""
    table: np.ndarray

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all operands, and of the result."""
        return [
            (*(each.block * each.blocks for each in array), *TILE)
            for array in (*self.operands, self.result)
        ]

    def arguments(self, random: np.random.Generator) -> list[np.ndarray]:
        """Arrays for the operands behind the table."""
        return [random.integers(-3, 4, s).astype(np.float32) for s in self.shapes()[:-1]]

    def call(
        self,
        arguments: Sequence[Any],
        grid: tuple[int, ...] | None = None,
        result: tuple[int, ...] | None = None,
        table: np.ndarray | None = None,
        *,
        interpret: bool = False,
    ) -> Any:
        """The result, whole or of a part of the grid."""
        grid = grid or self.grid
        rank = len(grid)

        def body(table: Any, *refs: Any) -> None:
            *inputs, out, total = refs
            place = [pl.program_id(dim) for dim in range(rank)]

            @pl.when(self.starts(place))
            def _() -> None:
                total[...] = jnp.zeros(TILE, jnp.float32)

            added = self.value(place, table)
            for ref in inputs:
                added = added + ref[...].reshape((-1, *TILE)).sum(0)
            total[...] += added
            out[...] = jnp.broadcast_to(total[...], out.shape)

        def spec(array: tuple[Along, ...]) -> Any:
            def index(*place_and_table: Any) -> Any:
                *place, table = place_and_table
                return (*(each.index(place, table) for each in array), 0, 0)

            return pl.BlockSpec((*(each.block for each in array), *TILE), index)

        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(result or self.shapes()[-1], jnp.float32),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=grid,
                in_specs=[spec(array) for array in self.operands],
                out_specs=spec(self.result),
                scratch_shapes=[pltpu.VMEM(TILE, jnp.float32)],
            ),
            compiler_params=pltpu.CompilerParams(dimension_semantics=self.semantics),
            interpret=interpret,
        )(self.table if table is None else table, *arguments)


def random_kernel(random: np.random.Generator) -> RandomKernel:
    """One whose last dims of the grid are summed over, if any, and the others are written."""
    rank = int(random.integers(1, 5))
    grid = tuple(int(random.choice([1, 2, 4, 6])) for _ in range(rank))
    summed = set(range(int(random.integers(0, rank)), rank)) if random.random() < 0.6 else set()
    grouped = int(random.integers(0, rank)) if random.random() < 0.3 else None
    if grouped is not None and (grouped in summed or grid[grouped] % 2):
        grouped = None
    written = [dim for dim in range(rank) if dim not in summed]
    order = list(random.permutation(written)) if random.random() < 0.3 else written
    result = tuple(_along(int(dim), grid, 2 if dim == grouped else 1, random) for dim in order)
    operands = tuple(
        tuple(
            _random_along(int(dim), grid, random)
            for dim in random.permutation(rank)[: int(random.integers(1, 4))]
        )
        for _ in range(int(random.integers(1, 3)))
    )
    inner = sorted(summed)
    is_wrong = random.random() < 0.15

    def starts(place: Sequence[Any]) -> Any:
        at_start = jnp.bool_(True)
        for dim in inner[:-1] if is_wrong else inner:
            at_start = at_start & (place[dim] == 0)
        return at_start & (place[grouped] % 2 == 0) if grouped is not None else at_start

    states = summed | ({grouped} if grouped is not None else set())
    may_be_parallel = not is_wrong and grouped is None
    semantics = tuple(
        "parallel" if may_be_parallel and d not in states and random.random() < 0.5 else "arbitrary"
        for d in range(rank)
    )
    # Dims of which one is parallel stand before those that are not.
    last = max((d for d, s in enumerate(semantics) if s == "parallel"), default=-1)
    semantics = tuple("parallel" if may_be_parallel and d <= last and d not in states else s
                      for d, s in enumerate(semantics))  # fmt: skip
    return RandomKernel(
        grid, semantics, operands, result, _random_value(grid, random), starts,
        np.asarray(random.integers(0, 2, TABLE), np.int32),
    )  # fmt: skip


def _along(dim: int, grid: tuple[int, ...], divisor: int, random: np.random.Generator) -> Along:
    block = int(random.choice([1, 1, 2]))
    return Along(lambda place, _: place[dim] // divisor, grid[dim] // divisor, block)


def _random_along(dim: int, grid: tuple[int, ...], random: np.random.Generator) -> Along:
    other = int(random.integers(0, len(grid)))
    dim = other if random.random() < 0.05 else dim
    block = int(random.choice([1, 1, 2]))
    match int(random.integers(0, 30)):
        case 0:
            return Along(lambda *_: 0, 1, block)
        case 1 if grid[dim] % 2 == 0:
            return Along(lambda place, _: jax.lax.div(place[dim], 2), grid[dim] // 2, block)
        case 2 if grid[dim] % 2 == 0:
            return Along(lambda place, _: place[dim] // 2, grid[dim] // 2, block)
        case 3:
            return Along(lambda place, _: grid[dim] - 1 - place[dim], grid[dim], block)
        case 4:
            return Along(lambda place, table: table[place[dim] % TABLE], 2, block)
        case 5:
            return Along(lambda place, _: jnp.minimum(place[dim], place[other]), grid[dim], block)
        case 6:
            return Along(lambda place, _: place[dim] % 2, 2, block)
        case 8 | 9 if grid[dim] == TABLE:
            return Along(lambda place, table: table[place[dim]], 2, block)
        case 10 if grid[dim] == TABLE // 2:
            return Along(lambda place, table: table[2 * place[dim]], 2, block)
        case 7:
            return Along(lambda place, _: place[dim], grid[dim] + 1, block)
        case _:
            return Along(lambda place, _: place[dim], grid[dim], block)


def _random_value(grid: tuple[int, ...], random: np.random.Generator) -> Index:
    dim = int(random.integers(0, len(grid)))
    match int(random.integers(0, 14)):
        case 0:
            return lambda place, _: place[dim].astype(jnp.float32)
        case 1:
            return lambda place, _: (place[dim] % 2).astype(jnp.float32)
        case 2:
            return lambda place, _: jnp.where(place[dim] == grid[dim] - 1, 2.0, 0.0)
        case 3 | 4 if grid[dim] == TABLE:
            return lambda place, table: table[place[dim]].astype(jnp.float32)
        case 5 if grid[dim] == 2 * TABLE - 2:
            return lambda place, table: table[jnp.minimum(place[dim], 3)].astype(jnp.float32)
        case _:
            return lambda *_: jnp.float32(1.0)
