"""Seconds of collectives, against formulas worked out by hand and against measured points."""

from __future__ import annotations

from math import prod

import pytest
from compiler_answers import GPU, TPU
from core_cluster import core_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.sharding.mesh import Axis, Mesh

Kind = _core.CollectiveKind
GATHER, SCATTER, REDUCE, ALL_TO_ALL, PERMUTE = _core.CollectiveKind
RING, LINE, SWITCHED, NETWORK = _core.LinkKind
MIB = 2.0**20
MICRO = 1e-6

ICI = 45e9
"""Bytes/s of a link, one way, and 1 us a hop: v5e."""


def core(dims: list[tuple[int, _core.LinkKind, float, float]], axes: list[list[tuple[int, int]]]):
    """A cluster of (size, kind, bandwidth, latency) and what each axis covers: (dim, size)."""
    is_torus = any(kind in (RING, LINE) for _, kind, _, _ in dims)
    return core_cluster(dims, axes, TPU if is_torus else GPU)


def seconds(
    kind: Kind,
    held: float,
    cluster,
    axes: tuple[int, ...] = (0,),
    participants: int = 0,
) -> float:
    sizes = [prod(part.size for part in parts) for parts in cluster.axes]
    mask = sum(1 << axis for axis in axes)
    count = participants or prod(sizes[axis] for axis in axes)
    return _core.collective_seconds(_core.Step(kind, mask, count, held), cluster, sizes)


def ring(n: int, *splits: int):
    """A ring of ``n``; with ``splits``, the sizes of the axes that it is cut into."""
    return core([(n, RING, ICI, MICRO)], [[(0, size)] for size in splits or (n,)])


def line(n: int, *splits: int):
    return core([(n, LINE, ICI, MICRO)], [[(0, size)] for size in splits or (n,)])


TORUS = core([(4, RING, 90e9, MICRO)] * 3, [[(0, 4)], [(1, 4)], [(2, 4)]])
"""v5p:4x4x4."""

NODE = core([(8, SWITCHED, 345e9, 4.3 * MICRO)], [[(0, 8)]])
"""h100:8."""

NODES = core(
    [(4, NETWORK, 48e9, 14 * MICRO), (8, SWITCHED, 345e9, 4.3 * MICRO)], [[(0, 4)], [(1, 8)]]
)
"""h100:4x8."""

SLICES = core(
    [(2, NETWORK, 6.25e9, 20 * MICRO)] + [(4, RING, 90e9, MICRO)] * 3,
    [[(0, 2)], [(1, 4), (2, 4), (3, 4)]],
)
"""v5p:4x4x4*2, one axis for the slices and one for all chips of a slice."""


def test_a_ring_gathers_over_both_directions() -> None:
    # 15 MiB arrive at every chip over two links
    assert seconds(GATHER, MIB, ring(16)) == pytest.approx(15 * MIB / (2 * ICI))
    assert seconds(SCATTER, 16 * MIB, ring(16)) == pytest.approx(15 * MIB / (2 * ICI))
    assert seconds(REDUCE, 16 * MIB, ring(16)) == pytest.approx(2 * 15 * MIB / (2 * ICI))


def test_small_messages_wait_for_the_farthest_chip() -> None:
    assert seconds(GATHER, 1, ring(16)) == pytest.approx(8 * MICRO)
    assert seconds(GATHER, 1, line(4)) == pytest.approx(3 * MICRO)
    assert seconds(REDUCE, 1, ring(16)) == pytest.approx(16 * MICRO)


def test_a_line_has_half_the_bandwidth_of_a_ring() -> None:
    # the end of a line has one link, over which 3 MiB arrive
    assert seconds(GATHER, MIB, line(4)) == pytest.approx(3 * MIB / ICI)
    assert seconds(GATHER, MIB, line(4)) == pytest.approx(2 * seconds(GATHER, MIB, ring(4)))


def test_whole_torus_dims_reduce_over_all_their_links() -> None:
    # 63 MiB arrive over 2 links in each of 3 dims, twice
    assert seconds(REDUCE, 64 * MIB, TORUS, (0, 1, 2)) == pytest.approx(2 * 63 * MIB / (6 * 90e9))
    assert seconds(REDUCE, 16 * MIB, TORUS, (0, 2)) == pytest.approx(2 * 15 * MIB / (4 * 90e9))
    assert seconds(REDUCE, 1, TORUS, (0, 1, 2)) == pytest.approx(2 * 3 * 2 * MICRO)


