"""The mesh of ``jax.set_mesh`` is the plan's mesh; what is annotated over it is kept as asked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

P = jax.sharding.PartitionSpec
X = jnp.arange(32.0 * 64).reshape(32, 64) % 7 - 3
W = jnp.arange(64.0 * 128).reshape(64, 128) % 5 - 2


def mesh_of(*axis_type: Any) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("dp", "tp"), axis_types=axis_type * 2)


MESH = mesh_of(jax.sharding.AxisType.Auto)


def constrained(w: Any, x: Any) -> Any:
    return jnp.maximum(jax.lax.with_sharding_constraint(x @ w, P("dp", "tp")), 0)


@pytest.mark.parametrize("options", [{}, {"cluster": "cpu:8"}, {"mode": "semi_auto"}], ids=str)
def test_constraints_over_its_axes_are_kept(options: Any) -> None:
    with jax.set_mesh(MESH):
        step = autoshard.jit(constrained, **options)
        found, plan = step(W, X), step.plan(W, X)
    np.testing.assert_array_equal(found, jnp.maximum(X @ W, 0))
    assert str(plan.mesh) == "dp=2,tp=4"
    assert found.sharding.is_equivalent_to(jax.NamedSharding(MESH, P("dp", "tp")), 2)


def test_pins_may_name_its_axes() -> None:
    with jax.set_mesh(MESH):
        plan = autoshard.plan(jnp.matmul, X, W, in_shardings=(P("dp"), P(None, "tp")))
    assert [str(value.sharding) for value in plan.arguments] == ["[{dp}, {}]", "[{}, {tp}]"]
    assert plan.mode == "auto"


def test_a_mesh_that_is_given_comes_first() -> None:
    with jax.set_mesh(MESH):
        plan = autoshard.plan(jnp.matmul, X, W, mesh="a=8", mode="auto")
    assert str(plan.mesh) == "a=8"


def test_programs_without_a_mesh_take_one_with_explicit_axes() -> None:
    with jax.set_mesh(mesh_of(jax.sharding.AxisType.Explicit)):
        found = autoshard.jit(jnp.matmul)(X, W)
    np.testing.assert_array_equal(found, X @ W)


def test_a_cluster_of_another_size_is_refused() -> None:
    with (
        jax.set_mesh(MESH),
        pytest.raises(autoshard.ShardingError, match=r"has 8 devices, the cluster v5e:4x4 has 16"),
    ):
        autoshard.plan(jnp.matmul, X, W, cluster="v5e:4x4")


def test_a_mesh_of_one_device_says_nothing_where_a_cluster_is_given() -> None:
    one = jax.make_mesh((1, 1), ("fsdp", "tensor"), devices=jax.devices()[:1])
    with jax.set_mesh(one):
        plan = autoshard.plan(jnp.matmul, X, W, cluster="v5e:4x4")
    assert plan.mesh.size == 16


def put(x: Any, *spec: Any) -> jax.Array:
    return jax.device_put(x, jax.NamedSharding(MESH, P(*spec)))


def shardings(plan: autoshard.Plan) -> list[str]:
    return [str(value.sharding) for value in plan.arguments]


def test_arguments_on_the_given_mesh_are_pinned_as_they_lie() -> None:
    w = put(W, "tp", "dp")
    assert shardings(autoshard.plan(jnp.matmul, X, w, mesh=MESH, mode="auto"))[1] == "[{tp}, {dp}]"
    assert shardings(autoshard.plan(jnp.matmul, X, w, mesh=MESH))[1] == "[{tp}, {dp}]"
    struct = jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=w.sharding)
    with jax.set_mesh(MESH):
        assert shardings(autoshard.plan(jnp.matmul, X, struct))[1] == "[{tp}, {dp}]"
        said = autoshard.plan(jnp.matmul, X, w, in_shardings=(None, P(None, "tp")))
    assert shardings(said)[1] == "[{}, {tp}]"


@pytest.mark.parametrize(
    "options", [{"cluster": "cpu:8"}, {"mesh": "a=2,b=4", "mode": "auto"}], ids=str
)
def test_arguments_on_another_mesh_are_no_pins(options: Any) -> None:
    plan = autoshard.plan(jnp.matmul, X, put(W, "tp", "dp"), **options)
    assert shardings(plan) == shardings(autoshard.plan(jnp.matmul, X, W, **options))


def test_mode_data_parallel_puts_what_lies_elsewhere_where_it_wants_it() -> None:
    step = autoshard.jit(jnp.matmul, mesh=MESH, mode="data_parallel", batch_argnums=0)
    found = step(X, put(W, "tp", "dp"))
    np.testing.assert_array_equal(found, X @ W)
    assert shardings(step.plan(X, W)) == ["[{dp, tp}, {}]", "[{}, {}]"]


def costly(w: Any, x: Any) -> Any:
    """Whole where each device could have a part."""
    return jnp.tanh(jax.lax.with_sharding_constraint(x @ w, P(None, None))).sum()


LARGE = (
    jax.ShapeDtypeStruct((256, 1024), jnp.float32),
    jax.ShapeDtypeStruct((512, 256), jnp.float32),
)


def test_constraints_that_cost_much_are_dropped_where_they_are_preferred() -> None:
    with jax.set_mesh(MESH):
        kept, ignored = (
            autoshard.plan(costly, *LARGE, cluster="v5e:2x4", constraints=how)
            for how in ("keep", "ignore")
        )
        with pytest.warns(
            autoshard.AutoshardWarning, match=r"_mesh\.py:\d+.*\d+% longer by the cost"
        ):
            preferred = autoshard.plan(costly, *LARGE, cluster="v5e:2x4", constraints="prefer")
    assert ignored.step_seconds == preferred.step_seconds < kept.step_seconds


def test_constraints_that_cost_nothing_are_kept_where_they_are_preferred() -> None:
    def cut(w: Any, x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ w, P("dp", "tp")).sum()

    square = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    with jax.set_mesh(MESH):
        plan = autoshard.plan(cut, square, square, cluster="v5e:2x4", constraints="prefer")
    (product,) = (op for op in plan.ops if op.name == "dot_general")
    assert str(product.shardings[0]) == "[{dp}, {tp}]"


def test_constraints_without_a_plan_are_dropped_where_they_are_preferred() -> None:
    options: Any = {"cluster": "v5e:2x4", "memory_limit": 2_000_000}
    with jax.set_mesh(MESH):
        with pytest.raises(autoshard.DoesNotFitError, match="no plan fits"):
            autoshard.plan(costly, *LARGE, **options)
        with pytest.warns(autoshard.AutoshardWarning, match=r"is not kept: with it no plan fits"):
            plan = autoshard.plan(costly, *LARGE, constraints="prefer", **options)
    assert plan.peak_bytes <= 2_000_000


def test_constraints_are_dropped_for_both_partitioners() -> None:
    with jax.set_mesh(MESH), jax.enable_x64(False):
        for shardy in (True, False):
            jax.config.update("jax_use_shardy_partitioner", shardy)
            try:
                text = autoshard.plan(constrained, W, X, constraints="ignore").to_mlir()
            finally:
                jax.config.update("jax_use_shardy_partitioner", True)
            assert "sharding_constraint" not in text
            assert "@Sharding" not in text


def test_the_mesh_of_a_shard_map_is_the_plans_mesh() -> None:
    def mapped(w: Any, x: Any) -> Any:
        body = jax.shard_map(lambda a: a * 2, mesh=MESH, in_specs=P("dp"), out_specs=P("dp"))
        return body(x @ w)

    step = autoshard.jit(mapped)
    np.testing.assert_array_equal(step(W, X), 2 * (X @ W))
    assert (str(step.plan(W, X).mesh), step.plan(W, X).mode) == ("dp=2,tp=4", "auto")


def test_boxes_of_linen_and_metadata_of_nnx_are_pins() -> None:
    linen, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")
    start: Any = linen.initializers.ones
    layer = linen.Dense(128, kernel_init=linen.with_partitioning(start, ("dp", "tp")))
    with jax.set_mesh(MESH):
        boxed = layer.init(jax.random.key(0), X)
        placed = jax.device_put(boxed, linen.get_sharding(boxed, MESH))
        step = autoshard.jit(layer.apply)
        np.testing.assert_array_equal(step(placed, X), layer.apply(boxed, X))
        assert shardings(step.plan(placed, X))[:2] == ["[{}]", "[{dp}, {tp}]"]

        kernel = nnx.with_partitioning(start, ("dp", "tp"))
        graph, state = nnx.split(nnx.Linear(64, 128, rngs=nnx.Rngs(0), kernel_init=kernel))
        plan = autoshard.plan(lambda state, x: nnx.merge(graph, state)(x), state, X)
    assert shardings(plan)[:2] == ["[{}]", "[{dp}, {tp}]"]
