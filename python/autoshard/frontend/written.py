"""What a function writes into objects that it is given: it is lost, as by ``jax.jit``.

def step(model, optimizer, x):          # modules of flax.nnx
    ..
    optimizer.update(model, gradients)  # into a copy that tracing made of them
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from typing import Any

import jax

from autoshard.errors import AutoshardWarning
from autoshard.ir.lowering import user_line

_tree: Any = jax.tree_util


class Written:
    """Watches the calls of one function, and warns once."""

    def __init__(self, name: str) -> None:
        """See ``watched``; ``name`` is the function's, which is about to be traced."""
        self._name = name
        self._line = user_line()
        self._has_warned = False

    @contextlib.contextmanager
    def watched(self, arguments: Any) -> Generator[None]:
        """Warn if the block puts other arrays into objects among the arguments.

        Lists and dicts do not count: what is put into these is mostly for the function itself.

        Args:
            arguments: ``(positional, by name)``.
        """
        before = _arrays_of_objects(arguments)
        again = _arrays_of_objects(arguments)
        before = {path: array for path, array in before.items() if again.get(path) is array}
        yield
        if self._has_warned or not before:
            return
        after = _arrays_of_objects(arguments)
        changed = [path for path, array in before.items() if after.get(path) is not array]
        if changed:
            self._has_warned = True
            self._warn(changed)

    def _warn(self, changed: list[str]) -> None:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        warnings.warn(
            AutoshardWarning(
                f"{self._name} writes into an object that it is given ({changed[0]}{more}), and"
                " that is lost: it has a copy. Return what shall be kept, or use autoshard.nnx_jit"
                " for modules of flax.nnx.",
                self._line,
            ),
            stacklevel=2,
        )


def _arrays_of_objects(arguments: Any) -> dict[str, Any]:
    """Arrays in nodes that are neither tuples, lists nor dicts, by their path."""
    of_objects = (_tree.GetAttrKey, _tree.FlattenedIndexKey)
    return {
        _tree.keystr(path): leaf
        for path, leaf in _tree.tree_leaves_with_path(arguments)
        if any(isinstance(key, of_objects) for key in path)
    }
