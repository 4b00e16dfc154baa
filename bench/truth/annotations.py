"""Programs with lines of annotations and with the whole plan, both compiled: the same collectives?

    python bench/truth/annotations.py [--lines 20] MODULE@CLUSTER ...

Each train step is planned and annotated. Once the whole plan is written into the program, and once
the lines alone: shardings of arguments, and constraints of what lines of the program make or read.
All else is left to Shardy's propagation, that of arguments and results without a line as well, as
``jax.jit`` leaves it. Both are compiled. "as planned" is the share of the bytes, by kind and axes
of collectives, that the program with lines sends of those of the program with the plan; "besides"
what it sends beyond; "said" is the share that the text of the lines promises, of the plan's own
bytes. "step" is one over the other, by the compiler's text. ``flax`` is a small transformer, of
bench/programs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import entries, in_a_process, load, machine, propagate

if TYPE_CHECKING:
    from autoshard.cluster import Cluster
    from autoshard.explain.question import Subject
    from autoshard.ir import mlir
    from autoshard.planned.collective import Collective
    from autoshard.sharding import Mesh

PROGRAMS = (
    "flax@h100:8",
    "llama2_7b_scan_maxtext.train@h100:8",
    "bert_large_hf.train@h100:8",
    "mixtral_8x7b_scan_maxtext.train@v5p:4x4x4",
    "gpt3_175b_scan_maxtext.train@v5p:4x4x4",
)
HEADINGS = ("lines", "said", "planned GB", "as planned", "besides", "step")


def measure(name: str, cluster: str, lines: int, timeout: float) -> dict[str, Any]:
    """Plan, annotate and compile one program."""
    from autoshard.cluster import Cluster
    from autoshard.explain.annotated import annotated_module
    from autoshard.explain.annotations import annotated_values
    from autoshard.ir import new_context, parse_bytes, print_module
    from autoshard.passes.pipeline import run_passes

    on = Cluster.of(cluster)
    subject = _planned(name, cluster)
    found, written = annotated_values(subject, lines)
    whole = parse_bytes(print_module(subject.module, "bytecode"), new_context(), name)
    with whole.context:
        run_passes(whole, ["autoshard-export-shardy"])
    wanted = _compiled(whole, on, subject.mesh, timeout)
    if wanted is None:
        return {"failed": "the plan does not fit"}
    row = {"lines": str(len(found.lines)), "said": f"{found.reproduced:.1%}"}
    annotated = annotated_module(subject, written)
    propagated = parse_bytes(print_module(annotated, "bytecode"), new_context(), name)
    propagate(propagated)
    _lie_as(annotated, propagated)
    return row | _row(wanted, _compiled(annotated, on, subject.mesh, timeout))


def _lie_as(module: mlir.Module, other: mlir.Module) -> None:
    """Arguments and results lie as those of another one; all else is the compiler's."""
    from autoshard.ir import mlir
    from autoshard.ir.boundary import main_function

    with module.context:
        main, found = main_function(module), main_function(other)
        for side in ("arg_attrs", "res_attrs"):
            main.attributes[side] = mlir.Attribute.parse(str(found.attributes[side]))


def _planned(name: str, cluster: str) -> Subject:
    from autoshard.cluster import Cluster
    from autoshard.explain.question import Subject
    from autoshard.passes.recursive_programming import RecursiveProgramming, search_module

    if name == "flax":
        import autoshard
        from bench.programs.flax_transformer import arguments, step

        # donated, as train steps of the corpus are
        return autoshard.plan(step, *arguments(), cluster=cluster, donate_argnums=(0, 1)).subject
    module = load(entries([name])[0])
    planned = search_module(module, Cluster.of(cluster), RecursiveProgramming())
    return Subject(name, module, planned.costed(), planned.summary)


def _compiled(
    module: mlir.Module, cluster: Cluster, mesh: Mesh, timeout: float
) -> tuple[list[Collective], float] | None:
    """Collectives and seconds of a step as compiled; None where it does not fit."""
    from autoshard.verify.hlo_collectives import hlo_collectives
    from autoshard.verify.step_time import estimate_step
    from bench.common.compile_cache import cached_compile

    program = cached_compile(module, cluster, timeout=timeout)
    if not program.fits:
        return None
    assert program.hlo_text is not None, program.no_hlo_text
    seconds = estimate_step(program.hlo_text, mesh, cluster, unknown_trip_count=100)
    collectives = hlo_collectives(program.hlo_text, mesh, unknown_trip_count=100)
    return collectives, seconds.step_seconds


def _row(
    wanted: tuple[list[Collective], float], made: tuple[list[Collective], float] | None
) -> dict[str, str]:
    from autoshard.planned.collective import traffic

    if made is None:
        return {"as planned": "does not fit"}
    planned = {key: one.total_bytes for key, one in traffic(wanted[0]).items()}
    sent = {key: one.total_bytes for key, one in traffic(made[0]).items()}
    whole = sum(planned.values())
    both = sum(min(size, sent.get(key, 0.0)) for key, size in planned.items())
    for key in sorted(planned.keys() | sent.keys(), key=lambda key: -planned.get(key, 0.0)):
        axes = "?" if key[1] is None else ",".join(map(str, key[1]))
        sizes = (planned.get(key, 0.0) / whole, sent.get(key, 0.0) / whole)
        print(f"  {key[0].value} {axes}: {sizes[0]:.1%} {sizes[1]:.1%}", file=sys.stderr)
    return {
        "planned GB": f"{whole / 1e9:.3g}",
        "as planned": f"{both / whole:.1%}",
        "besides": f"{(sum(sent.values()) - both) / whole:.1%}",
        "step": f"{made[1] / wanted[1]:.3f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="MODULE@CLUSTER", default=PROGRAMS)
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=900, help="seconds of a compile (900)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "annotations-compiled")
    given = parser.parse_args()
    if given.one:
        name, _, cluster = given.one.partition("@")
        print(json.dumps(measure(name, cluster, given.lines, given.timeout)))
        return
    table = Table("program", "cluster", title="Lines and whole plans, compiled")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    options = ("--lines", str(given.lines), "--timeout", str(given.timeout))
    for program in given.programs:
        found = in_a_process(__file__, program, 3 * given.timeout, *options)
        print(program, found, file=sys.stderr, flush=True)
        cells = [found.get(heading, "") for heading in HEADINGS]
        cells = [found["failed"], *cells[1:]] if "failed" in found else cells
        table.add_row(*program.split("@"), *cells)
    Console(width=140).print(table)
    print(f"Measured on {machine()}.")
    results.write(given.csv, table)


if __name__ == "__main__":
    main()
