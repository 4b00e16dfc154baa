"""Plans by hand, as bench/ completes and reads them."""

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, plan_automatically
from bench.common.corpus import propagate


def test_a_row_that_shardy_cuts_into_eight_is_whole() -> None:
    text = b"""
    sdy.mesh @mesh = <["data"=8]>
    func.func public @main(%rows: tensor<16x8xf32>
        {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<1x8xf32> {
      %last = stablehlo.slice %rows [15:16, 0:8] : (tensor<16x8xf32>) -> tensor<1x8xf32>
      %0 = stablehlo.negate %last : tensor<1x8xf32>
      return %0 : tensor<1x8xf32>
    }"""
    module = parse_bytes(text, new_context(), "rows")
    propagate(module)
    assert "[{}, {}]>]>} : (tensor<16x8xf32>) -> tensor<1x8xf32>" in str(module)
    plan = plan_automatically(module, Cluster.of("h100:8"), RecursiveProgramming(mesh="data=8"))
    assert plan.mesh == "data=8"


def test_a_whole_parameter_is_cut_where_shardy_cuts_the_barrier_behind_it() -> None:
    text = b"""
    sdy.mesh @mesh = <["data"=8]>
    func.func public @main(%w: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
                           %m: tensor<16x16xf32>
                             {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
        -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
      %0 = stablehlo.optimization_barrier %w : tensor<16x16xf32>
      %1 = stablehlo.add %0, %m : tensor<16x16xf32>
      return %1 : tensor<16x16xf32>
    }"""
    module = parse_bytes(text, new_context(), "zero1")
    propagate(module)
    plan = plan_automatically(module, Cluster.of("h100:8"), RecursiveProgramming(mesh="data=8"))
    shardings = [line for line in str(module).splitlines() if "optimization_barrier" in line]
    assert "devices=[8,1]<=[8]" in shardings[0]
    assert plan.communication_seconds == 0
