"""What is known of every chip: one constant a field, each with the source of its number.

The memory that a program may use of a TPU is in ``usable_memory.json``, which
``python -m autoshard.verify.usable_memory`` reads from the compiler.

All numbers are per JAX device. On v4 and tpu7x a chip is two JAX devices, so theirs are half of
what data sheets say of a chip. GB is 1e9 bytes, GiB is 2**30.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, get_type_hints

_GB = 1e9
_GIB = float(2**30)
_TERA = 1e12
_MICRO = 1e-6

_USABLE = json.loads(Path(__file__).with_name("usable_memory.json").read_text())

ASSUMED = "assumed"
"""How the source of a number begins that nobody has published or measured."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number and where it comes from; its unit is in ``UNITS``."""

    value: float
    source: str


_Flops = Annotated[Constant, "FLOP/s"]
_Bytes = Annotated[Constant, "bytes"]
_BytesPerSecond = Annotated[Constant, "bytes/s"]
_Seconds = Annotated[Constant, "s"]
_Rows = Annotated[Constant, "rows"]
_Columns = Annotated[Constant, "columns"]
_Share = Annotated[Constant, "of the peak"]
_YesNo = Annotated[Constant, "1 yes, 0 no"]


@dataclass(frozen=True, slots=True)
class Chip:
    """One JAX device: a TPU chip, half a v4 or TPU7x chip, a GPU."""

    name: str
    matmul_f64: _Flops
    """Peak of the matrix units; f64, f32, f16 (and bf16), f8, i8 operands."""
    matmul_f32: _Flops
    matmul_f16: _Flops
    matmul_f8: _Flops
    matmul_i8: _Flops
    vector_flops: _Flops
    """Of everything that is not a matmul, in f32."""
    memory_bytes: _Bytes
    """That a program may use."""
    memory_bandwidth: _BytesPerSecond
    tile_rows: _Rows
    """Matmuls are padded to multiples of this in the rows of the left operand,"""
    tile_columns: _Columns
    """and of this in the columns of the right one and in the contracted dim."""
    matmul_efficiency: _Share
    """What well-shaped matmuls reach."""
    memory_efficiency: _Share
    launch_seconds: _Seconds
    """To start one op that is not fused; 0 where one program runs on its own."""
    host_bandwidth: _BytesPerSecond
    """Between the device and its host's memory, one way."""
    fuses_matmuls: _YesNo
    """The compiler computes elementwise operands and results of a matmul in its kernel; where not,
    matmuls read and write memory."""
    fuses_casts: _YesNo
    """It computes a cast to a narrower type in every matmul that reads it; where not, the narrower
    value is stored."""
    hides_gathers: _YesNo
    """It gathers while other ops run; where not, ops wait for a gather."""

    def constants(self) -> dict[str, Constant]:
        """Every constant by its name."""
        return {name: getattr(self, name) for name in CHIP_CONSTANTS}


@dataclass(frozen=True, slots=True)
class Link:
    """How devices along one direction of a machine reach each other."""

    bandwidth: _BytesPerSecond
    """One way: of one link of a torus, of one device of a switch or network."""
    latency: _Seconds
    """Of one hop of a torus, of one step of a collective elsewhere."""


