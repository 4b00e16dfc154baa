"""The propagation cases of MindSpore: the same strategies, or less resharded.

Names of ops and shapes follow MindSpore's own tests (tests/ut/python/parallel). Strategies are
numbers of blocks of each operand, as in its logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import pytest

import autoshard
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_to_plan
from autoshard.passes.pipeline import parse_pipeline, run_passes
from autoshard.sharding import Mesh, OpStrategy

PASSES = "builtin.module(autoshard-import-strategies,autoshard-sharding-propagation)"

Strategy = list[tuple[int, ...]]


@dataclass(frozen=True)
class Planned:
    """Strategies of the ops of a module, by name and in program order."""

    strategies: dict[str, list[Strategy]]
    resharded_bytes: float

    def of(self, name: str, index: int = 0) -> Strategy:
        """Blocks of each operand of an op; rank 0 is ``()``."""
        return self.strategies[name][index]


def plan(text: str, mesh: str) -> Planned:
    """Propagate the strategies in a module."""
    context = new_context()
    module = parse_bytes(text.encode(), context, "test.mlir")
    with context:
        module.operation.attributes["autoshard.mesh"] = mlir.StringAttr.get(mesh)
    run_passes(module, parse_pipeline(PASSES))
    attributes = module.operation.attributes
    refined = Mesh.parse(mlir.StringAttr(attributes["autoshard.mesh"]).value)
    found: dict[str, list[Strategy]] = {}
    for op in operations_to_plan(module.operation):
        if "autoshard.strategy" in op.attributes:
            strategy = OpStrategy.parse(
                mlir.StringAttr(op.attributes["autoshard.strategy"]).value, refined
            )
            name = op.name.removeprefix("stablehlo.")
            if name == "custom_call":
                name = mlir.StringAttr(op.attributes["call_target_name"]).value
            found.setdefault(name, []).append([s.tile for s in strategy.operands])
    return Planned(found, mlir.FloatAttr(attributes["autoshard.resharded_bytes"]).value)


def function(arguments: str, body: str, result: str) -> str:
    """A module of one function that returns the last line's value."""
    *_, last = re.findall(r"^ *(%\w+)", body, re.MULTILINE)
    return f"func.func @main({arguments}) -> {result} {{\n{body}\n return {last} : {result}\n}}\n"


def relu(result: str, operand: str, shape: str, strategy: str | None = None) -> str:
    """``tanh`` in its place: one operand, elementwise."""
    marks = "" if strategy is None else f' {{autoshard.in_strategy = ["{strategy}"]}}'
    return f"{result} = stablehlo.tanh {operand}{marks} : tensor<{shape}xf32>\n"


def mat_mul(result: str, x: str, w: str, shapes: str, marks: str = "", transpose_b=False) -> str:
    """``shapes`` is ``"64x32,32x8->64x8"``."""
    operands, out = shapes.split("->")
    left, right = (f"tensor<{shape}xf32>" for shape in operands.split(","))
    contracting = "[1] x [1]" if transpose_b else "[1] x [0]"
    return (
        f"{result} = stablehlo.dot_general {x}, {w}, contracting_dims = {contracting} {marks}"
        f" : ({left}, {right}) -> tensor<{out}xf32>\n"
    )


def marks(*operands: str, out: str | None = None) -> str:
    def array(texts: tuple[str, ...]) -> str:
        return "[" + ", ".join(f'"{text}"' for text in texts) + "]"

    parts = [f"autoshard.in_strategy = {array(operands)}"]
    if out is not None:
        parts.append(f"autoshard.out_strategy = {array((out,))}")
    return "{" + ", ".join(parts) + "}"


def broadcast(result: str, operand: str, before: str, after: str, dims: str = "0, 1") -> str:
    return (
        f"{result} = stablehlo.broadcast_in_dim {operand}, dims = [{dims}]"
        f" : (tensor<{before}xf32>) -> tensor<{after}xf32>\n"
    )


