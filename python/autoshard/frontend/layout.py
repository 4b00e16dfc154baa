"""``autoshard.Layout``: a device matrix with named axes, called with one entry for each dim.

layout = autoshard.Layout((2, 2, 2), ("dp", "sp", "mp"))
layout("mp", ("sp", "dp"), "None")   # dim 0 over mp, dim 1 over sp (outer) and dp, dim 2 whole
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, cast

from autoshard.errors import ShardingError
from autoshard.frontend.argnums import whole_number
from autoshard.sharding import Axis, Mesh, Sharding

Alias = str | tuple[str, ...] | None
"""One dim: an alias, several (outermost first), or ``"None"``/None for a dim that is not cut."""

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_MICRO_BATCHES = "interleaved_parallel"


@dataclass(frozen=True)
class Layout:
    """A device matrix whose axes have names.

    ``Layout((2, 4), ("dp", "tp"))`` arranges 8 devices row-major, ``tp`` fastest. Calling it with
    one entry for each dim of a value gives that value's :class:`Sharding`. An alias may be
    used for many values, but once in each.

    Args:
        device_matrix: Sizes of the device axes, outermost first; their product is the number of
            devices.
        alias_name: Their names, all different, none ``"None"``.
        rank_list: The devices in row-major order of the matrix; None means ``0, 1, 2, ..``.

    Raises:
        ShardingError: Anything else, with the user's ``file:line``.

    Source:
        MindSpore, "Advanced Configuration of Operator-level Parallelism".
    """

    device_matrix: tuple[int, ...]
    alias_name: tuple[str, ...]
    rank_list: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        place = _user_line()
        object.__setattr__(self, "device_matrix", _tuple(self.device_matrix, "device_matrix"))
        object.__setattr__(self, "alias_name", _tuple(self.alias_name, "alias_name"))
        _check_matrix(self.device_matrix, self.alias_name, place)
        if self.rank_list is not None:
            object.__setattr__(self, "rank_list", _tuple(self.rank_list, "rank_list"))
            _check_rank_list(self.rank_list, self.device_matrix, place)

    @cached_property
    def mesh(self) -> Mesh:
        """The device matrix as a mesh."""
        axes = map(Axis, self.alias_name, self.device_matrix)
        return Mesh(tuple(axes), self.rank_list)

    def __call__(self, *axes: Alias) -> Sharding:
        """The sharding of one value.

        Args:
            axes: For each dim an alias, a tuple of aliases (outermost first), or ``"None"``.

        Raises:
            ShardingError: An axis that is no alias, or one used twice.
        """
        place = _user_line()
        entries = tuple(_aliases(entry, place) for entry in axes)
        used = [name for names in entries for name in names]
        known = f"({', '.join(map(repr, self.alias_name))})"
        for name, count in Counter(used).items():
            if name not in self.alias_name:
                raise ShardingError(
                    f"The axis {name!r} is not found in {known}. Use one of these, or 'None' for a"
                    " dim that is not cut.",
                    place,
                )
            if count > 1:
                raise ShardingError(
                    f"The axis {name!r} has been set more than once in {axes}. A device axis can"
                    f" cut a value only once: use another one of {known}, or 'None'.",
                    place,
                )
        return Sharding.named(self.mesh, *entries)


def _tuple(value: object, name: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise ShardingError(
            f"{name} must be a tuple, but is {value!r}."
            ' Write for example Layout((2, 4), ("dp", "tp")).',
            _user_line(),
        )
    read = [(whole_number(entry), entry) for entry in cast(Sequence[Any], value)]
    return tuple(entry if number is None else number for number, entry in read)


def _check_matrix(matrix: tuple[object, ...], names: tuple[object, ...], place: str) -> None:
    for size in matrix:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ShardingError(
                f"device_matrix {matrix} holds {size!r}; the size of a device axis is an integer"
                " larger than 0.",
                place,
            )
    for name in names:
        if not isinstance(name, str) or not name:
            raise ShardingError(
                f"alias_name {names} holds {name!r}; an alias is a string that is not empty.",
                place,
            )
    if len(matrix) != len(names):
        raise ShardingError(
            f"The length of device_matrix {matrix} ({len(matrix)}) must be equal to the length of"
            f" alias_name {names} ({len(names)}). Give every device axis one name.",
            place,
        )
    if len(set(names)) != len(names):
        raise ShardingError(
            f"Each element of alias_name {names} should be different."
            " Give every device axis its own name.",
            place,
        )
    if "None" in names:
        raise ShardingError(
            f"The element of alias_name {names} can not set 'None', because 'None' means no"
            " sharding. Use another name.",
            place,
        )
    if _MICRO_BATCHES in names:
        raise ShardingError(
            f"alias_name {names}: {_MICRO_BATCHES!r} asks for micro-slices on one device, which"
            " are no device axis. Leave it out; XLA overlaps communication itself.",
            place,
        )


def _check_rank_list(ranks: tuple[object, ...], matrix: tuple[int, ...], place: str) -> None:
    count = prod(matrix)
    if len(ranks) != count:
        raise ShardingError(
            f"The length of rank_list ({len(ranks)}) must be equal to the product of device_matrix"
            f" {matrix} ({count}). List every device once, or leave rank_list out.",
            place,
        )
    if set(ranks) != set(range(count)):
        raise ShardingError(
            f"rank_list {list(ranks)} must name each of the devices 0..{count - 1} exactly once."
            " List every device once, or leave rank_list out.",
            place,
        )


def _aliases(entry: object, place: str) -> tuple[str, ...]:
    names = cast("tuple[object, ...]", entry if isinstance(entry, tuple | list) else (entry,))
    aliases: list[str] = []
    for name in names:
        if name is None or name == "None":
            continue
        if not isinstance(name, str):
            raise ShardingError(
                f"The entry {entry!r} holds {name!r}; an entry is an alias, a tuple of aliases, or"
                " 'None'.",
                place,
            )
        aliases.append(name)
    return tuple(aliases)


def _user_line() -> str:
    """``file:line`` of the innermost caller outside this package."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == "<string>"
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
