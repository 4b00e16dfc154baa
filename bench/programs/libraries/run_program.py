"""Run one program of a library in every mode, and print a line of JSON for each.

    python bench/programs/libraries/run_program.py NAME

``bench/quality/libraries.py`` runs this with the Python of the environment that it makes.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["KERAS_BACKEND"] = "jax"
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import jax
import numpy as np

import autoshard
from bench.programs.libraries import networks, science, training
from bench.programs.libraries.library_program import PROGRAMS, Flavour, LibraryProgram

DEVICES = 8
MODULES = (networks, training, science)
"""Imported for the programs that they register."""
CALLS = 30
ROUNDS = 5
MODES: dict[str, Callable[[tuple[int, ...], int], dict[str, Any]]] = {
    "auto": lambda batch, count: {"cluster": f"cpu:{DEVICES}"},
    "semi_auto": lambda batch, count: {
        "mesh": f"data={DEVICES}",
        "in_shardings": tuple(jax.P("data") if i in batch else None for i in range(count)),
    },
    "data_parallel": lambda batch, count: {
        "mode": "data_parallel",
        "cluster": f"cpu:{DEVICES}",
        "batch_argnums": batch,
    },
}
"""Options of a mode, of the batch's places and the number of arguments."""


@dataclass
class Outcome:
    """One program in one mode."""

    mode: str
    result: str = "equal"
    """``equal``, ``differs``, or ``refused: `` and the reason."""
    difference: float | None = None
    """Largest, relative to the largest number of its array."""
    first_seconds: float | None = None
    """First call: traced, planned, compiled and run."""
    plain_first_seconds: float | None = None
    call_microseconds: float | None = None
    """Time of the calling thread, for a call whose arguments lie as planned."""
    plain_call_microseconds: float | None = None
    mesh: str = ""
    warns: str = ""
    """What autoshard warned of, first lines."""


class Timed:
    """A jitted function; the first call is timed, the last one's arguments are kept."""

    def __init__(self, jitted: Callable[..., Any]) -> None:
        self.jitted = jitted
        self.first_seconds: float | None = None
        self.last: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> Any:
        self.last = args
        start = time.perf_counter()
        result = self.jitted(*args)
        if self.first_seconds is None:
            jax.block_until_ready(result)
            self.first_seconds = time.perf_counter() - start
        return result


class Runs:
    """The ``jit`` that a program is given; it is called once."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.timed: Timed | None = None
        self.batch: tuple[int, ...] = ()

    def __call__(
        self, fn: Callable[..., Any], batch: tuple[int, ...], flavour: Flavour = "jit"
    ) -> Timed:
        self.batch = batch
        if self.mode == "plain":
            jitted = plain(flavour)(fn)
        else:
            options = MODES[self.mode](batch, positional(fn))
            jitted = getattr(autoshard, flavour)(fn, **options)
        self.timed = Timed(jitted)
        return self.timed


def plain(flavour: Flavour) -> Any:
    """The library's own ``jit``."""
    if flavour == "nnx_jit":
        from flax import nnx

        return nnx.jit
    if flavour == "filter_jit":
        import equinox

        return equinox.filter_jit
    return jax.jit


def positional(fn: Callable[..., Any]) -> int:
    """How many arguments a function takes."""
    return len(inspect.signature(fn).parameters)


def outcomes(program: LibraryProgram) -> Any:
    """One by one, so that those before are known where a mode ends the process."""
    jax.config.update("jax_enable_x64", program.x64)
    for mode in ("plain", *MODES):
        warm_up(mode)
    runs = Runs("plain")
    try:
        expected = program.run(runs)
    except Exception as error:
        yield Outcome("jax.jit", f"fails: {reason(error)}")
        return
    for mode in MODES:
        yield outcome(program, mode, expected, runs)


def warm_up(mode: str) -> None:
    """Import what the mode needs."""
    Runs(mode)(lambda x: x @ x.T, (0,))(np.ones((64, 64), np.float32))


def outcome(program: LibraryProgram, mode: str, expected: Any, plain_runs: Runs) -> Outcome:
    """Run it, compare the results and the time of a call."""
    found, runs = Outcome(mode), Runs(mode)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", autoshard.AutoshardWarning)
        try:
            results = program.run(runs)
        except Exception as error:
            found.result = f"refused: {reason(error)}"
            return found
    of_ours = [each for each in said if issubclass(each.category, autoshard.AutoshardWarning)]
    found.warns = " / ".join(dict.fromkeys(first_line(str(each.message)) for each in of_ours))
    found.difference = difference(expected, results)
    found.result = "equal" if found.difference <= program.tolerance else "differs"
    assert runs.timed is not None
    assert plain_runs.timed is not None
    found.first_seconds = runs.timed.first_seconds
    found.plain_first_seconds = plain_runs.timed.first_seconds
    plan = runs.timed.jitted.plan(*runs.timed.last)
    found.mesh = str(plan.mesh)
    args = placed(plan, runs)
    found.call_microseconds, found.plain_call_microseconds = dispatch(
        runs.timed.jitted, plain_runs.timed.jitted, args
    )
    return found


def reason(error: Exception) -> str:
    """What an exception says, on one line."""
    return f"{type(error).__name__}: {first_line(str(error))}"


def first_line(text: str) -> str:
    """Its first line, files as their packages name them."""
    return re.sub(r"[^\s\"']*/site-packages/", "", text.strip().partition("\n")[0])[:300]


def difference(expected: Any, found: Any) -> float:
    """Largest difference of two pytrees, relative to the largest number of its array."""
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    return max(map(_difference, *zip(*pairs, strict=True)), default=0.0)


def _difference(expected: Any, found: Any) -> float:
    one, other = (np.asarray(array, np.float64) for array in (expected, found))
    if one.shape != other.shape:
        return float("inf")
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    apart = np.abs(np.where(np.isfinite(one), one - other, 0.0)).max(initial=0.0)
    largest = np.abs(np.where(np.isfinite(one), one, 0.0)).max(initial=0.0)
    return float(apart / largest) if largest else float(apart)


def placed(plan: Any, runs: Runs) -> tuple[Any, ...]:
    """The last arguments, where the plan wants them; those of a step's results lie there."""
    assert runs.timed is not None
    args = list(runs.timed.last)
    for place in runs.batch:
        shardings = plan.in_shardings[place]
        args[place] = jax.device_put(args[place], shardings)
    return tuple(args)


def dispatch(planned: Any, unplanned: Any, args: tuple[Any, ...]) -> tuple[float, float]:
    """Microseconds of the thread that calls, the best of rounds in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for which, fn in enumerate((planned, unplanned)):
            best[which] = min(best[which], _microseconds(fn, args))
    return best[0], best[1]


def _microseconds(fn: Any, args: tuple[Any, ...]) -> float:
    jax.block_until_ready(fn(*args))
    took = 0.0
    for _ in range(CALLS):
        start = time.thread_time()
        result = fn(*args)
        took += time.thread_time() - start
        jax.block_until_ready(result)
    return took / CALLS * 1e6


def main() -> None:
    """Print a line of JSON for each mode, or, with ``--list``, what there is."""
    name = sys.argv[1]
    if name == "--list":
        print(json.dumps([(key, found.library, found.does) for key, found in PROGRAMS.items()]))
        return
    if name not in PROGRAMS:
        sys.exit(f"no program {name}: {', '.join(PROGRAMS)}")
    for found in outcomes(PROGRAMS[name]):
        print("outcome", json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