def test_26_several_inputs_wait_for_each_other() -> None:
    planned = plan(
        function(
            "%x: tensor<128x96xf32>, %gamma: tensor<128x96xf32>, %y: tensor<96x1xf32>,"
            " %beta: tensor<128x96xf32>",
            relu("%x1", "%x", "128x96", "[{ax0}, {ax1}]")
            + relu("%g1", "%gamma", "128x96", "[{ax0}, {ax1}]")
            + "%a = stablehlo.add %x1, %g1 : tensor<128x96xf32>\n"
            + relu("%a1", "%a", "128x96")
            + relu("%y1", "%y", "96x1", "[{ax1}, {}]")
            + mat_mul("%m", "%a1", "%y1", "128x96,96x1->128x1")
            + relu("%b1", "%beta", "128x96", "[{ax0}, {ax1}]")
            + broadcast("%mb", "%m", "128x1", "128x96")
            + "%z = stablehlo.add %mb, %b1 : tensor<128x96xf32>",
            "tensor<128x96xf32>",
        ),
        "ax0=4,ax1=2",
    )
    assert planned.of("add", 0) == [(4, 2), (4, 2)]
    assert planned.of("dot_general") == [(4, 2), (2, 1)]
    assert planned.of("broadcast_in_dim") == [(4, 1)]
    assert planned.of("add", 1) == [(4, 2), (4, 2)]


def test_27_an_unconfigured_input_is_decided_by_the_configured_one() -> None:
    planned = plan(
        function(
            "%x: tensor<128x96xf32>, %gamma: tensor<128x96xf32>, %beta: tensor<96x1xf32>,"
            " %alpha: tensor<128x96xf32>",
            "%a = stablehlo.add %x, %gamma"
            + marks("[{ax0}, {ax1}]", "[{ax0}, {ax1}]")
            + " : tensor<128x96xf32>\n"
            + relu("%b1", "%beta", "96x1")
            + mat_mul("%m", "%a", "%b1", "128x96,96x1->128x1")
            + relu("%l1", "%alpha", "128x96", "[{ax0}, {ax1}]")
            + broadcast("%mb", "%m", "128x1", "128x96")
            + "%z = stablehlo.divide %mb, %l1 : tensor<128x96xf32>",
            "tensor<128x96xf32>",
        ),
        "ax0=4,ax1=2",
    )
    assert planned.of("add") == [(4, 2), (4, 2)]
    assert planned.of("dot_general") == [(4, 2), (2, 1)]
    assert planned.of("broadcast_in_dim") == [(4, 1)]
    assert planned.of("divide") == [(4, 2), (4, 2)]


def test_28_broadcast_multiply() -> None:
    planned = plan(
        function(
            "%x: tensor<128x96xf32>, %y: tensor<128x1xf32>",
            relu("%x1", "%x", "128x96", "(4, 2)")
            + relu("%y1", "%y", "128x1", "(4, 1)")
            + broadcast("%yb", "%y1", "128x1", "128x96")
            + "%z = stablehlo.multiply %x1, %yb : tensor<128x96xf32>",
            "tensor<128x96xf32>",
        ),
        "x=8",
    )
    assert planned.of("broadcast_in_dim") == [(4, 1)]
    assert planned.of("multiply") == [(4, 2), (4, 2)]
    assert planned.resharded_bytes == 0


def test_29_matmul_between_layouts() -> None:
    planned = plan(
        function(
            "%x: tensor<128x96xf32>, %w: tensor<96x64xf32>",
            relu("%x1", "%x", "128x96", "[{ax0}, {ax1}]")
            + relu("%w1", "%w", "96x64", "[{ax1}, {}]")
            + mat_mul("%z", "%x1", "%w1", "128x96,96x64->128x64"),
            "tensor<128x64xf32>",
        ),
        "ax0=4,ax1=2",
    )
    assert planned.of("dot_general") == [(4, 2), (2, 1)]


