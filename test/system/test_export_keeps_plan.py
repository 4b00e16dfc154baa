"""Both exported forms make XLA build the planned program; attributes alone do not.

The plans are odd on purpose: no propagation would choose them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.compile import CompiledModule, compile_module
from autoshard.passes.base import Pass
from autoshard.passes.export_gspmd import ExportGspmd
from autoshard.passes.export_shardy import ExportShardy
from autoshard.planned.collective import traffic
from autoshard.sharding.mesh import Mesh
from autoshard.verify.hlo_collectives import hlo_collectives
from planned_text import planned_module

MESH = Mesh.parse("dp=2,tp=4")


@dataclass(frozen=True)
class Program:
    text: str
    arguments: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]
    local_ops: tuple[str, ...]
    """Opcode and local shape of ops as planned, ``tanh f32[8,8]``."""


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


X = integers(16, 8)

ELEMENTWISE = Program(
    """
func.func public @main(%x: tensor<16x8xf32> $([{}, {}])) -> (tensor<16x8xf32> $([{}, {}])) {
  %a = stablehlo.negate %x $([{dp}, {}] -> [{dp}, {}]) : tensor<16x8xf32>
  %b = stablehlo.abs %a $([{}, {tp}] -> [{}, {tp}]) : tensor<16x8xf32>
  %c = stablehlo.floor %b $([{tp}, {dp}] -> [{tp}, {dp}]) : tensor<16x8xf32>
  return %c : tensor<16x8xf32>
}
""",
    (X,),
    (abs(X),),
    ("negate f32[8,8]", "abs f32[16,2]", "floor f32[4,4]"),
)

PARTIAL_SUMS = Program(
    """
func.func public @main(
    %x: tensor<16x8xf32> $([{dp}, {}]), %w: tensor<8x32xf32> $([{}, {tp}]),
    %v: tensor<32x8xf32> $([{tp}, {}])) -> (tensor<16x8xf32> $([{dp}, {tp}])) {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      $([{dp}, {}], [{}, {tp}] -> [{dp}, {tp}])
      : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  %c = stablehlo.constant $([]) dense<2.0> : tensor<f32>
  %b = stablehlo.broadcast_in_dim %c, dims = [] $([] -> [{}, {}])
      : (tensor<f32>) -> tensor<16x32xf32>
  %t = stablehlo.multiply %h, %b $([{dp}, {tp}], [{dp}, {tp}] -> [{dp}, {tp}]) : tensor<16x32xf32>
  %y = stablehlo.dot_general %t, %v, contracting_dims = [1] x [0]
      $([{dp}, {tp}], [{tp}, {}] -> [{dp}, {}] => [{dp}, {tp}])
      : (tensor<16x32xf32>, tensor<32x8xf32>) -> tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}
""",
    (X, integers(8, 32), integers(32, 8)),
    (X @ integers(8, 32) * 2 @ integers(32, 8),),
    ("dot f32[8,8]", "multiply f32[8,8]"),
)

VIEWS = Program(
    """
func.func public @main(%x: tensor<16x8xf32> $([{}, {tp}]), %w: tensor<8x32xf32> $([{tp}, {}]))
    -> (tensor<4x8x16xf32> $([{}, {}, {}])) {
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      $([{dp}, {tp}], [{tp}, {}] -> [{dp}, {tp}])
      : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  %t = stablehlo.transpose %d, dims = [1, 0] $([{dp}, {tp}] -> [{tp}, {dp}])
      : (tensor<16x32xf32>) -> tensor<32x16xf32>
  %r = stablehlo.reshape %t $([{tp}, {dp}] -> [{tp}, {}, {dp}] => [{}, {dp}, {tp}])
      : (tensor<32x16xf32>) -> tensor<4x8x16xf32>
  %f = stablehlo.floor %r $([{}, {dp}, {tp}] -> [{}, {dp}, {tp}]) : tensor<4x8x16xf32>
  return %f : tensor<4x8x16xf32>
}
""",
    (X, integers(8, 32)),
    ((X @ integers(8, 32)).T.reshape(4, 8, 16),),
    ("dot f32[8,32]", "floor f32[4,4,4]"),
)
"""The constraint behind the reshape alone says where the product is."""

RESHAPED = Program(
    """
