"""Runs small programs on all devices at once and times them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial
from statistics import median
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autoshard.calibration.points import (
    Exchange,
    Point,
    Product,
    Stream,
    Work,
    device_groups,
    group_size,
)
from autoshard.cluster.cluster import Cluster
from autoshard.planned.collective import CollectiveKind

_lax: Any = lax
_RUNTIME_ERROR: type[Exception] = cast(Any, jax.errors).JaxRuntimeError

_MOST_SECONDS = 0.01
"""A ladder of sizes ends at the first run that takes longer."""
_LEAST_SAMPLES = 5
_MOST_SAMPLES = 25
_SAMPLING_SECONDS = 0.1
"""For one point, once it has its least samples."""
_MOST_IN_ROW = 32
"""Runs within one program."""
_ALONE = 10
"""A run that takes so many times what an empty program takes is timed without others in a row."""
_LEAST_LAUNCHES = 5
"""Elementwise work that takes less than so many launches shows the launch, not the memory."""
_SHARE = 4
"""A ladder may take so many times an equal share of the time that is left."""
_MEMORY_SHARE = 0.1
"""Share of a device's memory that one measurement may fill."""

_TYPES = {
    "f64": jnp.float64,
    "f32": jnp.float32,
    "f16": jnp.bfloat16,
    "f8": jnp.float8_e4m3fn,
    "i8": jnp.int8,
}
_ROW = 512
_POLYNOMIAL_DEGREE = 128
"""Enough to be bound by arithmetic on every chip: 32 operations for each byte."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The same work in growing sizes, as long as runs are short."""

    name: str
    steps: tuple[Work, ...]


def ladders(cluster: Cluster) -> list[Ladder]:
    """What to measure, most needed first, so that a budget which runs out leaves the rest."""
    memory = _MEMORY_SHARE * cluster.chip.memory_bytes.value
    first: list[Ladder] = [
        Ladder("launch", (Stream("launch", 2.0 * 8**3, 2 * 4 * 8 * 8, 4 * 8 * 8),)),
        _products("f32", memory),
        _products("f16", memory),
        Ladder("memory", tuple(_streams("memory scale", 1, 1, 1, memory))),
        Ladder("memory", tuple(_streams("memory add", 2, 1, 1, memory))),
        Ladder("vector", tuple(_streams("vector tanh", 1, 1, 10, memory))),
        Ladder("vector", tuple(_streams("vector exp", 1, 1, 11, memory))),
        Ladder("vector", tuple(_softmaxes(memory))),
        Ladder(
            "vector", tuple(_streams("vector polynomial", 1, 1, 2 * _POLYNOMIAL_DEGREE, memory))
        ),
    ]
    exchanges = [
        Ladder(kind.value, tuple(_exchanges(cluster, kind, axes, memory)))
        for axes in reversed(device_groups(cluster))
        for kind in CollectiveKind
    ]
    others = [_products(name, memory) for name in ("f8", "i8", "f64")]
    return [ladder for ladder in (*first, *exchanges, *others) if ladder.steps]


