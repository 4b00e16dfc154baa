"""A plan in the forms of libraries: pasted, each gives the plan's shardings of arguments."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import keras
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import NamedSharding
from named_net import Net, X, planned, step_of
from plan_cases import WHOLE_PRODUCTS

import autoshard


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def sent(plan: autoshard.Plan) -> dict[Any, float]:
    summed: dict[Any, float] = {}
    for one in plan.record.collectives:
        key = one.kind, one.axes, one.location
        summed[key] = summed.get(key, 0.0) + one.total_bytes
    return summed


def is_spec(node: Any) -> bool:
    return isinstance(node, jax.P)


def test_rules_of_flax_pasted_give_the_plans_shardings_and_collectives() -> None:
    net = Net()
    plan, params = planned(net, mesh="data=2,model=4", compiler=WHOLE_PRODUCTS)
    found = plan.annotations_for("flax")
    pasted = run(found.text)
    mesh = jax.make_mesh(tuple(pasted["MESH"].values()), tuple(pasted["MESH"]))
    by_flax = nn.logical_to_mesh_sharding(nn.get_partition_spec(params), mesh, pasted["RULES"])
    assert [one.spec for one in jax.tree.leaves(by_flax)] == [
        one.spec for one in jax.tree.leaves(plan.in_shardings[0])
    ]
    again = autoshard.plan(
        step_of(net),
        params,
        X,
        cluster="v5e:2x4",
        compiler=WHOLE_PRODUCTS,
        mesh="data=2,model=4",
        mode="semi_auto",
        in_shardings=(
            jax.tree.map(lambda one: one.spec, by_flax),
            pasted.get("ARGUMENTS", {}).get("x", jax.P()),
        ),
    )
    assert again.step_seconds == pytest.approx(found.step_seconds)
    wanted, given = sent(plan), sent(again)
    both = sum(min(size, given.get(key, 0.0)) for key, size in wanted.items())
    assert both / sum(wanted.values()) == pytest.approx(found.reproduced)
    assert found.unsaid == ()


def test_what_one_rule_cannot_say_is_listed_with_what_it_costs() -> None:
    plan, _ = planned(Net(second=("embed", "mlp")), mesh="data=2,model=4")
    found = plan.annotations_for("flax")
    assert [one.count for one in found.unsaid] == [1]
    assert found.unsaid[0].planned != found.unsaid[0].said
    assert f"# not said: {found.unsaid[0].name} is {found.unsaid[0].planned}" in found.text
    assert sum(one.bytes for one in found.missing) == pytest.approx(
        (1 - found.reproduced) * found.planned_bytes
    )
    assert "# sent besides: " in found.text
    hidden = 4 * X.shape[0] * 8192
    besides = {one.kind: one.bytes for one in found.other}
    least = 7 / 8 * X.shape[0] * 1024 * 4
    gathered = (hidden - X.shape[0] * 1024 * 4) / 2  # the compiler gathers what is cast
    assert besides == {
        "all-reduce": pytest.approx(2 * (7 / 8 * hidden - least)),
        "all-gather": pytest.approx(7 / 8 * gathered),
    }


def test_what_lists_say_is_sent_besides_is_compiled() -> None:
    """XLA's partitioner gathers the hidden values and sums their gradients whole."""
    net = Net(second=("embed", "mlp"))
    plan, params = planned(net, mesh="data=2,model=4")
    pasted = run(plan.annotations_for("flax").text)
    mesh = jax.make_mesh(tuple(pasted["MESH"].values()), tuple(pasted["MESH"]))
    specs = nn.logical_to_mesh_sharding(nn.get_partition_spec(params), mesh, pasted["RULES"])
    jitted = jax.jit(step_of(net), in_shardings=(specs, NamedSharding(mesh, jax.P())))
    text = jitted.lower(params, X).compile().as_text()
    sent = re.findall(r"= f32\[256,(\d+)\]\S* (all-\w+|reduce-scatter)\(", text)
    assert sorted(sent) == [("8192", "all-gather"), ("8192", "all-reduce")]


