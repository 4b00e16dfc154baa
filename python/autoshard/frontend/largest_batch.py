"""``autoshard.largest_batch``: how many examples a step may have on a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.errors import (
    AutoshardError,
    DoesNotFitError,
    PlanError,
    ShardingError,
    StrategyError,
    TracingError,
)
from autoshard.frontend.argnums import whole_number
from autoshard.frontend.batch_arrays import batch_of_source, rows_of, with_batch
from autoshard.frontend.chosen_micro_batches import within_memory
from autoshard.frontend.lower import Source, Traced, traced_for
from autoshard.frontend.plan import Plan
from autoshard.frontend.planning import plan_source
from autoshard.frontend.request import Request
from autoshard.ir.lowering import line_of_error
from autoshard.progress import running, task

_MOST = 1 << 20
"""Examples that are tried at most, unless the user says so."""


@dataclass(frozen=True, slots=True)
class TriedBatch:
    """A step of so many examples as it would be planned."""

    batch: int
    """Examples: dim 0 of the arrays that hold the batch."""
    mesh: str = ""
    """What the plan chose; empty where there is none."""
    micro_batches: int = 1
    step_seconds: float | None = None
    """None where no plan fits."""
    peak_bytes: float | None = None
    """On one device; of what does not fit, of the plan that needs least."""
    reason: str = ""
    """Why there is no plan."""

    @property
    def fits(self) -> bool:
        """Is there a plan?"""
        return self.step_seconds is not None

    @property
    def seconds_per_example(self) -> float | None:
        """A step over its examples; None where no plan fits."""
        return None if self.step_seconds is None else self.step_seconds / self.batch


@dataclass(frozen=True, repr=False)
class LargestBatch:
    """Batches of several sizes, each planned: the largest that fits, and the one that pays most."""

    name: str
    """The function."""
    size: int
    """Examples of the largest batch that fits."""
    plan: Plan
    """Its plan."""
    best_size: int
    """Examples of the batch with the fewest seconds an example; of equal ones the smallest."""
    best: Plan
    """Its plan."""
    multiple_of: int
    """What sizes between the doublings are multiples of."""
    tried: tuple[TriedBatch, ...]
    """Smallest first."""

    def __repr__(self) -> str:
        """In one line."""
        return f"<largest batch of {self.name}: {self.size} fit, {self.best_size} pay most>"

    def __rich__(self) -> Any:
        """A row a size."""
        from autoshard.report.what_if_table import largest_batch_table

        return largest_batch_table(self)

    def __str__(self) -> str:
        """The same as text."""
        from autoshard.report.plan_table import render

        return render(self.__rich__())


def largest_batch(
    fn: Callable[..., Any],
    *args: Any,
    multiple_of: int | None = None,
    at_most: int = _MOST,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **options: Any,
) -> LargestBatch:
    """The most examples with which a step fits the memory, and the number that pays most.

    The function is traced and planned for batches of other sizes, dim 0 of the arrays that hold it:
    twice as many as long as they fit, or half as many until they do; then the sizes between the
    largest that fits and the smallest that does not, by halves. Nothing is allocated, and no device
    is needed.

    Args:
        fn: A function of arrays, as ``autoshard.plan`` takes it, that takes sizes from its
            arguments.
        args: Its arguments: arrays, or ``jax.ShapeDtypeStruct``s in their place, with the batch to
            begin with. Which of them hold the batch is ``batch_argnums``, or those that no result
            replaces.
        multiple_of: Sizes are multiples of it. None: of the pieces into which the plan cuts the
            batch, times its rounds.
        at_most: Sizes above are not tried.
        static_argnums: As in ``jax.jit``.
        static_argnames: As in ``jax.jit``.
        donate_argnums: As in ``jax.jit``.
        donate_argnames: As in ``jax.jit``.
        options: Of ``autoshard.plan``, for every size: ``cluster``, ``batch_argnums``,
            ``recompute``, ``micro_batches``, ..

    Raises:
        DoesNotFitError: Not even the smallest batch fits.
        PlanError: An option that is none, or nothing tells which arguments hold the batch.
        TracingError: The function cannot be traced with another batch, as where a size is written
            in it.

    Example:
        ``autoshard.largest_batch(train_step, params, state, batch, cluster="h100:8").best``
    """
    try:
        request = Request(**options)
    except TypeError as error:
        raise PlanError(f"largest_batch: {error}. Options are those of autoshard.plan.") from error
    if request.pipeline is not None:
        raise PlanError("largest_batch: pipeline= is not supported. Leave it out.")
    for name, value in (("multiple_of", multiple_of), ("at_most", at_most)):
        if value is not None and (whole_number(value) or 0) < 1:
            raise PlanError(f"largest_batch: {name}={value!r}. Give 1 or more.")
    traced = traced_for(
        fn,
        (args, {}),
        static=(static_argnums, static_argnames),
        donate=(donate_argnums, donate_argnames),
    )
    with task(f"largest batch of {getattr(fn, '__name__', 'a function')}"):
        return _Sizes(request, traced, multiple_of, at_most).found()


class _Sizes:
    """Plans one function for batches of many sizes."""

    def __init__(
        self, request: Request, traced: Traced, multiple_of: int | None, at_most: int
    ) -> None:
        self.traced = traced
        self.multiple_of = multiple_of
        self.at_most = at_most
        self.first: Source = traced.source(request)
        if self.first.cluster is None:
            raise PlanError(
                f"{self.first.name}: the largest batch needs a cluster: without one nothing is"
                ' known of memory. Give cluster="v5e:4x4" or the like.'
            )
        self.request = within_memory(self.first, request)
        self.held = batch_of_source(self.first, request.batch_argnums)
        with_batch(self.first, traced, self.held, 1)  # says what is wrong with them
        self.given = rows_of(self.first, self.held)[0]
        self.tried: dict[int, TriedBatch] = {}
        self.failed: DoesNotFitError | None = None
        """The error of the last size that does not fit."""
        self.largest: tuple[int, Plan] | None = None
        self.best: tuple[float, int, Plan] | None = None
        """Seconds an example, the size and its plan."""

    def found(self) -> LargestBatch:
        """Try all sizes that it takes.

        Raises:
            DoesNotFitError: None fits.
        """
        low, high = self._ends()
        assert self.largest is not None
        unit = self.multiple_of or _rounds_and_pieces(self.largest[1])
        fits, fits_no_more = low // unit, math.ceil(high / unit)
        while fits_no_more - fits > 1:
            middle = (fits + fits_no_more) // 2
            if self._fits(middle * unit):
                fits = middle
            else:
                fits_no_more = middle
        assert self.best is not None
        return LargestBatch(
            name=self.first.name,
            size=self.largest[0],
            plan=self.largest[1],
            best_size=self.best[1],
            best=self.best[2],
            multiple_of=unit,
            tried=tuple(self.tried[size] for size in sorted(self.tried)),
        )

    def _ends(self) -> tuple[int, int]:
        """A size that fits, and a larger one that does not, or that is too large to be tried."""
        unit = self.multiple_of or self.request.micro_batch_count
        most = self.at_most // unit * unit
        if not most:
            raise PlanError(
                f"{self.first.name}: no multiple of {unit} is at most {self.at_most} examples. Give"
                " another multiple_of or at_most."
            )
        size = min(max(unit, self.given // unit * unit), most)
        if self._fits(size):
            while size < most:
                size, low = min(2 * size, most), size
                if not self._fits(size):
                    return low, size
            return most, most + 1
        while size > unit:
            size, high = max(unit, size // 2 // unit * unit), size
            if self._fits(size):
                return size, high
        assert self.failed is not None
        raise _not_even(size, self.first.name, self.failed) from self.failed

    def _fits(self, size: int) -> bool:
        """Plan this size."""
        running().says(f"a batch of {size}")
        traced = with_batch(self.first, self.traced, self.held, size)
        try:
            source = self._source(traced, size)
            plan = plan_source(source, self.request, traced, advises=False)
        except DoesNotFitError as error:
            self.failed = error
            self.tried[size] = TriedBatch(size, peak_bytes=error.peak_bytes, reason="does not fit")
            return False
        except (PlanError, ShardingError, StrategyError) as error:
            if not self.tried:
                raise  # it is not about the size
            self.tried[size] = TriedBatch(size, reason=str(error))
            return False
        count = 1 if plan.batch is None else plan.batch.micro_batches
        step = plan.step_seconds
        self.tried[size] = TriedBatch(size, str(plan.mesh), count, step, plan.peak_bytes)
        if self.best is None or (step / size, size) < self.best[:2]:
            self.best = step / size, size, plan
        if self.largest is None or size > self.largest[0]:
            self.largest = size, plan
        return True

    def _source(self, traced: Traced, size: int) -> Source:
        """The function lowered for a batch of this size.

        Raises:
            TracingError: It cannot be, as where sizes are written in it.
        """
        if size == self.given:
            return self.first
        try:
            return traced.source(self.request)
        except AutoshardError:
            raise
        except Exception as error:
            name = self.first.name
            said = f"{type(error).__name__}: {error}".rstrip(".")
            raise TracingError(
                f"{name}: with a batch of {size} in place of {self.given} it cannot be traced:"
                f" {said}. Take sizes from the arguments, x.shape[0], in place of numbers; or plan"
                f" {name} for each size with autoshard.plan.",
                line_of_error(error),
            ) from error


def _not_even(size: int, name: str, error: DoesNotFitError) -> DoesNotFitError:
    return DoesNotFitError(
        f"{name}: not even a batch of {size} fits: {error.found}",
        error.location,
        error.peak_bytes,
        error.memory_limit,
        advice=error.advice,
        micro_batches=error.micro_batches,
    )


def _rounds_and_pieces(plan: Plan) -> int:
    """What a batch is a multiple of, cut and worked through as by a plan."""
    return 1 if plan.batch is None else plan.batch.size // plan.batch.micro_batch