def _units(kind: type[Chip | Link]) -> dict[str, str]:
    """The unit of every constant, as its annotation says."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if name != "name"}


CHIP_CONSTANTS: tuple[str, ...] = tuple(_units(Chip))
LINK_CONSTANTS: tuple[str, ...] = tuple(_units(Link))

UNITS: Mapping[str, str] = MappingProxyType(_units(Chip) | _units(Link))
"""The unit of every constant of a chip and of a link."""


@dataclass(frozen=True, slots=True)
class Torus:
    """Chips joined to their neighbours in two or three directions."""

    rank: int
    max_size: int
    """Of one dim."""
    max_chips: int
    """Of one slice."""
    wrap_multiple: int
    """Its ends are joined in slices whose dims are all multiples of this,"""
    wraps_alone: bool
    """or in each dim that is, whatever the others are."""
    wrap_source: str


@dataclass(frozen=True, slots=True)
class Node:
    """Devices behind one switch."""

    max_devices: int | None
    dim: str
    """What one device is called, and so the dim and its axes."""
    outer_dim: str
    """The same of what holds them."""


@dataclass(frozen=True, slots=True)
class Family:
    """A chip and the machines that are built of it."""

    title: str
    chip: Chip
    shape: Torus | Node
    link: Link
    """Between neighbours of a torus, or within a node."""
    network: Link
    """Between slices or nodes."""
    on_chip: Link | None = None
    """Between the two devices of one chip, where there are two."""
    device_kinds: tuple[str, ...] = ()
    """What ``jax.Device.device_kind`` is."""

    @property
    def devices_per_chip(self) -> int:
        """1 or 2."""
        return 1 if self.on_chip is None else 2


_BF16_PASS = (
    "the f16 rate: XLA's default precision on TPU multiplies f32 as bf16 (JAX documentation,"
    " default_matmul_precision)"
)
_F64_EMULATED = ASSUMED + ": 1/64 of the f16 rate, there are no such units"
_NO_F8 = "the f16 rate: there are no f8 units, operands are converted"
_TF32 = "dense TF32, which XLA's default precision uses for f32"
_VPU = "8 x 128 lanes x 4 ALUs x {cores} x {clock:g} GHz (jax-ml/scaling-book, TPUs)"
_LANES_ASSUMED = f"; lanes and ALUs of this chip {ASSUMED} to be v5p's"
_HBM = "the most that a program may use: the largest argument that {compiler} compiles"
_MXU = "matrix unit of {n}x{n} (jax-ml/scaling-book, TPUs)"
_SUBLANES = "8 sublanes of a vector register (jax-ml/scaling-book, TPUs)"
_TPU_MATMUL_SHARE = Constant(
    0.85,
    ASSUMED + ": large single matmuls come nearer to the peak, whole training steps reach 0.5 to"
    " 0.6 (PartIR, arXiv 2401.11202)",
)
_TPU_MEMORY_SHARE = Constant(0.9, ASSUMED + ": as for links")
_TPU_LAUNCH = Constant(
    1.2 * _MICRO,
    "what the compiler's own cycles give the smallest fusions: 1,825 on v5e, 2,130 on v5p"
    " (libtpu 0.0.42)",
)
_TPU_FUSES = Constant(1.0, "compiled programs (libtpu 0.0.42)")
_CASTS = Constant(1.0, "compiled programs (libtpu 0.0.42)")
_HIDES_GATHERS = Constant(1.0, "compiled programs (libtpu 0.0.42)")
_WAITS_FOR_GATHERS = Constant(0.0, "compiled programs (libtpu 0.0.42)")
_NO_CASTS = Constant(0.0, "compiled programs (libtpu 0.0.42, jax-cuda12-pjrt 0.10.2)")
_ICI_LATENCY = Constant(1 * _MICRO, "about 1 us a hop (jax-ml/scaling-book, sharding)")
_ICI_SHARE = "{spec} GB/s x 0.9 (Google Cloud documentation {chip}; share: jax-ml/scaling-book)"
_HOST_LINK = "about {n:g} GB/s of PCIe a chip, each way (jax-ml/scaling-book, TPUs)"
_DCN_LATENCY = Constant(20 * _MICRO, ASSUMED + ": tens of us between slices")
_ON_CHIP_LATENCY = Constant(1 * _MICRO, ASSUMED + ": as one hop between chips")
_CLOCK = (
    "the f16 rate of the data sheet / {per_cycle:,} operations a cycle, {units} matrix units of"
    " {n}x{n}; at this clock large products reach {share} of the peak by the compiler's cycles"
    " (libtpu 0.0.42)"
)


def _clock(gigahertz: float, units: int, n: int, share: str) -> Constant:
    source = _CLOCK.format(per_cycle=units * n * n * 2, units=units, n=n, share=share)
    return Constant(gigahertz * 1e9, source)


CLOCKS: Mapping[str, Constant] = MappingProxyType(
    {
        "v4": _clock(1.05, 4, 128, "94%"),
        "v5e": _clock(1.5, 4, 128, "92%"),
        "v5p": _clock(1.75, 8, 128, "94%"),
        "v6e": _clock(1.75, 4, 256, "78%"),
        "tpu7x": _clock(2.2, 4, 256, "85%"),
    }
)
"""Cycles per second of the devices whose compiler writes cycles, by the chip's name."""


