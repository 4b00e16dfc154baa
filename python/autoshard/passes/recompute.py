"""Compute forward values again in the backward half, so that the step fits the memory.

before  %h = stablehlo.tanh %a                        // lives until the last line
        ..
        %g = stablehlo.multiply %dy, %h
after   %h = stablehlo.tanh %a
        ..
        %b:2 = stablehlo.optimization_barrier %a, %dy
        %h2 = stablehlo.tanh %b#0
        %g = stablehlo.multiply %b#1, %h2

Copies have the attributes of their originals, so that the plan stays.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from autoshard.cluster import Cluster
from autoshard.errors import DoesNotFitError, PassOptionError
from autoshard.ir import mlir, parse_bytes
from autoshard.ir.attributes import PLAN
from autoshard.ir.inline import bytes_of, inline_calls, replace_body
from autoshard.passes.base import Pass
from autoshard.passes.recursive_programming import (
    MEMORY_MARGIN,
    memory_limit_of,
    read_bytes_text,
)
from autoshard.planned.axis_names import describe_axes
from autoshard.planned.given_plan import Costed, cluster_for, cost_of_module, summary_on
from autoshard.planned.host_traffic import host_traffic
from autoshard.planned.summarize import peak_values, summarize
from autoshard.planned.summary import PlanSummary, RecomputedValue, bytes_text, tensors_text
from autoshard.rewrites.recomputation.block import Block, blocks_of
from autoshard.rewrites.recomputation.choice import Rules, choose, describe
from autoshard.rewrites.recomputation.kept import check_gathers, keep_gathered, keep_in_loops
from autoshard.rewrites.recomputation.loops import pairs_of
from autoshard.rewrites.recomputation.marks import has_switches, keep_marked
from autoshard.rewrites.recomputation.stack_choice import choose_stacks, describe_stacks
from autoshard.rewrites.recomputation.stack_rewrite import drop_stacks
from autoshard.rewrites.recomputation.straight import write_clones

_ROUNDS = 5
"""How often values are chosen: the rewritten module may need more than expected, or less."""

_CLOSE = 0.02
"""A peak below what is aimed at by this share of it is good enough."""


@dataclass(frozen=True)
class Recompute(Pass):
    """Compute values again instead of keeping them, so that a planned module fits the memory.

    The cheapest set that is found. A module that fits stays as it is.
    """

    name: ClassVar[str] = "autoshard-recompute"

    cluster: str = ""
    """What the program runs on: v5p:4x4x4, ..; usually what it was planned for."""

    compiler: str = ""
    """Another compiler than the installed one for the chips: xla-tpu-0.0.42, unknown, .., with
    :without=RULE,RULE behind to switch rules off; docs/design/compilers.md lists both."""

    memory_limit: str = ""
    """What the step may use of a device, 14GiB or bytes; usually the chip's memory less 8%."""

    choose: Literal["auto", "marks"] = "auto"
    """auto: whatever makes the step fit; marks: nothing but what is marked, as marked."""

    mp_comm_recompute: bool = True
    """May results of collectives be computed, and so sent, again?"""

    parallel_optimizer_comm_recompute: bool = True
    """May what is made of parameters, and gathered of them, be made and gathered again?"""

    overlap: float = 0.0
    """Share of communication that hides behind compute, 0 to 1."""

    trip_count: int = 100
    """Assumed trips of loops whose count cannot be read from the program."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choose not in ("auto", "marks"):
            raise PassOptionError(
                f"{self.name}: option choose={self.choose} is not known. Give auto or marks."
            )
        if self.memory_limit:
            read_bytes_text(self.memory_limit, f"{self.name}: option memory-limit")
        if not 0 <= self.overlap <= 1:
            raise PassOptionError(
                f"{self.name}: option overlap={self.overlap} is out of range. Give 0 to 1."
            )
        if self.trip_count < 0:
            raise PassOptionError(
                f"{self.name}: option trip-count={self.trip_count} is out of range. Give 0 or more."
            )

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``; raises DoesNotFitError where nothing makes the step fit."""
        cluster = cluster_for(module, self.cluster, self.name, self.compiler)
        recompute(module, cluster, self)


