"""What one stage of a pipeline takes of a program's memory, before the program is cut."""

from __future__ import annotations

import math

import pytest

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, read_module

MIB = 2**20
CLUSTER = Cluster.parse("h100:1")

LOOP = """
func.func public @main(%w: TYPE, %s: TYPE, %xs: tensor<8x2048x1024xf32>) -> (TYPE) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %r:4 = stablehlo.while(%m = %first, %v = %w, %sum = %s, %batch = %xs)
      : tensor<i32>, TYPE, TYPE, tensor<8x2048x1024xf32>
  cond {
    %trips = stablehlo.constant dense<8> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %i0 = stablehlo.constant dense<0> : tensor<i32>
    %i1 = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %m, %i1 : tensor<i32>
    %slice = stablehlo.dynamic_slice %batch, %m, %i0, %i0, sizes = [1, 2048, 1024]
        : (tensor<8x2048x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>)
        -> tensor<1x2048x1024xf32>
    %x = stablehlo.reshape %slice : (tensor<1x2048x1024xf32>) -> ROWS
    %y = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (ROWS, TYPE) -> ROWS
    %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (ROWS, ROWS) -> TYPE
    %more = stablehlo.add %sum, %g : TYPE
    stablehlo.return %next, %v, %more, %batch
        : tensor<i32>, TYPE, TYPE, tensor<8x2048x1024xf32>
  }
  return %r#2 : TYPE
}
""".replace("TYPE", "tensor<1024x1024xf32>").replace("ROWS", "tensor<2048x1024xf32>")


def plan_of(stages: int, **options: float) -> _core.CorePlan:
    module = parse_bytes(LOOP.encode(), new_context())
    read = read_module(module, CLUSTER, RecursiveProgramming()).imported
    core, given = CLUSTER.to_core(read.mesh, 0.0), {"memory_limit": math.inf, **options}
    return _core.recursive_programming(read.program, core, mem_coeff=None, stages=stages, **given)


def test_a_stage_has_its_share_of_weights_sums_and_batches_and_one_micro_batch() -> None:
    whole = plan_of(1)
    assert whole.limited_bytes == whole.peak_bytes
    two, four = plan_of(2), plan_of(4)
    assert two.peak_bytes == four.peak_bytes == whole.peak_bytes
    shared = 4 * (two.limited_bytes - four.limited_bytes)
    in_trips = two.limited_bytes - shared / 2
    assert shared + in_trips == whole.peak_bytes
    # The slice of the batch and its product; the sum of gradients is there all along.
    assert 8 * MIB <= in_trips <= 20 * MIB
    assert shared >= (4 + 4 + 64) * MIB


def test_the_limit_is_that_of_a_stage() -> None:
    needed = plan_of(4).limited_bytes
    assert plan_of(4, memory_limit=needed).limited_bytes == needed
    with pytest.raises(_core.DoesNotFit):
        plan_of(4, memory_limit=needed - 1)


def test_a_search_gives_up_where_its_first_plan_is_slower() -> None:
    seconds = plan_of(1).step_seconds
    assert plan_of(1, give_up_seconds=2 * seconds).step_seconds == seconds
    with pytest.raises(_core.GivenUp) as error:
        plan_of(1, give_up_seconds=seconds / 2)
    assert error.value.args[1] == pytest.approx(seconds)