def test_several_torus_dims_gather_and_scatter_in_one_ring() -> None:
    # its two links, and half of 16 hops to the farthest
    assert seconds(GATHER, MIB, TORUS, (0, 2)) == pytest.approx(15 * MIB / (2 * 90e9))
    assert seconds(SCATTER, 16 * MIB, TORUS, (0, 2)) == pytest.approx(15 * MIB / (2 * 90e9))
    assert seconds(GATHER, 1, TORUS, (0, 2)) == pytest.approx(8 * MICRO)


def test_a_ring_through_a_part_of_a_dim_is_as_slow_as_its_slowest_link() -> None:
    torus = core([(4, RING, 90e9, MICRO)] * 2, [[(0, 2)], [(0, 2), (1, 4)]])
    assert seconds(GATHER, MIB, torus, (1,)) == pytest.approx(7 * MIB / (2 * 90e9))
    assert seconds(REDUCE, 8 * MIB, torus, (1,)) == pytest.approx(2 * 7 * MIB / (2 * 90e9))
    # the halves of dim 0 that are major share its links with those between them
    torus = core([(4, RING, 90e9, MICRO)] * 2, [[(0, 2)], [(0, 2)], [(1, 4)]])
    assert seconds(GATHER, MIB, torus, (0, 2)) == pytest.approx(7 * MIB / (2 * 90e9 / 2))
    assert seconds(GATHER, 1, torus, (0, 2)) == pytest.approx(4 * 2 * MICRO)


def test_cubes_of_two_gather_over_all_their_links() -> None:
    cube = core([(2, LINE, 90e9, MICRO)] * 3, [[(0, 2)], [(1, 2), (2, 2)]])
    assert seconds(GATHER, MIB, cube, (0, 1)) == pytest.approx(7 * MIB / (3 * 90e9))
    assert seconds(GATHER, MIB, cube, (1,)) == pytest.approx(3 * MIB / (2 * 90e9))


def test_one_axis_over_several_dims_is_as_several_axes() -> None:
    one = core([(4, RING, 90e9, MICRO)] * 3, [[(0, 4), (1, 4), (2, 4)]])
    for kind in Kind:
        assert seconds(kind, MIB, one) == seconds(kind, MIB, TORUS, (0, 1, 2))


def test_all_to_all_is_bound_by_the_middle_of_the_longest_dim() -> None:
    # ring of 16: 8 chips send half of their 16 MiB across the middle, over 2 links each way
    assert seconds(ALL_TO_ALL, 16 * MIB, ring(16)) == pytest.approx(16 * 16 * MIB / (8 * ICI))
    assert seconds(ALL_TO_ALL, 16 * MIB, line(4)) == pytest.approx(4 * 16 * MIB / (4 * ICI))
    # 2 of 3 chips on one side: 2 * 1 pairs each way, a third of 3 MiB each
    assert seconds(ALL_TO_ALL, 3 * MIB, line(3)) == pytest.approx(2 * MIB / ICI)
    wide = core([(4, RING, ICI, MICRO), (8, RING, ICI, MICRO)], [[(0, 4)], [(1, 8)]])
    assert seconds(ALL_TO_ALL, MIB, wide, (0, 1)) == pytest.approx(8 * MIB / (8 * ICI))


def test_all_to_all_over_a_ring_is_about_a_quarter_of_a_gather() -> None:
    gather = seconds(GATHER, MIB, ring(16))
    assert seconds(ALL_TO_ALL, MIB, ring(16)) == pytest.approx(gather / 4 * 16 / 15)


def test_a_permute_is_one_hop() -> None:
    assert seconds(PERMUTE, MIB, ring(16)) == pytest.approx(MICRO + MIB / ICI)
    assert seconds(PERMUTE, MIB, NODE) == pytest.approx(4.3 * MICRO + MIB / 345e9)
    assert seconds(PERMUTE, MIB, NODES, (0, 1)) == pytest.approx(14 * MICRO + MIB / 48e9)


