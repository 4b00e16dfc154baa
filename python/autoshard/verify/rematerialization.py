"""Values that the compiler makes whole on every device though the plan did not ask for it.

XLA's partitioner says so where it knows no other way from one sharding to another: "Involuntary
full rematerialization". What it gathers without a word is found by matching its collectives with
the plan's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autoshard.planned.collective import CollectiveKind
from autoshard.verify.hlo_program import HloInstruction, HloProgram
from autoshard.verify.matching import CollectiveMatch, Matching, Verdict

_MESSAGE = re.compile(
    r"nvoluntary full rematerialization\..*? from sharding (?P<before>\{.*?\}) to"
    r" (?P<after>\{.*?\}) (?:efficiently|without).*?HLO operation:? (?P<operation>%?\S+ = .*)"
)
_OPERATION = re.compile(r"%?(?P<name>\S+) = (?P<type>\S+) (?P<opcode>[\w\-]+)\(")
_SAID = "nvoluntary full rematerialization"


@dataclass(frozen=True, slots=True)
class Rematerialization:
    """One "involuntary full rematerialization" of the partitioner."""

    name: str
    """Name of the instruction then, ``copy.2``; empty where the message has another form."""
    opcode: str
    type: str
    """Type of one device's part of the value, ``f32[12,16]``; the whole value is made from it."""
    before: str
    """HloSharding text."""
    after: str
    op_name: str
    """JAX's name of the op; empty where the compiler kept none."""
    place: str | None
    """``file:line`` of the user's code."""
    message: str
    """As the compiler wrote it."""
    count: int = 1
    """How often it said so of values that are alike in all of this but the name."""


def read_rematerializations(
    log: str | Iterable[str], hlo_text: str | None = None
) -> tuple[Rematerialization, ...]:
    """The partitioner's messages, in order; alike ones once.

    Args:
        log: What the compiler wrote to standard error, or its lines.
        hlo_text: The compiled program, whose tables have the source lines that messages only
            number.

    Raises:
        ParseError: The HLO text has no ``ENTRY`` computation.
    """
    lines = log.splitlines() if isinstance(log, str) else log
    program = None if hlo_text is None else HloProgram.parse(hlo_text)
    found = [_read(line, program) for line in lines if _SAID in line]
    alike = [replace(one, name="", message="") for one in found]
    counts = Counter(alike)
    first = {key: one for key, one in zip(reversed(alike), reversed(found), strict=True)}
    return tuple(replace(first[key], count=counts[key]) for key in dict.fromkeys(alike))


def _read(line: str, program: HloProgram | None) -> Rematerialization:
    message = _MESSAGE.search(line)
    operation = _OPERATION.match(message["operation"]) if message else None
    if message is None or operation is None:
        # Another release may say it in other words; it counts all the same.
        return Rematerialization("", "", "", "", "", "", None, line.strip())
    rest = message["operation"][operation.end() - 1 :]
    instruction = HloInstruction(operation["name"], operation["type"], operation["opcode"], rest)
    empty = HloProgram({}, None, {})
    return Rematerialization(
        name=operation["name"],
        opcode=operation["opcode"],
        type=operation["type"].partition("{")[0],
        before=message["before"],
        after=message["after"],
        op_name=instruction.op_name,
        place=(program or empty).place(instruction),
        message=line.strip(),
    )


def unplanned_replications(matching: Matching) -> tuple[CollectiveMatch, ...]:
    """Gathers of the compiled program that the plan does not have, largest first.

    Those that the plan has in another kind are among them, those over other axes too.
    """
    found = [
        row
        for row in matching.rows
        if row.compiled is not None
        and row.compiled.meant is CollectiveKind.ALL_GATHER
        and (
            row.verdict is Verdict.NOT_PLANNED
            or row.verdict is Verdict.OTHER_AXES
            or (row.planned is not None and row.planned.kind is not CollectiveKind.ALL_GATHER)
        )
    ]
    return tuple(sorted(found, key=lambda row: -(row.compiled.bytes if row.compiled else 0.0)))
