"""Which releases of JAX autoshard knows, and what is said of others."""

from __future__ import annotations

import importlib.metadata
import re
import warnings

from autoshard.errors import AutoshardWarning

OLDEST = (0, 10, 2)
"""Earlier ones lack what ``ir/`` imports of JAX."""
NEWEST = (0, 12)
"""The newest that the tests have run with."""


def jax_release() -> tuple[int, ...] | None:
    """Release of the installed JAX, ``(0, 12, 0)``; None if there is none."""
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def check_release() -> None:
    """Warn of a JAX that is newer than what was tested.

    Raises:
        ImportError: There is no JAX, or it is too old.
    """
    found = jax_release()
    if found is None:
        raise ImportError(
            f"autoshard needs jax {_text(OLDEST)} or newer. Install it: pip install jax"
        )
    if found < OLDEST:
        raise ImportError(
            f"autoshard needs jax {_text(OLDEST)} or newer, here is {_text(found)}. Install a newer"
            f" one: pip install 'jax>={_text(OLDEST)}'"
        )
    if found[:2] > NEWEST:
        warnings.warn(
            AutoshardWarning(
                f"jax {_text(found)} is newer than what autoshard is tested with, {_text(OLDEST)}"
                f" to {_text(NEWEST)}: where a part of JAX has moved, an ImportError names it."
            ),
            stacklevel=4,
        )


def not_opened(error: ImportError | AttributeError) -> ImportError:
    """What to say where JAX lacks something that autoshard imports of it.

    Args:
        error: Raised while a module of autoshard was imported.
    """
    found = jax_release()
    door = error.name if isinstance(error, ImportError) and error.name else "jax"
    return ImportError(
        f"jax {_text(found or ())} does not have what autoshard uses of {door}: {error}. Tested are"
        f" jax {_text(OLDEST)} to {_text(NEWEST)}: pip install 'jax>={_text(OLDEST)},"
        f"<{NEWEST[0]}.{NEWEST[1] + 1}'"
    )


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))
