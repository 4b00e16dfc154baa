"""Instructions with programs inside: loops, branches, calls, and transformations of JAX."""

from __future__ import annotations

from dataclasses import replace

from fuzz.generator import Generator, Kind, Unfit, maker

_CARRIED = ("float32", "float32", "int32")


def _need_depth(make: Generator, limit: int = 2) -> None:
    if make.depth >= limit:
        raise Unfit


def _carried(make: Generator) -> list[str]:
    return [make.pick(dtypes=_CARRIED, rank=(0, 3), bound=4) for _ in range(make.integer(1, 2))]


def _constants(make: Generator) -> list[str]:
    return [make.pick(dtypes=("float32",), rank=(0, 3), bound=4) for _ in range(make.integer(0, 2))]


def _group(first: int, number: int) -> str:
    return "(" + "".join(f"{{{place}}}, " for place in range(first, first + number)) + ")"


def _of_step(make: Generator, name: str) -> Kind:
    """What a carried value is in every step: as large as may be, and no better than later ones."""
    return replace(make.kinds[name], bound=4.0)


def _repeating(make: Generator, carried: list[str], others: list[Kind]) -> Generator:
    """A body, and in it new values for those that are carried.

    The body is made for exact values, and again for others if it turns out to round.
    """
    kinds = [_of_step(make, name) for name in carried]
    if not all(kind.exact for kind in [*kinds, *others]):
        kinds = [replace(kind, exact=False) for kind in kinds]
    inner = make.body([*kinds, *others])
    inner.grow(make.integer(1, 3))
    return inner


def _next_values(inner: Generator, number: int) -> list[str]:
    """Results with the kinds of the first ``number`` arguments, bounded again."""
    results = []
    for argument in inner.arguments[:number]:
        kind = inner.kinds[argument.name]
        same = inner.computed(
            lambda it, kind=kind: (
                it.shape == kind.shape and it.dtype == kind.dtype and (it.exact or not kind.exact)
            )
        )
        name = inner.choice(same) if same and inner.chance(0.8) else argument.name
        if name == argument.name:
            name = _with_a_sum(inner, name, kind)
        results.append(inner.small(name, 4))
    return results


def _with_a_sum(inner: Generator, name: str, kind: Kind) -> str:
    others = inner.computed(lambda it: it.dtype == kind.dtype and (it.exact or not kind.exact))
    if not others or kind.dtype not in _CARRIED:
        return name
    other = inner.small(inner.choice(others), 4)
    size = max(inner.kinds[other].size, 1)
    return inner.emit("{0} + jnp.sum({1})", [name, other], bound=4 + 4 * size)[0]


@maker(2.5)
def scan(make: Generator) -> None:
    _need_depth(make)
    carried, constants = _carried(make), _constants(make)
    sequences = []
    length = make.integer(1, 4)
    if make.chance(0.75):
        first = make.pick(dtypes=_CARRIED, rank=(1, 4), bound=4, nonempty=True)
        sequences = [first]
        length = make.kinds[first].shape[0]
        if length > 32:
            raise Unfit
    of_step = [replace(it, shape=it.shape[1:]) for it in map(make.kinds.get, sequences) if it]
    inner = _repeating(make, carried, of_step + [make.kinds[it] for it in constants])
    results = _next_values(inner, len(carried))
    stacked = [make.choice(inner.computed())] if inner.computed() and make.chance(0.6) else []
    body = inner.finished(results + stacked)
    parameters = dict(
        body=body,
        length=length,
        reverse=make.chance(0.3),
        unroll=make.choice([1, 1, 1, 2]),
        remat=make.chance(0.25),
    )
    operands = [*carried, *sequences, *constants]
    groups = [
        _group(0, len(carried)),
        _group(len(carried), len(sequences)),
        _group(len(carried) + len(sequences), len(constants)),
    ]
    template = (
        f"scan({{body}}, {', '.join(groups)}, {{length}}, {{reverse}}, {{unroll}}, {{remat}})"
    )
    bounds = [4.0] * len(carried) + [body.kinds[it].bound for it in stacked]
    make.emit(template, operands, parameters, bounds=bounds, exact=all(body.output_exactness))


