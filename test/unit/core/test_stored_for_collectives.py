"""Memory that depends on the plan: what collectives make, and what a ring of matmuls reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.cluster import Cluster
from autoshard.cluster.chips import Constant
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.planned.summary import PlanSummary

MIB = 2**20
CUT = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
WHOLE = "{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}"


def planned(
    text: str,
    rows: int = 8192,
    cluster: str = "v5p:2x2x2",
    memory: float | None = None,
    without: str = "",
) -> PlanSummary:
    for name, value in (("CUT", CUT), ("WHOLE", WHOLE), ("ROWS", str(rows))):
        text = text.replace(name, value)
    module = parse_bytes(text.encode(), new_context(), "step")
    devices = Cluster.parse(cluster)
    if without:
        devices = devices.with_compiler(f"{devices.compiler}:without={without}")
    # What a ring copies takes no time, so that all that may be one is.
    chip = replace(devices.chip, memory_bandwidth=Constant(1e18, "a test"))
    if memory is not None:
        chip = replace(chip, memory_bytes=Constant(memory, "a test"))
    devices = replace(devices, chip=chip)
    return search_module(module, devices, RecursiveProgramming(mesh="x=8")).summary


LAYER = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx1024xbf16> CUT, %dy: tensor<ROWSx2048xbf16> CUT,
    %w: tensor<1024x2048xbf16> WHOLE)
    -> (tensor<ROWSx2048xbf16> CUT, tensor<1024x2048xbf16> CUT) {
  %h = stablehlo.tanh %x : tensor<ROWSx1024xbf16>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0]
      : (tensor<ROWSx1024xbf16>, tensor<1024x2048xbf16>) -> tensor<ROWSx2048xbf16>
  %dw = stablehlo.dot_general %h, %dy, contracting_dims = [0] x [0]
      : (tensor<ROWSx1024xbf16>, tensor<ROWSx2048xbf16>) -> tensor<1024x2048xbf16>
  return %y, %dw : tensor<ROWSx2048xbf16>, tensor<1024x2048xbf16>
}
"""
"""Both products compute ``h`` themselves, unless the second one is a ring."""


@pytest.mark.parametrize(
    ("rows", "is_ring"), [(8 * 16384, True), (8 * 576, True), (8 * 496, False), (8 * 256, False)]
)
def test_a_ring_of_matmuls_reads_stored_operands(rows: int, is_ring: bool) -> None:
    found = planned(LAYER, rows=rows)
    (kind,) = {each.kind for each in found.collectives}
    assert kind == ("reduce-scatter" if is_ring else "all-reduce")
    share = rows // 8
    arguments_and_results = share * (1024 + 2048 + 2048) * 2 + 4 * MIB + MIB // 2
    partial_sum = 4 * MIB
    # h from the first product to the second, and a copy of it in another layout
    stored = 2 * share * 1024 * 2 if is_ring else 0
    expected = arguments_and_results + partial_sum + stored
    assert found.peak_bytes_per_device == pytest.approx(expected)


GATHERED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx1024xf32> CUT, %w: tensor<1024x1024xf32> CUT)
    -> (tensor<ROWSx1024xf32> CUT) {
  %c = stablehlo.convert %w : (tensor<1024x1024xf32>) -> tensor<1024x1024xbf16>
  %b = stablehlo.convert %x : (tensor<ROWSx1024xf32>) -> tensor<ROWSx1024xbf16>
  %y = stablehlo.dot_general %b, %c, contracting_dims = [1] x [0]
      : (tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>) -> tensor<ROWSx1024xbf16>
  %z = stablehlo.dot_general %y, %c, contracting_dims = [1] x [1]
      : (tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>) -> tensor<ROWSx1024xf32>
  return %z : tensor<ROWSx1024xf32>
}
"""
"""Both products could convert the weight themselves, if it were not gathered in between."""


def test_a_gathered_value_is_stored_though_its_readers_could_compute_it() -> None:
    found = planned(GATHERED)
    (gather,) = found.collectives
    assert (gather.kind, gather.bytes) == ("all-gather", 7 / 8 * 2 * MIB)
    # x and z in float32, a shard of w; y and the gathered weight in bfloat16
    expected = (4 + 4 + 0.5 + 2 + 2) * MIB
    assert found.peak_bytes_per_device == pytest.approx(expected)


REPEATED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%v: tensor<ROWSx64xf32> CUT, %p: tensor<ROWSx64x32xf32> COLUMNS)
    -> (tensor<ROWSx64x32xf32> COLUMNS) {
  %b = stablehlo.broadcast_in_dim %v, dims = [0, 1]
      : (tensor<ROWSx64xf32>) -> tensor<ROWSx64x32xf32>
  %y = stablehlo.multiply %b, %p : tensor<ROWSx64x32xf32>
  %s = "stablehlo.sort"(%y) ({
    ^bb0(%one: tensor<f32>, %other: tensor<f32>):
      %less = stablehlo.compare LT, %one, %other : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
  }) {dimension = 0 : i64} : (tensor<ROWSx64x32xf32>) -> tensor<ROWSx64x32xf32>
  %z = stablehlo.multiply FACTOR, %s : tensor<ROWSx64x32xf32>
  return %z : tensor<ROWSx64x32xf32>
}
""".replace("COLUMNS", '{sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"x"}]>}')
"""What is repeated is in no memory: the kernels before and behind the sort repeat it."""