func.func public @main(%x: tensor<64x8xf32> $([{dp}, {}]), %w: tensor<8x16xf32> $([{tp}, {}]),
    %v: tensor<16x8xf32> $([{}, {dp}])) -> (tensor<64x8xf32> $([{dp}, {}])) {
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      $([{dp}, {}], [{}, {tp}] -> [{dp}, {tp}])
      : (tensor<64x8xf32>, tensor<8x16xf32>) -> tensor<64x16xf32>
  %h = stablehlo.reshape %d $([{dp}, {tp}] -> [{dp}, {tp}, {}])
      : (tensor<64x16xf32>) -> tensor<64x4x4xf32>
  %f = stablehlo.floor %h $([{dp}, {tp}, {}] -> [{dp}, {tp}, {}]) : tensor<64x4x4xf32>
  %m = stablehlo.reshape %f $([{dp}, {tp}, {}] -> [{dp}, {tp}])
      : (tensor<64x4x4xf32>) -> tensor<64x16xf32>
  %y = stablehlo.dot_general %m, %v, contracting_dims = [1] x [0]
      $([{dp}, {tp}], [{tp}, {}] -> [{dp}, {}])
      : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  return %y : tensor<64x8xf32>
}
""",
    (integers(64, 8), integers(8, 16), integers(16, 8)),
    (integers(64, 8) @ integers(8, 16) @ integers(16, 8),),
    ("dot f32[32,4]", "floor f32[32,1,4]", "dot f32[32,8]"),
)
"""Both matmuls are exported over three dims, and their weights are reshaped instead."""

LOOP = Program(
    """
func.func public @main(%x: tensor<16x8xf32> $([{}, {}]), %w: tensor<8x8xf32> $([{}, {}]))
    -> (tensor<16x8xf32> $([{}, {}])) {
  %zero = stablehlo.constant $([]) dense<0> : tensor<i32>
  %one = stablehlo.constant $([]) dense<1> : tensor<i32>
  %end = stablehlo.constant $([]) dense<3> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %c = %x, %k = %w)
      : tensor<i32>, tensor<16x8xf32>, tensor<8x8xf32>
      attributes $([], [{dp}, {tp}], [{tp}, {}])
  cond {
    %go = stablehlo.compare LT, %i, %end $([], [] -> []) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one $([], [] -> []) : tensor<i32>
    %d = stablehlo.dot_general %c, %k, contracting_dims = [1] x [0]
        $([{dp}, {tp}], [{tp}, {}] -> [{dp}, {}])
        : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    %e = stablehlo.floor %d $([{}, {tp}] -> [{}, {tp}]) : tensor<16x8xf32>
    stablehlo.return %n, %e, %k : tensor<i32>, tensor<16x8xf32>, tensor<8x8xf32>
  }
  return %r#1 : tensor<16x8xf32>
}
""",
    (X, integers(8, 8)),
    (X @ integers(8, 8) @ integers(8, 8) @ integers(8, 8),),
    ("dot f32[8,8]", "floor f32[16,2]"),
)

BRANCHES = Program(
    """
func.func public @main(%p: tensor<i32> $([]), %x: tensor<16x8xf32> $([{}, {tp}]))
    -> (tensor<16x8xf32> $([{tp}, {}])) {
  %r = "stablehlo.case"(%p) ({
    %a = stablehlo.negate %x $([{dp}, {}] -> [{dp}, {}]) : tensor<16x8xf32>
    stablehlo.return %a : tensor<16x8xf32>
  }, {
    %b = stablehlo.floor %x $([{dp}, {tp}] -> [{dp}, {tp}]) : tensor<16x8xf32>
    stablehlo.return %b : tensor<16x8xf32>
  }) $([{tp}, {}]) : (tensor<i32>) -> tensor<16x8xf32>
  return %r : tensor<16x8xf32>
}
""",
    (np.int32(0), X),
    (-X,),
    ("negate f32[8,8]", "floor f32[8,2]"),
)

CALLS = Program(
    """
func.func public @main(%x: tensor<16x8xf32> $([{}, {}])) -> (tensor<16x8xf32> $([{}, {}])) {
  %a = func.call @f(%x) $([{}, {tp}]) : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %b = func.call @g(%a) $([{}, {dp}]) : (tensor<16x8xf32>) -> tensor<16x8xf32>
  return %b : tensor<16x8xf32>
}
func.func private @f(%x: tensor<16x8xf32> $([{dp}, {}])) -> (tensor<16x8xf32> $([{}, {tp}])) {
  %a = stablehlo.negate %x $([{dp}, {}] -> [{dp}, {}]) : tensor<16x8xf32>
  %b = stablehlo.abs %a $([{}, {tp}] -> [{}, {tp}]) : tensor<16x8xf32>
  return %b : tensor<16x8xf32>
}
func.func private @g(%x: tensor<16x8xf32> $([{tp}, {dp}])) -> (tensor<16x8xf32> $([{}, {dp}])) {
  %a = stablehlo.floor %x $([{tp}, {dp}] -> [{tp}, {dp}]) : tensor<16x8xf32>
  return %a : tensor<16x8xf32>
}
""",
    (X,),
    (abs(X),),
    ("negate f32[8,8]", "abs f32[16,2]", "floor f32[4,4]"),
)

BARRIER = Program(
    """
