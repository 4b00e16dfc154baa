"""Reduce what a loop adds up once, behind it, not in every trip.

before  %r = stablehlo.while(%m = 0, %sum = 0)
          %g = stablehlo.dot_general %x, %dy ..  "[{data}, {}], [{data}, {}] -> [{}, {}]"
          yields %m + 1, %sum + %g                  // an all-reduce over data in each trip
after   %p = stablehlo.while(%m = 0, %parts = 0)    // tensor<8x4x2xf32>, "[{data}, {}, {}]"
          %g = stablehlo.dot_general %xs, %ys ..    // with a batch of 8, one of each device
          yields %m + 1, %parts + %g
        %r = stablehlo.reduce %p across dimensions = [0]    // the only all-reduce

Gradients of micro-batches are such sums. Each device holds a whole part of a sum meanwhile, also of
one whose result is cut, so it is done as far as memory allows, and where it makes the step faster.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from autoshard._core import Place
from autoshard.cluster import Cluster
from autoshard.errors import PassOptionError
from autoshard.ir import mlir, parse_bytes
from autoshard.ir.attributes import PLAN
from autoshard.ir.boundary import main_function
from autoshard.ir.garbage import no_collection
from autoshard.ir.inline import bytes_of, inline_calls, replace_body
from autoshard.ir.module import functions_of
from autoshard.ir.types import tensor_bytes
from autoshard.passes.base import Pass
from autoshard.passes.memory_limit import memory_limit_of, read_bytes_text
from autoshard.planned.given_plan import Costed, cluster_for, cost_of_module, summary_on
from autoshard.planned.module import read_boundary
from autoshard.planned.summary import PlanSummary, SumsReducedOnce
from autoshard.planned.write import mesh_of, write_plan
from autoshard.rewrites.reduce_once.blocks import Blocks, sharding_of
from autoshard.rewrites.reduce_once.chains import SUMMING, WHILE, Chain, chains_of
from autoshard.rewrites.reduce_once.write import write_chains
from autoshard.sharding import Mesh

_LEAST_GAIN = 0.01
"""Share of a step that it must save. Of a llama whose model saves 0.6% on h100:8 the compiled step
takes 0.7% longer (bench/quality/reduce_once.py, 2026-11-26)."""


@dataclass(frozen=True)
class ReduceOnce(Pass):
    """Reduce what loops add up over devices once, behind them, where that makes the step faster.

    Runs on a planned module. Most for sums of micro-batches: gradients and losses. Those that save
    most for a byte first; where not all fit the memory half of them, a quarter, and so on.
    """

    name: ClassVar[str] = "autoshard-reduce-once"

    cluster: str = ""
    """What the program runs on: v5p:4x4x4, ..; usually what it was planned for."""

    compiler: str = ""
    """Another compiler than the installed one for the chips: xla-tpu-0.0.42, unknown, .., with
    :without=RULE,RULE behind to switch rules off; docs/design/compilers.md lists both."""

    memory_limit: str = ""
    """What the step may use of a device, 14GiB or bytes; usually the chip's memory less 8%."""

    overlap: float = 0.0
    """Share of communication that hides behind compute, 0 to 1."""

    trip_count: int = 100
    """Assumed trips of loops whose count cannot be read from the program."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value, wanted, holds in (
            ("overlap", self.overlap, "0 to 1", 0 <= self.overlap <= 1),
            ("trip-count", self.trip_count, "0 or more", self.trip_count >= 0),
        ):
            if not holds:
                raise PassOptionError(
                    f"{self.name}: option {option}={value} is out of range. Give {wanted}."
                )
        if self.memory_limit:
            read_bytes_text(self.memory_limit, f"{self.name}: option memory-limit")

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``.

        Raises:
            PlanError: There is no plan on the module.
        """
        cluster = cluster_for(module, self.cluster, self.name, self.compiler)
        with module.context:
            read_boundary(module)
        limit = memory_limit_of(cluster, self.memory_limit)
        found = reduced_once(
            module, cluster, limit, overlap=self.overlap, trip_count=self.trip_count
        )
        if found is not None:
            replace_body(module, found.module)
            module.operation.attributes[PLAN] = found.module.operation.attributes[PLAN]


