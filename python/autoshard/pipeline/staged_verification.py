"""The tasks of a pipeline beside what a compiler makes of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.ir import mlir, print_module
from autoshard.pipeline.layouts import Layouts
from autoshard.pipeline.modules import copy_of, donate
from autoshard.pipeline.order import StagedStep
from autoshard.pipeline.task_prices import TaskCost
from autoshard.progress import task as progress
from autoshard.verify.ahead_of_time import compile_in_subprocess
from autoshard.verify.verification import Compiler, Verification, verify_module


@dataclass(frozen=True)
class StagedVerification:
    """A pipeline and the programs that a compiler made of its tasks."""

    step: StagedStep
    """As planned."""
    tasks: Mapping[str, Verification]
    """By name; equal tasks share one."""
    usable_bytes: int
    """What programs may use of a device."""
    reserved_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """By name of the task: what else is on its devices, where it was compiled beside that."""

    @cached_property
    def transient_bytes(self) -> Mapping[str, float] | None:
        """What each compiled task needs besides what it takes and gives, with what compilers add to
        that; None where one does not fit alone."""
        found: dict[str, float] = {}
        for name, one in self.tasks.items():
            if one.program.peak_bytes is None:
                return None
            found[name] = one.program.peak_bytes - self.step.held_bytes(name)
        return found

    @cached_property
    def peak_bytes(self) -> tuple[float, ...] | None:
        """Bytes of one device of each stage at the worst moment of a step, its tasks in the order
        of the plan with the memory that they are compiled to; None where one does not fit alone."""
        transients = self.transient_bytes
        if transients is None:
            return None
        costs = {
            name: replace(self.step.costs[name], transient_bytes=transients[name])
            for name in self.tasks
        }
        return self.step.peak_bytes_with(costs)

    @cached_property
    def costs(self) -> Mapping[str, TaskCost] | None:
        """Seconds of each compiled task as scheduled, and its transients; None where one does not
        fit alone, or the compiler left no program to simulate."""
        transients = self.transient_bytes
        if transients is None:
            return None
        found: dict[str, TaskCost] = {}
        for name, one in self.tasks.items():
            if one.schedule is None:
                return None
            found[name] = TaskCost(one.schedule.scheduled_seconds, transients[name])
        return found

    @cached_property
    def step_seconds(self) -> float | None:
        """Seconds of the step, by those of the compiled tasks, scheduled by the same rule; None as
        ``costs``."""
        return None if self.costs is None else self.step.with_costs(self.costs).step_seconds

    @property
    def fits(self) -> bool:
        """Each task alone, and each stage at its worst moment."""
        return self.peak_bytes is not None and max(self.peak_bytes) <= self.usable_bytes

    @property
    def differences(self) -> tuple[str, ...]:
        """What the partitioner did otherwise than planned, a sentence each with its task."""
        return tuple(
            f"{name}: {said}" for name, found in self.tasks.items() for said in found.differences
        )

    @property
    def as_planned(self) -> bool | None:
        """Whether there are no ``differences``; None where a compiler left nothing to compare."""
        if self.differences:
            return False
        return True if all(one.as_planned for one in self.tasks.values()) else None

    @property
    def ok(self) -> bool:
        """It fits, and all tasks are compiled as planned."""
        return self.fits and self.as_planned is True

    def to_json(self) -> dict[str, Any]:
        """Everything but HLO texts, for ``json.dumps``; docs/use/verify.md has the keys."""
        step, costs, peaks = self.step, self.costs, self.peak_bytes
        planned = step.work_seconds(step.costs)
        compiled = None if costs is None else step.work_seconds(costs)
        stages = [
            {
                "planned_peak_bytes": peak,
                "compiled_peak_bytes": None if peaks is None else peaks[stage],
                "planned_seconds": planned[stage],
                "compiled_seconds": None if compiled is None else compiled[stage],
            }
            for stage, peak in enumerate(step.peak_bytes)
        ]
        return {
            "ok": self.ok,
            "fits": self.fits,
            "as_planned": self.as_planned,
            "differences": list(self.differences),
            "usable_bytes": self.usable_bytes,
            "schedule": step.rule,
            "micro_batches": step.program.micro_batches,
            "planned_step_seconds": step.step_seconds,
            "compiled_step_seconds": self.step_seconds,
            "stages": stages,
            "tasks": {
                name: {"reserved_bytes": self.reserved_bytes.get(name, 0), **found.to_json()}
                for name, found in self.tasks.items()
            },
        }

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
    trip_count: int = 100,
    processes: int | None = None,
    compiler: Compiler | None = None,
) -> StagedVerification:
    """Compile the tasks of a step, equal ones once, and compare.

    Compilers take all of a device's memory for the program that they compile. Where a stage needs
    more than there is, tasks that are in the way are compiled once more, with what else is on the
    stage's devices reserved.

    Args:
        step: What is planned.
        cluster: The devices of one stage.
        use_shardy: As for ``verify_module``, and so are the others.
        timeout: Seconds for each task.
        device_order: The same of all stages.
        compiler_options: XLA's.
        trip_count: Assumed trips of loops whose count is not known.
        processes: Compilers at a time; None: one for every core.
        compiler: What compiles; None: ``compile_in_subprocess``.

    Raises:
        PlanError: ``processes`` is no number of them.
        ClusterError: No compiler knows the cluster.
        CompileError: The compiler is not installed, fails for another reason than memory, or is
            not done in time.
    """
    if processes is not None and processes < 1:
        raise PlanError(f"verify(processes={processes}) compiles nothing. Give 1 or more.")
    stop = threading.Event()
    run = _Run(
        step,
        Layouts(step.program, step.inside),
        partial(
            verify_module,
            use_shardy=use_shardy,
            timeout=timeout,
            trip_count=trip_count,
            device_order=device_order,
            compiler_options=compiler_options,
            compiler=partial(compile_in_subprocess, stop=stop) if compiler is None else compiler,
        ),
        processes,
        stop,
    )
    everything = {task.name: cluster for task in step.program.tasks}
    with progress(f"compiling the {len(everything)} tasks of {step.program.stages} stages"):
        found = StagedVerification(step, run.verified(everything), cluster.usable_memory_bytes)
        reserved = _beside(found)
        if not reserved:
            return found
        less = {name: _with_less_memory(cluster, taken) for name, taken in reserved.items()}
        again = {name: one for name, one in run.verified(less).items() if one.fits}
    told = {name: reserved[name] for name in again}
    return replace(found, tasks={**found.tasks, **again}, reserved_bytes=told)


@dataclass(frozen=True)
class _Run:
    step: StagedStep
    layouts: Layouts
    verify: Callable[[mlir.Module, Cluster], Verification]
    processes: int | None
    stop: threading.Event

    def verified(self, clusters: Mapping[str, Cluster]) -> dict[str, Verification]:
        """The tasks of these names, each compiled for its cluster, equal ones once."""
        at_a_time = self.processes or os.cpu_count() or 1
        known: dict[tuple[bytes, int], Verification] = {}
        found: dict[str, Verification] = {}
        with ThreadPoolExecutor(at_a_time) as pool:
            try:
                for names in self.layouts.in_turn(list(clusters)):
                    ready = {name: clusters[name] for name in names}
                    found |= self._side_by_side(ready, pool, known)
            except BaseException:
                self.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {name: found[name] for name in clusters}

    def _side_by_side(
        self,
        clusters: Mapping[str, Cluster],
        pool: ThreadPoolExecutor,
        known: dict[tuple[bytes, int], Verification],
    ) -> dict[str, Verification]:
        modules = {name: self._as_compiled(name) for name in clusters}
        keys = {
            name: (print_module(module), clusters[name].usable_memory_bytes)
            for name, module in modules.items()
        }
        first = {key: name for name, key in reversed(keys.items()) if key not in known}
        begun = {
            key: pool.submit(self.verify, modules[name], clusters[name])
            for key, name in first.items()
        }
        known.update((key, one.result()) for key, one in begun.items())
        for name, key in keys.items():
            program = known[key].program
            self.layouts.keep(name, program.argument_layouts, program.result_layouts)
        return {name: known[key] for name, key in keys.items()}

    def _as_compiled(self, name: str) -> mlir.Module:
        module = copy_of(self.step.modules[name])
        donate(module, self.step.donations.get(name, {}))
        self.layouts.lay_out(module, name)
        return module


def _beside(found: StagedVerification) -> dict[str, int]:
    """What else is on the devices of the tasks with which a stage needs more than there is, by
    name; none where there is no room for these tasks at all."""
    transients, usable = found.transient_bytes, found.usable_bytes
    if transients is None:
        return {}
    kept = found.step.kept_bytes
    beside = {
        name: found.step.beside_bytes(name)
        for name in found.tasks
        if kept[name] + transients[name] > usable
    }
    return beside if all(bytes_ < usable for bytes_ in beside.values()) else {}


def _with_less_memory(cluster: Cluster, taken: int) -> Cluster:
    """The same devices, on which so many bytes are taken."""
    memory = cluster.chip.memory_bytes
    left = replace(memory, value=memory.value - taken)
    return replace(cluster, chip=replace(cluster.chip, memory_bytes=left))
