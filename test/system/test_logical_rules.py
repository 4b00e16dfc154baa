"""Logical axes without a rule are what the search decides; what it found comes back as rules."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx
from named_net import Net, X, planned

import autoshard


def test_rules_give_the_plans_shardings_to_flax() -> None:
    plan, params = planned(Net())
    rules = plan.logical_rules()
    assert rules == (("embed", None), ("mlp", "model"))
    mesh = jax.make_mesh(plan.mesh.axis_sizes, plan.mesh.axis_names)
    by_flax = nn.logical_to_mesh_sharding(nn.get_partition_spec(params), mesh, rules)
    specs = jax.tree.map(lambda sharding: sharding.spec, by_flax)
    kernels = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, jax.P))
    assert kernels == [jax.P(None, "model"), jax.P("model", None)]
    assert [value.sharding.tile for value in plan.arguments[:2]] == [(1, 8), (8, 1)]


def test_a_plan_that_was_loaded_has_them_too(tmp_path: Path) -> None:
    plan, _ = planned(Net())
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded.logical_rules() == plan.logical_rules()


def test_a_name_that_is_cut_unlike_is_warned_of() -> None:
    plan, _ = planned(Net(second=("embed", "mlp")))  # one name for rows here and columns there
    with pytest.warns(autoshard.AutoshardWarning, match="is cut otherwise than rules by name"):
        rules = plan.logical_rules()
    assert [name for name, _ in rules] == ["embed", "mlp"]


def test_variables_of_nnx_have_names() -> None:
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", "mlp"))
    with nnx.use_eager_sharding(False):
        layer = nnx.eval_shape(lambda: nnx.Linear(256, 16384, kernel_init=init, rngs=nnx.Rngs(0)))
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    plan = autoshard.nnx_jit(lambda m, x: m(x).sum(), cluster="v5e:2x4").plan(layer, x)
    assert plan.logical_rules() == (("embed", None), ("mlp", "model"))


def test_arguments_without_names_have_none() -> None:
    plan = autoshard.plan(jnp.matmul, X, jax.ShapeDtypeStruct((1024, 8), jnp.float32))
    with pytest.raises(autoshard.PlanError, match=r"no argument has names for its dims.*Keep"):
        plan.logical_rules()