@dataclass(frozen=True, slots=True)
class ReducedOnce:
    """A copy of a module in which sums are reduced behind their loops, and what it costs."""

    module: mlir.Module
    summary: PlanSummary


def reduced_once(
    module: mlir.Module,
    cluster: Cluster,
    limit: float,
    *,
    overlap: float = 0.0,
    trip_count: int = 100,
    known: PlanSummary | None = None,
) -> ReducedOnce | None:
    """The module with those sums reduced once that make the step fastest within the memory.

    Args:
        module: Planned; it stays as it is.
        cluster: What it is to run on.
        limit: Bytes that a step may use of a device. One that needs more may not need more still.
        overlap: Share of communication that hides behind compute.
        trip_count: Assumed trips of loops whose count cannot be read from the program.
        known: What the plan is known to cost; None: what is estimated of the module.

    Returns:
        None: the step is not faster so.

    Raises:
        PlanError: There is no plan on the module.
    """
    return SumsOnce(module, cluster, overlap, trip_count).within(limit, known)


class SumsOnce:
    """A planned module with some of its sums reduced once: all, half of them, a quarter, and so on,
    those that save most for a byte first.

    What is written for one limit of memory and not taken stays for the next one.
    """

    def __init__(
        self, module: mlir.Module, cluster: Cluster, overlap: float, trip_count: int
    ) -> None:
        """Write nothing yet; see ``reduced_once``.

        Raises:
            PlanError: There is no plan on the module.
        """
        self._module, self._cluster = module, cluster
        self._overlap, self._trip_count = overlap, trip_count
        self._sums: _Sums | None = None
        self._summaries: dict[int, PlanSummary] = {}
        """What was written, by how many sums it reduces once."""
        self._made: dict[int, _Made] = {}
        """What of that is still there."""
        with module.context, mlir.Location.unknown(), no_collection():
            copy = _Copy.of(module) if _may_have_chains(module) else None
            if copy is not None and copy.chains:
                self._sums, self._copy = _Sums.of(copy, self._cost(copy.module)), copy

    def _cost(self, made: mlir.Module) -> Costed:
        known = None if self._sums is None else self._sums.costed.imported.rules
        return cost_of_module(
            made, self._cluster, overlap=self._overlap, trip_count=self._trip_count, rules=known
        )

    def within(self, limit: float, known: PlanSummary | None = None) -> ReducedOnce | None:
        """The fastest of these within a limit of memory; see ``reduced_once``."""
        if self._sums is None:
            return None
        start = time.perf_counter()
        with self._module.context, mlir.Location.unknown(), no_collection():
            before = known or summary_on(self._module) or self._sums.costed.summary
            count = self._fastest(self._sums, limit, before)
            if not count:
                return None
            made = self._made.pop(count, None) or self._written(self._sums, count)
            write_plan(made.module, made.costed.imported, made.costed.plan)
            summary = made.costed.summary.with_history_of(before)
            seconds = {**summary.planning_seconds, "reduce once": time.perf_counter() - start}
            summary = replace(
                summary,
                overlap=self._overlap,
                reduced_once=made.said(self._sums),
                planning_seconds=seconds,
                memory_limit=before.memory_limit,
            )
            made.module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
            return ReducedOnce(made.module, summary)

    def _fastest(self, sums: _Sums, limit: float, before: PlanSummary) -> int:
        """How many sums it reduces once; 0: it is not faster so."""
        estimated = sums.costed.summary
        least = min(before.step_seconds, estimated.step_seconds)
        most_seconds = (1 - _LEAST_GAIN) * least
        allowed = max(limit, before.peak_bytes_per_device)
        best, known_seconds = 0, most_seconds
        count = 2 * len(sums.order)
        while count := count // 2:
            if estimated.step_seconds - sum(sums.saved[:count]) > known_seconds:
                break  # nor would it be faster if these took no time at all
            # Nothing is written of which it is known that it does not fit.
            if sums.peak_bytes(count) > allowed:
                continue
            summary = self._summary(sums, count)
            if best and known_seconds <= summary.step_seconds:
                break  # fewer are slower
            fits = summary.peak_bytes_per_device <= allowed
            is_faster = _half_hidden_seconds(summary) < _half_hidden_seconds(estimated)
            if fits and is_faster and summary.step_seconds <= most_seconds:
                best, known_seconds = count, summary.step_seconds
        return best

    def _summary(self, sums: _Sums, count: int) -> PlanSummary:
        if count not in self._summaries:
            self._made[count] = self._written(sums, count)
            self._summaries[count] = self._made[count].costed.summary
        return self._summaries[count]

    def _written(self, sums: _Sums, count: int) -> _Made:
        if self._copy.is_rewritten:
            self._copy = _Copy.of(self._module)
        copy, numbers = self._copy, sorted(sums.order[:count])
        copy.rewrite(numbers)
        return _Made(copy.module, copy.chains, numbers, self._cost(copy.module))