def _tpu(
    name: str,
    *,
    cloud: str,
    f16_teraflops: float,
    f8_teraflops: float | None,
    i8_teraflops: float,
    i8_source: str,
    memory_gb_per_second: float,
    mxu: int,
    host: Constant,
    fuses_casts: Constant,
    hides_gathers: Constant | None = None,
    devices_per_chip: int = 1,
    cores: int = 1,
    vector_source: str = "",
) -> Chip:
    """A TPU from the data sheet's numbers per chip; ``cores`` are those of one device."""
    share = "" if devices_per_chip == 1 else f", 1/{devices_per_chip} of a chip"
    sheet = f"Google Cloud documentation {cloud}{share}"
    f16 = f16_teraflops * _TERA / devices_per_chip
    clock = CLOCKS[name].value
    return Chip(
        name=name,
        matmul_f64=Constant(f16 / 64, _F64_EMULATED),
        matmul_f32=Constant(f16, _BF16_PASS),
        matmul_f16=Constant(f16, sheet),
        matmul_f8=Constant(f16, _NO_F8)
        if f8_teraflops is None
        else Constant(f8_teraflops * _TERA / devices_per_chip, sheet),
        matmul_i8=Constant(i8_teraflops * _TERA / devices_per_chip, i8_source or sheet),
        vector_flops=Constant(
            8 * 128 * 4 * cores * clock,
            _VPU.format(cores=f"{cores} cores" if cores > 1 else "1 core", clock=clock / 1e9)
            + vector_source,
        ),
        memory_bytes=Constant(
            float(_USABLE["bytes"][name]), _HBM.format(compiler=_USABLE["compiler"])
        ),
        memory_bandwidth=Constant(memory_gb_per_second * _GB / devices_per_chip, sheet),
        tile_rows=Constant(8, _SUBLANES),
        tile_columns=Constant(mxu, _MXU.format(n=mxu)),
        matmul_efficiency=_TPU_MATMUL_SHARE,
        memory_efficiency=_TPU_MEMORY_SHARE,
        launch_seconds=_TPU_LAUNCH,
        host_bandwidth=host,
        fuses_matmuls=_TPU_FUSES,
        fuses_casts=fuses_casts,
        hides_gathers=hides_gathers or _WAITS_FOR_GATHERS,
    )


def _host_link(gigabytes: float, devices_per_chip: int = 1) -> Constant:
    source = _HOST_LINK.format(n=gigabytes)
    if devices_per_chip > 1:
        source += f"; the {devices_per_chip} devices of a chip share it"
    return Constant(gigabytes * _GB / devices_per_chip, source)


def _ici(spec: float, cloud: str, devices_per_chip: int = 1) -> Link:
    source = _ICI_SHARE.format(spec=f"{spec:g}", chip=cloud)
    if devices_per_chip > 1:
        source += f"; the {devices_per_chip} devices of a chip share its links"
    return Link(Constant(0.9 * spec * _GB / devices_per_chip, source), _ICI_LATENCY)


def _dcn(gigabytes: float, source: str) -> Link:
    return Link(Constant(gigabytes * _GB, source), _DCN_LATENCY)


_SIXTEEN = "an axis of v5e and v6e wraps only at 16 (jax-ml/scaling-book, TPUs)"
_CUBES = "slices of whole 4x4x4 cubes wrap in every direction (jax-ml/scaling-book, TPUs)"

_V4 = Family(
    title="Google TPU v4, one TensorCore a device",
    chip=_tpu(
        "v4",
        cloud="v4",
        f16_teraflops=275,
        f8_teraflops=None,
        i8_teraflops=275,
        i8_source="",
        memory_gb_per_second=1228,
        mxu=128,
        host=_host_link(16, 2),
        fuses_casts=_CASTS,
        devices_per_chip=2,
    ),
    shape=Torus(3, 16, 4096, 4, False, _CUBES),
    link=_ici(50, "v4", 2),
    network=_dcn(3.125, "25 GB/s a host of 4 chips (jax-ml/scaling-book, TPUs), 8 devices"),
    on_chip=Link(
        Constant(
            307 * _GB,
            ASSUMED + ": through the memory of the chip, 1,228 GB/s shared by two readers and two"
            " writers",
        ),
        _ON_CHIP_LATENCY,
    ),
    device_kinds=("TPU v4",),
)

