"""From StableHLO to the core's program: loops, rules, and whatever JAX lowers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import autoshard
from autoshard.errors import AutoshardWarning, StrategyError
from autoshard.importer import import_program
from autoshard.importer.loops import trip_count
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_to_plan
from autoshard.passes.pipeline import parse_pipeline, run_passes
from autoshard.planned.write import populate_rules
from autoshard.sharding import Mesh, OpStrategy, from_hlo, tuple_from_hlo

MESH = Mesh.parse("dp=2,tp=4")
PLAN = "autoshard-import-strategies,autoshard-sharding-propagation"


def parse(text: str) -> mlir.Module:
    context = new_context()
    module = parse_bytes(text.encode(), context, "test.mlir")
    with context:
        module.operation.attributes["autoshard.mesh"] = mlir.StringAttr.get(str(MESH))
    return module


def run(module: mlir.Module, passes: str) -> mlir.Module:
    run_passes(module, parse_pipeline(f"builtin.module({passes})"))
    return module


def resharded_bytes(module: mlir.Module) -> float:
    return mlir.FloatAttr(module.operation.attributes["autoshard.resharded_bytes"]).value


# Trip counts


def loop(compare: str, step: str, first: str, limit: str = "10", yielded_limit: str = "%l") -> str:
    """A loop over ``%i`` from ``first``, with the limit ``%l`` carried along."""
    return f"""
