"""What of autoshard's own would make a program fit: tried when no plan does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from autoshard.errors import DoesNotFitError, PassOptionError, PlanError
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.planned.summary import bytes_text, seconds_text


def with_switches(
    error: DoesNotFitError,
    request: Request,
    plan: Callable[[Request], Plan],
    is_over: Callable[[], bool] = lambda: False,
) -> DoesNotFitError:
    """The error, with what each switch that was not given would take.

    Both together are tried where neither is enough.

    Args:
        error: No plan fits.
        request: What was asked.
        plan: Plans for another request.
        is_over: Is it time to try nothing more?
    """
    if request.micro_batches == "auto" and error.micro_batches is not None:
        request = request.with_micro_batches(error.micro_batches)
    said: list[str] = []
    fits = False
    for options in _switches(request, error):
        if is_over():
            break
        if fits and len(options) > 1:
            continue
        text, more = "", options
        while more and not is_over():
            name = ", ".join(f"{option}={value!r}" for option, value in more.items())
            try:
                found = plan(replace(request, **more))
            except DoesNotFitError as other:
                text = f"{name} needs {bytes_text(other.peak_bytes)}"
                more = _in_more_parts(more, error, other)
            except (PlanError, PassOptionError):  # it does not go with what was asked
                break
            else:
                step, needed = seconds_text(found.step_seconds), bytes_text(found.peak_bytes)
                text, more = f"{name} fits, with {needed} and a step of {step}", {}
                fits = True
        said += [text] if text else []
    if not said:
        return error
    advice = f"Of autoshard's own: {'; '.join(said)}."
    return DoesNotFitError(
        error.found,
        error.location,
        error.peak_bytes,
        error.memory_limit,
        advice=f"{advice} {error.advice}".rstrip(),
        micro_batches=error.micro_batches,
    )


def _switches(request: Request, error: DoesNotFitError) -> Iterator[dict[str, Any]]:
    recompute = {} if _is_auto(request.recompute) else {"recompute": "auto"}
    host = {} if _is_auto(request.host_offload) else {"host_offload": "auto"}
    level = {} if request.optimizer_parallel is not None else {"optimizer_parallel": 3}
    is_whole = request.micro_batches == 1 and error.micro_batches is None
    micro = {"micro_batches": _micro_batches(error)} if is_whole else {}
    yield from filter(None, (recompute, host, level, micro))
    if recompute and host:
        yield {**recompute, **host}


def _micro_batches(error: DoesNotFitError) -> int:
    """The power of two above what is needed over what there is: not all of it is activations."""
    return 2 << max(0, math.floor(math.log2(error.peak_bytes / error.memory_limit)))


def _in_more_parts(
    options: dict[str, Any], whole: DoesNotFitError, cut: DoesNotFitError
) -> dict[str, Any]:
    """The power of two of micro-batches with which it should fit, if any does: what each of them
    makes shrinks with their number, by what the whole batch needs and what these need."""
    count = options.get("micro_batches", 1)
    if count == 1:
        return {}
    of_whole = (whole.peak_bytes - cut.peak_bytes) / (1 - 1 / count)
    left = whole.memory_limit - (whole.peak_bytes - of_whole)
    if of_whole <= 0 or left <= 0:
        return {}
    return {"micro_batches": max(2 * count, 1 << math.ceil(math.log2(of_whole / left)))}


def _is_auto(value: Any) -> bool:
    return value == "auto" or getattr(value, "choose", None) == "auto"
