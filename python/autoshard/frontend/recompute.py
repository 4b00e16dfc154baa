"""``autoshard.recompute``: do not keep what a function computes for the backward pass."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

from autoshard.errors import StrategyError
from autoshard.frontend.marked_module import is_module
from autoshard.ir.lowering import user_line
from autoshard.rewrites.recomputation.marks import scope_of

F = TypeVar("F", bound=Callable[..., Any])


def recompute(
    fn: F,
    *,
    mp_comm_recompute: bool = True,
    parallel_optimizer_comm_recompute: bool = True,
) -> F:
    """``fn``, whose intermediate values are computed again in the backward pass, not kept.

    Its arguments are kept, and its results where others need them. By itself it is
    ``jax.checkpoint(fn)``; the two switches take effect in ``autoshard.jit`` and
    ``autoshard.plan``.

    Args:
        fn: A function, or a module of flax ``nnx`` or equinox; a module comes back as one that
            shares its arrays.
        mp_comm_recompute: False: results of collectives, as the sums of matmuls whose contracted
            dim is cut, are kept instead of being computed and sent again.
        parallel_optimizer_comm_recompute: False: parameters that are gathered for ``fn`` are kept
            gathered until the backward pass.

    Raises:
        StrategyError: ``fn`` is neither a function nor a module, or a switch is neither True nor
            False.
    """
    for name, switch in (
        ("mp_comm_recompute", mp_comm_recompute),
        ("parallel_optimizer_comm_recompute", parallel_optimizer_comm_recompute),
    ):
        said: Any = switch
        if not isinstance(said, bool):
            raise StrategyError(
                f"autoshard.recompute({name}={said!r}): give True or False.", user_line()
            )
    scope = scope_of(mp_comm_recompute, parallel_optimizer_comm_recompute)
    if is_module(fn):
        return _module(fn, scope)
    if not callable(fn):
        raise StrategyError(
            f"autoshard.recompute takes a function or a module, not {type(fn).__name__}. Give it"
            " the layer's function.",
            user_line(),
        )
    return cast(F, functools.wraps(fn, updated=())(_checkpointed(fn, scope)))


def _checkpointed(fn: Callable[..., Any], scope: str) -> Callable[..., Any]:
    @jax.checkpoint
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with jax.named_scope(scope):
            return fn(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return cast(Any, run)(args, kwargs)

    return call


def _module(module: Any, scope: str) -> Any:
    """A module with the same arrays whose ``__call__`` is checkpointed."""
    base: Any = cast(Any, type(module))
    is_nnx = "flax.nnx" in sys.modules and isinstance(module, sys.modules["flax.nnx"].Module)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_nnx:
            return _checkpointed(base.__call__, scope)(self, *args, **kwargs)
        nnx = sys.modules["flax.nnx"]
        graph, state = nnx.split(self)

        def pure(state: Any, args: Any, kwargs: Any) -> Any:
            inner = nnx.merge(graph, state)
            result = base.__call__(inner, *args, **kwargs)
            return result, nnx.state(inner)

        result, after = _checkpointed(pure, scope)(state, args, kwargs)
        nnx.update(self, after)
        return result

    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    kind: Any = type(base)(base.__name__, (base,), {**names, "__call__": __call__})
    if is_nnx:
        view: Any = copy.copy(module)
        object.__setattr__(view, "__class__", kind)
        return view
    view = object.__new__(kind)
    for name, value in cast(dict[str, Any], vars(module)).items():
        object.__setattr__(view, name, value)
    return view
