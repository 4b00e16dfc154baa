"""``autoshard explain`` reads every form of a plan, and errors have their place."""

from __future__ import annotations

import importlib
import json

import pytest
from explained_plans import layers_plan

from autoshard.cli import main as command
from autoshard.explain.record import Record


def run(*words: str) -> int:
    return command.main(list(map(str, words)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    plan = layers_plan()
    plan.save(folder / "saved.json")
    (folder / "record.json").write_text(plan.record.to_json())
    (folder / "planned.mlir").write_text(plan.to_mlir())
    return folder


def test_all_subcommands_are_modules_of_one_form():
    for name in command.SUBCOMMANDS:
        module = importlib.import_module(f"autoshard.cli.{name}")
        assert isinstance(module.DESCRIPTION, str)
        assert callable(module.add_arguments)
        assert callable(module.run)


@pytest.mark.parametrize("name", ["saved.json", "record.json", "planned.mlir"])
def test_every_form_of_a_plan_is_explained(files, name, capsys):
    assert run("explain", files / name) == 0
    text = capsys.readouterr().out
    assert "exposed communication" in text
    assert "bottleneck: " in text


def test_all_forms_have_the_same_record(files, capsys):
    found = []
    for name in ("saved.json", "record.json", "planned.mlir"):
        assert run("explain", files / name, "--format", "json") == 0
        read = json.loads(capsys.readouterr().out)
        found.append({**read, "name": "", "mode": ""})
    assert found[0] == found[1] == found[2]


def test_an_output_is_written(files, tmp_path, capsys):
    assert run("explain", files / "record.json", "--format", "md", "-o", tmp_path / "a.md") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "a.md").read_text().startswith("### step on mesh")


@pytest.mark.parametrize(
    ("form", "begins"), [("remarks", "step: remark: "), ("sarif", "{"), ("yaml", "--- !Passed")]
)
def test_remarks_are_written_in_every_form(files, form, begins, capsys):
    assert run("explain", files / "record.json", "--format", form) == 0
    text = capsys.readouterr().out
    assert text.startswith(begins)
    assert "explained_plans.py" in text


@pytest.mark.parametrize("name", ["saved.json", "planned.mlir"])
@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_a_frontier_is_shown_where_it_is_asked_for(files, name, form, capsys):
    assert run("explain", files / name, "--format", form, "--frontier") == 0
    assert "that no other beats in time and memory" in capsys.readouterr().out


def test_a_frontier_needs_a_program_and_a_format_that_shows_it(files, capsys):
    assert run("explain", files / "saved.json", "--format", "yaml", "--frontier") == 1
    assert "--format yaml has no frontier, only html, md, text have" in capsys.readouterr().err
    assert run("explain", files / "record.json", "--frontier") == 1
    assert "record.json again, which is no file of a program but a rec" in capsys.readouterr().err


def test_what_is_no_plan_is_refused(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert run("explain", tmp_path / "a.json") == 1
    assert "a.json: error: the record is damaged: 'collectives'" in capsys.readouterr().err
    (tmp_path / "a.mlir").write_text("func.func @main() { return }")
    assert run("explain", tmp_path / "a.mlir") == 1
    assert "error: the module has no plan. Plan it:" in capsys.readouterr().err


def test_a_plan_without_a_cluster_says_what_is_missing(tmp_path, capsys):
    record = Record("step", None, "dp=8", None, 8.0, "planned without a cluster")
    (tmp_path / "a.json").write_text(record.to_json())
    assert run("explain", tmp_path / "a.json") == 1
    assert "planned without a cluster" in capsys.readouterr().err


def test_without_a_subcommand_the_help_says_which_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        run()
    assert "COMMAND" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        run("--help")
    assert "explain" in capsys.readouterr().out
