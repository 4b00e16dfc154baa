"""Pipelines as MindFormers and NeMo publish them, beside autoshard's.

    python bench/quality/pipeline_experts.py [--rows PART ...] [--plans PART ...] [--no-compile]
                                             [--save FILE] [--show FILE] [--csv]

A row is a model, a cluster, and the degrees that somebody publishes for it: data, tensor, pipeline
stages, parts of the model on a stage, examples of a micro-batch. They are written as a user of
autoshard writes them by hand: a pipeline of so many stages, micro-batches and chunks by ``1f1b``,
``mesh="data=4,model=4"``, every argument pinned (Megatron's columns and rows over ``model``, the
batch over ``data``, states of the optimizer over both), and inside of layers constraints on the
residual stream, with sequence parallelism or without, on heads, hidden features and logits.

hand, sequence parallel   all of this, tokens cut over ``model`` between the matrices
hand                      the same without
hand, inside: search      arguments pinned; what lies between is autoshard's
ours, as many stages      the same numbers of stages, micro-batches and chunks, nothing else
ours, auto                ``pipeline="auto"``

All are plans of ``autoshard.plan``. Each task of a pipeline is then compiled for the devices of a
stage (``plan.pipeline.verify()``), and the step scheduled again with the seconds of the compiled
tasks as scheduled. What is one program is compiled for all devices. No device is needed. Compiled
programs are kept (bench/common/compile_cache.py). "over hand" is the step of the fastest plan by
hand that fits over this one, of compiled ones where both are. Layers are computed again in all
plans; they are a scan, and unrolled where the configuration has several parts of the model on a
stage, but for ``pipeline="auto"``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
from jax.sharding import PartitionSpec
from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import in_a_process, machine
from bench.common.hand_plans import HandPlan, semi_automatic
from bench.common.points import Row, SavedRows

SEQUENCE, BY_HAND, INSIDE = "hand, sequence parallel", "hand", "hand, inside: search"
AS_MANY, AUTO = "ours, as many stages", "ours, auto"
PLANS = (SEQUENCE, BY_HAND, INSIDE, AS_MANY, AUTO)
POINT = ("row", "plan")

_tree: Any = jax.tree_util


@dataclasses.dataclass(frozen=True)
class Published:
    """A configuration."""

    model: str
    """In bench/programs/transformer.py."""
    cluster: str
    batch: int
    data: int
    tensor: int
    stages: int
    chunks: int = 1

    @property
    def micro_batches(self) -> int:
        """One example each, on each group of devices that shares parameters."""
        return self.batch // self.data


ROWS = {
    "llama2-70b, MindFormers": Published("llama2-70b", "h100:8x8", 256, 2, 4, 8),
    "llama2-70b, NeMo": Published("llama2-70b", "h100:8x8", 128, 4, 4, 4, 20),
    "llama2-13b, NeMo": Published("llama2-13b", "h100:2x8", 128, 4, 1, 4, 10),
    "gpt3-175b, NeMo": Published("gpt3-175b", "h100:16x8", 256, 4, 4, 8, 6),
}
"""Sources:
    MindFormers: configs/llama2/pretrain_llama2_70b.yaml (data_parallel 2, model_parallel 4,
        pipeline_stage 8, use_seq_parallel, micro_batch_num 128, batch_size 1, parallel optimizer
        without sharded gradients), for 64 devices.
    NeMo: NVIDIA NeMo Framework User Guide 24.09, "Performance", table of pre-training on H100 (GBS,
        MBS 1, TP, PP, VP), there in FP8.