func.func @main(%x: tensor<i32>) -> tensor<i32> {{
  %first = stablehlo.constant dense<{first}> : tensor<i32>
  %limit = stablehlo.constant dense<{limit}> : tensor<i32>
  %0:3 = stablehlo.while(%i = %first, %l = %limit, %data = %x)
      : tensor<i32>, tensor<i32>, tensor<i32>
  cond {{
    %c = stablehlo.constant dense<{limit}> : tensor<i32>
    %go = stablehlo.compare {compare} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %three = stablehlo.constant dense<3> : tensor<i32>
    %minus = stablehlo.constant dense<-1> : tensor<i32>
    %next = stablehlo.{step} : tensor<i32>
    stablehlo.return %next, {yielded_limit}, %data : tensor<i32>, tensor<i32>, tensor<i32>
  }}
  return %0#0 : tensor<i32>
}}
"""


def trips_of(text: str) -> int | None:
    module = parse(text)
    [found] = [op for op in operations_to_plan(module.operation) if op.name == "stablehlo.while"]
    return trip_count(found, lambda value: value)


@pytest.mark.parametrize(
    ("compare", "step", "first", "expected"),
    [
        ("LT, %i, %c", "add %i, %one", "0", 10),
        ("LT, %i, %c", "add %one, %i", "0", 10),
        ("LT, %i, %c", "add %i, %one", "4", 6),
        ("LT, %i, %c", "add %i, %one", "-2", 12),
        ("LT, %i, %c", "add %i, %one", "10", 0),
        ("LT, %i, %c", "add %i, %one", "12", 0),
        ("LT, %i, %c", "add %i, %three", "0", 4),
        ("LE, %i, %c", "add %i, %one", "0", 11),
        ("LE, %i, %c", "add %i, %three", "1", 4),
        ("NE, %i, %c", "add %i, %one", "0", 10),
        ("NE, %i, %c", "add %i, %three", "1", 3),
        ("GT, %i, %c", "add %i, %minus", "15", 5),
        ("GT, %i, %c", "subtract %i, %one", "15", 5),
        ("GT, %i, %c", "subtract %i, %three", "15", 2),
        ("GE, %i, %c", "subtract %i, %one", "15", 6),
        ("NE, %i, %c", "subtract %i, %one", "15", 5),
        ("GT, %c, %i", "add %i, %one", "0", 10),
        ("GE, %c, %i", "add %i, %one", "0", 11),
        ("LT, %c, %i", "subtract %i, %one", "15", 5),
        ("LT, %i, %l", "add %i, %one", "0", 10),
        ("GT, %l, %i", "add %i, %one", "0", 10),
    ],
)
def test_counted_loops(compare: str, step: str, first: str, expected: int) -> None:
    assert trips_of(loop(compare, step, first)) == expected


@pytest.mark.parametrize(
    ("compare", "step", "first"),
    [
        # never ends, or wraps around
        ("LT, %i, %c", "subtract %i, %one", "0"),
        ("GT, %i, %c", "add %i, %one", "15"),
        ("NE, %i, %c", "add %i, %three", "0"),
        ("NE, %i, %c", "subtract %i, %one", "0"),
        # ends at once or never
        ("EQ, %i, %c", "add %i, %one", "10"),
        # not a constant step
        ("LT, %i, %c", "add %i, %data", "0"),
        ("LT, %i, %c", "add %i, %i", "1"),
        ("LT, %i, %c", "multiply %i, %three", "1"),
        ("LT, %i, %c", "subtract %one, %i", "0"),
        # the data decide
        ("LT, %data, %c", "add %i, %one", "0"),
        ("LT, %i, %data", "add %i, %one", "0"),
    ],
)
def test_loops_that_are_not_counted(compare: str, step: str, first: str) -> None:
    assert trips_of(loop(compare, step, first)) is None


def test_a_limit_that_the_body_changes_is_unknown() -> None:
    assert trips_of(loop("LT, %i, %l", "add %i, %one", "0", yielded_limit="%next")) is None


@pytest.mark.parametrize(
    "make_loop",
    [
        lambda body, x: jax.lax.scan(lambda c, _: (body(c), None), x, length=7)[0],
        lambda body, x: jax.lax.scan(lambda c, _: (body(c), None), x, length=7, reverse=True)[0],
        lambda body, x: jax.lax.scan(lambda c, d: (body(c) + d, None), x, jnp.zeros(7))[0],
        lambda body, x: jax.lax.fori_loop(0, 7, lambda _, c: body(c), x),
        lambda body, x: jax.lax.fori_loop(3, 10, lambda _, c: body(c), x),
        lambda body, x: jax.jit(lambda y: jax.lax.fori_loop(0, 7, lambda _, c: body(c), y))(x),
        lambda body, x: jax.lax.while_loop(
            lambda c: c[0] < 7, lambda c: (c[0] + 1, body(c[1])), (0, x)
        )[1],
    ],
    ids=["scan", "reverse scan", "scan over data", "fori", "fori from 3", "inside jit", "while"],
)
def test_loops_of_jax_count_their_trips(make_loop: Callable[..., Any]) -> None:
    by_rows = autoshard.shard(jnp.tanh, in_strategy=((8, 1),))
    by_columns = autoshard.shard(jnp.cos, in_strategy=((1, 8),))
    plan = autoshard.plan(
        lambda x: make_loop(lambda c: by_columns(by_rows(c)), x),
        jax.ShapeDtypeStruct((64, 128), jnp.float32),
        mesh=MESH,
    )
    # rows to columns and back, 7/8 of 4 KiB each
    assert resharded_bytes(parse(plan.to_mlir())) == 7 * 2 * 3584


# Rules that users attach


def custom_call(rule: Any, shapes: Sequence[str], result: str, first: str) -> mlir.Module:
    autoshard.register_rule("test.op", rule)
    types = [f"tensor<{shape}xf32>" for shape in shapes]
    arguments = ", ".join(f"%a{i}: {type_}" for i, type_ in enumerate(types))
    operands = ", ".join(f"%a{i}" for i in range(len(types)))
    strategies = ", ".join([f'"{first}"', *['"None"'] * (len(types) - 1)])
    return parse(
        f"func.func @main({arguments}) -> tensor<{result}xf32> {{\n"
        f"  %0 = stablehlo.custom_call @test.op({operands})"
        f" {{autoshard.in_strategy = [{strategies}]}}"
        f" : ({', '.join(types)}) -> tensor<{result}xf32>\n"
        f"  return %0 : tensor<{result}xf32>\n}}\n"
    )


def strategy_of(module: mlir.Module, name: str) -> str:
    [text] = [
        mlir.StringAttr(op.attributes["autoshard.strategy"]).value
        for op in operations_to_plan(module.operation)
        if op.name == name and "autoshard.strategy" in op.attributes
    ]
    return text


@pytest.mark.parametrize(
    "rule",
    [
        "([i, k], [k, j])->([i, j]) reduction={k}",
        "([i, j], [j, k])->([i, k]) {i=8, j=16, k=32} reduction={j}",
        "([rows, inner], [inner, columns])->([rows, columns]) reduction={inner}",
        lambda operands, _: (
            f"([i, j], [j, k])->([i, k]) {{i=8, j={operands[0][1]}, k=32}} reduction={{j}}"
        ),
    ],
    ids=["sizes from shapes", "with sizes", "names", "function of the shapes"],
)
def test_a_registered_rule_splits_a_custom_call(rule: Any) -> None:
    module = custom_call(rule, ["8x16", "16x32"], "8x32", "[{dp}, {tp}]")
    run(module, PLAN)
    strategy = strategy_of(module, "stablehlo.custom_call")
    assert strategy.startswith("[{dp}, {tp}], [{tp}, {}] -> [{dp")


def test_factors_of_a_rule_that_need_replication_are_not_cut() -> None:
    module = custom_call("([i, j])->([i, j]) need_replication={j}", ["8x16"], "8x16", "(?, ?)")
    run(module, PLAN)
    strategy = strategy_of(module, "stablehlo.custom_call")
    assert OpStrategy.parse(strategy, MESH).operands[0].tile == (8, 1)


def test_factors_of_one_side_of_a_custom_call_are_not_cut() -> None:
    module = custom_call("([i, j])->([i, k])", ["8x16"], "8x16", "(?, ?)")
    run(module, PLAN)
    strategy = OpStrategy.parse(strategy_of(module, "stablehlo.custom_call"), MESH)
    assert strategy.operands[0].tile == strategy.results[0].tile == (8, 1)


def test_a_composite_with_a_rule_stays_one_op() -> None:
    autoshard.register_rule("test.composite", "([i, j])->([i, j]) need_replication={j}")
    module = parse("""
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %0 = stablehlo.tanh %x {autoshard.in_strategy = ["[{dp}, {}]"]} : tensor<64x128xf32>
  %1 = stablehlo.composite "test.composite" %0 {decomposition = @f}
      : (tensor<64x128xf32>) -> tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}