def test_what_is_gathered_for_several_kernels_is_there_until_the_last() -> None:
    twice, once = (
        planned(REPEATED.replace("FACTOR", factor)).peak_bytes_per_device for factor in ("%b", "%s")
    )
    assert twice - once == pytest.approx(8192 * 64 * 4)


UPDATED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<2048x1023xf32> CUT, %dy: tensor<2048x2047xf32> CUT,
    %m: tensor<1023x2047xf32> {tf.aliasing_output = 0 : i32},
    %n: tensor<1023x2047xf32> {tf.aliasing_output = 1 : i32})
    -> (tensor<1023x2047xf32>, tensor<1023x2047xf32>) {
  PRODUCT
  %a = stablehlo.add %m, %g : tensor<1023x2047xf32>
  %b = stablehlo.subtract %n, %g : tensor<1023x2047xf32>
  return %a, %b : tensor<1023x2047xf32>, tensor<1023x2047xf32>
}
"""
"""The gradient of a weight, and two states that it changes; of odd sizes, so that none is cut."""

TRANSPOSED = """%d = stablehlo.dot_general %dy, %x, contracting_dims = [0] x [0]
      : (tensor<2048x2047xf32>, tensor<2048x1023xf32>) -> tensor<2047x1023xf32>
  %g = stablehlo.transpose %d, dims = [1, 0] : (tensor<2047x1023xf32>) -> tensor<1023x2047xf32>"""
STRAIGHT = """%g = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
      : (tensor<2048x1023xf32>, tensor<2048x2047xf32>) -> tensor<1023x2047xf32>"""


@pytest.mark.parametrize("product", [TRANSPOSED, STRAIGHT])
def test_a_gradient_is_reduced_in_the_order_of_its_parameter(product: str) -> None:
    found = planned(UPDATED.replace("PRODUCT", product))
    assert {each.kind for each in found.collectives} == {"all-reduce"}
    batch, state = 256 * (1023 + 2047) * 4, 1023 * 2047 * 4
    expected = batch + 2 * state + state
    assert found.peak_bytes_per_device == pytest.approx(expected)


def backward(layers: int, width: int, barriers: bool = False) -> str:
    """The backward pass of ``layers`` products, last one first: gradients %d of weights %w.

    With a barrier before each layer, as if it were computed again.
    """
    w, x = f"tensor<{width}x{width}xbf16>", f"tensor<ROWSx{width}xbf16>"
    numbers = range(layers)
    made = "b" if barriers else "g"
    arguments = [f"%x{n}: {x} CUT, %w{n}: {w} WHOLE" for n in numbers]
    ops = [
        line
        for n in reversed(numbers)
        for line in (
            f"%b{n + 1} = stablehlo.optimization_barrier %g{n + 1} : {x}" if barriers else "",
            f"%d{n} = stablehlo.dot_general %x{n}, %{made}{n + 1}, contracting_dims = [0] x [0]"
            f" : ({x}, {x}) -> {w}",
            f"%g{n} = stablehlo.dot_general %{made}{n + 1}, %w{n}, contracting_dims = [1] x [1]"
            f" : ({x}, {w}) -> {x}",
        )
    ][:-1]
    return f"""
