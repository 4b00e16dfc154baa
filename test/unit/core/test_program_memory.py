"""Work of ops, and which values take memory when: small programs, answers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiler_answers import GPU, TPU

from autoshard import _core
from autoshard._core import Arithmetic, Expense, Function, Work
from autoshard.importer import ImportedProgram, import_program
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.import_strategies import ImportStrategies
from autoshard.passes.sharding_propagation import populate_rules
from autoshard.sharding import Mesh

MESH = Mesh.parse("dp=2,tp=4")
KIB = 1024
EMPTY = (0, 0)


@dataclass
class Read:
    """A module, its program and what the core says about its memory."""

    module: mlir.Module
    imported: ImportedProgram
    compiler: Mapping[str, float] = field(default_factory=lambda: TPU)

    def __post_init__(self) -> None:
        self.program = self.imported.program
        found = _core.memory_tables(self.program, compiler=dict(self.compiler))
        self.live_ranges, self.points = found.live_ranges, found.points
        self.reads, self.writes, self.fused = found.reads, found.writes, found.fused
        self.launched = found.launched
        self.packs = found.packs
        self.names = [op.name.partition(".")[2] for op in self.imported.core_ops]

    def op(self, name: str, occurrence: int = 0) -> int:
        """Index of an op of the core."""
        return [i for i, found in enumerate(self.names) if found == name][occurrence]

    def life(self, name: str, occurrence: int = 0, result: int = 0) -> tuple[int, int]:
        """Live range of the result of an op, of any op."""
        found = [ids for op, ids in self.imported.result_values if op.name == f"stablehlo.{name}"]
        return self.live_ranges[found[occurrence][result]]

    def argument(self, index: int) -> tuple[int, int]:
        return self.live_ranges[self.program.arguments[index].value]

    def peak(
        self, cuts: dict[int, list[list[int]]] | None = None, transients: Any = ()
    ) -> tuple[float, int, list[tuple[int, float]]]:
        """Peak with the arguments ``cuts`` cut and all else whole."""
        shardings: list[list[list[int]]] = [[] for _ in range(self.program.num_values)]
        for index, dims in (cuts or {}).items():
            shardings[self.program.arguments[index].value] = dims
        found = _core.peak(
            self.program,
            shardings,
            list(transients),
            compiler=dict(self.compiler),
        )
        return found.bytes, found.point, found.live


def read_text(text: str, compiler: Mapping[str, float] = TPU) -> Read:
    context = new_context()
    module = parse_bytes(text.encode(), context, "test.mlir")
    with context:
        module.operation.attributes["autoshard.mesh"] = mlir.StringAttr.get(str(MESH))
    ImportStrategies().run(module)
    populate_rules(module)
    with context:
        return Read(module, import_program(module, MESH), compiler)


def read(
    function: Callable[..., Any],
    *shapes: Any,
    donate: tuple[int, ...] = (),
    compiler: Mapping[str, float] = TPU,
) -> Read:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function, donate_argnums=donate).lower(*arguments).as_text()
    return read_text(text, compiler)


# Work of single ops


def work(function: Callable[..., Any], *arguments: Any, op: str = "") -> _core.Rule:
    """Rule of the last op of the core in ``function``, or of the last one called ``op``."""
    found = read_text(jax.jit(function).lower(*arguments).as_text())
    index = found.op(op, -1) if op else -1
    return found.program.rule_of(index % found.program.num_ops)


def rules(found: Read) -> list[_core.Rule]:
    """Rules of all ops."""
    return [found.program.rule_of(op) for op in range(found.program.num_ops)]


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_matmul_is_two_operations_for_each_product() -> None:
    found = work(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), f32(2, 8, 16), f32(2, 16, 4))
    assert (found.work, found.flops) == (Work.MATMUL, 2 * 2 * 8 * 16 * 4)


@pytest.mark.parametrize(
    ("groups", "stride", "flops"),
    [
        (1, 1, 2 * (2 * 8 * 8 * 6) * (3 * 3 * 4)),
        (2, 1, 2 * (2 * 8 * 8 * 6) * (3 * 3 * 2)),
        (1, 2, 2 * (2 * 4 * 4 * 6) * (3 * 3 * 4)),
    ],
)
def test_a_convolution_counts_kernel_and_channels_of_a_group(
    groups: int, stride: int, flops: float
) -> None:
    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", feature_group_count=groups
        )

    found = work(convolve, f32(2, 4, 8, 8), f32(6, 4 // groups, 3, 3))
    assert (found.work, found.flops) == (Work.MATMUL, flops)


def test_zeros_of_a_dilated_convolution_are_not_counted() -> None:
    def forward(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME")

    def backward(x: Any, w: Any) -> Any:
        return jax.grad(lambda x: (forward(x, w) ** 2).sum())(x)

    x, w = f32(2, 4, 8, 8), f32(6, 4, 3, 3)
    assert work(backward, x, w, op="convolution").flops == work(forward, x, w).flops


@pytest.mark.parametrize(
    ("function", "flops", "named", "is_cheap"),
    [
        (jnp.add, 32, Function.NONE, True),
        (jnp.divide, 32, Function.DIVISION, True),
        (lambda x, y: jnp.exp(x + y), 32, Function.EXPONENTIAL, False),
        (lambda x, y: jnp.tanh(x + y), 32, Function.TANH, False),
        (lambda x, y: jnp.power(x + y, y), 32, Function.POWER, False),
        (lambda x, y: jax.lax.complex(x, y) * 2j, 4 * 32, Function.NONE, True),
    ],
    ids=["add", "divide", "exponential", "tanh", "power", "complex product"],
)
def test_elementwise_ops_say_which_function_they_are(
    function: Callable[..., Any], flops: float, named: Function, is_cheap: bool
) -> None:
    found = work(function, f32(4, 8), f32(4, 8))
    assert (found.work, found.flops) == (Work.ELEMENTWISE, flops)
    assert (found.function, found.is_cheap) == (named, is_cheap)


@pytest.mark.parametrize(
    ("dtype", "arithmetic"),
    [
        (jnp.float32, Arithmetic.F32),
        (jnp.bfloat16, Arithmetic.F16),
        (jnp.float16, Arithmetic.F16),
        (jnp.float8_e4m3fn, Arithmetic.F8),
        (jnp.int8, Arithmetic.I8),
        (jnp.int16, Arithmetic.F32),
        (jnp.int32, Arithmetic.F32),
        (jnp.bool_, Arithmetic.I8),
        (jnp.complex64, Arithmetic.F32),
    ],
)
def test_arithmetic_is_told_by_the_element_type_not_by_its_bits(
    dtype: Any, arithmetic: Arithmetic
) -> None:
    assert work(lambda x: x[::-1], of(dtype, 8)).arithmetic == arithmetic


def test_mixed_operands_run_at_the_rate_of_the_widest() -> None:
    def matmul(x: Any, y: Any) -> Any:
        return jax.lax.dot(x, y, preferred_element_type=jnp.float32)

    assert work(matmul, of(jnp.bfloat16, 4, 4), of(jnp.bfloat16, 4, 4)).arithmetic == Arithmetic.F16
    assert work(matmul, of(jnp.bfloat16, 4, 4), f32(4, 4)).arithmetic == Arithmetic.F32


def test_equal_sizes_of_other_types_are_other_rules() -> None:
    def both(x: Any, y: Any) -> Any:
        return x[::-1], y[::-1]

    found = read_text(jax.jit(both).lower(of(jnp.int8, 8), of(jnp.float8_e5m2, 8)).as_text())
    assert [rule.arithmetic for rule in rules(found)] == [Arithmetic.I8, Arithmetic.F8]


def test_other_windows_of_equal_shapes_are_other_rules() -> None:
    def windows(x: Any) -> Any:
        wide = jax.lax.reduce_window(x, 0.0, jax.lax.add, (5,), (1,), "SAME")
        return wide, jax.lax.reduce_window(x, 0.0, jax.lax.add, (3,), (1,), "SAME")

    found = read(windows, (64,))
    assert [rule.flops for rule in rules(found)] == [5 * 64, 3 * 64]


def pool(x: Any) -> Any:
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 3), (1, 1), "SAME")


@pytest.mark.parametrize(
    ("function", "kind", "flops"),
    [
        (lambda x: x.sum(0), Work.REDUCE, 64),
        (lambda x: jnp.sort(x, 1), Work.OTHER, 64 * 4),
        (lambda x: jax.lax.top_k(x, 2)[0], Work.OTHER, 64 * 4),
        (lambda x: jnp.fft.fft(x.astype(jnp.complex64)), Work.OTHER, 5 * 64 * 4),
        (pool, Work.REDUCE, 64 * 6),
        (lambda x: x.T, Work.VIEW, 0),
    ],
    ids=["sum", "sort", "top k", "fft", "pool", "transpose"],
)
def test_work_of_other_ops(function: Callable[..., Any], kind: int, flops: float) -> None:
    found = work(function, f32(4, 16))
    assert (found.work, found.flops) == (kind, flops)


def test_a_gather_touches_the_rows_that_it_returns() -> None:
    found = work(lambda x, i: x[i], f32(1024, 8), of(jnp.int32, 3), op="gather")
    assert (found.work, found.operand_bytes) == (Work.INDEXED, [3 * 8 * 4, -1])
    assert found.result_bytes == []


def test_a_dynamic_slice_touches_what_it_returns() -> None:
    found = work(lambda x, i: jax.lax.dynamic_slice(x, (i, 0), (2, 8)), f32(64, 8), of(jnp.int32))
    assert found.operand_bytes == [2 * 8 * 4, -1, -1]


def test_updates_write_in_place_what_they_change() -> None:
    slice_ = work(
        lambda x, y, i: jax.lax.dynamic_update_slice(x, y, (i, 0)),
        *(f32(64, 8), f32(2, 8), of(jnp.int32)),
    )
    assert (slice_.operand_bytes, slice_.result_bytes) == ([0, -1, -1, -1], [64])
    assert slice_.in_place_operand == 0
    scatter = work(lambda x, y, i: x.at[i].add(y), f32(64, 8), f32(3, 8), of(jnp.int32, 3))
    assert (scatter.operand_bytes, scatter.result_bytes) == ([96, -1, -1], [96])
    assert scatter.in_place_operand == 0


def test_one_element_of_each_row_is_a_masked_sum_and_a_select() -> None:
    def pick(x: Any, i: Any) -> Any:
        return jnp.take_along_axis(x, i, -1, mode="promise_in_bounds")

    x, i = f32(4, 16), of(jnp.int32, 4, 1)
    assert work(pick, x, i, op="gather").work == Work.REDUCE
    back = jax.grad(lambda x, i: pick(x, i).sum())
    assert work(back, x, i, op="scatter").work == Work.ELEMENTWISE


@pytest.mark.parametrize(("kernels", "is_stored"), [(3, False), (4, True)])
@pytest.mark.parametrize("compiler", [GPU, TPU], ids=["gpu", "tpu"])
def test_a_cast_of_an_argument_is_stored_where_many_kernels_would_read_it_wider(
    compiler: Mapping[str, float], kernels: int, is_stored: bool
) -> None:
    """n kernels read twice the bytes each, or once, behind one that reads them and writes it."""

    def function(x: Any) -> Any:
        narrow = x.astype(jnp.bfloat16)
        return [jnp.max(narrow, axes) for axes in (0, 1, 2, (0, 1))[:kernels]]

    found = read(function, (8, 8, 8), compiler=compiler)
    assert (found.life("convert") != EMPTY) == is_stored


# Loops, arguments and results


def test_a_scan_is_a_loop_with_what_it_carries_and_yields() -> None:
    found = read(
        lambda x, w: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0],
        *((8, 8), (5, 8, 8)),
    )
    [loop] = found.program.loops
    carried, yielded = loop.carried, loop.yielded
    assert (loop.trips, loop.last_op - loop.first_op) == (5, len(found.imported.core_ops))
    kept = [c for c, y in zip(carried, yielded, strict=True) if y == -1]
    changed = [(c, y) for c, y in zip(carried, yielded, strict=True) if y != -1]
    assert len(kept) == len(changed) == 1


def test_nested_loops_come_inside_out_with_their_own_trips() -> None:
    def inner(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x)

    found = read(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: inner(x) + 1, x), (8,))
    assert [loop.trips for loop in found.program.loops] == [3, 5]
    inside, outside = found.program.loops
    assert outside.first_op <= inside.first_op < inside.last_op <= outside.last_op


@pytest.mark.parametrize("attribute", ["jax.buffer_donor = true", "tf.aliasing_output = 0 : i32"])
def test_donated_arguments_are_known_by_either_attribute(attribute: str) -> None:
    found = read_text(f"""
