"""The compiler in the loop: plans of several kinds are compiled, and the best one is taken.

    first       the search's own plan is compiled; what comes out corrects the costs of this
                program: seconds of products and of other ops, bytes that a device needs besides
    again       the search's own once more, and plans in other ways, on meshes of other shapes and
                in forms that experts write (search/forms.py), by the corrected costs
    compiled    the fastest of these, unlike ones first, each in a process of its own, for devices
                that need not be here; each of them corrects the costs of those that follow
                (search/corrections.py), which are planned once more by these; what does not fit
                is planned again with the bytes that it lacked
    options     the best one once more with each set of the compiler's options that is given
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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from autoshard.cluster import Cluster
from autoshard.cluster.corrections import AS_MODELLED, Corrections
from autoshard.compilers.options import CompilerOptions, read_compiler_options
from autoshard.errors import CompileError, DoesNotFitError, PassOptionError
from autoshard.ir import warn
from autoshard.ir.boundary import untie_unequal
from autoshard.planned.summary import PlanSummary
from autoshard.search.automatic import Planned
from autoshard.search.corrections import Measured, corrections_of
from autoshard.verify.ahead_of_time import TIME_LIMIT_SECONDS, compile_in_subprocess
from autoshard.verify.verification import Verification, verify_module

_SAME = 1e-9
"""Plans whose seconds and bytes differ by less than this part are one plan."""

_ALIKE = 1e-3
"""Plans whose seconds and bytes differ by less than this part of the step and of the memory are of
one kind: another one is compiled first."""

_CORES_A_COMPILER = 4

_AGAIN = "again"
"""A plan in a way that was compiled before, by other costs."""

State = Literal["waiting", "compiling", "compiled", "failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan that is compiled, or was to be."""

    mesh: str
    modelled_seconds: float
    """Seconds of its step, as planned, with the corrections that were known then."""
    modelled_scheduled_seconds: float = 0.0
    """The same as scheduled."""
    modelled_peak_bytes: float = 0.0
    """Bytes of a device, as planned, with what the compiler was known to need besides."""
    kind: str = ""
    """What is not the search's own on a mesh: ``again``, by costs that were corrected since;
    ``fsdp``, ``data``: the arguments are cut so; the compiler's options, or the name of a set."""
    state: State = "waiting"
    fits: bool | None = None
    """As compiled; None where that is not known."""
    compiled_peak_bytes: int | None = None
    """Bytes that the compiled program needs of a device."""
    nothing_hidden_seconds: float | None = None
    """The three numbers of its compiled step are None where there is no program to read."""
    scheduled_seconds: float | None = None
    all_hidden_seconds: float | None = None
    why: str = ""
    """Why it was not compiled, or cannot be compared."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the compiler, besides those of all."""
    is_taken: bool = False


@dataclass(frozen=True, slots=True)
class Refinement:
    """What became of the plans that were compiled."""

    attempts: tuple[Attempt, ...]
    """The search's own plan first, then the fastest by the model, then the best one with other
    options of the compiler."""
    ended: Literal["all", "seconds", "interrupt"]
    """Whether all were compiled, or time ran out, or Ctrl-C was pressed."""
    corrections: Corrections | None = None
    """Costs by the program that was taken over those modelled; None where nothing was measured."""

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

