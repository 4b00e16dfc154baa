"""``autoshard.pipeline_stage``: say on which stage of a pipeline something is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

from autoshard.errors import StrategyError
from autoshard.frontend.argnums import whole_number
from autoshard.frontend.marked_module import is_module, module_with_marked_call
from autoshard.ir.lowering import user_line
from autoshard.ir.stage_mark import bind

T = TypeVar("T")


def pipeline_stage(what: T, stage: int) -> T:
    """``what``, computed on one stage of a pipeline, forwards and backwards.

    A function or module is on the stage from its arguments to its results; of arrays that are
    marked, this is where they are made or arrive. What no mark says follows: a micro-batch goes
    through the stages in their order, and back. Marks hold under every JAX transformation. Without
    a pipeline they say nothing, and neither do they to plain ``jax.jit``.

    Args:
        what: A function, method, flax ``nnx`` or equinox module, which comes back as one that is
            called alike; or arrays in a pytree.
        stage: From 0; the pipeline that is asked for must have it. Where each stage has several
            parts of the model (``chunks``), the number of a part: part ``n`` is on stage
            ``n % stages``.

    Raises:
        StrategyError: ``stage`` is no number of a stage. The message starts with the user's
            ``file:line``.

    Example:
        ``blocks = [autoshard.pipeline_stage(block, n // 4) for n, block in enumerate(blocks)]``
    """
    number = whole_number(stage)
    if number is None or number < 0:
        raise StrategyError(
            f"autoshard.pipeline_stage: stage {stage!r} is no number of a stage. Give 0 or more.",
            user_line(),
        )
    if not callable(what):
        return jax.tree.map(functools.partial(_marked, stage=number), what)

    def call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = pipeline_stage((args, kwargs), number)
        return pipeline_stage(fn(*args, **kwargs), number)

    if is_module(what):
        return cast(T, module_with_marked_call(what, lambda args, kwargs: (call, _as_it_is), []))

    @functools.wraps(what, updated=())
    def marked(*args: Any, **kwargs: Any) -> Any:
        return call(what, args, kwargs)

    return cast(T, marked)


def _marked(leaf: Any, stage: int) -> Any:
    is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    return bind(leaf, stage) if is_array else leaf


def _as_it_is(path: str, array: Any) -> Any:
    return array
