"""Ops whose results nobody reads cost nothing: compilers leave them out."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.importer import import_program
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.pipeline import run_passes
from autoshard.planned.given_plan import cost_of_module
from autoshard.planned.summary import PlanSummary
from autoshard.planned.write import populate_rules
from autoshard.search.plan_pass import PlanProgram
from autoshard.sharding import Mesh

READ = """
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
"""
UNREAD = """
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %d0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0]
      : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<256x256xf32>
  %d1 = sdy.sharding_constraint %d0 <@m, [{"a"}, {}]> : tensor<256x256xf32>
  %d2 = stablehlo.tanh %d1 : tensor<256x256xf32>
  %d3 = stablehlo.reduce(%d2 init: %c) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<256x256xf32>, tensor<f32>) -> tensor<f32>
"""
"""A gradient of x, cut as the user says, and a sum of it."""


def module_of(ops: str) -> mlir.Module:
    text = f"""
    sdy.mesh @m = <["a"=4]>
    func.func public @main(%x: tensor<64x256xf32>, %w: tensor<256x256xf32>)
        -> tensor<64x256xf32> {{ {ops} return %0 : tensor<64x256xf32> }}
    """
    return parse_bytes(text.encode(), new_context(), "test.mlir")


def runs(ops: str) -> list[tuple[str, float]]:
    """Names of the ops that the core has, and how often they run."""
    module = module_of(ops)
    run_passes(module, ["autoshard-import-strategies"])
    with module.context:
        populate_rules(module)
        imported = import_program(module, Mesh.parse("a=4"))
    names = [op.name.removeprefix("stablehlo.") for op in imported.core_ops]
    return list(zip(names, imported.program.op_trips, strict=True))


def planned(ops: str) -> tuple[mlir.Module, PlanSummary]:
    options = PlanProgram(cluster="cpu:4", mesh="a=4")
    _, found = options.planned(module_of(ops))
    assert found.summary is not None
    return found.module, found.summary


def test_what_nobody_reads_runs_never() -> None:
    assert runs(READ + UNREAD) == [
        ("dot_general", 1.0),
        ("dot_general", 0.0),
        ("tanh", 0.0),
        ("reduce", 0.0),
    ]


@pytest.mark.parametrize(
    "ops",
    [
        "%1 = stablehlo.tanh %w : tensor<256x256xf32>"
        " %2 = stablehlo.optimization_barrier %1 : tensor<256x256xf32>",
        "%1 = stablehlo.custom_call @f(%w) {has_side_effect = true}"
        " : (tensor<256x256xf32>) -> tensor<256x256xf32>",
        "%1 = stablehlo.tanh %w : tensor<256x256xf32>"
        " stablehlo.custom_call @f(%1) {has_side_effect = true} : (tensor<256x256xf32>) -> ()",
        "%1 = stablehlo.tanh %w : tensor<256x256xf32>"
        ' %2 = sdy.sharding_constraint %1 <@m, [{"a"}, {}]> : tensor<256x256xf32>',
    ],
)
def test_what_has_an_effect_or_is_waited_for_runs(ops: str) -> None:
    assert runs(READ + ops)[1][1] == 1.0


def test_what_a_branch_makes_for_a_barrier_runs() -> None:
    ops = """
      %p = stablehlo.constant dense<true> : tensor<i1>
      %1 = "stablehlo.if"(%p) ({
        %2 = stablehlo.tanh %w : tensor<256x256xf32>
        stablehlo.return %2 : tensor<256x256xf32>
      }, {
        %2 = stablehlo.sine %w : tensor<256x256xf32>
        stablehlo.return %2 : tensor<256x256xf32>
      }) : (tensor<i1>) -> tensor<256x256xf32>
    """
    barrier = "%3 = stablehlo.optimization_barrier %1 : tensor<256x256xf32>"
    assert runs(READ + ops)[1:] == [("tanh", 0.0), ("sine", 0.0)]
    assert runs(READ + ops + barrier)[1:] == [("tanh", 1.0), ("sine", 1.0)]


def test_a_scalar_that_is_read_keeps_what_it_is_made_of() -> None:
    ops = UNREAD + "%d4 = stablehlo.add %d3, %d3 : tensor<f32>"
    assert [times for _, times in runs(READ + ops)] == [1.0, 1.0, 1.0, 1.0]


def test_a_plan_costs_the_same_with_and_without_what_nobody_reads() -> None:
    (_, without), (module, with_unread) = planned(READ), planned(READ + UNREAD)
    assert with_unread.step_seconds == without.step_seconds > 0
    assert with_unread.peak_bytes_per_device == without.peak_bytes_per_device
    assert with_unread.collectives == without.collectives
    costed = cost_of_module(module, Cluster.of("cpu:4"))
    assert costed.plan.step_seconds == without.step_seconds
    assert not any(costed.plan.op_seconds[1:])
    assert not [row for row in costed.plan.reshards.index if row > 0]
