"""When the ops and collectives of a plan run: by hand, in loops, and for every compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from core.test_stored_for_collectives import CUT, WHOLE, backward
from plan_cases import lower, struct

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.planned.given_plan import cost_of_module

SLOWDOWN = Cluster.parse("h100:8").chip.overlap_slowdown.value


def costed(module: mlir.Module, cluster: str = "h100:8", compiler: str = "") -> _core.CorePlan:
    """The plan of the search, with its costs."""
    devices = Cluster.of(cluster, compiler)
    search_module(module, devices, RecursiveProgramming(mesh="x=8"))
    return cost_of_module(module, devices).plan


def of_text(text: str, rows: int, compiler: str = "") -> _core.CorePlan:
    for name, value in (("CUT", CUT), ("WHOLE", WHOLE), ("ROWS", str(rows))):
        text = text.replace(name, value)
    return costed(parse_bytes(text.encode(), new_context(), "step"), compiler=compiler)


def collectives(plan: _core.CorePlan) -> list[tuple[str, float, float, float, float]]:
    """Kind, seconds and runs, and what of all runs is exposed and of one is slack."""
    rows, trips = plan.collectives, plan.reshards.trips
    return [
        (rows.kind[n].value, rows.seconds[n], trips[r], rows.exposed_seconds[n], slack)
        for n, (r, slack) in enumerate(zip(rows.reshard, rows.slack_seconds, strict=True))
    ]


LAYERS = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx4096xbf16> CUT, %v: tensor<4096x4096xbf16> CUT,
    %w: tensor<4096x4096xbf16> CUT) -> (tensor<ROWSx4096xbf16> CUT) {
  %y = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0]
      : (tensor<ROWSx4096xbf16>, tensor<4096x4096xbf16>) -> tensor<ROWSx4096xbf16>
  %z = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
      : (tensor<ROWSx4096xbf16>, tensor<4096x4096xbf16>) -> tensor<ROWSx4096xbf16>
  return %z : tensor<ROWSx4096xbf16>
}
"""


def test_the_weight_of_the_second_layer_is_gathered_beside_the_first():
    plan = of_text(LAYERS, 131072)
    first, second = plan.op_seconds
    (kind, gather, *of_first), (_, again, *of_second) = collectives(plan)
    assert (kind, again) == ("all-gather", gather)
    assert gather < first == second
    # All of the first gather is waited for; the second slows the first product down.
    slowed = first + gather * (1 - 1 / SLOWDOWN)
    assert plan.scheduled_seconds == pytest.approx(gather + slowed + second)
    assert plan.all_hidden_seconds == plan.compute_seconds
    assert plan.compute_seconds + plan.communication_seconds == pytest.approx(2 * (first + gather))
    # Both wait for arguments alone: the second could begin with the step, too.
    assert of_first == pytest.approx([1, gather, 0])
    assert of_second == pytest.approx([1, 0, slowed])


def test_gradients_are_reduced_while_the_backward_pass_goes_on():
    plan = of_text(backward(6, 4096), 131072)
    found = collectives(plan)
    assert [kind for kind, *_ in found] == ["all-reduce"] * 6
    last = found[-1]
    exposed = [of_all for *_, of_all, _ in found]
    # Nothing is left to hide the sum of the gradient that is made last.
    assert exposed[:-1] == [0] * 5
    assert exposed[-1] == pytest.approx(last[1])
    beside = sum(seconds for _, seconds, *_ in found[:-1]) * (1 - 1 / SLOWDOWN)
    assert plan.scheduled_seconds == pytest.approx(plan.compute_seconds + last[1] + beside)


