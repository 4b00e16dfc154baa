"""Options of a compiler: by name and value, or a set of them that somebody published.

Each set is a file of ``option_sets/``, ``maxtext-v6e.toml``, with its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autoshard.errors import PlanError

CompilerOptions = str | Mapping[str, Any]
"""The name of a set, or XLA's options by name: ``{"xla_gpu_autotune_level": "0"}``."""

_FOLDER = Path(__file__).parent / "option_sets"


@dataclass(frozen=True, slots=True)
class OptionSet:
    """Options that somebody published for a kind of program on a kind of chip."""

    name: str
    title: str
    compiler: str
    """``xla-tpu``."""
    source: str
    date: str
    """When the source was read."""
    options: dict[str, str]
    changed: str = ""
    """How it differs from its source, and why."""


def option_sets() -> tuple[str, ...]:
    """The names of all sets."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def read_option_set(name: str) -> OptionSet:
    """A set by its name.

    Raises:
        PlanError: No set has this name.
    """
    known = option_sets()
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f' Did you mean "{near[0]}"?' if near else ""
        raise PlanError(
            f'compiler_options: no set of options is called "{name}".{hint} There are'
            f" {', '.join(known)}; others are given by name and value:"
            ' compiler_options={"xla_gpu_autotune_level": "0"}, or'
            " --compiler-option=xla_gpu_autotune_level=0."
        )
    import tomllib  # here, so that to import autoshard stays quick

    read: dict[str, Any] = tomllib.loads((_FOLDER / f"{name}.toml").read_text())
    read["date"] = str(read["date"])
    return OptionSet(name, **read)


def as_sets(given: CompilerOptions | Sequence[CompilerOptions]) -> tuple[CompilerOptions, ...]:
    """Several sets of options, where one may be given alone."""
    return (given,) if isinstance(given, str | Mapping) else tuple(given)


def read_compiler_options(given: CompilerOptions | None) -> dict[str, Any]:
    """Options by name.

    Raises:
        PlanError: No set has this name, or it is neither a name nor a mapping of names.
    """
    if given is None:
        return {}
    if isinstance(given, str):
        return dict(read_option_set(given).options)
    asked: Any = given
    if not isinstance(asked, Mapping):
        raise PlanError(
            f"compiler_options {given!r}: expected the name of a set"
            f" ({', '.join(option_sets())}), or a value for each name:"
            ' {"xla_gpu_autotune_level": "0"}.'
        )
    return dict(given)
