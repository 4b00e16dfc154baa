"""The compiler in the loop: plans of several kinds are compiled, and the best one is taken.

    plans       the search's own, and the fastest ones in other ways: on meshes of other shapes
    compiled    each in a process of its own, for devices that need not be here
    taken       the shortest step as scheduled (verify/schedule) of those that fit as compiled

So the plan that is taken is behind none of the others, as far as the simulated schedule goes.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from autoshard.cluster import Cluster
from autoshard.errors import CompileError, DoesNotFitError, PassOptionError
from autoshard.ir import warn
from autoshard.ir.boundary import untie_unequal
from autoshard.planned.summary import PlanSummary
from autoshard.search.automatic import Planned
from autoshard.verify.ahead_of_time import TIME_LIMIT_SECONDS, compile_in_subprocess
from autoshard.verify.verification import Verification, verify_module

MOST_AXES = 3
"""Axes of the meshes that are tried."""

_SAME = 1e-9
"""Plans whose seconds and bytes differ by less than this part are one plan."""

_CORES_A_COMPILER = 4

State = Literal["waiting", "compiling", "compiled", "failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan that is compiled, or was to be."""

    mesh: str
    modelled_seconds: float
    """Seconds of its step, as planned."""
    state: State = "waiting"
    fits: bool | None = None
    """As compiled; None where that is not known."""
    nothing_hidden_seconds: float | None = None
    """The three numbers of its compiled step are None where there is no program to read."""
    scheduled_seconds: float | None = None
    all_hidden_seconds: float | None = None
    why: str = ""
    """Why it was not compiled, or cannot be compared."""
    is_taken: bool = False


@dataclass(frozen=True, slots=True)
class Refinement:
    """What became of the plans that were compiled."""

    attempts: tuple[Attempt, ...]
    """The search's own plan first, then the fastest by the model."""
    ended: Literal["all", "seconds", "interrupt"]
    """Whether all were compiled, or time ran out, or Ctrl-C was pressed."""

    @property
    def taken(self) -> Attempt:
        """The plan that was taken."""
        return next(one for one in self.attempts if one.is_taken)

    def __rich__(self) -> Any:
        """A table for a terminal."""
        from autoshard.report.refinement_table import refinement_table

        return refinement_table(self.attempts)

    def __str__(self) -> str:
        """The same table as text."""
        from autoshard.report.plan_table import render
        from autoshard.report.refinement_table import refinement_table

        return render(refinement_table(self.attempts))


Show = Callable[[Sequence[Attempt]], None]
"""Called with all attempts when one of them changes."""

Way = TypeVar("Way")
"""How a plan is made, such as the shape of its mesh."""

