"""How much of what a plan sends comes back where only some of its values are held.

Collectives are the same if they are of one kind, over the same axes, of what one line makes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from autoshard import _core
from autoshard.explain.folding import of_any_layer
from autoshard.explain.question import Subject
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.importer.pins import Pinned
from autoshard.planned.summarize import argument_name, line_of_op, main_values, moves
from autoshard.planned.write import explain

Key = tuple[str, tuple[str, ...], str | None]
"""Kind and axes of collectives, and what is moved: the line that makes it, or the argument that it
is."""

Sent = dict[Key, float]
"""Bytes that a device sends in a step."""


@dataclass(frozen=True, slots=True)
class SentOnce:
    """One collective of a plan."""

    key: Key
    bytes: float
    """What one device sends in a step."""
    reshard: int
    """Row of the plan's reshards."""


@dataclass(frozen=True)
class Share:
    """Collectives of one kind, over the same axes, of what one line makes."""

    kind: str
    axes: tuple[str, ...]
    location: str | None
    """``file:line`` that makes what is moved; the name of an argument that is."""
    bytes: float
    """What one device sends in a step."""


@dataclass(frozen=True)
class Propagated:
    """What propagation makes of some pins."""

    imported: ImportedProgram
    """The program with the pins."""
    plan: _core.CorePlan
    collectives: tuple[SentOnce, ...]

    @cached_property
    def sent(self) -> Sent:
        """All of them together."""
        return together(self.collectives)


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """What of a plan comes back where less is said than all of it."""

    planned_bytes: float
    """What one device sends in a step of the plan."""
    reproduced: float
    """Share of these that the program with what is said sends as well: 0 to 1."""
    missing: tuple[Share, ...]
    """Collectives of the plan that it does not have, most bytes first."""
    other: tuple[Share, ...]
    """Collectives that it has besides."""
    step_seconds: float
    """A step of the program with what is said, by the cost model of the plan."""
    planned_seconds: float
    """A step of the plan."""
    lacking_bytes: float
    """What the program with what is said lacks of the memory of a device; 0: it fits."""


def compared(subject: Subject, wanted: Sent, found: Propagated) -> Reproduced:
    """What propagation brings back of a plan.

    Args:
        subject: The plan.
        wanted: What it sends.
        found: What propagation makes.
    """
    return Reproduced(
        planned_bytes=sum(wanted.values()),
        reproduced=share_of(wanted, found.sent),
        missing=more_than(wanted, found.sent),
        other=more_than(found.sent, wanted),
        step_seconds=found.plan.step_seconds,
        planned_seconds=subject.plan.step_seconds,
        lacking_bytes=lacking_bytes(subject, found),
    )


def lacking_bytes(subject: Subject, found: Propagated) -> float:
    """Bytes of a device beyond those that a plan may use."""
    return max(0.0, found.plan.peak_bytes - max(subject.memory_limit, subject.plan.peak_bytes))


def propagated(
    subject: Subject,
    pins: Sequence[Pinned],
    held_operands: Sequence[Sequence[tuple[int, int]]] = (),
) -> Propagated:
    """The plan of least resharding with these pins in place of the user's.

    Args:
        subject: The plan, of whose mesh the axes are.
        pins: What is held.
        held_operands: As ``ImportedProgram.changed`` takes them.

    Raises:
        StrategyError: No propagation keeps the pins.
    """
    held = [pin for pin in subject.imported.pins if not pin.is_users]
    imported = subject.imported.changed(subject.mesh, [*held, *pins], held_operands=held_operands)
    try:
        found = _core.propagate(imported.program)
    except _core.Contradiction as error:
        raise explain(imported, error) from error
    plan = _core.estimate(
        imported.program,
        subject.cluster.to_core(subject.mesh, subject.summary.overlap),
        shardings=found.shardings,
        value_sharding=found.value_sharding,
        strategies=found.strategies,
        op_strategy=found.op_strategy,
    )
    return Propagated(imported, plan, collectives_of(imported, plan))


def collectives_of(imported: ImportedProgram, plan: _core.CorePlan) -> tuple[SentOnce, ...]:
    """What a device sends by a plan."""
    origins = _Origins(imported)
    return tuple(
        SentOnce(
            (one.kind.value, one.axes, origins.of(one.value) or one.location),
            one.times * one.sent_bytes,
            one.reshard,
        )
        for one in moves(imported, plan, imported.mesh)
    )


def together(collectives: Sequence[SentOnce]) -> Sent:
    """Bytes of those that are alike added up."""
    sent: defaultdict[Key, float] = defaultdict(float)
    for one in collectives:
        sent[one.key] += one.bytes
    return dict(sent)


class _Origins:
    """What is moved, however it lies: a transpose of ``w`` is ``w``.

    A value is that of which it is made by ops that read nothing else and keep its bytes. So it is
    one whether a plan gathers it where it is made or where it is read.
    """

    def __init__(self, imported: ImportedProgram) -> None:
        self.imported = imported
        self.makers = imported.program.makers
        # Copies of what some operands are held as have no place among the values of the module.
        known = len(imported.value_shapes)
        self.copies = {
            target: source for source, target in imported.program.joins if target >= known
        }
        main = main_values(imported)
        block = main.op.regions[0].blocks[0]
        self.arguments = {
            value: of_any_layer(argument_name(argument, number))
            for number, (value, argument) in enumerate(
                zip(main.arguments, block.arguments, strict=True)
            )
        }

    def of(self, value: int) -> str | None:
        """The line that makes it, or the name of the argument that it is, with stars for layers.

        None where it is neither, as at the head of a loop.
        """
        if value == NO_VALUE:
            return None
        maker = int(self.makers[value])
        while maker != NO_VALUE:
            read = [one for one in self.imported.program.operands_of(maker) if one != NO_VALUE]
            held = self.copies.get(read[0], read[0]) if len(read) == 1 else NO_VALUE
            if held == NO_VALUE or self._bytes(held) != self._bytes(value):
                return line_of_op(self.imported, maker)
            value, maker = held, int(self.makers[held])
        return self.arguments.get(value)

    def _bytes(self, value: int) -> float:
        return prod(self.imported.value_shapes[value]) * self.imported.value_bits[value]


def share_of(wanted: Sent, found: Sent) -> float:
    """The share of the wanted bytes that is sent as well: 0 to 1."""
    whole = sum(wanted.values())
    both = sum(min(size, found.get(key, 0.0)) for key, size in wanted.items())
    return both / whole if whole else 1.0


def more_than(sent: Sent, than: Sent) -> tuple[Share, ...]:
    """What is sent beyond another, most bytes first."""
    rows = [Share(*key, size - than.get(key, 0.0)) for key, size in sent.items()]
    return tuple(sorted((row for row in rows if row.bytes > 0), key=lambda row: -row.bytes))
