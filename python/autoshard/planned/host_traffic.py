"""What a plan keeps in the memory of the host, and what it sends over the link there."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autoshard import _core
from autoshard._core import Place
from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.ir import element_bits, mlir, place
from autoshard.sharding import Mesh


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
    """What of them no op of the same loop hides."""
    counted_bytes: float
    """What the core takes the values on the host for among those that live at the peak."""


NO_TRAFFIC = HostTraffic(0.0, 0.0, 0.0, 0.0, 0.0)


def host_traffic(
    imported: ImportedProgram, plan: _core.CorePlan, mesh: Mesh, cluster: Cluster
) -> HostTraffic:
    """Host traffic of a plan with costs.

        seconds = bytes / host_bandwidth

    A value that is moved is sent once; so is each value that an op on the host reads or makes and
    the device makes or reads. What a loop moves in one trip goes beside the ops of its trips.
    """
    host = imported.host
    if not host.values and not host.ops:
        return NO_TRAFFIC
    _check_host_computes_alone(imported, plan)
    sizes = _Sizes(plan, mesh)
    trips = imported.program.op_trips
    moved: dict[int, float] = {}
    for number in host.moves:
        (result,) = imported.core_ops[number].results
        size = sizes.of(imported.value_of[result], result.type)
        moved[number] = size * float(trips[number])
    sent = sum(moved.values()) + _between_ops(imported, sizes)
    rate = cluster.chip.host_bandwidth.value
    hidden = _hidden({n: size / rate for n, size in moved.items()}, imported, plan)
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
    return HostTraffic(held, sent, sent / rate, sent / rate - hidden, at_peak)


def _hidden(moves: dict[int, float], imported: ImportedProgram, plan: _core.CorePlan) -> float:
    """Seconds of moves, by op, that pass while the ops of the innermost loop around them run."""
    loops = sorted(imported.program.loops, key=lambda loop: loop.last_op - loop.first_op)
    seconds, trips, hidden = plan.op_seconds, imported.program.op_trips, 0.0
    waiting = dict(moves)
    for loop in loops:
        ops = range(loop.first_op, loop.last_op)
        inside = [number for number in waiting if number in ops]
        if inside:
            computing = sum(seconds[number] * trips[number] for number in ops)
            hidden += min(computing, sum(waiting.pop(number) for number in inside))
    return hidden


def _stacked(imported: ImportedProgram, sizes: _Sizes) -> float:
    """Bytes of the stacks that loops write in the memory of the host."""
    types = {value: made.type for made, value in imported.value_of.items()}
    written = {
        value
        for loop in imported.program.loops
        for value, made in zip(loop.carried, loop.yielded, strict=True)
        if made != NO_VALUE and value in imported.host.values
    }
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
        if value == NO_VALUE or not isinstance(type_, mlir.RankedTensorType):
            return 0.0
        dims = self.shardings[self.rows[value]]
        cuts = prod(self.axes[axis].size for axes in dims for axis in axes)
        return prod(type_.shape) * element_bits(type_.element_type) / 8 / cuts
