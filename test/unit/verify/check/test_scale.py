"""A planned program made small: sizes, ops that repeat, the mesh, numbers."""

import numpy as np
import pytest

from autoshard.importer.loops import trip_count
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.attributes import MESH
from autoshard.ir.module import functions_of, operations_of
from autoshard.planned.module import read_plan
from autoshard.sharding.mesh import Mesh
from autoshard.verify.check.attributes import Constant, cut_constant
from autoshard.verify.check.compare import DOUBLE, compare
from autoshard.verify.check.exact import exact_values
from autoshard.verify.check.finite import keep_finite
from autoshard.verify.check.part import entry_of, keep_part
from autoshard.verify.check.plain import without_plan
from autoshard.verify.check.sample import keep_distinct
from autoshard.verify.check.scale import scale
from autoshard.verify.check.shrink import shrink, smaller_mesh
from autoshard.verify.check.trips import shorten_loops
from autoshard.verify.check.widen import widen
from planned_text import planned_module

_MATMUL = """
func.func @main(%x: tensor<4096x1024xf32> $([{dp}, {}]), %w: tensor<1024x8192xf32> $([{}, {tp}]))
    -> (tensor<4096x8192xf32> $([{dp}, {tp}])) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      $([{dp}, {}], [{}, {tp}] -> [{dp}, {tp}])
      : (tensor<4096x1024xf32>, tensor<1024x8192xf32>) -> tensor<4096x8192xf32>
  return %y : tensor<4096x8192xf32>
}
"""


def _types(module: mlir.Module, name: str) -> list[str]:
    """Types of the results of all ops called ``name``."""
    ops = operations_of(module.operation)
    return [str(op.results[0].type) for op in ops if op.name == name]


def test_cut_dims_keep_two_elements_on_each_device():
    module = planned_module(_MATMUL)
    scaled = scale(module)
    assert module.operation.verify()
    assert _types(module, "stablehlo.dot_general") == ["tensor<4x8xf32>"]  # dp=2, tp=4
    assert scaled.sizes == ((8192, 8), (4096, 4), (1024, 4))


# One op, and the types of its operands and result once they are small. Nothing is cut.
_OPS = {
    "slice_of_a_border": (
        "%r = stablehlo.slice %a [1:2048] $([{}] -> [{}]) : (tensor<2048xf32>) -> tensor<2047xf32>",
        "tensor<2048xf32>",
        "tensor<2047xf32>",
        "tensor<3xf32>",
    ),
    "slice_of_every_second": (
        "%r = stablehlo.slice %a [1:64:2] $([{}] -> [{}]) : (tensor<64xf32>) -> tensor<32xf32>",
        "tensor<64xf32>",
        "tensor<32xf32>",
        "tensor<4xf32>",
    ),
    "pad_with_interior": (
        "%z = stablehlo.constant $([]) dense<0.0> : tensor<f32>\n"
        "%r = stablehlo.pad %a, %z, low = [-1], high = [2], interior = [1] $([{}], [] -> [{}])"
        " : (tensor<64xf32>, tensor<f32>) -> tensor<128xf32>",
        "tensor<64xf32>",
        "tensor<128xf32>",
        "tensor<8xf32>",
    ),
    "reshape_of_two_dims": (
        "%r = stablehlo.reshape %a $([{}, {}] -> [{}, {}, {}])"
        " : (tensor<32x4096xf32>) -> tensor<32x64x64xf32>",
        "tensor<32x4096xf32>",
        "tensor<32x64x64xf32>",
        "tensor<4x4x4xf32>",
    ),
    "running_sum": (
        "%z = stablehlo.constant $([]) dense<0.0> : tensor<f32>\n"
        '%r = "stablehlo.reduce_window"(%a, %z) <{padding = dense<[[63, 0]]> : tensor<1x2xi64>,'
        " window_dimensions = array<i64: 64>}> ({\n"
        "^bb0(%p: tensor<f32>, %q: tensor<f32>):\n"
        "  %s = stablehlo.add %p, %q : tensor<f32>\n"
        "  stablehlo.return %s : tensor<f32>\n"
        "}) $([{}], [] -> [{}]) : (tensor<64xf32>, tensor<f32>) -> tensor<64xf32>",
        "tensor<64xf32>",
        "tensor<64xf32>",
        "tensor<4xf32>",
    ),
    "an_op_without_a_rule": (
        "%r = stablehlo.fft %a, type = FFT, length = [64] $([{}] -> [{}])"
        " : (tensor<64xcomplex<f32>>) -> tensor<64xcomplex<f32>>",
        "tensor<64xcomplex<f32>>",
        "tensor<64xcomplex<f32>>",
        "tensor<64xcomplex<f32>>",
    ),
}


