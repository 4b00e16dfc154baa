"""Blocks of planned modules: what makes and reads a value, where it is stored, what may go."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard import _core
from autoshard._core import Storage
from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.recompute import flatten
from autoshard.planned.given_plan import Costed, cost_of_module
from autoshard.rewrites.recomputation.block import Block, blocks_of
from autoshard.search.plan_pass import PlanProgram

CLUSTER = "h100:2"


def costed(step: Any, *arguments: Any) -> Costed:
    lowered = jax.jit(step, donate_argnums=0).lower(*arguments).as_text()
    module = parse_bytes(lowered.encode(), new_context(), "step")
    _, planned = PlanProgram(cluster=CLUSTER).planned(module)
    with planned.module.context, mlir.Location.unknown():
        flatten(planned.module)
        return cost_of_module(planned.module, Cluster.of(CLUSTER))


def float_type(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def train(w: jax.Array, x: jax.Array) -> jax.Array:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(jnp.tanh(x @ jnp.exp(w)) @ w))

    return w - 0.1 * jax.grad(loss)(w)


@pytest.fixture(name="block", scope="module")
def train_block() -> Block:
    return Block(costed(train, float_type(64, 64), float_type(4096, 64)))


def made_by(block: Block, name: str) -> list[int]:
    """Values that ops of a name make."""
    return [
        value
        for position, op in enumerate(block.ops)
        if op.name == f"stablehlo.{name}"
        for value in block.core.results(position)
    ]


def test_values_are_those_of_the_module(block: Block) -> None:
    for position, op in enumerate(block.ops):
        assert [block.ssa(n) for n in block.core.operands(position)] == list(op.operands)
        assert [block.ssa(n) for n in block.core.results(position)] == list(op.results)
        for number in block.core.operands(position):
            assert position in block.core.readers(number)
            assert block.core.value(number).maker < position
    assert block.number_of[block.block.arguments[1]] == 1


def test_what_no_op_writes_is_stored_nowhere(block: Block) -> None:
    def storages(name: str) -> set[Storage]:
        return {block.core.value(number).storage for number in made_by(block, name)}

    assert block.core.value(0).storage is Storage.KEPT
    assert storages("constant") == {Storage.FREE}
    assert storages("tanh") == {Storage.FUSED, Storage.STORED}
    assert storages("subtract") == {Storage.FUSED, Storage.KEPT}, "the last one is returned"


def test_parameters_are_what_a_result_replaces_and_what_is_made_of_it(block: Block) -> None:
    weights, batch = block.core.value(0), block.core.value(1)
    assert (weights.is_parameter, batch.is_parameter) == (True, False)
    assert not any(block.core.value(number).is_parameter for number in made_by(block, "tanh"))
    assert all(block.core.value(number).is_parameter for number in made_by(block, "exponential"))


def test_a_gap_lies_between_the_readers_that_are_furthest_apart(block: Block) -> None:
    gaps = {gap.value.number: gap for gap in block.gaps}
    first = next(n for n in made_by(block, "tanh") if n in gaps)
    gap = gaps[first]
    readers = [block.core.op(gap.value.early).point, block.core.op(gap.value.late).point]
    assert (gap.first, gap.end) == (readers[0] + 1, readers[1])
    stays = block.core.gaps([block.core.value(first).in_program])
    assert first not in {one.value.number for one in stays}


def test_a_loop_passes_parameters_on_where_it_does_not_change_them() -> None:
    def loops(w: jax.Array, x: jax.Array) -> jax.Array:
        def layer(_: int, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            w, x = carried
            return w, jnp.tanh(x @ w)

        return w - 0.1 * jnp.sum(jax.lax.fori_loop(0, 4, layer, (w, x))[1])

    module = costed(loops, float_type(64, 64), float_type(4096, 64))
    main = Block(module)
    body = Block(module, 1, main)
    assert body.block == blocks_of(module)[1]
    shapes = [mlir.RankedTensorType(value.type).shape for value in body.block.arguments]
    is_parameter = [body.core.value(number).is_parameter for number in range(len(shapes))]
    assert [shape for shape, is_one in zip(shapes, is_parameter, strict=True) if is_one] == [
        [64, 64]
    ]
    assert body.core_at == sorted(body.core_at)


def test_numbers_out_of_range_are_refused(block: Block) -> None:
    for ask in (block.core.value, block.core.op, block.core.operands, block.core.readers):
        with pytest.raises(ValueError, match="out of range"):
            ask(1 << 20)
    found: _core.PlannedBlocks = block.costs.blocks
    with pytest.raises(ValueError, match="no such argument"):
        found.block(0, [99])
