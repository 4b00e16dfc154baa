"""Reads and writes at computed places: takes, gathers, scatters, dynamic slices."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from fuzz.generator import INTEGERS, Generator, Kind, Unfit, maker


def _reaching(make: Generator, last: int) -> tuple[int, int]:
    """Lowest and highest index: within bounds, or beyond them on both sides."""
    return (0, last) if make.chance(0.6) else (-2, last + 3)


def _filled(kind: Kind, mode: str) -> str:
    """Entries out of bounds are NaN in floats, which is no number to go on with."""
    return "clip" if mode == "fill" and kind.dtype not in INTEGERS else mode


@maker(2)
def take(make: Generator) -> None:
    x = make.number(rank=(1, 4), nonempty=True)
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    index = make.indices(make.shape(make.integer(0, 2)), *_reaching(make, kind.shape[axis] - 1))
    mode = _filled(kind, make.choice(["clip", "fill", "wrap"]))
    parameters = dict(axis=axis, mode=mode)
    template = "jnp.take({0}, {1}, axis={axis}, mode={mode})"
    make.emit(template, [x, index], parameters, bound=kind.bound)


@maker(1.5)
def take_along_axis(make: Generator) -> None:
    x = make.number(rank=(1, 4), nonempty=True)
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    shape = list(kind.shape)
    shape[axis] = max(make.size(), 1)
    index = make.indices(shape, *_reaching(make, kind.shape[axis] - 1))
    template = "jnp.take_along_axis({0}, {1}, {axis}, mode='clip')"
    make.emit(template, [x, index], dict(axis=axis), bound=kind.bound)


@dataclass(frozen=True)
class _Subscript:
    """``x[{1}, :, {2}]``: the text, the indices, and the shape that comes of it."""

    text: str
    indices: tuple[str, ...]
    shape: tuple[int, ...]


def _subscript(make: Generator, kind: Kind, first: int) -> _Subscript:
    """Some dims indexed by arrays, others sliced; the first array has the number ``first``."""
    batch = make.shape(make.integer(1, 2))
    parts, indices, kept, places = [], [], [], []
    for dim, size in enumerate(kind.shape):
        if size and make.chance(0.45):
            places.append(dim)
            parts.append(f"{{{first + len(indices)}}}")
            indices.append(make.indices(batch, *_reaching(make, size - 1)))
        elif make.chance(0.7):
            parts.append(":")
            kept.append((dim, size))
        else:
            parts.append(f"{size // 3}:")
            kept.append((dim, size - size // 3))
    if not indices:
        raise Unfit
    adjacent = places == list(range(places[0], places[-1] + 1))
    before = [size for dim, size in kept if adjacent and dim < places[0]]
    after = [size for _, size in kept[len(before) :]]
    return _Subscript(", ".join(parts), tuple(indices), (*before, *batch, *after))


@maker(1.5)
def subscript(make: Generator) -> None:
    x = make.number(rank=(1, 4))
    found = _subscript(make, make.kinds[x], 1)
    template = f"{{0}}.at[{found.text}].get(mode='clip')"
    make.emit(template, [x, *found.indices], bound=make.kinds[x].bound)


@maker(1.8)
def subscript_update(make: Generator) -> None:
    """Entries are written more than once, but only by ops that do not care for the order."""
    x = make.pick(dtypes=("float32", "int32", "float64"), rank=(1, 3))
    kind = make.kinds[x]
    found = _subscript(make, kind, 2)
    update = make.small(make.matching(found.shape, kind.dtype), 8)
    functions = ["add", "add", "max", "min"]
    if not (kind.exact and make.kinds[update].exact) or make.differentiated:
        functions = ["add"]
    parameters = dict(mode=make.choice(["clip", "drop"]))
    function = make.choice(functions)
    template = f"{{0}}.at[{found.text}].{function}({{1}}, mode={{mode}})"
    bound = kind.bound + make.kinds[update].bound * max(prod(found.shape), 1)
    make.emit(template, [x, update, *found.indices], parameters, bound=bound)


@dataclass(frozen=True)
class _Window:
    """What gathers and scatters have in common, in the words of a gather."""

    indices_shape: tuple[int, ...]
    window: tuple[int, ...]
    last: int
    """Highest index that keeps every window within bounds."""
    offset_dims: tuple[int, ...]
    collapsed: tuple[int, ...]
    index_map: tuple[int, ...]
    batching: tuple[int, ...]
    indices_batching: tuple[int, ...]

    def parameters(self) -> dict[str, object]:
        names = ("offset_dims", "collapsed", "index_map", "batching", "indices_batching")
        return {name: getattr(self, name) for name in names}


_GATHER = (
    "lax.gather({0}, {1}, lax.GatherDimensionNumbers(offset_dims={offset_dims},"
    " collapsed_slice_dims={collapsed}, start_index_map={index_map},"
    " operand_batching_dims={batching}, start_indices_batching_dims={indices_batching}),"
    " {window}, mode={mode})"
)
_SCATTER = (
    "lax.{function}({{0}}, {{1}}, {{2}}, lax.ScatterDimensionNumbers("
    "update_window_dims={{offset_dims}}, inserted_window_dims={{collapsed}},"
    " scatter_dims_to_operand_dims={{index_map}}, operand_batching_dims={{batching}},"
    " scatter_indices_batching_dims={{indices_batching}}), mode={{mode}})"
)


def _window(make: Generator, kind: Kind) -> _Window:
    order = list(make.order(kind.rank))
    batching = (order.pop(),) if kind.rank >= 2 and make.chance(0.4) else ()
    mapped = tuple(order[: make.integer(1, len(order))])
    collapsed = tuple(sorted(dim for dim in order if make.chance(0.5)))
    window = tuple(
        1 if dim in (*batching, *collapsed) else make.integer(min(1, size), size)
        for dim, size in enumerate(kind.shape)
    )
    batch = [max(make.size(), 1) for _ in range(make.integer(len(batching), 2))]
    indices_batching = ()
    if batching:
        indices_batching = (make.integer(0, len(batch) - 1),)
        batch[indices_batching[0]] = kind.shape[batching[0]]
    kept = kind.rank - len(collapsed) - len(batching)
    offset_dims = tuple(sorted(make.order(kept + len(batch))[:kept]))
    last = min(kind.shape[dim] - window[dim] for dim in mapped)
    return _Window(
        indices_shape=(*batch, len(mapped)),
        window=window,
        last=last,
        offset_dims=offset_dims,
        collapsed=collapsed,
        index_map=mapped,
        batching=batching,
        indices_batching=indices_batching,
    )


@maker(2.5)
def gather(make: Generator) -> None:
    x = make.number(rank=(1, 4), nonempty=True)
    kind = make.kinds[x]
    found = _window(make, kind)
    index = make.indices(found.indices_shape, *_reaching(make, found.last))
    mode = _filled(kind, make.choice(["clip", "clip", "fill"]))
    parameters = found.parameters() | dict(window=found.window, mode=mode)
    make.emit(_GATHER, [x, index], parameters, bound=kind.bound)


@maker(2.5)
def scatter(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32", "float64"), rank=(1, 4), nonempty=True)
    kind = make.kinds[x]
    found = _window(make, kind)
    index = make.indices(found.indices_shape, *_reaching(make, found.last))
    dropped = (*found.collapsed, *found.batching)
    window = [size for dim, size in enumerate(found.window) if dim not in dropped]
    batch = list(found.indices_shape[:-1])
    rank = len(window) + len(batch)
    shape = [window.pop(0) if dim in found.offset_dims else batch.pop(0) for dim in range(rank)]
    if prod(shape) > make.budget:
        raise Unfit
    update = make.small(make.matching(shape, kind.dtype), 8)
    functions = ["scatter_add", "scatter_add", "scatter_max", "scatter_min"]
    if not (kind.exact and make.kinds[update].exact) or make.differentiated:
        functions = ["scatter_add"]
    function = make.choice(functions)
    parameters = found.parameters() | dict(mode=make.choice(["clip", "drop"]))
    bound = kind.bound + make.kinds[update].bound * max(prod(shape), 1)
    make.emit(_SCATTER.format(function=function), [x, index, update], parameters, bound=bound)


@maker(1)
def rows_in_places(make: Generator) -> None:
    x = make.number(rank=(1, 3))
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    size = kind.shape[axis]
    if size < 2:
        raise Unfit
    shape = list(kind.shape)
    shape[axis] = make.integer(1, size)
    rows = make.matching(shape, kind.dtype)
    step = make.choice([it for it in range(1, size) if gcd(it, size) == 1])
    parameters = dict(axis=axis, step=step, offset=make.integer(0, size - 1))
    bound = max(kind.bound, make.kinds[rows].bound)
    make.emit("set_rows({0}, {1}, {axis}, {step}, {offset})", [x, rows], parameters, bound=bound)


def _part(make: Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if make.chance(0.4) else make.integer(min(1, size), size) for size in shape)


@maker(2)
def dynamic_slice(make: Generator) -> None:
    x = make.number(rank=(1, 4))
    kind = make.kinds[x]
    starts = [make.scalar() for _ in kind.shape]
    places = "".join(f"{{{number + 1}}}, " for number in range(kind.rank))
    parameters = dict(sizes=_part(make, kind.shape))
    template = f"lax.dynamic_slice({{0}}, ({places}), {{sizes}})"
    make.emit(template, [x, *starts], parameters, bound=kind.bound)


@maker(2)
def dynamic_update_slice(make: Generator) -> None:
    x = make.number(rank=(1, 4))
    kind = make.kinds[x]
    update = make.matching(_part(make, kind.shape), kind.dtype)
    starts = [make.scalar() for _ in kind.shape]
    places = "".join(f"{{{number + 2}}}, " for number in range(kind.rank))
    template = f"lax.dynamic_update_slice({{0}}, {{1}}, ({places}))"
    make.emit(template, [x, update, *starts], bound=max(kind.bound, make.kinds[update].bound))


@maker(0.8)
def one_hot(make: Generator) -> None:
    index = make.pick(dtypes=("int32",), rank=(0, 2))
    parameters = dict(count=max(make.size(), 1), axis=make.choice([-1, 0]))
    make.emit("jax.nn.one_hot({0}, {count}, axis={axis})", [index], parameters, bound=1)


@maker(1)
def segments(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32"), rank=(1, 3))
    kind = make.kinds[x]
    count = max(make.size(), 1)
    index = make.indices(kind.shape[:1], 0, count - 1)
    function = make.choice(["sum", "max"]) if kind.is_integer else "sum"
    template = f"jax.ops.segment_{function}({{0}}, {{1}}, num_segments={{count}})"
    bound = kind.bound * max(kind.shape[0], 1)
    make.emit(template, [x, index], dict(count=count), bound=bound)


@maker(0.5, differentiable=False)
def counts(make: Generator) -> None:
    index = make.pick(dtypes=("int32",), rank=(1, 3))
    parameters = dict(count=max(make.size(), 1))
    make.emit("jnp.bincount(jnp.abs({0}).reshape(-1), length={count})", [index], parameters)
