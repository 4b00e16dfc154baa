"""Compiling, running and profiling planned programs on a GPU; of packages, jax and autoshard do."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.ir import new_context, parse_bytes, read_bytes
from autoshard.ir.module import print_module

MODULE = ".mlir.gz"
"""How the file of a program ends: text, for bytecode is bound to the jaxlib that wrote it."""

ONE_BY_ONE = {"xla_gpu_graph_min_graph_size": "1000000"}
"""Kernels are launched one by one, so that the profiler sees which op each is of."""

_MOST_WORDS = 30_000
"""Whole numbers are below it: words, rows of a table."""


@dataclass(frozen=True)
class KernelRun:
    """One kernel on one of the GPU's streams, as the profiler saw it."""

    start_ns: float
    seconds: float
    op: str
    """The HLO instruction."""
    kernel: str


def kernel_runs(profile: Any) -> Iterable[KernelRun]:
    """All kernels of a ``jax.profiler.ProfileData``."""
    for plane in profile.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                op = str(dict(event.stats).get("hlo_op", ""))
                yield KernelRun(event.start_ns, event.duration_ns * 1e-9, op, event.name)


def profile_in(folder: str) -> Any:
    """What ``jax.profiler.trace`` wrote there."""
    (file,) = Path(folder).rglob("*.xplane.pb")
    return jax.profiler.ProfileData.from_file(str(file))


def write_program(path: Path, module: Any) -> None:
    """A planned and exported module, to be read where the GPU is."""
    path.write_bytes(gzip.compress(print_module(module), mtime=0))


def read_program(path: Path) -> Any:
    """What ``write_program`` wrote."""
    return parse_bytes(read_bytes(path)[0], new_context(), path.name)


def arguments_of(described: Sequence[dict[str, Any]], compiled: Any) -> list[Any]:
    """Arrays of which this device has its part: small numbers at random.

    Args:
        described: ``shape``, ``dtype`` and ``role`` of each argument, and whether it is ``on host``
            where that is known; squares of an optimizer are not negative.
        compiled: ``autoshard.ir.compile.CompiledModule``.
    """
    made: list[Any] = []
    fill: dict[Any, Any] = {}
    shardings = compiled._on_devices(compiled._argument_shardings(), len(described))
    for number, (argument, sharding) in enumerate(zip(described, shardings, strict=True)):
        shape, is_key = tuple(argument["shape"]), argument["dtype"].startswith("key<")
        # A key is two words of 32 bits once it is lowered.
        shape, dtype = ((*shape, 2), "uint32") if is_key else (shape, argument["dtype"])
        local = sharding.shard_shape(shape)
        key = local, jnp.dtype(dtype), argument["role"] == "opt_state"
        if key not in fill:
            fill[key] = jax.jit(lambda seed, key=key: _numbers(seed, *key))
        part = fill[key](number)
        if argument.get("on host"):
            part = jax.device_put(part, part.sharding.with_memory_kind("pinned_host"))
            sharding = sharding.with_memory_kind("pinned_host")
        made.append(jax.make_array_from_single_device_arrays(shape, sharding, [part]))
    return made


def _numbers(seed: Any, shape: tuple[int, ...], dtype: Any, is_positive: bool) -> Any:
    random = jax.random.key(seed)
    if jnp.issubdtype(dtype, jnp.floating):
        values = 0.02 * jax.random.normal(random, shape, jnp.float32)
        return (jnp.abs(values) if is_positive else values).astype(dtype)
    if dtype == jnp.bool_:
        return jax.random.bernoulli(random, 0.5, shape)
    return jax.random.randint(random, shape, 1, _MOST_WORDS).astype(dtype)


def leave_numbers(size: int) -> None:
    """Random numbers in ``size`` bytes that are free again: products of zeros are faster."""
    piece = 2**27
    fill = jax.jit(lambda key: 0.02 * jax.random.normal(jax.random.key(key), piece, jnp.bfloat16))
    jax.block_until_ready([fill(number) for number in range(size // (2 * piece))])


def results_of(compiled: Any, arguments: list[Any]) -> list[list[Any]]:
    """By result, this device's part."""
    return compiled.executable.execute_sharded(arguments).disassemble_into_single_device_arrays()


def over(old: Any, part: Any) -> Any:
    """An argument whose part here is replaced."""
    return jax.make_array_from_single_device_arrays(old.shape, old.sharding, [part])
