"""How the devices of a cluster are numbered: which of its dims every axis of a mesh lies on.

Devices are numbered row-major over parts of dims, slowest first. By default each dim is one part,
in the order of the cluster: on ``v5e:4x8`` the mesh ``data=8,model=4`` then has ``data`` on ``x``
and half of ``y``, and ``model`` on the rest of ``y``. With the order ``y=8, x=4`` ``data`` lies on
``y`` and ``model`` on ``x``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, product
from math import gcd, prod

import numpy as np

from autoshard.cluster.topology import Dim
from autoshard.errors import ClusterError
from autoshard.sharding.mesh import Mesh

Order = tuple[tuple[str, int], ...]
"""Names of dims and sizes of their parts, slowest first; parts of one dim from major to minor."""

_EXAMPLE = '["y=8", "x=4"]'


def order_text(order: Order) -> str:
    """``y=8, x=4``."""
    return ", ".join(f"{name}={size}" for name, size in order)


def complaint_of_order(order: Order, dims: Sequence[Dim]) -> str | None:
    """What is wrong with an order for these dims, None if nothing is."""
    sizes = {dim.name: dim.size for dim in dims}
    for name, size in order:
        if name not in sizes:
            return f'there is no dim "{name}", only {", ".join(sizes)}'
        if size < 2:
            return f"a part of dim {name} has size {size}. Leave out parts below 2"
    for name, size in sizes.items():
        covered = prod(part for dim, part in order if dim == name)
        if covered != size:
            return f"its parts of dim {name} make {covered} devices, but there are {size}"
    return None


def default_order(dims: Sequence[Dim]) -> Order:
    """Each dim as one part."""
    return tuple((dim.name, dim.size) for dim in dims)


def device_numbers(order: Order, dims: Sequence[Dim]) -> tuple[int, ...]:
    """The device at each position of the order, as numbered row-major over ``dims``."""
    places = range(len(order))
    by_dim = [place for dim in dims for place in places if order[place][0] == dim.name]
    sizes = [order[place][1] for place in by_dim]
    grid = np.arange(prod(sizes)).reshape(sizes)
    return tuple(grid.transpose(np.argsort(by_dim)).ravel().tolist())


def order_of_numbers(numbers: Sequence[int], dims: Sequence[Dim]) -> Order | None:
    """The order in which position ``p`` is device ``numbers[p]``; None if no order is so.

    Args:
        numbers: All devices, as numbered row-major over ``dims``.
        dims: Of the cluster, slowest first.
    """
    places = np.stack(np.unravel_index(numbers, [dim.size for dim in dims]), axis=1)
    count, step = len(numbers), 1
    parts: list[tuple[str, int]] = []
    reached = [1] * len(dims)
    while step < count:
        move = places[step] - places[0]
        moved = np.flatnonzero(move)
        if len(moved) != 1 or move[moved[0]] != reached[moved[0]]:
            return None
        dim = int(moved[0])
        along = places[::step] - places[0]
        size = 1
        while size < len(along) and (along[size] == size * move).all():
            size += 1
        size = gcd(size, count // step)
        parts.append((dims[dim].name, size))
        reached[dim] *= size
        step *= size
    order = tuple(reversed(parts))
    if complaint_of_order(order, dims) or device_numbers(order, dims) != tuple(numbers):
        return None
    return order


def orders_of(mesh: Mesh, dims: Sequence[Dim]) -> Iterator[Order]:
    """Every way to lay the axes of a mesh on dims that may cost something else.

    Each axis takes a part of each dim, the slowest dim first. Ways that are equal but for dims
    that are alike come once: of ``data=4,model=16`` on ``v5p:4x4x4`` there are two, by what
    ``data`` takes: a dim, or two of one and two of another one, each with ``model`` on the rest.

    Args:
        mesh: Its size is the number of devices.
        dims: Of the cluster, slowest first.
    """
    axes = mesh.without_unit_axes().axis_sizes
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for shares in _shares(axes, tuple(dim.size for dim in dims)):
        key = _least_of_alike(shares, dims)
        if key in seen:
            continue
        seen.add(key)
        yield _joined(
            (dim.name, size)
            for taken in shares
            for dim, size in zip(dims, taken, strict=True)
            if size > 1
        )


def _shares(axes: Sequence[int], left: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """What each axis takes of each dim."""
    if not axes:
        if all(size == 1 for size in left):
            yield ()
        return
    for taken in product(*map(_divisors, left)):
        if prod(taken) == axes[0]:
            rest = tuple(size // part for size, part in zip(left, taken, strict=True))
            for more in _shares(axes[1:], rest):
                yield (taken, *more)


def _joined(parts: Iterable[tuple[str, int]]) -> Order:
    """Neighbours that are of one dim as one part."""
    found: list[tuple[str, int]] = []
    for name, size in parts:
        if found and found[-1][0] == name:
            size *= found.pop()[1]
        found.append((name, size))
    return tuple(found)


def _divisors(size: int) -> list[int]:
    return [part for part in range(size, 0, -1) if size % part == 0]


def _least_of_alike(
    shares: tuple[tuple[int, ...], ...], dims: Sequence[Dim]
) -> tuple[tuple[int, ...], ...]:
    """The same for all ways that only differ in which of several dims that are alike is which."""
    kinds = [(dim.size, dim.kind, dim.bandwidth.value, dim.latency.value) for dim in dims]
    groups = [[d for d, one in enumerate(kinds) if one == kind] for kind in dict.fromkeys(kinds)]
    return min(
        tuple(tuple(taken[d] for one in chosen for d in one) for taken in shares)
        for chosen in product(*(permutations(group) for group in groups))
    )


def read_order(said: object) -> Order:
    """Read ``["y=8", "x=4"]``.

    Raises:
        ClusterError: It is something else.
    """
    wrong = ClusterError(f"it is no order of devices. Write {_EXAMPLE}, slowest first")
    if not isinstance(said, list):
        raise wrong
    parts: list[tuple[str, int]] = []
    for one in said:  # pyright: ignore[reportUnknownVariableType]
        name, equals, size = one.partition("=") if isinstance(one, str) else ("", "", "")
        if not (equals and name.strip() and size.strip().isdecimal()):
            raise wrong
        parts.append((name.strip(), int(size)))
    return tuple(parts)