_V5E = Family(
    title="Google TPU v5e",
    chip=_tpu(
        "v5e",
        cloud="v5e",
        f16_teraflops=197,
        f8_teraflops=None,
        i8_teraflops=393,
        i8_source="",
        memory_gb_per_second=819,
        mxu=128,
        host=_host_link(15),
        fuses_casts=_CASTS,
        hides_gathers=_HIDES_GATHERS,
    ),
    shape=Torus(2, 16, 256, 16, True, _SIXTEEN),
    link=_ici(50, "v5e"),
    network=_dcn(3.125, "6.4 Tb/s a pod of 256 chips (Google Cloud documentation v6e)"),
    device_kinds=("TPU v5 lite", "TPU v5e"),
)

_V5P = Family(
    title="Google TPU v5p",
    chip=_tpu(
        "v5p",
        cloud="v5p",
        f16_teraflops=459,
        f8_teraflops=None,
        i8_teraflops=918,
        i8_source="twice the f16 rate (jax-ml/scaling-book, TPUs)",
        cores=2,
        memory_gb_per_second=2765,
        mxu=128,
        host=_host_link(15),
        fuses_casts=_NO_CASTS,
    ),
    shape=Torus(3, 28, 8960, 4, False, _CUBES),
    link=_ici(100, "v5p"),
    network=_dcn(6.25, "50 Gb/s a chip (Google Cloud documentation v5p)"),
    device_kinds=("TPU v5", "TPU v5p"),
)

_V6E = Family(
    title="Google TPU v6e (Trillium)",
    chip=_tpu(
        "v6e",
        cloud="v6e",
        f16_teraflops=918,
        f8_teraflops=None,
        i8_teraflops=1836,
        i8_source="",
        vector_source=_LANES_ASSUMED,
        memory_gb_per_second=1638,
        mxu=256,
        host=_host_link(32),
        fuses_casts=_CASTS,
    ),
    shape=Torus(2, 16, 256, 16, True, _SIXTEEN),
    link=_ici(100, "v6e"),
    network=_dcn(12.5, "25.6 Tb/s a pod of 256 chips (Google Cloud documentation v6e)"),
    device_kinds=("TPU v6 lite", "TPU v6e"),
)

_TPU7X = Family(
    title="Google TPU7x (Ironwood), one chiplet a device",
    chip=_tpu(
        "tpu7x",
        cloud="tpu7x",
        f16_teraflops=2307,
        f8_teraflops=4614,
        i8_teraflops=2307,
        i8_source=ASSUMED + ": the f16 rate, none is published",
        vector_source=_LANES_ASSUMED,
        memory_gb_per_second=7380,
        mxu=256,
        host=Constant(16 * _GB, ASSUMED + ": as v6e, 32 GB/s a chip, which its 2 devices share"),
        fuses_casts=_NO_CASTS,
        devices_per_chip=2,
    ),
    shape=Torus(3, 48, 9216, 4, False, _CUBES),
    link=_ici(100, "tpu7x", 2),
    network=_dcn(6.25, "100 Gb/s a chip (Google Cloud documentation tpu7x), 2 devices"),
    on_chip=Link(
        Constant(
            540 * _GB,
            ASSUMED + ": six times the 90 GB/s of a link between chips, none is published",
        ),
        _ON_CHIP_LATENCY,
    ),
    device_kinds=("TPU7x",),
)

_AUTOPARALLEL = "meta-pytorch/autoparallel, H100 tables"
_GPU_FUSES = Constant(
    0.0,
    "compiled programs (jax-cuda12-pjrt 0.10.2): kernels of cuBLAS or Triton take stored operands",
)
_LAUNCH_7US = Constant(7 * _MICRO, "floor of a kernel's time (meta-pytorch/autoparallel)")
_PCIE = "PCIe gen{gen} x16, {gt} GT/s a lane less its 2 of 130 bits ({sheet})"
_GPU_MEMORY_SHARE = Constant(0.9, ASSUMED + ": as streaming kernels reach")
_NCCL_NODE_LATENCY = Constant(
    4.3 * _MICRO,
    f"measured all-gather over 8 GPUs: 30 us / 7 steps ({_AUTOPARALLEL})",
)
_NCCL_NETWORK_LATENCY = Constant(
    14 * _MICRO,
    f"measured all-gathers over 4 to 32 nodes: 442 us / 31 steps ({_AUTOPARALLEL})",
)
_NVLINK_SHARE = 345 / 450
_SHARE_OF_H100 = "{spec} GB/s (NVIDIA) x {share}, the share that NCCL reaches on H100"

