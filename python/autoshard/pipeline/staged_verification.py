"""The tasks of a pipeline beside what a compiler makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autoshard.cluster import Cluster
from autoshard.ir import mlir, print_module
from autoshard.pipeline.modules import copy_of, donate
from autoshard.pipeline.order import StagedStep, TaskCost
from autoshard.verify.ahead_of_time import compile_in_subprocess
from autoshard.verify.verification import Compiler, Verification, verify_module


@dataclass(frozen=True)
class StagedVerification:
    """A pipeline and the programs that a compiler made of its tasks."""

    step: StagedStep
    """As planned."""
    tasks: Mapping[str, Verification]
    """By name; equal tasks share one."""

    @cached_property
    def compiled(self) -> StagedStep | None:
        """The step by the seconds and temporaries of the compiled tasks, scheduled by the same
        rule; None where one does not fit alone, or the compiler left nothing to estimate it by."""
        costs: dict[str, TaskCost] = {}
        for name, found in self.tasks.items():
            temporaries = found.program.temporary_bytes
            if found.estimate is None or temporaries is None:
                return None
            costs[name] = TaskCost(found.estimate.step_seconds, temporaries)
        return self.step.with_costs(costs)

    @property
    def usable_bytes(self) -> int:
        """What the compiler lets programs use of a device."""
        return min(found.program.usable_bytes for found in self.tasks.values())

    @property
    def fits(self) -> bool:
        """Each task alone, and each stage at its worst moment."""
        if self.compiled is None:
            return False
        return max(self.compiled.peak_bytes) <= self.usable_bytes

    @property
    def differences(self) -> tuple[str, ...]:
        """What the partitioner did otherwise than planned, a sentence each with its task."""
        return tuple(
            f"{name}: {said}" for name, found in self.tasks.items() for said in found.differences
        )

    @property
    def ok(self) -> bool:
        """It fits, and all tasks are compiled as planned."""
        return self.fits and all(found.as_planned is True for found in self.tasks.values())

    def __rich__(self) -> Any:
        """Tables for a terminal."""
        from autoshard.report.staged_verification_table import staged_verification_table

        return staged_verification_table(self)

    def __str__(self) -> str:
        """The same tables as text."""
        from autoshard.report.plan_table import render
        from autoshard.report.staged_verification_table import staged_verification_table

        return render(staged_verification_table(self))


def verify_staged_step(
    step: StagedStep,
    cluster: Cluster,
    *,
    use_shardy: bool,
    timeout: float,
    device_order: Sequence[int] | None,
    compiler_options: Mapping[str, str] | None,
    compiler: Compiler = compile_in_subprocess,
) -> StagedVerification:
    """Compile the tasks of a step, equal ones once, and compare.

    Args:
        step: What is planned.
        cluster: The devices of one stage.
        use_shardy: As for ``verify_module``, and so are the others.
        timeout: Seconds for each task.
        device_order: The same of all stages.
        compiler_options: XLA's.
        compiler: What compiles.

    Raises:
        ClusterError: No compiler knows the cluster.
        CompileError: The compiler is not installed, fails for another reason than memory, or is
            not done in time.
    """
    known: dict[bytes, Verification] = {}
    found: dict[str, Verification] = {}
    for task in step.program.tasks:
        module = _as_compiled(step, task.name)
        text = print_module(module)
        if text not in known:
            known[text] = verify_module(
                module,
                cluster,
                use_shardy=use_shardy,
                timeout=timeout,
                device_order=device_order,
                compiler_options=compiler_options,
                compiler=compiler,
            )
        found[task.name] = known[text]
    return StagedVerification(step, found)


def _as_compiled(step: StagedStep, name: str) -> mlir.Module:
    module = copy_of(step.modules[name])
    donate(module, step.donations.get(name, {}))
    return module
