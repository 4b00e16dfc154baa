"""Physical dims as mesh axes: the axes that a search uses, and what any mesh covers.

Devices are numbered row-major over the physical dims, or over parts of them in another order
(cluster/order.py), and row-major over the axes of a mesh. So an axis covers a run of these, and
may end inside of one, major parts first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from math import gcd, prod

from autoshard.cluster.order import Order, default_order
from autoshard.cluster.topology import Dim
from autoshard.errors import ClusterError
from autoshard.sharding.mesh import Axis, Mesh

MAX_LEVEL_AXES = 6
"""Axes of a search, unless there are more dims: its cost grows with their number."""

Parts = list[tuple[int, int]]
"""What one axis covers: (index of a dim, size of the part), major first."""


def level_mesh(dims: Sequence[Dim], order: Order = ()) -> Mesh:
    """Dims split into prime axes, or into ``MAX_LEVEL_AXES`` as equal as possible.

    Args:
        dims: Slowest first.
        order: In which their parts number the devices; empty: as they stand.

    Axes of one dim stand together, the larger ones outside; ``x0, x1`` are those of dim ``x``,
    or ``x`` if it is one axis. Of axes that are equally large the fastest dim is split first.

    Example: 4x4x4 gives x0=2,x1=2,y0=2,y1=2,z0=2,z1=2; 16 slices of 16x16x16 give
    slice=16,x=16,y0=4,y1=4,z0=4,z1=4.
    """
    order = order or default_order(dims)
    sizes = [size for _, size in order]
    splits: list[tuple[int, ...]] = [(size,) for size in sizes]
    while sum(map(len, splits)) < MAX_LEVEL_AXES:
        divisible = [d for d, split in enumerate(splits) if _num_primes(sizes[d]) > len(split)]
        if not divisible:
            break
        largest = max(divisible, key=lambda d: (max(splits[d]), d))
        splits[largest] = _most_equal(sizes[largest], len(splits[largest]) + 1)
    named = [(name, size) for (name, _), split in zip(order, splits, strict=True) for size in split]
    counts = Counter(name for name, _ in named)
    numbers = {name: iter(range(count)) for name, count in counts.items()}
    return Mesh(
        tuple(
            Axis(name if counts[name] == 1 else f"{name}{next(numbers[name])}", size)
            for name, size in named
        )
    )


def parts_of(mesh: Mesh, dims: Sequence[Dim], cluster: str, order: Order = ()) -> list[Parts]:
    """What each axis of ``mesh`` covers; axes of size 1 are left out.

    Args:
        mesh: The axes, slowest first.
        dims: Of the cluster, likewise.
        cluster: Its name, for errors.
        order: In which parts of dims number the devices; empty: as the dims stand.

    Raises:
        ClusterError: Another number of devices, or an axis that ends where it can be no part.
    """
    devices = prod(dim.size for dim in dims)
    if mesh.size != devices:
        raise ClusterError(
            f'mesh "{mesh}" has {mesh.size} devices, but cluster {cluster} has {devices}.'
            " Make the product of the axis sizes the number of devices."
        )
    order = order or default_order(dims)
    number_of = {dim.name: number for number, dim in enumerate(dims)}
    left = [size for _, size in order]
    d = 0
    axes: list[Parts] = []
    for axis in mesh.without_unit_axes().axes:
        parts: Parts = []
        needed = axis.size
        while needed > 1:
            if left[d] == 1:
                d += 1
            part = gcd(needed, left[d])
            if part not in (needed, left[d]):
                raise _does_not_factor(mesh, axis, dims, cluster, order)
            parts.append((number_of[order[d][0]], part))
            needed //= part
            left[d] //= part
        axes.append(parts)
    return axes


def _does_not_factor(
    mesh: Mesh, axis: Axis, dims: Sequence[Dim], cluster: str, order: Order
) -> ClusterError:
    shape = " x ".join(f"{name}={size}" for name, size in order)
    return ClusterError(
        f'mesh "{mesh}": axis "{axis.name}" (size {axis.size}) ends inside a dim of cluster'
        f" {cluster} ({shape}) at a place that does not divide it. Axes cover the dims from left"
        " to right: choose sizes that divide the dims or are products of whole ones, such as"
        f' mesh="{level_mesh(dims, order)}".'
    )


def _num_primes(n: int) -> int:
    """How many primes ``n`` is a product of."""
    count, divisor = 0, 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            n //= divisor
            count += 1
        divisor += 1
    return count + (n > 1)


def _most_equal(n: int, count: int) -> tuple[int, ...]:
    """``n`` as ``count`` factors above 1, descending, the largest one as small as can be."""
    return min(_factorings(n, count, n))


@cache
def _factorings(n: int, count: int, limit: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write ``n`` as ``count`` factors of 2 to ``limit``, each descending."""
    if count == 1:
        return ((n,),) if 2 <= n <= limit else ()
    return tuple(
        (first, *rest)
        for first in _divisors(n)
        if 2 <= first <= limit
        for rest in _factorings(n // first, count - 1, first)
    )


@cache
def _divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))
