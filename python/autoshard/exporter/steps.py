"""From one sharding to another in steps that the partitioner does with one collective each.

XLA reshards in one go only what its partitioner has a pattern for; anything else it gathers
whole on every device ("involuntary full rematerialization"), although a cheaper way exists:

    [{}, {tp}] -> [{dp}, {}]                    all-gather of the whole value
    [{}, {tp}] -> [{dp}, {tp}] -> [{dp}, {}]    slice, then all-gather of half of it

Here the cheapest way is searched, and every step on it is written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from math import lcm, prod

from autoshard import _core
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.placement import prime_factors
from autoshard.sharding.sharding import AxisRef, Sharding

Dims = tuple[tuple[AxisRef, ...], ...]
"""The axes of every dim, major first, without those that stay where they are."""

_MOST_PRIMES = _core.MAX_PARTS
"""On a mesh of more primes whole axes move: the core counts the same ways, and the search over
parts of axes would take minutes (79 s for one of 16 x 2 in a tensor of rank 4)."""

_MOST_AXES = _core.MAX_MOVING_AXES
"""With more axes that move, those that stay side by side move as one. If there are more even so,
the search is not worth its time, and one step is taken."""


@lru_cache(maxsize=4096)
def reshard_steps(
    source: Sharding, target: Sharding, shape: tuple[int, ...], has_all_to_all: bool = True
) -> tuple[Sharding, ...]:
    """The shardings to go through, ``target`` last; empty if there is nothing to do.

    Steps are: cut along a free axis (moves nothing), gather a dim's minor axes, move a dim's
    minor axes to the end of another dim (all-to-all), and change which device holds which of the
    same pieces (permute). The way is the one that moves the fewest bytes; no step cuts a dim of
    ``shape`` unevenly. Without all-to-all the others are left.

    Gathers of several dims are a step a dim, the smallest group first, as the core counts them.
    Both dims at once are one collective over both groups to some compilers, of pieces that are not
    in the order of the whole: they copy the result into place, or reduce it out of zeros.

    Example:
        ``[{dp}, {}] -> [{}, {tp}]`` gives ``[{dp}, {tp}]``, ``[{}, {tp}]``.
    """
    if source.dims == target.dims:
        return ()
    found: list[Sharding] = []
    now = source
    for step in _cheapest_steps(source, target, shape, has_all_to_all):
        found += _gathers(now, step) if _is_cut(step.dims, now.dims) else (step,)
        now = step
    return tuple(found)


def _gathers(source: Sharding, target: Sharding) -> tuple[Sharding, ...]:
    """From ``source`` to what it only cuts further, dim by dim, the smallest group first.

    Of groups of one size the one of the most major axis is first: its links are the slow ones.
    """
    order = {axis.name: index for index, axis in enumerate(source.mesh.axes)}

    def rank(dim: int) -> tuple[int, int]:
        group = source.dims[dim][len(target.dims[dim]) :]
        return prod(map(source.axis_size, group)), min(order[ref.name] for ref in group)

    dims = list(source.dims)
    found: list[Sharding] = []
    for dim in sorted((d for d, cut in enumerate(dims) if cut != target.dims[d]), key=rank):
        dims[dim] = target.dims[dim]
        found.append(Sharding(source.mesh, tuple(dims)))
    return (*found[:-1], target)


def _cheapest_steps(
    source: Sharding, target: Sharding, shape: tuple[int, ...], has_all_to_all: bool
) -> tuple[Sharding, ...]:
    """The way, where gathers of several dims are still one step."""
    mesh = source.mesh
    if any(ref.size is not None for each in (source, target) for dim in each.dims for ref in dim):
        # sub-axes may overlap; plans have whole axes
        return (target,) if has_all_to_all else _through_gathers(source, target)
    are_few = sum(len(prime_factors(axis.size)) for axis in mesh.axes) <= _MOST_PRIMES
    split = _prime_axes if are_few else _whole_axes
    before, after = ([split(dim, mesh) for dim in each.dims] for each in (source, target))
    kept = [_common_prefix(*pair) for pair in zip(before, after, strict=True)]
    start, goal = (
        tuple(dim[len(stays) :] for dim, stays in zip(dims, kept, strict=True))
        for dims in (before, after)
    )
    sizes = {ref: source.axis_size(ref) for dim in (*start, *goal) for ref in dim}
    blocks = _Blocks.of(start, goal) if len(sizes) > _MOST_AXES else _Blocks({})
    start, goal, sizes = blocks.joined(start), blocks.joined(goal), blocks.joined_sizes(sizes)
    if _is_cut(start, goal) or _is_cut(goal, start):
        return (target,)
    if len(sizes) > _MOST_AXES:
        return (target,) if has_all_to_all else _through_gathers(source, target)
    # Dims that neither of them cuts take no part.
    moving = [index for index, pair in enumerate(zip(start, goal, strict=True)) if any(pair)]
    # A dim that does not fall into equal parts is padded: the steps in between divide that size.
    free = tuple(
        _rounded_up(
            -(-shape[dim] // prod(map(source.axis_size, kept[dim]))),
            lcm(*(prod(sizes[ref] for ref in cut[dim]) for cut in (start, goal))),
        )
        for dim in moving
    )
    ways = _cheapest_way(
        tuple(start[dim] for dim in moving),
        tuple(goal[dim] for dim in moving),
        sizes,
        free,
        has_all_to_all,
    )
    found: list[Sharding] = []
    for way in ways:
        dims = list(kept)
        for dim, refs in zip(moving, way, strict=True):
            dims[dim] = kept[dim] + blocks.parted(refs)
        found.append(Sharding(mesh, tuple(dims)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Axes that stand side by side before and after, or on one side only: each block is one."""

    of_first: Mapping[AxisRef, tuple[AxisRef, ...]]
    """Each block by its first axis, which stands for it."""

    @classmethod
    def of(cls, start: Dims, goal: Dims) -> _Blocks:
        """The largest blocks of two states."""
        after = [_next_axes(dims) for dims in (start, goal)]
        joined = {
            ref: follower
            for followers in after
            for ref, follower in followers.items()
            if follower is not None
            and all(
                other.get(ref) == follower or (ref not in other and follower not in other)
                for other in after
            )
        }
        blocks: dict[AxisRef, tuple[AxisRef, ...]] = {}
        for first in joined.keys() - set(joined.values()):
            block = [first]
            while block[-1] in joined:
                block.append(joined[block[-1]])
            blocks[first] = tuple(block)
        return cls(blocks)

    def joined(self, dims: Dims) -> Dims:
        """The state with one axis for each block."""
        hidden = {ref for block in self.of_first.values() for ref in block[1:]}
        return tuple(tuple(ref for ref in dim if ref not in hidden) for dim in dims)

    def joined_sizes(self, sizes: Mapping[AxisRef, int]) -> dict[AxisRef, int]:
        """The sizes of these axes."""
        hidden = {ref for block in self.of_first.values() for ref in block[1:]}
        return {
            ref: prod(sizes[part] for part in self.of_first.get(ref, (ref,)))
            for ref in sizes
            if ref not in hidden
        }

    def parted(self, refs: tuple[AxisRef, ...]) -> tuple[AxisRef, ...]:
        """The axes of a dim of such a state."""
        return tuple(part for ref in refs for part in self.of_first.get(ref, (ref,)))


