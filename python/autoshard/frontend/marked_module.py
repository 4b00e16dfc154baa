"""Modules of flax ``nnx`` and equinox whose call is marked.

A function around a module would hide its parameters from the library. So the module stays one:
the same fields, parameter paths and arrays, in a class of the same name that only calls
differently.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from autoshard.errors import StrategyError
from autoshard.ir.lowering import user_line

_tree: Any = jax.tree_util

Call = Callable[..., Any]
"""``call(fn, args, kwargs)``: calls ``fn`` and marks what goes in and out."""

MarkParameter = Callable[[str, Any], Any]
"""``mark(path, array)``: the array, marked if something is said of that path."""


def is_module(value: object) -> bool:
    """Is it an instance of ``flax.nnx.Module`` or ``equinox.Module``?"""
    return _is_nnx(value) or _is_equinox(value)


Begin = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Call, MarkParameter]]
"""Given the arguments of one call: how to make it and how to mark parameters meanwhile."""


def module_with_marked_call(module: Any, begin: Begin, parameters: Sequence[str]) -> Any:
    """A module that shares ``module``'s arrays and calls its ``__call__`` marked.

    Args:
        module: Stays as it is.
        begin: Begins each call.
        parameters: Paths that are marked; every one must name an array of the module.

    Raises:
        StrategyError: A path of ``parameters`` that the module has not.
    """
    paths = _paths(module)
    for path in parameters:
        if path not in paths:
            raise StrategyError(
                f"{type(module).__name__} has no parameter {path!r}; it has"
                f" {', '.join(map(repr, paths))}. Use one of these in parameter_strategy.",
                user_line(),
            )
    base: Any = cast(Any, type(module))

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        call, mark = begin(args, kwargs)
        if not parameters:
            return call(functools.partial(base.__call__, self), args, kwargs)
        if _is_nnx(self):
            return _call_nnx(base, self, call, mark, args, kwargs)
        marked = _map_equinox(self, mark)
        return call(functools.partial(base.__call__, marked), args, kwargs)

    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    kind: Any = type(base)(base.__name__, (base,), {**names, "__call__": __call__})
    if _is_nnx(module):
        view: Any = copy.copy(module)
        object.__setattr__(view, "__class__", kind)
        return view
    view: Any = object.__new__(kind)
    fields = cast(dict[str, Any], vars(module))
    for name, value in fields.items():
        object.__setattr__(view, name, value)
    return view


def _call_nnx(
    base: Any, module: Any, call: Call, mark: MarkParameter, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Call a copy with marked parameters; what the call writes goes back to the module."""
    nnx = sys.modules["flax.nnx"]
    graph, state = nnx.split(module)
    flat = nnx.to_flat_state(state)
    before = {path: mark(_dotted(path), leaf[...]) for path, leaf in flat}
    copied = nnx.merge(
        graph, nnx.from_flat_state([(path, leaf.replace(before[path])) for path, leaf in flat])
    )
    result = call(functools.partial(base.__call__, copied), args, kwargs)
    written = [
        (path, leaf)
        for path, leaf in nnx.to_flat_state(nnx.state(copied))
        if path not in before or leaf[...] is not before[path]
    ]
    if written:
        nnx.update(module, nnx.from_flat_state(written))
    return result


def _map_equinox(module: Any, mark: MarkParameter) -> Any:
    def at(path: Any, leaf: Any) -> Any:
        return mark(_dotted_keys(path), leaf)

    return _tree.tree_map_with_path(at, module)


def _paths(module: Any) -> list[str]:
    if _is_nnx(module):
        nnx = sys.modules["flax.nnx"]
        return [_dotted(path) for path, _ in nnx.to_flat_state(nnx.state(module))]
    return [_dotted_keys(path) for path, _ in _tree.tree_leaves_with_path(module)]


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _dotted_keys(path: tuple[Any, ...]) -> str:
    return _tree.keystr(path, simple=True, separator=".")


def _is_nnx(value: object) -> bool:
    return _is_instance(value, "flax.nnx")


def _is_equinox(value: object) -> bool:
    return _is_instance(value, "equinox")


def _is_instance(value: object, library: str) -> bool:
    """Is it an instance of ``library.Module``? Does not import the library."""
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(value, loaded.Module)
