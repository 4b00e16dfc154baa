"""Whether two runs of one program gave the same, and by how much they did not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fuzz.generator import FLOATS
from fuzz.outcomes import EQUAL, ROUNDING, WRONG, WRONG_REFERENCE
from fuzz.programs import Argument, Instruction, Kind, Program
from fuzz.styles import run, styled

_TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 8e-2}
"""Largest difference over the largest entry of an array, where ops round: some hundred roundings of
float64 and float32, some ten of the short ones. Wrong results are off by much more."""
_SMALLEST_SCALE = 1e-2
"""Arguments are integers; what is smaller than this came out of cancellation."""
_DOUBLE = {
    "float32": "float64", "bfloat16": "float64", "float16": "float64", "complex64": "complex128",
}  # fmt: skip
_WITHOUT_SIMPLIFIER = {"xla_disable_hlo_passes": "algsimp"}
"""XLA's simplifier joins slices of slices and drops the clamps between them, also on one device."""


@dataclass(frozen=True)
class Difference:
    """One array that is not as it should be."""

    leaf: int
    """Its number in the flattened result."""
    text: str
    relative: float
    """Largest difference over the largest entry that was expected; infinite where one has NaN."""


def tolerance_of(program: Program) -> float:
    """For arrays that are not exact: by the shortest dtype in the program."""
    dtypes = {kind.dtype for owner, _ in program.walk() for kind in owner.kinds.values()}
    return max(_TOLERANCES[it] for it in FLOATS if it in dtypes | {"float32"})


def first_difference(program: Program, found: Any, expected: Any) -> Difference | None:
    """The array that differs most of those that differ at all, or None."""
    if jax.tree.structure(found) != jax.tree.structure(expected):
        return Difference(0, "another structure", float("inf"))
    leaves = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    exact = program.output_exactness if program.style == "function" else (False,) * len(leaves)
    tolerance = tolerance_of(program)
    differences = [
        _difference(number, np.asarray(got), np.asarray(want), 0.0 if exact[number] else tolerance)
        for number, (got, want) in enumerate(leaves)
    ]
    return max((it for it in differences if it), key=lambda it: it.relative, default=None)


def _difference(
    leaf: int, got: np.ndarray, want: np.ndarray, tolerance: float
) -> Difference | None:
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        text = f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        return Difference(leaf, text, float("inf"))
    relative, count = _relative(_wide(got), _wide(want))
    if relative <= tolerance:
        return None
    text = f"{count} of {got.size} entries of {got.dtype}{list(got.shape)} differ"
    rule = "bit for bit" if tolerance == 0 else f"tolerance {tolerance:g}"
    return Difference(leaf, f"{text}, relative difference {relative:.2g} ({rule})", relative)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _relative(got: np.ndarray, want: np.ndarray) -> tuple[float, int]:
    with np.errstate(all="ignore"):
        same = (got == want) | ((got != got) & (want != want))
        if same.all():
            return 0.0, 0
        finite = np.isfinite(got) & np.isfinite(want)
        differing = int((~same).sum())
        if (~same & ~finite).any():
            return float("inf"), differing
        scale = np.abs(want[np.isfinite(want)].astype(np.complex128)).max(initial=_SMALLEST_SCALE)
        far = np.abs(got.astype(np.complex128) - want.astype(np.complex128))[~same]
        return float(far.max() / scale), differing


def judged(program: Program, values: list[Any], expected: Any, found: Any) -> tuple[str, str]:
    """What a sharded run is whose results are not those of the unsharded one, and where.

    A run in double precision tells: where the unsharded run is as far from it as the sharded one
    from the unsharded one, the program makes its rounding large; where only the unsharded one
    differs, XLA was wrong on one device.
    """
    difference = first_difference(program, found, expected)
    if difference is None:
        return EQUAL, ""
    text = f"result {difference.leaf}: {difference.text}"
    better = _in_double_precision(program, values)
    if better is None:
        return WRONG, text
    want, got = (
        _relative(_wide(np.asarray(jax.tree.leaves(results)[difference.leaf])), wanted)[0]
        for results in (expected, found)
        for wanted in [np.asarray(better[difference.leaf])]
    )
    is_exact = program.style == "function" and program.output_exactness[difference.leaf]
    if got <= (0.0 if is_exact else tolerance_of(program)) < want:
        return WRONG_REFERENCE, text
    if not np.isfinite(difference.relative):
        return WRONG, text
    return (WRONG if is_exact or want * 4 < difference.relative else ROUNDING), text


def _in_double_precision(program: Program, values: list[Any]) -> list[Any] | None:
    """The leaves of an unsharded run; None where the program cannot be run so."""
    wide = _doubled(program)
    with jax.enable_x64(True):
        try:
            compiled = jax.jit(styled(wide), compiler_options=_WITHOUT_SIMPLIFIER)
            results = run(wide, compiled, [_doubled_value(it) for it in values])
        except (TypeError, ValueError, jax.errors.JaxRuntimeError):
            return None
    return jax.tree.leaves(results)


def _doubled_value(value: Any) -> Any:
    name = _DOUBLE.get(getattr(getattr(value, "dtype", None), "name", ""))
    return value.astype(name) if name else value


def _doubled(program: Program) -> Program:
    return replace(
        program,
        x64=True,
        arguments=tuple(_doubled_argument(it) for it in program.arguments),
        instructions=tuple(_doubled_instruction(it) for it in program.instructions),
        kinds={name: _doubled_kind(kind) for name, kind in program.kinds.items()},
    )


def _doubled_argument(argument: Argument) -> Argument:
    return replace(argument, kind=_doubled_kind(argument.kind))


def _doubled_kind(kind: Kind) -> Kind:
    return replace(kind, dtype=_DOUBLE.get(kind.dtype, kind.dtype))


def _doubled_instruction(instruction: Instruction) -> Instruction:
    def double(value: Any) -> Any:
        if isinstance(value, Program):
            return _doubled(value)
        return _DOUBLE.get(value, value) if isinstance(value, str) else value

    parameters = {key: double(value) for key, value in instruction.parameters.items()}
    return replace(instruction, parameters=parameters)