def test_the_minor_part_of_a_ring_is_a_line() -> None:
    split = ring(16, 4, 4)
    assert seconds(GATHER, MIB, split, (1,)) == pytest.approx(3 * MIB / ICI)
    assert seconds(GATHER, 1, split, (1,)) == pytest.approx(3 * MICRO)
    assert seconds(PERMUTE, MIB, split, (1,)) == pytest.approx(MICRO + MIB / ICI)


def test_groups_of_the_major_part_of_a_ring_share_its_links() -> None:
    split = ring(16, 4, 4)
    # each group goes round the whole ring, where 4 groups pass every link
    assert seconds(GATHER, MIB, split, (0,)) == pytest.approx(3 * MIB / (2 * ICI / 4))
    assert seconds(GATHER, 1, split, (0,)) == pytest.approx(8 * MICRO)
    assert seconds(PERMUTE, MIB, split, (0,)) == pytest.approx(4 * (MICRO + MIB / ICI))
    # of a line, there is one way only
    assert seconds(GATHER, MIB, line(4, 2, 2), (0,)) == pytest.approx(MIB / (ICI / 2))


def test_parts_of_a_dim_together_are_the_dim() -> None:
    for kind in Kind:
        assert seconds(kind, MIB, ring(16, 4, 2, 2), (0, 1, 2)) == seconds(kind, MIB, ring(16))


def test_a_node_gathers_in_as_many_steps_as_there_are_others() -> None:
    assert seconds(GATHER, MIB, NODE) == pytest.approx(7 * 4.3 * MICRO + 7 * MIB / 345e9)
    assert seconds(SCATTER, 8 * MIB, NODE) == pytest.approx(7 * 4.3 * MICRO + 7 * MIB / 345e9)
    assert seconds(ALL_TO_ALL, 8 * MIB, NODE) == pytest.approx(7 * 4.3 * MICRO + 7 * MIB / 345e9)


def test_an_all_reduce_is_a_tree_when_small_and_a_ring_when_large() -> None:
    assert seconds(REDUCE, 8, NODE) == pytest.approx(2 * 3 * 4.3 * MICRO + 2 * 8 / 345e9)
    assert seconds(REDUCE, 8 * 64 * MIB, NODE) == pytest.approx(
        2 * (7 * 4.3 * MICRO + 7 * 64 * MIB / 345e9)
    )


def test_nodes_gather_in_turn_when_small_and_as_one_ring_when_large() -> None:
    # in turn: 3 steps over the network with the small shard, then 7 in the node
    small = 3 * 14 * MICRO + 3 * 1024 / 48e9 + 7 * 4.3 * MICRO + 7 * 4 * 1024 / 345e9
    assert seconds(GATHER, 1024, NODES, (0, 1)) == pytest.approx(small)
    # one ring: 31 shards arrive at the rate of NVLink, less than the 8 cards of a node have;
    # 3 steps between nodes and 4 * 7 within them
    large = 3 * 14 * MICRO + 28 * 4.3 * MICRO + 31 * 32 * MIB / 345e9
    assert seconds(GATHER, 32 * MIB, NODES, (0, 1)) == pytest.approx(large)


def test_nodes_reduce_by_a_tree() -> None:
    # 2 levels of nodes and 3 within one, up and down
    tree = 4 * 14 * MICRO + 6 * 4.3 * MICRO + 2 * MIB / 345e9
    assert seconds(REDUCE, MIB, NODES, (0, 1)) == pytest.approx(tree)


def test_one_device_a_node_has_its_own_card() -> None:
    assert seconds(GATHER, MIB, NODES, (0,)) == pytest.approx(3 * 14 * MICRO + 3 * MIB / 48e9)


def test_all_to_all_over_nodes_waits_for_the_network() -> None:
    # 3/4 of what a device holds goes to other nodes
    assert seconds(ALL_TO_ALL, MIB, NODES, (0, 1)) == pytest.approx(
        3 * 14 * MICRO + 0.75 * MIB / 48e9
    )


