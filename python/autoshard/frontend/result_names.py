"""What the arrays of a result are called."""

from __future__ import annotations

from typing import Any

import jax

_tree: Any = jax.tree_util


def result_names(tree: Any) -> list[str]:
    """``result['loss']``, one for each array."""
    leaves = _tree.tree_leaves_with_path(_tree.tree_unflatten(tree, range(tree.num_leaves)))
    return [f"result{_tree.keystr(path)}" for path, _ in leaves]
