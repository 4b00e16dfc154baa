"""Windows that slide: pools, their gradients, and windows of any stride, padding and dilation."""

from __future__ import annotations

from math import prod

from fuzz.generator import Generator, maker


@maker(1.6)
def window(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32"), rank=(1, 4), exact=True, nonempty=True)
    kind = make.kinds[x]
    slides = make.some_dims(kind.rank, 0.6) or (0,)

    def each(low: int, high: int, other: int = 1) -> tuple[int, ...]:
        dims = range(kind.rank)
        return tuple(make.integer(low, high) if dim in slides else other for dim in dims)

    sizes = tuple(min(it, size) for it, size in zip(each(1, 4), kind.shape, strict=True))
    is_plain = make.differentiated or make.chance(0.6)
    parameters = dict(
        function=make.choice(["add", "max", "min"]),
        sizes=sizes,
        strides=each(1, 3),
        padding=tuple(
            (make.integer(0, 2), make.integer(0, 2)) if dim in slides else (0, 0)
            for dim in range(kind.rank)
        ),
        base_dilation=each(1, 1 if is_plain else 2),
        window_dilation=each(1, 1 if is_plain else 2),
    )
    template = (
        "window({0}, {function}, {sizes}, {strides}, {padding}, {base_dilation}, {window_dilation})"
    )
    make.emit(template, [x], parameters, bound=max(kind.bound * prod(sizes), 64))


@maker(0.8)
def pool_gradient(make: Generator) -> None:
    x = make.pick(dtypes=("float32",), rank=(1, 4), exact=True, nonempty=True)
    kind = make.kinds[x]
    cotangent = make.argument((), "float32")
    sizes = tuple(min(make.integer(1, 3), size) for size in kind.shape)
    parameters = dict(
        function=make.choice(["max", "max", "add"]),
        sizes=sizes,
        strides=tuple(make.integer(1, 2) for _ in sizes),
        padding=make.choice(["VALID", "SAME"]),
    )
    template = "pool_gradient({0}, {1}, {function}, {sizes}, {strides}, {padding})"
    make.emit(template, [x, cotangent], parameters, bound=6 * prod(sizes))
