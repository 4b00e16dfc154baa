"""What the index maps of a Pallas kernel's blocks depend on."""

from __future__ import annotations

from typing import Any


def needed(jaxpr: Any) -> list[set[int]]:
    """For each result, the numbers of the arguments that it is computed from."""
    known: dict[Any, set[int]] = {value: {number} for number, value in enumerate(jaxpr.invars)}

    def of(values: Any) -> set[int]:
        # Literals cannot be hashed, and depend on nothing.
        return set[int]().union(*(known.get(v, set()) for v in values if not hasattr(v, "val")))

    for equation in jaxpr.eqns:
        made = of(equation.invars)
        known.update((value, made) for value in equation.outvars)
    return [of([value]) for value in jaxpr.outvars]


def extent(block_dim: Any) -> int | None:
    """Elements of a block along a dim; None where blocks overlap or vary."""
    if block_dim is None or type(block_dim).__name__ == "Squeezed":
        return 1
    if isinstance(block_dim, int):
        return block_dim
    return block_dim.block_size if type(block_dim).__name__ == "Blocked" else None