func.func @main(%a: tensor<8xf32> {{{attribute}}}, %b: tensor<8xf32>, %i: tensor<i32>)
    -> (tensor<8xf32>, tensor<i32>) {{
  %0 = stablehlo.sine %a : tensor<8xf32>
  return %0, %i : tensor<8xf32>, tensor<i32>
}}
""")
    assert [one.is_donated for one in found.program.arguments] == [True, False, False]
    assert found.program.arguments[2].value == -1
    assert found.program.results[1] == -1
    assert found.peak()[0] == 2 * 8 * 4


# Lifetimes


def test_a_chain_of_matmuls_holds_two_links_at_a_time() -> None:
    found = read(lambda x, a, b, c: ((x @ a) @ b) @ c, *((32, 32),) * 4)
    assert found.life("dot_general", 0) == (0, 2)
    assert found.life("dot_general", 1) == (1, 3)
    assert found.life("dot_general", 2) == (0, 3)  # a result
    assert found.argument(0) == (0, 3)
    assert found.peak()[0] == (4 + 1 + 2) * 4 * KIB


def test_a_fused_chain_is_not_stored_and_its_input_lives_until_it_runs() -> None:
    found = read(lambda x, a, b: jnp.exp(jnp.sin(x @ a) * 2) @ b, *((32, 32),) * 3)
    second = found.op("dot_general", 1)
    assert found.life("dot_general", 0) == (0, found.points[second] + 1)
    assert found.life("sine") == found.life("multiply") == found.life("exponential") == EMPTY
    # Read once, in the fusion, by its first op.
    assert found.reads[found.op("sine")] == [1]
    assert found.reads[second] == [0, 1]
    assert found.points[found.op("sine")] == found.points[second]


def test_elementwise_work_on_a_product_is_done_before_it_is_stored() -> None:
    found = read(lambda x, a, b: (jnp.sin(x @ a) + x).sum(0) * (x @ b).sum(0), *((32, 32),) * 3)
    # A sum has its own fusion: the product is stored.
    assert found.life("dot_general", 0) != EMPTY
    found = read(lambda x, a: jnp.sin(x @ a) + x, *((32, 32),) * 2)
    assert found.life("dot_general") == found.life("sine") == EMPTY
    assert found.writes[found.op("add")] == [True]
    assert found.points[found.op("dot_general")] == found.points[found.op("add")]


def test_what_two_fusions_read_is_computed_twice_if_that_reads_no_more() -> None:
    def twice(x: Any, a: Any) -> Any:
        y = jnp.sin(x @ a)
        return y @ a, y.T @ a

    found = read(twice, (32, 32), (32, 32))
    assert found.life("sine") == EMPTY
    last = found.points[found.op("dot_general", 2)]
    assert found.life("dot_general", 0) == (0, last + 1)


def test_what_two_fusions_read_is_stored_if_computing_it_reads_more() -> None:
    def twice(x: Any, a: Any) -> Any:
        y = x @ a + a @ x
        return y @ a, y.T @ a

    found = read(twice, (32, 32), (32, 32))
    add, last = found.op("add"), found.op("dot_general", 3)
    assert found.life("add") == (found.points[add], found.points[last] + 1)


@pytest.mark.parametrize(
    ("made", "is_stored"),
    [
        (lambda x, a: jnp.exp(x @ a), False),
        (lambda x, a: jnp.tanh(x @ a), True),
        (lambda x, a: x @ a + a @ x, False),
        (lambda x, a: (x @ a + a @ x) * (x.T @ a + x.T @ x), True),
        (lambda x, a: sum((jnp.max(x + k, 0) for k in range(9)), x @ a), False),
    ],
    ids=["exponential", "tanh", "sum of two", "sums of four", "sum with nine rows"],
)
def test_kernels_compute_again_what_is_cheap_and_reads_less_than_storing_it(
    made: Callable[..., Any], is_stored: bool
) -> None:
    """Two kernels may read three times the bytes of a value: it is written once and read twice."""

    def twice(x: Any, a: Any) -> Any:
        y = made(x, a)
        return jnp.sort(jnp.abs(y)).sum() + jnp.sort(jnp.square(y)).sum()

    found = read(twice, (32, 32), (32, 32), compiler=GPU)
    name = next(name for name in ("exponential", "tanh", "multiply", "add") if name in found.names)
    assert (found.life(name) != EMPTY) == is_stored


@pytest.mark.parametrize(("rows", "is_stored"), [(16, False), (24, False), (30, True)])
def test_a_kernel_of_a_slice_computes_no_more_than_that(rows: int, is_stored: bool) -> None:
    """Two kernels read ``rows`` of 32 rows of a value that is computed from four as large."""

    def parts(x: Any, a: Any) -> Any:
        y = (x @ a + a @ x) * (x.T @ a + x.T @ x)
        return jnp.sort(jnp.abs(y[:rows])).sum() + jnp.sort(jnp.square(y[-rows:])).sum()

    found = read(parts, (32, 32), (32, 32), compiler=GPU)
    assert (found.life("multiply") != EMPTY) == is_stored


def test_a_kernel_reads_no_more_values_than_it_has_room_for() -> None:
    def added(*values: Any) -> Any:
        return jnp.sort(sum(jnp.sort(one) for one in values[1:]) + values[0])

    shapes = [(64, 64)] * 9
    stored = {}
    for most in (5, 96):
        found = read(added, *shapes, compiler={**GPU, "fusion.most_operands": most})
        adds = range(found.names.count("add"))
        stored[most] = [one for one in adds if found.life("add", one) != EMPTY]
    assert stored == {5: [4, 8], 96: [8]}


@pytest.mark.parametrize("fuses", [True, False])
def test_nothing_is_written_over_what_lies_beside_a_workspace(fuses: bool) -> None:
    def residual(x: Any, w: Any, y: Any) -> Any:
        z = jnp.sort(y, 1)
        made = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
        return jnp.sort(made * z[0, 0, 0, 0], 0)

    shape = (4, 8, 16, 16)
    found = read(residual, shape, (8, 8, 3, 3), shape, compiler=TPU if fuses else GPU)
    if fuses:
        assert found.life("convolution") == EMPTY
        return
    made, product = found.life("convolution"), found.life("multiply")
    assert made[1] == product[0] + 1


def softmax_of_scores(x: Any, a: Any) -> Any:
    e = jnp.exp(x @ a)
    return (e / e.sum(-1, keepdims=True)) @ a


def test_what_is_widened_is_stored_before_where_several_kernels_would_read_more() -> None:
    """Three tensors are added and cast: to add them again would read six bytes for four."""

    def function(narrow: Any, x: Any, y: Any, z: Any) -> Any:
        x, y, z = (jnp.sort(one.astype(narrow)) for one in (x, y, z))
        wide = (x + y + z).astype(jnp.float32)
        first = jnp.sort(jnp.sin(wide))
        return first, jnp.sort(jnp.cos(wide) * first[0, 0])  # a kernel that waits for the other

    found = read(partial(function, jnp.bfloat16), *[(64, 64)] * 3)
    assert found.life("convert", 3) == EMPTY
    assert found.life("add", 1) != EMPTY


@pytest.mark.parametrize("computes", [True, False])
def test_indices_are_computed_for_each_gather_where_the_compiler_does_so(computes: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        rows = jnp.abs(jnp.arange(64)[:, None] - jnp.arange(64)) % 7
        return jnp.sort(x[rows, rows]), y.at[rows, rows].add(x)

    compiler = {**TPU, "fusion.index_bytes": 45.0 if computes else 0.0}
    found = read(function, (64, 64), (64, 64), compiler=compiler)
    (gather,) = (op for op in found.imported.core_ops if op.name == "stablehlo.gather")
    indices = found.imported.program.operands_of(found.imported.core_ops.index(gather))[1]
    assert (found.live_ranges[indices] == EMPTY) == computes


@pytest.mark.parametrize(
    ("width", "scale", "scores", "exponentials"),
    [(64, 1, True, False), (64, 0.5, False, True), (128, 0.5, True, True)],
    ids=["cast", "wide", "wide, of many features"],
)
def test_which_scores_of_a_softmax_in_float32_are_stored(
    width: int, scale: float, scores: bool, exponentials: bool
) -> None:
    """The compiler takes the maxima of narrow scores if nothing is done to the wide ones, and
    multiplies few features again for the exponentials, which it stores with their sums."""

    def softmax(x: Any, y: Any) -> Any:
        scores = jnp.einsum("bik,bjk->bij", x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
        wide = scores.astype(jnp.float32)
        p = jax.nn.softmax(wide * scale if scale != 1 else wide).astype(jnp.bfloat16)
        return jnp.einsum("bij,bjk->bik", p, x.astype(jnp.bfloat16))

    found = read(softmax, *((4, 128, width),) * 2)
    assert (found.life("dot_general") != EMPTY) == scores
    assert (found.life("exponential") != EMPTY) == exponentials


def test_a_sum_over_an_exponential_of_a_batch_of_matmuls_stores_it_on_the_way() -> None:
    found = read(softmax_of_scores, (4, 32, 32), (4, 32, 32))
    first, last = found.op("exponential"), found.op("dot_general", 1)
    assert found.life("exponential") == (found.points[first], found.points[last] + 1)
    assert found.life("divide") == EMPTY


@pytest.mark.parametrize(
    ("compiler", "is_stored"),
    [
        (TPU, False),
        (TPU | {"fusion.summed_of_batches": 0.0}, True),
        (GPU, False),
        (GPU | {"fusion.stores_summed": 1.0, "fusion.row_reductions": 0.0}, True),
    ],
    ids=["tpu", "tpu, of all", "gpu", "gpu, stored"],
)
def test_exponentials_of_one_matmul_are_computed_again_where_the_compiler_does_so(
    compiler: Mapping[str, float], is_stored: bool
) -> None:
    found = read(softmax_of_scores, (32, 32), (32, 32), compiler=compiler)
    assert (found.life("exponential") != EMPTY) == is_stored
    assert is_stored or found.life("dot_general") != EMPTY


def test_what_the_probabilities_of_labels_are_taken_from_is_stored() -> None:
    def of_labels(x: Any, a: Any) -> Any:
        logits = x @ a
        log_probabilities = logits - jnp.log(jnp.exp(logits).sum(1, keepdims=True))
        labels = jnp.zeros((32, 1), int)
        return jnp.take_along_axis(log_probabilities, labels, 1), logits @ a

    stored = read(of_labels, (32, 32), (32, 32))
    fused = read(of_labels, (32, 32), (32, 32), compiler=TPU | {"fusion.stores_gathered": 0.0})
    assert stored.life("subtract") != EMPTY
    assert fused.life("subtract") == EMPTY


@pytest.mark.parametrize("casts", [True, False])
def test_who_can_casts_for_itself_what_a_gather_needs_in_memory(casts: bool) -> None:
    """The logits in float32 lie beside those in bfloat16, which the sum and the gradient read."""

    def of_labels(x: Any, a: Any) -> Any:
        logits = (x.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16)).astype(jnp.float32)
        labels = jnp.zeros((32, 1), int)
        return jnp.take_along_axis(logits, labels, 1), jnp.exp(logits).sum(1)

    compiler = TPU | {"fusion.reads_what_is_stored": float(not casts)}
    found = read(of_labels, (32, 32), (32, 32), compiler=compiler)
    # The last cast is that of the product.
    assert found.life("convert", -1) != EMPTY
    assert (found.life("dot_general") != EMPTY) == casts


@pytest.mark.parametrize("has_bias", [True, False])
def test_what_a_gather_needs_is_written_late_where_no_matmul_waits_for_it(has_bias: bool) -> None:
    """The gradient of a bias sums what it computes of the logits, and writes them."""
    labels = jnp.zeros((32, 1), int)

    def gradients(x: Any, w: Any, b: Any, a: Any) -> Any:
        narrow = (each.astype(jnp.bfloat16) for each in (x, w, b))
        x, w, b = narrow
        logits = (x @ w + b if has_bias else x @ w).astype(jnp.float32)
        loss = jnp.take_along_axis(logits, labels, 1).sum() + jnp.log(jnp.exp(logits).sum(1)).sum()
        slope = (jnp.exp(logits) / jnp.exp(logits).sum(1, keepdims=True)).astype(jnp.bfloat16)
        summed = slope.sum(0) if has_bias else b
        return jnp.sort((slope @ a.astype(jnp.bfloat16)) @ x.T), summed, loss

    found = read(gradients, (32, 32), (32, 32), (32,), (32, 32))
    casts = [i for i, name in enumerate(found.names) if name == "convert" and found.writes[i][0]]
    gathered = found.points[found.op("gather")]
    assert any(found.points[i] < gathered for i in casts)
    assert (gathered > found.points[found.op("dot_general", -1)]) == has_bias


@pytest.mark.parametrize(("kept", "is_late"), [(32, True), (31, False)], ids=["all", "fewer"])
def test_a_kernel_writes_besides_what_has_as_many_elements(kept: int, is_late: bool) -> None:
    """The gradient of logits without their last position has that position, too."""

    def loss(x: Any, w: Any, b: Any) -> Any:
        x, w, b = (each.astype(jnp.bfloat16) for each in (x, w, b))
        logits = (jnp.einsum("bsd,dv->bsv", x, w) + b)[:, :kept].astype(jnp.float32)
        largest = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
        of_labels = jnp.take_along_axis(logits, jnp.zeros((4, kept, 1), int), -1) - largest
        return (jnp.log(jnp.exp(logits - largest).sum(-1)) - of_labels[..., 0]).mean()

    found = read(jax.value_and_grad(loss, (0, 1, 2)), (4, 32, 32), (32, 64), (64,))
    gathered, last = found.points[found.op("gather")], found.points[found.op("dot_general", -1)]
    assert (gathered > last) == is_late


def test_what_a_matmul_computes_beside_its_product_is_made_with_it() -> None:
    """A gate is computed again: its gradient reads it and what is there before."""

    def gradients(x: Any, w: Any, up: Any, dy: Any) -> Any:
        gate = x @ w
        other = jnp.sort(gate)
        return jnp.sort(jnp.tanh(gate) * up * dy), jnp.sort(other)

    shapes = ((64, 64),) * 4
    beside = read(gradients, *shapes)
    alone = read(gradients, *shapes, compiler=TPU | {"fusion.matmul_side_results": 0.0})
    tanh, gradient, other = (beside.op(*each) for each in (("tanh",), ("multiply", 1), ("sort",)))
    assert beside.points[gradient] < beside.points[other]
    assert alone.points[gradient] > alone.points[other]
    assert (beside.launched[gradient], alone.launched[gradient]) == (False, True)
    assert (beside.reads[tanh], alone.reads[tanh]) == ([0], [1])


def test_what_a_matmul_makes_is_reduced_in_its_kernel_unless_that_waits_for_another() -> None:
    """Mean and variance of a product."""

    def moments(x: Any, w: Any) -> Any:
        product = x @ w
        mean = product.sum(0) / 64
        return jnp.sort(product), mean, jnp.square(product - mean).sum(0)

    beside = read(moments, (64, 64), (64, 64))
    alone = read(moments, (64, 64), (64, 64), compiler=TPU | {"fusion.matmul_side_results": 0.0})
    sums = [beside.op("reduce", n) for n in (0, 1)]
    assert [beside.launched[op] for op in sums] == [False, True]
    assert [beside.packs[op] for op in sums] == [False, True]
    assert [alone.packs[op] for op in sums] == [True, True]


def test_a_product_with_vectors_packs_where_something_is_done_to_it() -> None:
    def run(x: Any, w: Any) -> Any:
        return jnp.sort(jnp.einsum("bik,bkj->bij", jnp.sort(x), w) * 2)

    found = read(run, (4, 1, 32), (4, 32, 32))
    assert found.life("dot_general") == EMPTY
    assert found.packs[found.op("dot_general")]


def test_maxima_in_the_kernel_of_a_product_pack_nothing() -> None:
    def run(x: Any, y: Any) -> Any:
        return jax.nn.softmax(jnp.einsum("bik,bjk->bij", x, y))

    found = read(run, *((4, 128, 64),) * 2)
    assert found.life("dot_general") == EMPTY
    assert not found.packs[found.op("reduce")]


@pytest.mark.parametrize(
    ("compiler", "is_added", "stored"),
    [(GPU, True, {"add"}), (GPU, False, {"scatter", "add"}), (TPU, True, {"add"})],
    ids=["gpu", "gpu, not added", "tpu"],
)
def test_a_gradient_that_labels_are_scattered_into_is_stored_where_the_compiler_does_so(
    compiler: Mapping[str, float], is_added: bool, stored: set[str]
) -> None:
    labels = jnp.zeros((32, 1), int)

    def of_labels(x: Any, g: Any) -> Any:
        def at_labels(x: Any) -> Any:
            return jnp.take_along_axis(x, labels, 1, mode="promise_in_bounds")

        scattered = jax.vjp(at_labels, x)[1](g)[0]
        return jnp.sort(scattered + x if is_added else jnp.tanh(scattered) + x)

    found = read(of_labels, (32, 32), (32, 1), compiler=compiler)
    made = [(op.name.removeprefix("stablehlo."), ids) for op, ids in found.imported.result_values]
    # Releases of JAX differ in which of the adds, of labels and of gradients, is first.
    kept = {name for name, ids in made if ids and found.live_ranges[ids[0]] != EMPTY}
    assert kept & {"scatter", "add"} == stored


@pytest.mark.parametrize(("name", "is_stored"), [("erfc", True), ("tanh", False)])
def test_erfc_is_stored_and_what_is_made_of_it_and_its_argument_is_not(
    name: str, is_stored: bool
) -> None:
    """Both read by two matmuls, as an activation function forward and backward."""

    def activate(x: Any, a: Any, b: Any) -> Any:
        x = x @ a
        made = x * (jax.lax.erfc(x) if name == "erfc" else jnp.tanh(x))
        return jnp.sort(made @ b) @ made

    found = read(activate, (32, 32), (32, 32), (32, 32))
    (function,) = (ids[0] for op, ids in found.imported.result_values if op.name.endswith(name))
    assert (found.live_ranges[function] != EMPTY) == is_stored
    assert found.life("multiply") == EMPTY


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_sum_is_computed_again_from_what_a_matmul_reads_anyway(is_stored: bool) -> None:
    """From four arrays it would not be."""

    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        stored = a + b + c
        total = stored + d
        return jnp.sin(total), jnp.cos(total), (stored @ a if is_stored else stored.sum())

    found = read(function, *[(64, 64)] * 4, compiler=GPU)
    assert (found.life("add", 2) == EMPTY) == is_stored


@pytest.mark.parametrize("recomputes", [True, False])
def test_an_activation_recomputed_for_a_gradient_is_made_with_its_own_gradient(
    recomputes: bool,
) -> None:
    """One kernel of two results: nothing but these two would read the function's value."""

    def backward(x: Any, a: Any, b: Any, dy: Any) -> Any:
        x = x @ a
        t = jnp.tanh(x)
        made = x * t
        if not recomputes:
            dy = made @ b
        d_made = dy @ b
        d_x = d_made * (t + x * (1 - t * t))
        return made.T @ dy, d_x @ a

    found = read(backward, *[(32, 32)] * 4, compiler=GPU)
    assert (found.life("tanh") == EMPTY) == recomputes
    if recomputes:
        activation, gradient = found.op("multiply"), found.op("multiply", -1)
        assert found.points[activation] == found.points[gradient] + 1
        assert found.points[found.op("dot_general", 2)] > found.points[activation]