@dataclass(frozen=True, slots=True)
class _Sums:
    """What is known of the sums of a module before any is rewritten."""

    costed: Costed
    order: Sequence[int]
    """Numbers of their chains, what saves most for a byte first."""
    saved: Sequence[float]
    """Seconds of a step in which parts of each of these are sent."""
    more_bytes: Sequence[float]
    """By number of a chain: what a device holds more of it in loops."""
    at_peak: Sequence[float]
    """How much of that there is at the worst moment."""

    @staticmethod
    def of(copy: _Copy, costed: Costed) -> _Sums:
        """Sums of a copy of the module that is not rewritten yet."""
        more_bytes = [_more_bytes(chain, costed.imported.mesh) for chain in copy.chains]
        order, saved = _order(costed, copy.chains, more_bytes)
        at_peak = _more_bytes_at_peak(costed, copy.chains, more_bytes)
        return _Sums(costed, order, saved, more_bytes, at_peak)

    def peak_bytes(self, count: int) -> float:
        """About what a device needs with so many of them reduced once."""
        more = sum(self.at_peak[number] for number in self.order[:count])
        return self.costed.summary.peak_bytes_per_device + more


@dataclass(frozen=True, slots=True)
class _Made:
    """A copy of the module in which some sums are reduced once."""

    module: mlir.Module
    chains: Sequence[Chain]
    """All of them, as they were before."""
    numbers: Sequence[int]
    """Those that are rewritten."""
    costed: Costed

    def said(self, sums: _Sums) -> SumsReducedOnce:
        """What a plan says of it."""
        memory_bytes = sum(sums.more_bytes[number] for number in self.numbers)
        taken = [self.chains[number] for number in self.numbers]
        return _said(taken, sums.costed, self.costed, memory_bytes)


def _half_hidden_seconds(summary: PlanSummary) -> float:
    """A step in which half of what the compiler may hide is hidden: sums in trips run beside
    matmuls in part, while adding to larger parts is hidden nowhere."""
    scheduled = summary.scheduled_seconds
    return summary.step_seconds if scheduled is None else (summary.step_seconds + scheduled) / 2


def _may_have_chains(module: mlir.Module) -> bool:
    """Do loops add something up? Those that do not, as of random numbers, need no copy."""
    functions = functions_of(module)
    if len(functions) == 1:
        return bool(chains_of(main_function(module), mesh_of(module).without_unit_axes()))
    adding: dict[str, bool] = {}

    def adds_in(block: mlir.Block) -> bool:
        return any(adds(op.operation) for op in block.operations)

    def adds(op: mlir.Operation) -> bool:
        if op.name in SUMMING:
            return True
        if op.name != "func.call":
            return any(adds_in(block) for region in op.regions for block in region.blocks)
        callee = mlir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if callee not in adding:
            adding[callee] = any(map(adds_in, functions[callee].regions[0].blocks))
        return adding[callee]

    blocks = (function.regions[0].blocks[0] for function in functions.values())
    loops = (op.operation for block in blocks for op in block if op.operation.name == WHILE)
    return any(adds_in(loop.regions[1].blocks[0]) for loop in loops)


