"""Files of the IOPDDL contest: reading, writing, errors, and the command autoshard-solve."""

from __future__ import annotations

import copy
import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.cli.solve import main
from autoshard.errors import SolverError
from autoshard.solver import Problem, check_solution, read_iopddl, solve, write_iopddl

INSTANCES = Path(
    os.environ.get("AUTOSHARD_IOPDDL", Path(__file__).parents[4] / "shared" / "iopddl")
)

SMALL: dict[str, Any] = {
    "problem": {
        "name": "small",
        "nodes": {
            "intervals": [[0, 4], [2, 6], [3, 3]],
            "costs": [[15, 10], [5, 20], [7]],
            "usages": [[10, 25], [10, 12], [99]],
        },
        "edges": {
            "nodes": [[0, 1], [1, 2]],
            "costs": [[0, 3, 10**18, 1], [2, 0]],
        },
        "usage_limit": 40,
    }
}


def write(path: Path, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text)
    return path


def test_a_file_is_read_as_it_says(tmp_path: Path) -> None:
    problem = read_iopddl(write(tmp_path / "a.json", SMALL))
    assert problem.nodes == 3
    assert problem.memory_limit == 40
    assert problem.tables[0].tolist() == [[0, 3], [np.inf, 1]]
    solution = solve(problem)
    assert solution.choice is not None
    # Options (0, 0, 0): 15 + 5 + 7 and edges 0 + 2; (1, 0) is not allowed, (1, 1) costs 38.
    assert solution.choice.tolist() == [0, 0, 0]
    assert solution.cost == 29
    assert solution.peak_memory == 20
    assert solution.stop_reason == "optimal"


@pytest.mark.parametrize("name", ["b.json", "b.json.gz"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    problem = read_iopddl(write(tmp_path / "a.json", SMALL))
    write_iopddl(problem, tmp_path / name)
    again = read_iopddl(tmp_path / name)
    assert again.option_cost.tolist() == problem.option_cost.tolist()
    assert again.option_memory.tolist() == problem.option_memory.tolist()
    assert [t.tolist() for t in again.tables] == [t.tolist() for t in problem.tables]
    assert again.live_last.tolist() == problem.live_last.tolist()
    assert again.memory_limit == problem.memory_limit


def test_costs_that_are_not_integers_are_scaled(tmp_path: Path) -> None:
    problem = Problem.from_lists([[0.25, 1e-6], [0.5]], [(0, 1, [[0.125], [np.inf]])])
    written = problem.to_iopddl()["problem"]
    scale = written["cost_scale"]
    assert scale > 2**40
    assert written["nodes"]["costs"][0][0] == 0.25 * scale
    assert written["edges"]["costs"] == [[round(0.125 * scale), 10**18]]
    assert "usage_limit" not in written


def edited(path: str, value: object) -> dict[str, Any]:
    """SMALL with the entry at a dotted path replaced; a value of `...` removes it."""
    result = copy.deepcopy(SMALL)
    at: Any = result
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in parents:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return result


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "problem: is missing"),
        (edited("problem", 3), "problem: must be an object"),
        (edited("problem.nodes", ...), "problem.nodes: is missing"),
        (edited("problem.nodes.costs", ...), "problem.nodes.costs: is missing"),
        (edited("problem.nodes.costs.1", []), r"problem.nodes.costs\[1\]: node 1 has no options"),
        (
            edited("problem.nodes.costs.1", [1, "x"]),
            r"problem.nodes.costs\[1\]: must be a list of numbers, holds 'x'",
        ),
        (
            edited("problem.nodes.usages.0", [1]),
            r"problem.nodes.usages\[0\]: has 1 entries, node 0 has 2 options",
        ),
        (edited("problem.nodes.usages.0", [1, -5]), r"usages\[0\]: must be 0 to 2\^53"),
        (
            edited("problem.nodes.usages", [[1, 2]]),
            "problem.nodes.usages: has 1 entries, needs one for each of 3 nodes",
        ),
        (edited("problem.nodes.intervals.2", [1]), r"problem.nodes.intervals\[2\]: must be"),
        (
            edited("problem.edges.nodes.0", [0, 3]),
            r"problem.edges.nodes\[0\]: must be two nodes 0..2, is \[0, 3\]",
        ),
        (
            edited("problem.edges.costs.0", [1, 2, 3]),
            r"problem.edges.costs\[0\]: has 3 entries, nodes 0 and 1 have 2 x 2 options",
        ),
        (
            edited("problem.edges.costs", []),
            "problem.edges.costs: has 0 entries, needs one for each of 2 edges",
        ),
        (edited("problem.usage_limit", -1), "must be an integer >= 0 and < 2.63, is -1"),
        (edited("problem.usage_limit", 2**63), "problem.usage_limit: must be an integer >= 0 and"),
        (edited("problem.nodes.intervals.0", [10**20, 2]), "intervals.0.: must be .first, last"),
        (edited("problem.nodes.intervals.0", [0.5, 2]), r"two integers below 2.53, is .0.5, 2."),
    ],
)
def test_malformed_files_are_refused_with_field_and_node(
    tmp_path: Path, content: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "bad.json", content)
    with pytest.raises(SolverError, match=message) as caught:
        read_iopddl(path)
    assert caught.value.location == str(path)
    assert main([str(path)]) == 1
    assert "autoshard-solve: error: " in capsys.readouterr().err


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(SMALL).encode())[:-20])
    with pytest.raises(SolverError, match="is not JSON"):
        read_iopddl(path)


def test_a_file_that_does_not_exist_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.json"]) == 1
    assert "nowhere.json: cannot be read: No such file" in capsys.readouterr().err


def test_the_command_prints_and_writes_the_solution(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.json", SMALL)
    out = tmp_path / "solution.json"
    assert main([str(path), "--seconds", "5", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "cost         29" in text
    assert "gap 0.000 %" in text
    assert json.loads(out.read_text())["choice"] == [0, 0, 0]
    assert main([str(path), "--seconds", "5", "--json", "--seed", "3"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["cost"], result["lower_bound"], result["stop_reason"]) == (29, 29, "optimal")


def test_the_command_says_why_nothing_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.json", edited("problem.usage_limit", 19))
    assert main([str(path), "--seconds", "5"]) == 2
    assert "at point 2 the smallest allowed options exceed the limit by 1 bytes" in (
        capsys.readouterr().out
    )


@pytest.mark.skipif(not INSTANCES.is_dir(), reason="AUTOSHARD_IOPDDL names no folder")
@pytest.mark.parametrize(("name", "best_known"), [("B", 532_843), ("G", 217_039)])
def test_small_instances_of_the_contest_are_solved_to_the_optimum(
    name: str, best_known: int
) -> None:
    problem = read_iopddl(INSTANCES / f"{name}.json.gz")
    solution = solve(problem, 30)
    check_solution(problem, solution)
    assert solution.cost == best_known
    assert solution.stop_reason == "optimal"