_H100_NODE = Link(
    Constant(
        345 * _GB,
        f"measured all-gather over 8 GPUs: 394 GB/s x 7/8, of 450 GB/s ({_AUTOPARALLEL})",
    ),
    _NCCL_NODE_LATENCY,
)
_H100_NETWORK = Link(
    Constant(
        48 * _GB,
        f"measured all-gathers over 4 to 32 nodes: 51 GB/s x 15/16, of 50 GB/s ({_AUTOPARALLEL})",
    ),
    _NCCL_NETWORK_LATENCY,
)


def _nvlink(spec: float) -> Link:
    source = _SHARE_OF_H100.format(spec=f"{spec:g}", share="345/450")
    return Link(Constant(round(spec * _NVLINK_SHARE) * _GB, source), _NCCL_NODE_LATENCY)


def _infiniband(spec: float) -> Link:
    source = _SHARE_OF_H100.format(spec=f"{spec:g}", share="48/50")
    return Link(Constant(spec * 0.96 * _GB, source), _NCCL_NETWORK_LATENCY)


def _gpu(
    name: str,
    *,
    sheet: str,
    f64_teraflops: float,
    f32_teraflops: float,
    f16_teraflops: float,
    f8_teraflops: float | None,
    i8_teraflops: float,
    vector_teraflops: float,
    memory: Constant,
    memory_gb_per_second: float,
    memory_source: str,
    tile_rows: int,
    matmul_efficiency: Constant,
    pcie_generation: int,
) -> Chip:
    return Chip(
        name=name,
        matmul_f64=Constant(f64_teraflops * _TERA, sheet),
        matmul_f32=Constant(f32_teraflops * _TERA, f"{sheet}: {_TF32}"),
        matmul_f16=Constant(f16_teraflops * _TERA, f"{sheet}, dense"),
        matmul_f8=Constant(f16_teraflops * _TERA, _NO_F8)
        if f8_teraflops is None
        else Constant(f8_teraflops * _TERA, f"{sheet}, dense"),
        matmul_i8=Constant(i8_teraflops * _TERA, f"{sheet}, dense"),
        vector_flops=Constant(vector_teraflops * _TERA, f"{sheet}: f32 outside tensor cores"),
        memory_bytes=memory,
        memory_bandwidth=Constant(memory_gb_per_second * _GB, memory_source),
        tile_rows=Constant(tile_rows, "rows of one tensor core instruction"),
        tile_columns=Constant(16, "16 contracted elements of one tensor core instruction in f16"),
        matmul_efficiency=matmul_efficiency,
        memory_efficiency=_GPU_MEMORY_SHARE,
        launch_seconds=_LAUNCH_7US,
        host_bandwidth=_pcie(pcie_generation, sheet),
        fuses_matmuls=_GPU_FUSES,
        fuses_casts=_NO_CASTS,
        hides_gathers=Constant(1.0, "compiled programs (jax-cuda12-pjrt 0.10.2)"),
    )


def _pcie(generation: int, sheet: str) -> Constant:
    """Bytes/s of 16 lanes, one way: 31.5e9 of generation 4, 63e9 of 5."""
    transfers = 16 * 2 ** (generation - 4)
    source = _PCIE.format(gen=generation, gt=transfers, sheet=sheet)
    return Constant(round(transfers * 16 / 8 * 128 / 130, 1) * _GB, source)


_GPU_MATMUL_SHARE = Constant(0.7, "compute efficiency of meta-pytorch/autoparallel")
_GPU_80GB = Constant(
    78 * _GIB,
    ASSUMED + ": 79.1 GiB that CUDA shows on H100 (vllm-project/vllm issue 27508) less 1.1;"
    " XLA_PYTHON_CLIENT_MEM_FRACTION, 0.75 unless set, must allow it",
)