LOOP = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %y: tensor<64x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %w: tensor<4096x4096xbf16> CUT, %u: tensor<ROWSx1024xbf16> CUT,
    %v: tensor<1024x1024xbf16> WHOLE)
    -> (tensor<64x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
        tensor<ROWSx1024xbf16> CUT) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %ten = stablehlo.constant dense<10> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %a = %y, %b = %u)
      : tensor<i32>, tensor<64x4096xbf16>, tensor<ROWSx1024xbf16>
    cond {
      %c = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %n = stablehlo.add %i, %one : tensor<i32>
      %p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
          : (tensor<64x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<64x4096xbf16>
      %q = stablehlo.dot_general %b, %v, contracting_dims = [1] x [0]
          : (tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>) -> tensor<ROWSx1024xbf16>
      stablehlo.return %n, %p, %q : tensor<i32>, tensor<64x4096xbf16>, tensor<ROWSx1024xbf16>
    }
  return %r#1, %r#2 : tensor<64x4096xbf16>, tensor<ROWSx1024xbf16>
}
"""


def test_a_sum_that_the_next_trip_reads_hides_behind_what_else_the_trip_does():
    plan = of_text(LOOP, 131072)
    ((kind, scatter, runs, exposed, _),) = collectives(plan)
    product, other = (s for s in plan.op_seconds if s > 0)
    assert (kind, runs, exposed) == ("reduce-scatter", 10, 0)
    assert scatter < other
    trip = product + other + scatter * (1 - 1 / SLOWDOWN)
    assert plan.scheduled_seconds == pytest.approx(10 * trip)


def test_a_sum_with_nothing_beside_it_is_exposed_in_each_trip():
    plan = of_text(LOOP, 8)
    ((_, scatter, runs, exposed, slack),) = collectives(plan)
    product, other = (s for s in plan.op_seconds if s > 0)
    waited = scatter - SLOWDOWN * other
    assert exposed == pytest.approx(runs * waited)
    assert slack == 0
    assert plan.scheduled_seconds == pytest.approx(10 * (product + scatter))


def test_a_loop_without_trips_takes_nothing():
    plan = of_text(
        LOOP.replace("%ten = stablehlo.constant dense<10>", "%ten = stablehlo.constant dense<0>"), 8
    )
    assert plan.scheduled_seconds == plan.all_hidden_seconds == 0


def test_a_compiler_of_which_nothing_is_known_hides_nothing():
    plan = of_text(LAYERS, 131072, compiler="unknown")
    nothing = plan.compute_seconds + plan.communication_seconds
    assert plan.scheduled_seconds == pytest.approx(nothing)
    for _, seconds, runs, exposed, slack in collectives(plan):
        assert (exposed, slack) == (pytest.approx(runs * seconds), 0)


def scanned(stack: Any, x: Any) -> Any:
    def loss(stack: Any) -> Any:
        def layer(y: Any, w: Any) -> Any:
            return jax.nn.relu(y @ w[0]) @ w[1], None

        return (jax.lax.scan(layer, x, stack)[0] ** 2).sum()

    return jax.tree.map(lambda p, g: p - 0.1 * g, stack, jax.grad(loss)(stack))


def branches(x: Any, w: Any) -> Any:
    y = x @ w
    z = jax.lax.cond(y[0, 0] > 0, lambda v: v @ w.T, lambda v: jnp.tanh(v) @ w.T, y)
    return z, (z * x).sum()


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scan": (
        scanned,
        (
            (struct(4, 512, 2048), struct(4, 2048, 512)),
            struct(4096, 512),
        ),
    ),
    "branches": (branches, (struct(2048, 1024), struct(1024, 1024))),
}


@pytest.mark.parametrize("cluster", ["h100:8", "h100:2x4", "v5e:2x4", "v5p:2x2x2", "cpu:8"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_schedule_is_between_all_and_nothing_hidden(program: str, cluster: str):
    fn, arguments = PROGRAMS[program]
    plan = costed(lower(fn, *arguments), cluster)
    nothing = plan.compute_seconds + plan.communication_seconds
    assert plan.all_hidden_seconds <= plan.scheduled_seconds * (1 + 1e-9)
    assert plan.scheduled_seconds <= nothing * (1 + 1e-9)
    exposed = 0.0
    for _, seconds, runs, of_all, slack in collectives(plan):
        assert 0 <= of_all <= runs * seconds * (1 + 1e-9)
        assert slack >= 0
        exposed += of_all
    slowdown = Cluster.parse(cluster).chip.overlap_slowdown.value
    waited = plan.scheduled_seconds - exposed
    assert plan.compute_seconds * (1 - 1e-9) <= waited
    assert waited <= plan.compute_seconds * slowdown * (1 + 1e-9)
