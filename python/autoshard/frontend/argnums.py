"""Whole numbers that users write: counts, and places of positional arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, cast

from autoshard.errors import PlanError


def whole_number(value: Any) -> int | None:
    """``value`` as an int, also one of numpy; None for anything else, and for a bool."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def read_argnums(said: Any, name: str) -> tuple[int, ...]:
    """One number or several as a tuple, counted as they are.

    Args:
        said: ``1``, ``(0, -1)``, also numbers of numpy.
        name: Of the option, for the error.

    Raises:
        PlanError: Something that is no whole number.
    """
    one = whole_number(said)
    if one is not None:
        return (one,)
    is_several = isinstance(said, Iterable) and not isinstance(said, str)
    numbers = [whole_number(number) for number in cast(Iterable[Any], said if is_several else ())]
    if not is_several or None in numbers:
        raise PlanError(
            f"{name}={said!r} has not the numbers of positional arguments. Give 1, (0, 2) or the"
            " like."
        )
    return cast("tuple[int, ...]", tuple(numbers))


def places(numbers: Iterable[int], count: int, name: str) -> list[int]:
    """Numbers of positional arguments from 0, each once; negative ones count from the end.

    Args:
        numbers: As ``read_argnums`` gives them.
        count: How many positional arguments there are.
        name: Of the option, for the error.

    Raises:
        PlanError: There is no such argument.
    """
    found: list[int] = []
    for number in numbers:
        if not -count <= number < count:
            raise PlanError(
                f"{name}: there is no positional argument {number}, the call has {count}. Count"
                " from 0, or pass the argument by position."
            )
        found.append(number % count)
    return list(dict.fromkeys(found))
