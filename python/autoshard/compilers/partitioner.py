"""What XLA's partitioner does right, by release of jaxlib, as found by running it.

The tables beside this file (``partitioner_tables/jaxlib-0.10.2.json``) are made by
``bench/truth/partitioner.py``: small programs of one op, cut in one way, compared with the same op
on one device. A row says, of an op and of roles of factors (``roles.py``) that different axes cut,

- which traits of the op make the result *wrong*, or end the process: sets of traits, and an op
  that has all of a set is wrong, whatever else it has;
- of which traits it was right.

Of more roles, or more traits, than were run together all pairs must be right.

    {"op": "stablehlo.pad", "roles": ["touched"],
     "right": [["high"], ["high", "low"], ["interior", "low"]],
     "bad": [{"traits": ["interior", "negative_low"], "verdict": "aborts", ..}]}

Partitioning is the same on CPUs, GPUs and TPUs, so a table is of a release, not of a platform.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import resources
from itertools import combinations
from typing import Any

from jaxlib import version

from autoshard.errors import AutoshardError, AutoshardWarning

Roles = tuple[str, ...]
Traits = frozenset[str]

DTYPES = frozenset({"bf16", "bool", "complex", "f16", "f64", "integer"})
"""Traits that name what an op computes with; of float32 there is none."""


class Verdict(Enum):
    """What becomes of an op that is handed to the partitioner."""

    RIGHT = "right"
    """Equal to the op on one device in all programs that were run."""
    WRONG = "wrong"
    """Other numbers, and nobody says so."""
    ABORTS = "aborts"
    """XLA ends the process, hangs or refuses the program."""
    UNPROVEN = "unproven"
    """Nothing like it was run."""


@dataclass(frozen=True, slots=True)
class Bad:
    """What the partitioner does not do right."""

    traits: Traits
    """Traits that such an op has at least."""
    verdict: Verdict
    when: str
    """``outside``: with indices out of bounds only."""
    failed: int
    """Programs that were not right."""
    programs: int
    """Programs that were run."""
    partitioners: tuple[str, ...]
    """``shardy``, ``gspmd``: those that failed."""
    cut: str
    """Cut of the smallest failing program: ``batch:a image:b on a=2,b=4, ..``."""
    said: str
    """What XLA said, or how many elements are wrong."""
    program: str
    """The smallest failing program: StableHLO with its shardings."""


@dataclass(frozen=True, slots=True)
class Row:
    """All that is known of an op and of roles that are cut over different axes."""

    op: str
    roles: Roles
    right: tuple[Traits, ...]
    """Sets of traits with which all programs were right."""
    bad: tuple[Bad, ...]
    programs: int
    """Programs that were run."""

    def fault(self, traits: Collection[str]) -> Bad | None:
        """What is not right of an op with these traits."""
        return next((bad for bad in self.bad if bad.traits <= set(traits)), None)

    def has_run(self, traits: Collection[str]) -> bool:
        """Whether every pair of these traits is in a right program. Types of numbers are left out.

        They are in a trait only where they made a difference, which is a fault of the row.
        """
        wanted = sorted(set(traits) - DTYPES)
        pairs = list(combinations(wanted, 2)) or [tuple(wanted)]
        return all(any(set(pair) <= known for known in self.right) for pair in pairs)


@dataclass(frozen=True)
class PartitionerTable:
    """The rows of one release."""

    release: str
    """Release of jaxlib."""
    rows: Mapping[tuple[str, Roles], Row]

    @staticmethod
    def of_installed() -> PartitionerTable:
        """The table of the installed jaxlib, as ``of_release`` finds it."""
        return PartitionerTable.of_release(version.__version__)

    @staticmethod
    def of_release(release: str) -> PartitionerTable:
        """The table of a release.

        A release that has none gets what is wrong or unproven in any of its neighbours: the newest
        table that is older, and the oldest that is newer. A warning says so once.
        """
        return _read_all(_known_releases(release))

    def verdict(self, op: str, traits: Collection[str], roles: Sequence[str]) -> Verdict:
        """What the partitioner makes of an op.

        Args:
            op: ``stablehlo.convolution``.
            traits: As ``traits_of`` gives them.
            roles: Of the factors that are cut, each over axes of its own, as ``role_of`` gives
                them. None: an op that is computed whole.
        """
        fault = self.fault(op, traits, roles)
        if fault is not None:
            return fault.verdict
        wanted = tuple(sorted(roles))
        if not wanted:
            return Verdict.RIGHT
        pairs = set(combinations(wanted, 2)) or {wanted}
        known = (self.rows.get((op, pair)) for pair in pairs)
        is_right = all(row is not None and row.has_run(traits) for row in known)
        return Verdict.RIGHT if is_right else Verdict.UNPROVEN

    def fault(self, op: str, traits: Collection[str], roles: Sequence[str]) -> Bad | None:
        """What is known to be not right of the op: of one role that is cut, or of a pair."""
        wanted = sorted(roles)
        some: Iterable[Roles] = [*((role,) for role in wanted), *combinations(wanted, 2)]
        rows = (self.rows.get((op, each)) for each in some)
        faults = (row.fault(traits) for row in rows if row is not None)
        return next((fault for fault in faults if fault is not None), None)


def releases() -> list[str]:
    """Releases of jaxlib that there are tables of."""
    names = (entry.name for entry in _folder().iterdir())
    found = (re.fullmatch(r"jaxlib-([\d.]+)\.json", name) for name in names)
    return [match[1] for match in found if match]


def _folder() -> Any:
    return resources.files("autoshard.compilers") / "partitioner_tables"


@functools.cache
def _known_releases(wanted: str) -> tuple[str, ...]:
    known = sorted(releases(), key=_number)
    same = [each for each in known if _is_same(each, wanted)]
    if same:
        return (same[-1],)
    older = [each for each in known if _number(each) <= _number(wanted)]
    found = (*older[-1:], *known[len(older) : len(older) + 1])
    message = (
        f"what XLA's partitioner does wrong is not known of jaxlib {wanted}: the planner goes by"
        f" {' and '.join(found)}. bench/truth/partitioner.py of autoshard's repository makes a"
        " table of what is installed."
    )
    warnings.warn(AutoshardWarning(message), stacklevel=3)
    return found


@functools.cache
def _read_all(releases: tuple[str, ...]) -> PartitionerTable:
    return functools.reduce(_both, map(_read, releases))


def _both(one: PartitionerTable, other: PartitionerTable) -> PartitionerTable:
    """Right is what is right in both, wrong what is wrong in one of them."""
    rows: dict[tuple[str, Roles], Row] = {}
    for key in {**one.rows, **other.rows}:
        found = [table.rows[key] for table in (one, other) if key in table.rows]
        rights = [row.right for row in found] if len(found) == 2 else [()]
        rows[key] = replace(
            found[0],
            right=tuple(traits for traits in rights[0] if traits in rights[-1]),
            bad=tuple(bad for row in found for bad in row.bad),
            programs=sum(row.programs for row in found),
        )
    return PartitionerTable(f"{one.release} and {other.release}", rows)


def _is_same(one: str, other: str) -> bool:
    """Whether one is the other with mended bugs, as 0.12.0.1 is 0.12.0."""
    return all(a == b for a, b in zip(_number(one), _number(other), strict=False))


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release))


def _read(release: str) -> PartitionerTable:
    text = (_folder() / f"jaxlib-{release}.json").read_text()
    rows = map(_row, json.loads(text)["rows"])
    return PartitionerTable(release, {(row.op, row.roles): row for row in rows})


def _row(fields: Mapping[str, Any]) -> Row:
    try:
        return Row(
            op=fields["op"],
            roles=tuple(fields["roles"]),
            right=tuple(map(frozenset, fields["right"])),
            bad=tuple(map(_bad, fields["bad"])),
            programs=fields["programs"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AutoshardError(f"a row of the partitioner's table cannot be read: {error}") from error


def _bad(fields: Mapping[str, Any]) -> Bad:
    return Bad(
        traits=frozenset(fields["traits"]),
        verdict=Verdict(fields["verdict"]),
        when=fields["when"],
        failed=fields["failed"],
        programs=fields["programs"],
        partitioners=tuple(fields["partitioners"]),
        cut=fields["cut"],
        said=fields["said"],
        program=fields["program"],
    )
