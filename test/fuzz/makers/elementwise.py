"""Ops that work entry by entry, conversions, constants and random numbers."""

from __future__ import annotations

from fuzz.generator import FLOATS, INTEGERS, WHOLE, Generator, Unfit, maker

_EXACT = {
    "-{0}": (1, 0),
    "jnp.abs({0})": (1, 0),
    "jnp.maximum({0}, 0)": (1, 0),
    "{0} + {0}": (2, 0),
    "{0} + 1": (1, 1),
    "lax.optimization_barrier({0})": (1, 0),
    "lax.stop_gradient({0})": (1, 0),
    "jnp.clip({0}, -2, 2)": (0, 2),
}
"""The bound of the result: this times the bound of the operand, plus that."""
_ON_EXACT = ("jnp.sign({0})", "jnp.floor({0} / 2)", "lax.rem({0}, jnp.asarray(5, {0}.dtype))")
_ROUNDING = (
    "jnp.tanh({0} / 4)",
    "jnp.exp(jnp.clip({0}, -3, 3))",
    "jax.nn.sigmoid({0})",
    "jnp.sqrt(jnp.abs({0}) + 1)",
    "{0} / 3",
    "jax.nn.gelu({0})",
    "lax.erf({0} / 4)",
    "lax.rsqrt(jnp.abs({0}) + 1)",
    "jnp.sin({0})",
    "jnp.log1p(jnp.abs({0}))",
)
_ON_INTEGERS = (
    "-{0}",
    "{0} + {0}",
    "{0} * {0}",
    "lax.population_count({0})",
    "~{0}",
    "{0} << 1",
    "{0} >> 1",
    "{0} // 2",
)


@maker(5)
def unary(make: Generator) -> None:
    x = make.number()
    kind = make.kinds[x]
    if kind.is_integer:
        make.emit(make.choice(_ON_INTEGERS), [x])
    elif kind.is_complex:
        make.emit(make.choice(["-{0}", "jnp.conj({0})", "{0} * {0}"]), [x], bound=2 * kind.bound**2)
    elif make.chance(0.25):
        make.emit(make.choice(_ROUNDING), [x], bound=max(kind.bound, 21), exact=False)
    elif kind.exact and make.chance(0.25):
        make.emit(make.choice(_ON_EXACT), [x], bound=kind.bound)
    else:
        template = make.choice(list(_EXACT))
        factor, more = _EXACT[template]
        make.emit(template, [x], bound=factor * kind.bound + more)


@maker(1)
def square(make: Generator) -> None:
    x = make.pick()
    make.emit("{0} * {0}", [x], bound=make.kinds[x].bound ** 2)


@maker(6)
def binary(make: Generator) -> None:
    x = make.number()
    y = make.matching(make.kinds[x].shape, make.kinds[x].dtype)
    a, b = make.kinds[x], make.kinds[y]
    both = [x, y] if make.chance(0.7) else [y, x]
    templates = {"{0} + {1}": a.bound + b.bound, "{0} - {1}": a.bound + b.bound}
    templates |= {"{0} * {1}": a.bound * b.bound * (2 if a.is_complex else 1)}
    if a.exact and b.exact and not a.is_complex:
        larger = max(a.bound, b.bound)
        templates |= {"jnp.maximum({0}, {1})": larger, "jnp.minimum({0}, {1})": larger}
        templates |= {"jnp.where({0} > {1}, {0}, {1} * 2)": 2 * larger}
    if a.is_integer:
        templates |= {"{0} & {1}": 0, "{0} | {1}": 0, "{0} ^ {1}": 0}
    template = make.choice(list(templates))
    make.emit(template, both, bound=templates[template])


@maker(0.6)
def quotient(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "float64"))
    y = make.matching(make.kinds[x].shape, make.kinds[x].dtype)
    template = make.choice(["{0} / (jnp.abs({1}) + 1)", "jnp.power(jnp.abs({0}) + 1, {1} / 64)"])
    make.emit(template, [x, y], bound=make.kinds[x].bound + 65, exact=False)


@maker(1.5)
def comparison(make: Generator) -> None:
    x = make.number(exact=True)
    y = make.matching(make.kinds[x].shape, make.kinds[x].dtype)
    if make.kinds[x].is_complex or not make.kinds[y].exact:
        raise Unfit
    make.emit(make.choice(["{0} < {1}", "{0} == {1}", "{0} >= {1}"]), [x, y])


@maker(2)
def where(make: Generator) -> None:
    x = make.number()
    kind = make.kinds[x]
    y = make.matching(kind.shape, kind.dtype)
    condition = make.matching(kind.shape, "bool")
    bound = max(kind.bound, make.kinds[y].bound)
    make.emit("jnp.where({0}, {1}, {2})", [condition, x, y], bound=bound)


@maker(0.8)
def select(make: Generator) -> None:
    x = make.number()
    kind = make.kinds[x]
    cases = [x, *(make.matching(kind.shape, kind.dtype) for _ in range(make.integer(1, 2)))]
    index = make.matching(kind.shape, "int32")
    places = ", ".join(f"{{{number}}}" for number in range(len(cases) + 1))
    bound = max(make.kinds[it].bound for it in cases)
    make.emit(f"select({places})", [index, *cases], bound=bound)


