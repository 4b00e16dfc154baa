"""Steps in the number of micro-batches that ``auto`` takes, beside every power of two by hand.

    python bench/quality/micro_batches_auto.py [--share 0.5] [--most 32] [--csv] [NAME CLUSTER ..]

Train steps of the corpus are planned without a limit of memory, then with a share of what that plan
needs, by the pass ``autoshard-plan``: with each number of micro-batches, and with ``auto``, each
with and without ``recompute=auto``. Where that does not fit, its step is what it needs of the
limit. Each is planned in a process of its own; ``planning`` is its CPU time, without reading the
file. Nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import entries, in_a_process, load, machine

MODELS = {
    "vit_l16_hf.train": "h100:8",
    "gpt2_xl_hf.train": "h100:8",
    "llama2_7b_scan_maxtext.train": "v5e:4x4",
}
"""And the cluster of each."""
SHARE = 0.5
"""What a plan may use of what the fastest plan needs."""
MOST = 32
"""Micro-batches that are tried by hand."""
FREE, STEP, PLANNING = "1, no limit", "step, ms", "planning, s"
"""A column, and the two numbers that rows are of."""
TIMEOUT = 3600.0
"""Seconds of one plan."""


def measure(model: str, cluster: str, limit: str, count: str, recompute: str) -> dict[str, Any]:
    """One plan."""
    from autoshard.errors import AutoshardWarning, DoesNotFitError, PlanError
    from autoshard.search.plan_pass import PlanProgram

    warnings.simplefilter("ignore", AutoshardWarning)
    (entry,) = entries([model])
    module = load(entry)
    given = [one for one in entry.info["args"] if one["role"] == "batch" and one["shape"]]
    options = PlanProgram(
        cluster=cluster,
        memory_limit=limit,
        micro_batches="auto" if count == "auto" else int(count),
        batch=tuple(one["index"] for one in given),
        recompute="auto" if recompute == "auto" else "marks",
    )
    start = time.process_time()
    row: dict[str, Any] = {"examples": min(one["shape"][0] for one in given)}
    try:
        _, found = options.planned(module)
    except DoesNotFitError as error:
        row |= {"peak": error.peak_bytes, "outcome": "does not fit"}
    except PlanError as error:
        row |= {"outcome": f"refused: {error.message}"}
    else:
        assert found.summary is not None
        row |= {
            "step": found.summary.step_seconds,
            "peak": found.summary.peak_bytes_per_device,
            "outcome": said(found.summary) if count == "auto" else "",
        }
    return row | {"planning": time.process_time() - start}


def said(summary: Any) -> str:
    """The number that was taken, those that were planned, and those that a bound left out."""
    tried = summary.tried_micro_batches
    at = ("taken", "fits", "does not fit")
    planned = [str(one.micro_batches) for one in tried if one.outcome in at]
    bounded = [str(one.micro_batches) for one in tried if one.outcome == "bounded"]
    taken = next(one.micro_batches for one in tried if one.outcome == "taken")
    text = f"{taken}; planned {', '.join(planned)}"
    return f"{text}; left out {', '.join(bounded)}" if bounded else text


def points(
    model: str, cluster: str, share: float, counts: list[str]
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Without and with ``recompute=auto``: a row of each number, of ``auto``, and without limit."""
    free = in_a_process(__file__, model, TIMEOUT, "--point", cluster, "1e30", "1", "marks")
    if "failed" in free:
        sys.exit(f"{model} on {cluster}: {free['failed']}")
    limit = str(share * free["peak"])
    for recompute in ("marks", "auto"):
        found = {FREE: free}
        for count in (*counts, "auto"):
            if count != "auto" and free["examples"] % int(count):
                continue
            point = ("--point", cluster, limit, count, recompute)
            found[count] = in_a_process(__file__, model, TIMEOUT, *point)
            found[count]["share"] = found[count].get("peak", 0.0) / float(limit)
            print(model, recompute, count, found[count], flush=True, file=sys.stderr)
        yield recompute, found


def rows(model: str, cluster: str, share: float, counts: list[str]) -> Iterator[list[str]]:
    """Rows of a model in the table: steps, then seconds of planning."""
    for recompute, found in points(model, cluster, share, counts):
        is_auto = recompute == "auto"
        head = [model, cluster, "auto" if is_auto else ""]
        columns = [FREE, *counts, "auto"]
        taken = found["auto"].get("outcome", "")
        yield [*head, STEP, *(step(found.get(one)) for one in columns), taken]
        yield [*head, PLANNING, *(planning(found.get(one)) for one in columns), ""]


def step(row: dict[str, Any] | None) -> str:
    """Milliseconds; of what does not fit, what it needs of the limit."""
    if row is None:
        return ""
    if "step" in row:
        return f"{1e3 * row['step']:.1f}"
    return f"{100 * row['share']:.0f} %" if "peak" in row else row.get("failed", row["outcome"])


def planning(row: dict[str, Any] | None) -> str:
    """Seconds of the processor."""
    return "" if row is None or "planning" not in row else f"{row['planning']:.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="NAME CLUSTER", help="of the corpus")
    parser.add_argument("--share", type=float, default=SHARE)
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--point", nargs=4, help=argparse.SUPPRESS)
    results.add_option(parser, "micro_batches_auto")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, *options.point)))
        return
    models = dict(zip(options.models[::2], options.models[1::2], strict=True)) or MODELS
    table = Table(title=machine())
    counts = [str(2**n) for n in range(options.most.bit_length())]
    heads = ("program", "cluster", "recompute", "number", FREE, *counts, "auto", "auto takes")
    for head in heads:
        table.add_column(head, overflow="fold")
    for model, cluster in models.items():
        for row in rows(model, cluster, options.share, counts):
            table.add_row(*row)
    Console(width=150).print(table)
    results.write(options.csv, table)


if __name__ == "__main__":
    main()
