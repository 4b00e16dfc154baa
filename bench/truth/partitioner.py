"""What XLA's partitioner does right: a table, made by running it.

    python bench/truth/partitioner.py [--folder DIR] [--ops pad,slice] [--per-row 2]
    python bench/truth/partitioner.py --sample 100

Writes python/autoshard/compilers/partitioner_tables/jaxlib-RELEASE.json for the jaxlib that runs
it, with ``--ops`` the rows of these ops, and docs/design/partitioner.md from all tables there are.
Answers are kept in the folder, by release: a run that was stopped goes on where it was.
``--sample`` runs so many programs only, and says what differs from the table.

Programs (``programs.py``) become single ops (``cases.py``), each is cut by the factors of its rule,
alone and in pairs, and run in processes of their own (``runner.py``); ``table.py`` joins the
answers to rows. A whole run is about 9,000 programs, 5 to 8 a second with one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jaxlib

from autoshard.compilers.partitioner import PartitionerTable, Verdict
from autoshard.importer.factor_roles import UNEVEN_CUT
from bench.truth import cases, page, programs, table
from bench.truth.cases import Candidate, Job

HERE = Path(__file__).resolve().parent
TABLES = HERE.parents[1] / "python" / "autoshard" / "compilers" / "partitioner_tables"
PAGE = HERE.parents[1] / "docs" / "design" / "partitioner.md"

Rows = dict[tuple[str, ...], list[Candidate]]


def rows_of(ops: Collection[str]) -> Rows:
    """All candidates by row, in an order that mixes meshes, shapes and types."""
    rows: Rows = defaultdict(list)
    for instance in cases.instances(programs.programs()):
        if ops and instance.op.name.partition(".")[2] not in ops:
            continue
        for candidate in cases.candidates(instance):
            rows[candidate.row].append(candidate)
    for some in rows.values():
        some.sort(key=lambda each: each.order)
    return dict(sorted(rows.items()))


def first_round(rows: Rows, per_row: int) -> Iterator[Candidate]:
    """A program of each mesh and order of axes; fewer of rows that say little.

    Meshes matter more than traits: most faults show where some axes replicate, or in one order.
    """
    for number, (row, some) in enumerate(rows.items()):
        _, traits, roles = row
        is_moved = "_before" in roles or "_after" in roles
        is_pair = " " in roles
        if traits and (is_moved or (UNEVEN_CUT in traits and is_pair)) and number % 3:
            continue
        most = 1 if traits and is_moved else 2 if traits and is_pair else len(cases.SINGLES)
        variants: dict[str, list[Candidate]] = defaultdict(list)
        for candidate in some:
            if candidate.partitioner == "shardy":
                variants[candidate.variant].append(candidate)
        mixed = sorted(variants.values(), key=lambda each: each[0].order)[:most]
        for candidates in mixed:
            yield from candidates[: 1 if traits else per_row]
        if number % 3 == 0:
            yield from [each for each in some if each.partitioner == "gspmd"][:1]


def second_round(rows: Rows, failed: Collection[Candidate]) -> Iterator[Candidate]:
    """The cuts that failed, on the smallest ops with the same roles and all sets of traits.

    So sets of traits can be compared: what is right with one of them was run as what is wrong.
    """
    cuts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for candidate in failed:
        op, _, roles = candidate.row
        cuts[op, roles][candidate.boundary] += 1
    for (op, _, roles), some in rows.items():
        wanted = [cut for cut, _ in cuts[op, roles].most_common(2)]
        for cut in wanted:
            alike = [each for each in some if each.boundary == cut]
            yield from sorted(alike, key=lambda each: (each.size, each.order))[:2]


def run(
    candidates: Iterable[Candidate], folder: Path, processes: int
) -> dict[str, tuple[Candidate, Job, Any]]:
    """Candidate, job and answer, by the candidate's order."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = {each.order: (each, each.job()) for each in candidates}
    print(f"{len(jobs)} programs", flush=True)
    jobs_path, results_path = folder / "jobs.jsonl", folder / "results.jsonl"
    # Alike ones stand together: so do those that end their process.
    in_order = sorted((job for _, job in jobs.values()), key=lambda j: (j.op, j.traits, j.roles))
    jobs_path.write_text("".join(json.dumps(asdict(job)) + "\n" for job in in_order))
    command = [sys.executable, HERE / "runner.py", jobs_path, results_path]
    subprocess.run([*command, "--processes", str(processes)], check=True)
    answers = {}
    for line in results_path.read_text().splitlines():
        answer = json.loads(line)
        answers[answer["id"]] = answer
    return {order: (each, job, answers[job.id]) for order, (each, job) in jobs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    release = jaxlib.__version__
    parser.add_argument("--folder", type=Path, default=Path("build") / "truth")
    parser.add_argument("--ops", default="", help="names without stablehlo., with commas between")
    parser.add_argument("--per-row", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"jaxlib {release}, {platform.platform()}, 8 virtual CPU devices", flush=True)
    rows = rows_of(options.ops.split(",") if options.ops else ())
    print(f"{sum(map(len, rows.values()))} candidates in {len(rows)} rows", flush=True)
    if options.sample:
        sys.exit(compared(rows, options))
    folder = options.folder / release
    found = run(first_round(rows, options.per_row), folder, options.processes)
    failed = [each for each, _, a in found.values() if a["verdict"] in table.FAILURES]
    print(f"{len(failed)} failed; their cuts are tried on like ops", flush=True)
    found |= run(second_round(rows, failed), folder, options.processes)
    TABLES.mkdir(exist_ok=True)
    path = TABLES / f"jaxlib-{release}.json"
    written = table.rows((job, answer) for _, job, answer in found.values())
    table.write(path, release, [*rows_of_others(path, {row["op"] for row in written}), *written])
    PAGE.write_text(page.text())
    bad = sum(len(row["bad"]) for row in written)
    print(f"{len(written)} rows, {bad} faults: {path}")


def rows_of_others(path: Path, ops: Collection[str]) -> list[dict[str, Any]]:
    """Rows that the table has of other ops than ``ops``: they stay as they are."""
    if not path.exists():
        return []
    return [row for row in json.loads(path.read_text())["rows"] if row["op"] not in ops]


def compared(rows: Rows, options: argparse.Namespace) -> int:
    """Run a sample and print what the table says otherwise; the number of such programs."""
    known = PartitionerTable.of_installed()
    everything = [each for some in rows.values() for each in some]
    chosen = random.Random(options.seed).sample(everything, min(options.sample, len(everything)))
    with tempfile.TemporaryDirectory() as folder:
        found = run(chosen, Path(folder), options.processes)
    differing = 0
    for _, job, answer in found.values():
        verdict = known.verdict(job.op, {*job.traits, job.dtype} - {""}, job.roles)
        if verdict is Verdict.RIGHT and answer["verdict"] != "right":
            differing += 1
            print(f"the table says right: {job.op} {job.traits} {job.cut}: {answer}\n{job.text}")
    print(f"jaxlib {known.release}: {differing} of {len(found)} programs are not as the table says")
    return min(differing, 1)


if __name__ == "__main__":
    main()