def test_a_config_of_maxtext_has_sizes_of_the_mesh_and_rules() -> None:
    plan, params = planned(Net(), mesh="fsdp=2,tensor=4")
    text = plan.annotations_for("maxtext").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines[:2] == ["ici_fsdp_parallelism: 2", "ici_tensor_parallelism: 4"]
    assert [lines[2], lines[-1]] == ["logical_axis_rules: [", "]"]
    rules = [json.loads(line.rstrip(",")) for line in lines[3:-1]]
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"))
    flat = [(name, tuple(axes)) for name, axes in rules]
    by_flax = nn.logical_to_mesh_sharding(nn.get_partition_spec(params), mesh, flat)
    assert [one.spec for one in jax.tree.leaves(by_flax)] == [
        one.spec for one in jax.tree.leaves(plan.in_shardings[0])
    ]
    for mesh, unknown in (("data=2,model=4", "model"), ("stage=2,tensor=4", "stage")):
        other, _ = planned(Net(), mesh=mesh)
        with pytest.raises(autoshard.PlanError, match=f"MaxText's mesh has no axis '{unknown}'"):
            other.annotations_for("maxtext")


class Layers(nnx.Module):
    """Equal layers and a last one; ``axes`` partitions a kernel."""

    def __init__(self, axes: Any = None) -> None:
        def linear(path: str, rows: int, columns: int) -> Any:
            init = nnx.initializers.lecun_normal()
            if axes is not None and path in axes:
                init = nnx.with_partitioning(init, axes[path])
            return nnx.Linear(rows, columns, use_bias=False, kernel_init=init, rngs=nnx.Rngs(0))

        self.blocks = nnx.List([linear("blocks.*.kernel", 1024, 1024) for _ in range(3)])
        self.up = linear("up.kernel", 1024, 8192)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = nnx.relu(block(x))
        return self.up(x)


def test_axes_for_nnx_pasted_give_the_plans_shardings() -> None:
    def step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.update(model, nnx.grad(lambda m: (m(x) ** 2).mean())(model))

    def make(axes: Any = None) -> Any:
        model = Layers(axes)
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    with nnx.use_eager_sharding(False):
        model, optimizer = nnx.eval_shape(make)
        jitted = autoshard.nnx_jit(
            step,
            cluster="v5e:2x4",
            compiler=WHOLE_PRODUCTS,
            mesh="data=2,model=4",
        )
        plan = jitted.plan(model, optimizer, X)
        found = plan.annotations_for("nnx")
        axes = run(found.text)["PARTITIONING"]
        assert axes
        assert set(axes) <= {"blocks.*.kernel", "up.kernel"}
        states = nnx.eval_shape(lambda: nnx.state(make(axes)))
    said = [one for one in plan.arguments if len(one.shape) > 1 and one.name != "x"]
    given = [
        spec
        for spec, leaf in zip(
            jax.tree.leaves(nnx.get_partition_spec(states), is_leaf=is_spec),
            jax.tree.leaves(states),
            strict=True,
        )
        if leaf.ndim > 1
    ]
    assert [NamedSharding(plan.jax_mesh, spec).shard_shape((8192, 8192)) for spec in given] == [
        one.named_sharding(plan.jax_mesh).shard_shape((8192, 8192)) for one in said
    ]
    assert found.unsaid == ()


def linear(rows: int, columns: int) -> Any:
    return nnx.Linear(rows, columns, use_bias=False, rngs=nnx.Rngs(0))