def test_slices_see_the_shard_of_one_chip() -> None:
    # reduce-scatter in the slice, by one ring, then half of 1 MiB to the other slice
    torus, network = 63 * MIB / (2 * 90e9), 20 * MICRO + 0.5 * MIB / 6.25e9
    assert seconds(SCATTER, 64 * MIB, SLICES, (0, 1)) == pytest.approx(torus + network)
    assert seconds(GATHER, 0.5 * MIB, SLICES, (0, 1)) == pytest.approx(torus + network)
    # an all-reduce has all links of the slice
    torus, both_ways = 63 * MIB / (6 * 90e9), min(2 * network, 2 * 20 * MICRO + 2 * MIB / 6.25e9)
    assert seconds(REDUCE, 64 * MIB, SLICES, (0, 1)) == pytest.approx(2 * torus + both_ways)


def test_two_devices_of_a_chip_are_nearer_than_the_torus() -> None:
    chips = core([(4, RING, 45e9, MICRO), (2, SWITCHED, 540e9, MICRO)], [[(0, 4)], [(1, 2)]])
    torus, chip = 3 * MIB / (2 * 45e9), MICRO + 4 * MIB / 540e9
    assert seconds(GATHER, MIB, chips, (0, 1)) == pytest.approx(torus + chip)


def test_a_part_of_an_axis_keeps_the_slow_dims() -> None:
    # 4 of the 32 devices along one axis of 4 nodes x 8: taken to be one in each node
    whole = core(
        [(4, NETWORK, 48e9, 14 * MICRO), (8, SWITCHED, 345e9, 4.3 * MICRO)], [[(0, 4), (1, 8)]]
    )
    assert seconds(GATHER, MIB, whole, (0,), 4) == seconds(GATHER, MIB, NODES, (0,))
    # 4 of 16 in a ring: a line
    assert seconds(GATHER, MIB, ring(16), (0,), 4) == pytest.approx(3 * MIB / ICI)


def test_alone_or_with_nothing_there_is_nothing_to_wait_for() -> None:
    for kind in Kind:
        assert _core.collective_seconds(_core.Step(kind, 0, 1, MIB), TORUS, [4, 4, 4]) == 0
        assert _core.collective_seconds(_core.Step(kind, 1, 1, MIB), TORUS, [4, 4, 4]) == 0
        assert _core.collective_seconds(_core.Step(kind, 1, 4, 0), TORUS, [4, 4, 4]) == 0


def test_participants_that_the_axes_do_not_have() -> None:
    with pytest.raises(RuntimeError, match="collective: 3 devices cannot be a part of 4"):
        seconds(GATHER, MIB, TORUS, (0,), 3)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        seconds(5, MIB, TORUS)  # pyright: ignore[reportArgumentType]


def as_compiled(cluster: str, mesh: str, axes: str, kind: Kind, held: float) -> tuple[Kind, float]:
    """Kind, and bytes held before, of what the cluster's compiler writes."""
    parsed = Mesh.parse(mesh)
    taking_part = [parsed.axis_names.index(axis) for axis in axes.split(",")]
    sizes = list(parsed.axis_sizes)
    step = _core.Step(
        kind,
        sum(1 << axis for axis in taking_part),
        prod(sizes[axis] for axis in taking_part),
        held,
    )
    made = _core.collective_as_compiled(step, Cluster.parse(cluster).to_core(parsed), sizes)
    return made.kind, made.held_bytes


# What libtpu 0.0.42.1 makes of ``jax.jit(lambda w: w)`` from sharded to whole, and of sums that are
# scattered: cluster, mesh, axes, kind, bytes held before, and whether an all-reduce is compiled.
COMPILED = [
    ("v5p:4x4x4", "x=64", "x", GATHER, MIB / 4, True),
    ("v5p:4x4x4", "x=64", "x", GATHER, 7.34 * MIB, True),
    ("v5p:4x4x4", "a=4,b=16", "a,b", GATHER, MIB, True),
    ("v5p:4x4x4", "a=4,b=16", "b", GATHER, MIB, False),
    ("v5p:4x4x4", "a=2,b=32", "b", GATHER, MIB, False),
    ("v5p:4x4x8", "a=2,b=64", "b", GATHER, MIB, False),
    ("v5p:4x4x8", "x=128", "x", GATHER, MIB, True),
    ("v5p:2x2x16", "x=64", "x", GATHER, MIB, True),
    ("v5p:2x4x4", "x=32", "x", GATHER, MIB, False),
    ("v5p:2x2x2", "x=8", "x", GATHER, MIB, False),
    ("v5p:4x4x4*2", "s=2,x=64", "x", GATHER, MIB, True),
    ("v4:4x4x4", "x=128", "x", GATHER, MIB, True),
    ("v5e:8x8", "x=64", "x", GATHER, MIB / 4, True),
    ("v5e:8x8", "x=64", "x", GATHER, MIB / 4 + 1, False),
    ("v5e:16x16", "x=256", "x", GATHER, MIB / 16, True),
    ("v5e:16x16", "a=16,b=16", "a", GATHER, MIB / 16, False),
    ("v5e:4x8", "x=32", "x", GATHER, MIB / 16, False),
    ("v5p:4x4x4", "x=64", "x", SCATTER, 64 * MIB, True),
    ("v5p:4x4x4", "a=4,b=16", "b", SCATTER, 64 * MIB, False),
    ("v5p:4x4x8", "a=2,b=64", "b", SCATTER, 64 * MIB, False),
    ("v5e:8x8", "x=64", "x", SCATTER, 256 * MIB, True),
    ("v5e:4x8", "x=32", "x", SCATTER, 64 * MIB, False),
    ("v5p:4x4x4", "x=64", "x", ALL_TO_ALL, MIB, False),
]


