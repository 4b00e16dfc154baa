"""Random meshes and shardings for property tests."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
from hypothesis import strategies as st

from autoshard.sharding import Axis, AxisRef, Mesh, Sharding

NAMES = ("dp", "tp", "sp", "x.1", "b c")


@st.composite
def meshes(draw: st.DrawFn, size: int | None = None, any_order: bool = True) -> Mesh:
    """Up to 24 devices in up to 4 axes; or of the given size."""
    size = size or draw(st.sampled_from([1, 2, 3, 4, 6, 8, 8, 12, 16, 16, 18, 24]))
    sizes: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        left = size // prod(sizes)
        sizes.append(draw(st.sampled_from([s for s in range(1, left + 1) if left % s == 0])))
    sizes.append(size // prod(sizes))
    axes = tuple(map(Axis, NAMES, sizes))
    order = draw(st.sampled_from(["iota", "transposed", "any"])) if any_order else "iota"
    ids = np.arange(prod(sizes))
    if order == "transposed":
        ids = ids.reshape(sizes[::-1]).transpose(draw(st.permutations(range(len(sizes))))).ravel()
    elif order == "any":
        ids = np.array(draw(st.permutations(ids.tolist())))
    return Mesh(axes, tuple(ids.tolist()))


@st.composite
def shardings(
    draw: st.DrawFn, mesh: Mesh | None = None, sub_axes: bool = True, extras: bool = True
) -> Sharding:
    mesh = draw(meshes()) if mesh is None else mesh
    rank = draw(st.integers(0, 4))
    refs: list[AxisRef] = []
    for axis in mesh.axes:
        if sub_axes and axis.size > 3 and draw(st.booleans()):
            outer = draw(st.sampled_from([s for s in range(2, axis.size) if axis.size % s == 0]))
            inner = axis.size // outer
            refs += [AxisRef(axis.name, 1, outer), AxisRef(axis.name, outer, inner)]
        else:
            refs.append(AxisRef(axis.name))
    places = [*range(rank), *(["replicated", "unreduced", "manual"] if extras else []), None]
    groups: dict[object, list[AxisRef]] = {place: [] for place in places}
    for ref in draw(st.permutations(refs)):
        groups[draw(st.sampled_from(places))].append(ref)
    return Sharding(
        mesh,
        tuple(tuple(groups[dim]) for dim in range(rank)),
        tuple(draw(st.lists(st.booleans(), min_size=rank, max_size=rank))) if extras else (),
        **{name: tuple(groups.get(name, ())) for name in ("replicated", "unreduced", "manual")},
    )


def slices_by_counting(sharding: Sharding, shape: tuple[int, ...]) -> dict[int, tuple[slice, ...]]:
    """Each device's slice, worked out device by device from the definition."""
    mesh = sharding.mesh
    ids = mesh.device_ids or range(mesh.size)
    found: dict[int, tuple[slice, ...]] = {}
    for device, place in zip(ids, itertools.product(*map(range, mesh.axis_sizes)), strict=True):
        number = dict(zip(mesh.axis_names, place, strict=True))
        slices: list[slice] = []
        for size, refs in zip(shape, sharding.dims, strict=True):
            start, length = 0, size
            for ref in refs:
                parts = sharding.axis_size(ref)
                inner = mesh.axis_size(ref.name) // (ref.pre_size * parts)
                length //= parts
                start += number[ref.name] // inner % parts * length
            slices.append(slice(start, start + length))
        found[device] = tuple(slices)
    return found


def divisible_shape(sharding: Sharding) -> tuple[int, ...]:
    return tuple(2 * pieces for pieces in sharding.tile)