"""


# One plan, in a process of its own


def measure(name: str, kind: str, *, compiles: bool, timeout: float) -> Row:
    """Plan, and compile; the row."""
    from autoshard.errors import AutoshardWarning, DoesNotFitError

    warnings.simplefilter("ignore", AutoshardWarning)
    start = time.perf_counter()
    try:
        plan = planned(ROWS[name], kind)
    except DoesNotFitError as error:
        return {"failed": f"{error.peak_bytes / 2**30:.1f} GiB do not fit"}
    pipeline = plan.pipeline
    row = {
        "planning": time.perf_counter() - start,
        "mesh": str(plan.mesh),
        "shape": shape_of(plan),
        "schedule": "" if pipeline is None else pipeline.schedule,
        "bubble": 0.0 if pipeline is None else pipeline.bubble,
        "planned step": plan.step_seconds,
        "planned peak": plan.peak_bytes,
    }
    return row | compiled(plan, timeout) if compiles else row


def planned(row: Published, kind: str) -> Any:
    """The plan of one kind."""
    import autoshard
    from bench.programs.transformer import check_parameters, mesh_for_constraints, named, train_step

    is_scan = row.chunks == 1 or kind == AUTO
    config = named(row.model, scan=is_scan, remat=True, batch=row.batch)
    asked: Any = autoshard.Pipeline(row.stages, row.micro_batches, chunks=row.chunks)
    options: dict[str, Any] = {"pipeline": "auto" if kind == AUTO else asked}
    context: Any = contextlib.nullcontext()
    if kind.startswith("hand"):
        step = train_step(config)
        by_hand = hand_plan(step, row)
        options = {
            "pipeline": dataclasses.replace(asked, schedule="1f1b"),
            "mesh": by_hand.mesh,
            "in_shardings": pins_of(step, by_hand),
        }
        if kind != INSIDE:
            config = dataclasses.replace(config, constraints=constraints(row, kind == SEQUENCE))
            context = jax.sharding.use_abstract_mesh(mesh_for_constraints(dict(by_hand.axes)))
    step = train_step(config)
    check_parameters(config, step.num_parameters)
    with context:
        return autoshard.plan(
            step.function,
            *step.arguments,
            cluster=row.cluster,
            batch_argnums=(3, 4),
            donate_argnums=(0, 1),
            **options,
        )


def hand_plan(step: Any, row: Published) -> HandPlan:
    """Arguments over the devices of a stage."""
    arguments: list[dict[str, Any]] = []
    for role, tree in zip(step.roles, step.arguments, strict=True):
        for path, leaf in _tree.tree_leaves_with_path(tree):
            about = {"path": _tree.keystr(path), "dtype": str(leaf.dtype)}
            arguments.append(
                {"index": len(arguments), "role": role, "shape": list(leaf.shape), **about}
            )
    return semi_automatic(arguments, row.data, 1, row.tensor, optimizer_level=1)


def pins_of(step: Any, plan: HandPlan) -> Any:
    """The same as pytrees of the arguments."""
    leaves, form = _tree.tree_flatten(step.arguments)
    specs = (
        PartitionSpec(*(axes or None for axes in plan.cuts[number]))
        if number in plan.cuts
        else PartitionSpec()
        for number in range(len(leaves))
    )
    return _tree.tree_unflatten(form, specs)


def constraints(row: Published, is_sequence: bool) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Those inside of layers."""
    data, model = "data", "model" if row.tensor > 1 else None
    return (
        ("residual", (data, model if is_sequence else None, None)),
        ("heads", (data, None, model, None)),
        ("mixed", (data, None, model, None, None)),
        ("hidden", (data, None, model)),
        ("logits", (data, None, model)),
    )


def shape_of(plan: Any) -> str:
    """Stages, micro-batches, chunks."""
    if plan.pipeline is None:
        return "no stages"
    asked = plan.pipeline.asked
    chunks = f", {asked.chunks} chunks" if asked.chunks > 1 else ""
    return f"{asked.stages} × {asked.micro_batches}{chunks}"


def compiled(plan: Any, timeout: float) -> Row:
    """What the compiler makes of it."""
    from autoshard.cluster.stages import cluster_of_a_stage
    from autoshard.errors import CompileError
    from autoshard.ir import new_context, parse_bytes
    from autoshard.pipeline.staged_verification import verify_staged_step
    from autoshard.verify.verification import verify_module
    from bench.common.compile_cache import cached_compile

    pipeline = plan.pipeline
    try:
        if pipeline is not None and not pipeline.is_one_program:
            staged = verify_staged_step(
                pipeline.step,
                cluster_of_a_stage(pipeline.cluster, pipeline.asked.stages),
                use_shardy=True,
                timeout=timeout,
                device_order=pipeline.machines[0].numbers,
                compiler_options={},
                compiler=cached_compile,
                processes=1,
            )
            return {
                "programs": len({id(one) for one in staged.tasks.values()}),
                "fits": staged.fits,
                "step": staged.step_seconds,
                "peak": None if staged.peak_bytes is None else max(staged.peak_bytes),
            }
        cluster = plan.summary.read_cluster() if pipeline is None else pipeline.cluster
        module = parse_bytes(plan.bytecode, new_context(), plan.name)
        found = verify_module(module, cluster, timeout=timeout, compiler=cached_compile)
    except CompileError as error:
        return {"not compiled": f"{error.reason}: {error.message[:120]}"}
    return {
        "programs": 1,
        "fits": found.fits,
        "step": None if found.schedule is None else found.schedule.scheduled_seconds,
        "peak": found.program.peak_bytes,
    }


