"""Functions that write into a ``jax.new_ref``, planned as functions of arrays.

    def count(total, x):             def of_arrays(total, x):
        total[...] += x.sum()   ->       total = jax.new_ref(total)
                                         count(total, x)
                                         return total[...], ..

What comes out is what the reference holds from then on. It stays where the plan has it, as state
does that a step takes and returns, and its array is given away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax

from autoshard.errors import PlanError
from autoshard.frontend.arguments import Arguments, StaticArguments
from autoshard.ir.lowering import array_of_ref, is_ref, set_ref, user_line

_tree: Any = jax.tree_util


@_tree.register_static
@dataclass(frozen=True)
class Structure:
    """What is no array: a pytree without leaves, by which programs are told apart."""

    value: Hashable


def elements_of(result: Any) -> tuple[tuple[Any, ...], bool]:
    """Elements of a result, and if it is a tuple: one that a step takes again keeps its place."""
    if type(result) is tuple:
        return cast(tuple[Any, ...], result), True
    return (result,), False


def has_references(leaves: Sequence[Any]) -> bool:
    """Is one of the arguments a ``jax.new_ref``?"""
    return any(map(is_ref, leaves))


@dataclass(frozen=True)
class OfArrays:
    """A call with arrays in place of references, and the function that takes these."""

    fn: Callable[..., Any]
    arguments: Arguments
    donate: tuple[Any, Any]
    """Numbers and names, as ``jax.jit`` takes them."""
    references: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        arguments: Arguments,
        static: StaticArguments,
        donate: tuple[Any, Any],
    ) -> OfArrays:
        """The call in which arguments are references.

        Args:
            fn: The user's function.
            arguments: What it is called with; some are references.
            static: Its static arguments.
            donate: Numbers and names of donated ones, as in ``jax.jit``; those that are nothing but
                references are donated, too.

        Raises:
            PlanError: One is passed twice.
        """
        numbers = [number for number, leaf in enumerate(arguments.leaves) if is_ref(leaf)]
        references = tuple(arguments.leaves[number] for number in numbers)
        _check_passed_once(fn, arguments, numbers)
        leaves = list(arguments.leaves)
        for number in numbers:
            leaves[number] = array_of_ref(leaves[number])
        args, kwargs = arguments.with_leaves(leaves)
        return cls(
            _of_arrays(fn, frozenset(numbers), static),
            replace(arguments, args=args, kwargs=kwargs, leaves=leaves),
            _with_references_donated(arguments, donate),
            references,
        )

    def result(self, made: Any) -> Any:
        """What the user's function returns; what it wrote is written into the references."""
        by_place = len(self.arguments.args) - len(self.arguments.static_places)
        *made, is_tuple = made
        values, elements = _tree.tree_leaves(made[: by_place + 1]), made[by_place + 1 :]
        for reference, value in zip(self.references, values, strict=True):
            set_ref(reference, value)
        return tuple(elements) if is_tuple.value else elements[0]


def _of_arrays(
    fn: Callable[..., Any], numbers: frozenset[int], static: StaticArguments
) -> Callable[..., Any]:
    """The function of arrays: arguments as they are afterwards come out before the result.

    Args:
        fn: The user's function.
        numbers: Which of the flat arguments are references.
        static: Static arguments.
    """

    @functools.wraps(fn, updated=())
    def of_arrays(*args: Any, **kwargs: Any) -> Any:
        given = Arguments.of(static, args, kwargs)
        leaves = [
            jax.new_ref(leaf) if number in numbers else leaf
            for number, leaf in enumerate(given.leaves)
        ]
        args, kwargs = given.with_leaves(leaves)
        elements, is_tuple = elements_of(fn(*args, **kwargs))
        written: list[Any] = [leaf[...] if is_ref(leaf) else None for leaf in leaves]
        after, by_name = _tree.tree_unflatten(given.tree, written)
        return (*after, by_name, *elements, Structure(is_tuple))

    return of_arrays


def _check_passed_once(
    fn: Callable[..., Any], arguments: Arguments, numbers: Sequence[int]
) -> None:
    first: dict[int, int] = {}
    for number in numbers:
        other = first.setdefault(id(arguments.leaves[number]), number)
        if other != number:
            names = arguments.names(fn)
            raise PlanError(
                f"{getattr(fn, '__name__', fn)}: {names[other]} and {names[number]} are one"
                " jax.new_ref. Pass it once, as jax.jit asks for it.",
                user_line(),
            )


def _with_references_donated(
    arguments: Arguments, donate: tuple[Any, Any]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Also those that are nothing but references: what their arrays held is gone after a call."""
    dynamic, by_name = _tree.tree_unflatten(arguments.tree, arguments.leaves)
    count = len(arguments.args)
    places = [place for place in range(count) if place not in arguments.static_places]
    said, names = donate
    numbers = [said] if isinstance(said, int) else list(said or ())
    donated = {number % count for number in numbers if -count <= number < count}
    donated |= {place for place, value in zip(places, dynamic, strict=True) if _all_refs(value)}
    named = [names] if isinstance(names, str) else list(names or ())
    named += [name for name, value in by_name.items() if _all_refs(value) and name not in named]
    return tuple(sorted(donated)), tuple(named)


def _all_refs(value: Any) -> bool:
    leaves = _tree.tree_leaves(value)
    return bool(leaves) and all(map(is_ref, leaves))