Verify = Callable[[Planned, float, threading.Event], Verification]
"""Compiles a plan within so many seconds, until the event says to stop."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be compiled.

    Raises:
        PassOptionError: A number out of its range.
    """

    compiles: int = 4
    """Plans that are compiled."""
    seconds: float | None = None
    """After which nothing more begins, and what runs is stopped; None: as long as it takes."""
    processes: int | None = None
    """Compilers at a time; None: one for every four cores."""

    def __post_init__(self) -> None:
        for name, value, holds in (
            ("compiles", self.compiles, self.compiles >= 1),
            ("seconds", self.seconds, self.seconds is None or self.seconds > 0),
            ("processes", self.processes, self.processes is None or self.processes >= 1),
        ):
            if not holds:
                raise PassOptionError(f"refine: {name}={value} is out of range. Give more than 0.")

    @property
    def at_a_time(self) -> int:
        """Compilers that run beside each other."""
        cores = os.cpu_count() or 1
        return min(self.compiles, self.processes or max(1, cores // _CORES_A_COMPILER))


def verifier(
    cluster: Cluster,
    *,
    use_shardy: bool = True,
    device_order: Sequence[int] | None = None,
    compiler_options: Mapping[str, str] | None = None,
    trip_count: int = 100,
) -> Verify:
    """Compiles for a cluster; see ``verify_module``."""

    def verify(planned: Planned, timeout: float, stop: threading.Event) -> Verification:
        return verify_module(
            planned.module,
            cluster,
            use_shardy=use_shardy,
            timeout=timeout,
            trip_count=trip_count,
            device_order=device_order,
            compiler_options=compiler_options,
            compiler=partial(compile_in_subprocess, stop=stop),
        )

    return verify


def refine(
    first: Planned,
    plan_in: Callable[[Way], Planned],
    ways: Sequence[Way],
    verify: Verify,
    budget: Budget,
    show: Show | None = None,
) -> tuple[Planned, Refinement]:
    """Compile plans of several kinds and take the best one.

    Args:
        first: What the search found with nothing given.
        plan_in: Plans in one of the ways, as on a mesh of a shape, ``2x4``.
        ways: All to try.
        verify: Compiles.
        budget: How much.
        show: Shows how far it is; None: a table, where there is a terminal.

    Returns:
        The plan of the shortest step as scheduled, of those that fit as compiled; ``first``, with a
        warning, where none was compiled that fits.

    Raises:
        CompileError: The compiler is not installed.
    """
    if show is None:
        from autoshard.report.refinement_table import shown_attempts

        with shown_attempts() as on_terminal:
            return refine(first, plan_in, ways, verify, budget, on_terminal)
    deadline = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
    ended: Literal["all", "seconds", "interrupt"] = "all"
    run = _Run([first], verify, deadline, show)
    try:
        run.add(_others(first, plan_in, ways, budget.compiles - 1, deadline))
        run.compile(budget.at_a_time)
        if time.monotonic() >= deadline:
            ended = "seconds"
    except KeyboardInterrupt:
        ended = "interrupt"
    taken = run.take()
    return run.plans[taken], Refinement(tuple(run.attempts), ended)


def mesh_shapes(cluster: Cluster) -> tuple[str, ...]:
    """Every mesh of up to ``MOST_AXES`` axes that joins neighbours of the search's axes.

    Example: ``h100:8`` has 8, 2x4, 4x2 and 2x2x2; one device has none.
    """
    sizes = [axis.size for axis in cluster.level_mesh().axes]
    found: dict[str, None] = {}

    def add(start: int, groups: tuple[int, ...]) -> None:
        if groups and start == len(sizes):
            found["x".join(map(str, groups))] = None
        elif len(groups) < MOST_AXES:
            for end in range(start + 1, len(sizes) + 1):
                add(end, (*groups, math.prod(sizes[start:end])))

    add(0, ())
    return tuple(sorted(found, key=lambda shape: (shape.count("x"), shape)))


def _others(
    first: Planned,
    plan_in: Callable[[Way], Planned],
    ways: Sequence[Way],
    number: int,
    deadline: float,
) -> list[Planned]:
    """The fastest plans in other ways, as many as are asked for; none of them is another one."""
    found: list[Planned] = []
    for way in ways if number else ():
        if time.monotonic() >= deadline:
            break
        try:
            planned = plan_in(way)
        except DoesNotFitError:
            continue
        if not any(_same(_summary(planned), _summary(one)) for one in (first, *found)):
            untie_unequal(planned.module)
            found.append(planned)
    return sorted(found, key=lambda one: _summary(one).step_seconds)[:number]


def _summary(planned: Planned) -> PlanSummary:
    assert planned.summary is not None
    return planned.summary


def _same(one: PlanSummary, other: PlanSummary) -> bool:
    """Whether two plans cost the same in all that is known of them."""
    numbers = (
        (one.compute_seconds, other.compute_seconds),
        (one.communication_seconds, other.communication_seconds),
        (one.peak_bytes_per_device, other.peak_bytes_per_device),
    )
    return all(math.isclose(a, b, rel_tol=_SAME) for a, b in numbers)


class _Run:
    """The plans while they are compiled."""

    def __init__(
        self, plans: Sequence[Planned], verify: Verify, deadline: float, show: Show
    ) -> None:
        self.plans: list[Planned] = []
        self.attempts: list[Attempt] = []
        self.verify = verify
        self.deadline = deadline
        self.show = show
        self.stop = threading.Event()
        self.add(plans)

    def add(self, plans: Sequence[Planned]) -> None:
        """Plans to compile as well."""
        self.plans += plans
        summaries = [_summary(one) for one in plans]
        self.attempts += [Attempt(one.mesh, one.step_seconds) for one in summaries]
        self.show(self.attempts)

    def compile(self, processes: int) -> None:
        """Compile all plans.

        Raises:
            CompileError: The compiler is not installed.
            KeyboardInterrupt: With all compilers stopped.
        """
        waiting = list(range(len(self.plans)))
        running: dict[Future[Attempt], int] = {}
        with ThreadPoolExecutor(processes) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < processes:
                        number = waiting.pop(0)
                        self._set(number, replace(self.attempts[number], state="compiling"))
                        running[pool.submit(self._one, number)] = number
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._set(running.pop(future), future.result())
            finally:
                self.stop.set()

    def _set(self, number: int, attempt: Attempt) -> None:
        self.attempts[number] = attempt
        self.show(self.attempts)

    def _one(self, number: int) -> Attempt:
        """Compile one plan; what the compiler refuses is an answer."""
        attempt = self.attempts[number]
        left = self.deadline - time.monotonic()
        if left <= 0:
            return replace(attempt, state="failed", why="out of time")
        try:
            found = self.verify(self.plans[number], min(left, TIME_LIMIT_SECONDS), self.stop)
        except CompileError as error:
            if error.reason == "not installed":
                raise
            return replace(attempt, state="failed", why=f"{error.reason}: {error.message}")
        attempt = replace(attempt, state="compiled", fits=found.fits)
        if found.schedule is None:
            return replace(attempt, why=found.program.no_hlo_text or "does not fit")
        return replace(
            attempt,
            nothing_hidden_seconds=found.schedule.nothing_hidden_seconds,
            scheduled_seconds=found.schedule.scheduled_seconds,
            all_hidden_seconds=found.schedule.all_hidden_seconds,
            why="" if found.fits else "does not fit",
        )

    def take(self) -> int:
        """The number of the best plan so far, which is marked."""
        compared = [
            (one.scheduled_seconds, number)
            for number, one in enumerate(self.attempts)
            if one.fits and one.scheduled_seconds is not None
        ]
        if not compared:
            said = "; ".join(f"{one.mesh}: {one.why or one.state}" for one in self.attempts)
            warn(
                "refine: no plan was compiled that fits and can be compared, so the one of the"
                f" search stays. {said}."
            )
        _, taken = min(compared, default=(0.0, 0))
        self._set(taken, replace(self.attempts[taken], is_taken=True))
        return taken
