"""``autoshard.in_host_memory`` and ``autoshard.on_host``: what is kept, and done, by the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import jax

from autoshard.ir.host_mark import bind, computed_on_host
from autoshard.ir.lowering import marks_are_lowered

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def in_host_memory(tree: T) -> T:
    """Arrays that live in the memory of the host between steps, such as optimizer states.

    ``tree`` itself, marked: arguments or results of the function that is given to
    ``autoshard.jit``. A result that replaces a marked argument stays there, too. Where the device
    needs one, it is copied. Plain ``jax.jit`` does not see the mark.

    Args:
        tree: Arrays in a pytree; numbers are left as they are.

    Example:
        def train_step(params, state, batch):
            state = autoshard.in_host_memory(state)
    """
    return jax.tree.map(_marked, tree)


def _marked(leaf: Any) -> Any:
    # A scalar costs a transfer and saves nothing.
    return bind(leaf) if getattr(leaf, "ndim", 0) else leaf


def on_host(fn: Callable[P, R]) -> Callable[P, R]:
    """``fn``, computed by the host, on arrays in its memory: a lookup in a large table.

    An argument of the program that only such functions read is kept in the memory of the host.
    Derivatives are computed by the host as well. Outside of ``autoshard.jit`` and
    ``autoshard.plan`` it is just ``fn``.

    Example:
        look_up = autoshard.on_host(lambda table, rows: table[rows])
    """
    jitted = cast(Callable[P, R], jax.jit(fn))

    @functools.wraps(fn, updated=())
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not marks_are_lowered():
            return fn(*args, **kwargs)
        with computed_on_host():
            return jitted(*args, **kwargs)

    return called
