"""What a plan keeps in the memory of the host, and what it sends over the link there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from autoshard import _core
from autoshard._core import HostLink, Place, Transfer
from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.ir import mlir, place
from autoshard.ir.host_memory import PINNED_HOST, moved_to
from autoshard.ir.types import tensor_bytes
from autoshard.sharding import Mesh

NO_OP = -1
"""An op of the core that is not there."""


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """Traffic between one device and its host in one step."""

    held_bytes: float
    """Arguments, results and stacks of loops in the memory of the host."""
    sent_bytes: float
    """Over the link, both ways together."""
    seconds: float
    """Seconds of these transfers, one after the other."""
    exposed_seconds: float
    """What of them no op hides, and what ops that hide the others take more."""
    counted_bytes: float
    """What the core takes the values on the host for among those that live at the peak."""


NO_TRAFFIC = HostTraffic(0.0, 0.0, 0.0, 0.0, 0.0)


def host_traffic(
    imported: ImportedProgram, plan: _core.CorePlan, mesh: Mesh, cluster: Cluster
) -> HostTraffic:
    """Host traffic of a plan with costs.

        seconds = bytes / host_bandwidth

    A value that is moved is sent once; so is each value that an op on the host reads or makes and
    the device makes or reads. What a loop moves in one trip goes beside the ops of that trip, if
    the compiler lets it (``schedule.loops_wait_for_moves``). What is moved outside of loops goes
    beside the ops from where it may begin, there when its value is made, back where the move
    stands, to the first that reads it (``host_link``). Ops beside it take ``host_slowdown`` times
    as long.
    """
    host = imported.host
    if not host.values and not host.ops:
        return NO_TRAFFIC
    _check_host_computes_alone(imported, plan)
    sizes = _Sizes(plan, mesh)
    between = _between_ops(imported, sizes)
    sent = sum(_moved_bytes(imported, sizes).values()) + between
    rate = cluster.chip.host_bandwidth.value
    exposed = between / rate + host_link(imported, plan, mesh, cluster).delay()
    main = imported.functions[-1]
    held = 0.0
    counted: set[int] = set()
    block = main.op.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    for values, made in ((main.arguments, block.arguments), (main.results, end.operands)):
        for value, typed in zip(values, made, strict=True):
            if value in host.values and value not in counted:
                counted.add(value)
                held += sizes.of(value, typed.type)
    held += _stacked(imported, sizes)
    at_peak = sum(size for value, size in plan.peak_values if value in host.values)
    return HostTraffic(held, sent, sent / rate, exposed, at_peak)


def move_seconds(
    imported: ImportedProgram, plan: _core.CorePlan, mesh: Mesh, cluster: Cluster
) -> dict[int, float]:
    """Seconds of a step for each op of the core that moves a value to the host or back."""
    if not imported.host.moves:
        return {}
    rate = cluster.chip.host_bandwidth.value
    moved = _moved_bytes(imported, _Sizes(plan, mesh))
    return {number: size / rate for number, size in moved.items()}


def host_link(
    imported: ImportedProgram, plan: _core.CorePlan, mesh: Mesh, cluster: Cluster
) -> HostLink:
    """The link beside the ops of a plan, with what the program itself moves.

    What a loop moves goes beside the ops of a trip (``in_trip``).
    """
    rate = cluster.chip.host_bandwidth.value
    moves = {n: size / rate for n, size in _moved_bytes(imported, _Sizes(plan, mesh)).items()}
    around = {number: loop_around(imported, number) for number in moves}
    in_loops: list[tuple[tuple[int, int], Transfer]] = []
    outside: list[Transfer] = []
    for (number, loop), one in zip(around.items(), transfers_of(moves, imported), strict=True):
        if loop is None:
            outside.append(one)
            continue
        goes_away = moved_to(imported.core_ops[number]) == PINNED_HOST
        begins = one.begins if goes_away else loop[0]
        in_loops.append((loop, in_trip(loop, one.seconds, begins, cluster)))
    trips = imported.program.op_trips
    busy = [s * float(runs) for s, runs in zip(plan.op_seconds, trips, strict=True)]
    loops = [(loop.first_op, loop.last_op) for loop in imported.program.loops]
    slowdown = cluster.chip.host_slowdown.value
    return HostLink(busy, loops, in_loops, outside, slowdown=slowdown)


def in_trip(loop: tuple[int, int], seconds: float, begins: int, cluster: Cluster) -> Transfer:
    """A transfer of each trip of a loop, which goes beside the ops of a trip until that ends.

    What goes away may do so from where it is made. What comes back is fetched during the trip
    before, and may begin where a trip begins. Neither goes beside any op where the
    compiler waits for it (``schedule.loops_wait_for_moves``).

    Args:
        loop: Its first op in the core, and the one behind its last.
        seconds: Of all trips.
        begins: Number of the op before which it may begin.
        cluster: For which the program is compiled.
    """
    first, last = loop
    if cluster.compiler.does("schedule.loops_wait_for_moves"):
        return Transfer(seconds, first, first)
    return Transfer(seconds, min(max(begins, first), last), last)


def loop_around(imported: ImportedProgram, op: int) -> tuple[int, int] | None:
    """The innermost loop around an op of the core: its first op, and the one behind its last.

    None outside of loops.
    """
    loops = ((loop.first_op, loop.last_op) for loop in imported.program.loops)
    return min(
        ((first, last) for first, last in loops if first <= op < last),
        key=lambda one: one[1] - one[0],
        default=None,
    )


def _moved_bytes(imported: ImportedProgram, sizes: _Sizes) -> dict[int, float]:
    """Bytes that each op of the core moves in a step."""
    trips, moves = imported.program.op_trips, imported.host.moves
    moved: dict[int, float] = {}
    for number, (made, _, _) in zip(moves, imported.program.moved_by(moves), strict=True):
        (result,) = imported.core_ops[number].results
        moved[number] = sizes.of(made, result.type) * float(trips[number])
    return moved


def transfers_of(moves: Mapping[int, float], imported: ImportedProgram) -> list[Transfer]:
    """Moves, of which the seconds are given by op of the core, beside the ops of a program."""
    ops, found = imported.core_ops, list[Transfer]()
    facts = imported.program.moved_by(list(moves))
    for (number, seconds), (_, maker, reader) in zip(moves.items(), facts, strict=True):
        if moved_to(ops[number]) == PINNED_HOST:
            made = maker if maker != NO_OP else number - 1
            found.append(Transfer(seconds, made + 1, len(ops)))
        else:
            found.append(Transfer(seconds, number, reader if reader != NO_OP else number))
    return found


def _stacked(imported: ImportedProgram, sizes: _Sizes) -> float:
    """Bytes of the stacks that loops write in the memory of the host."""
    written = {
        value
        for loop in imported.program.loops
        for value, made in zip(loop.carried, loop.yielded, strict=True)
        if made != NO_VALUE and value in imported.host.values
    }
    if not written:
        return 0.0
    types = {value: made.type for made, value in imported.value_of.items()}
    return sum(sizes.of(value, types[value]) for value in written)


def _check_host_computes_alone(imported: ImportedProgram, plan: _core.CorePlan) -> None:
    """No collective can be among the ops of the host, nor on values in its memory.

    Raises:
        PlanError: Some pin needs one.
    """
    on_host = set(imported.host.ops)
    made_there = _made_there(imported)
    moves, rows = plan.reshards, plan.collectives
    places, indices, values = moves.place, moves.index, moves.value
    for row, kind in zip(rows.reshard, rows.kind, strict=True):
        where, index, value = places[row], indices[row], values[row]
        inside = where is not Place.JOIN and index in on_host
        # What the device makes is resharded before it is handed over.
        inside = inside and (where is not Place.OPERAND or value in made_there)
        if not inside and value not in imported.host.values:
            continue
        op = None if where is Place.JOIN else imported.core_ops[index]
        what = "a value in the memory of the host" if op is None else op.name
        raise PlanError(
            f"{what} would need a collective ({kind.value}) on the host, which has none. Cut what"
            " the host reads and makes alike, a table of an embedding in its columns: pin it with"
            " in_shardings or autoshard.shard, or leave such pins out.",
            None if op is None else place(op.location),
        )


def _between_ops(imported: ImportedProgram, sizes: _Sizes) -> float:
    """Bytes that ops on the host read from the device, and the device from them."""
    on_host = set(imported.host.ops)
    if not on_host:
        return 0.0
    trips = imported.program.op_trips
    made_there = _made_there(imported)
    free = imported.value_is_free
    sent: dict[int, float] = {}
    for number, op in enumerate(imported.core_ops):
        for operand in op.operands:
            value = imported.value_of.get(operand, NO_VALUE)
            if value == NO_VALUE or free[value] or value in imported.host.values:
                continue
            if (number in on_host) != (value in made_there):
                sent[value] = sizes.of(value, operand.type) * float(trips[number])
    return sum(sent.values())


def _made_there(imported: ImportedProgram) -> set[int]:
    """Values that ops on the host make."""
    results = [each for n in imported.host.ops for each in imported.core_ops[n].results]
    return {imported.value_of[each] for each in results} - {NO_VALUE}


class _Sizes:
    """Bytes of one device's part of a value, as the program means it."""

    def __init__(self, plan: _core.CorePlan, mesh: Mesh) -> None:
        self.rows = plan.value_sharding
        self.shardings = plan.shardings
        self.axes = mesh.without_unit_axes().axes

    def of(self, value: int, type_: mlir.Type) -> float:
        if value == NO_VALUE:
            return 0.0
        dims = self.shardings[self.rows[value]]
        cuts = prod(self.axes[axis].size for axes in dims for axis in axes)
        return tensor_bytes(type_) / cuts