@pytest.mark.parametrize(("cluster", "mesh", "axes", "kind", "held", "reduces"), COMPILED)
def test_a_whole_slice_of_tpus_reduces_instead(
    cluster: str, mesh: str, axes: str, kind: Kind, held: float, reduces: bool
) -> None:
    size = prod(Mesh.parse(mesh).axis_size(axis) for axis in axes.split(","))
    whole = held * size if kind == GATHER else held
    expected = (REDUCE, whole) if reduces else (kind, held)
    assert as_compiled(cluster, mesh, axes, kind, held) == expected


def test_what_is_reduced_to_gather_it_is_filled_with_zeros_first() -> None:
    cluster, mesh = Cluster.parse("v5p:4x4x4"), Mesh.parse("a=4,b=16")
    sizes = [axis.size for axis in mesh.axes]

    def both(kind: Kind, axes: int, count: int, held: float) -> tuple[float, float]:
        group = (_core.Step(kind, axes, count, held), cluster.to_core(mesh), sizes)
        return _core.collective_seconds(*group), _core.collective_compiled_seconds(*group)

    reduced, _ = both(REDUCE, 0b11, 64, 64 * MIB)
    _, compiled = both(GATHER, 0b11, 64, MIB)
    zeros = 64 * MIB / (0.1 * cluster.chip.memory_bandwidth.value)
    assert compiled == pytest.approx(reduced + zeros)
    for kind, axes, count, held in ((GATHER, 0b10, 16, MIB), (REDUCE, 0b11, 64, MIB)):
        plain, compiled = both(kind, axes, count, held)
        assert compiled == plain


def test_what_gpus_reduce_in_one_buffer_is_taken_out_by_a_kernel_each() -> None:
    cluster, mesh = Cluster.parse("h100:8"), Mesh.parse("x=8")

    def more(kind: Kind, held: float) -> float:
        group = (_core.Step(kind, 0b1, 8, held), cluster.to_core(mesh), [8])
        return _core.collective_compiled_seconds(*group) - _core.collective_seconds(*group)

    assert more(REDUCE, MIB / 8) == pytest.approx(cluster.chip.launch_seconds.value)
    assert more(REDUCE, 31 * MIB) == 0
    assert more(REDUCE, 4) == 0  # A scalar is mostly alone.
    assert more(SCATTER, MIB / 8) == 0


@pytest.mark.parametrize(
    ("before", "after", "copies"), [(1, 2, 2), (2, 1, 2), (0, 2, 1), (1, 0, 1)]
)
def test_tpus_transpose_what_is_exchanged_of_inner_dims(
    before: int, after: int, copies: int
) -> None:
    shape, sizes = [64, 4096, 8], [8]
    cluster = Cluster.parse("v5p:2x2x2")
    core = cluster.to_core(Mesh.parse("x=8"))
    rate = cluster.chip.memory_bandwidth.value * cluster.chip.memory_efficiency.value
    cut = [[[0] if dim == at else [] for dim in range(3)] for at in (before, after)]
    elements = 64 * 4096 * 8 / 8
    for bits, packed in ((16, 4), (32, 0)):
        (step,) = _core.reshard_steps(shape, bits, *cut, 0, sizes)
        more = _core.collective_compiled_seconds(step, core, sizes) - _core.collective_seconds(
            step, core, sizes
        )
        assert more == pytest.approx(copies * elements * (2 * bits / 8 + packed) / rate)