def _products(arithmetic: str, memory: float) -> Ladder:
    """Square ones, then one with few rows, one with few columns and one with a long sum."""
    bits = np.dtype(_TYPES[arithmetic]).itemsize * 8
    sizes = [n for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192) if n * n * bits < memory]
    shapes = [(n, n, n) for n in sizes]
    shapes += [(n // 8, n, n) for n in sizes if n > 256]
    shapes += [(n, n // 4, 2 * n) for n in sizes if n > 256]
    shapes.sort(key=lambda shape: shape[0] * shape[1] * shape[2])
    return Ladder(
        f"matmul {arithmetic}",
        tuple(Product(arithmetic, bits, m, n, k) for m, n, k in shapes),
    )


def _streams(name: str, read: int, written: int, flops: int, memory: float) -> Iterator[Stream]:
    # Memory only counts behind the caches, of which GPUs have up to 126 MB (B200).
    elements = 2**24 if name.startswith("memory") else 2**16
    while elements > 2**20 and 4 * elements * (read + written) >= memory:
        elements //= 4
    while 4 * elements * (read + written) < memory and elements <= 2**28:
        yield Stream(name, float(flops * elements), 4 * elements * read, 4 * elements * written)
        elements *= 4


def _softmaxes(memory: float) -> Iterator[Stream]:
    """Rows of ``_ROW`` are read for their maxima and again for their sums of exponentials."""
    elements = 2**16
    while 8 * elements < memory and elements <= 2**28:
        yield Stream("vector softmax", 13.0 * elements, 2 * 4 * elements, 4)
        elements *= 4


def _exchanges(
    cluster: Cluster, kind: CollectiveKind, axes: tuple[str, ...], memory: float
) -> Iterator[Exchange]:
    size = group_size(cluster, axes)
    held = 4 * 256 * size
    grows = size if kind is CollectiveKind.ALL_GATHER else 1
    while held * (1 + grows) < memory and held <= 2**28:
        yield Exchange(kind, axes, size, held)
        held *= 4


class _Row(Enum):
    """How one run of a program waits for the one before."""

    CHAIN = "its argument is the other's result"
    TIED = "one element of its argument is one of the other's result"
    LOOP = "as a chain, in a loop of the program, so that runs are not fused"


class Stopwatch:
    """Times work on ``devices``, which stand in the order of ``cluster``'s dims."""

    def __init__(self, cluster: Cluster, devices: Sequence[Any]) -> None:
        """Compiles and times an empty program."""
        mesh = cluster.level_mesh()
        sizes = [axis.size for axis in mesh.axes] or [1]
        self._names = tuple(mesh.axis_names) or ("device",)
        grid = np.array(devices, dtype=object).reshape(sizes)
        self._mesh = jax.sharding.Mesh(grid, self._names)
        self._spec = jax.sharding.PartitionSpec(self._names)
        self._count = len(devices)
        # A GPU starts each kernel of a loop anew, and those of straight code together. CPUs map
        # fresh memory for each result but those of a loop.
        self._in_row = _Row.CHAIN if devices[0].platform == "gpu" else _Row.LOOP
        tiny = self._array((256,), jnp.float32)
        self._empty = self._median(self._compiled(_same, (tiny,), 1, _Row.CHAIN), (tiny,))

    def measure(self, work: Work) -> Point | None:
        """The median seconds of one run; None where noise was larger than the work."""
        needs_x64 = isinstance(work, Product) and work.arithmetic == "f64"
        with jax.enable_x64(True) if needs_x64 else nullcontext():
            run, arrays, row = self._program(work)
            one = self._compiled(run, arrays, 1, row)
            alone = self._median(one, arrays)
            net = alone - self._empty
            # A loop has its buffers once; alone, the time to map fresh memory would count.
            if net > _ALONE * self._empty and row is not _Row.LOOP:
                seconds = net
            else:
                wanted = _ALONE * self._empty / max(net, self._empty / 20)
                count = int(min(_MOST_IN_ROW, max(4, wanted)))
                many = self._compiled(run, arrays, count, row)
                more = self._median(many, arrays) - self._median(one, arrays)
                seconds = more / (count - 1)
        if seconds <= 0:
            return None
        return Point(work, seconds, 1 if row is _Row.TIED else 0)

    def _program(self, work: Work) -> tuple[Callable[..., Any], tuple[Any, ...], _Row]:
        """One run, its arguments, and how runs are put in a row."""
        match work:
            case Product():
                dtype = _TYPES[work.arithmetic]
                result = jnp.int32 if dtype == jnp.int8 else None
                left = self._array((work.rows, work.contracted), dtype)
                right = self._array((work.contracted, work.columns), dtype)

                def product(x: Any, w: Any) -> Any:
                    return lax.dot(x, w, preferred_element_type=result).astype(dtype)

                return product, (left, right), _Row.TIED
            case Stream(name="launch"):
                # Products are not fused with each other.
                x = self._array((8, 8), jnp.float32)
                return jnp.matmul, (x, x), _Row.CHAIN
            case Stream(name="vector softmax"):
                x = self._array((work.bytes_read // (2 * 4 * _ROW), _ROW), jnp.float32)
                return _softmax_sums, (x,), _Row.TIED
            case Stream():
                x = self._array((work.bytes_written // 4,), jnp.float32)
                arrays = (x, x + 1) if work.name == "memory add" else (x,)
                return _STREAMS[work.name], arrays, self._in_row
            case Exchange():
                x = self._array((work.held_bytes // 4,), jnp.float32)
                keeps_shape = work.kind in (
                    CollectiveKind.ALL_REDUCE,
                    CollectiveKind.ALL_TO_ALL,
                    CollectiveKind.PERMUTE,
                )
                return _exchange(work), (x,), _Row.CHAIN if keeps_shape else _Row.TIED

    def _compiled(
        self,
        run: Callable[..., Any],
        arrays: tuple[Any, ...],
        count: int,
        row: _Row,
    ) -> Callable[..., Any]:
        """``count`` runs, one after the other, on every device."""

        def local(x: Any, *others: Any) -> Any:
            if row is _Row.LOOP:

                def again(_: Any, carry: Any) -> Any:
                    return run(carry, *others)

                return _lax.fori_loop(0, count, again, x)
            for _ in range(count):
                # Else compilers may merge equal runs, or compute one element only.
                result = lax.optimization_barrier(run(x, *others))
                x = result if row is _Row.CHAIN else _tied(x, result)
            return x

        specs = (self._spec,) * len(arrays)
        mapped = jax.shard_map(
            local, mesh=self._mesh, in_specs=specs, out_specs=self._spec, check_vma=False
        )
        return cast("Callable[..., Any]", jax.jit(mapped).lower(*arrays).compile())

    def _median(self, program: Callable[..., Any], arrays: tuple[Any, ...]) -> float:
        jax.block_until_ready(program(*arrays))
        samples: list[float] = []
        begin = time.perf_counter()
        while len(samples) < _MOST_SAMPLES:
            start = time.perf_counter()
            if len(samples) >= _LEAST_SAMPLES and start - begin > _SAMPLING_SECONDS:
                break
            jax.block_until_ready(program(*arrays))
            samples.append(time.perf_counter() - start)
        return median(samples)

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Numbers of both signs in every device's part; sums of many stay near 1."""
        whole = (shape[0] * self._count, *shape[1:])
        sharding = jax.sharding.NamedSharding(self._mesh, self._spec)

        def make() -> Any:
            place = lax.iota(jnp.float32, whole[0])
            if len(whole) > 1:
                place = place[:, None] * 7 + lax.iota(jnp.float32, whole[1])
            return jnp.cos(place).astype(dtype)

        return cast(Any, jax.jit(make, out_shardings=sharding))()


def _tied(x: Any, result: Any) -> Any:
    """``x`` after ``result``: the next run cannot begin before this one is done."""
    first = result[(0,) * result.ndim].astype(x.dtype)
    return x.at[(0,) * x.ndim].set(first)


def _polynomial(x: Any) -> Any:
    y = x
    for degree in range(_POLYNOMIAL_DEGREE):
        y = y * x + 1.0 / (degree + 2)
    return y


def _same(x: Any) -> Any:
    return x


def _scale(x: Any) -> Any:
    return x * 0.5


def _exp(x: Any) -> Any:
    return jnp.exp(-x)


def _softmax_sums(x: Any) -> Any:
    # One number, so that no compiler leaves out rows.
    return jnp.sum(jnp.exp(x - x.max(-1, keepdims=True)))


_STREAMS: dict[str, Callable[..., Any]] = {
    "memory add": jnp.add,
    "memory scale": _scale,
    "vector polynomial": _polynomial,
    "vector tanh": jnp.tanh,
    "vector exp": _exp,
}


def _exchange(work: Exchange) -> Callable[[Any], Any]:
    axes, size = work.axes, work.group_size
    match work.kind:
        case CollectiveKind.ALL_GATHER:
            return partial(_lax.all_gather, axis_name=axes, tiled=True)
        case CollectiveKind.ALL_REDUCE:
            return partial(_lax.psum, axis_name=axes)
        case CollectiveKind.REDUCE_SCATTER:
            return partial(_lax.psum_scatter, axis_name=axes, tiled=True)
        case CollectiveKind.ALL_TO_ALL:
            return partial(_lax.all_to_all, axis_name=axes, split_axis=0, concat_axis=0, tiled=True)
        case CollectiveKind.PERMUTE:
            ring = [(i, (i + 1) % size) for i in range(size)]
            return partial(_lax.ppermute, axis_name=axes, perm=ring)


@dataclass(frozen=True, slots=True)
class Measured:
    """All points, and what could not be measured."""

    points: tuple[Point, ...]
    notes: tuple[str, ...]


def measure_all(
    cluster: Cluster,
    devices: Sequence[Any],
    budget_seconds: float,
    advance: Callable[[str, int], None],
) -> Measured:
    """Climb every ladder until the budget is spent.

    Args:
        cluster: Dims of ``devices``.
        devices: In the order of the dims.
        budget_seconds: After which no further point is begun.
        advance: Called with the name of the next point and how many are behind it.
    """
    end = time.perf_counter() + budget_seconds
    watch = Stopwatch(cluster, devices)
    points: list[Point] = []
    notes: list[str] = []
    missed: list[str] = []
    launch = 0.0
    all_ladders = ladders(cluster)
    for number, ladder in enumerate(all_ladders):
        left = max(0.0, end - time.perf_counter())
        # Most ladders end early; those that do not leave something to the others.
        until = time.perf_counter() + min(left, _SHARE * left / (len(all_ladders) - number))
        done = 0
        for step in ladder.steps:
            if time.perf_counter() >= until:
                missed.append(ladder.name)
                break
            advance(str(step), 0)
            try:
                point = watch.measure(step)
            except _RUNTIME_ERROR as error:
                notes.append(f"{step} does not run here: {str(error).splitlines()[0]}")
                break
            done += 1
            advance(str(step), 1)
            if point is None:
                notes.append(f"{step} is lost in the noise of the machine")
                continue
            if point.kind == "launch":
                launch = point.seconds
            elif isinstance(step, Stream) and point.seconds < _LEAST_LAUNCHES * launch:
                continue
            points.append(point)
            if point.seconds > _MOST_SECONDS:
                break
        advance(ladder.name, len(ladder.steps) - done)
    if missed:
        shown = ", ".join(dict.fromkeys(missed))
        notes.append(
            f"{budget_seconds:g} s were not enough for all sizes of {shown}; give a larger budget"
        )
    return Measured(tuple(points), tuple(notes))
