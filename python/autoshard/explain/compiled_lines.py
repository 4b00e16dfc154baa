"""What a compiler makes of a program with lines of annotations in place of its plan.

The program is compiled twice, with the plan and with the lines alone, and what both send is put
side by side, by kind and axes of collectives. With lines its arguments and results lie as Shardy's
propagation leaves them, as those of ``jax.jit`` do that nobody speaks of; all else is the
compiler's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from autoshard.errors import CompileError
from autoshard.explain.annotated import ProgramToAnnotate
from autoshard.explain.line_weights import Line
from autoshard.explain.propagated_lines import PIPELINE
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import Reproduced, Sent, more_than, share_of
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import SDY_SHARDING
from autoshard.ir.boundary import Side, attributes_at, main_function
from autoshard.ir.native import run_native
from autoshard.passes.pipeline import run_passes
from autoshard.planned.collective import traffic
from autoshard.planned.summary import bytes_text
from autoshard.sharding import Sharding
from autoshard.sharding.sdy_text import from_sdy, to_sdy
from autoshard.verify.ahead_of_time import (
    TIME_LIMIT_SECONDS,
    CompiledProgram,
    compile_in_subprocess,
)
from autoshard.verify.hlo_collectives import hlo_collectives
from autoshard.verify.kernel_costs import kernel_costs
from autoshard.verify.step_time import estimate_step
from autoshard.verify.verification import Compiler

_SIDES: tuple[Side, ...] = ("arg_attrs", "res_attrs")
_TRIPS = 100
"""Assumed trips of loops whose count is not known, as of ``verify``."""


@dataclass(frozen=True, kw_only=True)
class CompiledLines(Reproduced):
    """The program with lines beside the one with the whole plan, both compiled.

    Bytes and seconds are those of the compiled programs. Where the one with lines does not fit,
    nothing is reproduced and its step takes forever.
    """

    program: CompiledProgram
    """With lines."""
    planned: CompiledProgram
    """With the whole plan."""


def compiled_lines(
    subject: Subject,
    lines: Sequence[Line],
    *,
    timeout: float = TIME_LIMIT_SECONDS,
    compiler_options: Mapping[str, str] | None = None,
    compiler: Compiler = compile_in_subprocess,
) -> CompiledLines:
    """Compile a plan, and its program with lines in place of it.

    Args:
        subject: The plan.
        lines: Those of ``candidates`` that are written.
        timeout: Seconds of each compile.
        compiler_options: XLA's.
        compiler: What compiles; a benchmark has one that keeps results.

    Raises:
        CompileError: The compiler is not installed, failed for another reason than memory, was not
            done in time or leaves no text of what it made; or the plan does not fit.
    """
    cluster = subject.cluster.uncorrected

    def compiled(module: mlir.Module) -> CompiledProgram:
        return compiler(
            module,
            cluster,
            use_shardy=True,
            device_order=None,
            timeout=timeout,
            compiler_options=compiler_options,
        )

    def made_of(program: CompiledProgram, module: mlir.Module) -> tuple[Sent, float]:
        text = program.hlo_text
        if text is None:
            raise CompileError(f"{subject.name}: {program.no_hlo_text}.", reason="refused")
        found = traffic(hlo_collectives(text, subject.mesh, unknown_trip_count=_TRIPS))
        sent: Sent = {}
        for (kind, axes), one in found.items():
            over = ("?",) if axes is None else tuple(map(str, axes))
            sent[kind.value, over, None] = one.total_bytes
        kernels = kernel_costs(module, cluster)
        step = estimate_step(
            text, subject.mesh, cluster, unknown_trip_count=_TRIPS, kernels=kernels
        )
        return sent, step.step_seconds

    whole = parse_bytes(print_module(subject.module, "bytecode"), new_context(), subject.name)
    with whole.context:
        run_passes(whole, ["autoshard-export-shardy"])
    planned = compiled(whole)
    if not planned.fits:
        raise CompileError(
            f"{subject.name}: the plan does not fit as compiled: {bytes_text(planned.needed_bytes)}"
            f" of {bytes_text(planned.usable_bytes)}. Plan it within a smaller memory_limit.",
            reason="refused",
        )
    wanted, planned_seconds = made_of(planned, whole)
    written = _with_boundary(subject, lines)
    program = compiled(written)
    sent, seconds = made_of(program, written) if program.fits else ({}, inf)
    return CompiledLines(
        planned_bytes=sum(wanted.values()),
        reproduced=share_of(wanted, sent) if program.fits else 0.0,
        missing=more_than(wanted, sent),
        other=more_than(sent, wanted),
        step_seconds=seconds,
        planned_seconds=planned_seconds,
        lacking_bytes=max(0.0, program.needed_bytes - program.usable_bytes),
        program=program,
        planned=planned,
    )


def _with_boundary(subject: Subject, lines: Sequence[Line]) -> mlir.Module:
    """The program with lines, its arguments and results as Shardy propagates them."""
    program = ProgramToAnnotate(subject)
    module = program.with_lines(lines)
    copy = parse_bytes(print_module(module, "bytecode"), module.context, subject.name)
    run_native(copy, f"builtin.module({PIPELINE})", verify=False)
    with module.context:
        main, found = main_function(module), main_function(copy)
        types = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value)
        for side, values in zip(_SIDES, (types.inputs, types.results), strict=True):
            entries = attributes_at(main, side)
            for entry, said, type_ in zip(entries, attributes_at(found, side), values, strict=True):
                if SDY_SHARDING in said:
                    sharding = from_sdy(str(said[SDY_SHARDING]), subject.mesh)
                    even = to_sdy(_even(sharding, type_), program.mesh_name)
                    entry[SDY_SHARDING] = mlir.Attribute.parse(even)
            main.attributes[side] = mlir.ArrayAttr.get([mlir.DictAttr.get(one) for one in entries])
    return module


def _even(sharding: Sharding, type_: mlir.Type) -> Sharding:
    """Dims that axes do not divide are whole, as JAX has them at the boundary."""
    shape = mlir.RankedTensorType(type_).shape
    pairs = zip(sharding.dims, shape, sharding.tile, strict=True)
    return Sharding(sharding.mesh, tuple(() if size % cut else axes for axes, size, cut in pairs))
