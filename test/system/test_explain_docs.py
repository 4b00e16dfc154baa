"""What docs/use/explain.md shows is what its program prints.

    python test/system/test_explain_docs.py

writes that into the page, where the cost model has changed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest

from autoshard.cli import main as command
from autoshard.compilers.compiler import CompilerFile
from autoshard.explain.remarks_files import remarks_text

RELEASE = "0.10.2"
"""The release of JAX whose numbers the page has."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "use" / "explain.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run_program() -> dict[str, Any]:
    """The names of the program once it has run."""
    (source,) = blocks("python")
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompilerFile, "installed", lambda self: "0.0.42")
        exec(compile(source, "mlp.py", "exec"), names)
    return names


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    return run_program()


def shown_of(plan: Any) -> list[str]:
    """The blocks of text of the page: the headline, and a remark of each kind."""
    headline = str(plan.explain()).partition("\nCollectives, dearest first")[0]
    lines = [line.rstrip() for line in headline.splitlines()]
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    remarks = remarks_text(plan.explain().remarks).splitlines()
    kinds = (": passed: ", ": missed: ", ": analysis: ")
    return [
        "\n".join(kept).strip("\n") + "\n",
        "".join(next(line for line in remarks if kind in line) + "\n" for kind in kinds),
    ]


def words(text: str) -> list[list[Any]]:
    """Words of every line, without numbers of ops, which differ between releases of JAX."""
    lines = (line.split() for line in text.splitlines() if line.strip(" ─"))
    return [
        [
            _number(word)
            for word, behind in zip(line, [*line[1:], ""], strict=True)
            if not word.isdigit() or behind in ("ms", "us")
        ]
        for line in lines
    ]


def _number(word: str) -> Any:
    return float(word.rstrip("%")) if re.fullmatch(r"\d+(\.\d+)?%?", word) else word


def unnumbered(text: str) -> list[str]:
    """Lines without numbers; which of a step's two passes ops belong to is a matter of release."""
    lines = re.sub(r"\d+(\.\d+)?", "#", text).splitlines()
    return [re.sub(r"\((forward|backward)\)", "", line) for line in lines]


def test_the_program_prints_what_the_page_says(program: dict[str, Any]) -> None:
    (shown, _), (printed, _) = blocks("text"), shown_of(program["plan"])
    # Bytes and shares differ between releases, too, by some percent.
    apart = 0.0 if jax.__version__ == RELEASE else 0.06
    expected = [
        [
            pytest.approx(word, rel=apart, abs=0) if isinstance(word, float) else word
            for word in line
        ]
        for line in words(shown)
    ]
    assert words(printed) == expected


def test_the_remarks_of_the_page_are_among_those_of_the_program(program: dict[str, Any]) -> None:
    (_, shown), (_, printed) = blocks("text"), shown_of(program["plan"])
    if jax.__version__ == RELEASE:
        assert shown == printed
    else:
        remarks = remarks_text(program["plan"].explain().remarks)
        assert set(unnumbered(shown)) <= set(unnumbered(remarks))


def test_commands_of_the_page_run(
    program: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
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


if __name__ == "__main__":
    text = PAGE.read_text()
    for old, new in zip(blocks("text"), shown_of(run_program()["plan"]), strict=True):
        text = text.replace(old, new)
    PAGE.write_text(text)