# The table

HEADS = (
    *("configuration", "cluster", "plan", "mesh of a stage", "stages × micro-batches"),
    *("schedule", "bubble", "planned s", "of compiled tasks s", "over hand", "planned GiB"),
    *("compiled GiB", "planning s"),
)


def step_of(row: Row, *, by_compiled: bool) -> float | None:
    """Seconds of a plan that fits."""
    if "failed" in row or not row.get("fits", True):
        return None
    return row.get("step") if by_compiled else row["planned step"]


def over_hand(row: Row, others: Sequence[Row]) -> str:
    """The fastest by hand over this one."""
    by_hand = [one for one in others if one["plan"].startswith("hand")]
    for by_compiled in (True, False):
        own = step_of(row, by_compiled=by_compiled)
        steps = [step_of(one, by_compiled=by_compiled) for one in by_hand]
        known = [step for step in steps if step is not None]
        if own is not None and known:
            return f"{min(known) / own:.1%}" + ("" if by_compiled else " as planned")
    return ""


def table_rows(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """One a plan."""
    for row in rows:
        about = row["row"], ROWS[row["row"]].cluster, row["plan"]
        if "failed" in row:
            yield *about, row["failed"], *[""] * (len(HEADS) - 4)
            continue
        others = [one for one in rows if one["row"] == row["row"]]
        step, peak = row.get("step"), row.get("peak")
        said = "" if row.get("fits", True) else "does not fit"
        yield (
            *about,
            *(row["mesh"], row["shape"], row["schedule"], f"{row['bubble']:.1%}"),
            f"{row['planned step']:.3f}",
            said or row.get("not compiled") or ("" if step is None else f"{step:.3f}"),
            "" if row["plan"].startswith("hand") else over_hand(row, others),
            f"{row['planned peak'] / 2**30:.1f}",
            "" if peak is None else f"{peak / 2**30:.1f}",
            f"{row['planning']:.0f}",
        )


def main() -> None:
    """Measure what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=[], metavar="PART")
    parser.add_argument("--plans", nargs="*", default=[], metavar="PART")
    parser.add_argument("--no-compile", action="store_true", help="the cost model's seconds only")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds a compile (1200)")
    parser.add_argument("--plan-timeout", type=float, default=7200, help="seconds a plan (7200)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the table of a saved file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    results.add_option(parser, "pipeline_experts")
    options = parser.parse_args()
    if options.one:
        with contextlib.redirect_stdout(sys.stderr):
            compiles, timeout = not options.no_compile, options.timeout
            found = measure(options.one, options.kind, compiles=compiles, timeout=timeout)
        print(json.dumps(found))
        return
    rows = SavedRows(POINT, options.show or options.save)
    points = [
        (name, kind)
        for name in ROWS
        for kind in PLANS
        if not options.rows or any(part in name for part in options.rows)
        if not options.plans or any(part in kind for part in options.plans)
    ]
    for name, kind in rows.missing([] if options.show else points):
        more = ["--kind", kind, "--timeout", str(options.timeout)]
        more += ["--no-compile"] if options.no_compile else []
        made = in_a_process(__file__, name, options.plan_timeout, *more)
        print(name, kind, made, file=sys.stderr)
        rows.add((name, kind), made)
    places = {point: place for place, point in enumerate((n, k) for n in ROWS for k in PLANS)}
    measured = sorted(rows, key=lambda row: places[rows.point(row)])
    table = Table(*HEADS)
    for cells in table_rows(measured):
        table.add_row(*cells)
    console = Console(width=None if sys.stdout.isatty() else 220)
    console.print(table)
    if options.csv:
        results.write_rows(options.csv, HEADS, table_rows(measured))
    console.print(machine())


if __name__ == "__main__":
    main()
