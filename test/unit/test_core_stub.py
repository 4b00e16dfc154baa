"""The stub of the core that is checked in is the one that the build makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard import _core

CHECKED_IN = Path(__file__).resolve().parents[2] / "python" / "autoshard" / "_core.pyi"


def test_the_stub_that_is_checked_in_is_that_of_the_build() -> None:
    built = Path(_core.__file__).parent / "_core.pyi"
    if not CHECKED_IN.exists() or not built.exists():
        pytest.skip("no checkout of the sources, or a core that was built without its stub")
    assert built.read_text() == CHECKED_IN.read_text(), (
        f"the core has changed: copy {built} to {CHECKED_IN}"
    )