class Alternating(nnx.Module):
    """Layers of one name that are wide and narrow in turns."""

    def __init__(self) -> None:
        widths = (1024, 8192, 1024, 8192, 1024)
        self.layers = nnx.List([linear(*pair) for pair in pairwise(widths)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return x


def nnx_plan(step: Any, make: Any, *inputs: Any, **options: Any) -> autoshard.Plan:
    with nnx.use_eager_sharding(False):
        jitted = autoshard.nnx_jit(step, cluster="v5e:2x4", mesh="data=2,model=4", **options)
        return jitted.plan(*nnx.eval_shape(make), *inputs)


def local_shape(plan: autoshard.Plan, value: Any, *axes: Any) -> tuple[int, ...]:
    return NamedSharding(plan.jax_mesh, jax.P(*axes)).shard_shape(value.shape)


def test_layers_that_are_cut_unlike_are_rows_of_their_own() -> None:
    plan = nnx_plan(lambda m, x: (m(x) ** 2).mean(), lambda: (Alternating(),), X)
    found = plan.annotations_for("nnx")
    rows = re.findall(r'^    "([^"]+)": ', found.text.partition("PARTITIONING")[2], re.MULTILINE)
    pasted = run(found.text)["PARTITIONING"]
    assert rows == list(pasted)
    assert len(set(pasted.values())) > 1
    for number, value in enumerate(plan.arguments[:-1]):
        assert local_shape(plan, value, *pasted[f"layers.{number}.kernel"]) == value.local_shape


class Nested(nnx.Module):
    """Two weights of one name, one of them within, of a class of parameters."""

    def __init__(self) -> None:
        self.w = nnx.LoRAParam(jnp.zeros((1024, 1024)))
        self.sub = nnx.Dict(w=nnx.Param(jnp.zeros((1024, 1024))))

    def __call__(self, x: Any) -> Any:
        return nnx.relu(x @ self.w[...]) @ self.sub["w"][...]


def test_state_of_an_optimizer_is_that_of_the_parameter_of_its_whole_path() -> None:
    def make() -> Any:
        model = Nested()
        wrt = nnx.Any(nnx.Param, nnx.LoRAParam)
        return model, nnx.Optimizer(model, optax.sgd(1e-3, momentum=0.9), wrt=wrt)

    def step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.update(model, nnx.grad(lambda m: (m(x) ** 2).mean())(model))

    def pin(state: Any) -> Any:
        """Both with their momentum, cut unlike."""

        def spec(path: Any, leaf: Any) -> Any:
            if leaf.ndim < 2:
                return None
            return jax.P(None, "model") if "sub" in jax.tree_util.keystr(path) else jax.P("data")

        return jax.tree_util.tree_map_with_path(spec, state)

    with nnx.use_eager_sharding(False):
        model, optimizer = nnx.eval_shape(make)
    pins = tuple(pin(nnx.state(one)) for one in (model, optimizer))
    plan = nnx_plan(step, make, X, in_shardings=(*pins, None))
    found = plan.annotations_for("nnx")
    assert run(found.text)["PARTITIONING"] == {"sub.w": (None, "model"), "w": ("data", None)}
    assert found.unsaid == ()


def test_modules_of_one_path_are_told_apart_by_their_argument() -> None:
    def step(one: Any, other: Any, x: Any) -> Any:
        return other(nnx.relu(one(x))).sum()

    plan = nnx_plan(step, lambda: (linear(1024, 8192), linear(8192, 1024)), X)
    pasted = run(plan.annotations_for("nnx").text)["PARTITIONING"]
    assert list(pasted) == ["one.kernel", "other.kernel"]


def test_state_of_one_of_two_parameters_is_refused() -> None:
    def make() -> Any:
        one, other = linear(1024, 1024), linear(1024, 1024)
        return one, other, nnx.Optimizer(one, optax.adam(1e-3), wrt=nnx.Param)

    def step(one: Any, other: Any, optimizer: Any, x: Any) -> None:
        optimizer.update(one, nnx.grad(lambda m: other(m(x)).sum())(one))

    pins = (jax.P("data"), jax.P(None, "model"), None, None)
    plan = nnx_plan(step, make, X, in_shardings=pins)
    with pytest.raises(autoshard.PlanError, match=r"may be state of one\['kernel'\].*of other"):
        plan.annotations_for("nnx")


def test_arguments_beside_the_form_that_are_cut_unlike_are_rows_of_their_own() -> None:
    net = Net()
    params = jax.eval_shape(net.init, jax.random.key(0), X)
    specs = [jax.P("data"), jax.P(None, "model")] * 2
    inputs = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32) for _ in specs]
    plan = autoshard.plan(
        lambda params, inputs: sum(net.apply(params, one).sum() for one in inputs),
        params,
        inputs,
        cluster="v5e:2x4",
        mesh="data=2,model=4",
        in_shardings=(None, specs),
    )
    pasted = run(plan.annotations_for("flax").text)["ARGUMENTS"]
    assert pasted == {f"inputs[{number}]": spec for number, spec in enumerate(specs)}


