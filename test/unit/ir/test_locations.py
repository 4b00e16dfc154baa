"""The line that a user can change is named of a call stack."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard

LIBRARY = """
import jax

def settle(x):
    return jax.lax.while_loop(lambda x: x.sum() < 10, lambda x: x + 1, x)
"""


def of_library(path: str) -> Any:
    """A function whose code lies at a path."""
    found: dict[str, Any] = {}
    exec(compile(LIBRARY, path, "exec"), found)
    return found["settle"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/usr/lib/python3/site-packages/solvers/loop.py", r"first at \S+test_locations\.py:\d+\."),
        ("/home/me/loop.py", r"first at /home/me/loop\.py:5:\d+\."),
    ],
)
def test_a_loop_of_a_library_is_named_by_the_users_line(path: str, said: str) -> None:
    settle = of_library(path)
    types = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    with pytest.warns(autoshard.errors.AutoshardWarning, match=rf"1 loop without .* is .* {said}"):
        autoshard.plan(lambda x: settle(x) + 1, types, cluster="cpu:2")


def test_where_only_libraries_are_known_the_line_that_plans_is_named() -> None:
    settle = of_library("/usr/lib/python3/site-packages/solvers/loop.py")
    types = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    said = r"first at /usr/\S+loop\.py:5:\d+ in what \S+test_locations\.py:\d+ plans\. Give"
    frames = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 1)  # of a deep stack the innermost alone
    try:
        with pytest.warns(autoshard.errors.AutoshardWarning, match=said):
            autoshard.plan(lambda x: settle(x) + 1, types, cluster="cpu:2")
    finally:
        jax.config.update("jax_traceback_in_locations_limit", frames)
