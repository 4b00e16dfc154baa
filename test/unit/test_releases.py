"""What is said of releases of JAX that autoshard does not know."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

import autoshard
from autoshard import releases


def installed(monkeypatch: Any, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)


def test_an_older_release_is_refused_with_what_to_install(monkeypatch: Any) -> None:
    installed(monkeypatch, "0.9.2")
    with pytest.raises(ImportError, match=r"needs jax 0\.10\.2 or newer, here is 0\.9\.2.*pip ins"):
        releases.check_release()


def test_a_newer_release_is_warned_of(monkeypatch: Any) -> None:
    installed(monkeypatch, "0.14.0.dev20270101")
    with pytest.warns(autoshard.AutoshardWarning, match=r"jax 0\.14\.0 is newer .* 0\.12"):
        releases.check_release()


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.12.0.1", "0.12.5"])
def test_tested_releases_say_nothing(monkeypatch: Any, version: str) -> None:
    installed(monkeypatch, version)
    releases.check_release()


def test_no_jax_at_all_is_said(monkeypatch: Any) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match="autoshard needs jax"):
        releases.check_release()


def test_a_part_that_has_moved_is_named(monkeypatch: Any) -> None:
    installed(monkeypatch, "0.14.0")

    def moved(_: str) -> Any:
        raise ImportError("cannot import name 'pjit'", name="jax._src.pjit")

    monkeypatch.setattr(autoshard.importlib, "import_module", moved)
    monkeypatch.setattr(autoshard, "_check_release", lambda: None)
    with pytest.raises(ImportError, match=r"jax 0\.14\.0 does not have .*jax\._src\.pjit.*<0\.13'"):
        _ = autoshard.plan
