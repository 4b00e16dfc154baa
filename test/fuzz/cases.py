"""Run one program with one configuration, and say how it went."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import jax

import autoshard
from autoshard.errors import PassError
from fuzz.comparison import judged
from fuzz.configurations import Configuration
from fuzz.one_device import is_of_one_device
from fuzz.outcomes import (
    BROKEN,
    DOES_NOT_FIT,
    EQUAL,
    OF_ONE_DEVICE,
    OWN_FAULT,
    REFUSED,
    TRACEBACK,
    WRONG,
    Outcome,
)
from fuzz.programs import Program, random_values
from fuzz.styles import arguments_of, run, styled


@dataclass(frozen=True)
class Case:
    """A program, its arguments and a configuration."""

    program: Program
    configuration: Configuration
    seed: int

    def values(self) -> list[Any]:
        return random_values(self.program, self.seed)


class Reference:
    """Results of unsharded runs; the last one is kept, for further plans of the program."""

    def __init__(self) -> None:
        self._of: tuple[Program, int] | None = None
        self._results: Any = None

    def results(self, case: Case) -> Any:
        if self._of is None or self._of[0] is not case.program or self._of[1] != case.seed:
            self._results = unsharded(case.program, case.values())
            self._of = (case.program, case.seed)
        return self._results


def unsharded(program: Program, values: list[Any]) -> Any:
    return run(program, jax.jit(styled(program)), values)


@contextmanager
def settings(case: Case) -> Iterator[None]:
    """JAX as the case wants it."""
    before: bool = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", case.configuration.is_shardy)
    try:
        with jax.enable_x64(case.program.x64):
            yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def run_case(case: Case, reference: Reference | None = None) -> Outcome:
    """Plan, compile, run and compare. May end or stop the process: XLA does so at times."""
    start = time.monotonic()
    with settings(case):
        try:
            expected = (reference or Reference()).results(case)
        except Exception as error:  # whatever is wrong with a random program is reported
            return Outcome(BROKEN, f"{type(error).__name__}: {error}"[:500])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = _compared(case, expected)
    texts = tuple(
        str(it.message) for it in caught if issubclass(it.category, autoshard.PlanMismatchWarning)
    )
    return replace(outcome, mismatches=texts, seconds=time.monotonic() - start)


def run_unsharded(case: Case) -> Outcome:
    """The program without a plan, as it is compared with; this, too, may end the process."""
    with settings(case):
        try:
            Reference().results(case)
        except Exception as error:  # as above
            return Outcome(BROKEN, f"{type(error).__name__}: {error}"[:500])
    return Outcome(EQUAL)


def _is_own_fault(error: autoshard.AutoshardError) -> bool:
    """Nobody wrote the module that a pass left, or the plan that does not hold."""
    is_pass = isinstance(error, PassError)
    return is_pass or (isinstance(error, autoshard.PlanError) and "does not hold" in str(error))


def _compared(case: Case, expected: Any) -> Outcome:
    program, values = case.program, case.values()
    try:
        step = planned_step(case)
        plan = step.plan(*arguments_of(program, values))
        found = run(program, step, values)
    except autoshard.DoesNotFitError as error:
        return Outcome(DOES_NOT_FIT, str(error))
    except autoshard.AutoshardError as error:
        said = f"{type(error).__name__}: {error}"
        return Outcome(OWN_FAULT if _is_own_fault(error) else REFUSED, said)
    except Exception as error:  # an error that is nobody's is what is looked for
        return Outcome(TRACEBACK, f"{type(error).__name__}: {error}"[:1500] + _places(error))
    is_cut = any(prod(it.sharding.tile) > 1 for it in (*plan.arguments, *plan.results))
    result, text = judged(program, values, expected, found)
    is_shardy = case.configuration.is_shardy
    if result == WRONG and is_of_one_device(program, step, values, expected, is_shardy):
        result = OF_ONE_DEVICE
    return Outcome(result, text, is_cut=is_cut)


def planned_step(case: Case) -> Any:
    """What ``autoshard.jit`` makes, with the limit of memory that the configuration asks for."""
    configuration, program = case.configuration, case.program
    fn = styled(program, configuration.marks)
    keywords = configuration.keywords(program)
    if configuration.limit_share is not None:
        keywords["memory_limit"] = memory_limit(case, fn, keywords)
    return autoshard.jit(fn, **keywords)


def memory_limit(case: Case, fn: Any, keywords: dict[str, Any]) -> int:
    """Bytes: a share of what the plan without a limit needs."""
    plain = {
        key: value
        for key, value in keywords.items()
        if key not in ("recompute", "host_offload", "donate_argnums")
    }
    plan = autoshard.plan(fn, *arguments_of(case.program, case.values()), **plain)
    assert case.configuration.limit_share is not None
    return max(64, int(plan.peak_bytes * case.configuration.limit_share))


def _places(error: BaseException) -> str:
    """The last lines of the traceback, without the folders."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return "".join(f"\n  {Path(it.filename).name}:{it.lineno} {it.name}" for it in frames)
