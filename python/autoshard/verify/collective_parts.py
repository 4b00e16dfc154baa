"""What the collectives of a compiled program were meant to be, array by array.

Compilers join collectives of several arrays into one, lose the source line of those that the
partitioner added, and write some as others: XLA:TPU makes an all-gather of many devices an
all-reduce of arrays that hold one device's part and zeros elsewhere, and a reduce-scatter an
all-reduce of which each device then takes its slice. What stands around a collective says what it
was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.planned.collective import Collective, CollectiveKind
from autoshard.verify.hlo_collectives import FoundCollective
from autoshard.verify.hlo_program import (
    VIEWS,
    HloComputation,
    HloInstruction,
    HloProgram,
    bytes_of,
)

_NEAR = 6
"""Instructions between a collective and one that still has the line of the user's code."""

_TUPLE_INDEX = re.compile(r"\bindex=(\d+)")
_PARAMETER = re.compile(r"^\((\d+)\)")


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """One array that a collective of the compiled program moves."""

    collective: Collective
    """With this array's bytes, and its line where it has one of its own."""
    meant: CollectiveKind
    """What the partitioner wanted; another kind than the collective's where the compiler wrote it
    as that."""
    seconds: float
    """Seconds of one run: its share of the whole collective's, by bytes."""


def collective_parts(
    program: HloProgram, found: Sequence[FoundCollective], seconds: Sequence[float]
) -> list[CollectivePart]:
    """Every array of every collective.

    Args:
        program: Where they were found.
        found: The collectives.
        seconds: Of one run of each.
    """
    around: dict[int, _Around] = {}
    known: dict[int, list[tuple[float, CollectiveKind, str, str | None]]] = {}
    parts: list[CollectivePart] = []
    for one, taken in zip(found, seconds, strict=True):
        key = id(one.instruction)
        if key not in known:
            where = around.setdefault(id(one.computation), _Around(program, one.computation))
            known[key] = list(_arrays(one, where))
        arrays = known[key]
        whole = sum(size for size, *_ in arrays)
        for size, meant, op_name, place in arrays:
            share = size / whole if whole else 1 / len(arrays)
            parts.append(
                CollectivePart(
                    replace(
                        one.collective,
                        local_bytes=one.collective.local_bytes * share,
                        op_name=op_name,
                        place=place,
                    ),
                    meant,
                    taken * share,
                )
            )
    return parts


def _arrays(
    found: FoundCollective, around: _Around
) -> Iterator[tuple[float, CollectiveKind, str, str | None]]:
    """Bytes, kind that was meant, name and line of every array."""
    collective, instruction = found.collective, found.instruction
    computation = found.computation
    operands = [name for name in instruction.operands if name in computation.by_name]
    if instruction.opcode == "send":
        operands = operands[:1]
    alone = len(operands) == 1
    for number, name in enumerate(operands):
        made = computation.by_name[name]
        users = around.users_of_result(instruction, None if alone else number)
        meant = collective.kind
        if collective.kind is CollectiveKind.ALL_REDUCE:
            if around.is_one_part_among_zeros(made):
                meant = CollectiveKind.ALL_GATHER
            elif users and all(around.takes_a_slice(user, value) for user, value in users):
                meant = CollectiveKind.REDUCE_SCATTER
        op_name, place = collective.op_name, collective.place
        if not alone or place is None:
            near = around.nearest_line(users, made)
            if near is not None:
                op_name, place = near
        yield bytes_of(made.result), meant, op_name, place


_Use = tuple[HloInstruction, str]
"""An instruction, and the name of the operand that it uses."""


class _Around:
    """What makes and what reads the values of one computation."""

    def __init__(self, program: HloProgram, computation: HloComputation) -> None:
        self.program = program
        self.computation = computation
        self.users = computation.users

    def users_of_result(self, instruction: HloInstruction, element: int | None) -> list[_Use]:
        """Who reads an array of a collective; ``element`` of a joined one."""
        found: list[_Use] = []
        for user in self.users.get(instruction.name, []):
            if user.opcode.endswith("-done"):
                found.extend(self.users_of_result(user, element))
            elif user.opcode == "get-tuple-element":
                index = _TUPLE_INDEX.search(user.rest)
                if element is None or (index and int(index[1]) == element):
                    found.extend(self._past_views(user))
            elif element is None:
                found.extend(self._past_views_of(user, instruction.name))
        return found

    def _past_views(self, instruction: HloInstruction) -> list[_Use]:
        return [
            use
            for user in self.users.get(instruction.name, [])
            for use in self._past_views_of(user, instruction.name)
        ]

    def _past_views_of(self, user: HloInstruction, value: str) -> list[_Use]:
        return self._past_views(user) if user.opcode in VIEWS else [(user, value)]

    def nearest_line(
        self, users: Sequence[_Use], made: HloInstruction
    ) -> tuple[str, str | None] | None:
        """Name and line of the nearest reader that has a line, else of the nearest maker."""
        for forwards, front in ((True, [user for user, _ in users]), (False, [made])):
            seen: set[str] = set()
            for _ in range(_NEAR):
                for instruction in front:
                    place = self.program.place(instruction)
                    if place is not None:
                        return instruction.op_name, place
                seen.update(each.name for each in front)
                front = [
                    near
                    for instruction in front
                    for near in (
                        self._readers(instruction) if forwards else self._makers(instruction)
                    )
                    if near.name not in seen
                ]
        return None

    def _readers(self, instruction: HloInstruction) -> list[HloInstruction]:
        return self.users.get(instruction.name, [])

    def _makers(self, instruction: HloInstruction) -> list[HloInstruction]:
        by_name = self.computation.by_name
        return [by_name[name] for name in instruction.operands if name in by_name]

    def is_one_part_among_zeros(self, made: HloInstruction) -> bool:
        """Whether a value is an update of a broadcast: one device's part of an array."""
        made = self._source(made, self.computation)
        if made.opcode == "fusion":
            inner = self.program.computations[made.called[0]]
            root = self._source(inner.root, inner)
            if root.opcode != "dynamic-update-slice":
                return False
            base = self._source(inner.by_name[root.operands[0]], inner)
            if base.opcode != "parameter":
                return base.opcode == "broadcast"
            number = _PARAMETER.match(base.rest)
            if number is None:
                return False
            made = self.computation.by_name[made.operands[int(number[1])]]
            return self._is_broadcast(made)
        if made.opcode != "dynamic-update-slice":
            return False
        return self._is_broadcast(self.computation.by_name[made.operands[0]])

    def _is_broadcast(self, made: HloInstruction) -> bool:
        made = self._source(made, self.computation)
        return made.opcode == "broadcast" or "broadcast" in made.name

    def _source(self, made: HloInstruction, computation: HloComputation) -> HloInstruction:
        while made.opcode in VIEWS and made.operands:
            made = computation.by_name[made.operands[0]]
        return made

    def takes_a_slice(self, user: HloInstruction, value: str) -> bool:
        """Whether an instruction reads only a slice of a value, at a place of its own."""
        if user.opcode == "dynamic-slice":
            return user.operands[0] == value
        if user.opcode != "fusion":
            return False
        inner = self.program.computations[user.called[0]]
        for number, name in enumerate(user.operands):
            if name != value:
                continue
            parameter = next(
                each
                for each in inner.instructions
                if each.opcode == "parameter" and each.rest.startswith(f"({number})")
            )
            within = _Around(self.program, inner)
            uses = within._past_views(parameter)
            if not uses or not all(within.takes_a_slice(each, at) for each, at in uses):
                return False
        return True