@maker(2)
def loop(make: Generator) -> None:
    _need_depth(make)
    carried, constants = _carried(make), _constants(make)
    inner = _repeating(make, carried, [make.kinds[it] for it in constants])
    body = inner.finished(_next_values(inner, len(carried)))
    is_exact = all(body.output_exactness)
    groups = f"{_group(0, len(carried))}, {_group(len(carried), len(constants))}"
    operands = [*carried, *constants]
    if make.chance(0.5) or make.differentiated or not is_exact:
        parameters = dict(body=body, count=make.integer(0, 4))
        make.emit(f"repeat({{body}}, {groups}, {{count}})", operands, parameters, exact=is_exact)
        return
    template = f"repeat_while({{body}}, {{{len(operands)}}}, {groups})"
    make.emit(template, [*operands, make.scalar()], dict(body=body), exact=is_exact)


@maker(1.5)
def branch(make: Generator) -> None:
    _need_depth(make)
    operands = _carried(make) + _constants(make)
    number = len(operands)
    bodies = []
    for _ in range(make.choice([2, 2, 3])):
        inner = make.body([make.kinds[it] for it in operands])
        inner.grow(make.integer(1, 3))
        bodies.append(inner.finished(_next_values(inner, 1)))
    names = "".join(f"{{body_{place}}}, " for place in range(len(bodies)))
    places = ", ".join(f"{{{place}}}" for place in range(number))
    parameters = {f"body_{place}": body for place, body in enumerate(bodies)}
    is_exact = all(exact for body in bodies for exact in body.output_exactness)
    template = f"branch({{{number}}}, ({names}), {places})"
    make.emit(template, [*operands, make.scalar()], parameters, exact=is_exact)


@maker(2)
def call(make: Generator) -> None:
    _need_depth(make)
    operands = [make.pick(dtypes=_CARRIED) for _ in range(make.integer(1, 3))]
    body = _called(make, [make.kinds[it] for it in operands])
    places = ", ".join(f"{{{place}}}" for place in range(len(operands)))
    template = make.choice(
        [
            f"jax.jit({{body}})({places})",
            f"jax.checkpoint({{body}})({places})",
            f"twice_called({{body}}, {places})",
        ]
    )
    _emit_call(make, template, operands, body)


@maker(1.5)
def vmap(make: Generator) -> None:
    _need_depth(make)
    x = make.pick(dtypes=_CARRIED, rank=(1, 4), nonempty=True)
    axis = make.integer(0, make.kinds[x].rank - 1)
    size = make.kinds[x].shape[axis]
    operands, axes = [x], [axis]
    others = make.named(lambda kind: kind.dtype in _CARRIED and size in kind.shape)
    if others and make.chance(0.6):
        other = make.small(make.choice(others), 64)
        operands.append(other)
        axes.append(make.kinds[other].shape.index(size))
    elif make.chance(0.4):
        operands.append(make.pick(dtypes=("float32",)))
        axes.append(None)
    kinds = []
    for name, mapped in zip(operands, axes, strict=True):
        shape = make.kinds[name].shape
        kept = shape if mapped is None else shape[:mapped] + shape[mapped + 1 :]
        kinds.append(replace(make.kinds[name], shape=kept))
    body = _called(make, kinds)
    places = ", ".join(f"{{{place}}}" for place in range(len(operands)))
    out_axes = tuple(make.integer(0, body.kinds[it].rank) for it in body.outputs)
    parameters = dict(in_axes=tuple(axes), out_axes=out_axes)
    template = f"jax.vmap({{body}}, {{in_axes}}, {{out_axes}})({places})"
    _emit_call(make, template, operands, body, **parameters)


@maker(1, inside=False, differentiable=False)
def inner_gradient(make: Generator) -> None:
    operands = [
        make.pick(dtypes=("float32",), rank=(1, 3), bound=4) for _ in range(make.integer(1, 3))
    ]
    inner = make.body([make.kinds[it] for it in operands])
    inner.differentiated = True
    inner.grow(make.integer(2, 5))
    floats = inner.computed(lambda kind: kind.dtype == "float32")
    if not floats:
        raise Unfit
    body = inner.finished(floats[-1:])
    places = ", ".join(f"{{{place}}}" for place in range(len(operands)))
    make.emit(f"inner_gradient({{body}}, {places})", operands, dict(body=body), 1e4, exact=False)


def _called(make: Generator, kinds: list[Kind]):
    inner = make.body(kinds)
    inner.grow(make.integer(1, 4))
    results = inner.computed()
    if not results:
        raise Unfit
    return inner.finished(inner.unused(results)[-2:] or results[-1:])


def _emit_call(make: Generator, template: str, operands: list[str], body, **parameters) -> None:
    bounds = [body.kinds[it].bound for it in body.outputs]
    is_exact = all(body.output_exactness)
    make.emit(template, operands, dict(body=body, **parameters), bounds=bounds, exact=is_exact)
