"""Print what a plan costs: every op, every collective, and the memory of a step.

    one step: 4.17 s, compute 3.98 s, communication 196 ms
    compute
     ops  op           place           ..  trips  GFLOP  seconds once  seconds
     32   dot_general  attention.py:7  ..  32     275    1.2 ms        38.4 ms

The module stays as it is.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import IO, ClassVar

from rich import box
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.errors import PassOptionError
from autoshard.ir import mlir
from autoshard.passes.base import Pass
from autoshard.planned.given_plan import Costed, cluster_for, cost_of_module
from autoshard.planned.summarize import (
    line_of,
    moves,
    short_name,
    type_text,
    value_names,
)
from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.report.plan_table import estimate_lines, peak_table, short_line
from autoshard.writing import write_file

_TIMELINE_ROWS = 24
"""Stretches of the program that the table of memory shows."""


@dataclass(frozen=True)
class PrintCosts(Pass):
    """Print what a plan costs: seconds of every op and collective, and memory over a step.

    Costs are those of the plan as it stands on the module, whichever pass made it, dearest first;
    rows that are alike are one row.
    """

    name: ClassVar[str] = "autoshard-print-costs"

    cluster: str = ""
    """What the program runs on, v5p:4x4x4 or a TOML file; that of the plan when empty."""

    compiler: str = ""
    """Another compiler than that of the plan: xla-tpu-0.0.42, unknown, ..; with
    :without=RULE,RULE behind it prints what these rules are worth (docs/design/compilers.md)."""

    overlap: float = 0.0
    """Share of communication that hides behind compute, 0 to 1."""

    trip_count: int = 100
    """Assumed trips of loops whose count cannot be read from the program."""

    file: str = ""
    """Where to print; standard error when empty."""

    max_rows: int = 40
    """Rows printed of each table; 0 means all."""

    width: int = 0
    """Columns of text; 0 means those of the terminal, or 160 when there is none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_rows < 0 or self.width < 0 or self.trip_count < 0:
            raise PassOptionError(
                f"{self.name}: max-rows={self.max_rows} width={self.width} "
                f"trip-count={self.trip_count}: expected 0 or more."
            )
        if not 0 <= self.overlap <= 1:
            raise PassOptionError(
                f"{self.name}: option overlap={self.overlap} is out of range. Give 0 to 1."
            )

    def run(self, module: mlir.Module) -> None:
        """Raises PlanError for a module without plan, OutputError when the file is not written."""
        cluster = cluster_for(module, self.cluster, self.name, self.compiler)
        costed = self._cost(module, cluster)
        worth = self._worth(module, costed)
        if not self.file:
            self._print(costed, worth, sys.stderr)
            return
        text = io.StringIO()
        self._print(costed, worth, text)
        write_file(self.file, text.getvalue().encode())

    def _cost(self, module: mlir.Module, cluster: Cluster) -> Costed:
        return cost_of_module(module, cluster, overlap=self.overlap, trip_count=self.trip_count)

    def _worth(self, module: mlir.Module, without: Costed) -> str:
        """What the rules are worth that are switched off; empty if none is."""
        compiler = without.cluster.compiler
        if not compiler.without:
            return ""
        whole = without.cluster.with_compiler(str(replace(compiler, without=())))
        plan, other = self._cost(module, whole).plan, without.plan
        return (
            f"without {', '.join(compiler.without)} of {whole.compiler}:"
            f" {seconds_text(other.step_seconds)} instead of {seconds_text(plan.step_seconds)},"
            f" {bytes_text(other.peak_bytes)} instead of {bytes_text(plan.peak_bytes)}"
        )

    def _print(self, costed: Costed, worth: str, file: IO[str]) -> None:
        cluster = costed.cluster
        width = self.width or (None if file.isatty() else 160)
        console = Console(file=file, width=width, highlight=False, emoji=False, markup=False)
        plan, mesh = costed.plan, costed.mesh
        summary = replace(costed.summary, overlap=self.overlap)
        console.print(f"plan on mesh {mesh} ({mesh.size} devices of {cluster.name})")
        if self.compiler:
            console.print(f"compiler: {cluster.compiler}")
        if worth:
            console.print(worth)
        for line in estimate_lines(summary):
            console.print(line)
        manual = summary.compute_seconds - plan.compute_seconds
        sent = summary.communication_seconds - plan.communication_seconds
        if costed.imported.manual:
            console.print(
                f"bodies of jax.shard_map, in no row below: {seconds_text(manual)} of compute,"
                f" {seconds_text(sent)} of communication"
            )
        self._table(console, "compute", _COMPUTE, _compute_rows(costed), plan.compute_seconds)
        self._table(
            console, "communication", _MOVES, _move_rows(costed), plan.communication_seconds
        )
        console.print()
        console.print("memory at the peak")
        console.print(peak_table(summary, self.max_rows or sys.maxsize))
        console.print("memory over the step, without the copies that reshards make")
        console.print(_timeline(costed))

    def _table(
        self,
        console: Console,
        title: str,
        columns: Sequence[str],
        rows: Iterable[_Row],
        seconds: float,
    ) -> None:
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for column in columns:
            table.add_column(column, overflow="fold")
        found = sorted(rows, key=lambda row: -row.seconds)
        shown = found[: self.max_rows] if self.max_rows else found
        for row in shown:
            table.add_row(*row.cells, seconds_text(row.seconds), _share(row.seconds, seconds))
        empty = [""] * (len(columns) - 3)
        if len(shown) < len(found):
            rest = sum(row.seconds for row in found[len(shown) :])
            left = f"and {len(found) - len(shown)} more"
            table.add_row(left, *empty, seconds_text(rest), _share(rest, seconds))
        table.add_section()
        table.add_row("together", *empty, seconds_text(seconds), "")
        console.print()
        console.print(table)


