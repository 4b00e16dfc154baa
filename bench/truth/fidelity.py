"""What plans say of themselves, beside what the real compilers make of them.

    python bench/truth/fidelity.py [--programs PART ...] [--clusters NAME ...] [--plans KIND ...]
                                   [--save FILE] [--show FILE] [--releases FILE ...]

A point is a program, a cluster and a plan: autoshard's own, or one that an expert would write
(bench/common/hand_plans.py: data parallel, FSDP, tensor parallel), whose interior autoshard
completes. It is planned, exported and compiled ahead of time in a process of its own, no device
needed. Then

- the predicted peak of memory stands beside the compiler's own; a plan that was said to fit and
  does not is named,
- the bytes that a device sends beside those of the compiled program, and the share of them with
  the planned kind over the planned axes,
- values that the partitioner replicates ("involuntary full rematerialization") are counted,
- the predicted seconds of a step beside those of the compiled program as scheduled, with nothing
  and with all hidden beside it; over all pairs of plans of one program and cluster the plan and the
  schedule should order the plans alike.

The worst rows come first, and none is left out: what fails says why. Compiled programs are kept
(bench/common/compile_cache.py); ``--save`` keeps the rows as well, and a later run with the same
file measures only what it lacks. What releases of a compiler make of a point stands side by side
with ``--releases``, given a file for each: rows are of one release, that of the environment it runs
in.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import attach, in_a_process, machine
from bench.common.points import (
    STEP_FIELDS,
    SavedRows,
    compiled_peak,
    compiled_row,
    peak_error,
    step_fields,
)
from bench.common.sources import Lowered, lowered, of_case, of_corpus, of_written
from bench.programs.published import PUBLISHED
from bench.programs.written import WRITTEN

CLUSTERS = ("v5e:4x4", "v5p:2x2x2", "v5p:4x4x4", "h100:8")
POINT = ("program", "cluster", "plan")
KINDS = ("ours", "data", "fsdp", "tensor")
"""Kinds of plans: ours, and of hand plans the first whose name begins so and whose mesh has tensor
axes of 4, if it can."""

PEAK_MEAN, PEAK_WORST = 0.05, 0.12
BYTES_WITHIN, BYTES_POINTS = 0.03, 0.9
KINDS_SHARE = 0.95
RANKED_APART, RANKED_PAIRS = 0.05, 0.9
"""The aims: errors of the peak; bytes within 3% on 90% of the points; 95% of the bytes of the right
kind over the right axes; 90% of the pairs of plans that differ by 5% in the same order."""

REMATERIALIZED = "nvoluntary full rematerialization"


# Programs


@dataclass(frozen=True)
class Source:
    """Where a module comes from, and what its arguments are."""

    bytecode: Callable[[], Lowered]
    clusters: tuple[str, ...] = CLUSTERS
    is_looked_at: bool = True
    """Whether a rule of the model of costs may have been found on it."""


def _of_llama(size: str, changes: dict[str, Any]) -> Lowered:
    from bench.programs.llama import LLAMA2, ROLES, train_step

    step, arguments = train_step(dataclasses.replace(LLAMA2[size], **changes))
    return lowered(step, ROLES, arguments)


def _of_part(name: str, remat: bool) -> Lowered:
    from bench.programs.fidelity import PARTS

    return of_case(PARTS[name](remat))


def _of_storage(name: str) -> Lowered:
    from bench.programs.storage import CASES

    return of_case(CASES[name]())


def _of_published(name: str) -> Lowered:
    return of_case(PUBLISHED[name]())


def _of_many_layers() -> Lowered:
    from bench.programs.storage import feed_forward

    return of_case(feed_forward(remat=True, layers=16, tokens=262144))


def _llama(size: str, **changes: Any) -> Source:
    return Source(functools.partial(_of_llama, size, changes))


def _part(name: str, remat: bool) -> Source:
    return Source(functools.partial(_of_part, name, remat))


def _storage(name: str, *clusters: str) -> Source:
    return Source(functools.partial(_of_storage, name), clusters or CLUSTERS)


def _published(name: str, *clusters: str) -> Source:
    return Source(functools.partial(_of_published, name), clusters, is_looked_at=False)


def _written(name: str, *clusters: str) -> Source:
    return Source(functools.partial(of_written, name), clusters, is_looked_at=False)


def _corpus(name: str, *clusters: str) -> Source:
    return Source(functools.partial(of_corpus, name), clusters or CLUSTERS)


_SHORT: dict[str, Any] = {"tokens": 2048, "batch": 64}

SLICES = ("v5e:4x4", "v5p:2x2x4", "v6e:4x4")

PROGRAMS: dict[str, Source] = {
    "feed-forward": _part("feed-forward", False),
    "feed-forward, remat": _part("feed-forward", True),
    "output": _part("output", False),
    "output, remat": _part("output", True),
    "attention": _part("attention", False),
    "attention, remat": _part("attention", True),
    "feed-forward adam": _storage("feed-forward adam"),
    "feed-forward adam, remat": _storage("feed-forward adam, remat"),
    "feed-forward adam, remat, 16 layers": Source(_of_many_layers, ("h100:8",)),
    "feed-forward, 2 layers": _part("feed-forward, 2 layers", False),
    "feed-forward, 2 layers, remat": _part("feed-forward, 2 layers", True),
    "llama 7B, 4 layers, scan": _llama("7B", **_SHORT, layers=4, scan=True),
    "llama 7B, 4 layers, scan, remat": _llama("7B", **_SHORT, layers=4, scan=True, remat=True),
    "mlp adam, wide": _storage("mlp adam, wide"),
    "convnet momentum": _storage("convnet momentum"),
    "llama2_7b_scan_maxtext.train": _corpus("llama2_7b_scan_maxtext.train", "v5p:4x4x4", "h100:8"),
    "mixtral_8x7b_scan_maxtext.train": _corpus("mixtral_8x7b_scan_maxtext.train", "v5p:4x4x4"),
    "gpt3_175b_scan_maxtext.train": _corpus("gpt3_175b_scan_maxtext.train", "v5p:4x4x4"),
    "resnet50_keras.fwd": _corpus("resnet50_keras.fwd", "v5e:4x4", "h100:8"),
    "resnet50_keras.train": _corpus("resnet50_keras.train", "v5p:2x2x2", "h100:8"),
    "bert_large_hf.fwd": _corpus("bert_large_hf.fwd", "v5e:4x4", "h100:8"),
    "bert_large_hf.train": _corpus("bert_large_hf.train", "h100:8"),
    "vit_l16_hf.train": _corpus("vit_l16_hf.train", "h100:8"),
    "gnn_jraph.train": _corpus("gnn_jraph.train", "v5e:4x4", "h100:8"),
    "ppo_ant_brax.step": _corpus("ppo_ant_brax.step", "v5e:4x4", "v5p:2x2x2", "h100:8"),
    **{name: _published(name, "v5p:2x2x2", "h100:8") for name in PUBLISHED},
    **{name: _written(name, *SLICES, "h100:8") for name in WRITTEN},
}


# One point, in a process of its own


def measure(program: str, cluster_name: str, kind: str, timeout: float) -> dict[str, Any]:
    """Plan, export and compile one point; the row."""
    from autoshard.cluster import Cluster
    from autoshard.passes.pipeline import run_passes
    from autoshard.passes.recursive_programming import RecursiveProgramming

    row, module = plan_point(program, cluster_name, kind)
    if module is None:
        return row
    run_passes(module, ["autoshard-export-shardy"])
    trips, cluster = RecursiveProgramming().trip_count, Cluster.of(cluster_name)
    return row | compiled(module, cluster, row["mesh"], trips, timeout)


def plan_point(program: str, cluster_name: str, kind: str) -> tuple[dict[str, Any], Any]:
    """What the plan of a point says, and its module; None: the row says why there is no plan."""
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardError, AutoshardWarning, DoesNotFitError
    from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
    from bench.common.hand_plans import hand_plans

    warnings.simplefilter("ignore", AutoshardWarning)
    cluster = Cluster.of(cluster_name)
    module, arguments = PROGRAMS[program].bytecode()
    mesh = ""
    if kind != "ours":
        plan = chosen(hand_plans(arguments, cluster.num_devices), kind)
        if plan is None:
            return {"left out": f"no plan {kind}"}, None
        attach(module, plan.sdy_axes, plan.sdy_cuts())
        mesh = plan.mesh
    options = RecursiveProgramming(mesh=mesh)
    row: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        planned = search_module(module, cluster, options)
    except DoesNotFitError as error:
        return {"left out": f"does not fit: {error.peak_bytes / 1e9:.1f} GB planned"}, None
    except AutoshardError as error:
        return {"failed": f"{type(error).__name__}: {error.message[:200]}"}, None
    summary = planned.summary
    row |= {
        "planning": time.perf_counter() - start,
        "mesh": summary.mesh,
        "step": summary.step_seconds,
        "bound": summary.lower_bound_seconds,
        "planned as scheduled": summary.scheduled_seconds,
        "planned all hidden": summary.all_hidden_seconds,
        "planned exposed": sum(c.exposed_seconds or 0.0 for c in summary.collectives),
        "compute": summary.compute_seconds,
        "communication": summary.communication_seconds,
        "peak": summary.peak_bytes_per_device,
        "planned collectives": [
            [c.kind, ",".join(c.axes), c.bytes, c.times, c.seconds or 0.0, c.location or ""]
            for c in summary.collectives
        ],
    }
    return row, module


def chosen(plans: Iterable[Any], kind: str) -> Any:
    """The hand plan of a kind; of tensor parallel ones that of 4, else the largest below."""
    named = [plan for plan in plans if plan.name.partition(" ")[0] == kind]
    if kind != "tensor":
        return named[0] if named else None
    sizes = {int(plan.name.split()[1]): plan for plan in named}
    return sizes.get(4) or (sizes[max(sizes)] if sizes else None)


def compiled(
    module: Any, cluster: Any, mesh_text: str, trips: int, timeout: float
) -> dict[str, Any]:
    """What the compiler makes of an exported module."""
    from autoshard.errors import CompileError
    from autoshard.sharding import Mesh
    from autoshard.verify.step_time import estimate_step
    from bench.common.compile_cache import cached_compile

    try:
        found = cached_compile(module, cluster, timeout=timeout)
    except CompileError as error:
        return {"failed": error.message[:300]}
    row = compiled_row(found)
    row["rematerialized"] = sum(REMATERIALIZED in line for line in found.messages)
    if found.hlo_text is None:
        return row | {"no text": found.no_hlo_text or found.refusal or "no HLO text"}
    mesh = Mesh.parse(mesh_text)
    estimate = estimate_step(found.hlo_text, mesh, cluster, unknown_trip_count=trips)
    row |= {
        "estimate": estimate.step_seconds,
        "estimated compute": estimate.compute_seconds,
        "estimated communication": estimate.communication_seconds,
        "uncounted loops": list(estimate.uncounted_loops),
        **step_fields(estimate),
        "exposed": estimate.schedule.exposed_seconds,
    }
    row["compiled collectives"] = [
        [
            each.collective.kind.value,
            "?" if each.collective.axes is None else ",".join(map(str, each.collective.axes)),
            each.collective.moved_bytes,
            each.collective.times,
            each.seconds,
            each.collective.place or "",
        ]
        for each in estimate.collectives
    ]
    return row


# The table


def total(row: dict[str, Any], key: str) -> float:
    """Bytes that a device sends in one step."""
    return sum(each[2] * each[3] for each in row[key])


def bytes_error(row: dict[str, Any]) -> float | None:
    """Planned over compiled bytes, less 1; None where the program has no text."""
    if "compiled collectives" not in row:
        return None
    ours, theirs = total(row, "planned collectives"), total(row, "compiled collectives")
    if theirs == 0:
        return 0.0 if ours == 0 else math.inf
    return ours / theirs - 1


def right_bytes(row: dict[str, Any]) -> tuple[float, float]:
    """Bytes of planned kind and axes among the compiled ones, and all compiled ones."""
    planned = Counter[tuple[str, str]]()
    made = Counter[tuple[str, str]]()
    for counter, key in ((planned, "planned collectives"), (made, "compiled collectives")):
        for kind, axes, size, times, *_ in row[key]:
            counter[kind, axes] += size * times
    return sum(min(made[key], planned[key]) for key in made), sum(made.values())


def ranked(rows: Iterable[dict[str, Any]], by: str) -> tuple[list[str], int]:
    """Pairs of plans in another order than compiled, and how many pairs are apart.

    Args:
        rows: Those without seconds of that name are left out.
        by: Which of the compiled program's seconds decide, ``as scheduled``.
    """
    wrong: list[str] = []
    pairs = 0
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if compiled_seconds(row, by):
            groups.setdefault((row["program"], row["cluster"]), []).append(row)
    for (program, cluster), plans in groups.items():
        for one, other in combinations(plans, 2):
            seconds = [compiled_seconds(each, by) or 0.0 for each in (one, other)]
            apart = seconds[0] / seconds[1]
            if max(apart, 1 / apart) <= 1 + RANKED_APART:
                continue
            pairs += 1
            planned = [planned_seconds(each, by) for each in (one, other)]
            if (planned[0] > planned[1]) != (apart > 1):
                wrong.append(
                    f"{program}, {cluster}: {one['plan']} {planned[0] * 1e3:.1f} and"
                    f" {other['plan']} {planned[1] * 1e3:.1f} ms planned,"
                    f" {seconds[0] * 1e3:.1f} and {seconds[1] * 1e3:.1f} ms {by}"
                )
    return wrong, pairs


def badness(row: dict[str, Any]) -> float:
    """How far a row is from the aims; what failed is worst."""
    if "failed" in row or not row["fits"]:
        return math.inf
    found = [abs(peak_error(row) or 0) / PEAK_WORST]
    error = bytes_error(row)
    if error is not None:
        found.append(min(abs(error), 10) / BYTES_WITHIN / 4)
        right, all_bytes = right_bytes(row)
        if all_bytes:
            found.append((1 - right / all_bytes) / (1 - KINDS_SHARE) / 4)
    return max(found)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    head = [row["program"], row["cluster"], row["plan"]]
    if "failed" in row:
        return [*head, "", row["failed"]]
    peak, error = peak_error(row), bytes_error(row)
    cells = [
        *head,
        row["mesh"],
        f"{row['peak'] / 2**30:.2f}",
        f"{row['live'] / 2**30:.2f}" if row.get("live") else "",
        f"{row['needed'] / 2**30:.2f}",
        "" if peak is None else f"{peak:+.1%}",
        "yes" if row["fits"] else "NO",
        f"{total(row, 'planned collectives') / 1e9:.3f}",
    ]
    if error is None:
        return [*cells, "", row["no text"][:60]]
    right, all_bytes = right_bytes(row)
    return [
        *cells,
        f"{total(row, 'compiled collectives') / 1e9:.3f}",
        f"{error:+.1%}",
        f"{right / all_bytes:.0%}" if all_bytes else "-",
        str(row["rematerialized"]),
        *step_cells(row),
        f"{row['compile']:.0f}",
    ]


def step_cells(row: dict[str, Any]) -> list[str]:
    """Milliseconds of a step, planned and the three of the compiled program."""
    return [_milliseconds(one) for one in (row["step"], *_compiled(row))]


def _compiled(row: dict[str, Any]) -> list[float | None]:
    return [compiled_seconds(row, name) for name in STEP_FIELDS]


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f}"


def schedule_cells(row: dict[str, Any]) -> list[str]:
    """Milliseconds of a step, planned and compiled, each with nothing hidden, as scheduled, with
    all hidden, and what is exposed."""
    planned = (row["step"], row.get("planned as scheduled"), row.get("planned all hidden"))
    sides = (*planned, row.get("planned exposed"), *_compiled(row), row.get("exposed"))
    return [_milliseconds(one) for one in sides]


HEADS = (
    *("program", "cluster", "plan", "mesh", "peak GiB", "compiled", "allocated", "error"),
    *("fits", "sent GB", "compiled", "error", "right", "remat", "step ms", *STEP_FIELDS, "s"),
)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """All rows, worst first."""
    made = Table(title="Planned beside compiled; sent bytes and peaks of one device")
    for index, head in enumerate(HEADS):
        made.add_column(head, overflow="fold", justify="left" if index < 4 else "right")
    for row in sorted(rows, key=badness, reverse=True):
        made.add_row(*cells(row))
    return made


PAGE_HEADS = ("program", "cluster", "plan", "planned GiB", "compiled GiB", "error", "sent bytes")


def page_rows(rows: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """Peaks and bytes of all points that were compiled, the worst peak first."""
    known = [row for row in rows if "failed" not in row and peak_error(row) is not None]
    for row in sorted(known, key=lambda row: -abs(peak_error(row) or 0)):
        theirs, sent = compiled_peak(row), bytes_error(row)
        yield [
            *(row[name] for name in POINT),
            f"{row['peak'] / 2**30:.2f}",
            f"{(theirs or 0) / 2**30:.2f}",
            f"{peak_error(row) or 0:+.1%}",
            "" if sent is None else f"{sent:+.1%}",
        ]


def compiled_seconds(row: dict[str, Any], name: str) -> float | None:
    """Seconds of the compiled step, by one of ``STEP_FIELDS``.

    Rows that were saved before schedules were simulated have those with nothing hidden alone.
    """
    return row.get(name, row.get("estimate") if name == "nothing hidden" else None)


def planned_seconds(row: dict[str, Any], name: str) -> float:
    """Seconds of the planned step, by one of ``STEP_FIELDS``; of rows that were saved before plans
    had a schedule, and of host transfers that hide, those of the plan."""
    return row.get(f"planned {name}") or row["step"]


SCHEDULE_HEADS = (
    *("planned ms", *(f"planned {name} ms" for name in (*STEP_FIELDS[1:], "exposed"))),
    *(f"{name} ms" for name in (*STEP_FIELDS, "exposed")),
)
STEP_HEADS = (*POINT, *SCHEDULE_HEADS)


def step_rows(rows: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """Seconds of all points whose schedule was simulated, the worst first."""
    known = [row for row in rows if "as scheduled" in row]
    for row in sorted(known, key=lambda row: -abs(step_error(row, "as scheduled") or 0)):
        yield [*(row[name] for name in POINT), *schedule_cells(row)]


UNSEEN_HEADS = (
    *(*POINT, "planned GiB", "compiled GiB", "error"),
    *(*SCHEDULE_HEADS, "note"),
)


def unseen_rows(rows: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """Peaks and seconds of the programs that no rule was found on; of what failed, the reason."""
    for row in rows:
        if PROGRAMS[row["program"]].is_looked_at:
            continue
        found = [row[name] for name in POINT]
        theirs = compiled_peak(row)
        if theirs is None:
            empty = [""] * (len(UNSEEN_HEADS) - len(found) - 1)
            yield [*found, *empty, row.get("failed", row.get("no text", "")).splitlines()[0][:160]]
            continue
        peaks = (f"{row['peak'] / 2**30:.2f}", f"{theirs / 2**30:.2f}")
        yield [*found, *peaks, f"{peak_error(row) or 0:+.1%}", *schedule_cells(row), ""]


def step_error(row: dict[str, Any], against: str) -> float | None:
    """Planned seconds over the compiled program's of that name, less 1; None without these."""
    compiled = compiled_seconds(row, against)
    return planned_seconds(row, against) / compiled - 1 if compiled else None


