"""Structures of arguments and results in files of plans: data that imports and runs nothing.

Lists, tuples and dicts are written as such. Types of the user's own are written by name, with the
names of a named tuple's fields and what a node keeps besides its children, where that is data.
They are looked up among the modules that the program has imported itself when the structure is
asked for.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, cast

import jax

from autoshard.errors import ParseError, PlanError

_tree: Any = jax.tree_util
_LEAF = "*"


@dataclass(frozen=True)
class SavedTree:
    """A structure as a file has it, in the form that ``leaf_count`` accepts."""

    json: Any

    def resolved(self, name: str) -> Any:
        """The ``PyTreeDef``.

        Args:
            name: Of the plan, for the error.

        Raises:
            PlanError: A type in it is not imported, is another one now, or keeps what is no data.
        """
        return _read(self.json, name)


def tree_to_json(tree: Any) -> Any:
    """A ``PyTreeDef`` or ``SavedTree`` as JSON."""
    if isinstance(tree, SavedTree):
        return tree.json
    data: tuple[type, Any] | None = tree.node_data()
    if data is None:
        return _LEAF
    kind, kept = data
    if kind is type(None):
        return None
    children = [tree_to_json(child) for child in tree.children()]
    if kind is dict:
        return {"dict": [list(map(_data_to_json, kept)), children]}
    if kind in (list, tuple):
        return {kind.__name__: children}
    found: dict[str, Any] = {"type": f"{kind.__module__}:{kind.__qualname__}", "children": children}
    if hasattr(kind, "_fields") and issubclass(kind, tuple):
        found["fields"] = list(cast(Any, kind)._fields)
        return found
    try:
        found["data"] = _data_to_json(kept)
    except _NoDataError:
        found["is_complete"] = False
    return found


class _NoDataError(Exception):
    """What is neither text, number, truth, None nor a list or tuple of such."""


def _data_to_json(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return {type(value).__name__: [_data_to_json(each) for each in value]}
    raise _NoDataError


def _data_from_json(read: Any) -> Any:
    if not isinstance(read, dict):
        return read
    ((kind, values),) = cast("dict[str, list[Any]]", read).items()
    found = [_data_from_json(value) for value in values]
    return tuple(found) if kind == "tuple" else found


def leaf_count(read: Any) -> int:
    """How many arrays a structure in a file holds.

    Raises:
        ParseError: It is no structure.
    """
    if read is None or read == _LEAF:
        return int(read == _LEAF)
    try:
        _, _, children = _node(read)
        return sum(map(leaf_count, children))
    except (KeyError, TypeError, ValueError) as error:
        raise ParseError(f"{str(read)[:80]} is no structure of a pytree") from error


def _node(read: dict[str, Any]) -> tuple[type | None, Any, list[Any]]:
    """Type, what it keeps, and children of a node; no type for one of the user's own."""
    if "type" in read:
        return None, None, read["children"]
    ((name, found),) = read.items()
    if name == "dict":
        keys, children = found
        if len(keys) != len(children):
            raise ValueError("a dict has a value for each key")
        return dict, [_data_from_json(key) for key in keys], children
    return {"list": list, "tuple": tuple}[name], None, found


def _read(read: Any, name: str) -> Any:
    if read is None:
        return _tree.tree_structure(None)
    if read == _LEAF:
        return _tree.tree_structure(0)
    kind, kept, children = _node(read)
    if kind is None:
        kind, kept = _looked_up(read, name)
    made = [_read(child, name) for child in children]
    try:
        return _tree.PyTreeDef.from_node_data_and_children(
            _tree.default_registry, (kind, kept), made
        )
    except ValueError as error:
        raise PlanError(_unknown(read["type"], name, "is no type of pytrees here")) from error


def _looked_up(node: dict[str, Any], name: str) -> tuple[type, Any]:
    """A type among what is imported already, and what its node keeps."""
    text = str(node["type"])
    module, _, path = text.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        # Not getattr: a module may import others when it is asked for a name.
        found = cast(Any, None if found is None else vars(found).get(part))
    if not isinstance(found, type):
        raise PlanError(_unknown(text, name, "is not imported"))
    if "fields" in node:
        if list(getattr(found, "_fields", ())) != node["fields"]:
            raise PlanError(_unknown(text, name, "has other fields now"))
        return found, None
    if not node.get("is_complete", True):
        raise PlanError(_unknown(text, name, "keeps what a file cannot, such as functions"))
    return found, _data_from_json(node["data"])


def _unknown(kind: str, name: str, why: str) -> str:
    return (
        f"plan of {name}: its structure has the type {kind.replace(':', '.')}, which {why}. Import"
        " it first; or give the plan to autoshard.jit(.., plan=..) or your arguments to plan.place,"
        " which need no structure; plan.arguments is flat and has names."
    )
