"""Train steps on one GPU within less memory than they take, beside what their plans say.

    python bench/truth/gpu_memory.py prepare FOLDER [--models PART ...] [--shares SHARE ...]
    python bench/truth/gpu_parts.py run FOLDER        where the GPU is
    python bench/truth/gpu_memory.py table FOLDER [--csv FILE]

``prepare`` plans each step as it is, with every layer computed again (``jax.checkpoint``, as people
write it), and within shares of the memory that it takes as it is: values computed again
(``recompute=auto``), and also kept on the host (``host_offload=auto``). It needs no GPU. What runs
is the whole step: nothing is mocked, and moves to the host and back are real. ``table`` puts the
plan's step and peak beside what was measured: a step by the clock, and the most memory that the
allocator gave.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import results

CLUSTER = "h200:1"
NO_LIMIT = "1000TiB"
SHARES = (0.75, 0.5, 0.35)
AS_IT_IS, EVERY_LAYER = "as it is", "every layer again"
HEADS = (
    *("program", "way", "limit GiB", "planned GiB", "allocated GiB", "peak error"),
    *("sent GB", "planned ms", "step ms", "step error"),
)


# Without a GPU


def llama(remat: bool, *, layers: int, scan: bool = False) -> Any:
    """Layers as wide as those of Llama-2-7B; a batch for one GPU."""
    from bench.common.sources import lowered
    from bench.programs.llama import LLAMA2, ROLES, train_step

    sizes = {"layers": layers, "scan": scan, "batch": 8, "tokens": 2048, "remat": remat}
    step, arguments = train_step(dataclasses.replace(LLAMA2["7B"], **sizes))
    return lowered(step, ROLES, arguments)


MODELS: dict[str, Callable[[bool], Any]] = {
    "llama, 6 layers": partial(llama, layers=6),
    "llama, 6 layers, scan": partial(llama, layers=6, scan=True),
}


def prepare(folder: Path, parts: list[str], shares: Sequence[float]) -> None:
    """Plan and export: NAME.mlir.gz as the compiler takes it, NAME.json with what the plan says."""
    from autoshard.errors import AutoshardWarning

    warnings.simplefilter("ignore", AutoshardWarning)
    folder.mkdir(parents=True, exist_ok=True)
    for model, program in MODELS.items():
        if not any(part in model for part in parts or [""]):
            continue
        peak = _prepare(folder, model, AS_IT_IS, program(False))
        _prepare(folder, model, EVERY_LAYER, program(True))
        for share in shares:
            for host in (False, True):
                way = f"{share:.0%}, again{' or on the host' if host else ''}"
                _prepare(folder, model, way, program(False), share * peak, host=host)


def _prepare(
    folder: Path, model: str, way: str, program: Any, limit: float = 0.0, *, host: bool = False
) -> float:
    """Bytes at the plan's peak."""
    from autoshard.errors import DoesNotFitError
    from autoshard.ir.boundary import main_function
    from autoshard.ir.host_memory import on_host
    from autoshard.passes.pipeline import run_passes
    from autoshard.search.plan_pass import PlanProgram
    from bench.truth.gpu_runs import MODULE, write_program

    module, arguments = program
    options = PlanProgram(
        cluster=CLUSTER,
        memory_limit=str(int(limit) + 1) if limit else NO_LIMIT,
        recompute="auto" if limit else "none",
        host_offload="auto" if host else "marks",
    )
    with module.context:
        try:
            _, found = options.planned(module)
        except DoesNotFitError as error:
            print(f"{model}, {way}: {error.message}"[:300], flush=True)
            return 0.0
        waiting = on_host(main_function(found.module), "arg_attrs")
        run_passes(found.module, ["autoshard-export-shardy"])
    summary = found.summary
    assert summary is not None
    about = {
        "program": model,
        "way": way,
        "cluster": CLUSTER,
        "devices": 1,
        "mesh": summary.mesh,
        "limit": limit,
        "planned step": summary.step_seconds,
        "planned peak": summary.peak_bytes_per_device,
        "sent": summary.host_transfer_bytes,
        "arguments": [
            {name: one[name] for name in ("shape", "dtype", "role")}
            | {"on host": number in waiting}
            for number, one in enumerate(arguments)
        ],
    }
    stem = re.sub(r"\W+", "_", f"{model} {way}")
    (folder / f"{stem}.json").write_text(json.dumps(about))
    write_program(folder / f"{stem}{MODULE}", found.module)
    print(
        f"{model}, {way}: {summary.step_seconds * 1e3:.1f} ms,"
        f" {summary.peak_bytes_per_device / 2**30:.2f} GiB,"
        f" {summary.host_transfer_bytes / 1e9:.1f} GB sent, {len(waiting)} arguments on the host",
        flush=True,
    )
    return summary.peak_bytes_per_device


def table(folder: Path) -> list[Sequence[str]]:
    """A row for each step that ran, programs and ways as they were planned."""
    rows: list[tuple[str, bool, float, Sequence[str]]] = []
    for path in folder.glob("*.result.json"):
        ran = json.loads(path.read_text())
        about = json.loads((folder / f"{path.name.removesuffix('.result.json')}.json").read_text())
        planned, step = about["planned step"], min(ran["step"], ran["median step"])
        sizes = about["planned peak"], ran["peak"]
        cells = (
            *(about["program"], about["way"]),
            f"{about['limit'] / 2**30:.2f}" if about["limit"] else "",
            *(f"{size / 2**30:.2f}" for size in sizes),
            *(f"{sizes[0] / sizes[1] - 1:+.1%}", f"{about['sent'] / 1e9:.1f}"),
            *(f"{1e3 * planned:.1f}", f"{1e3 * step:.1f}", f"{planned / step - 1:+.1%}"),
        )
        rows.append((about["program"], bool(about["limit"]), -sizes[0], cells))
    return [cells for *_, cells in sorted(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("prepare", "table"))
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--models", nargs="+", default=[], metavar="PART")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, metavar="SHARE")
    results.add_option(parser, "gpu_memory")
    options = parser.parse_args()
    if options.what == "prepare":
        prepare(options.folder, options.models, options.shares)
        return
    rows = table(options.folder)
    results.show("Steps on one GPU within less memory, beside their plans", HEADS, rows, HEADS[:2])
    results.write_rows(options.csv, HEADS, rows)


if __name__ == "__main__":
    main()