@maker(0.8)
def clamp(make: Generator) -> None:
    x = make.number(exact=True)
    kind = make.kinds[x]
    if kind.is_complex:
        raise Unfit
    low, high = (make.matching(kind.shape, kind.dtype) for _ in range(2))
    if not (make.kinds[low].exact and make.kinds[high].exact):
        raise Unfit
    bound = max(make.kinds[it].bound for it in (x, low, high))
    make.emit("clamp({0}, {1}, {2})", [x, low, high], bound=bound)


@maker(2)
def convert(make: Generator) -> None:
    x = make.pick(dtypes=(*FLOATS, *INTEGERS, "bool"), bound=60)
    kind = make.kinds[x]
    targets = [*sorted({*make.dtypes()} - {kind.dtype, "bool"}), "float32", "bfloat16"]
    target = make.choice(targets)
    if target == kind.dtype or (target in INTEGERS and not kind.exact):
        raise Unfit
    if kind.is_float and target.startswith("u"):
        x = make.emit("jnp.abs({0})", [x], bound=kind.bound)[0]
    if kind.is_integer and target in WHOLE:
        x = make.emit("{0} % 50", [x])[0]
    bound = kind.bound if kind.is_float else 50
    make.emit("{0}.astype({dtype})", [x], dict(dtype=target), bound=bound)


@maker(0.7)
def bitcast(make: Generator) -> None:
    x = make.pick(dtypes=("int32", "uint32", "uint8", "int8", "float32"), exact=True, rank=(1, 3))
    kind = make.kinds[x]
    if make.differentiated and kind.is_float:
        raise Unfit
    if kind.is_float:
        # -0.0 and 0.0 are equal, and differ in their bits.
        x = make.emit("jnp.abs({0})", [x], bound=kind.bound)[0]
    target = make.choice(["int32", "uint8", "uint32", "int8"])
    make.emit("lax.bitcast_convert_type({0}, {dtype})", [x], dict(dtype=target))


@maker(0.8)
def complex_parts(make: Generator) -> None:
    known = make.named(lambda kind: kind.is_complex)
    if known and make.chance(0.6):
        x = make.choice(known)
        template = make.choice(["{0}.real", "{0}.imag", "{0}.real - {0}.imag"])
        make.emit(template, [x], bound=2 * make.kinds[x].bound)
        return
    x = make.pick(dtypes=("float32",))
    y = make.matching(make.kinds[x].shape, "float32")
    bound = make.kinds[x].bound + make.kinds[y].bound
    make.emit("lax.complex({0}, {1})", [x, y], bound=bound)


@maker(0.8)
def fourier(make: Generator) -> None:
    function = make.choice(["fft", "ifft", "rfft", "irfft"])
    both = ("float32", "complex64")
    dtypes = {"rfft": both[:1], "irfft": both[1:]}.get(function, both)
    x = make.pick(dtypes=dtypes, rank=(1, 3), nonempty=True)
    kind = make.kinds[x]
    axis = make.integer(0, kind.rank - 1)
    if kind.shape[axis] < 2:
        raise Unfit
    parameters = dict(axis=axis)
    bound = 2 * kind.bound * kind.shape[axis]
    make.emit(f"jnp.fft.{function}({{0}}, axis={{axis}})", [x], parameters, bound, exact=False)


@maker(1)
def constant(make: Generator) -> None:
    dtype = make.choice(["float32", "int32"])
    shape = make.shape(make.integer(1, 3))
    parameters = dict(shape=shape, dtype=dtype, dim=make.integer(0, len(shape) - 1))
    iota = "lax.broadcasted_iota({dtype}, {shape}, {dim}) % 7"
    make.emit(make.choice([iota, "jnp.full({shape}, 2, {dtype})"]), [], parameters, bound=7)


@maker(1.2)
def random_numbers(make: Generator) -> None:
    key = make.key()
    shape = make.shape(make.integer(1, 3))
    count = max(make.size(), 1)
    template, bound = make.choice(
        [
            ("jax.random.randint(jax.random.fold_in({0}, 3), {shape}, -3, 4)", 3),
            ("jax.random.bernoulli({0}, 0.5, {shape})", 1),
            ("jnp.floor(jax.random.uniform({0}, {shape}) * 8) - 4", 4),
            ("tuple(jax.random.split({0}, 2))", 0),
            ("random_rows({0}, {count}, {short})", 3),
            ("jax.random.permutation({0}, {count})", 99),
        ]
    )
    parameters = dict(shape=shape, count=count, short=shape[:1])
    used = {key: value for key, value in parameters.items() if f"{{{key}}}" in template}
    make.emit(template, [key], used, bound=bound)


@maker(0.7)
def dropout(make: Generator) -> None:
    x = make.pick()
    make.emit("drop_out({0}, {1})", [x, make.key()], bound=2 * make.kinds[x].bound)


@maker(0.15, inside=False, differentiable=False)
def callback(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32"))
    make.emit("twice_on_host({0})", [x], bound=2 * make.kinds[x].bound)


@maker(0.7)
def own_derivatives(make: Generator) -> None:
    x = make.pick(dtypes=("float32",))
    bound = make.kinds[x].bound
    if make.chance(0.4):
        make.emit("own_twice({0})", [x], bound=2 * bound)
        return
    w = make.matching(make.kinds[x].shape, "float32")
    make.emit("own_product({0}, {1})", [x, w], bound=bound * make.kinds[w].bound)
