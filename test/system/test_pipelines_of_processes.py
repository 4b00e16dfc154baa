"""Pipelines of several processes: the results of the step that is not split, bit-equal."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pipelines_of_processes import ACROSS_HOSTS, CASES, SAVED, STEPS, arguments
from processes import ended, outputs

SCRIPT = str(Path(__file__).with_name("pipelines_of_processes.py"))
OF_TWO = (
    "1f1b",
    "gpipe of two chunks",
    "scan",
    "scan in two chunks",
    "zero_bubble of whole batches",
)
OF_THREE = ("three stages", "stages of three devices")

Said = list[list[Any]]
"""By process: what it says."""


def said_by(folder: Path, cases: list[str], count: int) -> Said:
    """What processes say that run cases."""
    outputs(SCRIPT, str(folder), ",".join(cases), str(count), count=count)
    files = [folder / f"said{number}.jsonl" for number in range(count)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Each has a stage; in the last case each has a device of each stage."""
    cases = [*OF_TWO[:3], "refused", ACROSS_HOSTS, OF_TWO[3]]
    return said_by(tmp_path_factory.mktemp("two"), cases, 2)


@pytest.fixture(scope="module")
def of_three(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Each has a stage; in the last case the second one has a device of each of two stages."""
    return said_by(tmp_path_factory.mktemp("three"), [*OF_THREE], 3)


@cache
def right(fn: Any) -> tuple[list[np.ndarray], list[float]]:
    """Parameters and states after the steps on one device, and what each step says."""
    carried, batch = arguments(fn)
    last, losses = np.float32(0), list[float]()
    for _ in range(STEPS):
        carried, (last, norm) = jax.jit(fn)(carried, batch, last)
        losses += [float(last), float(norm)]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(carried)], losses


def check(said: Said, case: str) -> None:
    """Each process has the losses, and right parts of results, which together are all."""
    leaves, losses = right(CASES[case][0])
    found = [line for lines in said for line in lines if line["case"] == case]
    assert len(found) == len(said) * (1 + (case in SAVED))
    has = [np.zeros(leaf.shape, bool) for leaf in leaves]
    for line in found:
        assert line["losses"] == losses
        assert line["parts"]
        for number, where, numbers in line["parts"]:
            at = tuple(slice(*dim) for dim in where)
            np.testing.assert_array_equal(numbers, leaves[number][at])
            has[number][at] = True
    assert all(each.all() for each in has)
    assert len({str(line["parts"]) for line in found}) >= len(said), "each has parts of its own"


@pytest.mark.parametrize("case", OF_TWO)
def test_two_processes_are_bit_equal_to_one_device(of_two: Said, case: str) -> None:
    check([[line for line in lines if isinstance(line, dict)] for lines in of_two], case)


@pytest.mark.parametrize("case", OF_THREE)
def test_three_processes_are_bit_equal_to_one_device(of_three: Said, case: str) -> None:
    check(of_three, case)


def test_what_cannot_run_is_refused_by_all_before_the_first_step(of_two: Said) -> None:
    first, second = ([line for line in lines if isinstance(line, str)] for lines in of_two)
    no_address = "send to those of other processes by sockets, for which no address is set"
    expected = [
        (no_address, no_address),
        ("for which 10.0.0.1:0 has no port", "for which 10.0.0.1:0 has no port"),
        (no_address, "process 0 has no plan: it raised an error"),
        *[(each, each) for each in ["process 1 has no device of any stage", "another plan than"]],
        ("process 1 has no plan: it raised an error", "the worst of 2 stages needs"),
        ("no plan fits", "process 0 has no plan: it raised an error"),
        *[(each, each) for each in ["batch lies as SingleDeviceSharding(device=CpuDevice(id="]],
    ]
    for pair, *found in zip(expected, first, second, strict=True):
        for part, whole in zip(pair, found, strict=True):
            assert part in whole


def test_a_process_that_dies_ends_the_others_with_a_message(tmp_path: Path) -> None:
    first, second = ended(SCRIPT, str(tmp_path), "dies", "2")
    assert second.code == 7
    assert first.code not in (0, 7)
    assert "Connection closed" in first.errors or "another task died" in first.errors
