"""A plan beside what the real compiler makes of it.

``verify_module`` compiles once, for devices that need not be here, and puts next to the plan's
numbers what came out: whether it fits, bytes of memory, every collective, what the partitioner made
whole, arguments and results that are split in another way, and seconds of a step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from autoshard.cluster import Cluster
from autoshard.errors import CompileError, PlanError
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import CUSTOM_PARTITIONING, MESH, custom_call_target
from autoshard.ir.locations import place
from autoshard.ir.module import operations_of
from autoshard.passes.pipeline import run_passes
from autoshard.planned.summary import PlanSummary, bytes_text, seconds_text
from autoshard.verify.ahead_of_time import (
    TIME_LIMIT_SECONDS,
    CompiledProgram,
    compile_in_subprocess,
)
from autoshard.verify.kernel_costs import kernel_costs
from autoshard.verify.matching import (
    CollectiveMatch,
    CollectiveSide,
    Matching,
    Verdict,
    collectives_of_summary,
    match_collectives,
)
from autoshard.verify.rematerialization import (
    Rematerialization,
    read_rematerializations,
    unplanned_replications,
)
from autoshard.verify.schedule.schedule import Schedule
from autoshard.verify.schedule.trace import write_trace
from autoshard.verify.step_time import StepEstimate, estimate_step
from autoshard.verify.written_program import Moved, written_program

TOLERANCE = 0.05
"""Share of the compiled step that unplanned collectives may add unnoticed."""

_SHOWN = 3
"""Collectives that a difference names."""

_FAITHFUL = (Verdict.AS_PLANNED, Verdict.WRITTEN_AS, Verdict.ABSENT)
"""What is no deed of the partitioner that costs more than the plan says."""


class Compiler(Protocol):
    """``compile_in_subprocess``, or a cache before it."""

    def __call__(
        self,
        module: mlir.Module | bytes,
        cluster: Cluster,
        *,
        use_shardy: bool,
        device_order: Sequence[int] | None,
        timeout: float,
        compiler_options: Mapping[str, str] | None,
    ) -> CompiledProgram:
        """See ``compile_in_subprocess``."""
        ...


@dataclass(frozen=True, slots=True)
class Verification:
    """A plan and the program that a compiler made of it."""

    mesh: str
    predicted: PlanSummary
    """For the cluster that it was compiled for."""
    program: CompiledProgram
    moved: tuple[Moved, ...]
    """Arguments and results."""
    rematerializations: tuple[Rematerialization, ...]
    """Values that the partitioner said it makes whole on every device."""
    collectives: Matching | None
    """None where it does not fit, or where ``program.no_hlo_text`` says why there is no HLO."""
    replications: tuple[CollectiveMatch, ...]
    """Gathers among ``collectives`` that the plan does not have."""
    estimate: StepEstimate | None
    """Estimate of the compiled program; None as ``collectives``."""

    @property
    def fits(self) -> bool:
        """Within the memory that the compiler lets a program use of a device."""
        return self.program.fits

    @property
    def schedule(self) -> Schedule | None:
        """The step as the compiler ordered it, simulated; None as ``estimate``."""
        return None if self.estimate is None else self.estimate.schedule

    def simulated(self) -> Schedule:
        """The step as the compiler ordered it.

        Raises:
            CompileError: The compiler left no program to simulate.
        """
        if self.schedule is None:
            why = self.program.no_hlo_text or "it does not fit"
            raise CompileError(f"there is no schedule to show: {why}.", reason="refused")
        return self.schedule

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the simulated step as a file for https://ui.perfetto.dev.

        Raises:
            CompileError: The compiler left no program to simulate.
            OutputError: The file cannot be written.
        """
        write_trace(self.simulated(), Path(path))

    @property
    def unplanned(self) -> tuple[CollectiveMatch, ...]:
        """Collectives that the partitioner made of its own, those that take longest first.

        What a later pass only writes as another kind is not among them.
        """
        if self.collectives is None:
            return ()
        rows = [row for row in self.collectives.rows if row.verdict not in _FAITHFUL]
        rows = [row for row in rows if row.compiled is not None]
        return tuple(sorted(rows, key=lambda row: -_seconds(row.compiled)))

    @property
    def differences(self) -> tuple[str, ...]:
        """What the partitioner did otherwise than planned, a sentence each; empty where nothing.

        Collectives that are not planned count where they make the step longer, by more than
        ``TOLERANCE`` of it: compilers write an all-reduce between slices as three collectives that
        take no longer, for example.
        """
        said = [
            f"{one.name} is planned as {one.planned}, but was compiled as {one.compiled}."
            for one in self.moved
        ]
        said += [_rematerialized(one) for one in self.rematerializations]
        if self.estimate is None or self.collectives is None:
            return tuple(said)
        step = self.estimate.step_seconds
        spent = sum(_seconds(row.compiled) for row in self.unplanned)
        longer = self.collectives.compiled_seconds - self.collectives.planned_seconds
        if min(spent, longer) > TOLERANCE * step:
            listed = [_unplanned(row) for row in self.unplanned if _seconds(row.compiled) > 0]
            said.append(
                f"communication takes {seconds_text(longer)} longer than planned,"
                f" {longer / step:.0%} of the step; not planned are "
                + "; ".join(listed[:_SHOWN])
                + (f"; and {len(listed) - _SHOWN} more." if len(listed) > _SHOWN else ".")
            )
        return tuple(said)

    @property
    def as_planned(self) -> bool | None:
        """Whether there are no ``differences``; None where the compiler left nothing to compare."""
        if self.differences:
            return False
        return None if self.collectives is None else True

    @property
    def ok(self) -> bool:
        """It fits, and is compiled as planned."""
        return self.fits and self.as_planned is True

    def to_json(self) -> dict[str, Any]:
        """Everything but the HLO text, for ``json.dumps``; docs/use/verify.md has the keys."""
        program = self.program.to_json()
        del program["messages"]
        found: dict[str, Any] = {
            "ok": self.ok,
            "fits": self.fits,
            "as_planned": self.as_planned,
            "differences": list(self.differences),
            "mesh": self.mesh,
            "program": program,
            "predicted": {
                "step_seconds": self.predicted.step_seconds,
                "compute_seconds": self.predicted.compute_seconds,
                "communication_seconds": self.predicted.communication_seconds,
                "nothing_hidden_seconds": self.predicted.nothing_hidden_seconds,
                "scheduled_seconds": self.predicted.scheduled_seconds,
                "all_hidden_seconds": self.predicted.all_hidden_seconds,
                "peak_bytes": self.predicted.peak_bytes_per_device,
                "sent_bytes": sum(one.total_bytes for one in self.predicted.collectives),
                "host_transfer_bytes": self.predicted.host_transfer_bytes,
                "host_transfer_seconds": self.predicted.host_transfer_seconds,
                "host_exposed_seconds": self.predicted.host_exposed_seconds,
            },
            "compiled": None,
            "moved": [asdict(one) for one in self.moved],
            "rematerializations": [asdict(one) for one in self.rematerializations],
            "schedule": None if self.schedule is None else self.schedule.to_json(),
            "collectives": None,
            "replications": [_match_json(row) for row in self.replications],
        }
        if self.collectives is not None:
            found["collectives"] = [_match_json(row) for row in self.collectives.rows]
        if self.estimate is not None and self.collectives is not None:
            found["compiled"] = {
                "step_seconds": self.estimate.step_seconds,
                "compute_seconds": self.estimate.compute_seconds,
                "communication_seconds": self.estimate.communication_seconds,
                "peak_bytes": self.program.peak_bytes,
                "sent_bytes": self.collectives.compiled_bytes,
                "host_transfer_bytes": self.estimate.host_transfer_bytes,
                "host_transfer_seconds": self.estimate.host_transfer_seconds,
                "host_exposed_seconds": self.estimate.host_exposed_seconds,
                "flops": self.estimate.flops,
                "cycle_seconds": self.estimate.cycle_seconds,
                "trips_known": self.estimate.trips_known,
                "uncounted_loops": list(self.estimate.uncounted_loops),
            }
        return found

    def __rich__(self) -> Any:
        """Tables for a terminal."""
        from autoshard.report.verification_table import verification_table

        return verification_table(self)

    def __str__(self) -> str:
        """The same tables as text."""
        from autoshard.report.plan_table import render
        from autoshard.report.verification_table import verification_table

        return render(verification_table(self))


