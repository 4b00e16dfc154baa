"""Which ops of a program a compiler sends bytes for, told by the names that it keeps of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from autoshard.explain.reproduced import Key
from autoshard.ir import mlir
from autoshard.ir.locations import op_name
from autoshard.sharding import Mesh
from autoshard.verify.collective_parts import collective_parts
from autoshard.verify.hlo_collectives import find_collectives
from autoshard.verify.hlo_program import HloProgram

_NAMED = re.compile(r"\bautoshard\.op(\d+)/")

SentByOps = Mapping[tuple[int | None, Key], float]
"""Bytes that a device sends in a step, by the number of the op that they are sent for, None where
the compiler kept no name, and by kind and axes."""


def name_ops(numbered: Iterable[tuple[int, mlir.Operation]]) -> None:
    """Write numbers into the names that compilers keep of ops, before those of JAX.

    Args:
        numbered: Ops and their numbers.
    """
    for number, op in numbered:
        location = op.location
        inside = location.child_loc if isinstance(location, mlir.NameLoc) else location
        name = f"autoshard.op{number}/{op_name(location)}"
        op.location = mlir.Location.name(name, inside, context=op.context)


def sent_by_ops(hlo_text: str, mesh: Mesh, unknown_trip_count: int) -> SentByOps:
    """What a compiled program sends, for which of the ops that ``name_ops`` numbered.

    Args:
        hlo_text: What the compiler leaves of it.
        mesh: The plan's.
        unknown_trip_count: Trips of loops whose count is not known.

    Raises:
        ParseError: The text is damaged.
    """
    program = HloProgram.parse(hlo_text)
    found = find_collectives(program, mesh, unknown_trip_count)
    sent: defaultdict[tuple[int | None, Key], float] = defaultdict(float)
    for part in collective_parts(program, found, [0.0] * len(found)):
        one = part.collective
        axes = ("?",) if one.axes is None else tuple(map(str, one.axes))
        named = _NAMED.findall(one.op_name)  # behind those of the calls that it is in
        number = int(named[-1]) if named else None
        sent[number, (one.kind.value, axes, None)] += one.total_bytes
    return sent


def sent_more(sent: SentByOps, than: SentByOps) -> dict[int, float]:
    """Bytes of each op beyond those of another program, of kinds and axes that send more in all.

    Where ops send more and others less by as much, as where the compiler keeps another name of what
    it joined, all of them are to blame for what is more in the end.

    Args:
        sent: What a program sends.
        than: What the other one sends, by the same numbers.
    """
    whole: defaultdict[Key, float] = defaultdict(float)
    for sign, side in ((1, sent), (-1, than)):
        for (_, key), size in side.items():
            whole[key] += sign * size
    more = {at: size - than.get(at, 0.0) for at, size in sent.items()}
    risen: defaultdict[Key, float] = defaultdict(float)
    for (_, key), size in more.items():
        risen[key] += max(0.0, size)
    blame: defaultdict[int, float] = defaultdict(float)
    for (number, key), size in more.items():
        if number is not None and size > 0 and whole[key] > 0:
            blame[number] += size * whole[key] / risen[key]
    return dict(blame)