sdy.mesh @mesh = <["x"=8]>
func.func public @main({", ".join(arguments)}, %g{layers}: {x} CUT)
    -> ({", ".join([f"{w} WHOLE"] * layers)}) {{
  {chr(10).join(ops)}
  return {", ".join(f"%d{n}" for n in numbers)} : {", ".join([w] * layers)}
}}
"""


@pytest.mark.parametrize(("layers", "waiting"), [(4, 3), (6, 5)])
def test_what_gradients_are_computed_from_waits_for_the_sums_before(
    layers: int, waiting: int
) -> None:
    """Sums of 32 MiB are not joined, and each is hidden by the product of the next gradient.
    Compiled, two gradients wait in either case, of activations of 128 MiB each."""
    rows, width = 16384, 4096
    found = planned(backward(layers, width), rows=8 * rows, cluster="h100:8")
    assert {each.kind for each in found.collectives} == {"all-reduce"}
    share, weight = rows * width * 2, width * width * 2
    expected = (layers + 1 + waiting) * share + 2 * layers * weight
    assert found.peak_bytes_per_device == pytest.approx(expected)


def test_sums_are_late_where_gradients_without_one_are_not() -> None:
    text, rows = backward(4, 4096), 8 * 16384
    without = planned(text, rows, "h100:8", without="schedule.late_local_gradients")
    assert without.peak_bytes_per_device == planned(text, rows, "h100:8").peak_bytes_per_device


@pytest.mark.parametrize("layers", [4, 6])
def test_barriers_of_recomputed_layers_bound_what_waits_for_sums(layers: int) -> None:
    """The layer after the next begins with a barrier that passes on what is summed."""
    rows, width = 16384, 4096
    found = planned(backward(layers, width, barriers=True), rows=8 * rows, cluster="h100:8")
    share, weight = rows * width * 2, width * width * 2
    waiting = 3
    expected = (layers + 1 + waiting) * share + 2 * layers * weight
    assert found.peak_bytes_per_device == pytest.approx(expected)


@pytest.mark.parametrize(("columns", "padded"), [(50265, True), (50272, False)])
def test_operands_of_a_product_in_parts_are_padded(columns: int, padded: bool) -> None:
    """512 x 1,024 elements are added up in 4 parts, of a multiple of 8 columns each."""
    text = f"""
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%g: tensor<ROWSx{columns}xbf16> CUT, %w: tensor<1024x{columns}xbf16> WHOLE)
    -> (tensor<ROWSx1024xbf16> CUT) {{
  %x = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1]
      : (tensor<ROWSx{columns}xbf16>, tensor<1024x{columns}xbf16>) -> tensor<ROWSx1024xbf16>
  return %x : tensor<ROWSx1024xbf16>
}}
"""
    operands = (512 + 1024) * columns * 2
    expected = operands + 512 * 1024 * 2 + (operands if padded else 0)
    found = planned(text, rows=8 * 512, cluster="h100:8")
    assert found.peak_bytes_per_device == pytest.approx(expected)


def scattered(layers: int, width: int) -> str:
    """As ``backward``, with gradients that each device keeps a part of."""
    arguments, gradients = backward(layers, width).split("->", 1)
    return f"{arguments}->{gradients.replace('WHOLE', 'CUT', layers)}"


@pytest.mark.parametrize(("cluster", "gathered"), [("v5p:2x2x2", 1), ("v5e:2x4", 2)])
def test_what_is_gathered_beside_other_ops_is_there_from_the_product_before(
    cluster: str, gathered: int
) -> None:
    """Two gathered matrices at once where the compiler hides gathers, of three of a chain."""
    rows, width, layers = 16384, 4096, 3
    text = scattered(layers, width).replace("WHOLE", "CUT")
    found = planned(text, rows=8 * rows, cluster=cluster)
    assert {each.kind for each in found.collectives} == {"all-gather", "reduce-scatter"}
    share, weight = rows * width * 2, width * width * 2
    expected = (layers + 1 + 2) * share + 2 * layers * weight / 8 + gathered * weight
    assert found.peak_bytes_per_device == pytest.approx(expected)


@pytest.mark.parametrize("layers", [4, 5, 6, 8])
def test_of_rings_only_three_do_not_wait_for_the_end(layers: int) -> None:
    """Five transfers run at once, and a ring needs two: the operands of the others live until
    all but rings has run."""
    rows, width = 16384, 4096
    found = planned(scattered(layers, width), rows=8 * rows)
    assert {each.kind for each in found.collectives} == {"reduce-scatter"}
    share, weight = rows * width * 2, width * width * 2
    late = layers - 3
    live = max(2, late)
    expected = (layers + 1 + live) * share + layers * (weight + weight / 8) + weight
    assert found.peak_bytes_per_device == pytest.approx(expected)


def test_operands_that_late_rings_cannot_slice_are_copied() -> None:
    """Three of 6 rings are late; they read 3 gradients, two of which others read as well. Parts of
    4,032 / 8 columns are no whole tiles of 128."""
    rows, width = 16384, 4032
    found = planned(scattered(6, width), rows=8 * rows)
    share, weight = rows * width * 2, width * width * 2
    expected = (6 + 1 + 3 + 2) * share + 6 * (weight + weight / 8)
    assert found.peak_bytes_per_device == pytest.approx(expected)


@pytest.mark.parametrize(("cluster", "live", "gathered"), [("v5p:2x2x2", 4, 1), ("v5e:2x4", 2, 2)])
def test_gathers_that_are_hidden_keep_rings_in_order(
    cluster: str, live: int, gathered: int
) -> None:
    """A ring comes before the gathers that the backward pass waits for; the next matrix is
    gathered beside it."""
    rows, width, layers = 16384, 4096, 7
    text = scattered(layers, width).replace("WHOLE", "CUT")
    found = planned(text, rows=8 * rows, cluster=cluster)
    assert {each.kind for each in found.collectives} == {"all-gather", "reduce-scatter"}
    share, weight = rows * width * 2, width * width * 2
    expected = (layers + 1 + live) * share + 2 * layers * weight / 8 + gathered * weight
    assert found.peak_bytes_per_device == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "cluster", "share", "mib"),
    [(backward(6, 4096), "h100:8", 0.9, 2000), (scattered(8, 4096), "v5p:2x2x2", 0.9, 2200)],
)
def test_sums_wait_as_far_as_the_compiler_lets_them(
    text: str, cluster: str, share: float, mib: int
) -> None:
    """The compilers take 1,952 and 2,112 MiB where there is memory."""
    found = planned(text, rows=8 * 16384, cluster=cluster, memory=mib * MIB)
    assert found.peak_bytes_per_device == pytest.approx(share * mib * MIB)


HIDDEN = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx512xbf16> CUT, %dy: tensor<ROWSx512xbf16> CUT,
    %w1: tensor<512x4096xbf16> WHOLE, %w2: tensor<4096x512xbf16> WHOLE)
    -> (tensor<512x4096xbf16> WHOLE, tensor<4096x512xbf16> WHOLE) {
  %h = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0]
      : (tensor<ROWSx512xbf16>, tensor<512x4096xbf16>) -> tensor<ROWSx4096xbf16>
  %d2 = stablehlo.dot_general %h, %dy, contracting_dims = [0] x [0]
      : (tensor<ROWSx4096xbf16>, tensor<ROWSx512xbf16>) -> tensor<4096x512xbf16>
  %dh = stablehlo.dot_general %dy, %w2, contracting_dims = [1] x [1]
      : (tensor<ROWSx512xbf16>, tensor<4096x512xbf16>) -> tensor<ROWSx4096xbf16>
  %d1 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0]
      : (tensor<ROWSx512xbf16>, tensor<ROWSx4096xbf16>) -> tensor<512x4096xbf16>
  return %d1, %d2 : tensor<512x4096xbf16>, tensor<4096x512xbf16>
}
"""