@pytest.mark.parametrize("fuses", [True, False])
def test_what_a_matmul_reads_and_writes_is_stored_where_it_is_not_fused(fuses: bool) -> None:
    def function(x: Any, w: Any) -> Any:
        return jax.nn.silu(jnp.tanh(x) @ w)

    found = read(function, (64, 64), (64, 64), compiler=TPU if fuses else GPU)
    assert (found.life("tanh") == EMPTY, found.life("dot_general") == EMPTY) == (fuses, fuses)


@pytest.mark.parametrize(
    ("function", "is_fused"),
    [
        (lambda x, w, r, b: x @ w + r, True),
        (lambda x, w, r, b: jnp.maximum(x @ w + b, 0), True),
        (lambda x, w, r, b: jnp.exp((x @ w) * 2) * r + r, True),
        (lambda x, w, r, b: (y := x @ w + b, jnp.exp(y)), True),
        (lambda x, w, r, b: jax.lax.fori_loop(0, 3, lambda _, y: y + x @ w, r), True),
        (lambda x, w, r, b: x @ w + jnp.exp(r), False),
        (lambda x, w, r, b: x @ w + jnp.exp(b), False),
        (lambda x, w, r, b: jax.nn.silu(x @ w), False),
        (lambda x, w, r, b: (y := x @ w, y + r), False),
        (lambda x, w, r, b: x @ w + r @ x, False),
        (lambda x, w, r, b: jnp.sum(x @ w, 0), False),
        (lambda x, w, r, b: (narrow(x) @ narrow(w)).astype(jnp.float32), True),
        (lambda x, w, r, b: (narrow(x) @ narrow(w)).astype(jnp.float32) * 2, False),
        (lambda x, w, r, b: (y := (narrow(x) @ narrow(w)).astype(jnp.float32), y.sum(1)), False),
        (lambda x, w, r, b: (narrow(x) @ narrow(w)).astype(jnp.float32) @ r, False),
    ],
    ids=[
        *("argument", "bias", "several", "result of two readers", "carried"),
        *("expression", "computed bias", "read twice", "two readers", "two products", "sum"),
        *("cast", "work behind a cast", "sum behind a cast", "product of a cast"),
    ],
)
def test_a_matmul_on_gpus_computes_what_is_made_of_it_and_arguments(
    function: Callable[..., Any], is_fused: bool
) -> None:
    found = read(function, (64, 64), (64, 64), (64, 64), (64,), compiler=GPU)
    assert (found.life("dot_general") == EMPTY) == is_fused


