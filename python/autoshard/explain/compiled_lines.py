"""What a compiler makes of a program with lines of annotations in place of its plan.

The program is compiled twice, with the plan and with the lines alone, and what both send is put
side by side, by kind and axes of collectives. With lines its arguments and results lie as Shardy's
propagation leaves them, as those of ``jax.jit`` do that nobody speaks of; all else is the
compiler's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from autoshard.errors import CompileError
from autoshard.explain.annotated import ProgramToAnnotate, number_of
from autoshard.explain.compiled_ops import SentByOps, name_ops, sent_by_ops, sent_more
from autoshard.explain.line_weights import Line
from autoshard.explain.propagated_lines import PIPELINE
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import Reproduced, Sent, more_than, share_of
from autoshard.exporter.plan_attributes import drop_own
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import SDY_SHARDING
from autoshard.ir.boundary import Side, attributes_at, main_function, untie_unequal
from autoshard.ir.module import operations_of
from autoshard.ir.native import run_native
from autoshard.passes.pipeline import run_passes
from autoshard.planned.summary import bytes_text
from autoshard.sharding import Sharding
from autoshard.sharding.sdy_text import from_sdy, to_sdy
from autoshard.verify.ahead_of_time import (
    TIME_LIMIT_SECONDS,
    CompiledProgram,
    compile_in_subprocess,
)
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
    blame: Mapping[int, float] = field(default_factory=dict[int, float], repr=False)
    """Bytes that only one of both sends, by the core's ops of the plan that they are sent for."""


@dataclass(frozen=True)
class _Made:
    program: CompiledProgram
    by_ops: SentByOps
    seconds: float

    @cached_property
    def sent(self) -> Sent:
        """Without the ops."""
        sent: defaultdict[tuple[str, tuple[str, ...], str | None], float] = defaultdict(float)
        for (_, key), size in self.by_ops.items():
            sent[key] += size
        return dict(sent)