def recompute(module: mlir.Module, cluster: Cluster, options: Recompute) -> PlanSummary:
    """What the pass does, for a cluster that has no name.

    Returns:
        The summary of the plan as it is now; it goes to the module, too.

    Raises:
        DoesNotFitError: Nothing makes the step fit.
        PlanError: There is no plan on the module.
    """
    start = time.perf_counter()
    limit = memory_limit_of(cluster, options.memory_limit)
    with module.context, mlir.Location.unknown():
        costed = first = _cost(module, cluster, options)
        recomputed: list[RecomputedValue] = []
        if has_switches(module):
            inline_calls(module)
            costed = _keep(module, cluster, options)
        if options.choose == "auto" and costed.plan.peak_bytes - _counted_on_host(costed) > limit:
            costed, recomputed = _fit(module, cluster, options, limit, costed)
        summary = _summary(module, costed, cluster, options, limit)
        summary = replace(
            summary,
            recomputed=tuple(sorted(recomputed, key=lambda row: -row.bytes)),
            recompute_seconds=max(0.0, costed.plan.step_seconds - first.plan.step_seconds),
            planning_seconds={
                **summary.planning_seconds,
                "recompute": time.perf_counter() - start,
            },
        )
        module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
    return summary


def _keep(module: mlir.Module, cluster: Cluster, options: Recompute) -> Costed:
    """Keep what the switches of marked functions say."""
    costed, number = _cost(module, cluster, options), 0
    while number < len(blocks_of(costed)):
        blocks = [Block(costed, n) for n in range(len(blocks_of(costed)))]
        if keep_in_loops(blocks[number], {one.block: one for one in blocks}):
            costed = _cost(module, cluster, options)
            continue
        keep_marked(blocks[number])
        blocks[number].erase_unused()
        costed = _cost(module, cluster, options)
        if keep_gathered(Block(costed, number)):
            costed = _cost(module, cluster, options)
        number += 1
    check_gathers([Block(costed, n) for n in range(len(blocks_of(costed)))])
    return costed


def _fit(
    module: mlir.Module, cluster: Cluster, options: Recompute, limit: float, first: Costed
) -> tuple[Costed, list[RecomputedValue]]:
    """Choose and rewrite until the rewritten module fits by its own estimate.

    That may differ a little from what was expected of the choice: then more is asked of the next.
    The margin that a chip's own limit has is left free of a given one, too, where that can be.
    """
    on_host = _counted_on_host(first)
    aim = limit * (1 - MEMORY_MARGIN) if options.memory_limit else limit
    aim, limit = aim + on_host, limit + on_host
    if inline_calls(module):
        first = _cost(module, cluster, options)  # values of what was inlined are gone
    original = bytes_of(module)
    wanted = aim
    best: tuple[Costed, list[RecomputedValue], mlir.Module] | None = None
    needed = first.plan.peak_bytes
    for _ in range(_ROUNDS):
        trial = parse_bytes(original, module.context, "recompute")
        costed = _cost(trial, cluster, options)
        block = Block(costed)
        beside = max(0.0, first.plan.peak_bytes - max(block.live_bytes, default=0.0))
        rules = Rules(
            keep_sent=not options.mp_comm_recompute,
            keep_parameters=not options.parallel_optimizer_comm_recompute,
        )
        rows: list[RecomputedValue] = []
        is_stuck = True
        # main first: what is dropped there is computed again once, in a loop in each trip
        for number in range(len(blocks_of(block.costed))):
            more, block = _drop_stacks(trial, block, wanted - beside, cluster, options, rules)
            choice = choose(block, wanted - beside, rules)
            rows += more + describe(block, choice)
            write_clones(block, choice.clones, keep_parameters=rules.keep_parameters)
            block.erase_unused()
            costed = _cost(trial, cluster, options)
            is_stuck = choice.peak_bytes + beside > wanted
            if not is_stuck or number + 1 == len(blocks_of(costed)):
                break
            block = Block(costed, number + 1)
        peak = costed.plan.peak_bytes
        needed = min(needed, peak)
        if peak <= limit and (best is None or _rank(costed, aim) < _rank(best[0], aim)):
            best = (costed, rows, trial)
        if (1 - _CLOSE) * aim < peak <= aim:
            break
        if peak > aim and is_stuck:  # nothing is left to choose
            if best is not None or aim == limit:
                break
            aim = wanted = limit  # where less is asked for, other values are chosen
            continue
        before, wanted = wanted, wanted + aim - peak - _CLOSE / 2 * aim
        if best is not None and peak <= aim and wanted >= first.plan.peak_bytes:
            wanted = (before + first.plan.peak_bytes) / 2
    if best is None:
        # Inlining made the ops of the first estimate anew.
        without = _cost(module, cluster, options)
        raise _does_not_fit(without, needed - on_host, limit - on_host, options)
    replace_body(module, best[2])
    return _cost(module, cluster, options), best[1]


