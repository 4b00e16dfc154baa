"""Equal layers once, with their count: ``params['layers'][*]['w']`` x 32.

A name is folded in the numbers that stand alone in it, as ``layers_3``, ``[3]`` and ``blocks.3``
do; that of ``conv2d`` or ``w2`` is a part of the word. What is folded is equal in all else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

_COUNTER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")

Item = TypeVar("Item")


def of_any_layer(name: str) -> str:
    """``params['layers'][*]['w']`` of ``params['layers'][3]['w']``."""
    return _COUNTER.sub("*", name)


@dataclass(frozen=True, slots=True)
class Fold(Generic[Item]):
    """Items that are equal but for the numbers of their layers."""

    name: str
    """With stars for the numbers in which they differ."""
    members: Sequence[Item]
    """In order; at least one."""

    @property
    def first(self) -> Item:
        """The one that stands for all."""
        return self.members[0]

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.members)


def folded(
    items: Iterable[Item], name: Callable[[Item], str], key: Callable[[Item], Hashable]
) -> list[Fold[Item]]:
    """Items with equal keys and names of the same form, in the order of the first of each.

    Args:
        items: Anything.
        name: Of an item, with numbers.
        key: All that has to be equal besides.
    """
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault((of_any_layer(name(item)), key(item)), []).append(item)
    return [Fold(common_name([name(item) for item in group]), group) for group in groups.values()]


@lru_cache(maxsize=4096)
def _numbers(name: str) -> tuple[str, ...]:
    return tuple(_COUNTER.findall(name))


def common_name(names: Sequence[str]) -> str:
    """Stars where names of one form differ; a number that all share stays.

    Example: ``a[0]['b'][1]`` and ``a[2]['b'][1]`` are ``a[*]['b'][1]``.
    """
    if len(set(names)) == 1:
        return names[0]
    numbers = [_numbers(name) for name in names]
    shared = iter(
        [found[0] if len(set(found)) == 1 else "*" for found in zip(*numbers, strict=True)]
    )
    return _COUNTER.sub(lambda _: next(shared), names[0])
