"""Ops that move entries about: slices, pads, joins, reshapes."""

from __future__ import annotations

from math import prod

from fuzz.generator import Generator, Unfit, maker


@maker(2)
def broadcast(make: Generator) -> None:
    x = make.number(rank=(0, 3))
    kind = make.kinds[x]
    rank = kind.rank + make.integer(1, 2)
    dims = tuple(sorted(make.order(rank)[: kind.rank]))
    shape = [make.size() for _ in range(rank)]
    for dim, size in zip(dims, kind.shape, strict=True):
        shape[dim] = make.size() if size == 1 and make.chance(0.5) else size
    if prod(shape) > make.budget:
        raise Unfit
    parameters = dict(shape=tuple(shape), dims=dims)
    make.emit("lax.broadcast_in_dim({0}, {shape}, {dims})", [x], parameters, bound=kind.bound)


@maker(2.5)
def concatenation(make: Generator) -> None:
    x = make.number(rank=(1, 4))
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    rest = kind.shape[:axis], kind.shape[axis + 1 :]
    operands = [x]
    for _ in range(make.integer(1, 2)):
        others = make.named(
            lambda it: (
                it.dtype == kind.dtype
                and it.rank == kind.rank
                and (it.shape[:axis], it.shape[axis + 1 :]) == rest
            )
        )
        if others and make.chance(0.7):
            operands.append(make.small(make.choice(others), 64))
        else:
            operands.append(make.argument((*rest[0], make.size(), *rest[1]), kind.dtype))
    places = ", ".join(f"{{{number}}}" for number in range(len(operands)))
    bound = max(make.kinds[it].bound for it in operands)
    make.emit(f"lax.concatenate([{places}], {{axis}})", operands, dict(axis=axis), bound=bound)


@maker(1)
def stack(make: Generator) -> None:
    x = make.number(rank=(0, 3))
    kind = make.kinds[x]
    operands = [x, *(make.matching(kind.shape, kind.dtype) for _ in range(make.choice([1, 1, 3])))]
    places = ", ".join(f"{{{number}}}" for number in range(len(operands)))
    bound = max(make.kinds[it].bound for it in operands)
    parameters = dict(axis=make.integer(0, kind.rank))
    make.emit(f"jnp.stack([{places}], axis={{axis}})", operands, parameters, bound=bound)


@maker(1.5)
def split(make: Generator) -> None:
    x = make.number(rank=(1, 4))
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    size = kind.shape[axis]
    if size < 2:
        raise Unfit
    equal = [it for it in (2, 3, 4) if size % it == 0]
    places = make.choice(equal) if equal and make.chance(0.6) else (make.integer(1, size - 1),)
    parameters = dict(places=places, axis=axis)
    make.emit("tuple(jnp.split({0}, {places}, axis={axis}))", [x], parameters, bound=kind.bound)


@maker(2.5)
def pad(make: Generator) -> None:
    """Also negative, and between entries."""
    x = make.number(rank=(1, 4))
    kind = make.kinds[x]

    def of_dim() -> tuple[int, int, int]:
        if make.chance(0.45):
            return 0, 0, 0
        return make.integer(-2, 3), make.integer(-2, 3), make.choice([0, 0, 1, 2])

    config = tuple(of_dim() for _ in kind.shape)
    if make.differentiated:
        # JAX 0.10 fails in the gradient where only the value is differentiated.
        template = "lax.pad({0}, jnp.zeros((), {0}.dtype), {config})"
        make.emit(template, [x], dict(config=config), bound=kind.bound)
        return
    value = make.argument((), kind.dtype)
    bound = max(kind.bound, 4)
    make.emit("lax.pad({0}, {1}, {config})", [x, value], dict(config=config), bound=bound)


@maker(2.5)
def slices(make: Generator) -> None:
    x = make.number(rank=(1, 4))
    kind = make.kinds[x]
    starts, ends, strides = [], [], []
    for size in kind.shape:
        is_whole = make.chance(0.4)
        starts.append(0 if is_whole else make.integer(0, size))
        ends.append(size if is_whole or make.chance(0.4) else make.integer(starts[-1], size))
        strides.append(1 if is_whole else make.integer(1, 3))
    parameters = dict(starts=tuple(starts), ends=tuple(ends), strides=tuple(strides))
    make.emit("lax.slice({0}, {starts}, {ends}, {strides})", [x], parameters, bound=kind.bound)


@maker(1.2)
def reverse(make: Generator) -> None:
    x = make.number(rank=(1, 4))
    kind = make.kinds[x]
    dims = make.some_dims(kind.rank) or (0,)
    make.emit("lax.rev({0}, {dims})", [x], dict(dims=dims), bound=kind.bound)


@maker(1.2)
def roll(make: Generator) -> None:
    x = make.number(rank=(1, 4), nonempty=True)
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    if make.chance(0.3):
        make.emit(
            "jnp.roll({0}, {1}, {axis})", [x, make.scalar()], dict(axis=axis), bound=kind.bound
        )
        return
    parameters = dict(by=make.integer(-5, 5), axis=axis)
    make.emit("jnp.roll({0}, {by}, {axis})", [x], parameters, bound=kind.bound)


@maker(5)
def reshape(make: Generator) -> None:
    """Dims are split and joined, or all entries dealt out anew."""
    x = make.number()
    kind = make.kinds[x]
    shape = list(kind.shape)
    for _ in range(make.integer(1, 3)):
        kinds = make.random.random()
        dim = make.integer(0, max(len(shape) - 1, 0))
        if kinds < 0.45 and shape and shape[dim]:
            outer = make.choice([it for it in range(1, shape[dim] + 1) if shape[dim] % it == 0])
            shape[dim : dim + 1] = [outer, shape[dim] // outer]
        elif kinds < 0.85 and dim + 1 < len(shape):
            shape[dim : dim + 2] = [shape[dim] * shape[dim + 1]]
        elif len(shape) < 6:
            shape.insert(dim, 1)
    if make.chance(0.08) and kind.size:
        rows = make.choice([it for it in range(1, kind.size + 1) if kind.size % it == 0])
        shape = [rows, kind.size // rows]
    make.emit("{0}.reshape({shape})", [x], dict(shape=tuple(shape)), bound=kind.bound)


@maker(3)
def transpose(make: Generator) -> None:
    x = make.number(rank=(2, 5))
    kind = make.kinds[x]
    make.emit("{0}.transpose({order})", [x], dict(order=make.order(kind.rank)), bound=kind.bound)


@maker(1)
def tile(make: Generator) -> None:
    x = make.number(rank=(1, 3))
    kind = make.kinds[x]
    if make.chance(0.5):
        counts = tuple(make.integer(1, 3) for _ in kind.shape)
        make.emit("jnp.tile({0}, {counts})", [x], dict(counts=counts), bound=kind.bound)
        return
    parameters = dict(count=make.integer(1, 3), axis=make.integer(0, kind.rank - 1))
    make.emit("jnp.repeat({0}, {count}, axis={axis})", [x], parameters, bound=kind.bound)


@maker(1)
def triangle(make: Generator) -> None:
    x = make.number(rank=(2, 4))
    kind = make.kinds[x]
    parameters: dict[str, int] = dict(offset=make.integer(-2, 2))
    if make.chance(0.5):
        template = make.choice(["jnp.tril({0}, {offset})", "jnp.triu({0}, {offset})"])
    else:
        template = "jnp.diagonal({0}, {offset}, {first}, {second})"
        parameters["first"], parameters["second"], *_ = make.order(kind.rank)
    make.emit(template, [x], parameters, bound=kind.bound)
