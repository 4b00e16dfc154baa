"""The page docs/use/why.md says what its program prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli import diff, frontier, sweep, why
from autoshard.compilers.compiler import CompilerFile

PAGE = Path(__file__).resolve().parents[2] / "docs" / "use" / "why.md"

BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


def test_every_block_prints_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompilerFile, "installed", lambda self: "0.0.42")
    names: dict[str, Any] = {}
    compared = 0
    printed = ""
    for language, text in BLOCK.findall(PAGE.read_text()):
        if language == "python":
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(text, "mlp.py", "exec"), names)
            printed = said.getvalue()
        else:
            assert lines(printed) == lines(text)
            compared += 1
    assert compared == 6


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_options_of_the_commands_on_the_page_are_there() -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    modules = {"diff": diff, "why": why, "frontier": frontier, "sweep": sweep}
    for command in commands.splitlines():
        name = command.split()[1]
        said = Path(modules[name].__file__ or "").read_text()
        for option in re.findall(r"--[a-z-]+", command):
            assert f'"{option}"' in said