@pytest.mark.parametrize("name", _OPS)
def test_attributes_follow_the_sizes(name):
    body, before, after, small = _OPS[name]
    rank = before.count("x") - before.count("complex")
    dims = ", ".join(["{}"] * rank)
    result = ", ".join(["{}"] * (after.count("x") - after.count("complex")))
    module = planned_module(f"""
func.func @main(%a: {before} $([{dims}])) -> ({after} $([{result}])) {{
  {body}
  return %r : {after}
}}
""")
    scale(module)
    assert module.operation.verify()
    function = functions_of(module)["main"]
    assert str(mlir.TypeAttr(function.attributes["function_type"]).value).endswith(f"-> {small}")


def test_a_strided_convolution_stays_one():
    module = planned_module("""
func.func @main(%x: tensor<8x224x224x3xf32> $([{dp}, {}, {}, {}]),
    %w: tensor<7x7x3x64xf32> $([{}, {}, {}, {tp}]))
    -> (tensor<8x112x112x64xf32> $([{dp}, {}, {}, {tp}])) {
  %y = "stablehlo.convolution"(%x, %w) <{batch_group_count = 1 : i64,
      dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>,
      feature_group_count = 1 : i64, padding = dense<[[2, 3], [2, 3]]> : tensor<2x2xi64>,
      window_strides = array<i64: 2, 2>}>
      $([{dp}, {}, {}, {}], [{}, {}, {}, {tp}] -> [{dp}, {}, {}, {tp}])
      : (tensor<8x224x224x3xf32>, tensor<7x7x3x64xf32>) -> tensor<8x112x112x64xf32>
  return %y : tensor<8x112x112x64xf32>
}
""")
    scale(module)
    assert module.operation.verify()
    # the kernel stays, images are twice as large as what comes out
    assert _types(module, "stablehlo.convolution") == ["tensor<4x4x4x8xf32>"]
    main = functions_of(module)["main"].regions[0].blocks[0]
    assert [str(argument.type) for argument in main.arguments] == [
        "tensor<4x8x8x3xf32>",
        "tensor<7x7x3x8xf32>",
    ]


def _layers(count: int) -> str:
    """So many times the same matmul and tanh."""
    lines = "\n".join(
        f"""
  %d{n} = stablehlo.dot_general %t{n}, %w, contracting_dims = [1] x [0]
      $([{{dp}}, {{}}], [{{}}, {{}}] -> [{{dp}}, {{}}])
      : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %t{n + 1} = stablehlo.tanh %d{n} $([{{dp}}, {{}}] -> [{{dp}}, {{}}]) : tensor<64x64xf32>"""
        for n in range(count)
    )
    return f"""
func.func @main(%t0: tensor<64x64xf32> $([{{dp}}, {{}}]), %w: tensor<64x64xf32> $([{{}}, {{}}]))
    -> (tensor<64x64xf32> $([{{dp}}, {{}}])) {{{lines}
  return %t{count} : tensor<64x64xf32>
}}
"""


def test_layers_that_repeat_are_looked_at_once():
    few, many = planned_module(_layers(30)), planned_module(_layers(60))
    looked_at = []
    for module in (few, many):
        with module.context:
            looked_at.append(keep_distinct(read_plan(module)).after)
        assert module.operation.verify()
    assert looked_at[0] == looked_at[1] < 40


