"""What a cluster is to a compiler."""

from dataclasses import replace

import pytest

from autoshard.cluster import CHIPS, Cluster
from autoshard.errors import ClusterError, CompileError
from autoshard.verify import targets
from autoshard.verify.targets import Target, compiled_chips, target_of


@pytest.mark.parametrize(
    ("name", "topology", "slices", "devices"),
    [
        ("v5e:4x4", "v5e:4x4", 1, 16),
        ("v5p:4x4x4*2", "v5p:4x4x4", 2, 128),
        ("v5p:16x16x16*16", "v5p:16x16x16", 16, 65536),
        ("v4:2x2x1", "v4:2x2x1", 1, 8),
        ("tpu7x:2x2x2*2", "tpu7x:2x2x2", 2, 32),
        ("v6e:8x16", "v6e:8x16", 1, 128),
    ],
)
def test_a_slice_is_a_topology_in_chips(name: str, topology: str, slices: int, devices: int):
    assert target_of(Cluster.parse(name)) == Target(name, "tpu", devices, topology, slices)


@pytest.mark.parametrize(
    ("name", "chips"), [("v5e:1x1", (1, 1, 1)), ("v6e:1x4", (1, 2, 1)), ("v5p:2x2x3", ())]
)
def test_small_slices_have_smaller_hosts(name: str, chips: tuple[int, ...]):
    assert target_of(Cluster.parse(name)).chips_per_host == chips


@pytest.mark.parametrize(
    ("name", "topology"),
    [("h100:8", "1x1x8"), ("h100:4x8", "4x1x8"), ("a100:1", "1x1x1"), ("b200:2x4", "2x1x4")],
)
def test_nodes_of_gpus_are_domains_of_nvlink(name: str, topology: str):
    target = target_of(Cluster.parse(name))
    assert (target.platform, target.topology) == ("cuda", topology)
    assert "device_memory_size" in target.gpu_target
    assert target.options == (("xla_gpu_autotune_level", "0"),)


def test_cpus_have_no_topology():
    assert target_of(Cluster.parse("cpu:2x4")) == Target("cpu:2x4", "cpu", 8, "")


def test_every_chip_but_ascend_can_be_compiled_for():
    assert set(CHIPS) - set(compiled_chips()) == {"ascend910b"}
    with pytest.raises(ClusterError, match=r"no compiler for ascend910b is known\. Those for a100"):
        target_of(Cluster.parse("ascend910b:8"))


@pytest.mark.parametrize("chip", [name for name in CHIPS if CHIPS[name].compiler == "xla-gpu"])
def test_xla_schedules_for_the_memory_that_plans_may_use(chip: str):
    cluster = Cluster.parse(f"{chip}:8")
    text = target_of(cluster).gpu_target
    (line,) = [line for line in text.splitlines() if "device_memory_size" in line]
    scheduled = int(line.split()[1]) * 80 // 100
    assert cluster.usable_memory_bytes <= scheduled < cluster.usable_memory_bytes + 100


def test_dims_in_another_order_are_refused(tmp_path):
    path = tmp_path / "swapped.toml"
    path.write_text(
        'base = "v5e:4x4"\n'
        '[[dims]]\nname = "y"\nsize = 4\nkind = "line"\nbandwidth = 4.5e10\nlatency = 1e-6\n'
        '[[dims]]\nname = "x"\nsize = 4\nkind = "line"\nbandwidth = 4.5e10\nlatency = 1e-6\n'
    )
    with pytest.raises(ClusterError, match=r"has the dims y, x, but a compiler for v5e knows"):
        target_of(Cluster.from_toml(path))


def test_half_a_chip_is_refused(tmp_path):
    path = tmp_path / "halves.toml"
    path.write_text(
        'base = "v4:2x2x1"\n'
        '[[dims]]\nname = "x"\nsize = 4\nkind = "line"\nbandwidth = 4.5e10\nlatency = 1e-6\n'
    )
    with pytest.raises(ClusterError, match=r"a chip of v4 is 2 devices, here 1\."):
        target_of(Cluster.from_toml(path))


def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "_version", lambda name: None)
    with pytest.raises(
        CompileError, match=r"not installed\. In a checkout: pip install '\.\[tpu\]'"
    ) as e:
        target_of(Cluster.parse("v5e:4x4")).compiler()
    assert e.value.reason == "not installed"


@pytest.mark.parametrize(
    ("installed", "ptxas", "compiler"),
    [
        ("jax-cuda12-pjrt nvidia-cuda-nvcc-cu12", None, "12-pjrt 1, nvidia-cuda-nvcc-cu12 1"),
        ("jax-cuda13-pjrt nvidia-cuda-nvcc", None, "13-pjrt 1, nvidia-cuda-nvcc 1"),
        ("jax-cuda13-pjrt", "/usr/local/cuda/bin/ptxas", "13-pjrt 1"),
        ("jax-cuda13-pjrt", None, r"the package nvidia-cuda-nvcc, which .*\.\[gpu13\]'"),
        ("", "/usr/local/cuda/bin/ptxas", r"the package jax-cuda12-pjrt, which .*\.\[gpu\]'"),
    ],
)
def test_either_generation_of_cuda_compiles(
    installed: str, ptxas: str | None, compiler: str, monkeypatch: pytest.MonkeyPatch
):
    names = [*installed.split(), "jaxlib"]
    monkeypatch.setattr(targets, "_version", lambda name: "1" if name in names else None)
    monkeypatch.setattr(targets.shutil, "which", lambda name: ptxas)
    target = target_of(Cluster.parse("h100:8"))
    if compiler.startswith("the package"):
        with pytest.raises(CompileError, match=compiler):
            target.compiler()
    else:
        assert target.compiler() == f"jax-cuda{compiler}, jaxlib 1"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("INTERNAL: Couldn't find output tile sizes for %fusion.", "False"),
        ("INTERNAL: .. Example failure: / No supported config found for HLO: %dot", "False"),
        ("RESOURCE_EXHAUSTED: out of memory", None),
    ],
)
def test_products_that_no_tile_fits_are_compiled_without_triton(words: str, answer: str | None):
    found = target_of(Cluster.parse("h100:8")).options_against(words)
    assert found.get("xla_gpu_enable_triton_gemm") == answer
    assert not target_of(Cluster.parse("v5e:4x4")).options_against(words)


def test_the_compiler_of_cpus_is_jaxlib():
    import jaxlib

    assert target_of(Cluster.parse("cpu:8")).compiler() == f"jaxlib {jaxlib.__version__}"


def test_what_a_cluster_has_less_of_a_tpu_than_the_chip_is_left_to_others() -> None:
    cluster = Cluster.parse("v5e:2x2")
    memory = cluster.chip.memory_bytes
    less = replace(memory, value=memory.value - 4096)
    smaller = replace(cluster, chip=replace(cluster.chip, memory_bytes=less))
    assert target_of(cluster).options == ()
    assert target_of(smaller).options == (("xla_tpu_user_reserved_hbm_bytes", "4096"),)