func.func private @f(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  return %x : tensor<64x128xf32>
}
""")
    run(module, PLAN)
    strategy = OpStrategy.parse(strategy_of(module, "stablehlo.composite"), MESH)
    assert strategy.operands[0].tile == (8, 1)


def test_a_rule_without_arrow_is_refused_at_once() -> None:
    with pytest.raises(StrategyError, match=r'rule of "test.op": "\[i\]" has no "->"'):
        autoshard.register_rule("test.op", "[i]")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("([i, j])->([i, j], [i])", "3 tensors for 2 operands and results"),
        ("([i])->([i, j])", r"\[i\] does not fit the shape \(8, 16\)"),
        ("([i, j])->([j, i])", "factor j has sizes 16 and 8"),
        ("([i, j])->([i, j]) reduction={x}", "no dim has the factor x"),
        ("([i, j])->([i, j]) {i=8, j=16} reduction={x}", "a kind to a factor that no dim has"),
        ("([i, j])->([i, j]) {i=4, j=16}", r"shapes \[\(4, 16\), \(4, 16\)\], the op has"),
        ("([a, b])->([a, b]) {a=8, b=16}", "expecting symbol from 'i' to 'z'"),
    ],
)
def test_rules_that_do_not_fit_the_op_are_refused(rule: str, message: str) -> None:
    module = custom_call(rule, ["8x16"], "8x16", "[{dp}, {}]")
    with pytest.raises(StrategyError, match=message):
        run(module, PLAN)


SCAN = """
func.func @main(%x: tensor<64x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"},
                %init: tensor<64xf32>) -> tensor<64x128xf32> {
  %y:2 = chlo.scan(%x) inits (%init) dimension=1 {
  ^bb0(%element: tensor<64xf32>, %carry: tensor<64xf32>):
    MADE
    %sum = stablehlo.add %made, %carry : tensor<64xf32>
    stablehlo.return %sum, %sum : tensor<64xf32>, tensor<64xf32>
  } : (tensor<64x128xf32>, tensor<64xf32>) -> (tensor<64x128xf32>, tensor<64xf32>)
  return %y#0 : tensor<64x128xf32>
}
"""


@pytest.mark.parametrize(
    "made",
    [
        "%made = stablehlo.tanh %element : tensor<64xf32>",
        "%two = stablehlo.constant dense<2.0> : tensor<64xf32>\n"
        "%made = stablehlo.multiply %element, %two : tensor<64xf32>",
    ],
    ids=["function", "product with a constant"],
)
def test_a_scan_is_cut_along_all_other_dims(made: str) -> None:
    module = run(parse(SCAN.replace("MADE", made)), PLAN)
    expected = "[{dp, tp}, {}], [{dp, tp}] -> [{dp, tp}, {}], [{dp, tp}]"
    assert strategy_of(module, "chlo.scan") == expected


def test_a_scan_whose_body_mixes_elements_is_whole() -> None:
    made = "%made = stablehlo.reverse %element, dims = [0] : tensor<64xf32>"
    with pytest.warns(AutoshardWarning, match=r"no factor rule.*chlo\.scan"):
        module = run(parse(SCAN.replace("MADE", made)), PLAN)
    assert strategy_of(module, "chlo.scan") == "[{}, {}], [{}] -> [{}, {}], [{}]"


# Programs of JAX


def by_columns(x: Any, f: Callable[[Any], Any]) -> Any:
    return jax.vmap(f, in_axes=1, out_axes=1)(x)


STEPS: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(2, -1, 8).reshape(-1, x.shape[1]) + 1,
    "flat": lambda x: x.reshape(-1)[::-1].reshape(x.shape),
    "sum": lambda x: x + x.sum(0),
    "mean": lambda x: x - x.mean(1, keepdims=True),
    "matmul": lambda x: x @ (x.T @ x),
    "einsum": lambda x: jnp.einsum("ij,kj,ki->ij", x, x, x[:, :1] @ x[:, :1].T),
    "concatenate": lambda x: jnp.concatenate([x[:, 2:], x[:, :2]], 1),
    "slice": lambda x: jnp.pad(x[1:-1], ((2, 0), (0, 0))),
    "interior pad": lambda x: jax.lax.pad(x[:, ::2], 0.0, [(0, 0, 0), (1, 0, 1)]),
    "take": lambda x: x[jnp.argsort(x[:, 0])],
    "look up": lambda x: jnp.take(x, jnp.argmax(x, 1) % x.shape[0], axis=0),
    "scatter": lambda x: x.at[jnp.array([0, 2, 2])].add(x[:3]),
    "dynamic": lambda x: jax.lax.dynamic_update_slice(
        x, jax.lax.dynamic_slice(x, (jnp.argmax(x[0]), 0), (2, x.shape[1])), (1, 0)
    ),
    "sort": lambda x: jnp.sort(x, 0),
    "top k": lambda x: x + jax.lax.top_k(x, 1)[0],
    "cumsum": lambda x: jnp.cumsum(x, 1),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "bfloat16": lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32),
    "erf_inv": lambda x: jax.scipy.special.erfinv(jnp.clip(x, -0.5, 0.5)),
    "where": lambda x: jnp.where(x > 0, x, jnp.zeros(())),
    "one hot": lambda x: jax.nn.one_hot(jnp.argmax(x, 1), x.shape[1]),
    "jit": jax.jit(lambda x: jax.jit(jnp.sin)(x) + jax.jit(jnp.sin)(x)),
    "remat": jax.checkpoint(lambda x: jnp.tanh(jnp.tanh(x))),
    "grad": jax.grad(lambda x: jnp.sum(jax.checkpoint(jnp.tanh)(x) ** 2)),
    "vmap": lambda x: by_columns(x, lambda c: c / (1 + jnp.linalg.norm(c))),
    "scan": lambda x: jax.lax.scan(lambda c, row: (c + row, c * row), x[0], x)[1],
    "fori": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * i, x),
    "while": lambda x: jax.lax.while_loop(lambda c: c.sum() < 0, lambda c: c + 1, x),
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.tanh, lambda y: y + 1, x),
    "switch": lambda x: jax.lax.switch(1, [jnp.tanh, jnp.sin, jnp.cos], x),
    "random": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "barrier": lambda x: jax.lax.optimization_barrier((x, x[0]))[0],
    "pool": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 1), "SAME"),
    "convolve": lambda x: jax.lax.conv_general_dilated(
        x[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME"
    )[0, 0],
    "int4": lambda x: x.astype(jnp.int4).astype(jnp.float32),
    "fp8": lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32),
    "complex": lambda x: jnp.abs(jnp.fft.fft(x)),
}


def lowered(steps: Sequence[str]) -> mlir.Module:
    """The steps one after the other on an 8 x 16 array, rows of the argument cut by dp."""

    def program(x: Any, y: Any) -> Any:
        for step in steps:
            x = STEPS[step](x)
        return x, x.sum() + y.sum()

    shape = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    module = parse(jax.jit(program).lower(shape, shape).as_text())
    with module.context:
        [main] = [
            op.operation
            for op in module.body.operations
            if mlir.StringAttr(op.operation.attributes["sym_name"]).value == "main"
        ]
        rows = mlir.StringAttr.get("{devices=[2,1,4]<=[8] last_tile_dim_replicate}")
        main.attributes["arg_attrs"] = mlir.ArrayAttr.get(
            [mlir.DictAttr.get({"mhlo.sharding": rows}), mlir.DictAttr.get({})]
        )
    return module


def check_planned(module: mlir.Module) -> None:
    """Every op outside regions that compute single elements has shardings that split evenly."""
    elementwise_regions = (
        "stablehlo.reduce",
        "stablehlo.sort",
        "stablehlo.scatter",
        "stablehlo.reduce_window",
        "stablehlo.select_and_scatter",
    )
    for op in operations_to_plan(module.operation):
        if not op.results or op.name.startswith("sdy.mesh"):
            continue
        parent = op.parent
        while parent is not None and parent.name not in elementwise_regions:
            parent = parent.operation.parent
        if parent is not None:
            continue
        text = mlir.StringAttr(op.attributes["mhlo.sharding"]).value
        shapes = [tuple(mlir.RankedTensorType(result.type).shape) for result in op.results]
        shardings = (
            [from_hlo(text, MESH, len(shapes[0]))]
            if len(shapes) == 1
            else tuple_from_hlo(text, MESH, [len(shape) for shape in shapes])
        )
        for sharding, shape in zip(shardings, shapes, strict=True):
            sharding.check(shape)
        assert "sdy.sharding_rule" not in op.attributes
        if "autoshard.strategy" in op.attributes:
            strategy = mlir.StringAttr(op.attributes["autoshard.strategy"]).value
            operands = OpStrategy.parse(strategy, MESH).operands
            for sharding, operand in zip(operands, op.operands, strict=True):
                sharding.check(tuple(mlir.RankedTensorType(operand.type).shape))


@pytest.mark.filterwarnings("ignore::autoshard.errors.AutoshardWarning")
@pytest.mark.parametrize("step", STEPS)
def test_every_kind_of_op_is_planned_and_exported(step: str) -> None:
    module = lowered([step])
    check_planned(run(module, PLAN))
    assert run(module, "autoshard-export-shardy").operation.verify()


@pytest.mark.filterwarnings("ignore::autoshard.errors.AutoshardWarning")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6), st.booleans())
def test_random_programs_are_planned_and_exported(steps: list[str], shardy: bool) -> None:
    module = lowered(steps)
    check_planned(run(module, PLAN))
    form = "shardy" if shardy else "gspmd"
    assert run(module, f"autoshard-export-{form}").operation.verify()


@pytest.mark.parametrize("step", sorted(STEPS))
def test_no_op_of_jax_is_without_a_rule(step: str) -> None:
    module = run(lowered([step]), "autoshard-import-strategies")
    with module.context, mlir.Location.unknown():
        populate_rules(module)
        imported = import_program(module, MESH)
    assert {op.name for op in imported.replicated_ops} <= {"stablehlo.rng_bit_generator"}
