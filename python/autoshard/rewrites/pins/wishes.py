"""Wishes of the user for values, and the mesh that expresses all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autoshard.errors import ShardingError, StrategyError
from autoshard.sharding import Axis, Mesh, Sharding, mesh_without_sub_axes
from autoshard.sharding.strategy import Cuts, check_device_count

ONE_DEVICE = Mesh((Axis("device", 1),))
"""Mesh of shardings that name no axis, where no mesh is given."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One sharding or tuple strategy found in the module, and how to store its pin."""

    what: Sharding | Cuts
    place: str | None
    store: Callable[[str], None]


def meshes_of(wishes: Sequence[Wish]) -> Iterator[Mesh]:
    """The meshes of all shardings that the user wrote, those of one device left out."""
    for what in {id(wish.what): wish.what for wish in wishes}.values():
        if isinstance(what, Sharding) and (mesh := _mesh_of(what)).size > 1:
            yield mesh


def mesh_for(wishes: Sequence[Wish], meshes: Sequence[Mesh]) -> Mesh:
    """The mesh that expresses ``meshes`` and every tuple strategy.

    Raises:
        ShardingError: There is no mesh.
        StrategyError: A wish is for another number of devices.
    """
    if not meshes:
        raise ShardingError(
            "no mesh: the module has no autoshard.mesh, no sdy.mesh of several devices and no "
            "layouts. Give one: --mesh=dp=2,tp=4, or mesh= in Python."
        )
    _check_device_counts(wishes, meshes[0])
    mesh = Mesh.common_refinement(meshes)
    tuples = [wish.what for wish in wishes if isinstance(wish.what, Cuts)]
    if not all(_dealable(_pieces(cuts), mesh.axis_sizes) for cuts in tuples):
        mesh = Mesh.common_refinement([mesh, mesh.in_primes("prime")])
    return mesh


def pin_text(wish: Wish, mesh: Mesh) -> str:
    """The pin over the plan's mesh.

    Raises:
        StrategyError: No plan can keep it.
    """
    if isinstance(wish.what, Cuts):
        return str(wish.what)
    if wish.what.mesh is ONE_DEVICE:
        return str(Sharding.fully_replicated(mesh, wish.what.rank))
    try:
        sharding = wish.what.on(mesh.without_unit_axes())
    except ShardingError as error:
        raise StrategyError(error.message, wish.place) from error
    if sharding.unreduced or sharding.manual:
        raise StrategyError(
            f"sharding {sharding} has unreduced or manual axes. autoshard plans finished values "
            "that all devices share: pin the dims only.",
            wish.place,
        )
    return str(sharding)


def _mesh_of(sharding: Sharding) -> Mesh:
    """The mesh on which ``sharding`` needs whole axes only."""
    groups = (*sharding.dims, sharding.replicated)
    if any(ref.size is not None for refs in groups for ref in refs):
        return mesh_without_sub_axes([sharding]).without_unit_axes()
    return sharding.mesh.without_unit_axes()


def _pieces(cuts: Cuts) -> list[int]:
    return [count for count in cuts.counts if count is not None]


def _dealable(counts: Sequence[int], sizes: Sequence[int]) -> bool:
    """Can disjoint sets of axes have these products?"""
    if all(count == 1 for count in counts):
        return True
    if not sizes:
        return False
    first, *rest = sizes
    return any(
        count % first == 0 and _dealable([*counts[:i], count // first, *counts[i + 1 :]], rest)
        for i, count in enumerate(counts)
    ) or _dealable(counts, rest)


def _check_device_counts(wishes: Sequence[Wish], mesh: Mesh) -> None:
    for wish in wishes:
        if isinstance(wish.what, Sharding) and 1 != wish.what.mesh.size != mesh.size:
            raise StrategyError(
                f"layout over {wish.what.mesh} needs {wish.what.mesh.size} devices, the mesh "
                f"{mesh} has {mesh.size}. Give every layout a device matrix of "
                f"{mesh.size} devices, or another mesh.",
                wish.place,
            )
        if isinstance(wish.what, Cuts):
            check_device_count(
                wish.what.device_count, mesh.size, f"strategy {wish.what}", wish.place
            )
