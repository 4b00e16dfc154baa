"""What docs/use/explain.md shows is what its program prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli import main as command
from autoshard.compilers.compiler import CompilerFile
from autoshard.explain.remarks_files import remarks_text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "use" / "explain.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def program() -> Any:
    """The names of the program once it has run."""
    (source,) = blocks("python")
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompilerFile, "installed", lambda self: "0.0.42")
        exec(compile(source, "mlp.py", "exec"), names)
    return names


def words(text: str) -> list[list[str]]:
    """Words of every line, without numbers of ops, which differ between releases of JAX."""
    lines = (line.split() for line in text.splitlines() if line.strip(" ─"))
    return [[word for word in line if not word.isdigit()] for line in lines]


def test_the_program_prints_what_the_page_says(program: Any) -> None:
    expected, printed = words(blocks("text")[0]), words(str(program["plan"].explain()))
    assert printed[: len(expected)] == expected
    assert printed[len(expected)] == ["Collectives,", "dearest", "first"]


def test_the_remarks_of_the_page_are_among_those_of_the_program(program: Any) -> None:
    found = remarks_text(program["plan"].explain().remarks).splitlines()
    shown = blocks("text")[1].splitlines()
    assert len(shown) == 3
    assert [line for line in shown if line not in found] == []


def test_commands_of_the_page_run(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    program["plan"].save("plan.json")
    (commands,) = blocks("sh")
    for line in commands.splitlines():
        name, *arguments = line.partition("#")[0].split()
        assert name == "autoshard"
        assert command.main(arguments) == 0
    assert "bottleneck" in capsys.readouterr().out
    assert (tmp_path / "plan.html").stat().st_size < 1e6
