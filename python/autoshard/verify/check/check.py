"""Is what a plan computes right? Found out by running it, small, on virtual devices."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from autoshard.errors import CheckError, PlanError
from autoshard.ir import mlir, print_module
from autoshard.ir.attributes import MESH
from autoshard.ir.locations import place
from autoshard.rewrites.lockstep.step import lockstep_of
from autoshard.verify.check.compare import Difference
from autoshard.verify.check.locate import Run, WrongOp, locate, locate_failure
from autoshard.verify.check.run import Failure, Limits, run_both
from autoshard.verify.check.small import make_small

TIME_LIMIT_SECONDS = 600.0
"""Seconds of a check, and of finding the op where something is wrong."""

MOST_DEVICES = 16
"""Virtual ones; a larger mesh is made smaller."""


@dataclass(frozen=True, slots=True)
class Check:
    """What a run of a plan, small, on virtual devices, says of it."""

    mesh: str
    """Mesh of the plan."""
    checked_mesh: str
    """On which it was run."""
    form: str
    """``shardy`` or ``gspmd``."""
    differs: WrongOp | None
    """The first op that is wrong, or that cannot be split; None where none is known."""
    failure: str | None
    """What XLA said where it could not split the program."""
    compared: int
    """Results that were compared."""
    exact: int
    """Those of them that had to be equal bit for bit; others up to a tolerance."""
    unjudged: int
    """Results that differ by rounding: differences of equal numbers, what is made of them, and what
    many ops let grow. The ops that give them were compared by themselves."""
    not_finite: float
    """Part of the elements compared that are no finite numbers, which hide what is wrong."""
    ops: int
    """Number of ops of the program's ``main``, its calls included."""
    looked_at: int
    """Those of them that were run: where ops repeat, one of each kind."""
    not_run: tuple[str, ...]
    """Ops that were left out, with their places; what they give was drawn."""
    sizes: tuple[tuple[int, int], ...]
    """Each size of a dim, and what it became."""
    seconds: float
    """All of it."""

    @property
    def is_right(self) -> bool:
        """Whether nothing differs and nothing failed."""
        return self.differs is None and self.failure is None

    @property
    def message(self) -> str:
        """What is wrong, in a sentence or two; empty where nothing is."""
        wrong = self.differs
        if wrong is None:
            return self.failure or ""
        name = wrong.op.removeprefix("stablehlo.")
        split = f"{', '.join(wrong.operands)} -> {', '.join(wrong.results)}"
        if self.failure is not None:
            return f"{name} cannot be split as planned ({split}): {self.failure}"
        certain = "is" if wrong.is_certain else "or an op before it is"
        return (
            f"{name} {certain} computed wrongly when it is split as planned: {wrong.different} of"
            f" {wrong.elements} elements differ, by up to {wrong.relative_error:.2g} of the largest"
            f" ({split})."
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, for ``json.dumps``."""
        return {"is_right": self.is_right, "message": self.message} | asdict(self)

    def __rich__(self) -> Any:
        """For a terminal."""
        from autoshard.report.check_table import check_table

        return check_table(self)

    def __str__(self) -> str:
        """The same as text."""
        from autoshard.report.check_table import check_table
        from autoshard.report.plan_table import render

        return render(check_table(self))


@dataclass(frozen=True, slots=True)
class _Found:
    """What a run says."""

    results: tuple[Difference, ...] = ()
    exact: int = 0
    unjudged: int = 0
    differs: WrongOp | None = None
    failure: str | None = None


def check_module(
    planned: mlir.Module,
    *,
    use_shardy: bool = True,
    timeout: float = TIME_LIMIT_SECONDS,
    host_memory_bytes: int | None = None,
    most_devices: int = MOST_DEVICES,
) -> Check:
    """Run a planned module, made small, on one device and split as planned, and compare.

    Of a pipeline in lockstep each stage runs on one device, and split over several.

    Args:
        planned: As planning left it, not exported; it stays as it is.
        use_shardy: Partition with Shardy, else with GSPMD.
        timeout: Seconds of all of it; most of them are for finding the op where one is wrong.
        host_memory_bytes: That each process may take; None: no limit.
        most_devices: Virtual devices; a larger mesh has its axes shortened.

    Raises:
        PlanError: There is no plan on the module, or it does not hold.
        CheckError: The program cannot be run on a CPU, cannot be made small, or not in the time
            and memory.
    """
    if MESH not in planned.operation.attributes:
        raise PlanError(
            f"the module has no {MESH}: it has not been planned, or its plan was exported. Plan it"
            " first, and check what planning writes.",
            place(planned.operation.location),
        )
    if lockstep_of(planned) is not None and not use_shardy:
        raise PlanError("a pipeline in lockstep is written for Shardy alone. Check it with that.")
    start = time.monotonic()
    small = make_small(print_module(planned, "bytecode"), most_devices)
    limits = Limits(start + timeout, host_memory_bytes)
    found = _found(small.program, lambda program: run_both(program, use_shardy, limits))
    results = found.results
    elements = sum(each.elements for each in results)
    return Check(
        mesh=small.mesh,
        checked_mesh=small.checked_mesh,
        form="shardy" if use_shardy else "gspmd",
        differs=found.differs,
        failure=found.failure,
        compared=len(results),
        exact=found.exact,
        unjudged=found.unjudged,
        not_finite=1 - sum(each.finite for each in results) / elements if elements else 0.0,
        ops=small.ops,
        looked_at=small.looked_at,
        not_run=small.not_run,
        sizes=small.sizes,
        seconds=time.monotonic() - start,
    )


def _found(program: bytes, run: Run) -> _Found:
    """What a run of a small program says.

    Raises:
        CheckError: Nothing, as it cannot be run on one device, or not in the time and memory.
    """
    outcome = run(program)
    if isinstance(outcome, Failure):
        if not outcome.is_of_plan:
            raise CheckError(f"nobody knows whether the plan is right: {outcome.text}")
        return _Found(differs=locate_failure(program, run), failure=outcome.text)
    exact = sum(outcome.is_exact)
    different = sum(not each.is_same for each in outcome.results)
    if not different:
        return _Found(outcome.results, exact)
    wrong = locate(program, outcome, run)
    return _Found(outcome.results, exact, 0 if wrong else different, wrong)