def narrow(x: Any) -> Any:
    return x.astype(jnp.bfloat16)


def attended(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    """Two examples of 32 positions, 4 heads of 4."""
    q, k, v = ((x @ w).reshape(2, 32, 4, 4) for w in (wq, wk, wv))
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(2, 32, 16) @ wo


@pytest.mark.parametrize(("compiler", "written"), [(GPU, [0, 1, 2]), (TPU, [])])
def test_gpus_write_heads_that_lie_behind_positions_once_more(
    compiler: Mapping[str, float], written: list[int]
) -> None:
    """Queries, keys and values; what the last matmul reads it takes in any order."""
    found = read(attended, (2, 32, 16), *[(16, 16)] * 4, compiler=compiler)
    views = [i for i, name in enumerate(found.names) if name == "reshape"]
    assert [n for n, view in enumerate(views) if found.writes[view][0]] == written


def test_gpus_transpose_the_result_of_heads_for_a_sum_over_positions() -> None:
    """The gradient of the last weight; in front of it nothing has other readers."""
    arrays = (2, 32, 16), *[(16, 16)] * 4
    found = read(jax.grad(lambda *a: attended(*a).sum(), 4), *arrays, compiler=GPU)
    views = [i for i, name in enumerate(found.names) if name in ("reshape", "transpose")]
    copied = [view for view in views if found.writes[view][0]]
    assert len(copied) == 4
    sums = found.op("dot_general", -1)
    assert copied[-1] < sums


def test_heads_in_front_of_positions_are_read_as_they_lie() -> None:
    def scores(q: Any, k: Any) -> Any:
        return jnp.einsum("bhqd,bhkd->bhqk", q.reshape(2, 4, 32, 4), k.reshape(2, 4, 32, 4))

    found = read(scores, (8, 32, 4), (8, 32, 4), compiler=GPU)
    assert not any(found.writes[found.op("reshape", n)][0] for n in range(2))


def test_what_runs_in_the_kernel_of_a_matmul_is_listed_with_its_tensor() -> None:
    def function(x: Any, w: Any, r: Any) -> Any:
        return jnp.tanh(x) @ w + r

    found = read(function, (64, 32), (32, 16), (64, 16))
    matmul = found.op("dot_general")
    (tanh, add) = found.fused[matmul]
    # Reads x: 4 bytes an element of the first operand.
    assert (tanh.tensor, tanh.bytes, tanh.packed) == (0, 4, 0)
    assert tanh.flops > 0
    # Reads r and writes the sum.
    assert (add.tensor, add.bytes, add.packed, add.flops) == (2, 8, 0, 1)
    assert not any(found.fused[op] for op in range(len(found.names)) if op != matmul)


@pytest.mark.parametrize(
    ("made", "is_stored"),
    [
        (lambda x, b: jnp.maximum(x @ x, 0), False),
        (lambda x, b: x @ x + b, True),
        (lambda x, b: jnp.exp(x @ x), True),
    ],
    ids=["relu", "sum of two", "exponential"],
)
def test_kernels_of_matmuls_compute_cheap_work_on_one_operand(
    made: Callable[..., Any], is_stored: bool
) -> None:
    def function(x: Any, b: Any) -> Any:
        return made(x, b) @ b

    found = read(function, (64, 64), (64, 64), compiler=GPU)
    last = found.op("dot_general", -1) - 1
    assert found.writes[last] == [is_stored]


def test_what_kernels_of_matmuls_compute_cheap_work_on_is_stored() -> None:
    def function(x: Any, b: Any) -> Any:
        doubled = (x * b) * 2
        return doubled @ b, doubled @ x

    found = read(function, (64, 64), (64, 64), compiler=GPU)
    product, doubled = found.op("multiply"), found.op("multiply", -1)
    assert (found.writes[product], found.writes[doubled]) == ([True], [False])


@pytest.mark.parametrize(
    ("is_argument", "is_transposed", "is_gpu", "is_written"),
    [
        (True, True, True, True),
        (True, True, False, False),
        (False, True, True, False),
        (True, False, True, False),
    ],
)
def test_xla_gpu_writes_an_argument_that_a_loop_takes_transposed(
    is_argument: bool, is_transposed: bool, is_gpu: bool, is_written: bool
) -> None:
    def function(x: Any, layers: Any) -> Any:
        stack = layers if is_argument else jnp.sqrt(layers)
        stack = jnp.swapaxes(stack, 0, 1) if is_transposed else stack.reshape(8, 8, 64, 64)
        return jax.lax.scan(lambda x, w: (x + w.sum(), None), x, stack)[0]

    found = read(function, (64, 64), (8, 8, 64 * 64), compiler=GPU if is_gpu else TPU)
    view = "transpose" if is_transposed else "reshape"
    assert (found.life(view) != EMPTY) == is_written
    assert found.writes[found.op(view)] == [is_written]


@pytest.mark.parametrize("is_transposed", [True, False])
def test_a_transposed_product_is_copied_where_an_older_one_meets_it(is_transposed: bool) -> None:
    def function(x: Any, w: Any) -> Any:
        older, younger = x @ w, w @ x
        return older * jnp.sqrt(younger.T if is_transposed else younger)

    found = read(function, (64, 64), (64, 64), compiler=GPU)
    assert (found.life("sqrt") != EMPTY) == is_transposed
    assert read(function, (64, 64), (64, 64)).life("sqrt") == EMPTY


@pytest.mark.parametrize(
    ("fuses", "is_read_again", "is_stored"),
    [(False, True, True), (True, True, False), (True, False, True)],
)
def test_a_cast_that_two_matmuls_read_is_stored_unless_they_make_it_of_what_is_there(
    fuses: bool, is_read_again: bool, is_stored: bool
) -> None:
    def function(x: Any, w: Any) -> Any:
        e = jnp.exp(x @ w)
        p = (e / e.sum(-1, keepdims=True)).astype(jnp.bfloat16)
        y = p @ w.astype(jnp.bfloat16)
        z = y @ p
        return z + e.sum(0) * z if is_read_again else z

    found = read(function, (4, 64, 64), (4, 64, 64), compiler=TPU | {"fusion.casts": float(fuses)})
    assert (found.life("convert") != EMPTY) == is_stored


def test_constants_and_reshapes_take_nothing() -> None:
    found = read(lambda x, a: ((x @ a).reshape(-1) * 2).reshape(a.shape).T @ a, *((32, 32),) * 2)
    assert found.life("broadcast_in_dim") == EMPTY
    assert all(found.life("reshape", k) == EMPTY for k in range(2))
    assert found.life("transpose") == EMPTY
    assert found.peak()[0] == (2 + 1 + 1) * 4 * KIB


def test_a_dead_value_is_never_stored() -> None:
    found = read_text("""
func.func @main(%a: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
      : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %1 = stablehlo.sine %a : tensor<32x32xf32>
  return %1 : tensor<32x32xf32>
}
""")
    assert found.life("dot_general") == EMPTY
    assert found.reads[0] == [0, 0]


# Donation and work in place


def test_a_donated_argument_is_written_over_by_an_elementwise_result() -> None:
    def step(x: Any, y: Any) -> Any:
        return x + y

    assert read(step, (32, 32), (32, 32)).peak()[0] == 3 * 4 * KIB
    donated = read(step, (32, 32), (32, 32), donate=(0,))
    assert donated.life("add") == EMPTY
    assert donated.peak()[0] == 2 * 4 * KIB


def test_a_product_cannot_be_written_over_its_own_operand() -> None:
    found = read(lambda x, y: x @ y, (32, 32), (32, 32), donate=(0,))
    assert found.life("dot_general") == (0, 1)
    assert found.peak()[0] == 3 * 4 * KIB


def test_a_donated_argument_that_is_read_later_is_not_written_over_yet() -> None:
    found = read_text("""
func.func @main(%x: tensor<32x32xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<32x32xf32>)
    -> (tensor<32x32xf32>, tensor<32x32xf32>) {
  %0 = stablehlo.add %x, %y : tensor<32x32xf32>
  %1 = stablehlo.dot_general %0, %x, contracting_dims = [1] x [0]
      : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  return %0, %1 : tensor<32x32xf32>, tensor<32x32xf32>
}
""")
    assert found.life("add") == (0, 2)


def test_a_result_that_is_an_argument_as_it_came_is_a_copy_unless_donated() -> None:
    text = """
func.func @main(%x: tensor<32x32xf32>{}) -> (tensor<32x32xf32>, tensor<32x32xf32>) {{
  %0 = stablehlo.sine %x : tensor<32x32xf32>
  return %x, %0 : tensor<32x32xf32>, tensor<32x32xf32>
}}
"""
    assert read_text(text.format("")).peak()[0] == 3 * 4 * KIB
    assert read_text(text.format(" {tf.aliasing_output = 0 : i32}")).peak()[0] == 2 * 4 * KIB


@pytest.mark.parametrize(
    ("function", "blocks"),
    [
        (lambda x, w: x @ w + 1, 3),  # the product is made in the result
        (lambda x, w: jnp.sort(jnp.sort(x, 0), 1) @ w, 4),  # what is sorted first, too
        (lambda x, w: jax.nn.log_softmax(x @ w), 4),  # a kernel with a sum writes elsewhere
        (lambda x, w: (jnp.sort(x, 0) @ w)[:, :32], 4.5),  # what is larger than the result
    ],
)
def test_a_result_lends_its_storage_until_it_is_made_on_gpus(
    function: Callable[..., Any], blocks: float
) -> None:
    found = read(function, (64, 64), (64, 64), compiler=GPU)
    small = 512  # what is summed in each row
    assert found.peak()[0] == pytest.approx(blocks * 16 * KIB, abs=small)


@pytest.mark.parametrize(
    ("function", "is_in_place"),
    [(lambda x, w: jax.nn.softmax(x @ w) @ w, False), (lambda x, w: twice_read(x @ w) @ w, True)],
)
def test_nothing_is_written_over_what_a_softmax_reads_on_gpus(
    function: Callable[..., Any], is_in_place: bool
) -> None:
    """It is one kernel with its maximum and its sum."""
    found = read(function, (64, 64), (64, 64), compiler=GPU)
    made = found.life("exponential" if is_in_place else "divide")[0]
    assert found.life("dot_general")[1] == (made if is_in_place else made + 1)


def twice_read(x: Any) -> Any:
    return jnp.exp(x * x[:, ::-1])


def layer_norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True))