CLUSTER_HEADS = ("cluster", "points", "mean error", "largest", "within 12%", "bytes within 3%")


def cluster_rows(rows: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """How far plans are from the compiler on each cluster, and on all."""
    known = [row for row in rows if "failed" not in row and peak_error(row) is not None]
    for cluster in (*dict.fromkeys(row["cluster"] for row in known), "all"):
        here = [row for row in known if cluster in (row["cluster"], "all")]
        errors = [peak_error(row) or 0 for row in here]
        sent = [abs(error) for row in here if (error := bytes_error(row)) is not None]
        yield [
            *(cluster, str(len(here)), f"{sum(map(abs, errors)) / len(errors):.1%}"),
            f"{max(errors, key=abs):+.1%}",
            str(sum(abs(error) <= PEAK_WORST for error in errors)),
            f"{sum(error <= BYTES_WITHIN for error in sent)} of {len(sent)}",
        ]


RELEASE_HEADS = (
    *("program", "cluster", "plan", "compiled by", "compute ms", "communication ms"),
    *("sent GB", "collectives run", "peak GiB"),
)


def releases(rows: Iterable[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    """What each release makes of the points."""
    for row in sorted(rows, key=lambda row: [row[name] for name in POINT]):
        if "compiled collectives" not in row:
            continue
        runs = Counter[str]()
        for kind, _, _, times, *_ in row["compiled collectives"]:
            runs[kind] += times
        yield (
            *(row["program"], row["cluster"], row["plan"], row["compiler"]),
            f"{row['estimated compute'] * 1e3:.2f}",
            f"{row['estimated communication'] * 1e3:.2f}",
            f"{total(row, 'compiled collectives') / 1e9:.3f}",
            ", ".join(f"{times} {kind}" for kind, times in sorted(runs.items())),
            f"{row['live'] / 2**30:.2f}",
        )


def summary(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """One line for each aim."""
    done = [row for row in rows if "failed" not in row]
    peaks = [abs(error) for row in done if (error := peak_error(row)) is not None]
    yield f"{len(rows)} points, {len(rows) - len(done)} failed."
    yield f"Compiled by {'; '.join(sorted({row['compiler'] for row in done}))}."
    uncounted = sum(bool(row.get("uncounted loops")) for row in done)
    yield f"{uncounted} programs with loops whose trips are not found."
    if not done:
        return
    yield (
        f"Peak: mean error {sum(peaks) / len(peaks):.1%} (aim {PEAK_MEAN:.0%}), worst"
        f" {max(peaks):.1%} (aim {PEAK_WORST:.0%})."
    )
    for is_looked_at in (True, False):
        group = [row for row in done if PROGRAMS[row["program"]].is_looked_at == is_looked_at]
        yield from group_summary("looked at" if is_looked_at else "never looked at", group)
    misfits = [row for row in done if not row["fits"]]
    yield f"{len(misfits)} plans that were said to fit do not (aim 0)."
    with_text = [row for row in done if "compiled collectives" in row]
    close = sum(abs(bytes_error(row) or 0) <= BYTES_WITHIN for row in with_text)
    yield (
        f"Bytes within {BYTES_WITHIN:.0%} on {close} of {len(with_text)} points,"
        f" {close / max(1, len(with_text)):.0%} (aim {BYTES_POINTS:.0%})."
    )
    shares = [right_bytes(row) for row in with_text]
    right, all_bytes = (sum(each[k] for each in shares) for k in (0, 1))
    per_point = [r / a for r, a in shares if a]
    yield (
        f"Kind and axes as planned: {right / max(1, all_bytes):.1%} of all bytes, on average"
        f" {sum(per_point) / max(1, len(per_point)):.1%} of a point's (aim {KINDS_SHARE:.0%})."
    )
    ours = [row for row in done if row["plan"] == "ours"]
    yield (
        f"{sum(row['rematerialized'] for row in ours)} involuntary rematerialisations in our"
        f" {len(ours)} plans (aim 0), {sum(row['rematerialized'] for row in done)} in all."
    )
    for name in STEP_FIELDS:
        steps = [abs(error) for row in done if (error := step_error(row, name)) is not None]
        if steps:
            mean = sum(steps) / len(steps)
            yield f"Step, {name}: mean error {mean:.1%}, worst {max(steps):.1%} of {len(steps)}."
    both = [row for row in done if "planned exposed" in row and "exposed" in row]
    if both:
        apart = [abs(row["planned exposed"] - row["exposed"]) / row["as scheduled"] for row in both]
        planned, found = (sum(row[key] for row in both) for key in ("planned exposed", "exposed"))
        yield (
            f"Exposed: {planned * 1e3:.1f} ms planned and {found * 1e3:.1f} compiled, apart by"
            f" {sum(apart) / len(apart):.1%} of a step, worst {max(apart):.1%}, of {len(both)}."
        )
    for by in ("as scheduled", "nothing hidden"):
        wrong, pairs = ranked(done, by)
        if pairs:
            yield (
                f"Order of plans, {by}: {pairs - len(wrong)} of {pairs} pairs that are"
                f" {RANKED_APART:.0%} apart, {1 - len(wrong) / pairs:.0%} (aim"
                f" {RANKED_PAIRS:.0%}). Wrong:"
            )
            yield from (f"  {pair}" for pair in wrong)


def group_summary(name: str, rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Errors of peaks and of steps as scheduled, of one group of programs."""
    peaks = [error for row in rows if (error := peak_error(row)) is not None]
    steps = [error for row in rows if (error := step_error(row, "as scheduled")) is not None]
    for what, errors in (("peak", peaks), ("step as scheduled", steps)):
        if errors:
            sizes = list(map(abs, errors))
            yield (
                f"Programs {name}, {what}: mean error {sum(sizes) / len(sizes):.1%}, worst"
                f" {max(sizes):.1%}, of {len(sizes)}."
            )


def points(options: argparse.Namespace) -> Iterable[tuple[str, str, str]]:
    """Program, cluster and plan, cheap programs first."""
    for program, source in PROGRAMS.items():
        if options.programs and not any(part in program for part in options.programs):
            continue
        for cluster in options.clusters:
            if cluster in source.clusters:
                yield from ((program, cluster, kind) for kind in options.plans)


def write_tables(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Files for the pages: programs that rules may have been found on, and the others apart."""
    seen = [row for row in rows if PROGRAMS[row["program"]].is_looked_at]
    if seen:
        results.write_rows(file, PAGE_HEADS, page_rows(seen))
        clusters = file.with_stem(f"{file.stem}-clusters")
        results.write_rows(clusters, CLUSTER_HEADS, cluster_rows(seen))
        results.write_rows(file.with_stem(f"{file.stem}-steps"), STEP_HEADS, step_rows(seen))
    if len(seen) < len(rows):
        unseen = file.with_stem(f"{file.stem}-unseen")
        results.write_rows(unseen, UNSEEN_HEADS, unseen_rows(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="*", default=[], metavar="PART")
    parser.add_argument("--clusters", nargs="*", default=CLUSTERS, metavar="NAME")
    parser.add_argument("--plans", nargs="*", default=KINDS, metavar="KIND", choices=KINDS)
    parser.add_argument("--timeout", type=float, default=600, help="seconds a compile (600)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the table of a saved file")
    parser.add_argument("--releases", type=Path, nargs="+", help="saved files, side by side")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    results.add_option(parser, "fidelity")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.cluster, options.plan, options.timeout)))
        return
    if options.releases:
        of_all = [row for file in options.releases for row in SavedRows(POINT, file)]
        rows_of_all = list(releases(of_all))
        for cells_of_one in (RELEASE_HEADS, *rows_of_all):
            print(" | ".join(cells_of_one))
        file = options.csv and options.csv.with_stem(f"{options.csv.stem}-releases")
        results.write_rows(file, RELEASE_HEADS, rows_of_all)
        return
    console = Console(width=None if sys.stdout.isatty() else 260)
    rows = SavedRows(POINT, options.show or options.save)
    for program, cluster, kind in rows.missing(() if options.show else points(options)):
        more = ("--cluster", cluster, "--plan", kind, "--timeout", str(options.timeout))
        made = in_a_process(__file__, program, options.timeout + 120, *more)
        row = rows.add((program, cluster, kind), made)
        if "left out" not in row:
            console.print(f"[dim]{' | '.join(cells(row))}")
    measured = [row for row in rows if "left out" not in row]
    console.print(table(measured))
    if options.csv:
        write_tables(options.csv, measured)
    for line in summary(measured):
        console.print(line)
    left_out = len(rows.of_point) - len(measured)
    console.print(f"{left_out} points have no such plan or do not fit by plan. {machine()}.")


if __name__ == "__main__":
    main()