def test_forms_that_do_not_hold_are_refused() -> None:
    plan = autoshard.plan(
        lambda x, w: x @ w, X, jax.ShapeDtypeStruct((1024, 64), jnp.float32), cluster="v5e:2x4"
    )
    for library, said in (
        ("flax", "no argument has names"),
        ("nnx", "no argument is a flax.nnx.Param"),
        ("keras", "the variables of a model are given"),
        ("torch", "no such form"),
    ):
        with pytest.raises(autoshard.PlanError, match=said):
            plan.annotations_for(library)
    with pytest.raises(autoshard.PlanError, match="has 1 arrays, 0 variables are given"):
        plan.annotations_for("keras", [], None)


@pytest.mark.parametrize("rows", [256, 16384])
def test_a_layout_map_of_keras_pasted_gives_the_plans_shardings(rows: int) -> None:
    def make() -> Any:
        layers = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((1024,)), *layers, keras.layers.Dense(8192)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        return model, optimizer

    keras.utils.clear_session()
    model, optimizer = make()
    x = jax.ShapeDtypeStruct((rows, 1024), jnp.float32)

    def step(trained: Any, state: Any, x: Any) -> Any:
        def loss(values: Any) -> Any:
            y, _ = model.stateless_call(values, [], x)
            return jnp.mean(y**2)

        return optimizer.stateless_apply(state, jax.grad(loss)(trained), trained)

    values = [[v.value for v in one] for one in (model.trainable_variables, optimizer.variables)]
    plan = autoshard.plan(step, *values, x, cluster="v5e:2x4", mesh="data=2,model=4")
    found = plan.annotations_for("keras", model.trainable_variables, optimizer.variables)
    keras.utils.clear_session()
    try:
        run(found.text)
        cut, slots = make()
        shardings = [v.value.sharding for v in (*cut.trainable_variables, *slots.variables)]
    finally:
        keras.distribution.set_distribution(None)
    assert all(one.name == "x" for one in found.unsaid)
    for value, sharding in zip(plan.arguments[:-1], shardings, strict=True):
        assert sharding.shard_shape(value.shape) == value.local_shape, value.name


def test_inputs_that_the_axis_of_the_batch_does_not_divide_are_whole_to_keras() -> None:
    layer = keras.layers.Dense(64, use_bias=False)
    layer.build((None, 64))

    def step(trained: Any, x: Any, scales: Any) -> Any:
        y, _ = layer.stateless_call(trained, [], x)
        return (y * scales.sum()).sum()

    shapes = ((65536, 64), (3,))
    x, scales = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    trained = [variable.value for variable in layer.trainable_variables]
    plan = autoshard.plan(
        step,
        trained,
        x,
        scales,
        cluster="v5e:2x4",
        mesh="a=8",
        in_shardings=(None, jax.P("a"), None),
    )
    found = plan.annotations_for("keras", layer.trainable_variables)
    assert "batch_dim_name='a'" in found.text
    assert found.unsaid == ()
    assert found.reproduced == 1