@pytest.mark.parametrize(
    ("function", "shape", "stored"),
    [
        pytest.param(jax.nn.softmax, (64, 64), 0, id="a softmax is one kernel"),
        pytest.param(layer_norm, (64, 64), 0, id="a norm is one, though it subtracts twice"),
        pytest.param(
            lambda x: jax.nn.softmax(x, 0), (64, 64), 2, id="columns are not held: both are stored"
        ),
        pytest.param(jax.nn.softmax, (2, 32768), 2, id="rows that are too long are not held"),
        pytest.param(
            lambda x: jax.nn.softmax(x.T), (64, 64), 2, id="rows that lie as columns are not held"
        ),
        pytest.param(
            lambda x: (x / x.sum(1, keepdims=True), x.sum(1)), (64, 64), 1, id="a sum that leaves"
        ),
        pytest.param(
            lambda x: jnp.sort(x) / x.sum(1, keepdims=True), (64, 64), 1, id="a sum of other rows"
        ),
        pytest.param(
            lambda x: jax.grad(lambda y: jnp.sort(jax.nn.softmax(y)).sum())(x),
            (64, 64),
            1,
            id="with a gradient: two kernels sum again, the maximum is stored for both",
        ),
    ],
)
def test_reductions_of_rows_are_computed_where_the_rows_are_read_on_gpus(
    function: Callable[..., Any], shape: tuple[int, ...], stored: int
) -> None:
    found = read(lambda x: jax.tree.map(jnp.sort, function(jnp.sort(x))), shape, compiler=GPU)
    reduces = [i for i, name in enumerate(found.names) if name == "reduce"]
    assert sum(found.writes[i] == [True] for i in reduces) == stored


def test_a_reduction_of_dims_of_one_element_fuses_as_a_view_does() -> None:
    found = read(lambda x: jnp.sort(jnp.sort(x).sum(1) + 1), (64, 1, 64))
    assert found.life("reduce") == EMPTY


@pytest.mark.parametrize(
    ("queries", "keys", "is_stored"), [(1, 64, False), (2, 64, True), (1, 1 << 18, True)]
)
def test_a_small_product_with_a_vector_reads_what_it_computes_on_gpus(
    queries: int, keys: int, is_stored: bool
) -> None:
    """Heads of keys are repeated for groups of queries; from ten million multiplications on a
    product is one of matrices."""

    def run(q: Any, k: Any) -> Any:
        repeated = jnp.repeat(jnp.sort(k), 2, axis=1)
        return jnp.sort(jnp.einsum("bhqd,bhkd->bhqk", q, repeated))

    found = read(run, (2, 4, queries, 64), (2, 2, keys, 64), compiler=GPU)
    repeats = [
        ids for op, ids in found.imported.result_values if op.name.endswith("broadcast_in_dim")
    ]
    assert any(found.live_ranges[ids[0]] != EMPTY for ids in repeats if ids) == is_stored