def test_a_gradient_is_computed_behind_the_next_product_where_sums_are_late() -> None:
    """Small sums are joined and need no product to hide them."""
    rows = 16384
    found = planned(HIDDEN, rows=8 * rows, cluster="h100:8")
    assert {each.kind for each in found.collectives} == {"all-reduce"}
    x, h, weight = rows * 512 * 2, rows * 4096 * 2, 512 * 4096 * 2
    assert found.peak_bytes_per_device == pytest.approx(2 * x + 4 * weight + 2 * h)


def test_a_scattered_sum_that_is_longer_than_what_hides_it_begins_before() -> None:
    """What is scattered is kept beside the product that hides it, whose operands are padded."""
    rows, features, columns = 512, 1024, 50265
    x, y = f"tensor<ROWSx{features}xbf16>", f"tensor<ROWSx{columns}xbf16>"
    w = f"tensor<{features}x{columns}xbf16>"
    text = f"""
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: {x} CUT, %w: {w} WHOLE, %dy: {y} CUT) -> ({w} CUT, {x} CUT) {{
  %d = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0] : ({x}, {y}) -> {w}
  %g = stablehlo.dot_general %dy, %w, contracting_dims = [1] x [1] : ({y}, {w}) -> {x}
  return %d, %g : {w}, {x}
}}
"""
    found = planned(text, rows=8 * rows, cluster="h100:8")
    assert {each.kind for each in found.collectives} == {"reduce-scatter"}
    share, weight, logits = rows * features * 2, features * columns * 2, rows * columns * 2
    padded = weight + logits
    expected = 2 * share + weight + logits + weight / 8 + weight + padded
    assert found.peak_bytes_per_device == pytest.approx(expected)