def _halved(count: int) -> str:
    """So many times a matmul of half the size, and a sum with the first half of the rows."""
    lines = "".join(
        f"""
  %s{n} = stablehlo.slice %t{n} [0:{2 ** (count - n)}:2, 0:64] $([{{}}, {{tp}}] -> [{{}}, {{tp}}])
      : (tensor<{2 ** (count - n)}x64xf32>) -> tensor<{2 ** (count - n - 1)}x64xf32>
  %t{n + 1} = stablehlo.tanh %s{n} $([{{}}, {{tp}}] -> [{{}}, {{tp}}])
      : tensor<{2 ** (count - n - 1)}x64xf32>"""
        for n in range(count - 1)
    )
    return f"""
func.func @main(%t0: tensor<{2**count}x64xf32> $([{{}}, {{tp}}]))
    -> (tensor<2x64xf32> $([{{}}, {{tp}}])) {{{lines}
  return %t{count - 1} : tensor<2x64xf32>
}}
"""


@pytest.mark.parametrize(("by_size", "rows"), [(True, 4096), (False, 128)])
def test_of_ops_that_differ_by_size_one_is_enough_where_sizes_stay_large(by_size, rows):
    module = planned_module(_halved(12))
    with module.context:
        keep_distinct(read_plan(module), by_size=by_size)
    scaled = scale(module)
    assert module.operation.verify()
    assert scaled.sizes[0] == (4096, rows)


def test_a_part_takes_what_is_gone_as_arguments():
    module = planned_module(_layers(3))
    with module.context:
        keep_part(read_plan(module), {2})
        assert module.operation.verify()
        entry = entry_of(read_plan(module))
    assert [planned.op.name for planned in entry.body.ops] == [
        "stablehlo.dot_general",
        "func.return",
    ]
    assert [str(each.sharding) for each in entry.arguments] == ["[{}, {}]", "[{dp}, {}]"]
    assert [str(each.sharding) for each in entry.results] == ["[{dp}, {}]"]


def test_a_mesh_is_halved_along_its_longest_axes():
    assert str(smaller_mesh(Mesh.parse("dp=64,tp=16"), 64)) == "dp=8,tp=8"
    assert str(smaller_mesh(Mesh.parse("dp=3,tp=16"), 12)) == "dp=3,tp=4"
    assert str(smaller_mesh(Mesh.parse("dp=64"), 8, frozenset({"dp"}))) == "dp=64"


def test_a_plan_on_a_smaller_mesh_cuts_the_same_dims():
    module = planned_module(_MATMUL, mesh="dp=32,tp=64")
    with module.context:
        before, after = shrink(read_plan(module), 16)
        entry = entry_of(read_plan(module))
    assert (str(before), str(after)) == ("dp=32,tp=64", "dp=4,tp=4")
    assert [str(each.sharding) for each in entry.arguments] == ["[{dp}, {}]", "[{}, {tp}]"]
    assert mlir.StringAttr(module.operation.attributes[MESH]).value == "dp=4,tp=4"


def test_all_is_double_but_where_bits_are_looked_at():
    module = parse_bytes(
        b"""
func.func @main(%x: tensor<4xbf16>) -> tensor<4xui16> {
  %c = stablehlo.constant dense<[1.0, 2.0, 0.5, -3.0]> : tensor<4xbf16>
  %y = stablehlo.add %x, %c : tensor<4xbf16>
  %b = stablehlo.bitcast_convert %y : (tensor<4xbf16>) -> tensor<4xui16>
  return %b : tensor<4xui16>
}
""",
        new_context(),
    )
    widen(module)
    assert module.operation.verify()
    assert _types(module, "stablehlo.add") == ["tensor<4xf64>"]
    assert _types(module, "stablehlo.convert") == ["tensor<4xbf16>"]
    assert "dense<[1.000000e+00, 2.000000e+00, 5.000000e-01, -3.000000e+00]>" in str(module)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("dense<[1.0, 2.5, -3.0]> : tensor<3xbf16>", [1.0, 2.5]),
        ("dense<[0x7F80, 0.5, 0.0]> : tensor<3xbf16>", [np.inf, 0.5]),
        ("dense<[true, false, true]> : tensor<3xi1>", [True, False]),
        ("dense<[1, -2, 3]> : tensor<3xi4>", [1, -2]),
        ("dense<7> : tensor<3xui32>", 7),
    ],
)
def test_constants_of_every_type_are_cut(text, values):
    source = f"func.func @main() {{ %c = stablehlo.constant {text} return }}"
    module = parse_bytes(source.encode(), new_context())
    with module.context, mlir.Location.unknown():
        (op, *_) = functions_of(module)["main"].regions[0].blocks[0].operations
        cut_constant(op.operation, [2])
        found = Constant.of(op.operation)
    assert list(found.type.shape) == [2]
    assert np.array_equal(found.values.astype(np.asarray(values).dtype), values)