class LinesCompiler:
    """Compiles a plan once, and programs with lines in place of it."""

    def __init__(
        self,
        subject: Subject,
        *,
        timeout: float = TIME_LIMIT_SECONDS,
        compiler_options: Mapping[str, str] | None = None,
        compiler: Compiler = compile_in_subprocess,
    ) -> None:
        """Nothing is compiled yet.

        Args:
            subject: The plan.
            timeout: Seconds of each compile.
            compiler_options: XLA's.
            compiler: What compiles; a benchmark has one that keeps results.
        """
        self.subject = subject
        self._cluster = subject.cluster.uncorrected
        self._timeout, self._options, self._compiler = timeout, compiler_options, compiler
        self._program = ProgramToAnnotate(subject)

    def __call__(self, lines: Sequence[Line]) -> CompiledLines:
        """The program with lines, beside the plan.

        Args:
            lines: Those of ``candidates`` that are written.

        Raises:
            CompileError: The compiler is not installed, failed for another reason than memory, was
                not done in time or leaves no text of what it made; or the plan does not fit.
        """
        planned = self._planned
        made = self._made(self._with_boundary(lines))
        fits = made.program.fits
        return CompiledLines(
            planned_bytes=sum(planned.sent.values()),
            reproduced=share_of(planned.sent, made.sent) if fits else 0.0,
            missing=more_than(planned.sent, made.sent),
            other=more_than(made.sent, planned.sent),
            step_seconds=made.seconds,
            planned_seconds=planned.seconds,
            lacking_bytes=max(0.0, made.program.needed_bytes - made.program.usable_bytes),
            program=made.program,
            planned=planned.program,
            blame=self._blame(made.by_ops, planned.by_ops) if fits else {},
        )

    @cached_property
    def _planned(self) -> _Made:
        subject = self.subject
        module = parse_bytes(print_module(subject.module, "bytecode"), new_context(), subject.name)
        name_ops(enumerate(operations_of(module.operation)))
        with module.context:
            run_passes(module, ["autoshard-export-shardy"])
        made = self._made(module)
        if not made.program.fits:
            needed, usable = made.program.needed_bytes, made.program.usable_bytes
            raise CompileError(
                f"{subject.name}: the plan does not fit as compiled: {bytes_text(needed)}"
                f" of {bytes_text(usable)}. Plan it within a smaller memory_limit.",
                reason="refused",
            )
        return made

    def _made(self, module: mlir.Module) -> _Made:
        mesh = self.subject.mesh
        program = self._compiler(
            module,
            self._cluster,
            use_shardy=True,
            device_order=None,
            timeout=self._timeout,
            compiler_options=self._options,
        )
        if not program.fits:
            return _Made(program, {}, inf)
        text = program.hlo_text
        if text is None:
            raise CompileError(f"{self.subject.name}: {program.no_hlo_text}.", reason="refused")
        kernels = kernel_costs(module, self._cluster)
        step = estimate_step(text, mesh, self._cluster, unknown_trip_count=_TRIPS, kernels=kernels)
        return _Made(program, sent_by_ops(text, mesh, _TRIPS), step.step_seconds)

    def _blame(self, sent: SentByOps, planned: SentByOps) -> dict[int, float]:
        """Bytes that only one of both programs sends, by the core's ops."""
        blame: defaultdict[int, float] = defaultdict(float)
        for more in (sent_more(sent, planned), sent_more(planned, sent)):
            for number, size in more.items():
                ops = self._ops_of.get(number, [])
                for op in ops:
                    blame[op] += size / len(ops)
        return dict(blame)

    @cached_property
    def _ops_of(self) -> Mapping[int, list[int]]:
        """By the number of an op of the module the core's ops that it is, or is inside of."""
        numbers = self._program.number_of_op
        found: defaultdict[int, list[int]] = defaultdict(list)
        for op, number in enumerate(numbers):
            found[number].append(op)
        own = frozenset(numbers)
        for op, root in enumerate(self.subject.imported.core_ops):
            for inside in operations_of(root)[1:]:
                number = self._program.numbers[inside]
                if number not in own:
                    found[number].append(op)
        return found

    def _with_boundary(self, lines: Sequence[Line]) -> mlir.Module:
        """The program with lines, its arguments and results as Shardy propagates them."""
        module = self._program.with_lines(lines, keep_numbers=True)
        _name_by_numbers(module)
        copy = parse_bytes(print_module(module, "bytecode"), module.context, self.subject.name)
        run_native(copy, f"builtin.module({PIPELINE})", verify=False)
        with module.context:
            main, found = main_function(module), main_function(copy)
            types = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value)
            for side, values in zip(_SIDES, (types.inputs, types.results), strict=True):
                entries = attributes_at(main, side)
                said = attributes_at(found, side)
                for entry, there, type_ in zip(entries, said, values, strict=True):
                    if SDY_SHARDING in there:
                        sharding = from_sdy(str(there[SDY_SHARDING]), self.subject.mesh)
                        even = to_sdy(_even(sharding, type_), self._program.mesh_name)
                        entry[SDY_SHARDING] = mlir.Attribute.parse(even)
                dicts = [mlir.DictAttr.get(entry) for entry in entries]
                main.attributes[side] = mlir.ArrayAttr.get(dicts)
        untie_unequal(module, SDY_SHARDING)
        return module


def _name_by_numbers(module: mlir.Module) -> None:
    """Names by the numbers that ops have, a constraint's by that of what it holds; these go."""
    named: list[tuple[int, mlir.Operation]] = []
    for op in operations_of(module.operation):
        number = number_of(op)
        if number is None and op.name == "sdy.sharding_constraint":
            held = op.operands[0].owner
            number = number_of(held) if isinstance(held, mlir.Operation) else None
        if number is not None:
            named.append((number, op))
    name_ops(named)
    for _, op in named:
        drop_own(op)


def _even(sharding: Sharding, type_: mlir.Type) -> Sharding:
    """Dims that axes do not divide are whole, as JAX has them at the boundary."""
    shape = mlir.RankedTensorType(type_).shape
    pairs = zip(sharding.dims, shape, sharding.tile, strict=True)
    return Sharding(sharding.mesh, tuple(() if size % cut else axes for axes, size, cut in pairs))