def test_30_layouts_are_not_packed_to_the_left() -> None:
    layout = "mesh[ax0=2,ax1=2,ax2=2,ax3=1]"
    text = function(
        "%x: tensor<128x96xf32>, %w: tensor<96x64xf32>",
        relu("%x1", "%x", "128x96", f"{layout} [{{ax3}}, {{ax1}}]")
        + relu("%w1", "%w", "96x64", f"{layout} [{{ax1}}, {{ax0}}]")
        + mat_mul("%z", "%x1", "%w1", "128x96,96x64->128x64", "STRATEGY"),
        "tensor<128x64xf32>",
    )
    planned = plan(text.replace("STRATEGY", ""), "ax0=2,ax1=2,ax2=2")
    # MindSpore: (1, 2) and (2, 2), with ax2 idle. Cutting the rows by ax2 as well is a slice: it
    # sends not one byte more and halves the work.
    assert planned.of("dot_general") == [(2, 2), (2, 2)]
    theirs = plan(
        text.replace("STRATEGY", marks("[{}, {ax1}]", "[{ax1}, {ax0}]")), "ax0=2,ax1=2,ax2=2"
    )
    assert theirs.of("dot_general") == [(1, 2), (2, 2)]
    assert planned.resharded_bytes == theirs.resharded_bytes


def test_31_add_of_a_row() -> None:
    planned = plan(
        function(
            "%x: tensor<128x96xf32>, %y: tensor<1x96xf32>",
            relu("%x1", "%x", "128x96", "[{ax0}, {ax1}]")
            + relu("%y1", "%y", "1x96", "[{}, {ax1}]")
            + broadcast("%yb", "%y1", "1x96", "128x96")
            + "%z = stablehlo.add %x1, %yb : tensor<128x96xf32>",
            "tensor<128x96xf32>",
        ),
        "ax0=4,ax1=2",
    )
    assert planned.of("broadcast_in_dim") == [(1, 2)]
    assert planned.of("add") == [(4, 2), (4, 2)]
    assert planned.resharded_bytes == 0


def test_32_flash_attention_takes_what_its_inputs_are() -> None:
    autoshard.register_rule(
        "test.flash_attention",
        "([i, j, k], [i, j, k], [i, j, k])->([i, j, k]) need_replication={j}",
    )
    tensor = "tensor<2x1024x512xf32>"
    planned = plan(
        function(
            f"%q: {tensor}, %k: {tensor}, %v: {tensor}",
            "".join(
                relu(f"%{name}1", f"%{name}", "2x1024x512", "(2, 1, 4)") for name in ("q", "k", "v")
            )
            + "%z = stablehlo.custom_call @test.flash_attention(%q1, %k1, %v1)"
            f" : ({tensor}, {tensor}, {tensor}) -> {tensor}",
            tensor,
        ),
        "x=8",
    )
    assert planned.of("test.flash_attention") == [(2, 1, 4)] * 3
    assert planned.resharded_bytes == 0


def test_33_backwards_to_an_input_of_a_configured_matmul() -> None:
    planned = plan(
        function(
            "%x: tensor<128x96xf32>, %w: tensor<96x64xf32>",
            relu("%w1", "%w", "96x64")
            + mat_mul(
                "%z", "%x", "%w1", "128x96,96x64->128x64", marks("[{ax0}, {ax1}]", "[{ax1}, {}]")
            ),
            "tensor<128x64xf32>",
        ),
        "ax0=4,ax1=2",
    )
    assert planned.of("tanh") == [(2, 1)]


CONVOLUTION = (
    "{result} = stablehlo.convolution({x}, {k}) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0,"
    " 1], window = {{pad = [[{pad}, {pad}], [{pad}, {pad}]], lhs_dilate = [{dilate}, {dilate}]}}"
    " {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : (tensor<{before}xf32>,"
    " tensor<{kernel}xf32>) -> tensor<{after}xf32>\n"
)
"""NCHW."""