def verify_module(
    planned: mlir.Module,
    cluster: Cluster,
    *,
    use_shardy: bool = True,
    timeout: float = TIME_LIMIT_SECONDS,
    trip_count: int = 100,
    device_order: Sequence[int] | None = None,
    compiler_options: Mapping[str, str] | None = None,
    compiler: Compiler = compile_in_subprocess,
) -> Verification:
    """Compile a planned module for a cluster and compare.

    Args:
        planned: As planning left it, not exported; it stays as it is.
        cluster: What to compile for, and whose formulas give the seconds. Another one than the
            plan is for is fine, if it has as many devices. Its corrections are in what is
            predicted, not in what is compiled.
        use_shardy: Export for Shardy and partition with it, else GSPMD.
        timeout: Seconds of the compile.
        trip_count: Assumed trips of loops whose count is not known.
        device_order: The cluster's device of each partition; see ``compile_in_subprocess``.
        compiler_options: XLA's.
        compiler: What compiles; a benchmark has one that keeps results.

    Raises:
        PlanError: There is no plan on the module, or it does not hold.
        ClusterError: No compiler knows the cluster, or the mesh has another size.
        CompileError: The compiler is not installed, failed for another reason than memory, or was
            not done in time; or the program has callbacks of ``custom_partitioning``.
    """
    _check_planned(planned, cluster)
    module = parse_bytes(print_module(planned, "bytecode"), new_context(), "module")
    with module.context:
        _check_no_callbacks(module)
        written = written_program(module, cluster, trip_count, use_shardy=use_shardy)
    mesh, predicted = written.boundary.mesh, written.predicted
    cluster = cluster.uncorrected
    run_passes(module, [written.export])
    program = compiler(
        module,
        cluster,
        use_shardy=use_shardy,
        device_order=device_order,
        timeout=timeout,
        compiler_options=compiler_options,
    )
    text = program.hlo_text
    collectives = estimate = None
    if text is not None:
        collectives = match_collectives(
            collectives_of_summary(predicted.collectives, mesh),
            text,
            mesh,
            cluster,
            unknown_trip_count=trip_count,
        )
        estimate = estimate_step(
            text,
            mesh,
            cluster,
            unknown_trip_count=trip_count,
            overlap=predicted.overlap,
            kernels=kernel_costs(module, cluster) if use_shardy else None,
        )
    return Verification(
        mesh=str(mesh),
        predicted=predicted,
        program=program,
        moved=written.boundary.moved(program) if program.fits else (),
        rematerializations=read_rematerializations(program.messages, text),
        collectives=collectives,
        replications=() if collectives is None else unplanned_replications(collectives),
        estimate=estimate,
    )


