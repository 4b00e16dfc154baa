"""The page docs/use/why.md says what its program prints, and its commands run.

``python test/system/test_why_page.py`` writes what it prints into the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from typing import Any

import jax
import pytest

from autoshard.cli.main import main
from autoshard.compilers.compiler import CompilerFile

RELEASE = "0.10.2"
"""The release of JAX whose numbers the page has."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "use" / "why.md"

BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def page() -> tuple[dict[str, Any], list[tuple[str, str]]]:
    return run_page()


def run_page() -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Names of the program of the page, and what it prints beside what the page says."""
    names: dict[str, Any] = {}
    compared: list[tuple[str, str]] = []
    printed = ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompilerFile, "installed", lambda self: "0.0.42")
        for language, text in BLOCK.findall(PAGE.read_text()):
            if language == "python":
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    exec(compile(text, "mlp.py", "exec"), names)
                printed = said.getvalue()
            else:
                compared.append((printed, text))
    return names, compared


def test_every_block_prints_what_the_page_says(page: Any) -> None:
    _, compared = page
    for printed, text in compared:
        if jax.__version__ == RELEASE:
            assert lines(printed) == lines(text)
        else:
            assert set(beginnings(text)) <= set(beginnings(printed))
    assert len(compared) == 7


def beginnings(text: str) -> list[str]:
    """First words of lines: ops, sizes, seconds and how many rows are a matter of release."""
    return [word for line in lines(text) if not (word := line.split()[0]).isdigit()]


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_commands_of_the_page_run(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Each is answered; ``diff`` and ``sweep`` may say by 2 that a limit is broken."""
    names, _ = page
    for file, plan in (("before", "plan"), ("after", "roomy"), ("plan", "plan")):
        names[plan].save(tmp_path / f"{file}.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for command in commands.splitlines():
        name, *arguments = shlex.split(os.path.expandvars(command))
        assert name == "autoshard"
        allowed = (0, 2) if arguments[0] in ("diff", "sweep") else (0,)
        assert main(arguments) in allowed, command
    assert "no other beats in time and memory" in capsys.readouterr().out
    assert "<h2>Frontier</h2>" in (tmp_path / "plan.html").read_text()
    assert (tmp_path / "summary.md").stat().st_size > 0


def write_page() -> None:
    """Writes into the page what its program prints."""
    found = iter(run_page()[1])

    def block(match: re.Match[str]) -> str:
        if match[1] == "python":
            return match[0]
        return "\n".join(["```text", *lines(next(found)[0]), "```"])

    PAGE.write_text(BLOCK.sub(block, PAGE.read_text()))


if __name__ == "__main__":
    write_page()