@pytest.mark.parametrize("strategy", ["(8, 1, 1, 1)", "(1, 1, 1, 8)", "(1, 1, 2, 1)"])
def test_34_convolution_network(strategy: str) -> None:
    planned = plan(
        function(
            "%x: tensor<32x16x64x64xf32>, %k: tensor<16x16x3x3xf32>, %t: tensor<16x16x3x3xf32>,"
            " %scale: tensor<16xf32>, %offset: tensor<16xf32>, %mean: tensor<16xf32>,"
            " %variance: tensor<16xf32>",
            relu("%r", "%x", "32x16x64x64", strategy)
            + CONVOLUTION.format(
                result="%c",
                x="%r",
                k="%k",
                pad=1,
                dilate=1,
                before="32x16x64x64",
                kernel="16x16x3x3",
                after="32x16x64x64",
            )
            + "%b = "
            '"stablehlo.batch_norm_inference"(%c, %scale, %offset, %mean, %variance)'
            " <{epsilon = 1.0e-05 : f32, feature_index = 1 : i64}> : (tensor<32x16x64x64xf32>,"
            " tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>)"
            " -> tensor<32x16x64x64xf32>\n"
            "%low = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
            '%p = "stablehlo.reduce_window"(%b, %low) <{window_dimensions = array<i64: 1, 1, 2, 2>,'
            " window_strides = array<i64: 1, 1, 2, 2>}> ({\n ^bb0(%l: tensor<f32>,"
            " %m: tensor<f32>):\n"
            " %most = stablehlo.maximum %l, %m : tensor<f32>\n"
            " stablehlo.return %most : tensor<f32>\n"
            "}) : (tensor<32x16x64x64xf32>, tensor<f32>) -> tensor<32x16x32x32xf32>\n"
            + CONVOLUTION.format(
                result="%z",
                x="%p",
                k="%t",
                pad=2,
                dilate=2,
                before="32x16x32x32",
                kernel="16x16x3x3",
                after="32x16x65x65",
            ),
            "tensor<32x16x65x65xf32>",
        ),
        "x=8",
    )
    if strategy == "(8, 1, 1, 1)":
        batch = (8, 1, 1, 1)
        whole = (1, 1, 1, 1)
        assert planned.of("convolution", 0) == [batch, whole]
        assert planned.of("batch_norm_inference") == [batch, (1,), (1,), (1,), (1,)]
        assert planned.of("reduce_window") == [batch, ()]
        assert planned.of("convolution", 1) == [batch, whole]
        assert planned.resharded_bytes == 0
    else:
        # MindSpore only asks that it compiles
        assert planned.of("tanh") == [tuple(map(int, strategy.strip("()").split(",")))]


def add_after_matmul(out: str | None, then: str = "", result: str = "64x8") -> str:
    in_strategy = marks("(4, 2)", "(1, 2)", out=out)
    body = (
        mat_mul("%m", "%x", "%w", "64x32,8x32->64x8", in_strategy, transpose_b=True)
        + "%z = stablehlo.add %m, %b : tensor<64x8xf32>\n"
        + then
    )
    arguments = "%x: tensor<64x32xf32>, %w: tensor<8x32xf32>, %b: tensor<64x8xf32>"
    return function(arguments, body, f"tensor<{result}xf32>")


def test_35_partial_sums_are_scattered_over_all_devices() -> None:
    planned = plan(add_after_matmul(None), "x=8")
    (add, bias) = planned.of("add")
    # MindSpore: (4, 2), after an all-reduce of 2 * 1/2 * 512 bytes on every device and a slice.
    # A reduce-scatter, over either dim, sends half of that.
    assert add == bias
    assert prod(add) == 8
    assert planned.resharded_bytes == 1 / 2 * 64 * 8 * 4 / 4
    pinned = plan(
        add_after_matmul(None).replace(
            "stablehlo.add %m, %b", f"stablehlo.add %m, %b {marks('(4, 2)', '(4, 2)')}"
        ),
        "x=8",
    )
    assert planned.resharded_bytes <= pinned.resharded_bytes


