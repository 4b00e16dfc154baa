"""``autoshard.nnx_jit`` and ``autoshard.filter_jit``: planned functions of a library's modules.

A module goes in as its arrays, and its structure as something that is no array. What a function
writes into an ``nnx`` module comes out as a result and is written back, so that state that a step
updates in place keeps its place on the devices, as state that is passed and returned does.
"""

from __future__ import annotations

import abc
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, Unpack, cast

import jax

from autoshard.errors import PlanError
from autoshard.frontend.jit import JitOptions, Jitted, jit
from autoshard.frontend.plan import Plan
from autoshard.frontend.references import Structure, elements_of
from autoshard.ir.lowering import signature_of, static_arguments, user_line

R = TypeVar("R")

_tree: Any = jax.tree_util

_STRUCTURE = "autoshard_structure"
"""The name of the argument that has what is no array."""


Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments by place, and by name."""


class LibraryJitted(abc.ABC, Generic[R]):
    """What ``autoshard.nnx_jit`` and ``autoshard.filter_jit`` return."""

    def __init__(self, fn: Callable[..., R], options: Mapping[str, Any]) -> None:
        """See there."""
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        numbers, names = static_arguments(
            fn, options.get("static_argnums"), options.get("static_argnames")
        )
        self._static = frozenset[int | str]((*numbers, *names))
        if options.get("out_shardings") is not None:
            raise PlanError(
                f"{self!r}: out_shardings pins the results of a function of arrays, and this one"
                " has its modules among them. Use jax.lax.with_sharding_constraint in it.",
                user_line(),
            )

        @functools.wraps(fn, updated=())
        def pure(*args: Any, **kwargs: Any) -> Any:
            return self._pure(*args, **kwargs)

        cast(Any, pure).__signature__ = _with_structure(signature_of(fn))
        self._jitted: Jitted[..., Any] = jit(pure, **cast(Any, dict(options)))

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Run; the first call with these types plans and compiles."""

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments of these types; its arguments are the arrays of modules."""
        args, kwargs = self._arrays(args, kwargs)
        return self._jitted.plan(*args, **kwargs)

    def __repr__(self) -> str:
        """``<autoshard.nnx_jit of train_step>``."""
        kind = "nnx_jit" if isinstance(self, NnxJitted) else "filter_jit"
        return f"<autoshard.{kind} of {getattr(self._fn, '__name__', type(self._fn).__name__)}>"

    @abc.abstractmethod
    def _arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The arrays of arguments, in their places, and what is none by ``_STRUCTURE``."""

    @abc.abstractmethod
    def _pure(self, *args: Any, **kwargs: Any) -> Any:
        """The function of these."""

    def _dynamic(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
        """Arguments that are not static, by place or name."""
        given: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
        return {
            place: value
            for place, value in given.items()
            if place not in self._static
            and not (isinstance(place, int) and place - len(args) in self._static)
        }


def _with_structure(signature: inspect.Signature) -> inspect.Signature:
    """With the argument for what is no array: JAX names none of a call that does not fit."""
    given = list(signature.parameters.values())
    has_rest = bool(given) and given[-1].kind is inspect.Parameter.VAR_KEYWORD
    structure = inspect.Parameter(_STRUCTURE, inspect.Parameter.KEYWORD_ONLY, default=None)
    given.insert(len(given) - has_rest, structure)
    return signature.replace(parameters=given)


def _with(args: tuple[Any, ...], kwargs: Mapping[str, Any], changed: Mapping[Any, Any]) -> Call:
    """A call with other values at some places and names."""
    by_place = tuple(changed.get(place, value) for place, value in enumerate(args))
    return by_place, {name: changed.get(name, value) for name, value in kwargs.items()}


class NnxJitted(LibraryJitted[R]):
    """What ``autoshard.nnx_jit`` returns."""

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Run, and write what the function wrote into the modules of the caller."""
        arrays, by_name = self._arrays(args, kwargs)
        modules = self._modules(args, kwargs)
        *made, is_tuple = self._jitted(*arrays, **by_name)
        states, elements = made[: len(modules)], made[len(modules) :]
        for module, state in zip(modules.values(), states, strict=True):
            _nnx().update(module, state)
        return cast(R, tuple(elements) if is_tuple.value else elements[0])

    def _modules(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
        """Arguments that are modules, optimizers and the like, or pytrees of them."""
        is_node = _nnx().graph.is_graph_node

        def has_node(value: Any) -> bool:
            return any(map(is_node, _tree.tree_leaves(value, is_leaf=is_node)))

        dynamic = self._dynamic(args, kwargs)
        return {place: value for place, value in dynamic.items() if has_node(value)}

    def _arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        modules = self._modules(args, kwargs)
        graph, states = _split(tuple(modules.values()))
        arrays, by_name = _with(args, kwargs, dict(zip(modules, states, strict=True)))
        return arrays, {**by_name, _STRUCTURE: Structure((tuple(modules), graph))}

    def _pure(self, *args: Any, **kwargs: Any) -> Any:
        places, graph = kwargs.pop(_STRUCTURE).value
        given = self._dynamic(args, kwargs)
        # Copies: what is written into them goes out as a result.
        states = {number: _copied(given[place]) for number, place in enumerate(places)}
        modules = _nnx().merge(graph, _nnx().State(states))
        args, kwargs = _with(args, kwargs, dict(zip(places, modules, strict=True)))
        result = self._fn(*args, **kwargs)
        after, updated = _split(modules)
        if after != graph:
            raise PlanError(
                f"{self!r}: it changes the structure of a module: a variable or another attribute"
                " that is no array is new, gone or another one after the call. Make it before, or"
                " take it away in the function (nnx.pop).",
                user_line(),
            )
        elements, is_tuple = elements_of(result)
        return (*updated, *elements, Structure(is_tuple))


class FilterJitted(LibraryJitted[R]):
    """What ``autoshard.filter_jit`` returns."""

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Run."""
        arrays, by_name = self._arrays(args, kwargs)
        *made, others = self._jitted(*arrays, **by_name)
        rests, is_tuple = others.value
        result = tuple(map(_combined, made, rests))
        return cast(R, result if is_tuple else result[0])

    def _arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        parts = {place: _parted(value) for place, value in self._dynamic(args, kwargs).items()}
        arrays = {place: made for place, (made, _) in parts.items()}
        others = tuple((place, rest) for place, (_, rest) in parts.items())
        by_place, by_name = _with(args, kwargs, arrays)
        return by_place, {**by_name, _STRUCTURE: Structure(others)}

    def _pure(self, *args: Any, **kwargs: Any) -> Any:
        others = kwargs.pop(_STRUCTURE).value
        given = self._dynamic(args, kwargs)
        whole = {place: _combined(given[place], rest) for place, rest in others}
        args, kwargs = _with(args, kwargs, whole)
        elements, is_tuple = elements_of(self._fn(*args, **kwargs))
        parts = [_parted(element) for element in elements]
        return (
            *(arrays for arrays, _ in parts),
            Structure((tuple(r for _, r in parts), is_tuple)),
        )


def nnx_jit(fn: Callable[..., R] | None = None, **options: Unpack[JitOptions]) -> Any:
    """``autoshard.jit`` for functions that update ``flax.nnx`` modules in place, as ``nnx.jit``.

    Modules, optimizers, metrics and random streams among the arguments, also in pytrees and shared
    by several, are planned by their arrays; what the function writes into them is written back.
    Their state counts as state that a step returns, so that it keeps its sharding.

    Args:
        fn: A function of modules and arrays. Without it, a decorator comes back.
        options: As for ``autoshard.jit``, except ``out_shardings``; a pin or a donation of a module
            is one of all its arrays.

    Raises:
        PlanError: ``out_shardings`` is given; when called: the function adds variables to a module,
            or takes some away.

    Example:
        step = autoshard.nnx_jit(train_step, cluster="v5e:2x4")
        loss = step(model, optimizer, x)
    """
    return functools.partial(nnx_jit, **options) if fn is None else NnxJitted(fn, options)


def filter_jit(fn: Callable[..., R] | None = None, **options: Unpack[JitOptions]) -> Any:
    """``autoshard.jit`` for functions of equinox modules, as ``equinox.filter_jit``.

    Arrays of the arguments, of ``equinox.is_array``, are planned; everything else in them is
    static, compared by value, and may be returned as well.

    Args:
        fn: A function of pytrees. Without it, a decorator comes back.
        options: As for ``autoshard.jit``, except ``out_shardings``.

    Raises:
        PlanError: ``out_shardings`` is given.
    """
    return functools.partial(filter_jit, **options) if fn is None else FilterJitted(fn, options)


def _copied(state: Any) -> Any:
    leaves, tree = _tree.tree_flatten(state)
    return _tree.tree_unflatten(tree, leaves)


def _nnx() -> Any:
    return importlib.import_module("flax.nnx")


def _equinox() -> Any:
    return importlib.import_module("equinox")


def _split(modules: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """The structure of modules together, and the state of each; what is shared is the first's."""
    graph, state = _nnx().split(modules)
    empty = _nnx().State({})
    return graph, [state[n] if n in state else empty for n in range(len(modules))]  # noqa: SIM401


class _Array:
    """Stands for an array in the structure of a pytree."""


def _parted(value: Any) -> tuple[Any, Structure]:
    """The arrays of a pytree, None in place of the rest; and the rest.

    Arrays are what is one to equinox, those of numpy as its release has it, and types of one.
    """
    is_array: Callable[[Any], bool] = _equinox().is_array
    leaves, tree = _tree.tree_flatten(value)
    arrays = [isinstance(leaf, jax.ShapeDtypeStruct) or is_array(leaf) for leaf in leaves]
    parts = list(zip(leaves, arrays, strict=True))
    made = _tree.tree_unflatten(tree, [leaf if its else None for leaf, its in parts])
    return made, Structure((tuple(_Array if its else leaf for leaf, its in parts), tree))


def _combined(arrays: Any, rest: Structure) -> Any:
    leaves, tree = cast(tuple[Any, Any], rest.value)
    found = iter(_tree.tree_leaves(arrays))
    return _tree.tree_unflatten(tree, [next(found) if it is _Array else it for it in leaves])