def test_a_dim_of_one_element_does_not_stand_before_another() -> None:
    cluster = Cluster.parse("v5p:2x2x2")
    core = cluster.to_core(Mesh.parse("x=8"))
    rate = cluster.chip.memory_bandwidth.value * cluster.chip.memory_efficiency.value
    (step,) = _core.reshard_steps([1, 64, 64], 32, [[], [0], []], [[], [], [0]], 0, [8])
    plain = _core.collective_seconds(step, core, [8])
    compiled = _core.collective_compiled_seconds(step, core, [8])
    assert compiled - plain == pytest.approx(2 * 64 * 64 * 4 / 8 / rate)


def test_gpus_gather_as_they_are_told() -> None:
    assert as_compiled("h100:8x8", "x=64", "x", GATHER, MIB) == (GATHER, MIB)
    assert as_compiled("h100:8x8", "x=64", "x", SCATTER, MIB) == (SCATTER, MIB)


def test_of_a_named_cluster() -> None:
    cluster = Cluster.parse("v5e:16x16")
    mesh = Mesh((Axis("x", 16), Axis("y", 16)))
    assert seconds(GATHER, MIB, cluster.to_core(mesh), (0,)) == pytest.approx(15 * MIB / (2 * ICI))


# NCCL on H100 nodes with a 400 Gb/s card a GPU, fitted as seconds = alpha + bytes / bandwidth, as
# published in meta-pytorch/autoparallel: (kind, nodes, GPUs used in each, alpha in us, GB/s).
MEASURED = [
    (GATHER, 1, 2, 8, 537),
    (GATHER, 1, 4, 17, 434),
    (GATHER, 1, 8, 30, 394),
    (REDUCE, 1, 2, 10, 324),
    (REDUCE, 1, 4, 15, 236),
    (REDUCE, 1, 8, 31, 267),
    (GATHER, 2, 8, 70, 410),
    (GATHER, 4, 8, 146, 396),
    (GATHER, 8, 8, 297, 390),
    (GATHER, 16, 8, 599, 387),
    (GATHER, 32, 8, 1204, 386),
    (GATHER, 4, 1, 50, 64),
    (GATHER, 8, 1, 106, 55),
    (GATHER, 16, 1, 218, 51),
    (GATHER, 32, 1, 442, 49.5),
    (REDUCE, 2, 8, 53, 267),
    (REDUCE, 4, 8, 81, 160),
    (REDUCE, 8, 8, 109, 160),
    (REDUCE, 16, 8, 137, 160),
    (REDUCE, 32, 8, 165, 160),
]


def modelled(kind: Kind, nodes: int, gpus: int, full: float) -> float:
    if nodes == 1:
        mesh, axes = Mesh((Axis("gpu", gpus),)), (0,)
        cluster = Cluster.parse(f"h100:{gpus}")
    else:
        mesh, axes = Mesh((Axis("node", nodes), Axis("gpu", 8))), (0, 1) if gpus == 8 else (0,)
        cluster = Cluster.parse(f"h100:{nodes}x8")
    held = full / (nodes * gpus) if kind == GATHER else full
    return seconds(kind, held, cluster.to_core(mesh), axes)


@pytest.mark.parametrize(("kind", "nodes", "gpus", "alpha", "bandwidth"), MEASURED)
@pytest.mark.parametrize("full", [1024 * MIB, 4096 * MIB])
def test_large_messages_take_as_long_as_nccl_measures(
    kind: Kind, nodes: int, gpus: int, alpha: float, bandwidth: float, full: float
) -> None:
    ratio = modelled(kind, nodes, gpus, full) / (alpha * MICRO + full / (bandwidth * 1e9))
    # gathers within a quarter; an all-reduce in one or two nodes takes a half less with
    # reductions in the switch, which is not modelled
    assert 0.75 <= ratio <= (1.25 if kind == GATHER else 1.55)