def test_36_out_strategy_decides_the_next_op() -> None:
    planned = plan(add_after_matmul("(8, 1)"), "x=8")
    assert planned.of("add") == [(8, 1), (8, 1)]


@pytest.mark.parametrize(("shape", "expected"), [("4x128", (4, 2)), ("16x32", (8, 1))])
def test_37_reshape_carries_the_cuts_of_rows(shape: str, expected: tuple[int, int]) -> None:
    then = f"%r = stablehlo.reshape %z : (tensor<64x8xf32>) -> tensor<{shape}xf32>\n" + relu(
        "%y", "%r", shape
    )
    planned = plan(add_after_matmul("(8, 1)", then, shape), "x=8")
    assert planned.of("add") == [(8, 1), (8, 1)]
    assert planned.of("tanh") == [expected]
    assert planned.resharded_bytes == 1 / 2 * 64 * 8 * 4 / 4


def classifier(fc: tuple[str, str], classes: int) -> str:
    """The end of ResNet-50: convolution, squeeze (the mean), fully connected, loss."""
    zero = "%zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
    return function(
        f"%x: tensor<32x16x8x8xf32>, %k: tensor<64x16x3x3xf32>, %w: tensor<{classes}x64xf32>",
        CONVOLUTION.format(
            result="%c",
            x="%x",
            k="%k",
            pad=1,
            dilate=1,
            before="32x16x8x8",
            kernel="64x16x3x3",
            after="32x64x8x8",
        )
        + zero
        + "%s = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [2, 3] "
        + '{autoshard.in_strategy = ["(8, 1, 1, 1)", "None"]}'
        + " : (tensor<32x64x8x8xf32>, tensor<f32>) -> tensor<32x64xf32>\n"
        + mat_mul(
            "%m", "%s", "%w", f"32x64,{classes}x64->32x{classes}", marks(*fc), transpose_b=True
        )
        + f"%e = stablehlo.exponential %m : tensor<32x{classes}xf32>\n"
        + "%l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]"
        + f" : (tensor<32x{classes}xf32>, tensor<f32>) -> tensor<32xf32>\n",
        "tensor<32xf32>",
    )


def test_38_classifier_split_by_classes() -> None:
    planned = plan(classifier(("(1, 1)", "(8, 1)"), 65536), "x=8")
    assert planned.of("convolution")[0] == (8, 1, 1, 1)
    assert planned.of("dot_general") == [(1, 1), (8, 1)]
    assert planned.of("reduce", 1) == [(1, 8), ()]


def test_39_classifier_split_by_batch() -> None:
    planned = plan(classifier(("(8, 1)", "(1, 1)"), 32768), "x=8")
    assert planned.of("convolution")[0] == (8, 1, 1, 1)
    assert planned.of("dot_general") == [(8, 1), (1, 1)]
    assert planned.of("reduce", 1) == [(8, 1), ()]
    assert planned.resharded_bytes == 0