def test_what_several_kernels_compute_is_read_by_each() -> None:
    def run(x: Any, w: Any) -> Any:
        y = jnp.sort(x @ w)
        return jnp.sort(y + 1), (y + 2).sum(1), jnp.sin(y).sum(0)

    found = read(run, (64, 64), (64, 64), compiler=GPU)
    assert sum(sum(found.reads[i]) for i, name in enumerate(found.names) if name == "add") == 2
    assert found.reads[found.op("sine")] == [1]


@pytest.mark.parametrize(
    ("function", "times", "kernels"),
    [
        (lambda x, w: (x + w, x * w), 2, 1),
        (lambda x, w: (y := jnp.tanh(x + w), y * x), 2, 1),
        (lambda g, m: (m := 0.9 * m + g, v := g * g, m * jax.lax.rsqrt(v)), 2, 1),
        # The product waits for what is sorted.
        (lambda x, w: (y := x + w, jnp.sort(y) * x), 5, 3),
        # Another number of elements.
        (lambda x, w: (x + w, x[:32] * 2), 3, 2),
        # Nothing is read together.
        (lambda x, w: (x + 1, w + 1), 2, 2),
        # What stands between the two comes from elsewhere, but waits for the first.
        (lambda x, w: (y := x + w, z := jnp.sort(y), y * z, z + 1), 5, 3),
    ],
    ids=["siblings", "chain", "moments", "waits", "part", "apart", "behind both"],
)
def test_loops_that_share_what_they_read_are_one_kernel(
    function: Callable[..., Any], times: int, kernels: int
) -> None:
    found = read(function, (64, 64), (64, 64), compiler=GPU)
    assert sum(map(sum, found.reads)) == times
    launched = zip(found.launched, found.writes, strict=True)
    assert sum(is_launched and any(writes) for is_launched, writes in launched) == kernels


@pytest.mark.parametrize(
    ("bias", "is_stored"),
    [(lambda b: b, False), (jnp.tanh, True), (lambda b: b.astype(jnp.bfloat16), True)],
    ids=["argument", "computed", "cast"],
)
def test_what_a_stored_function_is_of_is_stored_on_gpus(
    bias: Callable[[Any], Any], is_stored: bool
) -> None:
    """A GELU with a gradient: unless the product and arguments are all that it takes."""

    def run(x: Any, w: Any, b: Any, g: Any) -> Any:
        def activated(b: Any) -> Any:
            return jax.nn.gelu(x @ w + bias(b).astype(x.dtype), approximate=False)

        value, pull = jax.vjp(activated, b)
        return jnp.sort(value @ w), pull(jnp.sort(g))

    found = read(run, (32, 32), (32, 32), (32,), (32, 32), compiler=GPU)
    (erfc,) = (op for op, _ in found.imported.result_values if op.name.endswith("erfc"))
    made = [ids[0] for op, ids in found.imported.result_values if op.results[0] == erfc.operands[0]]
    assert [found.live_ranges[value] != EMPTY for value in made] == [is_stored]


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (lambda x: (x.sum(0), (x * x).sum(0)), 1),
        (lambda x: (x.sum(0), (x * x).max(0)), 1),
        (lambda x: (x.sum(0), (x * x).sum(1)), 2),
        (lambda x: (x.sum(0), (x[:32] * 2).sum(0)), 2),
        (lambda x: (mean := x.sum(0), ((x - mean) * x).sum(0)), 3),
        (lambda x: (mean := x.sum(), ((x - mean) * x).sum()), 2),
        (lambda x: (total := x.sum(0), (x * jnp.sort(total)).sum(0), (x * x).sum(0)), 4),
    ],
    ids=[
        *("mean and square", "sum and maximum", "other dims", "other shape"),
        *("variance", "variance of all", "two of three"),
    ],
)
def test_reductions_that_do_not_wait_for_each_other_read_once(
    function: Callable[..., Any], times: int
) -> None:
    # Sums and what is made of them are read, too.
    found = read(function, (64, 64), compiler=GPU)
    assert sum(map(sum, found.reads)) == times


@pytest.mark.parametrize(
    ("function", "times"),
    [
        # The product reads y; the sum, in the kernel that writes it, x and w once for both.
        (lambda x, w: ((y := jnp.maximum(x, w)) @ w, y.sum(0)), 4),
        (lambda x, w: ((y := jnp.maximum(x, w)) @ w, y.sum(0), (y * x).sum(0)), 4),
        # The second sum waits for the first one.
        (lambda x, w: ((y := jnp.maximum(x, w)) @ w, s := y.sum(0), ((y - s) * x).sum(0)), 7),
        # The sum waits for the product.
        (lambda x, w: (z := (y := jnp.maximum(x, w)) @ w, (y * z).sum(0)), 6),
        # Another number of elements.
        (lambda x, w: ((y := jnp.maximum(x, w)) @ w, y[:32].sum(0)), 5),
        # Rows.
        (lambda x, w: ((y := jnp.maximum(x, w)) @ w, y.sum(1)), 5),
        # A product writes it.
        (lambda x, w: ((y := x @ w) @ w, y.sum(0)), 5),
    ],
    ids=["sum", "two sums", "variance", "waits", "part", "rows", "product"],
)
def test_what_a_kernel_writes_is_reduced_in_it(function: Callable[..., Any], times: int) -> None:
    found = read(function, (64, 64), (64, 64), compiler=GPU)
    assert sum(map(sum, found.reads)) == times


def test_an_update_is_made_in_place_where_nobody_reads_what_was_there() -> None:
    def update(x: Any, y: Any) -> Any:
        x = x @ x
        return jax.lax.dynamic_update_slice(x, y, (0, 0)) @ x[:8].T

    found = read(update, (32, 32), (8, 32))
    write = found.points[found.op("dynamic_update_slice")]
    # The slice still reads it: both live.
    assert found.life("dot_general", 0)[1] > write + 1

    def in_place(x: Any, y: Any) -> Any:
        return jax.lax.dynamic_update_slice(x @ x, y, (0, 0)) @ x

    found = read(in_place, (32, 32), (8, 32))
    product, last = (found.points[found.op("dot_general", k)] for k in range(2))
    write = found.points[found.op("dynamic_update_slice")]
    assert found.life("dot_general", 0) == (product, write)
    assert found.life("dynamic_update_slice") == (write, last + 1)


# Loops


def scan(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: jax.lax.scan(body, x, w)[0]


def test_what_a_loop_does_not_change_is_the_argument() -> None:
    found = read(scan(lambda c, w: (jnp.tanh(c @ w), None)), (32, 32), (5, 32, 32))
    # Argument and stack of weights, and the carried value, which is the result.
    assert found.peak()[0] == (1 + 5 + 1 + 1) * 4 * KIB


def test_a_carried_value_is_written_over_where_it_was_read_for_the_last_time() -> None:
    found = read(scan(lambda c, w: (c + jnp.tanh(w), None)), (32, 32), (5, 32, 32))
    [loop] = found.program.loops
    carried, yielded = loop.carried, loop.yielded
    [slot] = [k for k, y in enumerate(yielded) if y != -1]
    assert found.live_ranges[yielded[slot]] == EMPTY
    assert found.live_ranges[carried[slot]] == (0, found.peak()[1] + len(found.names))
    assert found.peak()[0] == (1 + 5 + 1) * 4 * KIB


def test_a_value_from_outside_lives_until_the_loop_ends() -> None:
    def outside(x: Any, w: Any) -> Any:
        y = x @ x
        return jax.lax.fori_loop(0, 9, lambda _, c: jnp.tanh(c @ y) @ w, x)

    found = read(outside, (32, 32), (32, 32))
    [loop] = found.program.loops
    assert found.life("dot_general", 0) == (0, loop.last_op)


def test_values_of_a_body_live_only_inside() -> None:
    found = read(scan(lambda c, w: ((c @ w) @ w, None)), (32, 32), (5, 32, 32))
    first, second = (found.points[found.op("dot_general", k)] for k in range(2))
    assert found.life("dot_general", 0) == (first, second + 1)


def test_stacked_residuals_live_from_one_loop_into_the_other() -> None:
    def loss(x: Any, w: Any) -> Any:
        return (scan(lambda c, w: (jnp.sin(c @ w), None))(x, w) ** 2).sum()

    found = read(jax.grad(loss, 1), (32, 32), (5, 32, 32))
    there, back = found.program.loops
    stacks = [
        life
        for (life, shape) in shapes_of(found, "dynamic_update_slice")
        if shape == (5, 32, 32) and life != EMPTY
    ]
    through = [
        life
        for life in stacks
        if there.first_op <= life[0] < there.last_op and back.first_op < life[1] <= back.last_op
    ]
    # The layer's input and the cosine.
    assert len(through) == 2


def shapes_of(found: Read, name: str) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    return [
        (found.live_ranges[ids[0]], tuple(mlir.RankedTensorType(op.results[0].type).shape))
        for op, ids in found.imported.result_values
        if op.name == f"stablehlo.{name}"
    ]


def test_a_stack_in_another_order_is_copied_between_loops_on_gpus() -> None:
    def stacks(is_transposed: bool, compiler: _core.Compiler) -> int:
        def loss(w: Any, x: Any) -> Any:
            def body(h: Any, _: Any) -> tuple[Any, None]:
                y = h @ w
                return jnp.tanh(y.T if is_transposed else y), None

            return jax.lax.scan(body, x, None, length=64)[0].sum()

        found = read(jax.grad(loss), (32, 32), (32, 32), compiler=compiler)
        return sum(size == 64 * 4 * KIB for _, size in found.peak()[2])

    untiled = {**TPU, "layout.tile_rows": 1, "layout.tile_columns": 0}
    # What enters the layer and what leaves it; its derivative, too, where JAX keeps that.
    kept = stacks(False, untiled)
    assert kept in (2, 3)
    assert stacks(False, GPU) == stacks(True, untiled) == kept
    assert stacks(True, GPU) == kept + 1


def test_a_stack_that_is_only_read_narrower_is_converted_once() -> None:
    def cast(c: Any, w: Any) -> Any:
        return c @ w.astype(jnp.bfloat16), None

    found = read(lambda x, w: scan(cast)(x.astype(jnp.bfloat16), w), (32, 32), (5, 32, 32))
    stack = found.program.arguments[1].value
    live = [b for v, b in found.peak()[2] if v == stack]
    assert live == [5 * 4 * KIB, 5 * 2 * KIB]


def test_branches_put_their_result_into_one_place() -> None:
    def branch(x: Any) -> Any:
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: (x @ x) @ x, x) @ x

    found = read(branch, (32, 32))
    # The branch of two products, then that of one: each ends in the storage of the result.
    assert found.life("dot_general", 0) != EMPTY
    assert found.life("dot_general", 1) == found.life("dot_general", 2) == EMPTY
    first, last = (found.points[found.op("dot_general", k)] for k in (1, 3))
    assert found.life("case") == (first, last + 1)