def test_a_gradient_outside_of_a_loop_waits_for_all_of_it() -> None:
    """The loop is one op to the schedule: what the gradient is computed from lives beside it."""
    rows, width = 16384, 4096
    text = f"""
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx{width}xbf16> CUT, %w: tensor<{width}x{width}xbf16> WHOLE,
    %dy: tensor<ROWSx{width}xbf16> CUT)
    -> (tensor<{width}x{width}xbf16> WHOLE, tensor<ROWSx{width}xbf16> CUT) {{
  %g = stablehlo.dot_general %dy, %w, contracting_dims = [1] x [1]
      : (tensor<ROWSx{width}xbf16>, tensor<{width}x{width}xbf16>) -> tensor<ROWSx{width}xbf16>
  %d = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0]
      : (tensor<ROWSx{width}xbf16>, tensor<ROWSx{width}xbf16>) -> tensor<{width}x{width}xbf16>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %h = %dy) : tensor<i32>, tensor<ROWSx{width}xbf16>
    cond {{
      %more = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %n = stablehlo.add %i, %one : tensor<i32>
      %m = stablehlo.dot_general %h, %w, contracting_dims = [1] x [1]
          : (tensor<ROWSx{width}xbf16>, tensor<{width}x{width}xbf16>) -> tensor<ROWSx{width}xbf16>
      stablehlo.return %n, %m : tensor<i32>, tensor<ROWSx{width}xbf16>
    }}
  return %d, %end#1 : tensor<{width}x{width}xbf16>, tensor<ROWSx{width}xbf16>
}}
"""
    late = planned(text, rows=8 * rows, cluster="h100:8").peak_bytes_per_device
    share, weight = rows * width * 2, width * width * 2
    # x and dy, what the loop carries and its next value, g; w and its gradient.
    assert late == pytest.approx(5 * share + 2 * weight)


FILLED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: ROWS CUT, %w: MATRIX WHOLE, %v: MATRIX COLUMNS,
    %q: tensor<2048x64xbf16> QUERIES, %i: tensor<8x1xi32>) -> (tensor<4096xbf16>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (ROWS, MATRIX) -> ROWS
  %g = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] : (ROWS, MATRIX) -> ROWS
  %k = stablehlo.dot_general %q, %g, contracting_dims = [0] x [0]
      : (tensor<2048x64xbf16>, ROWS) -> tensor<64x4096xbf16>
  %z = stablehlo.constant dense<0.0> : tensor<bf16>
  %r = stablehlo.reduce(%k init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<64x4096xbf16>, tensor<bf16>) -> tensor<4096xbf16>
  %u = stablehlo.broadcast_in_dim %r, dims = [1] : (tensor<4096xbf16>) -> tensor<8x4096xbf16>
  %zeros = stablehlo.constant dense<0.0> : tensor<65536x4096xbf16>
  %s = "stablehlo.scatter"(%zeros, %i, %u) ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %sum = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %sum : tensor<bf16>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
      : (tensor<65536x4096xbf16>, tensor<8x1xi32>, tensor<8x4096xbf16>) -> tensor<65536x4096xbf16>
  %t = stablehlo.reduce(%s init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<65536x4096xbf16>, tensor<bf16>) -> tensor<4096xbf16>
  return %t : tensor<4096xbf16>
}
"""
FILLED = FILLED.replace("MATRIX", "tensor<4096x4096xbf16>")
FILLED = FILLED.replace("COLUMNS", '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}')
FILLED = FILLED.replace("ROWS", "tensor<2048x4096xbf16>").replace("QUERIES", "WHOLE")
"""Products, and a sum over indices that is reduced in turn."""


def test_zeros_are_written_while_a_collective_is_waited_for() -> None:
    """The second product waits for all rows of the first: zeros are there from then on."""
    found = planned(FILLED, cluster="h100:8")
    assert found.collectives[0].kind == "all-gather"
    row = 4096 * 2
    held = (2048 / 8 + 4096 + 4096 / 8) * row + 2048 * 64 * 2
    rows = (2048 / 8 + 2048 + 2048 / 8) * row
    zeros = 65536 / 8 * row
    assert found.peak_bytes_per_device == pytest.approx(held + rows + zeros, rel=1e-4)


ATTENTION = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %q: ROW CUT, %k: ROW CUT, %v: ROW CUT, %w: tensor<64x64xbf16> WEIGHT)
    -> (ROW CUT, ROW CUT, tensor<64x64xbf16> WEIGHT) {
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
      : (ROW, ROW) -> tensor<8x2048x2048xf32>
  %e = stablehlo.exponential %s : tensor<8x2048x2048xf32>
  %p = stablehlo.convert %e : (tensor<8x2048x2048xf32>) -> SCORES
  %y = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (SCORES, ROW) -> ROW
  %dy = stablehlo.dot_general %y, %w, contracting_dims = [2] x [0]
      : (ROW, tensor<64x64xbf16>) -> ROW
  %dp = stablehlo.dot_general %dy, %v, batching_dims = [0] x [0], contracting_dims = [2] x [2]
      : (ROW, ROW) -> tensor<8x2048x2048xf32>
  %dv = stablehlo.dot_general %p, %dy, batching_dims = [0] x [0], contracting_dims = [1] x [1]
      : (SCORES, ROW) -> ROW
  %t = stablehlo.multiply %dp, %s : tensor<8x2048x2048xf32>
  %ds = stablehlo.convert %t : (tensor<8x2048x2048xf32>) -> SCORES
  %dq = stablehlo.dot_general %ds, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (SCORES, ROW) -> ROW
  %dk = stablehlo.dot_general %ds, %q, batching_dims = [0] x [0], contracting_dims = [1] x [1]
      : (SCORES, ROW) -> ROW
  %dw = stablehlo.dot_general %dv, %v, contracting_dims = [0, 1] x [0, 1]
      : (ROW, ROW) -> tensor<64x64xbf16>
  %dx = stablehlo.dot_general %dq, %w, contracting_dims = [2] x [1]
      : (ROW, tensor<64x64xbf16>) -> ROW
  return %dx, %dk, %dw : ROW, ROW, tensor<64x64xbf16>
}
"""
ATTENTION = ATTENTION.replace("SCORES", "tensor<8x2048x2048xbf16>")
ATTENTION = ATTENTION.replace("ROW CUT", f"ROW {CUT.replace('{}]', '{}, {}]')}")
ATTENTION = ATTENTION.replace("ROW", "tensor<8x2048x64xbf16>")


