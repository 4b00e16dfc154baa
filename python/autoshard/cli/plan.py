"""The command ``autoshard plan``: plan a function of a script, and keep the plans."""

from __future__ import annotations

import argparse
import inspect
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from autoshard.cli.output import printing
from autoshard.errors import AutoshardError, DoesNotFitError, PlanError

if TYPE_CHECKING:
    from autoshard.cluster import Cluster
    from autoshard.cluster.failures import Remaining

OK, NO_PLAN = 0, 2
"""Exit codes; 1 is an error."""

DESCRIPTION = (
    "Plan a step for a cluster that need not be here, and write the plan for"
    " autoshard.jit(.., plan=FILE). With --for-failures, also for what is left of the cluster after"
    " so many slices or nodes have failed, so that a job goes on without waiting for a plan."
)
EPILOG = """\
A script says what is planned by a function that returns it:

  def planned(cluster):                        # or without arguments
      batch = 8 * cluster.num_devices
      return train_step, (params, state, types(batch)), {"donate_argnums": (0, 1)}

  autoshard plan train.py:planned --cluster v5p:4x4x4*4 --for-failures 3 --compile -o plans

writes plans/slice-4.json, slice-3.json, slice-2.json and slice-1.json. The options are those of
autoshard.plan. The script runs: the command is for scripts of your own.

exit codes:
  0  all plans are written
  1  the script cannot be run, or says nothing that can be planned: a message says why
  2  for some of the clusters there is no plan, or it was not compiled: the table says why
"""


@dataclass(frozen=True)
class Row:
    """What became of one cluster."""

    cluster: str
    devices: int
    mesh: str = ""
    step_seconds: float | None = None
    peak_bytes: float | None = None
    file: str = ""
    said: str = ""
    """Result of the compiler, or why there is no plan."""
    is_done: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command is given."""
    parser.add_argument(
        "target", metavar="FILE.py:NAME", help="a function that returns what is planned, see below"
    )
    parser.add_argument("--cluster", required=True, help="v5p:4x4x4*4, h100:4x8, or a TOML file")
    parser.add_argument(
        "--for-failures",
        type=int,
        default=0,
        metavar="N",
        help="plan for one slice or node less, two less, .. up to N less, too",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile each plan, as autoshard-verify does: its compiler has to be installed",
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of a compiler (600)")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="with --for-failures: a directory"
    )


def run(given: argparse.Namespace) -> int:
    """Plan, write and print; the exit code.

    Raises:
        AutoshardError: The script has no such function, it returns something else, or the cluster
            has no parts that fail.
    """
    from rich.console import Console

    from autoshard.cluster import Cluster
    from autoshard.cluster.failures import remaining

    what = _function(given.target)
    cluster = Cluster.of(given.cluster)
    output = Path(given.output)
    rows: list[Row] = []
    if given.for_failures:
        left = list(remaining(cluster, given.for_failures))
        output.mkdir(parents=True, exist_ok=True)
        for one in left:
            rows.append(_row(what, one.cluster, output / _file_name(one), given))
    else:
        rows.append(_row(what, cluster, output, given))
    with printing():
        Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(_table(rows))
    return OK if all(row.is_done for row in rows) else NO_PLAN


def _file_name(left: Remaining) -> str:
    return f"{left.part}-{left.count}.json"


def _function(target: str) -> Callable[..., Any]:
    """The function that says what is planned."""
    path, colon, name = target.rpartition(":")
    if not colon or not Path(path).is_file():
        raise PlanError(f"{target}: there is no such script. Give FILE.py:NAME, train.py:planned.")
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)  # as for a script that Python runs
    found = runpy.run_path(path, run_name=Path(path).stem).get(name)
    if not callable(found):
        raise PlanError(f"{path} has no function {name}. It returns what is planned: see --help.")
    return cast(Callable[..., Any], found)


def _asked(
    what: Callable[..., Any], cluster: Cluster
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """A function, its arguments, and options of ``autoshard.plan``."""
    said: Any = what(cluster) if inspect.signature(what).parameters else what()
    parts = list(cast("tuple[Any, ...]", said)) if isinstance(said, tuple) else []
    if len(parts) == 2:
        parts.append({})
    if len(parts) == 3:
        fn, args, options = parts
        if callable(fn) and isinstance(args, tuple | list) and isinstance(options, Mapping):
            return fn, cast(Sequence[Any], args), cast(Mapping[str, Any], options)
    kind = type(cast("object", said)).__name__
    raise PlanError(
        f"{getattr(what, '__name__', what)} returns {kind}. It has to return the"
        " function, a tuple of its arguments (types will do), and perhaps a dict of options."
    )


def _row(what: Callable[..., Any], cluster: Cluster, path: Path, given: argparse.Namespace) -> Row:
    """Plan for one cluster, write the plan, compile it."""
    from autoshard.frontend.planning import plan

    fn, args, options = _asked(what, cluster)
    try:
        found = plan(fn, *args, **cast(Any, {**options, "cluster": cluster}))
    except DoesNotFitError as error:
        return Row(cluster.name, cluster.num_devices, said=error.found, is_done=False)
    found.save(path)
    row = Row(
        cluster.name,
        cluster.num_devices,
        mesh=str(found.mesh),
        step_seconds=found.step_seconds,
        peak_bytes=found.peak_bytes,
        file=str(path),
    )
    if not given.compile:
        return row
    try:
        fits = found.verify(timeout=given.timeout).fits
    except AutoshardError as error:
        return replace(row, said=f"not compiled: {error.message}", is_done=False)
    said = "compiled, fits" if fits else "compiled, does not fit: see autoshard-verify"
    return replace(row, said=said, is_done=fits)


def _table(rows: Sequence[Row]) -> Any:
    from autoshard.planned.summary import bytes_text, seconds_text
    from autoshard.report.plan_table import new_table

    table = new_table("cluster", "devices", "mesh", "step", "peak", "file", "")
    for row in rows:
        table.add_row(
            row.cluster,
            str(row.devices),
            row.mesh,
            "" if row.step_seconds is None else seconds_text(row.step_seconds),
            "" if row.peak_bytes is None else bytes_text(row.peak_bytes),
            row.file,
            row.said,
        )
    return table
