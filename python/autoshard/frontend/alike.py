"""``batch_argnums`` in the automatic mode: arrays of one batch are cut alike, unless that costs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from autoshard.errors import AutoshardWarning, DoesNotFitError, StrategyError
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan
from autoshard.ir import mlir
from autoshard.ir.attributes import PIN
from autoshard.ir.boundary import main_function, with_attribute
from autoshard.sharding.strategy import Cuts

_WORTH = 0.05
"""By which share a step and its input may take longer with a batch cut alike: the model is no
finer."""


def cut_alike(source: Source, batch: Sequence[int], plan: Callable[[Source], Plan]) -> Plan:
    """The fastest plan of those that cut all arrays of the batch into as many pieces.

    The search's own plan is taken where it does so, or where the others are more than 5% slower,
    with the bytes of the batch at the link to the host.

    Args:
        source: Planned as it is, and with ``batch_cuts``.
        batch: Numbers of the arrays that hold the batch in dim 0, among those that are read.
        plan: Plans a source.
    """
    free = plan(source)
    if not batch:
        return free
    rows = [free.arguments[number].shape[0] for number in batch]
    cuts = [free.arguments[number].sharding.num_shards(0) for number in batch]
    if len(set(cuts)) == 1 and cuts[0] > 1:
        return free
    best: Plan | None = None
    for pieces in sorted({free.mesh.size, *cuts} - {1}, reverse=True):
        if any(count % pieces for count in rows):
            continue
        try:
            found = plan(replace(source, batch_cuts=tuple((number, pieces) for number in batch)))
        except (StrategyError, DoesNotFitError):  # pins or memory leave no such plan
            continue
        if best is None or _seconds(found, batch) < _seconds(best, batch):
            best = found
    if best is not None and _seconds(best, batch) <= (1 + _WORTH) * _seconds(free, batch):
        return best
    why = (
        "no plan that cuts them alike is possible and fits"
        if best is None
        else "cut alike the step, with sending each device its part, is"
        f" {_seconds(best, batch) / _seconds(free, batch) - 1:.0%} longer by the cost model"
    )
    said = ", ".join(
        f"{free.arguments[number].name} into {count}"
        for number, count in zip(batch, cuts, strict=True)
    )
    warnings.warn(
        AutoshardWarning(
            f"{source.name}: the arrays of the batch are cut unlike ({said}): {why}. Pin them by"
            " in_shardings if they shall be."
        ),
        stacklevel=2,
    )
    return free


def _seconds(plan: Plan, batch: Sequence[int]) -> float:
    """Seconds of a step, and of sending each device its part of the batch."""
    assert plan.summary is not None
    sent = sum(plan.arguments[number].local_bytes for number in batch)
    return plan.step_seconds + sent / plan.summary.read_cluster().chip.host_bandwidth.value


def write_batch_cuts(source: Source, module: mlir.Module, places: Mapping[int, int]) -> None:
    """Pin dim 0 of the batch to a number of pieces, and leave its other dims open.

    Args:
        source: Which arrays, and into how many pieces.
        module: Its ``main`` is pinned.
        places: Number of a flat argument -> number of the argument of ``main``.
    """
    main = main_function(module)
    types: Any = jax.tree.leaves(source.program.stage.args_info)
    for number, pieces in source.batch_cuts:
        text = str(Cuts((pieces, *[None] * (len(types[number].shape) - 1))))
        with module.context:
            pin = mlir.StringAttr.get(text)
        with_attribute(main, "arg_attrs", PIN, pin, [places[number]])
