"""Arguments of ``main`` that an option of a pass names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.errors import PlanError
from autoshard.ir import mlir


def arguments_called(main: mlir.Operation, texts: Iterable[str], pass_name: str) -> list[int]:
    """Numbers of the arguments that each text names: ``params``, ``params['w']`` or ``3``.

    Raises:
        PlanError: No argument has the name or the number.
    """
    return numbers_called(argument_names(main), texts, pass_name)


def numbers_called(names: Sequence[str], texts: Iterable[str], pass_name: str) -> list[int]:
    """Which of the arguments ``names`` the texts name; see ``arguments_called``."""
    found: list[int] = []
    for text in texts:
        numbers = [n for n, name in enumerate(names) if _is_called(name, n, text)]
        if not numbers:
            known = ", ".join(list(dict.fromkeys(_root(name) for name in names if name))[:8])
            raise PlanError(
                f"{pass_name}: no argument is called {text}; there are {len(names)}"
                + (f": {known}" if known else ", without names")
                + ". Give a name, params or params['w'], or a number from 0."
            )
        found += numbers
    return found


def argument_names(main: mlir.Operation) -> list[str]:
    """Name of every argument, as JAX gives it; empty where the module has no names."""
    return [
        argument.location.name_str if isinstance(argument.location, mlir.NameLoc) else ""
        for argument in main.regions[0].blocks[0].arguments
    ]


def _is_called(name: str, number: int, text: str) -> bool:
    if text.isdigit():
        return number == int(text)
    return name == text or (name.startswith(text) and name[len(text)] in "[.")


def _root(name: str) -> str:
    return name.split("[")[0].split(".")[0]
