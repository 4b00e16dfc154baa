"""What a user fixed for a value, as the core reads it.

Two texts: a sharding ``[{dp}, {sp, tp}, {?}]`` names the axes of each dim (``?``: more may
follow), a tuple ``(4, 1, ?)`` only the number of blocks (``?``: any).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from autoshard import _core
from autoshard.errors import AutoshardError, ShardingError, StrategyError
from autoshard.sharding import AxisRef, Mesh, Sharding, parse_sharding
from autoshard.sharding.strategy import Cuts


@dataclass(frozen=True, slots=True)
class DimPin:
    """One dim of a pin; see ``DimPin`` in passes/model/program.h."""

    axes: tuple[int, ...] = ()
    is_open: bool = False
    num_shards: int | None = None

    def allows(self, axes: Sequence[int], axis_sizes: Sequence[int]) -> bool:
        """Whether a dim cut by these axes keeps the pin."""
        if self.num_shards is not None:
            return prod(axis_sizes[axis] for axis in axes) == self.num_shards
        begins = tuple(axes[: len(self.axes)]) == self.axes
        return begins and (self.is_open or len(axes) == len(self.axes))


@dataclass(frozen=True, slots=True)
class Pin:
    """What a user fixed for one value; see ``Pin`` in passes/model/program.h."""

    dims: tuple[DimPin, ...]
    replicated: tuple[int, ...] = ()

    def allows(self, dims: Sequence[Sequence[int]], axis_sizes: Sequence[int]) -> bool:
        """Whether a value cut so keeps the pin; ``allows`` in passes/model/program.h.

        Args:
            dims: For each dim the numbers of the axes that cut it.
            axis_sizes: Of the mesh.
        """
        return all(
            one.allows(axes, axis_sizes) and not set(axes) & set(self.replicated)
            for one, axes in zip(self.dims, dims, strict=True)
        )

    def agrees(self, other: Pin) -> bool:
        """Whether closed dims that both name by axes are cut alike."""
        return all(
            one.axes == two.axes
            for one, two in zip(self.dims, other.dims, strict=True)
            if not (one.is_open or two.is_open or one.num_shards or two.num_shards)
        )


@dataclass(frozen=True, slots=True)
class Pinned:
    """A value that the user fixed, and where."""

    value: int
    pin: Pin
    place: str | None
    text: str
    is_users: bool = True
    """False for what only the type of the value asks for: it is nothing to propagate from."""


def core_pin(pinned: Pinned) -> _core.Pin:
    """A pin as the core's ``Program`` takes it."""
    return _core.Pin(
        pinned.value,
        [_core.DimPin(dim.axes, dim.is_open, dim.num_shards) for dim in pinned.pin.dims],
        pinned.pin.replicated,
    )


def pin_of(text: str, mesh: Mesh, shape: Sequence[int], location: str | None) -> Pin:
    """Read the text of a pin.

    Args:
        text: A sharding over ``mesh`` or a tuple of block counts.
        mesh: Without axes of size 1.
        shape: Of the pinned value.
        location: Shown in errors.

    Raises:
        StrategyError: Wrong rank, unknown axis, uneven split.
    """
    if text.startswith("("):
        return _pin_of_cuts(text, mesh, shape, location)
    try:
        sharding = parse_sharding(text, mesh)
    except AutoshardError as error:
        raise StrategyError(error.message, location) from error
    return pin_of_sharding(sharding, mesh, shape, location)


def pin_of_sharding(
    sharding: Sharding, mesh: Mesh, shape: Sequence[int], location: str | None
) -> Pin:
    """The pin that wants exactly ``sharding``, open dims extended at will."""
    try:
        sharding.check(shape)
    except ShardingError as error:
        raise StrategyError(error.message, location) from error
    groups = (*sharding.dims, sharding.replicated, sharding.unreduced, sharding.manual)
    if any(ref.size is not None for refs in groups for ref in refs):
        raise StrategyError(
            f'pin {sharding} names a part of an axis of the mesh "{mesh}". Run '
            "autoshard-import-strategies on the layout: it refines the mesh.",
            location,
        )
    if sharding.unreduced or sharding.manual:
        raise StrategyError(
            f"pin {sharding} has unreduced or manual axes. autoshard plans finished values that "
            "all devices share: pin the dims only.",
            location,
        )

    def indices(refs: Sequence[AxisRef]) -> tuple[int, ...]:
        return tuple(mesh.axis_index(ref.name) for ref in refs)

    _check_not_empty(shape, sharding.tile, str(sharding), location)
    dims = zip(sharding.dims, sharding.open_dims, strict=True)
    return Pin(
        tuple(DimPin(indices(refs), is_open) for refs, is_open in dims),
        indices(sharding.replicated),
    )


def _pin_of_cuts(text: str, mesh: Mesh, shape: Sequence[int], location: str | None) -> Pin:
    try:
        cuts = Cuts.parse(text)
    except AutoshardError as error:
        raise StrategyError(error.message, location) from error
    cuts.check(shape, mesh.size, "pin", location)
    _check_not_empty(shape, [count or 1 for count in cuts.counts], text, location)
    return Pin(
        tuple(
            DimPin(is_open=True) if count is None else DimPin(num_shards=count)
            for count in cuts.counts
        )
    )


def _check_not_empty(
    shape: Sequence[int], pieces: Sequence[int], text: str, location: str | None
) -> None:
    """A dim without elements has nothing to cut."""
    for dim, (size, count) in enumerate(zip(shape, pieces, strict=True)):
        if size == 0 and count > 1:
            raise StrategyError(
                f"pin {text}: dim {dim} has size 0 and cannot be cut into {count} pieces. Leave it "
                "whole.",
                location,
            )
