"""The arguments of one call: what is static, what is an array, and of which type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax

from autoshard.ir.lowering import is_traced, static_arguments, type_of

_tree: Any = jax.tree_util


@dataclass(frozen=True)
class StaticArguments:
    """Which arguments of a function are static, as ``jax.jit`` understands it."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, fn: Callable[..., Any], argnums: Any, argnames: Any) -> StaticArguments:
        """``static_argnums`` and ``static_argnames`` of ``fn``; each completes the other."""
        return cls(*static_arguments(fn, argnums, argnames))


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    """Arrays and numbers of all arguments that are not static."""
    tree: Any
    """How ``leaves`` make ``(positional, by name)``, static ones left out."""
    static_places: tuple[int, ...]
    statics: tuple[Any, ...]
    """Static arguments with their places or names and types; part of the cache key."""

    @classmethod
    def of(
        cls, static: StaticArguments, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments:
        """Tell static from dynamic arguments."""
        if not static.numbers and not static.names:
            leaves, tree = _tree.tree_flatten((args, kwargs))
            return cls(args, kwargs, leaves, tree, (), ())
        count = len(args)
        places = tuple(sorted({n % count for n in static.numbers if -count <= n < count}))
        dynamic = tuple(arg for place, arg in enumerate(args) if place not in places)
        by_name = {name: value for name, value in kwargs.items() if name not in static.names}
        leaves, tree = _tree.tree_flatten((dynamic, by_name))
        given: list[tuple[int | str, Any]] = [(place, args[place]) for place in places]
        given += [(name, kwargs[name]) for name in sorted(kwargs) if name in static.names]
        statics: list[Any] = [(place, type(value), value) for place, value in given]
        return cls(args, kwargs, leaves, tree, places, tuple(statics))

    def types(self, mesh: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with types in place of arrays; static arguments as they are.

        Args:
            mesh: Where it has Explicit axes, types of arrays on it say how they are cut.
        """
        return self.with_leaves([_type_on(x, mesh) for x in self.leaves])

    @property
    def explicit_mesh(self) -> Any:
        """The mesh with Explicit axes that an array lies on; None if none does."""
        meshes = (_explicit_sharding(leaf) for leaf in self.leaves)
        return next((found.mesh for found in meshes if found is not None), None)

    def as_types(self) -> Arguments:
        """The same call, holding no array; where one has been put is kept."""
        args, kwargs = self.types()
        return replace(
            self, args=args, kwargs=kwargs, leaves=[_placed_type(x) for x in self.leaves]
        )

    def with_leaves(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with others in place of its arrays."""
        dynamic, by_name = _tree.tree_unflatten(self.tree, leaves)
        rest = iter(dynamic)
        args = tuple(
            arg if place in self.static_places else next(rest)
            for place, arg in enumerate(self.args)
        )
        return args, {**self.kwargs, **by_name}

    def names(self, fn: Callable[..., Any]) -> list[str]:
        """``params['w']``, ``x``, ...: a name for each leaf, after the signature of ``fn``."""
        parameters = positional_names(fn)
        places = [p for p in range(len(self.args)) if p not in self.static_places]
        named: list[str] = []
        numbered = _tree.tree_unflatten(self.tree, range(len(self.leaves)))
        leaves = cast("list[tuple[tuple[Any, ...], int]]", _tree.tree_leaves_with_path(numbered))
        for (side, first, *inner), _ in leaves:
            if side.idx == 0:
                number: int = first.idx
                place = places[number]
                head = parameters[place] if place < len(parameters) else f"argument {place}"
            else:
                head = str(first.key)
            named.append(head + _tree.keystr(tuple(inner)))
        return named


def type_key(value: Any) -> Any:
    """Equal for values for which one compiled program will do."""
    aval: Any = value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)
    return (aval.shape, aval.dtype, aval.weak_type, _explicit_sharding(value))


def _explicit_sharding(leaf: Any) -> jax.sharding.NamedSharding | None:
    """The sharding of an array on a mesh with Explicit axes, which is a part of its type."""
    sharding = committed_sharding(leaf)
    is_named = isinstance(sharding, jax.sharding.NamedSharding)
    explicit = jax.sharding.AxisType.Explicit
    return sharding if is_named and explicit in sharding.mesh.axis_types else None


def _type_on(leaf: Any, mesh: Any) -> Any:
    type_: Any = type_of(leaf)
    sharding = _explicit_sharding(leaf)
    if mesh is None or sharding is None:
        return type_
    here, there = mesh, sharding.mesh
    names = (here.axis_names, here.axis_sizes, here.axis_types)
    if (there.axis_names, there.axis_sizes, there.axis_types) != names:
        return type_
    return type_.update(sharding=jax.sharding.NamedSharding(mesh, sharding.spec))


def positional_names(fn: Callable[..., Any]) -> list[str]:
    """Names of what a function takes by position; none where it does not say."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            break
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            names.append(parameter.name)
    return names


def committed_sharding(leaf: Any) -> Any:
    """Where an array has been put, or where a type says that it is; None if nobody has said it."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding
    is_put = isinstance(leaf, jax.Array) and not is_traced(leaf) and leaf.committed
    return leaf.sharding if is_put else None


def _placed_type(leaf: Any) -> Any:
    type_: Any = type_of(leaf)
    sharding = committed_sharding(leaf)
    return type_ if sharding is None else type_.update(sharding=sharding)
