"""MaxText's models, planned from their functions: seconds to plan, kernels, and the step.

    python bench/quality/maxtext_models.py [--models PART ...] [--save FILE] [--csv]

Each is traced and lowered by MaxText itself, for its time, and planned with nothing given
("autoshard") and as MaxText lays it on its mesh ("maxtext": FSDP over all devices, its kernels in
``shard_map``, arguments pinned), of which the search completes what lies between. Seconds of
planning are those of its phases, without tracing and lowering. Nothing is compiled.
Needs ``pip install "maxtext[tpu]==0.2.5"``, and runs each row in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import results
from bench.common.corpus import in_a_process, machine
from bench.common.points import Row, SavedRows

SPLITS = ("autoshard", "maxtext")
HEADS = (
    *("model", "cluster", "sequences x length", "split", "mesh", "trace and lower CPU s"),
    *("planning s", "step s", "compute s", "communication s", "sent GB", "peak GiB"),
    *("kernels", "whole", "note"),
)
WORDS = ("model", "cluster", "sequences x length", "split", "mesh", "note")


def measure(name: str, split: str) -> Row:
    """Lower and plan one model; ``name`` as ``named`` gives it."""
    import autoshard
    from bench.programs.maxtext import MODELS, train_step

    model = next(each for each in MODELS if named(each) == name)
    step = train_step(model, on_its_mesh=split == "maxtext")
    began = time.process_time()
    step.lowered()
    lowering = time.process_time() - began

    def planned() -> Any:
        with step.within(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            plan = autoshard.plan(
                step.function,
                *step.arguments,
                donate_argnums=step.donated,
                cluster=model.cluster,
            )
        return plan, [str(each.message) for each in said]

    try:
        plan, said = planned()
    except autoshard.AutoshardError as error:
        return {"lowering": lowering, "failed": f"{type(error).__name__}: {str(error)[:200]}"}
    seconds = sum(plan.summary.planning_seconds.values())
    return {
        "lowering": lowering,
        "planning": seconds,
        "mesh": str(plan.mesh.without_unit_axes()),
        "step": plan.step_seconds,
        "compute": plan.compute_seconds,
        "communication": plan.communication_seconds,
        "sent": sum(each.bytes * each.times for each in plan.summary.collectives),
        "peak": plan.peak_bytes,
        "kernels": sum(op.name in _KERNELS for op in plan.ops),
        "whole": [text for text in said if "run whole" in text],
    }


_KERNELS = ("tpu_custom_call", "gmm", "tgmm")


def named(model: Any) -> str:
    """Its name, and whether it drops tokens."""
    drops = "sparse_matmul=false" in model.options
    return f"{model.name}{', dropping' if drops else ''}"


def table_rows(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """One for each model and split."""
    from bench.programs.maxtext import MODELS

    models = {named(each): each for each in MODELS}
    for row in rows:
        model = models[row["model"]]
        about = row["model"], model.cluster, f"{model.sequences} x {model.length}", row["split"]
        if "failed" in row:
            yield *about, "", f"{row.get('lowering', 0):.1f}", *[""] * 8, row["failed"]
            continue
        yield (
            *(*about, row["mesh"], f"{row['lowering']:.1f}", f"{row['planning']:.1f}"),
            *(f"{row['step']:.3f}", f"{row['compute']:.3f}", f"{row['communication']:.3f}"),
            *(f"{row['sent'] / 1e9:.1f}", f"{row['peak'] / 2**30:.1f}", str(row["kernels"])),
            *(str(len(row["whole"])), ""),
        )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a row (1800)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the table of a saved file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "maxtext_models")
    options = parser.parse_args()
    if options.one:
        with contextlib.redirect_stdout(sys.stderr):
            found = measure(*json.loads(options.one))
        print(json.dumps(found))
        return
    from bench.programs.maxtext import MODELS

    point = ("model", "split")
    rows = SavedRows(point, options.show or options.save)
    names = [named(each) for each in MODELS if any(it in named(each) for it in options.models)]
    points = [(name, split) for name in names for split in SPLITS]
    for each in rows.missing([] if options.show else points):
        made = in_a_process(__file__, json.dumps(each), options.timeout)
        print(*each, made, file=sys.stderr)
        rows.add(each, made)
    cells = list(table_rows(list(rows)))
    results.show("One step on one device, as planned", HEADS, cells, WORDS, width=240)
    results.write_rows(options.csv, HEADS, cells)
    print(machine())


if __name__ == "__main__":
    main()