# Order


def adam(params: Any, state: Any, gradients: Any, scale: Any = 1.0) -> Any:
    gradients = [g * scale for g in gradients]
    means = [0.9 * m + 0.1 * g for (m, _), g in zip(state, gradients, strict=True)]
    squares = [0.99 * v + 0.01 * g * g for (_, v), g in zip(state, gradients, strict=True)]
    params = [
        p - 0.1 * m / (jnp.sqrt(v) + 1e-8) for p, m, v in zip(params, means, squares, strict=True)
    ]
    return params, list(zip(means, squares, strict=True))


def step(is_clipped: bool) -> Read:
    layers = 6

    def run(x: Any, *flat: Any) -> Any:
        params, state = (
            flat[:layers],
            list(zip(flat[layers::2], flat[layers + 1 :: 2], strict=True)),
        )
        gradients: list[Any] = []
        for p in params:
            x = jnp.tanh(x @ p)
        for p in reversed(params):
            gradients.insert(0, x.T @ x)
            x = x @ p.T
        scale = 1.0
        if is_clipped:
            scale = jax.lax.rsqrt(sum(jnp.sum(g * g) for g in gradients))
        return adam(params, state, gradients, scale)

    donate = tuple(range(1, 1 + 3 * layers))
    return read(run, (8, 32), *((32, 32),) * (3 * layers), donate=donate)


def test_an_update_runs_as_soon_as_its_gradient_is_there() -> None:
    found = step(is_clipped=False)
    # 18 donated arrays of 4 KiB, the argument, two activations and one gradient.
    assert found.peak()[0] <= (18 + 2) * 4 * KIB + 3 * KIB


def test_no_update_runs_before_the_norm_of_all_gradients() -> None:
    found = step(is_clipped=True)
    assert found.peak()[0] >= (18 + 6) * 4 * KIB


@pytest.mark.parametrize(
    ("beside", "moves"),
    [
        pytest.param(lambda large, v: (), True, id="nobody else reads it"),
        pytest.param(
            lambda large, v: (v.T @ jnp.sort(large @ v),),
            False,
            id="so does a product that only a gradient is computed from",
        ),
        pytest.param(
            lambda large, v: (jnp.square(v.T @ jnp.sort(large @ v)) @ v.T,),
            True,
            id="so does one that others are computed from",
        ),
    ],
)
def test_an_op_runs_as_soon_as_enough_of_what_it_reads_last_is_free(
    beside: Callable[[Any, Any], Any], moves: bool
) -> None:
    """The narrow product reads two values last; the large one is free before the wide product
    has read the small one."""

    def function(x: Any, w: Any, v: Any) -> Any:
        large, small = jnp.sort(x), jnp.sort(w)
        others = beside(large, v)
        wide = jnp.sort(small @ small.T)
        narrow = jnp.sort(large @ small)
        return wide @ wide @ narrow, others

    found = read(function, (64, 64), (64, 8), (64, 8))
    wide, narrow = (found.points[found.op("dot_general", k)] for k in (-4, -3))
    assert (narrow < wide) == moves


def test_every_op_has_a_moment_of_its_own_or_that_of_its_fusion() -> None:
    found = step(is_clipped=False)
    roots = [m for i, m in enumerate(found.points) if any(found.writes[i])]
    assert len(set(roots)) == len(roots)


# Peak


def test_cuts_divide_bytes() -> None:
    found = read(lambda x, w: jnp.tanh(x @ w), (32, 32), (32, 64))
    assert found.peak()[0] == (4 + 8 + 8) * KIB
    assert found.peak({0: [[0], [1]], 1: [[], [1]]})[0] == (0.5 + 2 + 8) * KIB


def test_transients_live_while_their_op_runs() -> None:
    found = read(lambda x, w, v: (x @ w) @ v, *((32, 32),) * 3)
    assert found.peak()[:2] == ((3 + 2) * 4 * KIB, 0)
    assert found.peak(transients=[(1, 100.0)])[:2] == ((3 + 2) * 4 * KIB + 100, 1)


def test_the_peak_lists_what_lives_then_largest_first() -> None:
    found = read(lambda x, w: (x @ w) @ w.T, (8, 32), (32, 64))
    total, _, live = found.peak()
    assert [size for _, size in live] == [8 * KIB, 2 * KIB, KIB, KIB]
    assert sum(size for _, size in live) == total


def test_a_program_of_scalars_takes_nothing() -> None:
    found = read(lambda x: x * 2, ())
    assert found.peak()[:2] == (0, 0)


def test_the_largest_copies_from_the_host_live_from_the_start() -> None:
    """Four of five: a compiler may load so many ahead of time."""
    types = [f"tensor<{rows}x32xf32>" for rows in (8, 16, 24, 32, 40)]
    kept = '{mhlo.memory_kind = "pinned_host"}'

    def move(name: str, value: str, place: str, type_: str) -> str:
        attributes = f'mhlo.frontend_attributes = {{_xla_buffer_placement = "{place}"}}'
        return (
            f"%{name} = stablehlo.custom_call @annotate_device_placement({value}) "
            f"{{has_side_effect = true, {attributes}}} : ({type_}) -> {type_}\n"
        )

    body = "%g = stablehlo.sine %x : tensor<32x32xf32>\n"
    for n, one in enumerate(types):
        body += move(f"m{n}", f"%s{n}", "device", one)
        body += f"%n{n} = stablehlo.cosine %m{n} : {one}\n"
        body += move(f"o{n}", f"%n{n}", "pinned_host", one)
    arguments = ", ".join(f"%s{n}: {one} {kept}" for n, one in enumerate(types))
    outs = ", ".join(f"%o{n}" for n in range(5))
    found = read_text(f"""
func.func @main(%x: tensor<32x32xf32>, {arguments})
    -> (tensor<32x32xf32>, {", ".join(f"{one} {kept}" for one in types)}) {{
  {body}
  return %g, {outs} : tensor<32x32xf32>, {", ".join(types)}
}}""")
    loads = [found.life("custom_call", 2 * n) for n in range(5)]
    assert [first for first, _ in loads[1:]] == [0] * 4
    assert loads[0][0] == found.points[found.op("custom_call")] > 0


# Checks of the core


def core(**more: Any) -> _core.Program:
    """Two elementwise ops on vectors of eight."""
    ints = np.int32
    arguments: dict[str, Any] = {
        "axis_sizes": [2],
        "types": [_core.TensorType([8], 32)],
        "rules": [rule()],
        "value_type": np.array([0, 0, 0], ints),
        "value_is_free": np.zeros(3, np.uint8),
        "op_rule": np.array([0, 0], ints),
        "op_trips": np.ones(2),
        "operand_offset": np.array([0, 1, 2], ints),
        "operands": np.array([0, 1], ints),
        "operand_kept": np.zeros(2, np.uint8),
        "result_offset": np.array([0, 1, 2], ints),
        "results": np.array([1, 2], ints),
        "join_source": np.array([], ints),
        "join_target": np.array([], ints),
        "join_trips": np.array([], np.float64),
        "pins": [],
    }
    return _core.Program(**{**arguments, **more})