@pytest.mark.parametrize(("weight", "waits"), [("WHOLE", True), ("CUT", False)])
def test_the_product_with_transposed_probabilities_is_late_where_no_gathers_are_hidden(
    weight: str, waits: bool
) -> None:
    """In the order of the program it has run when the gradient of the scores is made."""
    found = planned(ATTENTION.replace("WEIGHT", weight), cluster="h100:8")
    scores, gradient, made, probabilities = 16 * MIB, 16 * MIB, 8 * MIB, 8 * MIB
    expected = scores + gradient + made + waits * probabilities
    rows = 10 * MIB // 4  # q, k and v, what is made of them, and their gradients
    assert expected < found.peak_bytes_per_device < expected + rows


CONVOLUTION = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx64x64x32xf32> CUT, %w: tensor<3x3x32x32xf32>)
    -> (tensor<ROWSx32x32x32xf32> CUT) {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [2, 2], pad = PADDING} {batch_group_count = 1 : i64,
      feature_group_count = 1 : i64}
      : (tensor<ROWSx64x64x32xf32>, tensor<3x3x32x32xf32>) -> tensor<ROWSx32x32x32xf32>
  return %y : tensor<ROWSx32x32x32xf32>
}
""".replace("CUT", '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}, {}]>}')


@pytest.mark.parametrize(
    ("cluster", "padding", "copied_rows", "tiled"),
    [
        ("h100:8", "[[0, 1], [0, 1]]", 65, 1),
        ("h100:8", "[[1, 0], [0, 1]]", 65, 1),
        ("v5p:2x2x2", "[[0, 1], [0, 1]]", 0, 128 // 32),
    ],
)
def test_the_input_of_a_convolution_is_copied_where_one_side_is_padded_more(
    cluster: str, padding: str, copied_rows: int, tiled: int
) -> None:
    found = planned(CONVOLUTION.replace("PADDING", padding), rows=64, cluster=cluster)
    image, result, copy = (rows**2 * 32 * 4 for rows in (64, 32, copied_rows))
    kernel = 9 * 32 * 32 * 4
    made = tiled * result + copy
    assert found.peak_bytes_per_device == pytest.approx(8 * (image + made) + kernel)
