"""Clusters: names, files, the axes of a search, and meshes laid over physical dims."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard import Cluster, ClusterError, Mesh, _core
from autoshard.cli import cluster as cli
from autoshard.cluster import CHIPS, Constant, Dim, LinkKind
from autoshard.cluster.chips import FAMILIES
from autoshard.cluster.detect import detected
from autoshard.sharding.mesh import Axis

DOCS = Path(__file__).parents[3] / "docs" / "use" / "clusters.md"

NAMES = {
    "v4:2x2x2": 16,
    "v5e:4x4": 16,
    "v5p:4x4x4": 64,
    "v6e:16x16": 256,
    "tpu7x:4x4x8": 256,
    "h100:8": 8,
    "h100:4x8": 32,
    "h200:8": 8,
    "a100:2x8": 16,
    "b200:8": 8,
    "ascend910b:8": 8,
    "cpu:1": 1,
    "cpu:6": 6,
    "cpu:7": 7,
    "cpu:8": 8,
    "cpu:12": 12,
    "h100:3x8": 24,
    "v5p:4x4x6": 96,
    "v5p:16x16x16*16": 65536,
}


@pytest.mark.parametrize(("name", "devices"), NAMES.items())
def test_every_name_has_its_devices_and_fits_its_own_search_axes(name: str, devices: int):
    cluster = Cluster.parse(name)
    mesh = cluster.level_mesh()
    core = cluster.to_core(mesh)
    assert cluster.name == name
    assert cluster.num_devices == mesh.size == devices
    assert core.memory_bytes == cluster.usable_memory_bytes
    assert [len(parts) for parts in core.axes] == [1] * len(mesh.axes)


def kinds(name: str) -> dict[str, str]:
    return {dim.name: dim.kind.value for dim in Cluster.parse(name).dims}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v5e:8x16", {"x": "line", "y": "ring"}),
        ("v6e:4x4", {"x": "line", "y": "line"}),
        ("v6e:16x16", {"x": "ring", "y": "ring"}),
        ("v5p:4x8x12", {"x": "ring", "y": "ring", "z": "ring"}),
        ("v5p:2x4x4", {"x": "line", "y": "line", "z": "line"}),
        ("v5p:4x4x1", {"x": "line", "y": "line"}),
        ("v4:4x4x4", {"x": "ring", "y": "ring", "z": "ring", "core": "switched"}),
        ("tpu7x:2x2x1*2", {"slice": "network", "x": "line", "y": "line", "core": "switched"}),
        ("h100:4x8", {"node": "network", "gpu": "switched"}),
        ("ascend910b:8", {"npu": "switched"}),
        ("cpu:2x4", {"host": "network", "cpu": "switched"}),
    ],
)
def test_dims_wrap_where_the_machine_joins_their_ends(name: str, expected: dict[str, str]):
    assert kinds(name) == expected


def test_devices_that_share_a_chip_have_half_of_it():
    tpu7x, v5p = CHIPS["tpu7x"], CHIPS["v5p"]
    assert tpu7x.matmul_f16.value == 2307e12 / 2
    assert tpu7x.matmul_f8.value == 4614e12 / 2
    assert tpu7x.memory_bandwidth.value == 7380e9 / 2
    assert FAMILIES["tpu7x"].link.bandwidth.value == FAMILIES["v5p"].link.bandwidth.value / 2
    assert v5p.matmul_f16.value == 459e12


def test_a_reader_that_leaves_ends_the_command_without_a_word():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "autoshard.cli.cluster", "v5p:4x4x4"]
    ran = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_clocks_times_the_matrix_units_are_the_peaks():
    units_of_n = {"v4": (4, 128), "v5e": (4, 128), "v5p": (8, 128), "v6e": (4, 256)}
    for name, (units, n) in (units_of_n | {"tpu7x": (4, 256)}).items():
        clock = FAMILIES[name].clock
        assert clock is not None
        peak = clock.value * units * n * n * 2
        assert peak == pytest.approx(CHIPS[name].matmul_f16.value, rel=0.005), name


def test_vector_units_run_at_the_clock_that_the_compiler_counts_in():
    # 8 x 128 lanes with 4 ALUs; a device of v5p has two cores.
    cores = {"v4": 1, "v5e": 1, "v5p": 2, "v6e": 1, "tpu7x": 1}
    clocks = {name: family.clock for name, family in FAMILIES.items() if family.clock}
    assert set(cores) == set(clocks)
    for name, number in cores.items():
        assert CHIPS[name].vector_flops.value == 4096 * number * clocks[name].value


def test_memory_is_what_the_compiler_says():
    # Its out-of-memory messages (libtpu 0.0.42) say how much there is and how much it reserves;
    # the program itself takes some KiB more.
    mib = 2**20
    stated = {
        "v5e": 16 * 1024 - 258,
        "v5p": 96 * 1024 - 263,
        "v6e": 31.5 * 1024 - 260,
        "tpu7x": 95 * 1024 - 260,
    }
    for name, memory in stated.items():
        assert 0 <= memory * mib - CHIPS[name].memory_bytes.value < 64 * 1024, name


def test_h100_links_give_the_measured_times_of_large_all_gathers():
    # 8 GPUs gather 2 GB at 394 GB/s; 32 nodes with one GPU each at 49.5 GB/s.
    node, network = FAMILIES["h100"].link.bandwidth.value, FAMILIES["h100"].network.bandwidth.value
    assert 2e9 * 7 / 8 / node == pytest.approx(2e9 / 394e9, rel=0.01)
    assert 2e9 * 31 / 32 / network == pytest.approx(2e9 / 49.5e9, rel=0.01)


def test_every_constant_names_its_source():
    for family in FAMILIES.values():
        links = [family.link, family.network, family.on_chip]
        constants = [*family.chip.constants().values()]
        constants += [c for link in links if link for c in (link.bandwidth, link.latency)]
        assert all(len(constant.source) > 3 for constant in constants), family.chip.name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5p", r'"v5p" is not of the form CHIP:SIZES\. Write a name such as v5e:4x4'),
        ("v5p-128", "not of the form CHIP:SIZES"),
        ("v5q:4x4x4", r'no chip "v5q" is known, only a100.*v5e.*Did you mean "v5p"\?.*TOML'),
        ("h10:8", r'Did you mean "h100"\?'),
        ("zzz:8", r"only a100.*v6e\. Describe others in a TOML file"),
        ("v5e:4x4x4", "has 3 dims, but a slice of v5e has 2.*such as v5e:4x4 "),
        ("v5p:4x4", "has 2 dims, but a slice of v5p has 3.*v5p:4x4x4"),
        ("v5e:32x8", "dims of up to 32 and 256 chips.*at most 16 and 256.*several slices"),
        ("v4:16x16x16*0", '"0" is not a size'),
        ("v4:16x16x17", "at most 16 and 4096"),
        ("v5p:4xx4", '"" is not a size'),
        ("v5p:4x-1x4", '"-1" is not a size'),
        ("v5p:4x4x4*two", '"two" is not a size'),
        ("h100:16", "16 gpus in a node, but there are at most 8 of h100.*h100:2x8"),
        ("h100:12", "h100:2x6"),
        ("h100:2x2x8", r"has two: nodes x gpus\. Write h100:4x8"),
        ("h100:8*2", r"only TPUs have slices \(\*2\)\. Write nodes x gpus, such as h100:2x8"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_a_way_out(name: str, message: str):
    with pytest.raises(ClusterError, match=message):
        Cluster.parse(name)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("v5p:4x4x4", "x0=2,x1=2,y0=2,y1=2,z0=2,z1=2"),
        ("v5p:16x16x16*16", "slice=16,x=16,y0=4,y1=4,z0=4,z1=4"),
        ("v5e:16x16", "x0=4,x1=4,y0=2,y1=2,y2=2,y3=2"),
        ("tpu7x:4x4x8", "x=4,y=4,z0=2,z1=2,z2=2,core=2"),
        ("h100:4x8", "node0=2,node1=2,gpu0=2,gpu1=2,gpu2=2"),
        ("cpu:7", "cpu=7"),
        ("cpu:96", "cpu0=3,cpu1=2,cpu2=2,cpu3=2,cpu4=2,cpu5=2"),
        ("cpu:8x12", "host0=2,host1=2,host2=2,cpu0=3,cpu1=2,cpu2=2"),
        ("cpu:720", "cpu0=5,cpu1=4,cpu2=3,cpu3=3,cpu4=2,cpu5=2"),
    ],
)
def test_search_axes_are_primes_or_six_of_nearly_equal_size(name: str, mesh: str):
    assert str(Cluster.parse(name).level_mesh()) == mesh


def test_one_device_has_no_axes():
    cluster = Cluster.parse("cpu:1")
    assert cluster.level_mesh().axes == ()
    assert cluster.to_core(cluster.level_mesh()).axes == []


def core_axes(cluster: str, mesh: str) -> list[list[tuple[int, int]]]:
    core = Cluster.parse(cluster).to_core(Mesh.parse(mesh))
    return [[(part.dim, part.size) for part in parts] for parts in core.axes]


@pytest.mark.parametrize(
    ("cluster", "mesh", "axes"),
    [
        ("h100:4x8", "data=4,model=8", [[(0, 4)], [(1, 8)]]),
        ("h100:4x8", "data=32", [[(0, 4), (1, 8)]]),
        ("h100:4x8", "data=8,model=4", [[(0, 4), (1, 2)], [(1, 4)]]),
        ("h100:4x8", "a=2,b=4,c=4", [[(0, 2)], [(0, 2), (1, 2)], [(1, 4)]]),
        ("h100:3x8", "a=6,b=4", [[(0, 3), (1, 2)], [(1, 4)]]),
        ("v5p:4x4x4", "a=8,b=8", [[(0, 4), (1, 2)], [(1, 2), (2, 4)]]),
        ("v5p:4x4x4", "a=1,b=64,c=1", [[(0, 4), (1, 4), (2, 4)]]),
        ("cpu:12", "a=4,b=3", [[(0, 4)], [(0, 3)]]),
    ],
)
def test_mesh_axes_cover_dims_from_left_to_right(
    cluster: str, mesh: str, axes: list[list[tuple[int, int]]]
):
    assert core_axes(cluster, mesh) == axes


def test_an_axis_that_ends_inside_a_dim_is_refused():
    with pytest.raises(ClusterError, match=r'axis "a" \(size 4\) ends inside.*node=3 x gpu=8'):
        core_axes("h100:3x8", "a=4,b=6")


def test_a_mesh_of_other_devices_is_refused():
    with pytest.raises(ClusterError, match="has 8 devices, but cluster h100:4x8 has 32"):
        core_axes("h100:4x8", "a=2,b=4")


@given(st.data())
def test_parts_multiply_to_axes_and_to_dims(data: st.DataObject):
    sizes = data.draw(st.lists(st.integers(2, 12), min_size=1, max_size=4))
    dims = tuple(make_dim(f"d{i}", size) for i, size in enumerate(sizes))
    cluster = replace(Cluster.parse("cpu:1"), dims=dims)
    # Each dim as one or two factors, then neighbours joined at random.
    factors = [f for size in sizes for f in data.draw(st.sampled_from(two_factors(size)))]
    cuts = data.draw(st.lists(st.booleans(), min_size=len(factors), max_size=len(factors)))
    groups: list[list[int]] = [[]]
    for factor, cut in zip(factors, cuts, strict=True):
        groups[-1].append(factor)
        if cut:
            groups.append([])
    mesh = Mesh(tuple(Axis(f"a{i}", prod(group)) for i, group in enumerate(groups)))
    core = cluster.to_core(mesh)
    wanted = [axis.size for axis in mesh.axes if axis.size > 1]
    assert [prod(part.size for part in parts) for parts in core.axes] == wanted
    flat = [(part.dim, part.size) for parts in core.axes for part in parts]
    assert [d for d, _ in flat] == sorted(d for d, _ in flat)
    for d, size in enumerate(sizes):
        assert prod(part for index, part in flat if index == d) == size


@given(st.lists(st.integers(2, 400), min_size=1, max_size=7))
def test_search_axes_cover_every_dim_alone(sizes: list[int]):
    dims = tuple(make_dim(f"d{i}", size) for i, size in enumerate(sizes))
    cluster = replace(Cluster.parse("cpu:1"), dims=dims)
    mesh = cluster.level_mesh()
    axes = cluster.to_core(mesh).axes
    assert len(mesh.axes) <= max(6, len(sizes))
    assert all(len(parts) == 1 for parts in axes)
    for d, size in enumerate(sizes):
        assert prod(parts[0].size for parts in axes if parts[0].dim == d) == size


def make_dim(name: str, size: int) -> Dim:
    return Dim(name, size, LinkKind.SWITCHED, Constant(1e9, "test"), Constant(1e-6, "test"))


def two_factors(size: int) -> list[list[int]]:
    return [[n, size // n] for n in range(1, size + 1) if size % n == 0]


def test_the_core_gets_the_kind_bandwidth_and_latency_of_dims():
    cluster = Cluster.parse("v5e:16x8*2")
    core = cluster.to_core(cluster.level_mesh(), overlap=0.25)
    found = [(dim.size, dim.kind, dim.bandwidth, dim.latency) for dim in core.dims]
    assert found == [
        (2, LinkKind.NETWORK, 3.125e9, pytest.approx(20e-6)),
        (16, LinkKind.RING, 45e9, pytest.approx(1e-6)),
        (8, LinkKind.LINE, 45e9, pytest.approx(1e-6)),
    ]
    assert core.overlap == 0.25


@pytest.mark.parametrize("overlap", [-0.1, 1.1, float("nan")])
def test_an_overlap_that_is_no_share_is_refused(overlap: float):
    cluster = Cluster.parse("cpu:2")
    with pytest.raises(ClusterError, match=r"overlap is .* from 0 to 1"):
        cluster.to_core(cluster.level_mesh(), overlap)


RING = (4, LinkKind.RING, 1e9, 1e-6)
SWITCH = (2, LinkKind.SWITCHED, 1e9, 1e-6)
CORE = {
    "matmul_flops": [1e12] * 5,
    "vector_flops": 1e11,
    "memory_bytes": 1e9,
    "memory_bandwidth": 1e11,
    "tile_rows": 8,
    "tile_columns": 128,
    "matmul_efficiency": 0.9,
    "memory_efficiency": 0.9,
    "launch_seconds": 0.0,
    "dims": [RING, SWITCH],
    "axes": [[(0, 2)], [(0, 2), (1, 2)]],
}


def core_cluster(**fields: Any) -> _core.Cluster:
    """``CORE`` with other fields."""
    made: dict[str, Any] = {**CORE, **fields}
    made["dims"] = [_core.PhysicalDim(*dim) for dim in made["dims"]]
    made["axes"] = [[_core.AxisPart(*part) for part in parts] for parts in made["axes"]]
    return _core.Cluster(**made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matmul_flops": [1e12] * 4 + [0.0]}, "matmul_flops"),
        ({"vector_flops": float("nan")}, "vector_flops"),
        ({"memory_bytes": float("inf")}, "memory_bytes"),
        ({"tile_rows": 0}, "tile_rows"),
        ({"memory_efficiency": 1.5}, "memory_efficiency"),
        ({"launch_seconds": -1.0}, "launch_seconds"),
        ({"overlap": 2.0}, "overlap"),
        ({"dims": [(4, LinkKind.RING, 0.0, 1e-6), SWITCH]}, "dim 0 bandwidth"),
        ({"dims": [RING, (1, LinkKind.SWITCHED, 1e9, 1e-6)]}, "dim 1 has size 1"),
        ({"axes": [[(0, 2)], [(0, 2)]]}, "cover 1 of the 2 of dim 1"),
        ({"axes": [[(2, 2)], [(0, 4)]]}, "axis 0 covers dim 2, which"),
        ({"axes": [[(0, 4), (1, 2), (2, 2)]]}, "axis 0 covers dim 2"),
        ({"axes": [[(0, 4), (1, 2)], [(1, 1)]]}, "a part of size 1"),
    ],
)
def test_the_core_checks_what_it_is_given(change: dict[str, object], message: str):
    assert core_cluster().overlap == 0
    with pytest.raises(ValueError, match=message):
        core_cluster(**change)


@pytest.mark.parametrize("name", NAMES)
def test_toml_round_trip(name: str, tmp_path: Path):
    cluster = Cluster.parse(name)
    path = tmp_path / "cluster.toml"
    path.write_text(cluster.to_toml())
    assert Cluster.from_toml(path) == cluster
    assert Cluster.of(str(path)) == cluster


def test_a_file_of_before_the_slowdown_by_the_host_has_that_of_collectives(tmp_path: Path):
    cluster = Cluster.of("h100:8")
    path = tmp_path / "cluster.toml"
    path.write_text(re.sub(r"^host_slowdown = .*\n", "", cluster.to_toml(), flags=re.MULTILINE))
    chip = Cluster.from_toml(path).chip
    assert chip.host_slowdown == cluster.chip.overlap_slowdown


def test_the_file_of_the_documentation_starts_from_its_base(tmp_path: Path):
    path = tmp_path / "racks.toml"
    found = re.search(r"```toml\n(name = .*?)```", DOCS.read_text(), re.DOTALL)
    assert found
    path.write_text(found[1])
    cluster = Cluster.of(path)
    h100 = Cluster.parse("h100:4x8")
    rack, node, gpu = cluster.dims
    assert (cluster.name, cluster.num_devices) == ("two-racks", 64)
    assert cluster.chip.memory_bytes == Constant(72e9, "what our job scheduler leaves")
    assert cluster.chip.matmul_efficiency == Constant(0.6, "given in racks.toml")
    assert cluster.chip.matmul_f16 == h100.chip.matmul_f16
    assert (rack.size, rack.bandwidth.value, rack.latency.value) == (2, 12.5e9, 30e-6)
    assert (node, gpu) == h100.dims


def test_a_base_with_sizes_gives_the_dims(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "v5p:4x4x4"\n[chip]\nmemory_bytes = 90e9\n')
    cluster = Cluster.of(path)
    assert cluster.name == "mine"
    assert cluster.usable_memory_bytes == 90_000_000_000
    assert cluster.dims == Cluster.parse("v5p:4x4x4").dims


ONE_DIM = '[[dims]]\nname = "x"\nsize = 4\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "v5p', "not a TOML file: Unterminated string"),
        ('base = "v9:4x4"', r'no chip "v9" is known'),
        ('base = "v5e:4x4x4"', "base: .*a slice of v5e has 2"),
        ('base = "v9"', r'base = "v9": no chip "v9" is known, only a100'),
        ("base = 5", "base = 5 is no name"),
        ('base = "v5p"\norder = ' + "[" * 5000, "lists within lists, deeper than can be read"),
        (
            'bse = "v5p"',
            "bse is no key here, only name, base, compiler, order, chip, dims, slower,"
            r" calibration, corrections\. "
            r'Did you mean "base"\?',
        ),
        ('base = "v5p"', r"dims is missing\. Add a \[\[dims\]\] table"),
        ("[chip]", "chip.name is missing"),
        ('[chip]\nname = "a"', r"chip\.matmul_f64 is missing\. Give it in FLOP/s, or set base"),
        ('base = "cpu:2"\nchip = 3', r"chip = 3 is no table\. Write \[chip\]"),
        (
            'base = "cpu:2"\n[chip]\nfuses_matmuls = 1',
            r'fuses_matmuls is no constant of a chip any more.*compiler = "xla-tpu"',
        ),
        ('compiler = "xla-tup"\nbase = "cpu:2"', r'compiler = .*no compiler "xla-tup".*xla-tpu"\?'),
        ('base = "cpu:2"\n[chip]\nmemory = 1', r'chip\.memory is no key.*mean "memory_bytes"'),
        ('base = "cpu:2"\n[chip]\nmemory_bytes = "1"', r"memory_bytes = '1' is no number.* bytes"),
        ('base = "cpu:2"\n[chip]\nmemory_bytes = true', "is no number"),
        ('base = "cpu:2"\n[chip]\nmemory_bytes = -1', "= -1: a positive number of bytes is needed"),
        ('base = "cpu:2"\n[chip]\nmemory_bytes = inf', "a finite number of bytes"),
        ('base = "cpu:2"\n[chip]\nmatmul_efficiency = 1.5', "a share above 0 and at most 1"),
        ('base = "cpu:2"\n[chip]\ntile_rows = 2.5', "a whole number from 1 on"),
        ('base = "cpu:2"\n[chip]\nlaunch_seconds = -1e-6', "0 or more seconds"),
        (
            'base = "cpu:2"\n[chip]\nmemory_bytes = { source = "x" }',
            r"chip\.memory_bytes\.value is missing",
        ),
        (
            'base = "cpu:2"\n[chip]\nmemory_bytes = { value = 1, from = "x" }',
            r"chip\.memory_bytes\.from is no key here, only value, source",
        ),
        ('base = "cpu"\ndims = 3', "dims = 3 is no list"),
        ('base = "cpu"\ndims = [3]', r"dims\[0\] = 3 is no table"),
        ('base = "cpu"\n[[dims]]\nsize = 2', r"dims\[0\]\.name = None cannot name axes"),
        ('base = "cpu"\n[[dims]]\nname = "a b"', r"dims\[0\]\.name = 'a b' cannot name axes"),
        ('base = "cpu"\n[[dims]]\nname = "x"\nsize = 0', r"dims\[0\]\.size = 0 is no size"),
        (f'base = "cpu"\n{ONE_DIM}', r"kind = None is no kind of link.*ring, line, switched, net"),
        (f'base = "cpu"\n{ONE_DIM}kind = "torus"', r"kind = 'torus' is no kind of link"),
        (
            f'base = "cpu"\n{ONE_DIM}kind = "ring"',
            r'dims\[0\]\.bandwidth is missing, and base "cpu" has no such link.* bytes/s',
        ),
        (
            f'base = "cpu"\n{ONE_DIM}kind = "network"\n{ONE_DIM}kind = "network"',
            r'dims\[1\]\.name = "x" is taken',
        ),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_key(text: str, message: str, tmp_path: Path):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ClusterError, match=message) as raised:
        Cluster.of(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_missing_file_is_refused():
    with pytest.raises(ClusterError, match=r"^nowhere\.toml: .*cannot be read: No such file"):
        Cluster.of("nowhere.toml")


def test_a_cluster_that_is_built_by_hand_is_checked():
    cluster = Cluster.parse("cpu:8")
    chip = replace(cluster.chip, memory_bytes=Constant(-1.0, "test"))
    with pytest.raises(ClusterError, match=r"chip\.memory_bytes is -1\.0; a positive number"):
        replace(cluster, chip=chip)
    with pytest.raises(ClusterError, match="dim a has size 1"):
        replace(cluster, dims=(make_dim("a", 1),))
    with pytest.raises(ClusterError, match="several dims are named a"):
        replace(cluster, dims=(make_dim("a", 2), make_dim("a", 2)))
    with pytest.raises(ClusterError, match="has 17 dims, but at most 16"):
        replace(cluster, dims=tuple(make_dim(f"d{i}", 2) for i in range(17)))


def test_of_takes_a_cluster_as_it_is():
    cluster = Cluster.parse("cpu:8")
    assert Cluster.of(cluster) is cluster
    assert Cluster.of("cpu:8") == cluster


@pytest.mark.parametrize("name", NAMES)
def test_describe_shows_every_dim_and_every_source(name: str):
    cluster = Cluster.parse(name)
    text = cluster.describe()
    words = " ".join(text.split())
    assert f"{cluster.num_devices} device" in text
    for key, constant in cluster.chip.constants().items():
        assert key in text
        assert constant.source.split()[0] in words
    for dim in cluster.dims:
        assert dim.name in text
        assert dim.kind.value in text
        assert dim.bandwidth.source.split()[0] in words
    assert str(cluster.level_mesh()) in text


def test_describe_says_what_wraps_and_how_fast_links_are():
    text = Cluster.parse("v5e:8x16").describe()
    assert re.search(r"x +8 +line: neighbours, does not wrap +45 GB/s +1 us", text)
    assert re.search(r"y +16 +ring: neighbours, ends joined +45 GB/s +1 us", text)
    assert re.search(r"memory_bytes +15\.75 GiB +the most that a program may use", text)


def test_the_command_prints_tables_files_and_errors(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["h100:8"]) == 0
    assert "8 devices of h100 (NVIDIA H100 SXM)" in capsys.readouterr().out
    assert cli.main(["h100:8", "--toml"]) == 0
    assert "[[dims]]" in capsys.readouterr().out
    assert cli.main(["h100:99"]) == 1
    assert capsys.readouterr().err.startswith("autoshard-cluster: error: cluster")


def test_clusters_need_no_jax():
    code = (
        "import sys; from autoshard import Cluster; c = Cluster.parse('v5p:4x4x4');"
        " c.to_core(c.level_mesh()); c.describe(); c.to_toml(); print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@dataclass
class Device:
    """What ``detect`` looks at."""

    device_kind: str
    process_index: int = 0
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0
    slice_index: int = 0


def tpus(
    kind: str, sizes: tuple[int, int, int], cores: int = 1, slices: int = 1, start: int = 0
) -> list[Device]:
    a, b, c = sizes
    return [
        Device(kind, 0, (start + x, y, z), core, s)
        for s in range(slices)
        for x in range(a)
        for y in range(b)
        for z in range(c)
        for core in range(cores)
    ]


def gpus(processes: int, machines: int) -> list[Device]:
    """Eight a machine."""
    count = 8 * machines
    return [
        Device("NVIDIA H100 80GB HBM3", n * processes // count, slice_index=n * machines // count)
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ([Device("cpu")] * 8, "cpu:8"),
        ([Device("cpu", p) for p in (0, 1) for _ in range(4)], "cpu:2x4"),
        ([Device("NVIDIA H100 80GB HBM3", p) for p in range(4) for _ in range(8)], "h100:4x8"),
        (gpus(processes=8, machines=1), "h100:8"),
        (gpus(processes=16, machines=2), "h100:2x8"),
        (gpus(processes=2, machines=2), "h100:2x8"),
        (tpus("TPU v5 lite", (4, 4, 1)), "v5e:4x4"),
        (tpus("TPU v5", (2, 2, 4)), "v5p:2x2x4"),
        (tpus("TPU v5p", (2, 2, 4), slices=2), "v5p:2x2x4*2"),
        (tpus("TPU v6 lite", (2, 4, 1), start=2), "v6e:2x4"),
        (tpus("TPU7x", (2, 2, 1), cores=2), "tpu7x:2x2x1"),
    ],
)
def test_devices_are_recognised(devices: list[Device], name: str):
    assert detected(devices).name == name
    assert Cluster.parse(name).num_devices == len(devices)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([Device("NVIDIA A100-SXM4-40GB")] * 8, r'kind "NVIDIA A100-SXM4-40GB" are not known'),
        ([Device("cpu"), Device("TPU7x")], "devices of one kind, but these are 1 cpu, 1 TPU7x"),
        ([], "but these are none"),
        ([Device("cpu", 0), Device("cpu", 0), Device("cpu", 1)], "but these have 1, 2"),
        (tpus("TPU v5", (2, 2, 2))[:-1], "7 devices .*v5p:2x2x2 do not fill it: it has 8"),
        (tpus("TPU v4", (2, 2, 1)), r"4 devices .*it has 8, 2 a chip.*TOML"),
    ],
)
def test_devices_that_are_no_cluster_are_refused(devices: list[Device], message: str):
    with pytest.raises(ClusterError, match=message):
        detected(devices)


def test_detect_finds_the_devices_of_jax(caplog: pytest.LogCaptureFixture):
    jax = pytest.importorskip("jax")
    with caplog.at_level("INFO", logger="autoshard"):
        found = Cluster.detect()
    assert found.num_devices == len(jax.devices())
    assert f"the devices here: {found.name}\n  read: {found.num_devices} device" in caplog.text


@pytest.mark.parametrize(
    ("devices", "read", "assumed"),
    [
        (
            tpus("TPU v5", (4, 4, 4), slices=2),
            ["128 devices of kind TPU v5", "coordinates that fill 4x4x4 chips of 2 slices"],
            ["slice: joined by a network of", "x: neighbours are linked, and so are the ends"],
        ),
        (
            tpus("TPU v5 lite", (2, 4, 1)),
            ["coordinates that fill 2x4 chips of one slice"],
            ["as the tables of v5e say", "y: neighbours are linked, the ends are not"],
        ),
        (
            gpus(processes=16, machines=2),
            ["16 devices of kind NVIDIA H100 80GB HBM3", "2 machines of 8, each a node"],
            ["node: joined by a network", "gpu: all reach each other at full rate"],
        ),
        ([Device("cpu", p) for p in range(2)], ["2 processes of 1, each a host"], ["host: join"]),
    ],
)
def test_it_is_said_what_was_read_of_devices_and_what_is_assumed(
    devices: list[Device], read: list[str], assumed: list[str]
):
    found = detected(devices)
    for said, wanted in ((found.read, read), (found.assumed, assumed)):
        for each in wanted:
            assert any(each in line for line in said), (each, said)