def test_40_attention_from_its_four_matmuls() -> None:
    """Batch 2, sequence 64, 16 heads of 32; data parallel 2, model parallel 8."""
    heads = ""
    for name in ("q", "k", "v"):
        heads += mat_mul(
            f"%{name}0", "%x", f"%w{name}", "128x512,512x512->128x512", marks("(2, 1)", "(1, 8)")
        )
        heads += (
            f"%{name}1 = stablehlo.reshape %{name}0 : (tensor<128x512xf32>)"
            " -> tensor<2x64x16x32xf32>\n"
            f"%{name} = stablehlo.transpose %{name}1, dims = [0, 2, 1, 3]"
            " : (tensor<2x64x16x32xf32>) -> tensor<2x16x64x32xf32>\n"
        )
    planned = plan(
        function(
            "%x: tensor<128x512xf32>, %mask: tensor<2x1x64x64xf32>, "
            + ", ".join(f"%w{name}: tensor<512x512xf32>" for name in ("q", "k", "v", "o")),
            heads
            + "%s = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims"
            " = [3] x [3] : (tensor<2x16x64x32xf32>, tensor<2x16x64x32xf32>)"
            " -> tensor<2x16x64x64xf32>\n"
            + broadcast("%mb", "%mask", "2x1x64x64", "2x16x64x64", "0, 1, 2, 3")
            + "%a = stablehlo.add %mb, %s : tensor<2x16x64x64xf32>\n"
            "%c = stablehlo.dot_general %a, %v, batching_dims = [0, 1] x [0, 1], contracting_dims"
            " = [3] x [2] : (tensor<2x16x64x64xf32>, tensor<2x16x64x32xf32>)"
            " -> tensor<2x16x64x32xf32>\n"
            "%ct = stablehlo.transpose %c, dims = [0, 2, 1, 3] : (tensor<2x16x64x32xf32>)"
            " -> tensor<2x64x16x32xf32>\n"
            "%cr = stablehlo.reshape %ct : (tensor<2x64x16x32xf32>) -> tensor<128x512xf32>\n"
            + mat_mul(
                "%o",
                "%cr",
                "%wo",
                "128x512,512x512->128x512",
                marks("(2, 8)", "(8, 1)", out="(2, 1)"),
            )
            + "%zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
            "%n = stablehlo.reduce(%o init: %zero) applies stablehlo.add across dimensions = [1]"
            " : (tensor<128x512xf32>, tensor<f32>) -> tensor<128xf32>\n",
            "tensor<128xf32>",
        ),
        "dp=2,mp=8",
    )
    heads_cut = (2, 8, 1, 1)
    assert planned.of("dot_general", 3) == [heads_cut, heads_cut]
    assert planned.of("dot_general", 4) == [heads_cut, heads_cut]
    assert planned.of("broadcast_in_dim") == [(2, 1, 1, 1)]
    assert planned.of("add") == [heads_cut, heads_cut]
    # one all-reduce of the output's partial sums, nothing else
    assert planned.resharded_bytes == 2 * 7 / 8 * 128 * 512 * 4 / 2
    # MindSpore: (2, 1); rows that nobody needs in one place are sliced before they are summed
    assert planned.of("reduce")[0] == (16, 1)


def test_41_a_parameter_of_two_matmuls_is_split_once() -> None:
    planned = plan(
        function(
            "%x: tensor<128x96xf32>, %y: tensor<128x96xf32>, %gamma: tensor<96x96xf32>",
            relu("%x1", "%x", "128x96", "(4, 2)")
            + mat_mul("%a", "%x1", "%gamma", "128x96,96x96->128x96")
            + relu("%y1", "%y", "128x96", "(2, 4)")
            + mat_mul("%b", "%y1", "%gamma", "128x96,96x96->128x96")
            + "%z = stablehlo.add %a, %b : tensor<128x96xf32>\n",
            "tensor<128x96xf32>",
        ),
        "x=8",
    )
    # both read the weight as it is: nothing of it is gathered
    assert planned.of("dot_general", 0)[1] == planned.of("dot_general", 1)[1]


def test_42_strategies_that_disagree_are_resharded_once() -> None:
    planned = plan(
        function(
            "%x: tensor<64x64xf32>, %y: tensor<64x64xf32>",
            f"%m = stablehlo.multiply %x, %y {marks('(4, 4)', '(4, 4)')} : tensor<64x64xf32>\n"
            "%s = stablehlo.logistic %m : tensor<64x64xf32>\n"
            + relu("%z", "%s", "64x64", "(8, 2)"),
            "tensor<64x64xf32>",
        ),
        "x=16",
    )
    assert planned.of("multiply") == [(4, 4), (4, 4)]
    assert planned.of("logistic") in ([(4, 4)], [(8, 2)])
    assert planned.of("tanh") == [(8, 2)]
    # one of the axes of the columns moves to the rows: half of 1 KiB
    assert planned.resharded_bytes == 1 / 2 * 64 * 64 * 4 / 16
