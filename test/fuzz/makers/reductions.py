"""Sums and other reductions, prefixes, sorting."""

from __future__ import annotations

from math import prod

from fuzz.generator import Generator, Unfit, maker


@maker(5)
def reduction(make: Generator) -> None:
    x = make.number(rank=(1, 4))
    kind = make.kinds[x]
    axes = make.some_dims(kind.rank) or (make.integer(0, kind.rank - 1),)
    terms = prod(kind.shape[dim] for dim in axes)
    functions = {"sum": kind.bound * max(terms, 1)}
    if kind.exact and not kind.is_complex and terms:
        functions |= {"max": kind.bound, "min": kind.bound}
    if kind.dtype == "int32":
        functions |= {"prod": 0}
    function = make.choice(list(functions))
    parameters = dict(axes=axes, keepdims=make.chance(0.25))
    template = f"jnp.{function}({{0}}, axis={{axes}}, keepdims={{keepdims}})"
    make.emit(template, [x], parameters, bound=functions[function])


@maker(0.8)
def mean(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "float64"), rank=(1, 4), nonempty=True)
    kind = make.kinds[x]
    axes = make.some_dims(kind.rank) or (0,)
    function = make.choice(["mean", "var"])
    template = f"jnp.{function}({{0}}, axis={{axes}})"
    make.emit(template, [x], dict(axes=axes), bound=kind.bound**2, exact=False)


@maker(0.7)
def any_or_all(make: Generator) -> None:
    x = make.number(exact=True, rank=(1, 4))
    axis = make.integer(0, make.kinds[x].rank - 1)
    template = make.choice(["jnp.any({0} > 0, axis={axis})", "jnp.all({0} == 0, axis={axis})"])
    if make.kinds[x].is_complex:
        raise Unfit
    make.emit(template, [x], dict(axis=axis))


@maker(1)
def place_of_extreme(make: Generator) -> None:
    x = make.number(exact=True, rank=(1, 4), nonempty=True)
    if make.kinds[x].is_complex:
        raise Unfit
    function = make.choice(["argmax", "argmin"])
    axis = make.integer(0, make.kinds[x].rank - 1)
    make.emit(f"lax.{function}({{0}}, {{axis}}, 'int32')", [x], dict(axis=axis))


@maker(0.6, differentiable=False)
def reduction_of_two(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32"), exact=True, rank=(1, 4), nonempty=True)
    kind = make.kinds[x]
    index = make.indices(kind.shape, 0, 99)
    axes = make.some_dims(kind.rank) or (0,)
    template = "largest_with_index({0}, {1}, {axes})"
    make.emit(template, [x, index], dict(axes=axes), bounds=(kind.bound, 99))


@maker(1.6)
def prefix(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32", "float64", "complex64"), rank=(1, 4))
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    functions = {"cumsum": kind.bound * max(kind.shape[axis], 1)}
    if kind.exact and not kind.is_complex:
        functions |= {"cummax": kind.bound, "cummin": kind.bound}
    if kind.dtype == "int32":
        functions |= {"cumprod": 0}
    function = make.choice(list(functions))
    parameters = dict(axis=axis, reverse=make.chance(0.4))
    template = f"lax.{function}({{0}}, axis={{axis}}, reverse={{reverse}})"
    make.emit(template, [x], parameters, bound=functions[function])


@maker(0.6)
def associative_scan(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32"), exact=True, rank=(1, 3), nonempty=True)
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    parameters = dict(axis=axis, reverse=make.chance(0.4))
    function = make.choice(["add", "maximum"])
    template = f"lax.associative_scan(jnp.{function}, {{0}}, axis={{axis}}, reverse={{reverse}})"
    make.emit(template, [x], parameters, bound=kind.bound * kind.shape[axis])


@maker(1.5)
def sort(make: Generator) -> None:
    x = make.number(exact=True, rank=(1, 4))
    kind = make.kinds[x]
    if kind.is_complex:
        raise Unfit
    dtypes = [make.choice([kind.dtype, "int32"]) for _ in range(make.integer(0, 2))]
    others = [make.matching(kind.shape, dtype) for dtype in dtypes]
    operands = [x, *others]
    if not all(make.kinds[it].exact for it in operands):
        raise Unfit
    places = "".join(f"{{{number}}}, " for number in range(len(operands)))
    parameters = dict(axis=make.integer(0, kind.rank - 1), keys=make.integer(1, len(operands)))
    template = f"lax.sort(({places}), dimension={{axis}}, num_keys={{keys}}, is_stable=True)"
    make.emit(template, operands, parameters, bounds=[make.kinds[it].bound for it in operands])


@maker(0.7)
def argsort(make: Generator) -> None:
    x = make.number(exact=True, rank=(1, 4))
    if make.kinds[x].is_complex:
        raise Unfit
    axis = make.integer(0, make.kinds[x].rank - 1)
    parameters = dict(axis=axis, descending=make.chance(0.5))
    make.emit("jnp.argsort({0}, axis={axis}, descending={descending})", [x], parameters)


@maker(1)
def top_k(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32"), exact=True, rank=(1, 4), nonempty=True)
    kind = make.kinds[x]
    parameters = dict(count=make.integer(1, kind.shape[-1]))
    make.emit("lax.top_k({0}, {count})", [x], parameters, bounds=(kind.bound, 99))


@maker(0.6, differentiable=False)
def searched(make: Generator) -> None:
    x = make.pick(dtypes=("int32", "float32"), exact=True, rank=(1, 2), nonempty=True)
    y = make.pick(dtypes=(make.kinds[x].dtype,), exact=True)
    method = make.choice(["scan", "sort", "compare_all"])
    template = "jnp.searchsorted(jnp.sort({0}.reshape(-1)), {1}, method={method})"
    make.emit(template, [x, y], dict(method=method))
