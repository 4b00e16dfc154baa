"""Tests that are sampled by ``test/thorough.toml`` are there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT = tomllib.loads((ROOT / "test" / "thorough.toml").read_text())


@pytest.mark.parametrize("name", KEPT)
def test_a_sampled_test_is_there(name: str) -> None:
    path, _, test = name.partition("::")
    assert f"\ndef {test}(" in (ROOT / path).read_text()
