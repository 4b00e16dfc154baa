"""From answers to the rows of the table (python/autoshard/compilers/partitioner.py), and to a page.

Of a set of traits with which something failed the supersets are not kept: no trait heals. Traits
that have no part in a fault are left out of it. Types of numbers become a trait where all that
failed is of one type, and others were right.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from bench.truth.cases import Job

FAILURES = ("wrong", "aborts", "hangs", "refused")
"""From the worst on: wrong numbers are, as nobody notices them."""

Answer = Mapping[str, Any]
Ran = tuple[Job, Answer]


@dataclass(frozen=True)
class Group:
    """Programs of one op, one set of roles and one set of traits."""

    traits: frozenset[str]
    ran: list[Ran]

    @property
    def failed(self) -> list[Ran]:
        return [(job, answer) for job, answer in self.ran if answer["verdict"] in FAILURES]

    def fields(self) -> dict[str, Any]:
        """A ``Bad`` as JSON."""
        failed = self.failed
        job, answer = min(failed, key=_size)
        worst = min((a["verdict"] for _, a in failed), key=FAILURES.index)
        is_outside = all(
            all(name.startswith("outside") for name in a.get("data") or ("",)) for _, a in failed
        )
        said = answer.get("why") or "; ".join(f"{k}: {v}" for k, v in answer["data"].items())
        return {
            "traits": sorted(self.traits),
            "verdict": "wrong" if worst == "wrong" else "aborts",
            "when": "outside" if is_outside else "",
            "failed": len(failed),
            "programs": len(self.ran),
            "partitioners": sorted({job.partitioner for job, _ in failed}),
            "cut": job.cut,
            "said": said,
            "program": job.text,
        }


def _size(ran: Ran) -> tuple[Any, ...]:
    job, answer = ran
    elements = sum(_count(operand["shape"]) for operand in job.operands)
    verdict = FAILURES.index(answer["verdict"])
    return (verdict, job.partitioner != "shardy", job.devices, elements, job.id)


def _count(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def rows(ran: Iterable[Ran]) -> list[dict[str, Any]]:
    """The rows, sorted."""
    by_row: dict[tuple[str, tuple[str, ...]], list[Ran]] = defaultdict(list)
    for job, answer in ran:
        by_row[job.op, tuple(job.roles)].append((job, answer))
    made: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for op, roles in sorted(by_row, key=lambda key: (len(key[1]), key)):
        alone = [made.get((op, (role,))) for role in roles] if len(roles) > 1 else []
        known = [frozenset(bad["traits"]) for row in alone if row for bad in row["bad"]]
        some = by_row[op, roles]
        told = [ran for ran in some if not any(each <= _all_traits(ran[0]) for each in known)]
        made[op, roles] = _row(op, roles, told) | {"programs": len(some)}
    return [made[key] for key in sorted(made)]


def _all_traits(job: Job) -> set[str]:
    """With the type of numbers."""
    return {*job.traits, job.dtype} - {""}


def _row(op: str, roles: tuple[str, ...], ran: list[Ran]) -> dict[str, Any]:
    """One row, of programs that no fault of one of the roles alone is in."""
    by_traits: dict[frozenset[str], list[Ran]] = defaultdict(list)
    for job, answer in ran:
        by_traits[frozenset(job.traits)].append((job, answer))
    failing = {traits for traits, some in by_traits.items() if Group(traits, some).failed}
    bad: list[Group] = []
    right: list[frozenset[str]] = []
    for traits in sorted(by_traits, key=lambda each: (len(each), sorted(each))):
        group = Group(traits, by_traits[traits])
        failed = group.failed
        dtypes = {job.dtype for job, _ in failed}
        if failed and len(dtypes) == 1 and "" not in dtypes:
            if any(job.dtype not in dtypes for job, _ in group.ran):
                right.append(traits)
            of_type = [(job, answer) for job, answer in group.ran if job.dtype in dtypes]
            group = Group(traits | dtypes, of_type)
        elif failed:
            group = Group(_culprit(traits, failing, by_traits), group.ran)
        else:
            right.append(traits)
            continue
        known = next((each for each in bad if each.traits <= group.traits), None)
        if known is None:
            bad.append(group)
        else:
            known.ran.extend(group.ran)
    kept = [traits for traits in right if not any(each.traits <= traits for each in bad)]
    return {
        "op": op,
        "roles": list(roles),
        "right": [sorted(traits) for traits in _largest(kept)],
        "bad": [each.fields() for each in bad],
    }


def _culprit(
    traits: frozenset[str], failing: Collection[frozenset[str]], run: Collection[frozenset[str]]
) -> frozenset[str]:
    """The smallest part of ``traits`` with which nearly everything failed, whatever else there was.

    Nearly: luck of sizes makes a few right.
    """
    for size in range(len(traits)):
        for some in combinations(sorted(traits), size):
            alike = [each for each in run if each.issuperset(some)]
            failed = [each for each in alike if each in failing]
            if len(failed) > 1 and len(failed) >= _NEARLY * len(alike):
                return frozenset(some)
    return traits


_NEARLY = 0.8


def _largest(sets: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """Those that are in no other one: what was right with more traits is so with fewer."""
    found = [each for each in sets if not any(each < other for other in sets)]
    return sorted(found, key=sorted)


def write(path: Path, release: str, found: Sequence[Mapping[str, Any]]) -> None:
    """The table as JSON, a line for each row and each fault, sorted by op and roles."""
    lines = []
    for row in sorted(found, key=lambda row: (row["op"], row["roles"])):
        head = json.dumps({key: value for key, value in row.items() if key != "bad"})
        bad = ",\n   ".join(json.dumps(each) for each in row["bad"])
        lines.append(head[:-1] + (f', "bad": [\n   {bad}]}}' if bad else ', "bad": []}'))
    text = ",\n ".join(lines)
    path.write_text(f'{{"jaxlib": "{release}", "rows": [\n {text}]}}\n')