Verify = Callable[[Planned, float, threading.Event, Mapping[str, Any]], Verification]
"""Compiles a plan within so many seconds, until the event says to stop, with options besides."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be compiled.

    Raises:
        PassOptionError: A number out of its range.
        PlanError: No set of options is called so.
    """

    compiles: int = 4
    """Plans that are compiled."""
    seconds: float | None = None
    """After which nothing more begins, and what runs is stopped; None: as long as it takes."""
    processes: int | None = None
    """Compilers at a time; None: one for every four cores."""
    options: tuple[CompilerOptions, ...] = ()
    """Sets of the compiler's options with each of which the best plan is compiled once more."""

    def __post_init__(self) -> None:
        for name, value, holds in (
            ("compiles", self.compiles, self.compiles >= 1),
            ("seconds", self.seconds, self.seconds is None or self.seconds > 0),
            ("processes", self.processes, self.processes is None or self.processes >= 1),
        ):
            if not holds:
                raise PassOptionError(f"refine: {name}={value} is out of range. Give more than 0.")
        for options in self.options:
            read_compiler_options(options)  # says what is wrong with them

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

    def verify(
        planned: Planned, timeout: float, stop: threading.Event, besides: Mapping[str, Any]
    ) -> Verification:
        return verify_module(
            planned.module,
            cluster,
            use_shardy=use_shardy,
            timeout=timeout,
            trip_count=trip_count,
            device_order=device_order,
            compiler_options=dict(compiler_options or {}) | dict(besides),
            compiler=partial(compile_in_subprocess, stop=stop),
        )

    return verify


@dataclass(frozen=True)
class Search(Generic[Way]):
    """How plans of a program are made."""

    plan_in: Callable[[Way, Corrections], Planned]
    """A plan in one of the ways, such as on a mesh of a shape, with corrected costs.

    Raises:
        DoesNotFitError: No such plan fits.
    """
    ways: Sequence[Way]
    """All to try, besides that of the search's own plan."""
    own: Way | None = None
    """The way of the search's own plan; None: it is not made again, and costs stay as modelled."""
    measure: Callable[[Planned, Verification], Measured] | None = None
    """What a compiled program says of the costs; None: they stay as modelled."""
    kind_of: Callable[[Way], str] = lambda _: ""
    """What a way is called, where its mesh does not say all: ``fsdp``."""
    memory_limit: float = math.inf
    """Bytes of a device that the user allows."""


def refine(
    first: Planned,
    search: Search[Way],
    verify: Verify,
    budget: Budget,
    show: Show | None = None,
) -> tuple[Planned, Refinement]:
    """Compile plans of several kinds, correct the costs by what comes out, and take the best one.

    Args:
        first: What the search found with nothing given.
        search: Makes the others.
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
            return refine(first, search, verify, budget, on_terminal)
    deadline = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
    ended: Literal["all", "seconds", "interrupt"] = "all"
    run = _Run(search, verify, budget, deadline, show)
    try:
        run.all_of(first)
        run.with_options()
        if time.monotonic() >= deadline:
            ended = "seconds"
    except KeyboardInterrupt:
        ended = "interrupt"
    taken = run.take()
    best = run.tried[taken]
    said = None if best.measured is None else corrections_of([best.measured])
    return best.planned, Refinement(tuple(run.attempts), ended, said)


def _summary(planned: Planned) -> PlanSummary:
    assert planned.summary is not None
    return planned.summary


@dataclass(slots=True)
class _Candidate(Generic[Way]):
    """A plan that is compiled, or waits to be."""

    way: Way | None
    planned: Planned
    kind: str
    corrections: Corrections
    """Those that it was planned with."""
    measured: Measured | None = None
    """What its compiled program says."""
    lacked_bytes: float | None = None
    """What plans in this way were seen to need besides; None: as all others."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the compiler, besides those of all."""

    @property
    def seconds(self) -> float:
        """A step as scheduled, as modelled."""
        made = _summary(self.planned)
        return made.scheduled_seconds or made.step_seconds

    def attempt(self) -> Attempt:
        """What is known of it before it is compiled."""
        made = _summary(self.planned)
        peak = made.peak_bytes_per_device + self.corrections.memory_bytes
        return Attempt(
            *(made.mesh, made.step_seconds, self.seconds, peak, self.kind), options=self.options
        )

    def is_same(self, other: _Candidate[Way], part: float = _SAME) -> bool:
        """Whether two plans cost the same in all that is known of both, but for a part of it."""
        one, two = _summary(self.planned), _summary(other.planned)
        apart = abs(one.communication_seconds - two.communication_seconds)
        if self.corrections == other.corrections:
            apart = max(apart, abs(one.compute_seconds - two.compute_seconds))
        return apart <= part * two.step_seconds and math.isclose(
            one.peak_bytes_per_device, two.peak_bytes_per_device, rel_tol=part
        )


