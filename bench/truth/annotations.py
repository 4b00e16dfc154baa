"""Programs with lines of annotations and with the whole plan, both compiled: the same collectives?

    python bench/truth/annotations.py [--lines 20] [--compiles 1] MODULE@CLUSTER ...

Each train step is planned and annotated. Once the whole plan is written into the program, and once
the lines alone: shardings of arguments, and constraints of what lines of the program make or read.
All else is left to Shardy's propagation, that of arguments and results without a line as well, as
``jax.jit`` leaves it. Both are compiled. "as planned" is the share of the bytes, by kind and axes
of collectives, that the program with lines sends of those of the program with the plan; "besides"
what it sends beyond; "said" is the share that the text of the lines promises, of the plan's own
bytes. "step" is one over the other, by the compiler's text. With several ``--compiles`` the
compiler has a say in the lines. ``flax`` is a small transformer, of bench/programs.
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
from bench.common.corpus import entries, in_a_process, load, machine

if TYPE_CHECKING:
    from autoshard.explain.question import Subject

PROGRAMS = (
    "flax@h100:8",
    "llama2_7b_scan_maxtext.train@h100:8",
    "bert_large_hf.train@h100:8",
    "mixtral_8x7b_scan_maxtext.train@v5p:4x4x4",
    "gpt3_175b_scan_maxtext.train@v5p:4x4x4",
)
HEADINGS = ("lines", "said", "planned GB", "as planned", "besides", "step")


def measure(name: str, cluster: str, lines: int, compiles: int, timeout: float) -> dict[str, Any]:
    """Plan, annotate and compile one program."""
    from autoshard.errors import CompileError
    from autoshard.explain.annotations import annotate_as_compiled
    from autoshard.explain.compiled_lines import LinesCompiler

    subject = _planned(name, cluster)
    # Kept compiles have no names of ops, by which lines are chosen.
    compiler = LinesCompiler(subject, timeout=timeout)
    try:
        found = annotate_as_compiled(subject, compiler, lines, compiles)
    except CompileError as error:
        return {"failed": error.message}
    made = found.as_compiled
    assert made is not None
    row = {"lines": str(len(found.lines)), "said": f"{found.reproduced:.1%}"}
    for title, shares in (("missing", made.missing), ("besides", made.other)):
        for one in shares:
            share = one.bytes / made.planned_bytes
            print(f"  {title} {one.kind} {','.join(one.axes)}: {share:.1%}", file=sys.stderr)
    row["planned GB"] = f"{made.planned_bytes / 1e9:.3g}"
    if not made.program.fits:
        return row | {"as planned": "does not fit"}
    besides = sum(one.bytes for one in made.other)
    return row | {
        "as planned": f"{made.reproduced:.1%}",
        "besides": f"{besides / made.planned_bytes:.1%}",
        "step": f"{made.step_seconds / made.planned_seconds:.3f}",
    }


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="MODULE@CLUSTER", default=PROGRAMS)
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--compiles", type=int, default=1, help="of programs with lines (1)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds of a compile (900)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "annotations-compiled")
    given = parser.parse_args()
    if given.one:
        name, _, cluster = given.one.partition("@")
        print(json.dumps(measure(name, cluster, given.lines, given.compiles, given.timeout)))
        return
    table = Table("program", "cluster", title="Lines and whole plans, compiled")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    options = ("--lines", str(given.lines), "--compiles", str(given.compiles))
    options += ("--timeout", str(given.timeout))
    for program in given.programs:
        found = in_a_process(__file__, program, (given.compiles + 2) * given.timeout, *options)
        print(program, found, file=sys.stderr, flush=True)
        cells = [found.get(heading, "") for heading in HEADINGS]
        cells = [found["failed"], *cells[1:]] if "failed" in found else cells
        table.add_row(*program.split("@"), *cells)
    Console(width=140).print(table)
    print(f"Measured on {machine()}.")
    results.write(given.csv, table)


if __name__ == "__main__":
    main()
