"""Inputs of a step cut alike, and cut at all, where that costs next to nothing.

The search begins where the inputs are on the devices. An input that a step reads whole as fast as
in parts is cut all the same: each device is then sent its part alone, and the loader's. To send
all of it to each device over the link of its host may take longer than the step, and then no loader
hides it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod

from autoshard.errors import DoesNotFitError, StrategyError
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.pins import DimPin, Pin, Pinned, core_pin
from autoshard.ir import mlir, warn
from autoshard.ir.attributes import PLAN
from autoshard.passes.recursive_programming import PlannedProgram, replanned
from autoshard.planned.summarize import argument_name
from autoshard.planned.write import write_plan
from autoshard.progress import running

_PATH = re.compile(r"[.\[]")
"""Where the path within an argument begins in a name."""

_MOST_AXES = 4
"""Above so many axes only all of them together, and numbers of pieces in the plan, are tried."""

_SAME = 0.01
"""By which share a step may be longer: the cost model does not tell it."""


_MOST = 0.1
"""By which share it may be longer if no loader hides how long a batch is on its way otherwise: not
every step is sent one."""


def with_inputs_alike(planned: PlannedProgram) -> PlannedProgram:
    """As ``inputs_alike``; the module is rewritten where another plan is taken."""
    found = inputs_alike(planned)
    if found is planned:
        return planned
    module = planned.module
    with module.context, mlir.Location.unknown():
        if found.plan is not planned.plan:
            write_plan(module, found.imported, found.plan, found.mesh, planned.plan)
        module.operation.attributes[PLAN] = mlir.StringAttr.get(found.summary.to_json())
    return found


def inputs_alike(planned: PlannedProgram) -> PlannedProgram:
    """The plan, or one of the same mesh that cuts dim 0 of all inputs into as many pieces.

    The most pieces with which the step is not 1% longer. If the inputs are a batch that takes
    longer to send than the step, also those with which the longer of both gets shorter and the step
    is not 10% longer.
    Inputs are, where results replace some arguments, the largest one of the others and those with
    as many rows; what is pinned or on the host stays as it is. They are a batch if the arguments
    that they belong to have as many rows in all arrays, as weights that nothing replaces have not.
    After an interrupted search, or one that took all its time, nothing is tried; Ctrl-C takes the
    plan as it is.

    Args:
        planned: Its module stays as it is.
    """
    inputs = _inputs(planned)
    task = running()
    if not inputs or planned.options.cost_model != "seconds" or task.is_interrupted:
        return planned
    start = time.perf_counter()
    try:
        found = _most_pieces(planned, inputs)
    except KeyboardInterrupt:
        if not task.keeps_best:
            raise
        task.is_interrupted = True
        warn("planning was interrupted: inputs are cut as the search left them.")
        found = None
    seconds = {**planned.summary.planning_seconds, "inputs": time.perf_counter() - start}
    if found is None:
        return replace(planned, summary=replace(planned.summary, planning_seconds=seconds))
    summary = replace(
        found.summary,
        # The bound of the search holds for all plans; that of the other plan where inputs are so.
        lower_bound_seconds=planned.summary.lower_bound_seconds,
        bound_covers=planned.summary.bound_covers,
        inputs_seconds=max(0.0, found.summary.step_seconds - planned.summary.step_seconds),
        planning_seconds=seconds,
    )
    return _without_pins_of(replace(found, summary=summary), planned)


def _most_pieces(planned: PlannedProgram, inputs: Sequence[int]) -> PlannedProgram | None:
    """Planned again with inputs pinned to the most pieces; None: the plan stays."""
    rows = planned.imported.value_shapes[inputs[0]][0]
    is_batch = _is_batch(planned, inputs)
    searched = sum(seconds for _, seconds in planned.plan.phases)
    ends = time.perf_counter() + planned.options.most_seconds - searched
    for pieces in _numbers_of_pieces(planned, inputs, rows):
        left = ends - time.perf_counter()
        if left <= 0:
            break
        pins = [_pin(planned, value, pieces) for value in inputs]
        try:
            found = replanned(planned, pins, left)
        except (StrategyError, DoesNotFitError):  # pins or memory leave no such plan
            continue
        if _costs_nothing(found, planned) or (is_batch and _pays(found, planned, inputs)):
            return found
    return None


def _costs_nothing(found: PlannedProgram, planned: PlannedProgram) -> bool:
    return found.summary.step_seconds <= (1 + _SAME) * planned.summary.step_seconds


def _pays(found: PlannedProgram, planned: PlannedProgram, inputs: Sequence[int]) -> bool:
    """Does a step take less time where a loader sends the inputs of the next one meanwhile?"""
    before, after = planned.summary.step_seconds, found.summary.step_seconds
    sent, sent_after = (_sending_seconds(plan, inputs) for plan in (planned, found))
    return after <= (1 + _MOST) * before and max(after, sent_after) < max(before, sent)


def _sending_seconds(planned: PlannedProgram, inputs: Sequence[int]) -> float:
    """Seconds in which a device is sent its part of the inputs over its link to the host."""
    imported = planned.imported
    sent = sum(
        prod(imported.value_shapes[value])
        * imported.value_bits[value]
        / 8
        / prod(_cuts(planned, value))
        for value in inputs
    )
    return sent / planned.cluster.chip.host_bandwidth.value


def _without_pins_of(best: PlannedProgram, planned: PlannedProgram) -> PlannedProgram:
    """What was taken, with the pins of the program as it was: others may be given later."""
    imported, pins = best.imported, planned.imported.pins
    program = imported.program.changed(
        axis_sizes=[axis.size for axis in imported.mesh.axes],
        pins=[core_pin(pinned) for pinned in pins],
    )
    return replace(best, imported=replace(imported, program=program, pins=pins))


def _inputs(planned: PlannedProgram) -> list[int]:
    """Values of the inputs that may be cut."""
    imported = planned.imported
    state = imported.state
    fixed = {pinned.value for pinned in imported.pins} | imported.host.values
    values = [
        value
        for number, value in enumerate(imported.functions[-1].arguments)
        if state and number not in state and value != NO_VALUE and value not in fixed
    ]
    shapes = imported.value_shapes
    largest = max(values, key=lambda value: prod(shapes[value]), default=NO_VALUE)
    return [value for value in values if shapes[value][0] == shapes[largest][0]]


def _is_batch(planned: PlannedProgram, inputs: Sequence[int]) -> bool:
    """Have all arrays of the arguments that the inputs belong to as many rows as they?"""
    main, shapes = planned.imported.functions[-1], planned.imported.value_shapes
    names = [
        _PATH.split(argument_name(argument, number), maxsplit=1)[0]
        for number, argument in enumerate(main.op.regions[0].blocks[0].arguments)
    ]
    theirs = {
        name for name, value in zip(names, main.arguments, strict=True) if value in set(inputs)
    }
    rows = {
        shapes[value][0]
        for name, value in zip(names, main.arguments, strict=True)
        if name in theirs and value != NO_VALUE
    }
    return len(rows) == 1


def _numbers_of_pieces(planned: PlannedProgram, inputs: Sequence[int], rows: int) -> Iterator[int]:
    """Most first; none where the inputs are cut alike and as often as any."""
    sizes = [axis.size for axis in planned.mesh.without_unit_axes().axes]
    cuts = [_cuts(planned, value)[0] for value in inputs]
    products = {prod(sizes), *cuts}
    if len(sizes) <= _MOST_AXES:
        products |= {prod(part) for n in range(len(sizes)) for part in combinations(sizes, n)}
    least = max(cuts) + (len(set(cuts)) == 1)
    yield from (n for n in sorted(products, reverse=True) if n >= least and rows % n == 0)


def _cuts(planned: PlannedProgram, value: int) -> list[int]:
    """Into how many pieces each dim is cut."""
    axes, plan = planned.mesh.without_unit_axes().axes, planned.plan
    dims = plan.shardings[plan.value_sharding[value]]
    return [prod(axes[axis].size for axis in dim) for dim in dims]


def _pin(planned: PlannedProgram, value: int, pieces: int) -> Pinned:
    others = len(planned.imported.value_shapes[value]) - 1
    dims = (DimPin(num_shards=pieces), *[DimPin(is_open=True)] * others)
    return Pinned(value, Pin(dims), None, f"dim 0 in {pieces} parts", is_users=False)
