"""What a process that ran a program in two forms left, and what that says."""

import json
import signal

import pytest

from autoshard.verify.check import run


@pytest.mark.parametrize(
    ("stage", "code", "log", "is_of_plan", "says"),
    [
        ("running the split program", -signal.SIGALRM, "", True, "does not end."),
        (
            "compiling the split program",
            -signal.SIGABRT,
            "F1: Check failed: a == b",
            True,
            "a == b",
        ),
        (
            "compiling the program",
            -signal.SIGABRT,
            "F1: Check failed: a == b",
            False,
            "CPU can run",
        ),
        ("compiling the split program", -signal.SIGKILL, "", False, "more memory"),
        ("running the split program", 1, "MemoryError", False, "more memory"),
        ("running the split program", 1, "KeyError: 'x'", False, "KeyError"),
        ("running the split program", None, "", False, "Give it more"),
    ],
)
def test_what_ends_a_process_is_a_finding_only_where_the_split_program_does(
    tmp_path, stage, code, log, is_of_plan, says
):
    (tmp_path / "stage").write_text(stage)
    (tmp_path / "log").write_text(log)
    found = run._read(tmp_path, code, [])
    assert isinstance(found, run.Failure)
    assert found.is_of_plan == is_of_plan
    assert says in found.text


def test_what_xla_refuses_is_a_finding(tmp_path):
    (tmp_path / "stage").write_text("compiling the split program")
    (tmp_path / "result.json").write_text(json.dumps({"refusal": "UNIMPLEMENTED: no such call"}))
    found = run._read(tmp_path, 0, [])
    assert isinstance(found, run.Failure)
    assert found.is_of_plan
    assert found.text == "compiling the split program failed: UNIMPLEMENTED: no such call"
