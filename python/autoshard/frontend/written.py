"""What a function writes into objects that it is given: lost, as by ``jax.jit``, unless returned.

def step(model, optimizer, x):          # modules of flax.nnx
    ..
    optimizer.update(model, gradients)  # into a copy that tracing made of them
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax

from autoshard.errors import AutoshardWarning
from autoshard.ir.lowering import user_line

_tree: Any = jax.tree_util


class Written:
    """Watches the calls of one function, and warns once."""

    def __init__(self, name: str) -> None:
        """See ``call``; ``name`` is the function's, which is about to be traced."""
        self._name = name
        self._line = user_line()
        self._has_warned = False

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of ``fn``; warns if it puts other arrays into objects among the arguments.

        Lists and dicts do not count: what is put into these is mostly for the function itself. Nor
        does what is returned as well.

        Args:
            fn: Called once.
            args: Its positional arguments.
            kwargs: Those by name.
        """
        arguments = args, kwargs
        before = _arrays_of_objects(arguments)
        again = _arrays_of_objects(arguments)
        before = {path: array for path, array in before.items() if again.get(path) is array}
        result = fn(*args, **kwargs)
        if self._has_warned or not before:
            return result
        after = _arrays_of_objects(arguments)
        returned = set(map(id, _tree.tree_leaves(result)))
        changed = [
            path
            for path, array in before.items()
            if after.get(path) is not array and id(after.get(path)) not in returned
        ]
        if changed:
            self._has_warned = True
            self._warn(changed)
        return result

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
