"""``autoshard doctor`` says what works and what is missing."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from autoshard.cli.main import main
from autoshard.errors import CompileError
from autoshard.frontend.plan import Plan


def test_it_lists_what_is_installed_and_compiles_for_each_kind_of_chip(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(plan: Plan, *, timeout: float) -> None:
        if plan.cluster != "cpu:2":
            raise CompileError(f"no compiler in {timeout} s.", reason="not installed")

    monkeypatch.setattr(Plan, "verify", verify)
    assert main(["doctor", "--timeout", "7"]) == 0
    told = capsys.readouterr().out
    assert re.search(rf"^jax +{importlib.metadata.version('jax')}$", told, re.MULTILINE)
    assert re.search(r"^cluster here +cpu:\d+, [\d.]+ GiB", told, re.MULTILINE)
    assert re.search(r"^compiler of CPUs +works: cpu:2", told, re.MULTILINE)
    assert "TPUs     does not work for v5e:2x2: no compiler in 7.0 s. Install libtpu." in told


def test_it_fails_where_nothing_can_be_compiled_for_the_devices_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(plan: Plan, *, timeout: float) -> None:
        raise CompileError("it ended.", reason="ended")

    monkeypatch.setattr(Plan, "verify", verify)
    assert main(["doctor"]) == 1
    assert "CPUs     does not work for cpu:2: it ended." in capsys.readouterr().out
