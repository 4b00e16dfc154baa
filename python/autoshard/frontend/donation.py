"""Before a call: no argument is deleted, and donated ones are arrays of their own.

jaxlib 0.10.2 ends the process on CPU devices where that does not hold; elsewhere its errors name
the number of a flattened argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.errors import DonationError
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.ir.lowering import user_line

Placement = tuple[int, Any, bool]
"""Number of an argument, its sharding, and whether it is donated."""


def own_arrays(
    leaves: Sequence[Any], placements: Sequence[Placement], donates: bool, plan: Plan
) -> list[Any]:
    """The arguments of a call, as they can be placed.

    An array that is donated and passed again is copied where the plan moves it anyway.

    Args:
        leaves: All arguments, flat.
        placements: Of those that are used.
        donates: Is one of them donated?
        plan: Has their names.

    Raises:
        DonationError: An array that is deleted, or one that is donated, passed again, and lies as
            planned for both.
    """
    for number, _, _ in placements:
        # as isinstance(leaf, jax.Array), which takes longer than the question
        is_deleted = getattr(leaves[number], "is_deleted", None)
        if is_deleted is not None and is_deleted():
            raise _deleted(plan.arguments[number], plan.name)
    found = list(leaves)
    if not donates or len(set(map(id, leaves))) == len(leaves):
        return found
    for group in _shared(leaves, placements):
        placed = [place for place in group if is_placed(leaves[place[0]], place[1])]
        if len(placed) > 1 and any(donated for _, _, donated in placed):
            raise _donated_twice(placed, plan)
        for number, _, _ in group:
            if all(number != kept for kept, _, _ in placed):
                found[number] = jnp.copy(leaves[number])
    return found


def own_memory(leaves: Sequence[Any], placements: Sequence[Placement]) -> list[Any]:
    """Placed arguments of which no donated one shares memory with another one.

    Two arrays share some where ``jax.device_put`` made both of one array on one device, or one of
    the other. The later of two is copied. For CPU devices, on which that takes some microseconds
    an array and is worth it once, for the first call: later ones are given what it returned.
    """
    found = list(leaves)
    owner: dict[tuple[Any, int], bool] = {}
    for number, _, donated in sorted(placements, key=lambda place: not place[2]):
        leaf = found[number]
        if not isinstance(leaf, jax.Array) or not leaf.size or _is_key(leaf):
            continue
        parts = [
            (part.device, part.data.unsafe_buffer_pointer()) for part in leaf.addressable_shards
        ]
        if any(owner.get(part, False) for part in parts):
            found[number] = jnp.copy(leaf)
        owner.update(dict.fromkeys(parts, donated))
    return found


def is_placed(array: jax.Array, sharding: Any) -> bool:
    """Does an array lie as planned?"""
    have = array.sharding
    return have is sharding or have == sharding or have.is_equivalent_to(sharding, array.ndim)


def _is_key(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.extended)


def _shared(leaves: Sequence[Any], placements: Sequence[Placement]) -> list[list[Placement]]:
    """Arguments that are one array, of which one is donated."""
    same: dict[int, list[Placement]] = {}
    for place in placements:
        if isinstance(leaves[place[0]], jax.Array):
            same.setdefault(id(leaves[place[0]]), []).append(place)
    groups = [group for group in same.values() if len(group) > 1]
    return [group for group in groups if any(donated for _, _, donated in group)]


def _deleted(value: PlannedValue, name: str) -> DonationError:
    return DonationError(
        f"{name}: {value.name} is an array that has been deleted, {_type_text(value)}: an earlier"
        " call was given it as a donated argument. Pass what that call returned, or do not donate"
        " it there.",
        user_line(),
    )


def _donated_twice(group: Sequence[Placement], plan: Plan) -> DonationError:
    """For arguments that are one array and lie as planned."""
    (donated, _, _) = next(place for place in group if place[2])
    (other, _, is_both) = next(place for place in group if place[0] != donated)
    first, second = plan.arguments[donated], plan.arguments[other]
    how = "both are donated" if is_both else f"{first.name} is donated"
    return DonationError(
        f"{plan.name}: {first.name} and {second.name} are one array, {_type_text(first)}, and"
        f" {how}: its memory cannot hold a result while it is read as the other. Pass jnp.copy of"
        f" it as {second.name}, or do not donate it.",
        user_line(),
    )


def _type_text(value: PlannedValue) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"
