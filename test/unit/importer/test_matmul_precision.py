"""Matmuls in float32 that a compiler multiplies in narrower units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.passes.recursive_programming import (
    PlannedProgram,
    RecursiveProgramming,
    search_module,
)
from autoshard.planned.given_plan import cost_of_module
from autoshard.planned.summarize import short_name, value_names

TPU = Cluster.parse("v5p:2x2x2")
SIZE = (1024, 1024)


def planned(
    function: Callable[..., Any], count: int = 2, cluster: Cluster = TPU, dtype: Any = jnp.float32
) -> PlannedProgram:
    arguments = [jax.ShapeDtypeStruct(SIZE, dtype)] * count
    text = jax.jit(function).lower(*arguments).as_text(debug_info=True)
    module = parse_bytes(text.encode(), new_context(), "step")
    return search_module(module, cluster, RecursiveProgramming(mesh="x=8"))


def casts(program: PlannedProgram) -> list[tuple[str, str]]:
    """What each cast reads and which op stands before it."""
    imported = program.imported
    names = value_names(imported, {one.source for one in imported.rounded.values()})
    return [
        (names[one.source].name, "" if number == 0 else short_name(imported.core_ops[number - 1]))
        for number, one in imported.rounded.items()
    ]


def ops(program: PlannedProgram) -> list[str]:
    return [op.name.partition(".")[2] for op in operations_of(program.module.operation)]


def test_a_value_is_cast_once_behind_what_makes_it() -> None:
    def function(x: Any, w: Any) -> Any:
        y = jnp.tanh(x)
        z = jnp.exp(w)
        return y @ w, y.T @ z

    found = casts(planned(function))
    assert ("tanh", "tanh") in found
    assert ("exponential", "exponential") in found
    assert sorted(name for name, _ in found if name in ("tanh", "w")) == ["tanh", "w"]


def test_the_module_stays_as_it_is() -> None:
    program = planned(lambda x, w: jnp.tanh(x) @ w)
    assert program.imported.rounded
    assert "convert" not in ops(program)
    strategies = [
        mlir.StringAttr(op.attributes["autoshard.strategy"]).value
        for op in operations_of(program.module.operation)
        if op.name == "stablehlo.dot_general"
    ]
    assert len(strategies) == 1
    assert strategies[0].count("[") == 3  # of two operands and a result, not of a cast


def test_what_is_gathered_has_half_the_bytes() -> None:
    def step(x: Any, w: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, cut)
        w = jax.lax.with_sharding_constraint(w, cut)
        return jax.lax.with_sharding_constraint(x @ w, cut)

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("x",))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    def gathered(cluster: Cluster) -> list[float]:
        summary = planned(step, cluster=cluster).summary
        return [one.bytes for one in summary.collectives if one.kind == "all-gather"]

    off = TPU.with_compiler(f"{TPU.compiler}:without=matmul.rounds_operands")
    (half,), (whole,) = gathered(TPU), gathered(off)
    assert half == whole / 2


def test_a_cast_of_bfloat16_is_what_it_was_made_of() -> None:
    def function(x: Any, w: Any) -> Any:
        return x.astype(jnp.float32) @ w.astype(jnp.float32)

    assert not planned(function, dtype=jnp.bfloat16).imported.rounded
    # Rounding an integer or a float16 is not the identity.
    assert len(planned(function, dtype=jnp.float16).imported.rounded) == 2
    assert len(planned(function, dtype=jnp.int16).imported.rounded) == 2


@pytest.mark.parametrize("precision", ["high", "highest", "BF16_BF16_F32_X3"])
def test_a_matmul_that_asks_for_more_reads_float32(precision: str) -> None:
    assert not planned(lambda x, w: jnp.dot(x, w, precision=precision)).imported.rounded


def test_products_of_parts_take_their_time() -> None:
    def flops(precision: str | None) -> float:
        return max(planned(lambda x, w: jnp.dot(x, w, precision=precision)).plan.op_flops)

    once = flops(None)
    assert flops("high") == 3 * once
    assert flops("highest") == 6 * once


@pytest.mark.parametrize("cluster", ["h100:8", "cpu:8"])
def test_other_compilers_are_not_said_to_round(cluster: str) -> None:
    assert not planned(lambda x, w: x @ w, cluster=Cluster.parse(cluster)).imported.rounded


def test_a_loop_casts_what_it_carries_itself() -> None:
    def function(x: Any, w: Any) -> Any:
        def body(_: Any, y: Any) -> Any:
            return jnp.tanh(y @ w)

        return jax.lax.fori_loop(0, 4, body, x) @ w

    program = planned(function)
    trips = program.imported.program.op_trips
    assert sorted(trips[number] for number in program.imported.rounded) == [1, 1, 4, 4]


def test_branches_do_not_share_a_cast() -> None:
    def function(x: Any, w: Any) -> Any:
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: w @ x)

    assert len(planned(function).imported.rounded) == 4


def test_a_constant_is_not_cast() -> None:
    names = [name for name, _ in casts(planned(lambda x: jnp.ones(SIZE) @ x, 1))]
    assert names == ["x"]


def test_a_marked_matmul_takes_its_strategy() -> None:
    marked = autoshard.shard(jnp.dot, in_strategy=((1, 8), (8, 1)), out_strategy=((1, 1),))
    plan = autoshard.plan(
        lambda x, w: jnp.tanh(marked(x, w)),
        *[jax.ShapeDtypeStruct(SIZE, jnp.float32)] * 2,
        cluster="v5p:2x2x2",
        mesh="x=8",
        mode="semi_auto",
    )
    assert [one.kind for one in plan.summary.collectives] == ["all-reduce"]


def test_an_op_whose_result_is_cast_keeps_its_strategy() -> None:
    """The cast stands behind the op, and is none of its."""
    strategy = "[{x}, {}], [{x}, {}] -> [{x}, {}]"
    text = f"""
    func.func public @main(%a: tensor<1024x1024xf32>, %w: tensor<1024x1024xf32>)
        -> tensor<1024x1024xf32> {{
      %b = stablehlo.add %a, %a {{autoshard.strategy = "{strategy}"}} : tensor<1024x1024xf32>
      %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0]
          : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
      return %c : tensor<1024x1024xf32>
    }}
    """
    module = parse_bytes(text.encode(), new_context(), "step")
    program = search_module(module, TPU, RecursiveProgramming(mesh="x=8"))
    assert len(program.imported.rounded) == 2
    (add,) = (op for op in operations_of(module.operation) if op.name == "stablehlo.add")
    assert mlir.StringAttr(add.attributes["autoshard.strategy"]).value == strategy


def test_a_written_plan_costs_what_the_search_said() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) @ w.T)

    program = planned(lambda w, x: w - jax.grad(loss)(w, x))
    costed = cost_of_module(program.module, TPU)
    assert costed.step_seconds == pytest.approx(program.summary.step_seconds)
    assert costed.peak_bytes == pytest.approx(program.summary.peak_bytes_per_device)
    assert len(costed.imported.rounded) == len(program.imported.rounded)


def test_a_record_names_the_cast() -> None:
    plan = autoshard.plan(
        lambda x, w: jnp.tanh(x) @ w,
        *[jax.ShapeDtypeStruct(SIZE, jnp.float32)] * 2,
        cluster="v5p:2x2x2",
    )
    rows = [(row.op, row.type) for row in plan.explain().record.ops]
    assert rows.count(("convert", "1024x1024xbf16")) == 2
    assert [type_ for op, type_ in rows if op == "dot_general"] == ["1024x1024xf32"]


def test_a_cast_that_is_rounded_back_is_cut_as_it_is_read() -> None:
    def step(x: Any, y: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, rows)
        y = jax.lax.with_sharding_constraint(y, rows)
        wide = (each.astype(jnp.float32) for each in (x, y))
        return jax.lax.with_sharding_constraint(jnp.einsum("ij,ij->i", *wide), rows)

    mesh = jax.sharding.AbstractMesh((8,), ("x",), (jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    program = planned(step, dtype=jnp.bfloat16)
    found = [op for op in operations_of(program.module.operation) if "convert" in op.name]
    said = [mlir.StringAttr(op.attributes["autoshard.strategy"]).value for op in found]
    assert said == ["[{x}, {}] -> [{x}, {}]"] * 2
    assert len({str(op.attributes["mhlo.sharding"]) for op in found}) == 1
    # As the search costs it, a plan that is read again is costed.
    again = cost_of_module(program.module, TPU)
    assert again.plan.step_seconds == pytest.approx(program.summary.step_seconds)
    assert not program.summary.collectives


def test_a_cast_that_is_marked_is_cut_as_marked() -> None:
    strategy, read = "[{}, {x}] -> [{}, {x}]", "[{x}, {}], [{x}, {}] -> [{x}]"
    text = f"""
    func.func public @main(%a: tensor<1024x1024xbf16>, %w: tensor<1024x1024xf32>)
        -> tensor<1024xf32> {{
      %b = stablehlo.convert %a {{autoshard.strategy = "{strategy}"}}
          : (tensor<1024x1024xbf16>) -> tensor<1024x1024xf32>
      %c = stablehlo.dot_general %b, %w, batching_dims = [0] x [0], contracting_dims = [1] x [1]
          {{autoshard.strategy = "{read}"}}
          : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024xf32>
      return %c : tensor<1024xf32>
    }}
    """
    module = parse_bytes(text.encode(), new_context(), "step")
    search_module(module, TPU, RecursiveProgramming(mesh="x=8"))
    (op,) = (op for op in operations_of(module.operation) if "convert" in op.name)
    assert mlir.StringAttr(op.attributes["autoshard.strategy"]).value == strategy
    assert mlir.StringAttr(op.attributes["mhlo.sharding"]).value == "{devices=[1,8]<=[8]}"