@dataclass
class _Copy:
    """A copy of a module, with its chains."""

    module: mlir.Module
    mesh: Mesh
    chains: Sequence[Chain]
    is_rewritten: bool = False

    @staticmethod
    def of(module: mlir.Module) -> _Copy:
        """A copy; expects the context."""
        copy = parse_bytes(bytes_of(module), module.context, "reduce once")
        inline_calls(copy)  # JAX calls the body of a scan
        mesh = mesh_of(copy).without_unit_axes()
        return _Copy(copy, mesh, chains_of(main_function(copy), mesh))

    def rewrite(self, numbers: Sequence[int]) -> None:
        """Rewrite these of its chains."""
        write_chains([self.chains[number] for number in numbers], self.mesh)
        self.is_rewritten = True


def _order(
    costed: Costed, chains: Sequence[Chain], more_bytes: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Numbers of the chains whose parts are sent in trips, what saves most for a byte first; and
    the seconds of a step in which each one's are sent."""
    plan, imported = costed.plan, costed.imported
    numbers = {op: number for number, op in enumerate(imported.core_ops)}
    table, spent = plan.reshards, dict[int, float]()
    places, indices, trips = table.place, table.index, table.trips
    for row, seconds in zip(plan.collectives.reshard, plan.collectives.seconds, strict=True):
        if places[row] is Place.RESULT:
            spent[indices[row]] = spent.get(indices[row], 0.0) + seconds * trips[row]
    found: list[tuple[float, int, float]] = []
    for number, chain in enumerate(chains):
        saved = sum(spent.get(numbers.get(each.op, -1), 0.0) for each in chain.producers)
        if saved > 0:
            found.append((saved / max(1.0, more_bytes[number]), number, saved))
    found.sort(key=lambda each: (-each[0], each[1]))
    return [number for _, number, _ in found], [saved for _, _, saved in found]


def _more_bytes(chain: Chain, mesh: Mesh) -> float:
    """How many bytes more of sums a device holds in loops."""
    blocks = Blocks(mesh, chain.axes)
    found = 0.0
    for loop, slot in chain.sums:
        held = sharding_of(loop, slot, mesh)
        size = tensor_bytes(loop.results[slot].type)
        found += size / prod(blocks.freed(held).tile) - size / prod(held.tile)
    return found


def _more_bytes_at_peak(
    costed: Costed, chains: Sequence[Chain], more_bytes: Sequence[float]
) -> list[float]:
    """How many of them there are at the worst moment: parts of sums are held all through loops."""
    ops, point = costed.imported.core_ops, costed.plan.peak_point
    around: list[mlir.Operation] = []
    op = ops[point].parent if 0 <= point < len(ops) else None
    while op is not None:
        around.append(op.operation)
        op = op.parent
    return [
        more if any(loop in around for loop, _ in chain.sums) else 0.0
        for chain, more in zip(chains, more_bytes, strict=True)
    ]


def _said(
    chains: Sequence[Chain], before: Costed, after: Costed, memory_bytes: float
) -> SumsReducedOnce:
    axes = {axis for chain in chains for axis in chain.axes}
    return SumsReducedOnce(
        count=sum(len(chain.sums) for chain in chains),
        axes=tuple(axis for axis in before.mesh.axis_names if axis in axes),
        bytes_in_trips=before.plan.resharded_bytes,
        bytes_once=after.plan.resharded_bytes,
        memory_bytes=memory_bytes,
    )
