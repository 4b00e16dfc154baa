"""The pages of libraries run as written, and what is planned is what the library computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "libraries"
NEEDS = {
    "equinox": ("equinox", "optax"),
    "flax_linen": ("flax", "optax"),
    "flax_nnx": ("flax", "optax"),
    "haiku": ("haiku", "optax"),
    "keras": ("keras",),
    "numpyro": ("numpyro",),
    "optax": ("optax",),
    "orbax": ("orbax.checkpoint",),
}
"""What the page of each name imports."""


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_page_plans_is_what_it_computes_without(name: str) -> None:
    for module in NEEDS[name]:
        pytest.importorskip(module)
    page = PAGES / f"{name}.md"
    names: dict[str, Any] = {"__name__": name}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    planned = jax.tree.leaves(names["planned"])
    for one, other in zip(planned, jax.tree.leaves(names["plain"]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    arrays = [one for one in planned if isinstance(one, jax.Array)]
    assert all(len(one.sharding.device_set) > 1 for one in arrays)
    if "distributed" in names:
        np.testing.assert_allclose(names["distributed"], names["plain"], rtol=1e-4)


def test_each_page_is_run() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(NEEDS)
