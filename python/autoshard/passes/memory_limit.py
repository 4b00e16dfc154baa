"""What a plan may use of a device's memory: what the user says in bytes, else all less a margin."""

from __future__ import annotations

import math
import re

from autoshard.cluster import Cluster
from autoshard.errors import PassOptionError

MEMORY_MARGIN = 0.08
"""Share of the usable memory that a plan leaves free by default: compilers align buffers, and
allocators leave holes between them."""

WITHIN_REACH = 1.5
"""Where all that is found needs more than so many times the limit, no more is tried."""

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{ending}": base**power
    for ending, base in (("iB", 1024), ("B", 1000))
    for power, letter in enumerate("KMGT", start=1)
}
_BYTES = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE]\d+)?)\s*([A-Za-z]*)\s*")


CORRECTED_MARGIN = 0.01
"""The same where it is known what the compiler needs besides what is planned."""


def memory_limit_of(cluster: Cluster, text: str) -> float:
    """Bytes of a device that a plan may use: what the user says, else all less a margin.

    What the compiler of the program needs besides, as the cluster's corrections have it, is left
    free.
    """
    corrections = cluster.corrections
    if text:
        allowed = read_bytes_text(text, "memory-limit")
    else:
        margin = MEMORY_MARGIN if corrections.none_needed else CORRECTED_MARGIN
        allowed = (1 - margin) * cluster.usable_memory_bytes
    return max(1.0, allowed - corrections.memory_bytes)


def aim_of(limit: float, text: str) -> float:
    """Bytes of a device to keep within, if that can be: the margin that a chip's own limit has is
    left free of a given one, too."""
    return limit * (1 - MEMORY_MARGIN) if text else limit


def user_limit(text: str) -> float:
    """Bytes of a device that the user allows; infinite where nothing is said."""
    return read_bytes_text(text, "memory-limit") if text else math.inf


def read_bytes_text(text: str, what: str) -> float:
    """``14GiB``, ``16e9`` or ``16 GB`` as bytes.

    Raises:
        PassOptionError: Another form, or nothing at all.
    """
    found = _BYTES.fullmatch(text)
    if found is None or found[2] not in _UNITS or float(found[1]) <= 0:
        raise PassOptionError(
            f"{what}={text}: expected bytes, with a unit if you like. Write 14GiB, 16GB or 16e9."
        )
    return float(found[1]) * _UNITS[found[2]]