func.func public @main(%x: tensor<16x8xf32> $([{}, {}]))
    -> (tensor<16x8xf32> $([{}, {}]), tensor<16x8xi32> $([{dp, tp}, {}])) {
  %n = stablehlo.iota dim = 0 $([{}, {tp}]) : tensor<16x8xi32>
  %r:2 = stablehlo.optimization_barrier $([{dp}, {tp}], [{tp}, {dp}]) %x, %n
      : tensor<16x8xf32>, tensor<16x8xi32>
  %a = stablehlo.negate %r#0 $([{dp}, {tp}] -> [{dp}, {tp}]) : tensor<16x8xf32>
  %b = stablehlo.negate %r#1 $([{tp}, {dp}] -> [{tp}, {dp}]) : tensor<16x8xi32>
  return %a, %b : tensor<16x8xf32>, tensor<16x8xi32>
}
""",
    (X,),
    (-X, -np.broadcast_to(np.arange(16, dtype=np.int32)[:, None], (16, 8))),
    ("negate f32[8,2]", "negate s32[4,4]"),
)

PROGRAMS = {
    "elementwise": ELEMENTWISE,
    "partial sums": PARTIAL_SUMS,
    "views": VIEWS,
    "reshaped": RESHAPED,
    "loop": LOOP,
    "branches": BRANCHES,
    "calls": CALLS,
    "barrier": BARRIER,
}


def exported(program: Program, form: type[Pass]) -> mlir.Module:
    module = planned_module(program.text)
    form().run(module)
    assert module.operation.verify()
    return module


def compiled(module: mlir.Module, form: type[Pass]) -> CompiledModule:
    return compile_module(module, use_shardy=form is ExportShardy)


def local_sizes(hlo_text: str) -> set[tuple[str, str, int]]:
    """Opcode, element type and local elements; XLA may reshape, but not make less or more of it."""
    found = re.findall(r" = (\w+)\[([\d,]*)\]\S* ([\w\-]+)\(", hlo_text)
    return {(opcode, dtype, size_of(shape)) for dtype, shape, opcode in found}


def planned_sizes(local_ops: tuple[str, ...]) -> set[tuple[str, str, int]]:
    found = [re.fullmatch(r"([\w\-]+) (\w+)\[([\d,]*)\]", op) for op in local_ops]
    return {(op[1], op[2], size_of(op[3])) for op in found if op}


def size_of(shape: str) -> int:
    return int(np.prod([int(size) for size in shape.split(",")])) if shape else 1


@pytest.mark.parametrize("form", [ExportShardy, ExportGspmd], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_planned_program_is_what_runs(name: str, form: type[Pass]) -> None:
    program = PROGRAMS[name]
    executable = compiled(exported(program, form), form)
    assert planned_sizes(program.local_ops) <= local_sizes(executable.hlo_text())
    for result, expected in zip(executable.run(*program.arguments), program.results, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_forms_communicate_the_same(name: str) -> None:
    found = [
        traffic(hlo_collectives(compiled(exported(PROGRAMS[name], form), form).hlo_text(), MESH))
        for form in (ExportShardy, ExportGspmd)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("form", [ExportShardy, ExportGspmd], ids=["shardy", "gspmd"])
def test_the_interface_is_what_the_plan_says(form: type[Pass]) -> None:
    executable = compiled(exported(PARTIAL_SUMS, form), form)
    assert executable.argument_shardings() == (
        "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
        "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
        "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
    )
    assert executable.result_shardings() == ("{devices=[2,4]<=[8]}",)


SPLIT_CONTRACTION = """
func.func public @main(%x: tensor<16x8xf32> $([{}, {}]), %w: tensor<8x8xf32> $([{}, {}]))
    -> (tensor<16x8xf32> $([{}, {}])) {
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      $([{}, {tp}], [{tp}, {}] -> [{}, {}])
      : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  return %d : tensor<16x8xf32>
}
"""


@pytest.mark.parametrize("form", [ExportShardy, ExportGspmd], ids=["shardy", "gspmd"])
def test_attributes_alone_do_not_split_a_contraction(form: type[Pass]) -> None:
    # No sharding of a result says that its op adds partial sums up; the operands must say it.
    module = planned_module(SPLIT_CONTRACTION)
    alone = compile_module(module, use_shardy=form is ExportShardy).hlo_text()
    assert "all-reduce" not in alone

    module = planned_module(SPLIT_CONTRACTION)
    form().run(module)
    (found,) = hlo_collectives(compiled(module, form).hlo_text(), MESH)
    assert str(found).startswith("all-reduce over tp: 768 bytes")


def test_shardy_drops_shardings_on_ops() -> None:
    module = parse_bytes(
        b"""
sdy.mesh @mesh = <["dp"=2, "tp"=4]>
func.func public @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %a = stablehlo.negate %x
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}, {}]>]>} : tensor<16x8xf32>
  return %a : tensor<16x8xf32>
}""",
        new_context(),
    )
    assert ("negate", "f32", 128) in local_sizes(compile_module(module, use_shardy=True).hlo_text())