class _Run(Generic[Way]):
    """The plans while they are compiled."""

    def __init__(
        self, search: Search[Way], verify: Verify, budget: Budget, deadline: float, show: Show
    ) -> None:
        self.search = search
        self.verify = verify
        self.budget = budget
        self.deadline = deadline
        self.show = show
        self.tried: list[_Candidate[Way]] = []
        self.attempts: list[Attempt] = []
        self.waiting: list[_Candidate[Way]] = []
        self.stop = threading.Event()

    def all_of(self, first: Planned) -> None:
        """Compile the search's own plan, and then the best others by what that says.

        Raises:
            CompileError: The compiler is not installed.
            KeyboardInterrupt: With all compilers stopped.
        """
        search = self.search
        self._compile([_Candidate(search.own, first, "", _summary_corrections(first))])
        if self.budget.compiles == 1:
            return
        if search.own is not None and self._said() != self.tried[0].corrections:
            self._offer(search.own, _AGAIN)
        for way in search.ways:
            self._offer(way, search.kind_of(way))
        while self.waiting and (left := self.budget.compiles - len(self.tried)) > 0:
            self.waiting.sort(key=self._turn)
            count = min(left, self.budget.at_a_time)
            now, self.waiting = self.waiting[:count], self.waiting[count:]
            now = [one for one in map(self._by_newest_costs, now) if one is not None]
            if not now:
                continue
            self._compile(now)
            for number, one in enumerate(self.attempts[-len(now) :], -len(now)):
                found = self.tried[number]
                if one.fits is False and found.way is not None and found.measured is not None:
                    lacked = found.measured.lacked_bytes
                    self._offer(found.way, found.kind or _AGAIN, lacked)

    def with_options(self) -> None:
        """Compile the best plan once more with each set of options.

        Raises:
            CompileError: The compiler is not installed.
            KeyboardInterrupt: With all compilers stopped.
        """
        best = self.best()
        if best is None or time.monotonic() >= self.deadline:
            return
        self._compile(
            [
                replace(
                    self.tried[best],
                    kind=_name_of(options),
                    options=read_compiler_options(options),
                    measured=None,
                )
                for options in self.budget.options
            ]
        )

    def _said(self, lacked_bytes: float | None = None) -> Corrections:
        """What all compiled programs say of the costs; of memory what is given, if anything."""
        measured = [one.measured for one in self.tried if one.measured is not None]
        said = corrections_of(measured) if measured else AS_MODELLED
        return said if lacked_bytes is None else replace(said, memory_bytes=lacked_bytes)

    def _by_newest_costs(self, candidate: _Candidate[Way]) -> _Candidate[Way] | None:
        """A plan in the same way by what was compiled since; None where that is another one's, or
        does not fit."""
        said = self._said(candidate.lacked_bytes)
        is_late = time.monotonic() >= self.deadline
        if candidate.way is None or is_late or said.is_near(candidate.corrections):
            return candidate
        made = self._planned(candidate.way, candidate.kind, candidate.lacked_bytes)
        return None if made is None or any(made.is_same(one) for one in self.tried) else made

    def _turn(self, candidate: _Candidate[Way]) -> tuple[bool, float]:
        """What is unlike all that was compiled comes first, then what is fastest."""
        is_alike = any(candidate.is_same(one, _ALIKE) for one in self.tried)
        return is_alike, candidate.seconds

    def _offer(self, way: Way, kind: str, lacked_bytes: float | None = None) -> None:
        """A plan in one way waits, if there is one that is none of the others."""
        if time.monotonic() >= self.deadline:
            return
        made = self._planned(way, kind, lacked_bytes)
        if made and not any(made.is_same(one) for one in (*self.tried, *self.waiting)):
            self.waiting.append(made)

    def _planned(self, way: Way, kind: str, lacked_bytes: float | None) -> _Candidate[Way] | None:
        """A plan in one way, by all that is known now; None where none fits."""
        said = self._said(lacked_bytes)
        try:
            planned = self.search.plan_in(way, said)
        except DoesNotFitError:
            return None
        untie_unequal(planned.module)
        return _Candidate(way, planned, kind, said, lacked_bytes=lacked_bytes)

    def _compile(self, candidates: Sequence[_Candidate[Way]]) -> None:
        waiting = list(range(len(self.tried), len(self.tried) + len(candidates)))
        self.tried += candidates
        self.attempts += [one.attempt() for one in candidates]
        self.show(self.attempts)
        running: dict[Future[Attempt], int] = {}
        at_a_time = self.budget.at_a_time
        with ThreadPoolExecutor(at_a_time) as pool:
            is_done = False
            try:
                while waiting or running:
                    while waiting and len(running) < at_a_time:
                        number = waiting.pop(0)
                        self._set(number, replace(self.attempts[number], state="compiling"))
                        running[pool.submit(self._one, number)] = number
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._set(running.pop(future), future.result())
                is_done = True
            finally:
                if not is_done:
                    self.stop.set()

    def _set(self, number: int, attempt: Attempt) -> None:
        self.attempts[number] = attempt
        self.show(self.attempts)

    def _one(self, number: int) -> Attempt:
        """Compile one plan; what the compiler refuses is an answer."""
        attempt, candidate = self.attempts[number], self.tried[number]
        left = self.deadline - time.monotonic()
        if left <= 0:
            return replace(attempt, state="failed", why="out of time")
        try:
            timeout = min(left, TIME_LIMIT_SECONDS)
            found = self.verify(candidate.planned, timeout, self.stop, candidate.options)
        except CompileError as error:
            if error.reason == "not installed":
                raise
            return replace(attempt, state="failed", why=f"{error.reason}: {error.message}")
        if self.search.measure is not None:
            candidate.measured = self.search.measure(candidate.planned, found)
        needed = found.program.needed_bytes
        fits = found.fits and needed <= self.search.memory_limit
        attempt = replace(attempt, state="compiled", fits=fits, compiled_peak_bytes=needed)
        if found.schedule is None:
            return replace(attempt, why=found.program.no_hlo_text or "does not fit")
        return replace(
            attempt,
            nothing_hidden_seconds=found.schedule.nothing_hidden_seconds,
            scheduled_seconds=found.schedule.scheduled_seconds,
            all_hidden_seconds=found.schedule.all_hidden_seconds,
            why="" if fits else "does not fit",
        )

    def best(self) -> int | None:
        """The number of the best plan so far; None where none was compiled that fits."""
        compared = [
            (one.scheduled_seconds, number)
            for number, one in enumerate(self.attempts)
            if one.fits and one.scheduled_seconds is not None
        ]
        return min(compared)[1] if compared else None

    def take(self) -> int:
        """The number of the best plan so far, which is marked; the first where none was compiled
        that fits, with a warning."""
        best = self.best()
        if best is None:
            said = "; ".join(f"{one.mesh}: {one.why or one.state}" for one in self.attempts)
            warn(
                "refine: no plan was compiled that fits and can be compared, so the one of the"
                f" search stays. {said}."
            )
        taken = best or 0
        self._set(taken, replace(self.attempts[taken], is_taken=True))
        return taken


def _name_of(options: CompilerOptions) -> str:
    """``maxtext-v6e``, ``xla_gpu_autotune_level=0``."""
    if isinstance(options, str):
        return options
    return " ".join(f"{name}={value}" for name, value in options.items())


def _summary_corrections(planned: Planned) -> Corrections:
    """Those that a plan was made with."""
    return _summary(planned).read_cluster().corrections
