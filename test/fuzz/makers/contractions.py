"""Products of matrices and convolutions."""

from __future__ import annotations

from math import prod

from fuzz.generator import Generator, Unfit, maker


@maker(7)
def dot(make: Generator) -> None:
    """Any dims contracted, any dims shared, the others free."""
    x = make.number(rank=(1, 4), bound=8)
    kind = make.kinds[x]
    shared = make.some_dims(kind.rank, 0.65) or (make.integer(0, kind.rank - 1),)
    free = [make.size() for _ in range(make.integer(0, 2))]
    dims = [(dim, kind.shape[dim]) for dim in shared] + [(None, size) for size in free]
    dims = [dims[place] for place in make.order(len(dims))]
    shape = tuple(size for _, size in dims)
    if prod(shape) > make.budget:
        raise Unfit
    known = make.named(lambda it: it.shape == shape and it.dtype == kind.dtype)
    y = make.small(make.choice(known), 8) if known else make.argument(shape, kind.dtype)
    pairs = [(dim, place) for place, (dim, _) in enumerate(dims) if dim is not None]
    summed = [it for it in pairs if make.chance(0.65)]
    batched = [it for it in pairs if it not in summed]
    numbers = tuple(
        tuple(tuple(it[k] for it in some) for k in (0, 1)) for some in (summed, batched)
    )
    terms = prod(kind.shape[dim] for dim, _ in summed)
    bound = kind.bound * make.kinds[y].bound * max(terms, 1) * (2 if kind.is_complex else 1)
    parameters = dict(numbers=numbers)
    template = "lax.dot_general({0}, {1}, {numbers})"
    wide = {"bfloat16": "float32", "float16": "float32", "int8": "int32", "uint8": "int32"}
    if kind.dtype in wide and make.chance(0.5):
        template = "lax.dot_general({0}, {1}, {numbers}, preferred_element_type={wide})"
        parameters["wide"] = wide[kind.dtype]
    make.emit(template, [x, y], parameters, bound=bound)


@maker(3)
def einsum(make: Generator) -> None:
    x = make.pick(dtypes=("float32", "int32"), rank=(1, 3), bound=8)
    kind = make.kinds[x]
    letters = "abcdefgh"[: kind.rank]
    sizes = dict(zip(letters, kind.shape, strict=True))
    other = [it for it in letters if make.chance(0.6)]
    for letter in "uv"[: make.integer(0, 2)]:
        sizes[letter] = make.size()
        other.append(letter)
    other = [other[place] for place in make.order(len(other))]
    y = make.argument([sizes[it] for it in other], kind.dtype)
    kept = [it for it in sizes if make.chance(0.55)]
    kept = [kept[place] for place in make.order(len(kept))]
    equation = f"{letters},{''.join(other)}->{''.join(kept)}"
    terms = prod(max(size, 1) for letter, size in sizes.items() if letter not in kept)
    parameters = dict(equation=equation)
    make.emit("jnp.einsum({equation}, {0}, {1})", [x, y], parameters, bound=3 * kind.bound * terms)


_CONVOLUTION = (
    "({0}, {1}, window_strides={strides}, padding={padding}, lhs_dilation={image_dilation},"
    " rhs_dilation={kernel_dilation}, dimension_numbers=lax.ConvDimensionNumbers({image_dims},"
    " {kernel_dims}, {result_dims}), feature_group_count={feature_groups},"
    " batch_group_count={batch_groups})"
)


@maker(3)
def convolution(make: Generator) -> None:
    """Any order of dims, paddings also negative and different on both sides, groups, dilations."""
    spatial = make.integer(1, 2)
    rank = spatial + 2
    x = make.pick(dtypes=("float32",), rank=(rank, rank), bound=4, fresh=0.4, nonempty=True)
    kind = make.kinds[x]
    image_dims, kernel_dims, result_dims = (make.order(rank) for _ in range(3))
    batch, features = kind.shape[image_dims[0]], kind.shape[image_dims[1]]
    feature_groups, batch_groups = _groups(make, batch, features)
    window = tuple(make.integer(1, 3) for _ in range(spatial))
    made = max(make.size() // 2, 1) * feature_groups * batch_groups
    if made > 48:
        raise Unfit
    sizes = dict(zip(kernel_dims, (made, features // feature_groups, *window), strict=True))
    w = make.argument([sizes[dim] for dim in range(rank)])
    plain = make.chance(0.5)
    dilation = tuple(1 if plain else make.choice([1, 2]) for _ in range(spatial))
    low = -1 if make.chance(0.2) else 0
    parameters = dict(
        strides=tuple(make.integer(1, 2) for _ in range(spatial)),
        padding=tuple((make.integer(low, 2), make.integer(low, 2)) for _ in range(spatial)),
        image_dilation=dilation,
        kernel_dilation=tuple(1 if plain else make.choice([1, 2]) for _ in range(spatial)),
        image_dims=image_dims,
        kernel_dims=kernel_dims,
        result_dims=result_dims,
        feature_groups=feature_groups,
        batch_groups=batch_groups,
    )
    bound = kind.bound * 3 * prod(window) * features * batch_groups
    if make.chance(0.25) and not make.differentiated:
        sums = 8 * bound * kind.size
        make.emit("convolution_gradients" + _CONVOLUTION, [x, w], parameters, bound=sums)
    else:
        make.emit("lax.conv_general_dilated" + _CONVOLUTION, [x, w], parameters, bound=bound)


def _groups(make: Generator, batch: int, features: int) -> tuple[int, int]:
    if make.chance(0.3):
        return make.choice([it for it in (1, 2, 4, features) if features % it == 0]), 1
    if make.chance(0.2):
        return 1, make.choice([it for it in (1, 2, 4) if batch % it == 0])
    return 1, 1