def rule(**more: Any) -> _core.Rule:
    """An elementwise one, of vectors of eight."""
    vector = _core.RuleTensor(0, [[0]])
    fields: dict[str, Any] = {"work": Work.ELEMENTWISE, "flops": 8.0, "is_cheap": True}
    return _core.Rule([_core.Factor(8)], [vector], [vector], **{**fields, **more})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda: {"rules": [rule(expense=Expense.NEVER)]}, "unknown expense in rule 0"),
        (lambda: {"rules": [rule(flops=-1.0)]}, "negative flops in rule 0"),
        (lambda: {"rules": [rule(operand_bytes=[1.0, 2.0])]}, "touched bytes wrong in rule 0"),
        (lambda: {"rules": [rule(touched_as=2)]}, "others are touched out of range in rule 0"),
        (lambda: {"rules": [rule(in_place_operand=1)]}, "operand in place out of range in rule 0"),
        (lambda: {"op_after": np.array([-1, 1], np.int32)}, "depends on a later op: op 1"),
        (lambda: {"op_after": np.array([-1], np.int32)}, "arrays differ in length"),
        (lambda: {"op_until": np.array([3, -1], np.int32)}, "is waited for by an earlier op: op 0"),
        (lambda: {"op_until": np.array([2, 1], np.int32)}, "is waited for by an earlier op: op 1"),
        (lambda: {"op_until": np.array([2], np.int32)}, "arrays differ in length"),
        (lambda: {"loops": [_core.Loop(0, 3, 1.0, [], [])]}, "ops out of range at loop 0"),
        (lambda: {"loops": [_core.Loop(0, 1, -1.0, [], [])]}, "negative trips at loop 0"),
        (lambda: {"loops": [_core.Loop(0, 1, 1.0, [0], [])]}, "carried and yielded values differ"),
        (lambda: {"loops": [_core.Loop(0, 1, 1.0, [-1], [-1])]}, "value out of range at loop 0"),
        (
            lambda: {"loops": [_core.Loop(0, 2, 1.0, [], []), _core.Loop(0, 1, 1.0, [], [])]},
            "out of order at loop 1",
        ),
        (lambda: {"arguments": [_core.Argument(3)]}, "value out of range: argument 0"),
        (lambda: {"program_results": [-2]}, "value out of range: result 0"),
        (lambda: {"early": [3]}, "value out of range: early 0"),
    ],
)
def test_a_broken_program_is_refused(more: Callable[[], dict[str, Any]], message: str) -> None:
    core()
    with pytest.raises(Exception, match=message):
        core(**more())


def test_shardings_and_transients_must_fit_the_program() -> None:
    program = core()
    with pytest.raises(Exception, match="values and shardings differ in number"):
        _core.peak(program, [[]], [])
    with pytest.raises(Exception, match="axis out of range"):
        _core.peak(program, [[[1]], [[]], [[]]], [])
    with pytest.raises(Exception, match="op of a transient out of range"):
        _core.peak(program, [[], [], []], [(2, 1.0)])


# Tiles


def test_matrices_of_a_batch_of_products_are_padded_to_tiles() -> None:
    def scores(x, y):
        return jnp.tanh(jnp.einsum("bik,bjk->bij", x + 1, y + 1))

    found = read(scores, (16, 49, 32), (16, 49, 32))
    _, _, live = found.peak()
    # Arguments lie as they are given; their sums are 32 x 49, and the scores 56 x 128.
    assert max(size for _, size in live) == 16 * 56 * 128 * 4
    assert 16 * 49 * 32 * 4 in [size for _, size in live]
    without = read(scores, (16, 49, 32), (16, 49, 32), compiler={**TPU, "layout.tile_columns": 0})
    assert max(size for _, size in without.peak()[2]) == 16 * 49 * 49 * 4


def test_a_matrix_lies_as_it_pads_less() -> None:
    found = read(lambda x, y: jnp.einsum("bik,bjk->bij", x, y), (16, 256, 8), (16, 24, 8))
    assert max(size for _, size in found.peak()[2]) == 16 * 24 * 256 * 4


def test_few_rows_take_a_tile_of_a_power_of_two() -> None:
    found = read(lambda x, y: jnp.einsum("bik,bjk->bij", x, y), (64, 3, 8), (64, 128, 8))
    assert 64 * 4 * 128 * 4 in [size for _, size in found.peak()[2]]


@pytest.mark.parametrize(
    ("images", "channels", "tiled"),
    [(64, 32, 8 * 128), (64, 192, 8 * 256), (1024, 32, 128 * 32), (512, 96, 64 * 128)],
    ids=["few", "many channels", "images fill columns", "channels pad less"],
)
def test_images_of_one_device_and_channels_lie_in_tiles(
    images: int, channels: int, tiled: int
) -> None:
    """Sizes are those of all eight devices."""

    def convolved(x: Any, w: Any) -> Any:
        made = jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        pooled = jax.lax.reduce_window(
            jnp.tanh(made), 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        return jnp.sort(pooled, 1)

    found = read(convolved, (images, 8, 8, 128), (3, 3, 128, channels))
    sizes = [size for _, size in found.peak()[2]]
    for positions in (8 * 8, 4 * 4):
        assert 8 * positions * tiled * 4 in sizes


@pytest.mark.parametrize("window", [1, 3])
def test_gradients_of_windows_have_no_images_in_their_tiles(window: int) -> None:
    def gradient(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            made = jax.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return jnp.sum(jnp.sin(made))

        return jnp.sort(jax.grad(loss)(w), 1)

    found = read(gradient, (64, 8, 8, 128), (window, window, 128, 32))
    window_gradient_and_sorted = 3 * [window * window * 128 * 32 * 4.0]
    sizes = [size for _, size in found.peak()[2]]
    assert [size for size in sizes if size < 64 * 8 * 8 * 128] == window_gradient_and_sorted


def test_products_without_a_batch_fill_their_tiles() -> None:
    found = read(lambda x, w: jnp.tanh(x @ w), (16, 49, 32), (32, 96))
    assert max(size for _, size in found.peak()[2]) == 16 * 49 * 96 * 4


def test_padding_ends_where_a_view_splits_the_dims_of_the_matrices() -> None:
    def attention(x, w):
        heads = jnp.sin(x @ w).reshape(16, 49, 3, 32).transpose(0, 2, 1, 3)
        return jnp.einsum("bhik,bhjk->bhij", heads, heads)

    found = read(attention, (16, 49, 32), (32, 96))
    sizes = [size for _, size in found.peak()[2]]
    assert 16 * 3 * 56 * 128 * 4 in sizes
    assert 16 * 49 * 96 * 4 in sizes


@pytest.mark.parametrize(("positions", "size", "copied"), [(49, 32, True), (197, 64, False)])
def test_matrices_that_tiles_double_are_copied_beside_a_product_without_a_batch(
    positions, size, copied
) -> None:
    def scores(x, w):
        heads = (x @ w).reshape(64, positions, 3, size).transpose(0, 2, 1, 3)
        return jnp.einsum("bhik,bhjk->bhij", heads, heads)

    found = read(scores, (64, positions, 32), (32, 3 * size))
    columns = 128 if positions < 128 else 256
    sizes = [round(each) for _, each in found.peak()[2]]
    assert (64 * 3 * size * columns * 4 in sizes) == copied


@pytest.mark.parametrize(("transposed_bytes", "stored"), [(13.4, True), (0.0, False)])
def test_what_is_copied_into_other_tiles_is_read_from_memory(transposed_bytes, stored) -> None:
    """The gradient of heads, which a product without a batch reads."""

    def gradient(q, k, w):
        heads = jnp.sin(jnp.einsum("bhij,bhjk->bhik", q, k))
        return heads.transpose(0, 2, 1, 3).reshape(64, 49, 96) @ w

    compiler = TPU | {"fusion.transposed_bytes": transposed_bytes}
    found = read(gradient, (64, 3, 49, 49), (64, 3, 49, 32), (96, 32), compiler=compiler)
    assert found.writes[found.op("sine")] == [stored]
    assert found.writes[found.op("reshape")] == [True]


def test_matrices_that_no_product_without_a_batch_makes_are_not_copied() -> None:
    def scores(x):
        heads = jnp.sin(x).reshape(64, 49, 3, 32).transpose(0, 2, 1, 3)
        return jnp.einsum("bhik,bhjk->bhij", heads, heads)

    found = read(scores, (64, 49, 96))
    assert 64 * 3 * 32 * 128 * 4 not in [round(size) for _, size in found.peak()[2]]


def test_a_norm_of_a_sum_is_computed_from_the_sum_in_each_that_reads_it() -> None:
    """The sum is cast once, for all, and stored before the cast: the norm reads little."""

    def function(x: Any, y: Any, w: Any) -> Any:
        x, y, w = (each.astype(jnp.bfloat16) for each in (x, y, w))
        wide = (x @ w + y @ w).astype(jnp.float32)
        mean = jnp.mean(wide, -1, keepdims=True)
        variance = jnp.mean(jnp.square(wide), -1, keepdims=True) - jnp.square(mean)
        norm = ((wide - mean) * jax.lax.rsqrt(variance)).astype(jnp.bfloat16)
        return norm @ w, norm @ x, norm @ y

    found = read(function, *((256, 256),) * 3)
    narrowed = [
        ids[0]
        for op, ids in found.imported.result_values
        if op.name == "stablehlo.convert" and "bf16" in str(op.results[0].type)
    ]
    assert found.life("add") != EMPTY
    assert found.live_ranges[narrowed[-1]] == EMPTY


def test_scores_with_a_bias_are_stored_as_their_matmul_writes_them() -> None:
    """A batch of products casts them in its kernel: they are not stored narrower before."""

    def function(x: Any, y: Any, bias: Any) -> Any:
        x, y, bias = (each.astype(jnp.bfloat16) for each in (x, y, bias))
        scores = jnp.einsum("bqd,bkd->bqk", x, y) + bias
        wide = jnp.exp(scores.astype(jnp.float32))
        shares = (wide / wide.sum(-1, keepdims=True)).astype(jnp.bfloat16)
        squares = jnp.square(wide).astype(jnp.bfloat16)
        return jnp.einsum("bqk,bkd->bqd", shares, y), jnp.einsum("bqk,bkd->bqd", squares, y)

    found = read(function, (4, 256, 64), (4, 256, 64), (256,))
    assert found.life("exponential") != EMPTY
    assert found.life("dot_general") == EMPTY
