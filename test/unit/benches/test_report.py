"""Tables in the pages are those of bench/results, and benches write such files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
from rich.table import Table

from bench import report
from bench.common import results

ABOUT = "# command: python bench/some.py\n# date: 2026-11-23\n# versions: jaxlib 0.10.2\n"
FILE = f"{ABOUT}# machine: two cores\nprogram,kind,ms\na,left,1234.5\nb,left,\nb,right,7\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "some.csv").write_text(FILE)
    return tmp_path


def at(what: str, between: str = "") -> str:
    return f"before\n\n<!-- results: {what} -->\n{between}<!-- /results -->\n\nbehind\n"


PAGES = sorted(report.DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_a_page_is_what_the_results_say(path: Path) -> None:
    assert report.page(path.read_text()) == path.read_text(), "run python bench/report.py"


def test_every_file_of_results_is_on_a_page() -> None:
    text = "\n".join(path.read_text() for path in PAGES)
    unused = [
        path.stem
        for path in results.FOLDER.glob("*.csv")
        if f"<!-- results: {path.stem} -->" not in text
        and f"<!-- results: {path.stem};" not in text
    ]
    assert unused == []


def test_a_table_has_separators_and_says_where_it_comes_from(folder: Path) -> None:
    made = report.page(at("some"), folder)
    assert "| program | kind | ms |\n|---|---|---:|\n| a | left | 1,234.5 |\n" in made
    assert "*`python bench/some.py`; jaxlib 0.10.2; two cores; 2026-11-23*" in made


def test_a_page_that_is_written_again_stays(folder: Path) -> None:
    twice = at("some; kind=left; quiet") + at("some")
    made = report.page(twice, folder)
    assert report.page(made, folder) == made
    assert made.count("<!-- /results -->") == 2


def test_rows_and_columns_are_chosen(folder: Path) -> None:
    made = report.page(at("some; kind=left; without program, absent; quiet"), folder)
    assert made == at("some; kind=left; without program, absent; quiet").replace(
        "quiet -->\n", "quiet -->\n\n| ms |\n|---:|\n| 1,234.5 |\n|  |\n\n"
    )
    assert "| b | right | 7 |" in report.page(at("some; kind=left|right"), folder)


def test_what_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no other\.csv"):
        report.page(at("other"), folder)
    with pytest.raises(ValueError, match=r"no column 'size', only program, kind, ms"):
        report.page(at("some; size=1"), folder)
    with pytest.raises(ValueError, match="has no rows of some; kind=up"):
        report.page(at("some; kind=up"), folder)


def test_a_file_has_to_say_where_it_comes_from(folder: Path) -> None:
    (folder / "bare.csv").write_text("# command: python x.py\nprogram\na\n")
    with pytest.raises(ValueError, match=r"bare\.csv does not say its date, versions, machine"):
        results.read(folder / "bare.csv")


def test_a_bench_writes_its_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "new.csv"
    script = str(results.FOLDER.parent / "truth" / "storage.py")
    monkeypatch.setattr(sys, "argv", [script, "mlp adam", "--csv", str(file)])
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    results.add_option(parser, "new")
    table = Table("program", "MiB")
    table.add_row("mlp adam", "[dim]1,234.0[/dim]")
    results.write(parser.parse_args().csv, table)
    found = results.read(file)
    assert found.about["command"] == "python bench/truth/storage.py 'mlp adam'"
    assert "jaxlib" in found.about["versions"]
    assert (found.heads, found.rows) == (("program", "MiB"), (("mlp adam", "1234.0"),))
    results.write(None, table)
    with pytest.raises(ValueError, match=r"two columns of new.csv have one name: ms, ms"):
        results.write_rows(file, ["ms", "ms"], [])