def test_a_counted_loop_runs_a_few_times():
    module = parse_bytes(
        b"""
func.func @main(%x: tensor<96xf32>) -> tensor<96xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<96xf32>
    cond {
      %n = stablehlo.constant dense<96> : tensor<i32>
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %last = stablehlo.constant dense<95> : tensor<i32>
      %at = stablehlo.subtract %last, %i : tensor<i32>
      %z = stablehlo.dynamic_slice %y, %at, sizes = [1]
          : (tensor<96xf32>, tensor<i32>) -> tensor<1xf32>
      %w = stablehlo.dynamic_update_slice %y, %z, %i
          : (tensor<96xf32>, tensor<1xf32>, tensor<i32>) -> tensor<96xf32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %w : tensor<i32>, tensor<96xf32>
    }
  return %r#1 : tensor<96xf32>
}
""",
        new_context(),
    )
    assert shorten_loops(module) == 1
    (loop,) = [op for op in operations_of(module.operation) if op.name == "stablehlo.while"]
    assert trip_count(loop, lambda value: value) == 8
    assert "dense<7> : tensor<i32>" in str(module)  # the last layer
    assert "dense<95>" not in str(module)


def test_roots_are_taken_of_magnitudes():
    module = planned_module("""
func.func @main(%x: tensor<64xf32> $([{dp}])) -> (tensor<64xf32> $([{dp}])) {
  %r = stablehlo.rsqrt %x $([{dp}] -> [{dp}]) : tensor<64xf32>
  return %r : tensor<64xf32>
}
""")
    with module.context:
        keep_finite(read_plan(module))
        assert module.operation.verify()
        names = [planned.op.name for planned in entry_of(read_plan(module)).body.ops]
    assert names == ["stablehlo.abs", "stablehlo.rsqrt", "func.return"]


def test_the_plain_form_says_nothing_of_a_plan():
    module = planned_module(_MATMUL)
    without_plan(module)
    assert "sharding" not in str(module)
    assert "autoshard" not in str(module)


def test_sums_of_products_are_exact_and_functions_are_not():
    module = planned_module(_layers(1))
    with module.context:
        plan = read_plan(module)
        exact = exact_values(plan)
        dot, tanh, _ = entry_of(plan).body.ops
    assert dot.op.results[0] in exact
    assert tanh.op.results[0] not in exact


def test_products_that_need_more_bits_than_there_are_are_not_exact():
    module = planned_module(_layers(12).replace("stablehlo.tanh", "stablehlo.negate"))
    with module.context:
        plan = read_plan(module)
        exact = exact_values(plan)
        last = entry_of(plan).body.ops[-2].op.results[0]
    assert last not in exact


def test_every_device_is_compared():
    right = np.array([1.0, 2.0])
    whole = (slice(0, 2),)
    found = compare(right, [(whole, right), (whole, np.array([1.0, 2.5]))], DOUBLE)
    assert (found.different, found.elements, found.error) == (1, 2, 0.5)


def test_what_no_device_holds_is_wrong():
    right = np.array([1.0, 2.0, 3.0])
    found = compare(right, [((slice(0, 2),), right[:2])], DOUBLE)
    assert (found.different, found.error) == (1, 0.0)


def test_large_integers_are_compared_as_they_are():
    right = np.array([2**62], np.int64)
    assert not compare(right, [((slice(0, 1),), right + 1)], None).is_same


def test_rounding_is_no_difference_unless_bits_count():
    right = np.array([1.0, 2.0])
    off = [((slice(0, 2),), np.array([1.0, 2.0 + 1e-12]))]
    assert compare(right, off, DOUBLE).is_same
    assert not compare(right, off, None).is_same


def test_no_number_is_one_only_where_the_other_is_none_too():
    right = np.array([np.nan, np.inf, 1.0])
    here = (slice(0, 3),)
    assert compare(right, [(here, right.copy())], DOUBLE).is_same
    found = compare(right, [(here, np.array([0.0, np.inf, np.nan]))], DOUBLE)
    assert found.different == 2
    assert found.error == np.inf
