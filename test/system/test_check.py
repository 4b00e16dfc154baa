"""``plan.check()``: right plans, and forms that are split as XLA does it wrongly, or damaged."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from damaged_programs import damage
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.cli import verify as cli
from autoshard.errors import CheckError, PlanError
from autoshard.exporter import pin
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.verify.check import check, run

_WEIGHTS = jax.ShapeDtypeStruct((512, 512), "float32")
_BATCH = jax.ShapeDtypeStruct((2048, 512), "float32")


def _layers(x, weights):
    """Eight layers in a loop, and a sum of what comes out."""

    def layer(x, _):
        return jnp.tanh(x @ weights), None

    y, _ = jax.lax.scan(layer, x, None, length=8)
    return y.sum(), x + 1


@pytest.fixture(scope="module")
def right():
    """A plan, and that it is right."""
    plan = autoshard.plan(_layers, _BATCH, _WEIGHTS, mesh="dp=8", in_shardings=(P("dp"), None))
    return plan, plan.check()


def _left_to_xla(monkeypatch):
    """Let XLA split what the exporter splits itself, because XLA does it wrongly."""
    monkeypatch.setattr(pin, "block_op", lambda _: None)


def _double(op):
    """Twice what it should be."""
    result = op.results[0]
    with mlir.InsertionPoint.after(op):
        twice = mlir.Operation.create("stablehlo.add", [result.type], [result, result])
    result.replace_all_uses_except(twice.results[0], twice)


def _never_end(op):
    """A loop without an end."""
    type_ = op.results[0].type
    with mlir.InsertionPoint(op):
        loop = mlir.Operation.create("stablehlo.while", [type_], list(op.operands), regions=2)
    yes = mlir.RankedTensorType.get([], mlir.IntegerType.get_signless(1))
    for region, is_body in zip(loop.regions, (False, True), strict=True):
        block = region.blocks.append(type_, arg_locs=[mlir.Location.unknown()])
        with mlir.InsertionPoint(block):
            if is_body:
                (value,) = block.arguments
                given = mlir.Operation.create("stablehlo.add", [type_], [value, value])
            else:
                true = {"value": mlir.DenseElementsAttr.get_splat(yes, mlir.BoolAttr.get(True))}
                given = mlir.Operation.create("stablehlo.constant", [yes], [], true)
            mlir.Operation.create("stablehlo.return", [], list(given.results))
    op.results[0].replace_all_uses_with(loop.results[0])


def test_a_right_plan_is_right(right):
    _, found = right
    assert found.is_right
    assert found.message == ""
    assert found.compared == 2
    assert found.exact == 1  # x + 1; tanh rounds
    assert (512, 4) in found.sizes
    assert str(found).startswith("RIGHT: 2 results are what one device computes, 1 of them bit")
    assert json.loads(json.dumps(found.to_json()))["is_right"] is True


def _of_weights(image, gradient):
    """The gradient of a convolution by its weights."""

    def convolution(weights):
        named = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(image, weights, (1, 1), "SAME", dimension_numbers=named)

    weights = jax.ShapeDtypeStruct((3, 3, 64, 64), "float32")
    return jax.linear_transpose(convolution, weights)(gradient)[0]


def _of_weights_in_a_loop(image, gradient):
    def step(total, _):
        return total + _of_weights(image, gradient * total.sum()), None

    return jax.lax.scan(step, jnp.ones((3, 3, 64, 64)), None, length=3)[0]


@pytest.mark.parametrize(
    ("function", "form", "is_inside"),
    [(_of_weights, "gspmd", False), (_of_weights_in_a_loop, "shardy", True)],
)
def test_a_convolution_that_xla_splits_wrongly_is_named(monkeypatch, function, form, is_inside):
    image = jax.ShapeDtypeStruct((1, 64, 64, 64), "float32")
    plan = autoshard.plan(
        function,
        image,
        image,
        mesh="spatial=4,model=2",
        in_shardings=(P(None, "spatial"), P(None, "spatial", None, "model")),
        out_shardings=P(None, None, None, "model"),
    )
    if not is_inside:
        assert plan.check(form=form).is_right
    _left_to_xla(monkeypatch)
    found = plan.check(form=form)
    assert not found.is_right
    assert found.differs.op == "stablehlo.convolution"
    assert found.differs.is_certain
    assert found.differs.is_inside == is_inside
    assert "test_check.py" in found.differs.location
    assert "tensor<1x8x4x4xf32> [{}, {spatial}, {}, {model}]" in found.differs.operands
    assert found.message.startswith("convolution is computed wrongly when it is split as planned: ")


def test_an_op_at_which_xla_ends_the_process_is_named(monkeypatch):
    def padded(x):
        return jax.lax.pad(jnp.sin(x), 0.0, ((-1, 2, 1), (0, 0, 0)))

    x = jax.ShapeDtypeStruct((64, 63), "float32")
    plan = autoshard.plan(padded, x, mesh="dp=8", in_shardings=P("dp"), out_shardings=P("dp"))
    _left_to_xla(monkeypatch)
    found = plan.check()
    assert not found.is_right
    assert found.differs.op == "stablehlo.pad"
    assert "pad cannot be split as planned" in found.message
    assert "ended the process (SIGABRT)" in found.failure


def test_an_op_that_does_not_end_is_named(monkeypatch):
    monkeypatch.setattr(run, "PATIENCE_SECONDS", 5.0)
    damage(monkeypatch, "tanh", _never_end)
    plan = autoshard.plan(lambda x: jnp.tanh(jnp.sin(x)), _BATCH, mesh="dp=8", in_shardings=P("dp"))
    found = plan.check()
    assert not found.is_right
    assert found.differs.op == "stablehlo.tanh"
    assert found.failure == "running the split program does not end."


def _signs(x):
    """Sines of differences of equal numbers, scaled up, made of sums in other orders."""
    rows = jnp.tanh(x)
    difference = rows.sum(0) - rows[::-1].sum(0)
    return jnp.sin(difference * 1e18)


def test_an_op_that_is_wrong_behind_rounding_is_named(monkeypatch):
    plan = autoshard.plan(_signs, _BATCH, mesh="dp=8", in_shardings=P("dp"))
    damage(monkeypatch, "sine", _double)
    wrong = plan.check()
    assert not wrong.is_right
    assert wrong.differs.op == "stablehlo.sine"
    assert wrong.differs.is_certain


def test_jit_checks_once_before_the_first_step(monkeypatch):
    checks = []
    run_both = check.run_both
    monkeypatch.setattr(check, "run_both", lambda *given: checks.append(1) or run_both(*given))

    def step(**options):
        return autoshard.jit(
            lambda x: jnp.sin(x) + 1, mesh="dp=8", in_shardings=P("dp"), donate_argnums=0, **options
        )

    expected = np.sin(np.ones((64, 32))) + 1
    np.testing.assert_allclose(step()(jnp.ones((64, 32))), expected, rtol=1e-6)
    assert not checks
    right = step(check=True)
    for _ in range(2):
        np.testing.assert_allclose(right(jnp.ones((64, 32))), expected, rtol=1e-6)
    assert len(checks) == 1
    damage(monkeypatch, "sine", _double)
    x = jnp.ones((64, 32))
    with pytest.raises(CheckError, match=r"test_check\.py.*<lambda>: sine is computed wrong"):
        step(check=True)(x)
    assert not x.is_deleted()  # no step has taken it


def test_a_program_of_which_nothing_is_run_is_not_right():
    def called(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    plan = autoshard.plan(called, _BATCH, mesh="dp=8", in_shardings=P("dp"))
    with pytest.raises(CheckError, match=r"nothing to compare.*callback"):
        plan.check()


def test_what_a_cpu_does_not_run_is_left_out_and_said():
    def with_callback(x):
        y = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return jnp.cos(y) * 2

    found = autoshard.plan(with_callback, _BATCH, mesh="dp=8", in_shardings=P("dp")).check()
    assert found.is_right
    assert any("callback" in op for op in found.not_run)


def test_the_command_says_it_by_its_exit_code(right, tmp_path, monkeypatch, capsys):
    plan, found = right
    planned, written = tmp_path / "planned.mlirbc", tmp_path / "check.json"
    planned.write_bytes(plan.bytecode)
    wrong = replace(found, failure="Check failed: pieces == 8.")
    monkeypatch.setattr(check, "check_module", lambda *_, **__: wrong)
    assert cli.main([str(planned), "--check", "--json", str(written)]) == cli.FAILED
    assert "WRONG: Check failed: pieces == 8." in capsys.readouterr().out
    assert json.loads(written.read_text())["is_right"] is False


def test_a_module_without_a_plan_is_refused():
    module = parse_bytes(b"func.func @main() { return }", new_context())
    with pytest.raises(PlanError, match="has not been planned"):
        check.check_module(module)


def test_a_check_that_takes_too_long_says_so():
    plan = autoshard.plan(lambda x: jnp.sin(x), _BATCH, mesh="dp=8", in_shardings=P("dp"))
    with pytest.raises(CheckError, match="was not done in time"):
        plan.check(timeout=0.01)
