"""Plans as the compiler makes them, before and after the costs are corrected by what it made.

    python bench/truth/refine.py [--programs PART ...] [--clusters NAME ...] [--compiles N]
                                 [--options NAME[=VALUE] ...] [--save FILE]

A program of bench/truth/fidelity.py is planned and refined (``autoshard-refine``): its own plan is
compiled, its costs are corrected by that, and further plans are made by the corrected costs and
compiled: the search's own once more, other meshes, and the forms that experts write, and the best
one once more with each of ``--options``, names of sets or options by value. Each is a row:
step and memory as modelled when it was planned, beside those of its compiled program. The summary
has the errors of plans before corrections and after, and by how much the plan that was taken is
ahead of the search's own and of the best form of an expert. Compiled programs are kept
(bench/common/compile_cache.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.common.corpus import in_a_process, machine
from bench.common.points import SavedRows
from bench.truth.fidelity import PROGRAMS

if TYPE_CHECKING:
    from autoshard.compilers.options import CompilerOptions

POINT = ("program", "cluster")
CLUSTERS = ("h100:8", "v5p:2x2x2")
HEADS = (
    *(
        "program",
        "cluster",
        "looked at",
        "plan",
        "mesh",
        "modelled ms",
        "compiled ms",
        "step error",
    ),
    *("modelled GiB", "compiled GiB", "memory error", "result"),
)


def measure(
    program: str, cluster: str, compiles: int, timeout: float, sets: Sequence[CompilerOptions]
) -> dict[str, Any]:
    """Refine one program for one cluster; the attempts."""
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardWarning, DoesNotFitError
    from autoshard.search.automatic import Planned
    from autoshard.search.plan_pass import RefineProgram
    from autoshard.search.refine import Budget
    from autoshard.verify.verification import Verification, verify_module

    warnings.simplefilter("ignore", AutoshardWarning)
    module, _ = PROGRAMS[program].bytecode()
    options = RefineProgram(cluster=cluster, recompute="auto")

    def verify(planned: Planned, _: float, __: Any, besides: Mapping[str, Any]) -> Verification:
        def compiler(*arguments: Any, **named: Any) -> Any:
            return cached_compile(*arguments, **(named | {"timeout": timeout}))

        return verify_module(
            planned.module, Cluster.of(cluster), compiler=compiler, compiler_options=besides
        )

    start = time.perf_counter()
    try:
        _, found = options.refined(module, verify, Budget(compiles, options=tuple(sets)))
    except DoesNotFitError as error:
        return {"left out": f"does not fit: {error.peak_bytes / 1e9:.1f} GB planned"}
    return {
        "seconds": time.perf_counter() - start,
        "corrections": str(found.corrections),
        "attempts": [
            {
                "kind": one.kind or ("search" if number == 0 else "mesh"),
                "mesh": one.mesh,
                "modelled": one.modelled_scheduled_seconds,
                "compiled": one.scheduled_seconds,
                "modelled peak": one.modelled_peak_bytes,
                "compiled peak": one.compiled_peak_bytes,
                "fits": one.fits,
                "taken": one.is_taken,
                "why": one.why,
                "has options": bool(one.options),
            }
            for number, one in enumerate(found.attempts)
        ],
    }


def options_of(text: str) -> CompilerOptions:
    """The name of a set, or one option by its value."""
    name, is_one, value = text.partition("=")
    return {name: value} if is_one else name


def error(modelled: float, compiled: float | None) -> float | None:
    """Modelled over compiled, less 1."""
    return modelled / compiled - 1 if compiled else None


def cells(row: dict[str, Any]) -> Iterable[list[str]]:
    """A row for each plan."""
    looked_at = "yes" if PROGRAMS[row["program"]].is_looked_at else "no"
    for one in row["attempts"]:
        step, peak = (error(one[f"modelled{s}"], one[f"compiled{s}"]) for s in ("", " peak"))
        yield [
            *(row["program"], row["cluster"], looked_at, one["kind"], one["mesh"]),
            f"{one['modelled'] * 1e3:.2f}",
            f"{one['compiled'] * 1e3:.2f}" if one["compiled"] else "",
            "" if step is None else f"{step:+.1%}",
            f"{one['modelled peak'] / 2**30:.2f}",
            f"{one['compiled peak'] / 2**30:.2f}" if one["compiled peak"] else "",
            "" if peak is None else f"{peak:+.1%}",
            "taken" if one["taken"] else one["why"].partition("\n")[0][:80],
        ]


def summary(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Errors before and after corrections, and what the compiler's choice gained."""
    for looked_at in (True, False):
        group = [row for row in rows if PROGRAMS[row["program"]].is_looked_at == looked_at]
        name = "looked at" if looked_at else "never looked at"
        for what, part in (("first plans", slice(0, 1)), ("plans after corrections", slice(1, 99))):
            plans = [
                one
                for row in group
                for one in row["attempts"][part]
                if not one.get("has options")  # which no model knows
            ]
            for kind in ("", " peak"):
                found = [error(one[f"modelled{kind}"], one[f"compiled{kind}"]) for one in plans]
                sizes = [abs(one) for one in found if one is not None]
                if sizes:
                    yield (
                        f"Programs {name}, {what}, {kind.strip() or 'step as scheduled'}: mean"
                        f" error {sum(sizes) / len(sizes):.1%}, worst {max(sizes):.1%}, of"
                        f" {len(sizes)}."
                    )
    misfits = [row for row in rows if row["attempts"][0]["fits"] is False]
    fitted = [
        row for row in misfits if any(one["taken"] and one["fits"] for one in row["attempts"])
    ]
    yield (
        f"{len(misfits)} first plans do not fit as compiled; for {len(fitted)} of these programs"
        " a plan that fits was taken."
    )
    gains: list[float] = []
    against: list[float] = []
    for row in rows:
        taken = next(one for one in row["attempts"] if one["taken"])
        first = row["attempts"][0]
        if first["compiled"] and first["fits"] and taken["compiled"]:
            gains.append(first["compiled"] / taken["compiled"])
        forms = [
            one["compiled"]
            for one in row["attempts"]
            if one["kind"] in ("fsdp", "data") and one["fits"] and one["compiled"]
        ]
        if forms and taken["compiled"]:
            against.append(taken["compiled"] / min(forms))
    if gains:
        better = sum(gain > 1.0005 for gain in gains)
        yield (
            f"The plan that was taken is faster than the first one for {better} of {len(gains)},"
            f" by {max(gains) - 1:.1%} at most."
        )
    if against:
        yield f"Beside the best form of an expert it takes {max(against):.3f} of it at most."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="*", default=[], metavar="PART")
    parser.add_argument("--clusters", nargs="*", default=CLUSTERS, metavar="NAME")
    parser.add_argument("--compiles", type=int, default=5)
    parser.add_argument("--options", nargs="*", default=[], metavar="NAME[=VALUE]")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a compile (600)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    results.add_option(parser, "refine")
    options = parser.parse_args()
    if options.one:
        found = measure(
            *(options.one, options.cluster, options.compiles, options.timeout),
            [options_of(text) for text in options.options],
        )
        print(json.dumps(found))
        return
    wanted = [
        (name, cluster)
        for name, source in PROGRAMS.items()
        if not options.programs or any(part in name for part in options.programs)
        for cluster in options.clusters
        if cluster in source.clusters
    ]
    rows = SavedRows(POINT, options.save)
    for name, cluster in rows.missing(wanted):
        more = ("--cluster", cluster, "--compiles", str(options.compiles))
        limit = options.timeout * (options.compiles + len(options.options) + 1)
        more += ("--timeout", str(options.timeout), "--options", *options.options)
        made = in_a_process(__file__, name, limit, *more)
        row = rows.add((name, cluster), made)
        if "attempts" in row:
            for line in cells(row):
                print(" | ".join(line), flush=True)
        else:
            print(name, cluster, row.get("left out") or row.get("failed"), flush=True)
    done = [row for row in rows if "attempts" in row]
    done.sort(key=lambda row: PROGRAMS[row["program"]].is_looked_at)
    results.write_rows(options.csv, HEADS, (line for row in done for line in cells(row)))
    for line in summary(done):
        print(line)
    print(f"{len(rows.of_point) - len(done)} programs left out. {machine()}.")


if __name__ == "__main__":
    main()