@pytest.mark.parametrize(("kind", "nodes", "gpus", "alpha", "bandwidth"), MEASURED)
def test_small_messages_take_as_long_as_nccl_measures(
    kind: Kind, nodes: int, gpus: int, alpha: float, bandwidth: float
) -> None:
    if kind == GATHER and gpus == 8 and nodes > 1:
        # Measured with the protocol for large messages. That for small ones has 1.9 us a step
        # within a node and 4.0 between them: 31 * 4.0 + 224 * 1.9 = 550 us on 32 nodes.
        assert modelled(kind, nodes, gpus, 1024) <= alpha * MICRO
        assert modelled(kind, nodes, gpus, 1024) >= 0.35 * alpha * MICRO
        return
    ratio = modelled(kind, nodes, gpus, 1024) / (alpha * MICRO)
    assert 0.5 <= ratio <= 1.25


@st.composite
def clusters(draw: st.DrawFn):
    """Slices or nodes, a torus or a switch, and devices of a chip; dims cut into axes."""
    dims: list[tuple[int, _core.LinkKind, float, float]] = []
    if draw(st.booleans()):
        dims.append((draw(st.sampled_from([2, 3, 4])), NETWORK, 6e9, 20 * MICRO))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from([RING, LINE]))
            dims.append((draw(st.sampled_from([2, 4, 6, 16])), kind, ICI, MICRO))
    else:
        dims.append((draw(st.sampled_from([2, 6, 8])), SWITCHED, 300e9, 4 * MICRO))
    if draw(st.booleans()):
        dims.append((2, SWITCHED, 500e9, MICRO))
    axes: list[list[tuple[int, int]]] = []
    for d, (size, *_) in enumerate(dims):
        if size % 2 == 0 and size > 2 and draw(st.booleans()):
            axes += [[(d, 2)], [(d, size // 2)]]
        else:
            axes.append([(d, size)])
    return core(dims, axes)


@st.composite
def groups(draw: st.DrawFn):
    cluster = draw(clusters())
    axes = draw(st.sets(st.integers(0, len(cluster.axes) - 1), min_size=1))
    return cluster, tuple(sorted(axes))


SIZES = st.floats(1, 1e10)
KINDS = st.sampled_from(_core.CollectiveKind)


@settings(max_examples=300, deadline=None)
@given(groups(), KINDS, SIZES, SIZES)
def test_more_bytes_never_take_less_time(group, kind: Kind, one: float, other: float) -> None:
    cluster, axes = group
    less, more = sorted((one, other))
    assert 0 < seconds(kind, less, cluster, axes) <= seconds(kind, more, cluster, axes)


@settings(max_examples=300, deadline=None)
@given(groups(), SIZES)
def test_an_all_reduce_takes_at_most_its_two_halves(group, held: float) -> None:
    cluster, axes = group
    count = prod(part.size for axis in axes for part in cluster.axes[axis])
    halves = seconds(SCATTER, held, cluster, axes) + seconds(GATHER, held / count, cluster, axes)
    whole = seconds(REDUCE, held, cluster, axes)
    assert whole <= halves * (1 + 1e-9)
    dims = {part.dim for axis in axes for part in cluster.axes[axis]}
    if len(dims) == 1 and cluster.dims[min(dims)].kind in {RING, LINE}:
        assert whole == pytest.approx(halves)


@settings(max_examples=300, deadline=None)
@given(groups(), SIZES)
def test_a_gather_takes_as_long_as_the_scatter_that_undoes_it(group, held: float) -> None:
    cluster, axes = group
    count = prod(part.size for axis in axes for part in cluster.axes[axis])
    gather = seconds(GATHER, held, cluster, axes)
    assert gather == pytest.approx(seconds(SCATTER, held * count, cluster, axes))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([(RING, ICI, MICRO), (LINE, ICI, MICRO), (SWITCHED, 300e9, 4 * MICRO)]),
    st.sampled_from([GATHER, SCATTER, REDUCE, ALL_TO_ALL]),
    st.integers(2, 64),
    st.integers(2, 64),
    SIZES,
)
def test_more_devices_of_a_kind_never_take_less_time(
    link, kind: Kind, one: int, other: int, held: float
) -> None:
    fewer, more = sorted((one, other))
    taken = [seconds(kind, held, core([(n, *link)], [[(0, n)]])) for n in (fewer, more)]
    assert taken[0] <= taken[1] * (1 + 1e-9)
