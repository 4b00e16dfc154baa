"""Which dims a reshape splits."""

from __future__ import annotations

from math import prod

Shape = tuple[int, ...]
Groups = tuple[range, ...]
"""For each dim of a tensor the dims of another one that it is split into."""


def groups_of(whole: Shape, parts: Shape) -> Groups | None:
    """For each dim of ``whole`` the dims of ``parts`` that it is split into.

    None: dims are merged as well, or of size 1 beside others.
    """
    found: list[range] = []
    start = 0
    for size in whole:
        end = start + 1
        while end < len(parts) and prod(parts[start:end]) < size:
            end += 1
        group = parts[start:end]
        if prod(group) != size or (len(group) > 1 and 1 in group):
            return None
        found.append(range(start, end))
        start = end
    return tuple(found) if start == len(parts) else None