_COMPUTE = (
    "ops",
    "op",
    "place",
    "type",
    "strategy",
    "trips",
    "FLOP once",
    "bytes once",
    "seconds once",
    "seconds",
    "share",
)
_MOVES = (
    "collective",
    "over",
    "of",
    "type",
    "place",
    "times",
    "sent once",
    "seconds once",
    "seconds",
    "share",
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row without its last two columns."""

    cells: tuple[str, ...]
    seconds: float
    """Seconds of all runs in a step."""


def _compute_rows(costed: Costed) -> list[_Row]:
    plan, imported = costed.plan, costed.imported
    trips, of_op = imported.program.op_trips, plan.op_strategy
    seconds, flops, size = plan.op_seconds, plan.op_flops, plan.op_bytes
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, op in enumerate(imported.core_ops):
        if seconds[number] > 0:
            types = tuple(result.type for result in op.results)
            key = (op.name, line_of(op), types, of_op[number], seconds[number], trips[number])
            alike.setdefault(key, []).append(number)
    rows: list[_Row] = []
    for numbers in alike.values():
        first = numbers[0]
        op = imported.core_ops[first]
        rows.append(
            _Row(
                (
                    f"{len(numbers)}",
                    short_name(op),
                    short_line(line_of(op)),
                    ", ".join(type_text(result.type) for result in op.results),
                    _strategy(costed, of_op[first]),
                    f"{trips[first]:,.0f}",
                    f"{flops[first]:.3g}",
                    bytes_text(size[first]),
                    seconds_text(seconds[first]),
                ),
                sum(trips[number] * seconds[number] for number in numbers),
            )
        )
    return rows


def _strategy(costed: Costed, number: int) -> str:
    """``[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]``."""
    operands, results = costed.plan.strategies[number]
    texts = costed.sharding_texts
    sides = (", ".join("[]" if n < 0 else texts[n] for n in side) for side in (operands, results))
    return " -> ".join(sides)


def _move_rows(costed: Costed) -> list[_Row]:
    found = moves(costed.imported, costed.plan, costed.mesh)
    names = value_names(costed.imported, {one.value for one in found if one.value >= 0})
    alike: dict[tuple[str, ...], float] = {}
    times: dict[tuple[str, ...], float] = {}
    once: dict[tuple[str, ...], float] = {}
    for one in found:
        key = (
            one.kind.value,
            ", ".join(one.axes),
            one.what,
            names[one.value].type if one.value >= 0 else "",
            short_line(one.location),
            bytes_text(one.sent_bytes),
        )
        alike[key] = alike.get(key, 0.0) + one.times * one.seconds
        times[key] = times.get(key, 0.0) + one.times
        once[key] = one.seconds
    return [
        _Row(
            (*key[:5], f"{times[key]:,.0f}", key[5], seconds_text(once[key])),
            seconds,
        )
        for key, seconds in alike.items()
    ]


def _timeline(costed: Costed) -> Table:
    """The fullest program point of each stretch of the program."""
    live, ops = costed.plan.live_bytes, costed.imported.core_ops
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("ops", "fullest at", "op", "bytes on one device", ""):
        table.add_column(column, overflow="fold")
    most = max(live, default=0.0)
    count = min(_TIMELINE_ROWS, len(live))
    for row in range(count):
        first, last = row * len(live) // count, (row + 1) * len(live) // count
        fullest = max(range(first, last), key=lambda point: live[point])
        op = ops[fullest] if fullest < len(ops) else None
        table.add_row(
            f"{first} to {last - 1}",
            "" if op is None else short_line(line_of(op)),
            "end" if op is None else short_name(op),
            bytes_text(live[fullest]),
            Bar(size=most or 1.0, begin=0, end=live[fullest], width=30),
        )
    return table


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else ""