def _next_axes(dims: Dims) -> dict[AxisRef, AxisRef | None]:
    """For each axis of a state the one behind it in its dim; None for the last."""
    return {ref: follower for dim in dims for ref, follower in zip_longest(dim, dim[1:])}


def only_cuts(source: Sharding, target: Sharding) -> bool:
    """Whether every device holds already what it needs: ``target`` only splits further."""
    return _is_cut(source.dims, target.dims)


def _through_gathers(source: Sharding, target: Sharding) -> tuple[Sharding, ...]:
    """Gather all that moves, then cut."""
    stay = tuple(map(_common_prefix, source.dims, target.dims))
    if stay in (source.dims, target.dims):
        return (target,)
    return (Sharding(source.mesh, stay), target)


def _whole_axes(dim: tuple[AxisRef, ...], mesh: Mesh) -> tuple[AxisRef, ...]:
    return dim


def _prime_axes(dim: tuple[AxisRef, ...], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Every axis as sub-axes of prime size, so that parts of it can move alone."""
    parts: list[AxisRef] = []
    for ref in dim:
        pre_size = 1
        for prime in prime_factors(mesh.axis_size(ref.name)):
            parts.append(AxisRef(ref.name, pre_size, prime))
            pre_size *= prime
    return tuple(parts)


def _common_prefix(before: tuple[AxisRef, ...], after: tuple[AxisRef, ...]) -> tuple[AxisRef, ...]:
    length = 0
    while length < min(len(before), len(after)) and before[length] == after[length]:
        length += 1
    return before[:length]


def _cheapest_way(
    start: Dims,
    goal: Dims,
    sizes: dict[AxisRef, int],
    shape: tuple[int, ...],
    has_all_to_all: bool,
) -> list[Dims]:
    """The states after ``start``, by the core's search."""
    refs = list(sizes)
    number = {ref: index for index, ref in enumerate(refs)}

    def numbered(dims: Dims) -> list[list[int]]:
        return [[number[ref] for ref in dim] for dim in dims]

    path = _core.reshard_path(
        shape, numbered(start), numbered(goal), list(sizes.values()), has_all_to_all
    )
    return _merged([start, *(tuple(tuple(refs[a] for a in dim) for dim in dims) for dims in path)])


def _merged(way: list[Dims]) -> list[Dims]:
    """Without the states between two cuts or between two gathers, which are one step together."""
    kept = way[:1]
    for dims, after in zip(way[1:], [*way[2:], None], strict=True):
        between = after is not None and (
            (_is_cut(kept[-1], dims) and _is_cut(dims, after))
            or (_is_cut(dims, kept[-1]) and _is_cut(after, dims))
        )
        if not between:
            kept.append(dims)
    return kept[1:]


def _is_cut(before: Dims, after: Dims) -> bool:
    """Whether ``after`` only cuts further, so that nothing has to move."""
    return all(b == a[: len(b)] for b, a in zip(before, after, strict=True))


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
