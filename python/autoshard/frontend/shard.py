"""``autoshard.shard``: say how the operands and results of a function are split.

    layout = autoshard.Layout((2, 2, 2), ("dp", "sp", "mp"))
    matmul = autoshard.shard(
        jnp.matmul, in_strategy=(layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None"))
    )

The result is called like the function and computes the same; only ``autoshard.jit``,
``autoshard.plan`` and the passes read what it says.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, cast

import jax

from autoshard.errors import StrategyError
from autoshard.frontend.argnums import whole_number
from autoshard.frontend.marked_module import Call, MarkParameter, is_module, module_with_marked_call
from autoshard.ir.lowering import user_line
from autoshard.ir.mark import OPEN_DIM, Mark, bind
from autoshard.sharding.sharding import Sharding
from autoshard.sharding.strategy import Cuts
from autoshard.sharding.text import format_mesh_prefix

P = ParamSpec("P")
R = TypeVar("R")

Strategy = Any
"""A layout, a tuple of cuts, None, or a pytree prefix of these; see ``shard``."""

_tree: Any = jax.tree_util
_groups = itertools.count()
_allow_padding: ContextVar[bool] = ContextVar("allow_padding", default=False)


Leaf = Sharding | Cuts
"""What is said of one array."""


def shard(
    fn: Callable[P, R],
    in_strategy: tuple[Strategy, ...] | None = None,
    out_strategy: Strategy = None,
    *,
    parameter_strategy: Mapping[str, Strategy] | None = None,
) -> Callable[P, R]:
    """``fn``, with its operands and results split as said.

    Numerically the result is ``fn`` itself, under every JAX transformation; derivatives carry
    no marks; ``vmap`` leaves the dim that it adds open.

    A *strategy* for one array is a layout (``layout("dp", "None")``), a tuple with the number
    of cuts of each dim (``(4, 1)``; ``()`` for a scalar), or None: nothing is said. An argument
    that is a pytree takes one of these for all its arrays, or a pytree of them that is a prefix
    of the argument, as ``jax.jit`` takes ``in_shardings``. Layouts and tuples do not mix in one
    call of ``shard``, and its layouts share one device matrix.

    Args:
        fn: A function of ``jax.numpy`` or ``jax.lax``, any other function or method, or a flax
            ``nnx`` or equinox module. A module comes back as a module of the same class name,
            fields and parameter paths, whose ``__call__`` is marked.
        in_strategy: One strategy per argument, in the order of the signature, up to the last
            one that holds an array. Arguments passed by name count too; keyword-only ones are
            not marked.
        out_strategy: The strategy of the result; for one array also ``(strategy,)``.
        parameter_strategy: Only for modules: strategies of parameters by path, such as
            ``{"linear.kernel": layout("None", "tp")}``.

    Raises:
        StrategyError: A strategy that does not fit: at once where it is wrong by itself, when
            the result is called where it does not fit the arguments. The message starts with
            the user's ``file:line``.

    Example:
        ``autoshard.shard(jnp.matmul, ((4, 1), (1, 2)))(x, w)``
    """
    name = _name_of(fn)
    if not callable(fn):
        raise StrategyError(
            f"autoshard.shard takes a function or a module, not {name}.", user_line()
        )
    rule = _Rule(name, _checked_in(name, in_strategy), out_strategy, _signature_of(fn))
    _check_consistent(rule, parameter_strategy)
    if is_module(fn):
        return cast(Callable[P, R], _marked_module(fn, rule, dict(parameter_strategy or {})))
    if parameter_strategy is not None:
        raise StrategyError(
            f"{name}: parameter_strategy names parameters of a module, but this is a function."
            " Pass the parameters as arguments and use in_strategy.",
            user_line(),
        )

    @functools.wraps(fn)
    def marked(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, rule.call(fn, args, kwargs, next(_groups)))

    return marked


def _marked_module(module: Any, rule: _Rule, parameters: dict[str, Strategy]) -> Any:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, MarkParameter]:
        group = next(_groups)
        operands = sum(map(_is_array, _tree.tree_leaves((args, kwargs))))
        marker = _Marker(group, "in", itertools.count(operands))

        def mark(path: str, array: Any) -> Any:
            if path not in parameters:
                return array
            return marker.mark_tree(parameters[path], array, f"{rule.name}.{path}")

        return functools.partial(rule.call, group=group), mark

    return module_with_marked_call(module, begin, list(parameters))


@dataclass(frozen=True)
class _Rule:
    """What one ``shard`` says, and how a call obeys."""

    name: str
    in_strategy: tuple[Strategy, ...] | None
    out_strategy: Strategy
    signature: inspect.Signature | None

    def call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], group: int
    ) -> Any:
        if self.in_strategy is not None:
            args, kwargs = self._mark_arguments(group, args, kwargs)
        result = fn(*args, **kwargs)
        if self.out_strategy is None:
            return result
        strategy = _of_result(self.out_strategy, result)
        marker = _Marker(group, "out", itertools.count())
        return marker.mark_tree(strategy, result, f"{self.name} result")

    def _mark_arguments(
        self, group: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert self.in_strategy is not None
        places: list[int | str] = list(range(len(args)))
        places += [name for name in self._positional_names()[len(args) :] if name in kwargs]
        marked: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
        self._check_number([marked[place] for place in places])
        marker = _Marker(group, "in", itertools.count())
        for number, (place, strategy) in enumerate(zip(places, self.in_strategy, strict=False)):
            where = f"{self.name} operand {number}"
            marked[place] = marker.mark_tree(strategy, marked[place], where)
        return tuple(marked[i] for i in range(len(args))), {name: marked[name] for name in kwargs}

    def _positional_names(self) -> list[str]:
        """Names of the parameters that can be passed by position, where they are known."""
        if self.signature is None:
            return []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [p.name for p in self.signature.parameters.values() if p.kind in kinds]

    def _check_number(self, operands: list[Any]) -> None:
        assert self.in_strategy is not None
        given = len(self.in_strategy)
        needed = max((i + 1 for i, o in enumerate(operands) if _has_array(o)), default=0)
        if needed <= given <= len(operands):
            return
        entries = f"{given} {'entry' if given == 1 else 'entries'}"
        found = (
            f"argument {needed - 1} is an array too"
            if given < needed
            else f"the call has only {len(operands)} arguments"
        )
        raise StrategyError(
            f"{self.name}: in_strategy has {entries}, but {found}. Give one entry per argument;"
            " None says nothing about it.",
            user_line(),
        )


@dataclass(frozen=True)
class _Marker:
    """Marks the arrays of one call, one side of it."""

    group: int
    role: Literal["in", "out"]
    numbers: Iterator[int]

    def mark_tree(self, strategy: Strategy, tree: Any, where: str) -> Any:
        """``tree`` with its arrays marked; ``strategy`` is a prefix of it."""
        leaves, structure = _tree.tree_flatten_with_path(tree)
        strategies = _broadcast(strategy, tree, where)
        marked: list[Any] = []
        for (path, leaf), said in zip(leaves, strategies, strict=True):
            place = f"{where}{_tree.keystr(path)}"
            marked.append(self._mark_leaf(said, leaf, place))
        if all(new is old for new, (_, old) in zip(marked, leaves, strict=True)):
            return tree
        return _tree.tree_unflatten(structure, marked)

    def _mark_leaf(self, said: Strategy, leaf: Any, where: str) -> Any:
        if not _is_array(leaf):
            if said is None or said == ():
                return leaf
            raise StrategyError(
                f"{where} is {leaf!r}, not an array, and cannot be split as {said}."
                " Use None for it.",
                user_line(),
            )
        index = next(self.numbers)
        if said is None:
            return leaf
        strategy = _leaf_strategy(said, where)
        _check_fits(strategy, leaf.shape, where)
        return bind(leaf, _mark(strategy, self.group, self.role, index))


def _mark(strategy: Leaf, group: int, role: Literal["in", "out"], index: int) -> Mark:
    if isinstance(strategy, Cuts):
        return Mark(group, role, index, tuple(map(str, strategy.counts)), None)
    dims = tuple(
        ", ".join([*map(str, axes), *([OPEN_DIM] if is_open else [])])
        for axes, is_open in zip(strategy.dims, strategy.open_dims, strict=True)
    )
    return Mark(group, role, index, dims, format_mesh_prefix(strategy.mesh))


def _check_fits(strategy: Leaf, shape: tuple[int, ...], where: str) -> None:
    """Rank and divisibility; everything else was wrong before there was an array."""
    allow_padding = _allow_padding.get()
    if isinstance(strategy, Cuts):
        strategy.check(shape, None, where, user_line(), allow_padding)
    else:
        strategy.check(shape, where, user_line(), allow_padding)


@contextmanager
def padding_allowed(is_allowed: bool) -> Generator[None]:
    """Marks that are traced meanwhile may cut dims that are not divisible.

    Planning checks them again, as it has to: JAX keeps traces of inner functions.
    """
    token = _allow_padding.set(is_allowed)
    try:
        yield
    finally:
        _allow_padding.reset(token)


# --- reading what the user wrote ---


def _checked_in(name: str, in_strategy: Any) -> tuple[Strategy, ...] | None:
    if in_strategy is None:
        return None
    if not isinstance(in_strategy, tuple | list) or (in_strategy and _is_cuts(in_strategy)):
        raise StrategyError(
            f"{name}: in_strategy is a tuple with one entry per argument, not {in_strategy}."
            f" For one argument write ({in_strategy},).",
            user_line(),
        )
    return tuple(cast(tuple[Strategy, ...], in_strategy))


def _check_consistent(rule: _Rule, parameters: Mapping[str, Strategy] | None) -> None:
    """One kind of strategy, one mesh, and every entry something that can be read."""
    first: tuple[str, Leaf] | None = None
    groups = [(f"in_strategy[{i}]", entry) for i, entry in enumerate(rule.in_strategy or ())]
    groups.append(("out_strategy", rule.out_strategy))
    groups += [(f"parameter_strategy[{key!r}]", said) for key, said in (parameters or {}).items()]
    for label, entry in groups:
        for said in _tree.tree_leaves(entry, is_leaf=_is_leaf):
            if said is None:
                continue
            where = f"{rule.name}: {label}"
            leaf = _leaf_strategy(said, where)
            if leaf == Cuts(()):
                continue
            if first is None:
                first = label, leaf
            _check_same_kind(rule.name, *first, label, leaf)


def _check_same_kind(name: str, first_label: str, first: Leaf, label: str, leaf: Leaf) -> None:
    if isinstance(first, Cuts) != isinstance(leaf, Cuts):
        raise StrategyError(
            f"{name}: {first_label} is {first} and {label} is {leaf}: tuples of cuts and layouts"
            " cannot be mixed in one call of shard. Use layouts for all or tuples for all.",
            user_line(),
        )
    if not isinstance(first, Cuts) and not isinstance(leaf, Cuts) and first.mesh != leaf.mesh:
        raise StrategyError(
            f"{name}: {first_label} is on mesh {first.mesh} and {label} on mesh {leaf.mesh}:"
            " the operands of one call need one device matrix. Make both layouts from one Layout.",
            user_line(),
        )


def _leaf_strategy(said: Any, where: str) -> Leaf:
    if isinstance(said, Sharding):
        return said
    if not _is_cuts(said):
        raise StrategyError(
            f"{where} is {said!r}, which is no strategy. Use a layout such as"
            ' layout("dp", "None"), a tuple of cuts such as (4, 1), or None.',
            user_line(),
        )
    try:
        return Cuts(tuple(map(whole_number, said)))
    except StrategyError as error:
        raise StrategyError(f"{where}: {error.message}", user_line()) from error


def _is_cuts(said: Any) -> bool:
    return isinstance(said, tuple) and all(
        whole_number(count) is not None for count in cast(tuple[Any, ...], said)
    )


def _is_leaf(said: Any) -> bool:
    return said is None or isinstance(said, Sharding) or _is_cuts(said)


def _of_result(out_strategy: Strategy, result: Any) -> Strategy:
    """``(strategy,)`` means ``strategy`` where the result is one array."""
    one = _tree.treedef_is_leaf(_tree.tree_structure(result))
    if one and isinstance(out_strategy, tuple) and not _is_cuts(out_strategy):
        entries = cast(tuple[Strategy, ...], out_strategy)
        return entries[0] if len(entries) == 1 else entries
    return cast(Strategy, out_strategy)


@dataclass(frozen=True, slots=True)
class _Said:
    """A strategy as a pytree leaf, None too."""

    strategy: Strategy


def _broadcast(strategy: Strategy, tree: Any, where: str) -> list[Strategy]:
    """One strategy for each leaf of ``tree``."""
    prefix = jax.tree.map(_Said, strategy, is_leaf=_is_leaf)
    try:
        full = jax.tree.broadcast(prefix, tree)
    except ValueError as error:
        raise StrategyError(
            f"{where}: the strategy {strategy} has not the structure of the value,"
            f" {_tree.tree_structure(tree)}. Give one strategy for all its arrays or a"
            " pytree that is a prefix of it.",
            user_line(),
        ) from error
    return [said.strategy for said in _tree.tree_leaves(full)]


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _has_array(tree: Any) -> bool:
    return any(_is_array(leaf) for leaf in _tree.tree_leaves(tree))


def _name_of(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _signature_of(fn: Any) -> inspect.Signature | None:
    """None for the few callables, mostly built in, that do not say."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None