def _check_planned(module: mlir.Module, cluster: Cluster) -> None:
    if MESH not in module.operation.attributes:
        raise PlanError(
            f"the module has no {MESH}: it has not been planned, or its plan was exported. Plan it"
            f" first: autoshard-opt step.mlir --autoshard-recursive-programming='cluster="
            f"{cluster.name}' -o planned.mlir, and verify what that writes.",
            place(module.operation.location),
        )


def _check_no_callbacks(module: mlir.Module) -> None:
    """The partitioner would call them in the other process, where nobody has them."""
    for op in operations_of(module.operation):
        if custom_call_target(op) == CUSTOM_PARTITIONING:
            raise CompileError(
                "a call of jax.experimental.custom_partitioning cannot be verified: its callbacks"
                " are in this process, and the plan is compiled in another one. Run it with"
                " autoshard.jit, which warns of differences, or plan without devices"
                ' (cluster="v5e:4x4" or the like): then the function itself is planned.',
                place(op.location),
                reason="refused",
            )


# Words ------------------------------------------------------------------------------------------


def _seconds(side: CollectiveSide | None) -> float:
    return 0.0 if side is None else side.seconds


def _rematerialized(one: Rematerialization) -> str:
    where = one.place or "a line that the compiler does not know"
    times = f" ({one.count} times)" if one.count > 1 else ""
    what = f"{one.opcode} {one.type} of {one.op_name or 'an op without a name'}"
    if not one.opcode:
        what = one.message
    return f"{where}: the partitioner makes a value whole on every device{times}: {what}."


def _unplanned(row: CollectiveMatch) -> str:
    assert row.compiled is not None
    axes = row.compiled.axes
    over = "irregular groups" if axes is None else ",".join(map(str, axes))
    where = f" at {row.place}" if row.place else ""
    return f"{row.compiled.kind.value} over {over}, {bytes_text(row.compiled.bytes)}{where}"


def _match_json(row: CollectiveMatch) -> dict[str, Any]:
    return {
        "verdict": row.verdict.value,
        "planned": _side_json(row.planned),
        "compiled": _side_json(row.compiled),
        "location": row.place,
        "op_name": row.op_name,
    }


def _side_json(side: CollectiveSide | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "kind": side.kind.value,
        "meant": side.meant.value,
        "axes": None if side.axes is None else [str(axis) for axis in side.axes],
        "bytes": side.bytes,
        "seconds": side.seconds,
    }