def _rank(costed: Costed, aim: float) -> tuple[bool, float]:
    """Smaller is better: by seconds what keeps within ``aim``, else by bytes times seconds."""
    peak, seconds = costed.plan.peak_bytes, costed.plan.step_seconds
    return peak > aim, seconds * max(peak, aim)


def _counted_on_host(costed: Costed) -> float:
    """Bytes that values in the memory of the host count as in the search; they take none."""
    traffic = host_traffic(costed.imported, costed.plan, costed.mesh, costed.cluster)
    return traffic.counted_bytes


def _drop_stacks(
    module: mlir.Module,
    block: Block,
    wanted: float,
    cluster: Cluster,
    options: Recompute,
    rules: Rules,
) -> tuple[list[RecomputedValue], Block]:
    """In loops; what is computed again, and the block as it is then.

    A pair of loops is asked until nothing more of it helps: what a compiler stores for the copies,
    as converted stacks, is only known when they are written.
    """
    rows: list[RecomputedValue] = []
    number = 0
    while number < len(pairs := pairs_of(block)):
        missing = max(block.live_bytes, default=0.0) - wanted
        if missing <= 0:
            break
        dropped = choose_stacks(block, pairs[number], missing, rules)
        if not dropped:
            number += 1
            continue
        rows += describe_stacks(block, dropped)
        drop_stacks(block, pairs[number], dropped, rules)
        block = Block(_cost(module, cluster, options), block.number)
    return rows, block


def _cost(module: mlir.Module, cluster: Cluster, options: Recompute) -> Costed:
    return cost_of_module(module, cluster, overlap=options.overlap, trip_count=options.trip_count)


def _summary(
    module: mlir.Module, costed: Costed, cluster: Cluster, options: Recompute, limit: float
) -> PlanSummary:
    """Summary of the plan as it is now, with what is known of its search."""
    axes = describe_axes(costed.imported, costed.plan)
    found = summarize(costed.imported, costed.plan, costed.mesh, axes, cluster)
    found = replace(found, overlap=options.overlap, memory_limit=limit, cost_model="bytes")
    before = summary_on(module)
    if before is None:
        return found
    return replace(
        found,
        axes=before.axes,
        mem_coeff=before.mem_coeff,
        cost_model=before.cost_model,
        planning_seconds=before.planning_seconds,
    )


def _does_not_fit(
    costed: Costed, needed: float, limit: float, options: Recompute
) -> DoesNotFitError:
    """With the best that was found, and what is at the peak without it."""
    imported, plan = costed.imported, costed.plan
    largest = peak_values(imported, plan.peak_values, {})
    switches = [
        f"{name}=true"
        for name, value in (
            ("mp-comm-recompute", options.mp_comm_recompute),
            ("parallel-optimizer-comm-recompute", options.parallel_optimizer_comm_recompute),
        )
        if not value
    ]
    more = f" give {' and '.join(switches)}," if switches else ""
    return DoesNotFitError(
        f"computing values again does not make this plan fit: it still needs"
        f" {bytes_text(needed)} on each of {imported.mesh.size} devices,"
        f" {bytes_text(needed - limit)} more than the {bytes_text(limit)} allowed; without, it"
        f" needs {bytes_text(plan.peak_bytes - _counted_on_host(costed))}. Largest tensors at its"
        f" peak, on one device: {tensors_text(largest)}. Plan for less memory,{more} use more chips"
        " or a smaller batch.",
        None,
        needed,
        limit,
    )