_A100 = Family(
    title="NVIDIA A100 SXM 80GB",
    chip=_gpu(
        "a100",
        sheet="NVIDIA A100 data sheet",
        f64_teraflops=19.5,
        f32_teraflops=156,
        f16_teraflops=312,
        f8_teraflops=None,
        i8_teraflops=624,
        vector_teraflops=19.5,
        memory=_GPU_80GB,
        memory_gb_per_second=2039,
        memory_source="NVIDIA A100 data sheet",
        tile_rows=16,
        matmul_efficiency=_GPU_MATMUL_SHARE,
        pcie_generation=4,
    ),
    shape=Node(8, "gpu", "node"),
    link=_nvlink(300),
    network=_infiniband(25),
    device_kinds=("NVIDIA A100-SXM4-80GB",),
)

_H100 = Family(
    title="NVIDIA H100 SXM",
    chip=_gpu(
        "h100",
        sheet="NVIDIA H100 data sheet",
        f64_teraflops=67,
        f32_teraflops=494.5,
        f16_teraflops=989,
        f8_teraflops=1979,
        i8_teraflops=1979,
        vector_teraflops=67,
        memory=_GPU_80GB,
        memory_gb_per_second=3350,
        memory_source="NVIDIA H100 data sheet",
        tile_rows=64,
        matmul_efficiency=_GPU_MATMUL_SHARE,
        pcie_generation=5,
    ),
    shape=Node(8, "gpu", "node"),
    link=_H100_NODE,
    network=_H100_NETWORK,
    device_kinds=("NVIDIA H100 80GB HBM3",),
)

_H200 = Family(
    title="NVIDIA H200 SXM",
    chip=_gpu(
        "h200",
        sheet="NVIDIA H200 data sheet",
        f64_teraflops=67,
        f32_teraflops=494.5,
        f16_teraflops=989,
        f8_teraflops=1979,
        i8_teraflops=1979,
        vector_teraflops=67,
        memory=Constant(
            139 * _GIB,
            "what the driver leaves of 141 GB (MLPerf system files);"
            " XLA_PYTHON_CLIENT_MEM_FRACTION, 0.75 unless set, must allow it",
        ),
        memory_gb_per_second=4800,
        memory_source="NVIDIA H200 data sheet",
        tile_rows=64,
        matmul_efficiency=Constant(0.8, "about 790 of 989 TFLOP/s reached in bf16"),
        pcie_generation=5,
    ),
    shape=Node(8, "gpu", "node"),
    link=Link(
        Constant(345 * _GB, "as H100, whose NVLink it has"),
        _NCCL_NODE_LATENCY,
    ),
    network=Link(
        Constant(48 * _GB, "as H100, with 400 Gb/s a GPU"),
        _NCCL_NETWORK_LATENCY,
    ),
    device_kinds=("NVIDIA H200",),
)

_B200 = Family(
    title="NVIDIA B200 SXM",
    chip=_gpu(
        "b200",
        sheet="NVIDIA B200 data sheet",
        f64_teraflops=37,
        f32_teraflops=1125,
        f16_teraflops=2250,
        f8_teraflops=4500,
        i8_teraflops=4500,
        vector_teraflops=75,
        memory=Constant(
            177 * _GIB,
            ASSUMED
            + ": 178.35 GiB that CUDA shows (pytorch/ao pull request 4002) less as much as on"
            " H100; XLA_PYTHON_CLIENT_MEM_FRACTION, 0.75 unless set, must allow it",
        ),
        memory_gb_per_second=7700,
        memory_source="meta-pytorch/autoparallel (other sources: 8,000 GB/s)",
        tile_rows=128,
        matmul_efficiency=_GPU_MATMUL_SHARE,
        pcie_generation=5,
    ),
    shape=Node(8, "gpu", "node"),
    link=_nvlink(900),
    network=_infiniband(50),
    device_kinds=("NVIDIA B200",),
)

_910B = ASSUMED + " for 910B2; published numbers differ, check against your cards: "

