"""Values of a differentiated program: the author's, their cotangents, and what is between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from user_files import module_at

import autoshard
from autoshard.explain.annotations import CONSTRAINED
from autoshard.explain.halves import Half, Halves
from autoshard.explain.line_candidates import Candidate, candidates
from autoshard.explain.question import Dims, Subject
from autoshard.ir import op_name

MODEL = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


@jax.jit
def inner(hidden, w):
    out = hidden @ w
    return out


def held(x, is_held):
    return jax.lax.with_sharding_constraint(x, P("a")) if is_held else x


def loss_of(wrapped, at, is_scanned=False):
    def layer(x, w):
        hidden = x @ w["up"]
        hidden = held(hidden, at == "hidden")
        active = jnp.tanh(hidden)
        active = held(active, at == "active")
        back = inner(held(active, at == "read"), w["down"])
        return x + back

    def loss(params, x):
        if is_scanned:
            x, _ = jax.lax.scan(lambda x, w: (wrapped(layer)(x, w), None), x, params)
        else:
            x = wrapped(layer)(x, params)
        return jnp.sum(x**2)

    return loss
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("halves") / "halves_model.py"
    path.write_text(MODEL)
    return module_at(path, "halves_model")


def line_number(text: str) -> int:
    (number,) = [n for n, line in enumerate(MODEL.splitlines(), start=1) if text in line]
    return number


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def arguments(is_scanned: bool) -> tuple[Any, Any]:
    layers = (3,) if is_scanned else ()
    params = {"up": array(*layers, 2048, 8192), "down": array(*layers, 8192, 2048)}
    return params, array(4096, 2048)


def planned(loss: Any, is_scanned: bool) -> Subject:
    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    mesh = jax.sharding.AbstractMesh((4,), ("a",), (jax.sharding.AxisType.Auto,))
    with jax.sharding.use_abstract_mesh(mesh):
        return autoshard.plan(step, *arguments(is_scanned), cluster="v5e:2x2", mesh="a=4").subject


WAYS = {
    "plain": (lambda f: f, False),
    "checkpoint": (jax.checkpoint, False),
    "scan": (lambda f: f, True),
    "checkpoint in a scan": (jax.checkpoint, True),
    "function": (jax.jit, False),
}


def held_by_jax(asked: Subject) -> Counter[tuple[str, str]]:
    """What is constrained in a program, by half and type."""
    halves, found = Halves(asked), Counter[tuple[str, str]]()
    for op, _ in asked.imported.result_values:
        if op.name == "sdy.sharding_constraint":
            half = "backward" if halves.is_backward(op) else "forward"
            found[half, str(op.results[0].type)] += 1
    return found


def held_by(line: Candidate, asked: Subject) -> Counter[tuple[str, str]]:
    """What a line holds, by half and type."""
    halves = Halves(asked)
    types = {
        value: str(result.type)
        for op, values in asked.imported.result_values
        for result, value in zip(op.results, values, strict=True)
    }
    return Counter(
        ("forward" if halves.of_value(value) is Half.FORWARD else "backward", types[value])
        for value in line.values
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("at", "line", "is_read"),
    [
        ("hidden", 'x @ w["up"]', False),
        ("active", "jnp.tanh(hidden)", False),
        ("read", "hidden @ w", True),
    ],
)
def test_a_line_holds_what_jax_makes_of_a_constraint(
    model: Any, way: str, at: str, line: str, is_read: bool
) -> None:
    """The constraint of the code, its repetition in the backward half, and its transposition."""
    wrapped, is_scanned = WAYS[way]
    wanted = held_by_jax(planned(model.loss_of(wrapped, at, is_scanned), is_scanned))
    assert {half for half, _ in wanted} == {"forward", "backward"}
    asked = planned(model.loss_of(wrapped, "", is_scanned), is_scanned)
    place = f":{line_number(line)}"
    (found,) = [
        one
        for one in candidates(asked)
        if one.annotation.half is Half.FORWARD
        and one.name.startswith("operand ") == is_read
        and (one.annotation.location or "").endswith(place)
        and one.annotation.type == "4096x8192xbf16"
    ]
    assert not found.annotation.is_one_sided
    assert wanted <= held_by(found, asked)


def square(params: Any, x: Any) -> Any:
    return jnp.sum((x @ params["up"]) ** 2)


def scanned(params: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ w["up"]) @ w["down"]), None

    return jnp.sum(jax.lax.scan(layer, x, params)[0])


def test_the_gradient_of_a_weight_before_it_is_transposed_is_a_cotangent_of_what_is_read() -> None:
    asked = planned(square, False)
    found = Halves(asked).operands()
    (one,) = [one for one in found.values() if one.place[1] == "2048x8192xbf16"]
    assert one.name == "operand 1 of dot_general"
    assert one.order == (1, 0)
    (line,) = [line for line in candidates(asked) if line.name.endswith("operand 1 of dot_general")]
    assert line.annotation.half is Half.COTANGENT
    assert line.annotation.type == "2048x8192xbf16"
    axes = {axis: name for axis, name in enumerate(asked.mesh.axis_names)}
    assert line.annotation.spec == tuple(tuple(axes[a] for a in line.dims[n]) for n in (1, 0))


def test_gradients_are_what_the_update_reads_of_the_backward_half_also_behind_a_loop() -> None:
    asked = planned(scanned, True)
    halves = Halves(asked)
    stacks = [
        halves.of_value(value)
        for op, values in asked.imported.result_values
        if op.name == "stablehlo.dynamic_update_slice" and halves.is_backward(op)
        for value in values
    ]
    assert stacks == [Half.GRADIENT] * 2


def test_a_transpose_of_the_users_is_no_backward_op() -> None:
    def forward(x: Any, w: Any) -> Any:
        return x @ jnp.transpose(w)

    asked = autoshard.plan(forward, array(512, 256), array(512, 256), cluster="v5e:2x2").subject
    halves = Halves(asked)
    assert not any(map(halves.is_backward, asked.imported.core_ops))


def test_an_op_of_a_function_is_of_the_half_that_calls_it(model: Any) -> None:
    asked = planned(model.loss_of(jax.jit, ""), False)
    halves = Halves(asked)
    dots = [op for op in asked.imported.core_ops if op.name == "stablehlo.dot_general"]
    assert [halves.is_backward(op) for op in dots] == [False, False, True, True, True]
    assert not any("transpose(" in op_name(op.location) for op in dots)


def test_a_value_and_its_cotangent_that_are_cut_unlike_are_a_line_each(model: Any) -> None:
    asked = planned(model.loss_of(lambda f: f, ""), False)
    place = f":{line_number('x @ w[')}"

    def lines(subject: Subject) -> dict[Half, Candidate]:
        return {
            one.annotation.half: one
            for one in candidates(subject)
            if one.annotation.type == "4096x8192xbf16"
            and (one.annotation.location or "").endswith(place)
            and not {"operand", "read", "made"} & set(one.name.split())
        }

    both = lines(asked)
    assert set(both) == {Half.FORWARD}
    assert len(both[Half.FORWARD].values) == 2
    (cotangent,) = [
        value
        for value in both[Half.FORWARD].values
        if Halves(asked).of_value(value) is Half.COTANGENT
    ]
    held = list(asked.dims)
    held[cotangent] = held[cotangent][::-1]
    apart = lines(with_dims(asked, held))
    assert apart[Half.FORWARD].annotation.is_one_sided
    assert cotangent not in apart[Half.FORWARD].values
    assert apart[Half.COTANGENT].values == (cotangent,)
    assert apart[Half.COTANGENT].name.startswith("cotangent of ")
    assert all(one.annotation.is_by_custom_vjp for one in apart.values())


def with_dims(asked: Subject, dims: Sequence[Dims]) -> Subject:
    """A plan that has values cut otherwise."""
    changed = copy(asked)
    changed.__dict__["dims"] = dims
    return changed


@pytest.mark.parametrize("sides", [("forward",), ("backward",), ("forward", "backward")])
def test_what_to_python_defines_holds_a_value_and_its_cotangent_apart(sides: Sequence[str]) -> None:
    """Each is constrained as is said, and the other one is not."""
    said: dict[str, Any] = {"jax": jax}
    exec(CONSTRAINED, said)
    specs = {"forward": P("a"), "backward": P(None, "a")}

    def loss(x: Any, w: Any) -> Any:
        hidden = said["constrained"](x @ w, **{side: specs[side] for side in sides})
        return jnp.sum(jnp.sin(hidden))

    mesh = jax.sharding.AbstractMesh((4,), ("a",), (jax.sharding.AxisType.Auto,))
    with jax.sharding.use_abstract_mesh(mesh):
        step = jax.jit(jax.value_and_grad(loss)).trace(array(64, 64), array(64, 64))
        text = step.lower(lowering_platforms=("tpu",)).as_text()
    expected = {"forward": '[{"a"}, {}]', "backward": '[{}, {"a"}]'}
    rows = [line for line in text.splitlines() if "sdy.sharding_constraint" in line]
    assert len(rows) == len(sides)
    for side in sides:
        assert any(expected[side] in row for row in rows)


def test_a_cotangent_that_a_line_reads_otherwise_is_a_line_of_its_own() -> None:
    """Only where all ops of the backward half of a line read it in one way."""
    weights = {
        "up": jax.ShapeDtypeStruct((1024, 4096), jnp.float32),
        "down": jax.ShapeDtypeStruct((4096, 1024), jnp.float32),
    }

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
            y = x + jnp.square(x @ half["up"]) @ half["down"]
            return jnp.mean(y.astype(jnp.float32) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))

    x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16)
    asked = autoshard.plan(step, weights, x, cluster="v5e:2x4", mesh="a=4,b=2").subject
    (read,) = [one for one in candidates(asked) if one.name.startswith("read cotangent of ")]
    assert read.is_writable
    assert read.annotation.half is Half.COTANGENT
    assert read.dims != asked.dims[read.values[0]]
    rows = asked.plan.shardings
    for op, operand in read.readers[0]:
        operands, _ = asked.plan.strategies[asked.plan.op_strategy[op]]
        assert rows[operands[operand]] == list(map(list, read.dims))
        assert asked.imported.program.operands_of(op)[operand] == read.values[0]
