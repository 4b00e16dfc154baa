"""What is planned and run of a program: itself, its gradient, or a train step of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fuzz import helpers
from fuzz.programs import Mark, Program, placed

STEPS = 2
"""Train steps that are run in a row, the second one with the donated state of the first."""


@dataclass(frozen=True)
class Roles:
    """Numbers of a program's arguments."""

    trained: tuple[int, ...]
    data: tuple[int, ...]

    @classmethod
    def of(cls, program: Program) -> Roles:
        """Floats are trained, but for images: they come first, and no integers are with them."""
        kinds = [argument.kind for argument in program.arguments]
        floats = [
            number for number, kind in enumerate(kinds) if kind.dtype in ("float32", "float64")
        ]
        has_tokens = any(kind.is_integer and kind.rank == 2 for kind in kinds)
        trained = tuple(floats[1:] if len(floats) > 1 and not has_tokens else floats)
        return cls(trained, tuple(it for it in range(len(kinds)) if it not in trained))


def styled(program: Program, marks: Mapping[str, Mark] | None = None, hook: Any = None) -> Any:
    """The function that is planned."""
    function = program.function(marks, hook)
    roles = Roles.of(program)
    if program.style == "gradient":
        return helpers.gradient_of(function, roles.trained)
    if program.style == "train_step":
        return helpers.train_step_of(function, roles.trained, roles.data)
    return function


def styled_text(program: Program) -> str:
    """The same, as text, named ``step``."""
    roles = Roles.of(program)
    if program.style == "gradient":
        return f"step = gradient_of({program.name}, {roles.trained})"
    if program.style == "train_step":
        return f"step = train_step_of({program.name}, {roles.trained}, {roles.data})"
    return f"step = {program.name}"


def arguments_of(program: Program, values: list[Any]) -> tuple[Any, ...]:
    """What the styled function is called with; arrays of its own each time, for donation."""
    arrays = placed(program, values)
    if program.style != "train_step":
        return tuple(arrays)
    roles = Roles.of(program)
    parameters = [arrays[number] for number in roles.trained]
    momenta = [jnp.zeros_like(it) for it in parameters]
    state = {"parameters": parameters, "momenta": momenta, "count": jnp.float32(0)}
    return (state, *(arrays[number] for number in roles.data))


def run(program: Program, step: Any, values: list[Any]) -> Any:
    """Call ``step``, twice if it is a train step, and bring what it gives to the host."""
    arguments = arguments_of(program, values)
    result = step(*arguments)
    if program.style == "train_step":
        for _ in range(STEPS - 1):
            result = step(result[0], *arguments_of(program, values)[1:])
    return jax.device_get(jax.tree.map(_without_keys, result))


def _without_keys(leaf: Any) -> Any:
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