_ASCEND910B = Family(
    title="Huawei Ascend 910B2 64GB",
    chip=Chip(
        name="ascend910b",
        matmul_f64=Constant(354 / 64 * _TERA, _F64_EMULATED),
        matmul_f32=Constant(354 / 4 * _TERA, _910B + "1/4 of the f16 rate"),
        matmul_f16=Constant(354 * _TERA, "910B2 presets of public profilers say 354 to 376"),
        matmul_f8=Constant(354 * _TERA, _NO_F8),
        matmul_i8=Constant(708 * _TERA, _910B + "twice the f16 rate"),
        vector_flops=Constant(11 * _TERA, _910B + "1/32 of the f16 rate"),
        memory_bytes=Constant(60 * _GB, _910B + "64 GB less the driver's"),
        memory_bandwidth=Constant(1600 * _GB, "Huawei card specification, 64 GB card"),
        tile_rows=Constant(16, "16x16x16 cube unit"),
        tile_columns=Constant(16, "16x16x16 cube unit"),
        matmul_efficiency=Constant(0.7, ASSUMED + ": as GPUs"),
        memory_efficiency=Constant(0.9, ASSUMED + ": as GPUs"),
        launch_seconds=Constant(7 * _MICRO, ASSUMED + ": as GPUs"),
        host_bandwidth=Constant(31.5 * _GB, _910B + "PCIe gen4 x16"),
        fuses_matmuls=Constant(0.0, ASSUMED + ": as GPUs"),
        fuses_casts=Constant(0.0, ASSUMED + ": as GPUs"),
        hides_gathers=Constant(1.0, ASSUMED + ": as GPUs"),
    ),
    shape=Node(8, "npu", "node"),
    link=Link(
        Constant(
            150 * _GB,
            _910B + "7 peer links x 28 GB/s x 345/450, NCCL's share on H100; fewer than 8 devices"
            " have fewer of these links, which is not modelled",
        ),
        Constant(10 * _MICRO, ASSUMED + ": twice NCCL's"),
    ),
    network=Link(
        Constant(24 * _GB, _910B + "RoCE 200 Gb/s x 48/50, NCCL's share on H100"),
        Constant(14 * _MICRO, ASSUMED + ": as NCCL on H100"),
    ),
)

_STAND_IN = ASSUMED + ": a round number for one core of a server, for tests"

_CPU = Family(
    title="devices of XLA's CPU backend",
    chip=Chip(
        name="cpu",
        matmul_f64=Constant(20e9, _STAND_IN),
        matmul_f32=Constant(40e9, _STAND_IN),
        matmul_f16=Constant(20e9, _STAND_IN),
        matmul_f8=Constant(10e9, _STAND_IN),
        matmul_i8=Constant(20e9, _STAND_IN),
        vector_flops=Constant(5e9, _STAND_IN),
        memory_bytes=Constant(4 * _GIB, _STAND_IN),
        memory_bandwidth=Constant(10 * _GB, _STAND_IN),
        tile_rows=Constant(1, "small matmuls are not padded"),
        tile_columns=Constant(8, "8 f32 lanes of AVX2"),
        matmul_efficiency=Constant(0.7, ASSUMED + ": as GPUs"),
        memory_efficiency=Constant(0.9, ASSUMED + ": as GPUs"),
        launch_seconds=Constant(2 * _MICRO, _STAND_IN),
        host_bandwidth=Constant(10 * _GB, "the memory that the device itself has"),
        fuses_matmuls=Constant(1.0, _STAND_IN),
        fuses_casts=Constant(0.0, _STAND_IN),
        hides_gathers=Constant(0.0, _STAND_IN),
    ),
    shape=Node(None, "cpu", "host"),
    link=Link(Constant(5 * _GB, _STAND_IN), Constant(10 * _MICRO, _STAND_IN)),
    network=Link(Constant(1.25 * _GB, ASSUMED + ": 10 Gb/s"), Constant(50 * _MICRO, _STAND_IN)),
    device_kinds=("cpu",),
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.chip.name: family
        for family in (
            _V4,
            _V5E,
            _V5P,
            _V6E,
            _TPU7X,
            _A100,
            _H100,
            _H200,
            _B200,
            _ASCEND910B,
            _CPU,
        )
    }
)
"""Every machine that has a name."""

CHIPS: Mapping[str, Chip] = MappingProxyType({name: f.chip for name, f in FAMILIES.items()})
"""Every chip that has a name."""
