"""Random programs under random plans give what the unsharded run gives; see ``test/fuzz``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.micro_batches import micro_batch_outcome, random_micro_batch_case
from fuzz.minimise import random_case, report
from fuzz.outcomes import ABORT, BROKEN, EQUAL, FINDINGS, HANG, REFUSED, TRACEBACK, WRONG
from fuzz.programs import Argument, Instruction, Kind, Program
from fuzz.run import run_cases, summary
from fuzz.workers import Process

PROGRAMS = 6
IN_MICRO_BATCHES = 8
JOBS = 2
LIMIT_SECONDS = 120.0
"""For one case; on a busy machine some take ten."""
MINIMISED = 3
"""So many findings are made small; the rest is listed."""
PAST = sorted(Path(__file__).parent.parent.joinpath("fuzz", "past").glob("[a-z]*.py"))


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    with Process(LIMIT_SECONDS) as process:
        yield process


@pytest.mark.parametrize("first", range(0, 4 * PROGRAMS, PROGRAMS))
def test_random_programs_under_random_plans_are_right(first: int) -> None:
    seeds = range(first, first + PROGRAMS)
    lines = list(run_cases([(seed, 0) for seed in seeds], JOBS, LIMIT_SECONDS))
    findings = [line for line in lines if line["result"] in FINDINGS]
    reports = [f"seed {line['seed']}: {line['result']}: {line['detail']}" for line in findings]
    with Process(LIMIT_SECONDS) as process:
        for line in findings[:MINIMISED]:
            case = random_case(line["seed"], line["plan"])
            reports.append(report(case, process, seconds=100))
    assert not findings, "\n\n".join([summary(lines), *reports])
    # A harness whose programs do not run, or are not cut, would pass as well.
    assert not [line["detail"] for line in lines if line["result"] == BROKEN]
    assert sum(line["result"] == EQUAL and line["is_cut"] for line in lines) > PROGRAMS / 3


def test_random_programs_in_micro_batches_are_refused_or_the_same() -> None:
    cases = [case for seed in range(IN_MICRO_BATCHES) if (case := random_micro_batch_case(seed))]
    results = {case.seed: micro_batch_outcome(case) for case in cases}
    assert not {seed: each for seed, each in results.items() if each[0] in (*FINDINGS, BROKEN)}
    assert sum(result == EQUAL for result, _ in results.values()) >= IN_MICRO_BATCHES / 3


@pytest.mark.parametrize("path", PAST, ids=lambda path: path.stem)
def test_what_was_wrong_once_is_right_or_refused(path: Path, process: Process) -> None:
    case: Case = importlib.import_module(f"fuzz.past.{path.stem}").CASE
    answer = process.ask_for(case)
    assert answer["result"] in (EQUAL, REFUSED), answer["detail"]


def faulty(fault: str) -> Case:
    """A sum, then an instruction that goes wrong in the sharded run only, then a product."""
    kind = Kind((8, 8), "float32")
    program = Program(
        (Argument("a", kind), Argument("b", kind)),
        (
            Instruction(("c",), "{0} + {1}", ("a", "b")),
            Instruction(("d",), f"{{0}} + {fault}", ("c",)),
            Instruction(("e",), "{0} * 2", ("d",)),
        ),
        ("e", "c"),
        {name: kind for name in "abcde"},
    )
    return Case(program, Configuration("pinned", {"mesh": "'d=8'"}, ("P('d')", "None")), seed=1)


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        ("traced_before('found')", WRONG),
        ("raise_an_error()", TRACEBACK),
        ("end_the_process()", ABORT),
    ],
)
def test_a_fault_is_found(fault: str, result: str, process: Process) -> None:
    answer = process.ask_for(faulty(fault))
    assert answer["result"] == result, answer["detail"]


def test_a_program_at_which_one_device_ends_the_process_is_no_fault(process: Process) -> None:
    # XLA takes two taps on an image dilated by two for groups, and swaps image and kernel.
    convolution = (
        "lax.conv_general_dilated({0}, {1}, (2, 1), ((0, 2), (0, 0)), lhs_dilation=(2, 2), "
        "dimension_numbers=('NHWC', 'HWIO', 'NHWC'))"
    )
    kinds = {
        "a": Kind((8, 1, 3, 4), "float32"),
        "b": Kind((3, 2, 4, 8), "float32"),
        "c": Kind((8, 1, 4, 8), "float32"),
    }
    program = Program(
        tuple(Argument(name, kinds[name]) for name in "ab"),
        (Instruction(("c",), convolution, ("a", "b")),),
        ("c",),
        kinds,
    )
    pinned = Configuration("pinned", {"mesh": "'d=8'"}, ("P('d')", "None"))
    answer = process.ask_for(Case(program, pinned, seed=1))
    assert answer["result"] == BROKEN, answer["detail"]
    assert "Window dimensions do not match RHS shape" in answer["detail"]


def test_a_program_at_which_the_judge_ends_the_process_is_no_fault(process: Process) -> None:
    answer = process.ask_for(faulty("end_in_double_precision()"))
    assert answer["result"] == BROKEN, answer["detail"]
    assert "Fatal Python error" in answer["detail"]


def test_a_process_that_hangs_is_stopped_and_the_next_case_runs(process: Process) -> None:
    answer = process.ask_for(faulty("sleep_long()"), limit_seconds=1.0)
    assert answer["result"] == HANG
    assert process.ask_for(faulty("0"))["result"] == EQUAL


def test_a_fault_is_made_small(process: Process) -> None:
    text = report(faulty("traced_before('small')"), process, seconds=60)
    assert text.startswith("# WRONG: result 0: ")
    assert "    d = c + traced_before('small')\n    return (d, )" in text
    assert "e = " not in text
