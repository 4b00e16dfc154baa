"""Tasks of pipelines hand on arrays whose dims lie in another order, on 8 virtual devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.compilers.compiler import Compiler
from autoshard.ir import mlir
from autoshard.ir.attributes import ANY_ORDER
from autoshard.ir.boundary import main_function
from autoshard.pipeline import layouts

pytestmark = pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")

HEADS, TOKENS, WIDTH = 2, 4, 8


def whole_numbers(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def step(params: Any, batch: Any) -> Any:
    """Layers of attention without rounding, whose scores are kept for the backward pass."""

    def loss(params: Any) -> Any:
        hidden = batch
        for weights in params:
            heads = (hidden @ weights).reshape(*hidden.shape[:2], HEADS, -1)
            scores = jnp.maximum(jnp.einsum("bqhd,bkhd->bhkq", heads, heads), 0)
            mixed = jnp.einsum("bhkq,bkhd->bqhd", scores, heads)
            hidden = jnp.clip(mixed.reshape(hidden.shape), -2, 2) + hidden
        return hidden.sum()

    value, gradients = jax.value_and_grad(loss)(params)
    return [jnp.sign(p - g) for p, g in zip(params, gradients, strict=True)], value


@pytest.fixture
def columns_first(monkeypatch: Any) -> list[str]:
    """The compiler likes everything with its dims the other way round; the layouts that it made."""
    does, set_layouts, said = Compiler.does, layouts.set_layouts, list[str]()

    def turned(type_: Any) -> str:
        rank = mlir.RankedTensorType(type_).rank
        said.append("{" + ",".join(map(str, range(rank))) + "}")
        return said[-1]

    def set_turned(
        module: mlir.Module, operands: Mapping[int, str], results: Mapping[int, str]
    ) -> None:
        type_ = main_function(module).attributes["function_type"]
        types = mlir.FunctionType(mlir.TypeAttr(type_).value)
        taken, given = (
            {
                at: turned(of_side[at]) if layout == ANY_ORDER else layout
                for at, layout in layouts_of_side.items()
            }
            for of_side, layouts_of_side in ((types.inputs, operands), (types.results, results))
        )
        set_layouts(module, taken, given)

    def knows(compiler: Compiler, rule: str) -> bool:
        return rule == "layout.chosen_results" or does(compiler, rule)

    monkeypatch.setattr(Compiler, "does", knows)
    monkeypatch.setattr(layouts, "set_layouts", set_turned)
    return said


@pytest.mark.parametrize(
    ("stages", "schedule", "chunks"), [(2, "1f1b", 1), (2, "zero_bubble", 1), (2, "1f1b", 2)]
)
def test_arrays_in_another_order_are_handed_on_bit_equal(
    columns_first: list[str], stages: int, schedule: Any, chunks: int
) -> None:
    pipeline = autoshard.Pipeline(stages, 4, schedule, chunks=chunks)
    run = autoshard.jit(step, cluster="cpu:8", pipeline=pipeline, batch_argnums=1, donate_argnums=0)
    params = [whole_numbers((WIDTH, WIDTH), seed) for seed in range(4)]
    batch, expected = whole_numbers((16, TOKENS, WIDTH), 9), params
    for _ in range(2):
        params, found = run(params, batch)
        expected, wanted = jax.jit(step)(expected, batch)
        jax.tree.map(np.testing.assert_array_equal, (params, found), (expected, wanted))
    assert "{0,1,2,3}" in columns_first, "scores"
    plan = run.plan(expected, batch)
    assert plan.pipeline.verify().fits
