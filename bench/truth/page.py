"""docs/design/partitioner.md, from the tables of all releases."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.compilers.partitioner import PartitionerTable, Row, Traits, releases
from autoshard.importer.faults import BY_THE_EXPORTER

_HEAD = """\
# What XLA's partitioner does not do right

XLA's partitioner computes other numbers for some ops along some cuts, and says nothing; on others
it ends the process, or refuses the program. Plain `jax.jit` with the same shardings is as wrong.
`bench/truth/partitioner.py` finds out by running it: small programs of one op, forward and what
autodiff makes of it, cut along one factor of its rule or two, with Shardy and GSPMD, on 8 virtual
CPU devices, compared with the same op on one device, bit for bit (transcendental functions: to
1e-4). GPUs and TPUs share that partitioner, so what is wrong on CPUs is taken to be wrong there.

The planner reads the same tables (`autoshard/compilers/partitioner_tables`, a file for each
release of jaxlib, with the smallest program of each fault). A release without a table gets that of
the newest one before it, and autoshard says so once. A whole run is about 9,000 programs, half an
hour on two cores that others use, too:

    PYTHONPATH=python python bench/truth/partitioner.py               # the installed jaxlib
    PYTHONPATH=python python bench/truth/partitioner.py --sample 100  # is the table still true?

"""

_TAIL = """
## Words

*3 of 5*: so many programs failed of those with this cut and these traits; luck of sizes and of the
order of axes makes some right. *Aborts*: XLA ends the process, hangs or refuses the program. What
is not listed was right in all programs, or was not run. *Not run*: Shardy's rules of that release
do not cut so.

*Cut*: two factors are cut over two axes. Of a convolution `batch`, `features` (of the result),
`contracted` (features of the image), `image` (its height and width), `image_contracted` (the same
where the kernel is an image, too: gradients of kernels), `kernel.image` and `result.image` (of
these alone); of windows and moves `window`, `touched` and `pass`; of indices `indexed` (the dim
that they select from), `indices`, `slice` (taken whole), `batch`; of updates `updated`. `_minor` is
a factor that is not the first of its dim. `_before` and `_after` are cuts of operands before, and
of results after an op that runs otherwise.

*Traits* are of the op: a fault is one of all ops that have them. `large_window`: more than half of
the image; `uneven_cut`: into parts that are not equal; `integer`, `bool`, .. : what it computes
with; of a reduction what it does: `other` is none of sums, products, extrema, `and`, `or` and
`xor`.
"""

_INSTEAD = {
    "stablehlo.convolution": (
        "Where autoshard cuts the image, or a convolution is in groups, each device computes its"
        " block; halos are exchanged."
    ),
    "stablehlo.dynamic_slice": "autoshard clamps starts before the op.",
    "stablehlo.dynamic_update_slice": (
        "Each device computes its block, from a start that is clamped in the whole."
    ),
    "stablehlo.fft": "Each device computes its block.",
    "stablehlo.gather": "autoshard clamps a single index before the op.",
    "stablehlo.pad": "Where a dim with interior pads is cut, each device computes its block.",
    "stablehlo.scatter": "A barrier before the op keeps XLA from joining its slices.",
    "stablehlo.select_and_scatter": "Each device computes its block; halos are exchanged.",
    "chlo.top_k": "Each device computes its block.",
}
"""What autoshard's exporter does."""

_NOT_CUT = "autoshard does not cut it so."


def text() -> str:
    """The page."""
    known = sorted(releases(), key=lambda each: [int(part) for part in each.split(".")])
    tables = [PartitionerTable.of_release(release) for release in known]
    return _HEAD + "\n".join([*_counts(tables), *_faults(tables)]) + "\n" + _TAIL


def _counts(tables: Sequence[PartitionerTable]) -> list[str]:
    lines = [
        "| jaxlib | programs | ops | combinations of op and cut | faults |",
        "|---|---|---|---|---|",
    ]
    for table in tables:
        rows = table.rows.values()
        programs, faults = sum(row.programs for row in rows), sum(len(row.bad) for row in rows)
        ops = len({row.op for row in rows})
        lines.append(f"| {table.release} | {programs:,} | {ops} | {len(rows)} | {faults} |")
    return lines


def _faults(tables: Sequence[PartitionerTable]) -> list[str]:
    found = {
        (row.op, row.roles, bad.traits)
        for table in tables
        for row in table.rows.values()
        for bad in row.bad
    }
    heads = ["cut", "traits", *(f"jaxlib {table.release}" for table in tables)]
    lines: list[str] = []
    for op in sorted({op for op, _, _ in found}):
        instead = _INSTEAD[op] if op in BY_THE_EXPORTER else _NOT_CUT
        lines += ["", f"## {op.partition('.')[2]}", "", instead, ""]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        some = [(roles, traits) for name, roles, traits in found if name == op]
        for roles, traits in sorted(some, key=lambda each: (each[0], sorted(each[1]))):
            cells = [_cell(table, op, roles, traits) for table in tables]
            named = " + ".join(roles), ", ".join(sorted(traits)) or "any"
            lines.append(f"| {' | '.join((*named, *cells))} |")
    return lines


def _cell(table: PartitionerTable, op: str, roles: tuple[str, ...], traits: Traits) -> str:
    row = table.rows.get((op, roles))
    same = [bad for bad in row.bad if bad.traits == traits] if row is not None else []
    if same:
        (bad,) = same
        when = ", indices out of bounds" if bad.when else ""
        return f"{bad.verdict.value}{when}, {bad.failed} of {bad.programs}"
    if table.fault(op, traits, roles) is not None:
        return "in another row"
    return "right" if _was_right(row, traits) else "not run"


def _was_right(row: Row | None, traits: Traits) -> bool:
    return row is not None and any(traits <= right for right in row.right)
