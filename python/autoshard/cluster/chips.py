"""What is known of every chip: a file each in ``chips/``, every constant with its source.

A file is read when its chip is asked for; a new chip is a new file. The memory that a program may
use of a TPU is in ``usable_memory.json``, which ``python -m autoshard.verify.usable_memory`` reads
from the compiler.

All numbers are per JAX device. On v4 and tpu7x a chip is two JAX devices, so theirs are half of
what data sheets say of a chip. GB is 1e9 bytes, GiB is 2**30. Links between TPU chips have 0.9 of
their specification, links of GPUs what NCCL was measured to reach on H100, or the same share.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_type_hints

from autoshard._core import Arithmetic

FOLDER = Path(__file__).parent / "chips"

ASSUMED = "assumed"
"""How the source of a number begins that nobody has published or measured."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number and where it comes from; its unit is in ``UNITS``."""

    value: float
    source: str


_Flops = Annotated[Constant, "FLOP/s"]
_PerSecond = Annotated[Constant, "1/s"]
_Bytes = Annotated[Constant, "bytes"]
_BytesPerSecond = Annotated[Constant, "bytes/s"]
_Seconds = Annotated[Constant, "s"]
_Rows = Annotated[Constant, "rows"]
_Columns = Annotated[Constant, "columns"]
_Share = Annotated[Constant, "of the peak"]
_OfMatmuls = Annotated[Constant, "of well-shaped matmuls"]
_Times = Annotated[Constant, "times as long"]


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
    """Peak FLOP/s of everything that is not a matmul, in f32."""
    exponentials: _PerSecond
    """Exponentials that the vector units make, as attention of a library asks for."""
    memory_bytes: _Bytes
    """Bytes that a program may use."""
    memory_bandwidth: _BytesPerSecond
    tile_rows: _Rows
    """Matmuls are padded to multiples of this in the rows of the left operand,"""
    tile_columns: _Columns
    """and of this in the columns of the right one and in the contracted dim."""
    matmul_efficiency: _Share
    """What well-shaped matmuls reach."""
    memory_efficiency: _Share
    attention_gradient_efficiency: _OfMatmuls
    """What matmuls in the gradient of attention of a library reach."""
    launch_seconds: _Seconds
    """To start one op that is not fused, a kernel or a step of one program."""
    host_bandwidth: _BytesPerSecond
    """Between the device and its host's memory, one way."""
    overlap_slowdown: _Times
    """What compute takes while a collective runs beside it,"""
    host_slowdown: _Times
    """and while the link to the host moves something."""
    compiler: str = ""
    """The name of its compiler; empty: nothing is known of it."""
    compiled_as: str = ""
    """The chip with a name whose answers of the compiler are its own; empty: ``name``."""

    def matmul_flops(self, arithmetic: Arithmetic) -> Constant:
        """The peak of the matrix units at an arithmetic."""
        return getattr(self, f"matmul_{arithmetic.name.lower()}")

    def constants(self) -> dict[str, Constant]:
        """Every constant by its name."""
        return {name: getattr(self, name) for name in CHIP_CONSTANTS}


@dataclass(frozen=True, slots=True)
class Link:
    """How devices along one direction of a machine reach each other."""

    bandwidth: _BytesPerSecond
    """One way: of one link of a torus, of one device of a switch or network."""
    latency: _Seconds
    """Seconds of one hop of a torus, of one step of a collective elsewhere."""


def _units(kind: type[Chip | Link]) -> dict[str, str]:
    """The unit of every constant, as its annotation says."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")
    }


CHIP_CONSTANTS: tuple[str, ...] = tuple(_units(Chip))
LINK_CONSTANTS: tuple[str, ...] = tuple(_units(Link))

UNITS: Mapping[str, str] = MappingProxyType(_units(Chip) | _units(Link))
"""The unit of every constant of a chip and of a link."""


@dataclass(frozen=True, slots=True)
class Torus:
    """Chips joined to their neighbours in two or three directions."""

    rank: int
    max_size: int
    """Most chips along one dim."""
    max_chips: int
    """Most chips of one slice."""
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
    num_cores: int = 1
    """Cores of one device, as JAX counts them: TensorCores of a TPU that run as one, or
    multiprocessors of a GPU."""
    compute_capability: str = ""
    """Compute capability of a GPU, as CUDA numbers it: ``9.0``."""
    clock: Constant | None = None
    """Cycles per second of a device whose compiler writes cycles."""

    @property
    def devices_per_chip(self) -> int:
        """1 or 2."""
        return 1 if self.on_chip is None else 2


T = TypeVar("T")


@dataclass(frozen=True)
class _ByName(Mapping[str, T]):
    """What ``read`` gives for the chip of each file."""

    read: Any

    def __getitem__(self, name: str) -> T:
        if name not in _names():
            raise KeyError(name)
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())

    def __contains__(self, name: object) -> bool:
        return name in _names()


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@functools.cache
def _family(name: str) -> Family:
    """The machines in a file."""
    import tomllib  # here, so that to import autoshard stays quick

    read = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    torus = read.get("torus")
    chip: dict[str, Any] = {key: _constant(row) for key, row in read["chip"].items()}
    if "memory_bytes" not in chip:
        chip["memory_bytes"] = _usable_memory(name)
    return Family(
        title=read["title"],
        chip=Chip(name=name, compiler=read.get("compiler", ""), **chip),
        shape=_node(read["node"]) if torus is None else Torus(**torus),
        link=_link(read["link"]),
        network=_link(read["network"]),
        on_chip=_link(read["on_chip"]) if "on_chip" in read else None,
        device_kinds=tuple(read.get("device_kinds", ())),
        num_cores=read.get("num_cores", 1),
        compute_capability=read.get("compute_capability", ""),
        clock=_constant(read["clock"]["frequency"]) if "clock" in read else None,
    )


def _node(read: Mapping[str, Any]) -> Node:
    return Node(read.get("max_devices"), read["dim"], read["outer_dim"])


def _link(read: Mapping[str, Any]) -> Link:
    return Link(**{key: _constant(row) for key, row in read.items()})


def _constant(row: Mapping[str, Any]) -> Constant:
    return Constant(float(row["value"]), row["source"])


def _usable_memory(name: str) -> Constant:
    import json

    usable = json.loads(Path(__file__).with_name("usable_memory.json").read_text())
    source = (
        f"the most that a program may use: the largest argument that {usable['compiler']} compiles"
    )
    return Constant(float(usable["bytes"][name]), source)


def _chip(name: str) -> Chip:
    return _family(name).chip


FAMILIES: Mapping[str, Family] = _ByName(_family)
"""Every machine that has a name."""

CHIPS: Mapping[str, Chip] = _ByName(_chip)
"""Every chip that has a name."""
