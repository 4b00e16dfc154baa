"""Seconds of one op on one device, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import _core
from autoshard.cluster.alone import rule_alone

ELEMENTWISE, VIEW, REDUCE, MATMUL, INDEXED, OTHER, KERNEL, ATTENTION, GRADIENT = _core.Work
F64, F32, F16, F8, I8 = _core.Arithmetic
MESH = (2, 4)
MATMUL_FLOPS, VECTOR_FLOPS, BANDWIDTH, LAUNCH = 100e12, 2e12, 1e12, 5e-6
EFFICIENCY = 0.5
"""Efficiency of matmuls; that of the memory is 0.8."""

Dims = tuple[tuple[int, ...], ...]
Tensor = tuple[Dims, int]
"""The factors of each dim, and the bits of an element."""


def cluster(
    launch: float = 0.0,
    packed_bytes: float = 0.0,
    whole: tuple[float, float] = (0, 0),
    answers: Mapping[str, float] = MappingProxyType({}),
):
    """``whole``: of rows and of columns that are reduced; ``answers``: others of the compiler."""
    return _core.Cluster(
        matmul_flops=[1e12, 50e12, MATMUL_FLOPS, 2 * MATMUL_FLOPS, 4 * MATMUL_FLOPS],
        vector_flops=VECTOR_FLOPS,
        memory_bytes=1e9,
        memory_bandwidth=BANDWIDTH,
        tile_rows=8,
        tile_columns=128,
        matmul_efficiency=EFFICIENCY,
        memory_efficiency=0.8,
        exponentials=1e10,
        attention_gradient_efficiency=0.5,
        launch_seconds=launch,
        dims=[_core.PhysicalDim(n, _core.LinkKind.RING, 1e9, 1e-6) for n in (2, 4)],
        axes=[[_core.AxisPart(0, 2)], [_core.AxisPart(1, 4)]],
        compiler={
            **_core.compiler_answers(),
            "fusion.packed_bytes": packed_bytes,
            "fusion.whole_rows": whole[0],
            "fusion.whole_columns": whole[1],
            **answers,
        },
    )


def compute(
    work: _core.Work,
    flops: float,
    sizes: tuple[int, ...],
    operands: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    cuts: dict[int, tuple[int, ...]] | None = None,
    *,
    arithmetic: _core.Arithmetic = F16,
    reads: tuple[bool, ...] | None = None,
    writes: tuple[bool, ...] | None = None,
    operand_bytes: tuple[float, ...] = (),
    result_bytes: tuple[float, ...] = (),
    touched_as: int = -1,
    launch: float = 0.0,
    packed_bytes: float = 0.0,
    fused: Sequence[_core.FusedWork] = (),
    padding: Sequence[float] = (),
    answers: Mapping[str, float] = MappingProxyType({}),
) -> tuple[float, float, float]:
    """(flops, bytes, seconds); ``cuts`` are the axes of each factor."""
    axes = [(cuts or {}).get(factor, ()) for factor in range(len(sizes))]
    rule, types = rule_alone(
        work,
        arithmetic,
        flops,
        sizes,
        operands,
        results,
        operand_bytes=operand_bytes,
        result_bytes=result_bytes,
        touched_as=touched_as,
    )
    found = _core.compute(
        rule,
        types,
        axes,
        (True,) * len(operands) if reads is None else reads,
        (True,) * len(results) if writes is None else writes,
        cluster(launch, packed_bytes, answers=answers),
        MESH,
        fused,
        padding,
    )
    return found.flops, found.bytes, found.seconds


def matmul(
    rows: int, inner: int, columns: int, cuts: dict[int, tuple[int, ...]] | None = None, **more
) -> tuple[float, float, float]:
    """Factors: rows 0, inner 1, columns 2."""
    return compute(
        MATMUL,
        2.0 * rows * inner * columns,
        (rows, inner, columns),
        ((((0,), (1,)), 16), (((1,), (2,)), 16)),
        ((((0,), (2,)), 16),),
        cuts,
        **more,
    )


def test_a_large_matmul_is_bound_by_the_matrix_unit() -> None:
    flops, moved, seconds = matmul(4096, 4096, 4096)
    assert flops == 2 * 4096**3
    assert moved == 3 * 2 * 4096**2
    assert seconds == pytest.approx(2 * 4096**3 / (MATMUL_FLOPS * EFFICIENCY))


@pytest.mark.parametrize(
    ("bits", "padding", "transposed", "taken"),
    [(16, (1.0, 3.0), 13.0, 26.0), (32, (1.0, 3.0), 5.0, 16.0), (32, (3.0, 3.0), 13.0, 24.0)],
    ids=["its own rate", "the rate of memory", "no other tiles"],
)
def test_a_view_into_padded_tiles_or_out_of_them_transposes(
    bits, padding, transposed, taken
) -> None:
    """Where one side has its elements and the other three times as many the mean is 2."""
    sizes, tensor = (64, 512), (((0,), (1,)), bits)
    answers = {"fusion.packed_bytes": 4.0, "fusion.transposed_bytes": transposed}
    made = compute(
        *(_core.Work.VIEW, 0.0, sizes, (tensor,), (tensor,)), padding=padding, answers=answers
    )
    assert made[1] == bits / 8 * sum(padding) * prod(sizes)
    assert made[2] == pytest.approx(taken * prod(sizes) / (BANDWIDTH * 0.8))


def test_padded_tensors_take_longer_to_read_write_and_pack() -> None:
    _, moved, seconds = matmul(8, 512, 512, padding=(2.0, 1.0, 3.0), packed_bytes=4.0)
    assert moved == 2 * (2 * 8 * 512 + 512 * 512 + 3 * 8 * 512)
    assert seconds == pytest.approx((moved + 4 * 3 * 8 * 512) / (BANDWIDTH * 0.8))


@pytest.mark.parametrize(("work", "share"), [(KERNEL, 1.0), (ATTENTION, 1.0), (GRADIENT, 0.5)])
def test_attention_of_a_library_reaches_its_own_share_of_what_matmuls_do(work, share) -> None:
    tensor = (((0,), (1,)), 16)
    _, _, seconds = compute(work, 1e12, (64, 64), (tensor,), (tensor,), {0: (0,)})
    assert seconds == pytest.approx(1e12 / 2 / (MATMUL_FLOPS * EFFICIENCY * share))


def test_a_thin_matmul_is_bound_by_the_memory() -> None:
    _, moved, seconds = matmul(8, 4096, 4096)
    assert moved == 2 * (8 * 4096 + 4096**2 + 8 * 4096)
    assert seconds == pytest.approx(moved / (BANDWIDTH * 0.8))


def test_what_is_fused_into_a_large_matmul_takes_no_time_of_its_own() -> None:
    """It is taken off, since it has costs of its own; as much as the matrix unit is busy."""
    busy = 2 * 4096**3 / (MATMUL_FLOPS * EFFICIENCY)
    alone = 4096**2 * 4 / (BANDWIDTH * 0.8)
    operand, result = _core.FusedWork(0, 4.0), _core.FusedWork(2, 4.0)
    assert matmul(4096, 4096, 4096, fused=[operand])[2] == pytest.approx(busy - alone)
    assert matmul(4096, 4096, 4096, fused=[operand, result])[2] == pytest.approx(busy - 2 * alone)
    # No more than the matmul leaves the memory idle.
    moved = 3 * 2 * 4096**2 / (BANDWIDTH * 0.8)
    much = _core.FusedWork(2, 1e6)
    assert matmul(4096, 4096, 4096, fused=[much])[2] == pytest.approx(moved)


def test_work_on_a_partial_sum_is_not_done_in_the_kernel() -> None:
    """A device has half of what is contracted, and with it half of the first operand."""
    sizes = (4096, 4096, 4096)
    factors = [_core.Factor(size) for size in sizes]
    factors[1] = _core.Factor(4096, _core.FactorKind.REDUCTION)
    types = [_core.TensorType([4096, 4096], 16)] * 3
    tensors = [_core.RuleTensor(n, dims) for n, dims in enumerate([[[0], [1]], [[1], [2]]])]
    result = [_core.RuleTensor(2, [[0], [2]])]
    flops = 2.0 * 4096**3
    rule = _core.Rule(factors, tensors, result, work=MATMUL, arithmetic=F16, flops=flops)
    fused = [_core.FusedWork(0, 4.0), _core.FusedWork(2, 4.0)]

    def seconds(axes: list[list[int]], tile_bytes: float = 0) -> float:
        tiles = cluster(answers={"fusion.matmul_tile_bytes": tile_bytes})
        return _core.compute(rule, types, axes, (True,) * 2, (True,), tiles, MESH, fused).seconds

    busy, alone = flops / (MATMUL_FLOPS * EFFICIENCY), 4096**2 * 4 / (BANDWIDTH * 0.8)
    assert seconds([[], [0], []]) == pytest.approx(busy / 2 - alone / 2)
    assert seconds([[0], [], []]) == pytest.approx(busy / 2 - alone)
    # Nor does it take room there: 4 + 2 * 2 bytes in place of 4 + 2 * 6.
    read = 2 * 2 * 4096**2 * 2048 / 32 / (BANDWIDTH * 0.8)
    assert seconds([[], [0], []], 8 * 32.0**2) == pytest.approx(read - alone / 2)
    read = 2 * (2048 * 4096 * 4096 + 2048 * 4096 * 4096) / 32 / (BANDWIDTH * 0.8)
    assert seconds([[0], [], []], 16 * 32.0**2) == pytest.approx(read - alone)


def test_a_matmul_that_waits_for_memory_hides_nothing() -> None:
    alone = matmul(8, 4096, 4096)
    assert matmul(8, 4096, 4096, fused=[_core.FusedWork(2, 4.0)]) == alone


def test_work_in_a_matmul_is_computed_or_moved_whichever_takes_longer() -> None:
    busy = 2 * 4096**3 / (MATMUL_FLOPS * EFFICIENCY)
    work = _core.FusedWork(2, 1.0, packed=2.0, flops=100.0)
    seconds = matmul(4096, 4096, 4096, fused=[work])[2]
    assert seconds == pytest.approx(busy - 4096**2 * 100 / VECTOR_FLOPS)
    seconds = matmul(4096, 4096, 4096, fused=[work], packed_bytes=40.0)[2]
    packed = 4096**2 * 81 / (BANDWIDTH * 0.8)
    assert busy > packed > 4096**2 * 100 / VECTOR_FLOPS
    memory = (3 * 2 + 40) * 4096**2 / (BANDWIDTH * 0.8)
    assert seconds == pytest.approx(max(busy - packed, memory))


@pytest.mark.parametrize(
    ("rows", "columns", "summed"),
    [
        (1, 4096, 1024 * 4096),
        (4096, 1, 1024 * 4096),
        (1, 1, 1024),
        # Matrix units take two rows.
        (2, 4096, 0),
    ],
)
def test_a_product_with_a_vector_sums_what_it_multiplies(rows, columns, summed) -> None:
    _, moved, seconds = matmul(rows, 1024, columns, packed_bytes=4.0)
    packed = 4 * (summed + rows * columns)
    assert seconds == pytest.approx((moved + packed) / (BANDWIDTH * 0.8))
    # A quarter of the contracted dim: a quarter of the sums.
    _, moved, seconds = matmul(rows, 1024, columns, {1: (1,)}, packed_bytes=4.0)
    packed = 4 * (summed / 4 + rows * columns)
    assert seconds == pytest.approx((moved + packed) / (BANDWIDTH * 0.8))


def test_operands_of_a_batch_of_products_take_longer() -> None:
    batch = (((0,), (1,), (2,)), 16), (((0,), (2,), (3,)), 16)
    sizes, result = (64, 128, 128, 256), (((0,), (1,), (3,)), 16)
    answers = {"fusion.batch_operand_bytes": 2.0}
    _, moved, seconds = compute(
        MATMUL, 2.0 * prod(sizes), sizes, batch, (result,), reads=(True, False), answers=answers
    )
    # Whether they are read or computed.
    operands = 64 * 128 * (128 + 256)
    assert seconds == pytest.approx((moved + 2 * operands) / (BANDWIDTH * 0.8))
    assert matmul(8, 4096, 4096, answers=answers) == matmul(8, 4096, 4096)


def test_a_product_reads_its_operands_for_each_tile_that_fits() -> None:
    busy = 2 * 4096 * 8192 * 4096 / (MATMUL_FLOPS * EFFICIENCY)
    work = _core.FusedWork(2, 10.0)
    # A product in 16 bits and 10 bytes beside it: 4 + 2 * 12 bytes.
    answers = {"fusion.matmul_tile_bytes": 28 * 64.0**2}
    alone = matmul(4096, 8192, 4096, answers=answers)[2]
    read = 2 * 2 * 4096**2 * 8192 / 64 / (BANDWIDTH * 0.8)
    assert alone == pytest.approx(read * (8 / 28) ** 0.5)
    assert alone > busy
    assert read > busy
    beside = 10 * 4096**2 / (BANDWIDTH * 0.8)
    seconds = matmul(4096, 8192, 4096, fused=[work], answers=answers)[2]
    assert seconds == pytest.approx(read - beside)


def test_a_vector_without_a_dim_of_one_row_takes_matrix_units() -> None:
    vector, matrix, result = (((0,), (1,)), 16), (((0,), (1,), (2,)), 16), (((0,), (2,)), 16)
    flops = 2.0 * 8 * 1024 * 512
    _, moved, seconds = compute(
        MATMUL, flops, (8, 1024, 512), (vector, matrix), (result,), packed_bytes=4.0
    )
    assert seconds == pytest.approx((moved + 4 * 8 * 512) / (BANDWIDTH * 0.8))


def test_a_depthwise_convolution_is_no_product_with_vectors() -> None:
    # Images, channels, positions and a window of 9.
    image, window, result = (((0,), (2,), (1,)), 16), (((3,), (1,)), 16), (((0,), (2,), (1,)), 16)
    flops = 2.0 * 64 * 128 * 1024 * 9
    _, moved, seconds = compute(
        MATMUL, flops, (64, 128, 1024, 9), (image, window), (result,), packed_bytes=4.0
    )
    written = 4 * 64 * 128 * 1024
    assert seconds == pytest.approx(max(flops / VECTOR_FLOPS, (moved + written) / 0.8e12))


@pytest.mark.parametrize(
    ("cuts", "flops", "moved"),
    [
        # rows: both big tensors shrink, the right operand stays
        ({0: (1,)}, 1 / 4, 2 * (1024**2 / 4 + 1024**2 + 1024**2 / 4)),
        ({1: (1,)}, 1 / 4, 2 * (1024**2 / 4 + 1024**2 / 4 + 1024**2)),
        ({2: (0,)}, 1 / 2, 2 * (1024**2 + 1024**2 / 2 + 1024**2 / 2)),
        ({0: (0,), 2: (1,)}, 1 / 8, 2 * (1024**2 / 2 + 1024**2 / 4 + 1024**2 / 8)),
        ({0: (0, 1)}, 1 / 8, 2 * (1024**2 / 8 + 1024**2 + 1024**2 / 8)),
    ],
)
def test_cuts_divide_work_and_the_tensors_that_have_the_factor(cuts, flops, moved) -> None:
    result = matmul(1024, 1024, 1024, cuts)
    assert result[0] == pytest.approx(2 * 1024**3 * flops)
    assert result[1] == pytest.approx(moved)


def test_tiles_are_padded_on_every_device() -> None:
    # 100 rows of 8, 1000 inner of 128, 300 columns of 128
    assert matmul(100, 1000, 300)[0] == pytest.approx(2 * 104 * 1024 * 384)
    # a quarter of the columns: 75 take a tile of 128
    assert matmul(100, 1000, 300, {2: (1,)})[0] == pytest.approx(2 * 104 * 1024 * 128)
    # cut further than the tiles, nothing is won
    cut, whole = matmul(1024, 128, 128, {1: (1,)}), matmul(1024, 128, 128)
    assert cut[0] == pytest.approx(whole[0])


def test_a_batch_is_not_padded() -> None:
    # 3 products of 64x128 by 128x128: factors batch 0, rows 1, inner 2, columns 3
    flops, _, _ = compute(
        MATMUL,
        2.0 * 3 * 64 * 128 * 128,
        (3, 64, 128, 128),
        ((((0,), (1,), (2,)), 16), (((0,), (2,), (3,)), 16)),
        ((((0,), (1,), (3,)), 16),),
    )
    assert flops == 2 * 3 * 64 * 128 * 128


def test_dims_of_several_factors_are_padded_together() -> None:
    # columns of 4 heads x 32: one tile of 128, not four
    flops, _, _ = compute(
        MATMUL,
        2.0 * 64 * 128 * 128,
        (64, 128, 4, 32),
        ((((0,), (1,)), 16), (((1,), (2,), (3,)), 16)),
        ((((0,), (2,), (3,)), 16),),
    )
    assert flops == 2 * 64 * 128 * 128


def convolution(inner: int, outer: int, groups: int = 1, cuts=None) -> tuple[float, float, float]:
    """Batch 0, rows of pixels 1, in-features 2, out-features 3, window 4, groups 5."""
    flops = 2.0 * 32 * 56 * inner * outer * 9 * groups
    return compute(
        MATMUL,
        flops,
        (32, 56, inner, outer, 9, groups),
        ((((0,), (1,), (5, 2)), 16), (((4,), (2,), (5, 3)), 16)),
        ((((0,), (1,), (5, 3)), 16),),
        cuts,
    )


def test_pixels_of_a_convolution_are_rows_and_its_window_is_contracted() -> None:
    # 3 in-features x 9 make 27 of a tile of 128, not 3
    assert convolution(3, 64)[0] == pytest.approx(2 * 32 * 56 * 128 * 128)
    assert convolution(3, 64, cuts={0: (1,)})[0] == pytest.approx(2 * 8 * 56 * 128 * 128)


def test_a_depthwise_convolution_takes_the_vector_unit() -> None:
    # 9 of 128 x 1 of 128 on the matrix unit would take 1,820 times the operations
    flops, _, seconds = convolution(1, 1, groups=256)
    assert flops == 2 * 32 * 56 * 9 * 256
    assert seconds == pytest.approx(flops / VECTOR_FLOPS)


def test_rates_follow_the_arithmetic() -> None:
    times = [matmul(4096, 4096, 4096, arithmetic=a)[2] for a in (F32, F16, F8, I8)]
    assert times == pytest.approx([times[1] * f for f in (2, 1, 1 / 2, 1 / 4)])
    # slower than the vector unit, which then does it
    assert matmul(4096, 4096, 4096, arithmetic=F64)[2] == pytest.approx(2 * 4096**3 / VECTOR_FLOPS)


def elementwise(bits: int = 32, **more) -> tuple[float, float, float]:
    vector: Tensor = (((0,), (1,)), bits)
    return compute(ELEMENTWISE, 1e6, (1000, 1000), (vector, vector), (vector,), **more)


def test_an_elementwise_op_is_bound_by_the_memory() -> None:
    flops, moved, seconds = elementwise()
    assert (flops, moved) == (1e6, 12e6)
    assert seconds == pytest.approx(12e6 / (BANDWIDTH * 0.8))


def test_in_a_fusion_only_what_is_stored_moves() -> None:
    assert elementwise(reads=(True, False), writes=(False,))[1] == 4e6
    flops, moved, seconds = elementwise(reads=(False, False), writes=(False,))
    assert moved == 0
    assert seconds == pytest.approx(flops / VECTOR_FLOPS)


def test_only_what_touches_memory_is_launched() -> None:
    alone = elementwise()[2]
    assert elementwise(launch=LAUNCH)[2] == pytest.approx(alone + LAUNCH)
    fused = elementwise(reads=(False, False), writes=(False,), launch=LAUNCH)[2]
    assert fused == pytest.approx(1e6 / VECTOR_FLOPS)


def test_what_makes_a_scalar_of_a_fused_tensor_is_launched() -> None:
    vector = (((0,), (1,)), 32)
    made = compute(REDUCE, 1e6, (1000, 1000), (vector,), (((), 32),), reads=(False,), launch=1.0)
    assert made[2] == pytest.approx(1 + 1e6 / VECTOR_FLOPS)


def test_elements_may_be_less_than_a_byte() -> None:
    assert elementwise(4)[1] == 3 * 1e6 / 2
    assert elementwise(1)[1] == 3 * 1e6 / 8


def test_an_op_may_touch_less_than_its_tensors() -> None:
    # a slice of 10 rows out of 1000
    row, part = 4000.0, 40_000.0
    table: Tensor = (((0,), (1,)), 32)
    rows: Tensor = (((2,), (1,)), 32)
    sizes = (1000, 1000, 10)
    whole = compute(INDEXED, 0, sizes, (table, ((), 32)), (rows,), operand_bytes=(part, -1))
    assert whole[1] == 10 * row + part
    # half of the columns
    half = compute(
        INDEXED, 0, sizes, (table, ((), 32)), (rows,), {1: (0,)}, operand_bytes=(part, -1)
    )
    assert half[1] == whole[1] / 2
    # results too: an update in place
    update = compute(
        INDEXED,
        0,
        sizes,
        (table, rows),
        (table,),
        operand_bytes=(0.0, -1.0),
        result_bytes=(part,),
    )
    assert update[1] == 2 * part


def test_what_is_touched_is_cut_as_the_tensor_that_is_as_large() -> None:
    # 10 rows out of 1000, as those rows are cut
    row, part = 4000.0, 40_000.0
    table: Tensor = (((0,), (1,)), 32)
    rows: Tensor = (((2,), (1,)), 32)
    sizes = (1000, 1000, 10)

    def gather(cuts: dict[int, tuple[int, ...]]) -> float:
        operands, bytes_ = (table, ((), 32)), (part, -1.0)
        return compute(
            INDEXED, 0, sizes, operands, (rows,), cuts, operand_bytes=bytes_, touched_as=2
        )[1]

    def scatter(cuts: dict[int, tuple[int, ...]]) -> float:
        operands, bytes_ = (table, ((), 32), rows), (part, -1.0, -1.0)
        return compute(
            *(INDEXED, 0, sizes, operands, (table,), cuts),
            **{"operand_bytes": bytes_, "result_bytes": (part,), "touched_as": 2},
        )[1]

    assert gather({}) == gather({0: (1,)}) == 2 * part, "each device looks for all rows"
    assert gather({2: (0,)}) == gather({1: (0,)}) == part
    assert scatter({}) == 10 * row + 2 * part
    assert scatter({2: (0,)}) == scatter({}) / 2


def test_tensors_of_rank_0_take_nothing() -> None:
    assert compute(OTHER, 10, (), (((), 32),), (((), 32),)) == (10, 0, 10 / VECTOR_FLOPS)


def test_kinds_that_there_are_not() -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        matmul(8, 8, 8, arithmetic=5)
    with pytest.raises(ValueError, match="one flag a tensor"):
        matmul(8, 8, 8, reads=(True,))


CUTS = st.fixed_dictionaries(
    {}, optional={f: st.sampled_from([(), (0,), (1,)]) for f in range(3)}
).filter(lambda cuts: sorted(a for axes in cuts.values() for a in axes) in ([], [0], [1], [0, 1]))


@settings(max_examples=300, deadline=None)
@given(st.tuples(*[st.integers(1, 40).map(lambda n: 8 * n)] * 3), CUTS)
def test_against_the_formula(sizes, cuts) -> None:
    rows, inner, columns = (
        size // prod(MESH[a] for a in cuts.get(f, ())) for f, size in enumerate(sizes)
    )
    padded = 2 * ceil(rows / 8) * 8 * ceil(inner / 128) * 128 * ceil(columns / 128) * 128
    needed = 2 * rows * inner * columns
    unit, vector = padded / (MATMUL_FLOPS * EFFICIENCY), needed / VECTOR_FLOPS
    moved = 2 * (rows * inner + inner * columns + rows * columns)
    flops, got_moved, seconds = matmul(*sizes, cuts)
    assert flops == pytest.approx(padded if unit < vector else needed)
    assert got_moved == pytest.approx(moved)
    assert seconds == pytest.approx(max(min(unit, vector), moved / (BANDWIDTH * 0.8)))


@settings(max_examples=200, deadline=None)
@given(st.tuples(*[st.sampled_from([8, 64, 120, 512, 4096])] * 3), CUTS, st.integers(0, 2))
def test_a_further_cut_never_takes_longer(sizes, cuts, factor: int) -> None:
    used = {a for axes in cuts.values() for a in axes}
    further = {**cuts, factor: (*cuts.get(factor, ()), *(a for a in (0, 1) if a not in used))}
    assert matmul(*sizes, further)[2] <= matmul(*sizes, cuts)[2] * (1 + 1e-9)


@pytest.mark.parametrize(("axes", "moved"), [((1,), 0), ((), 4 * 512 * 4 + 512 * 4)])
def test_a_sum_of_one_element_of_each_device_is_its_collective_alone(axes, moved) -> None:
    """The first dim of 4 x 512 is added up: over an axis of four devices nothing is left to add."""
    rule = _core.Rule(
        [
            _core.Factor(4, _core.FactorKind.REDUCTION, 0),
            _core.Factor(512, _core.FactorKind.PASS_THROUGH, 0),
        ],
        [_core.RuleTensor(0, ((0,), (1,)))],
        [_core.RuleTensor(1, ((1,),))],
        work=REDUCE,
        arithmetic=F32,
        flops=4.0 * 512,
    )
    types = [_core.TensorType((4, 512), 32), _core.TensorType((512,), 32)]
    found = _core.compute(rule, types, [axes, ()], (True,), (True,), cluster(0.0, 0.0), MESH)
    assert found.bytes == moved
    assert (found.seconds == 0) == (moved == 0)


@pytest.mark.parametrize(
    ("sizes", "summed", "cuts", "kernels"),
    [
        ((1024, 16384), {1}, {}, 1),
        ((1024, 16385), {1}, {}, 2),
        ((1024, 32768), {1}, {1: (0,)}, 1),
        ((1024, 64), {0, 1}, {}, 2),
        ((1024, 16), {0, 1}, {}, 1),
        ((8, 128, 1024), {0, 2}, {}, 1),
        ((16, 128, 1024), {0, 2}, {}, 2),
        ((16, 128, 1024), {0, 2}, {0: (0,)}, 1),
        ((4096, 1024), {0}, {}, 1),
        ((8192, 1024), {0}, {}, 2),
        ((8192, 1024), {0}, {0: (1,)}, 1),
        ((16, 512, 1024), {0, 1}, {}, 2),
        ((64, 4096, 64), {1}, {}, 1),
        ((16, 16, 1024, 64), {0, 2}, {}, 2),
    ],
)
def test_long_reductions_are_two_kernels(sizes, summed, cuts, kernels) -> None:
    """Rows of 16,384 and columns of 4,096 elements are one; so are at most eight rows apart."""
    kinds = [
        _core.FactorKind.REDUCTION if f in summed else _core.FactorKind.PASS_THROUGH
        for f in range(len(sizes))
    ]
    kept = tuple(size for f, size in enumerate(sizes) if f not in summed)
    rule = _core.Rule(
        [_core.Factor(size, kind, 0) for size, kind in zip(sizes, kinds, strict=True)],
        [_core.RuleTensor(0, tuple((f,) for f in range(len(sizes))))],
        [_core.RuleTensor(1, tuple((f,) for f in range(len(sizes)) if f not in summed))],
        work=REDUCE,
        arithmetic=F32,
        flops=1.0 * prod(sizes),
    )
    types = [_core.TensorType(sizes, 32), _core.TensorType(kept, 32)]
    axes = [cuts.get(f, ()) for f in range(len(sizes))]

    def seconds(launch: float) -> float:
        on = cluster(launch, whole=(16384, 4096))
        return _core.compute(rule, types, axes, (True,), (True,), on, MESH).seconds

    assert seconds(1.0) - seconds(0.0) == pytest.approx(kernels)


UNALIGNED = {"fusion.unaligned_rows": 0.27}


@pytest.mark.parametrize(
    ("columns", "share"), [(4096, 1.0), (4104, 1.0), (4100, 0.65), (4098, 0.42), (4097, 0.27)]
)
def test_rows_that_are_no_multiple_of_16_bytes_slow_a_product(columns, share) -> None:
    plain = matmul(4096, 4096, columns)[2]
    assert matmul(4096, 4096, columns, answers=UNALIGNED)[2] == pytest.approx(
        plain / share, rel=0.01
    )


def test_the_rows_of_a_device_are_what_counts() -> None:
    # 2 x 4,097 columns: odd on each of two devices.
    cut, alone = {2: (0,)}, matmul(4096, 4096, 8194, {2: (0,)})[2]
    assert matmul(4096, 4096, 8194, cut, answers=UNALIGNED)[2] == pytest.approx(alone / 0.27)
    whole = matmul(4096, 4096, 8194)[2]
    assert matmul(4096, 4096, 8194, answers=UNALIGNED)[2] == pytest.approx(whole / 0.27 ** (2 / 3))


def test_a_row_is_all_of_a_dim_that_is_made_of_several() -> None:
    # 33 heads of 64 features are one dim of 2,112 columns.
    sizes = (4096, 4096, 33, 64)
    shapes = ((((0,), (1,)), 16), (((1,), (2, 3)), 16)), ((((0,), (2, 3)), 16),)
    plain, found = (
        compute(MATMUL, 2.0 * prod(sizes), sizes, *shapes, answers=answers)
        for answers in ({}, UNALIGNED)
    )
    assert found == plain


def test_a_single_row_begins_where_it_begins() -> None:
    assert matmul(1, 4096, 1, answers=UNALIGNED) == matmul(1, 4096, 1)


def test_a_product_that_waits_for_memory_reads_such_rows_as_slowly() -> None:
    _, moved, seconds = matmul(4096, 8, 4097, answers=UNALIGNED)
    odd = 2 * 4097 * (4096 + 8) / 0.27 + 2 * 4096 * 8
    assert moved == 2 * (4097 * (4096 + 8) + 4096 * 8)
    assert seconds == pytest.approx(odd / 0.8e12)


@pytest.mark.parametrize(("size", "waits"), [(512, 0.0), (77, 1 / 0.27 - 1)])
def test_a_sum_over_such_rows_waits_for_each_element(size, waits) -> None:
    rule = _core.Rule(
        [
            _core.Factor(4096, _core.FactorKind.PASS_THROUGH, 0),
            _core.Factor(size, _core.FactorKind.REDUCTION, 0),
        ],
        [_core.RuleTensor(0, ((0,), (1,)))],
        [_core.RuleTensor(1, ((0,),))],
        work=REDUCE,
        arithmetic=F32,
        flops=4096.0 * size,
    )
    types = [_core.TensorType((4096, size), 32), _core.TensorType((4096,), 32)]
    on = cluster(answers=UNALIGNED)
    found = _core.compute(rule, types, [(), ()], (True,), (True,), on, MESH)
    assert found.seconds == pytest.approx((found.bytes + 2 * 4096 * size * waits) / 0.8e12)


IMAGE = (((0,), (1,), (2,)), 16), (((4,), (2,), (3,)), 16), (((0,), (1,), (3,)), 16)
"""An image, its window and the result: images 0, positions 1, channels 2 and 3, window 4."""


@pytest.mark.parametrize(("channels", "times"), [(16, 8.0), (64, 2.0), (128, 1.0)])
def test_channels_of_a_window_are_padded(channels, times) -> None:
    sizes = (512, 4096, channels, 256, 9)
    flops = 2.0 * prod(sizes)
    made = compute(
        MATMUL, flops, sizes, IMAGE[:2], IMAGE[2:], answers={"fusion.convolution_channels": 128}
    )
    assert made[2] == pytest.approx(times * flops / (MATMUL_FLOPS * EFFICIENCY))


@pytest.mark.parametrize(("groups", "times"), [(128, 4.0), (96, 4.0 * 128 / 96), (384, 4.0)])
def test_convolutions_of_a_channel_a_group_fill_columns_of_tiles(groups, times) -> None:
    sizes = (64, 4096, groups, 9)
    image, window = (((0,), (1,), (2,)), 16), (((3,), (2,)), 16)
    flops = 2.0 * prod(sizes)
    made = compute(
        MATMUL,
        flops,
        sizes,
        (image, window),
        (image,),
        answers={"fusion.convolutions_on_vectors": 0.25, "layout.tile_columns": 128},
    )
    assert made[2] == pytest.approx(times * flops / VECTOR_FLOPS)


def test_convolutions_of_few_channels_multiply_and_add_at_a_share_of_the_peak() -> None:
    sizes = (64, 4096, 1, 128, 9)
    image, window, result = (((0,), (1,), (3,)), 16), (((4,), (3,)), 16), IMAGE[2]
    flops = 2.0 * prod(sizes)
    made = compute(
        MATMUL,
        flops,
        sizes,
        (image, window),
        (result,),
        answers={"fusion.convolution_channels": 128, "fusion.convolutions_on_vectors": 0.25},
    )
    assert made[2] == pytest.approx(flops / (VECTOR_FLOPS * 0.25))
