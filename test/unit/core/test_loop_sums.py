"""The search knows that what loops add up may be reduced once, behind them."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import (
    PlannedProgram,
    RecursiveProgramming,
    read_module,
    write_planned,
)
from autoshard.passes.reduce_once import reduced_once
from autoshard.planned.summary import PlanSummary

CLUSTER = Cluster.parse("h100:4x1")
MIB = 2**20
TRIPS = 16
PART, SUM = "tensor<4096x4096xbf16>", "tensor<4096x4096xf32>"
BATCH, ROWS = f"tensor<{TRIPS}x1024x4096xbf16>", "tensor<1024x4096xbf16>"

WIDER = f"%added = stablehlo.convert %g : ({PART}) -> {SUM}"
OF_THE_SUM = f"%c = stablehlo.convert %g : ({PART}) -> {SUM}\n%added = stablehlo.tanh %c : {SUM}"


def micro_batch(name: str) -> str:
    """The rows of one trip."""
    return f"""
    %{name}0 = stablehlo.dynamic_slice %{name}s, %m, %at, %at, sizes = [1, 1024, 4096]
        : ({BATCH}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1024x4096xbf16>
    %{name} = stablehlo.reshape %{name}0 : (tensor<1x1024x4096xbf16>) -> {ROWS}"""


def step(added: str) -> str:
    """The gradient of a weight, added up over micro-batches whose rows are cut."""
    types = f"tensor<i32>, {SUM}, {BATCH}, {BATCH}"
    cut = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}'
    weight = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
    return f"""
sdy.mesh @mesh = <["x"=4]>
func.func public @main(%x: {BATCH} {cut}, %y: {BATCH} {cut}, %w: {SUM} {weight})
    -> ({SUM} {weight}) {{
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : {SUM}
  %r:4 = stablehlo.while(%m = %first, %sum = %zero, %as = %x, %bs = %y) : {types}
  cond {{
    %trips = stablehlo.constant dense<{TRIPS}> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %at = stablehlo.constant dense<0> : tensor<i32>
    %next = stablehlo.add %m, %one : tensor<i32>
    {micro_batch("a")}
    {micro_batch("b")}
    %g = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : ({ROWS}, {ROWS}) -> {PART}
    {added}
    %sum2 = stablehlo.add %sum, %added : {SUM}
    stablehlo.return %next, %sum2, %as, %bs : {types}
  }}
  %updated = stablehlo.subtract %w, %r#1 : {SUM}
  return %updated : {SUM}
}}
"""


def planned(added: str, limit: int) -> tuple[PlannedProgram, PlanSummary | None]:
    """What the search finds on four devices with slow links between them, and that with sums
    reduced once, if it is faster so."""
    module = parse_bytes(step(added).encode(), new_context(), "step")
    options = RecursiveProgramming(memory_limit=str(limit))
    found = write_planned(read_module(module, CLUSTER, options).searched(options))
    once = reduced_once(module, CLUSTER, limit, known=found.summary)
    return found, None if once is None else once.summary


def test_parts_are_left_on_devices_where_their_sum_is_reduced_behind_the_loop():
    found, once = planned(WIDER, 1024 * MIB)
    assert once is not None
    assert found.summary.step_seconds > 3 * once.step_seconds  # a reduction in each trip
    assert found.plan.objective == pytest.approx(once.step_seconds, rel=0.05)
    # What is sent in trips alone takes longer than other plans, and so do these.
    others, none = planned(OF_THE_SUM, 1024 * MIB)
    assert none is None
    assert once.step_seconds < 0.8 * others.summary.step_seconds
    assert others.plan.objective == pytest.approx(others.summary.step_seconds, rel=1e-6)


def test_parts_of_sums_count_in_the_memory_of_the_search():
    _, free = planned(WIDER, 1024 * MIB)
    assert free is not None
    limit = int(free.peak_bytes_per_device)
    assert planned(WIDER, int(1.2 * limit))[1] is not None
    found, none = planned(WIDER, limit - 1)
    assert none is None
    assert found.summary.peak_bytes_per_device < limit
    assert found.summary.step_seconds < 2 * free.step_seconds
