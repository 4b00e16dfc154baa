"""Views that split or join rows and columns of matrices within tiles (tile_padding.h)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from compiler_answers import GPU, TPU
from test_program_memory import EMPTY, read


def relative_shift(x: Any) -> Any:
    """Scores by distance become scores by position, as in Transformer-XL."""
    shifted = x.reshape(4, x.shape[2], -1)[:, 1:].reshape(4, x.shape[1], -1)
    return shifted[:, :, : x.shape[1]]


def by_distance(q: Any, r: Any, k: Any) -> Any:
    return relative_shift(q @ r) + q @ k


def by_pixels(q: Any, k: Any, rows: Any) -> Any:
    """A bias of the rows of images, as in SAM."""
    scores = (q @ k).reshape(4, 64, 64, 64, 64) + rows[..., None]
    return jnp.sin(scores.reshape(4, 4096, 4096))


def by_blocks(q: Any, k: Any) -> Any:
    """Columns end with whole tiles."""
    return jnp.sin((q @ k).reshape(4, 512, 4, 128)).reshape(4, 512, 512)


def by_heads(x: Any) -> Any:
    """So do rows, if positions are columns."""
    heads = jnp.sin(x).reshape(4, 512, 3, 8).transpose(0, 2, 1, 3)
    return jnp.einsum("bhik,bhjk->bhij", heads, heads)


SHIFTED = ((4, 256, 64), (4, 64, 512), (4, 64, 256))
PIXELS = ((4, 4096, 64), (4, 64, 4096), (4, 64, 64, 64))
BLOCKS = ((4, 512, 64), (4, 64, 512))


@pytest.mark.parametrize(
    ("function", "shapes", "copies"),
    [
        (by_distance, SHIFTED, True),
        (by_blocks, BLOCKS, False),
        (by_heads, ((4, 512, 24),), False),
    ],
    ids=["distances", "blocks", "heads"],
)
def test_a_view_is_a_copy_unless_dims_end_with_whole_tiles(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], copies: bool
) -> None:
    for compiler, is_copy in ((TPU, copies), (GPU, False)):
        found = read(function, *shapes, compiler=compiler)
        assert (found.life("reshape") != EMPTY) == is_copy


def test_what_lies_between_takes_padded_tiles() -> None:
    elements = 4 * 64**4
    sizes = [
        max(round(size) for _, size in read(by_pixels, *PIXELS, compiler=compiler).peak()[2])
        for compiler in (TPU, {**TPU, "layout.tile_columns": 0})
    ]
    assert sizes == [2 * elements * 4, elements * 4]
