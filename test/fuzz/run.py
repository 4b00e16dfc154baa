"""Random programs under random plans on 8 virtual CPU devices, compared with the unsharded run.

    python test/fuzz/run.py --seeds 0:1000 --plans 4 --jobs 2 --report fuzz.jsonl

Every case is a line of JSON in the report; cases that are in it are not run again, so that a run
that was stopped goes on where it was. ``minimise.py`` makes a case small.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.outcomes import ABORT, FINDINGS, HANG, RESULTS
from fuzz.workers import Process

Line = dict[str, Any]


def main() -> int:
    options = _parser().parse_args()
    done = read_report(options.report)
    seeds = read_seeds(options)
    wanted = [(seed, plan) for seed in seeds for plan in range(options.plans)]
    cases = [it for it in wanted if it not in {(line["seed"], line["plan"]) for line in done}]
    start = time.monotonic()
    with options.report.open("a", buffering=1) if options.report else sys.stdout as file:
        for line in run_cases(cases, options.jobs, options.limit):
            print(json.dumps(line), file=file)
            _tell(line)
            done.append(line)
    lines = [line for line in done if (line["seed"], line["plan"]) in set(wanted)]
    print(summary(lines))
    print(f"{len(cases)} cases in {time.monotonic() - start:.0f} s, {machine()}")
    return int(any(line["result"] in FINDINGS for line in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", default="0:100", help="from:to, the last one not included")
    parser.add_argument("--seeds-file", type=Path, help="seeds, one a line, instead")
    parser.add_argument("--plans", type=int, default=2, help="how many for each program")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each case")
    parser.add_argument("--report", type=Path, required=True, help="JSON lines, kept and continued")
    return parser


def read_seeds(options: argparse.Namespace) -> Sequence[int]:
    if options.seeds_file is not None:
        return seeds_of(options.seeds_file)
    first, last = map(int, options.seeds.split(":"))
    return range(first, last)


def seeds_of(path: Path) -> list[int]:
    """The numbers with which lines of a file begin; the rest of a line is a comment."""
    return [int(line.split()[0]) for line in path.read_text().splitlines() if line[:1].isdigit()]


def read_report(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def run_cases(cases: Sequence[tuple[int, int]], jobs: int, limit_seconds: float) -> Iterator[Line]:
    """Outcomes of cases, pairs of a seed and the number of a plan, as they come.

    All plans of a program go to one process, which runs it unsharded once.
    """
    waiting: SimpleQueue[list[tuple[int, int]]] = SimpleQueue()
    for seed in dict.fromkeys(seed for seed, _ in cases):
        waiting.put([case for case in cases if case[0] == seed])
    found: SimpleQueue[Line | Exception | None] = SimpleQueue()

    def work() -> None:
        try:
            with Process(limit_seconds) as process:
                while True:
                    for seed, plan in waiting.get_nowait():
                        case = {"seed": seed, "plan": plan}
                        answer = process.ask(case)
                        if answer["result"] in (ABORT, HANG):
                            answer |= process.ask({**case, "describe": True})
                        found.put(case | answer)
        except Empty:
            found.put(None)
        except Exception as error:
            found.put(error)

    for _ in range(jobs):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(jobs):
        while (line := found.get()) is not None:
            if isinstance(line, Exception):
                raise line
            yield line


def _tell(line: Line) -> None:
    if line["result"] in FINDINGS:
        text = line["detail"].split("\n")[0][:150]
        where = f"--seed {line['seed']} --plan {line['plan']}"
        print(f"{line['result']}: {where} {line.get('family', '')}: {text}", flush=True)


def summary(lines: Sequence[Line]) -> str:
    """Tables of outcomes: all, and by family of configurations."""
    table = [f"{len(lines)} cases of {len({line['seed'] for line in lines})} programs"]
    table += _rows(Counter(line["result"] for line in lines), RESULTS, len(lines))
    warned = sum(bool(line.get("mismatches")) for line in lines)
    table.append(f"  {'PlanMismatchWarning':22}{warned:6}  {_percent(warned, len(lines))}")
    cut = sum(bool(line.get("is_cut")) for line in lines)
    table.append(f"  {'with a cut interface':22}{cut:6}  {_percent(cut, len(lines))}")
    table += ["by family: cases, refused or not fitting, findings"]
    families = Counter(line.get("family", "unknown") for line in lines)
    for family, count in sorted(families.items()):
        of = Counter(line["result"] for line in lines if line.get("family", "unknown") == family)
        found = sum(of[it] for it in FINDINGS)
        table.append(f"  {family:26}{count:6}{of['refused'] + of['does not fit']:6}{found:6}")
    return "\n".join(table)


def _rows(counts: Counter[str], order: Iterable[str], total: int) -> list[str]:
    return [f"  {it:22}{counts[it]:6}  {_percent(counts[it], total)}" for it in order]


def _percent(count: int, total: int) -> str:
    return f"{100 * count / max(total, 1):.1f} %"


def machine() -> str:
    """What the numbers were measured on."""
    import jaxlib.version

    versions = f"jaxlib {jaxlib.version.__version__}, Python {platform.python_version()}"
    return f"{versions}, {platform.system()} on {os.cpu_count()} cores of {platform.machine()}"


if __name__ == "__main__":
    sys.exit(main())
