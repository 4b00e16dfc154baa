"""What propagation makes of a program with lines of annotations in place of its plan.

It is that of Shardy, of the installed jaxlib, which is asked what ``jax.jit`` will make of the
lines. Where a program cannot go through it, the planner's is: that of ``mode="semi_auto"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

from autoshard._core import FactorKind
from autoshard.errors import PassError
from autoshard.explain.annotated import ProgramToAnnotate, number_of
from autoshard.explain.line_weights import MADE, Line, values_of
from autoshard.explain.partitioned import partitioned
from autoshard.explain.question import Dims, Subject
from autoshard.explain.reproduced import Propagated, propagated
from autoshard.importer.factors import Dims as FactorDims
from autoshard.importer.factors import FactorRule
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.pins import DimPin, Pin, Pinned
from autoshard.importer.rules import partitioners_rule_of
from autoshard.ir import mlir
from autoshard.ir.attributes import SDY_SHARDING, SDY_SHARDING_RULE
from autoshard.ir.boundary import attributes_at, main_function
from autoshard.ir.module import operations_of
from autoshard.ir.native import is_native, run_native
from autoshard.planned.summarize import main_values
from autoshard.sharding import Sharding
from autoshard.sharding.sdy_text import factor_symbol, from_sdy, per_value_from_sdy

PIPELINE = "sdy-propagation-pipeline"
"""As ``jax.jit`` runs it."""

Propagation = Callable[[Sequence[Line]], Propagated]
"""What is sent of the program with lines."""


def propagation_of(subject: Subject) -> tuple[Propagation, str]:
    """Shardy's propagation and nothing, or the planner's and why Shardy's does not do."""
    if not is_native(PIPELINE):
        return ByPlanner(subject), f"this jaxlib has no {PIPELINE}"
    by_shardy = ByShardy(subject)
    try:
        by_shardy.shardings(())
    except PassError as error:
        return ByPlanner(subject), f"Shardy refuses the program: {error}"
    return by_shardy, ""


@dataclass(frozen=True)
class ByPlanner:
    """The plan of least resharding that keeps lines."""

    subject: Subject

    def __call__(self, lines: Sequence[Line]) -> Propagated:
        """What it sends.

        Raises:
            StrategyError: There is none.
        """
        copy = count(self.subject.imported.program.num_values)
        pins = [
            _pinned(next(copy) if readers else value, line.dims, line.name)
            for line in lines
            for value, readers in values_of(line)
            if not readers or _is_read(readers)
        ]
        return propagated(self.subject, pins, _held_operands(lines))


class ByShardy:
    """Shardings that Shardy completes lines to, and what is sent for them.

    Shardy says how every value lies; how ops are cut between is what takes least resharding.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.program = ProgramToAnnotate(subject)
        numbers = self.program.numbers
        self.values_of = {
            numbers[op]: values
            for op, values in subject.imported.result_values
            if any(value != NO_VALUE for value in values)
        }
        """By the number of an op the values that it makes."""

    def __call__(self, lines: Sequence[Line]) -> Propagated:
        """What the program with lines sends.

        Raises:
            PassError: Shardy refuses the program.
            StrategyError: No propagation keeps the pins.
        """
        found = {**self.shardings(lines), **_held(lines)}
        copy = count(self.subject.imported.program.num_values)
        pins = [_pinned(value, dims) for value, dims in found.items()]
        pins += [
            _pinned(next(copy), line.dims, line.name)
            for line in lines
            for _, readers in values_of(line)
            if _is_read(readers)
        ]
        return partitioned(self.subject, pins, _held_operands(lines))

    def shardings(self, lines: Sequence[Line]) -> Mapping[int, Dims]:
        """How Shardy cuts each value, where whole axes of the plan's mesh cut it."""
        module = self.program.with_lines(lines, keep_numbers=True)
        with module.context:
            _say_rules(operations_of(module.operation))
        run_native(module, f"builtin.module({PIPELINE})", verify=False)
        reader = _Reader(self.subject)
        found: dict[int, Dims] = {}
        with module.context:
            for op in operations_of(module.operation):
                number = number_of(op)
                values = None if number is None else self.values_of.get(number)
                if values is None:
                    continue
                for value, dims in zip(values, reader.of_results(op), strict=True):
                    if value != NO_VALUE and dims is not None:
                        found.setdefault(value, dims)
            main = main_function(module)
            arguments = main_values(self.subject.imported).arguments
            for value, said in zip(arguments, attributes_at(main, "arg_attrs"), strict=True):
                if value != NO_VALUE:
                    dims = reader.of_argument(value, said.get(SDY_SHARDING))
                    if dims is not None:
                        found[value] = dims
        return found


def _is_read(readers: Sequence[tuple[int, int]]) -> bool:
    """Whether a line speaks of what ops read, not of what one makes."""
    return any(operand != MADE for _, operand in readers)


def _held(lines: Sequence[Line]) -> dict[int, Dims]:
    """How values lie that are made otherwise, where another line says how."""
    said = [(value, readers, line) for line in lines for value, readers in values_of(line)]
    made = {value for value, readers, _ in said if readers and not _is_read(readers)}
    return {value: line.dims for value, readers, line in said if not readers and value in made}


def _held_operands(lines: Sequence[Line]) -> list[tuple[tuple[int, int], ...]]:
    return [readers for line in lines for _, readers in values_of(line) if _is_read(readers)]


def _say_rules(operations: Sequence[mlir.Operation]) -> None:
    """Write the rules of CHLO ops, which XLA has replaced by others when Shardy propagates."""
    for op in operations:
        if op.name.startswith("chlo."):
            rule = partitioners_rule_of(op, None)
            if rule.factors:
                op.attributes[SDY_SHARDING_RULE] = mlir.Attribute.parse(_rule_text(rule))


def _rule_text(rule: FactorRule) -> str:
    def side(tensors: Sequence[FactorDims]) -> str:
        return ", ".join(
            f"[{', '.join(''.join(map(factor_symbol, dim)) for dim in dims)}]" for dims in tensors
        )

    sizes = ", ".join(f"{factor_symbol(n)}={factor.size}" for n, factor in enumerate(rule.factors))
    whole = ", ".join(
        factor_symbol(number)
        for number, factor in enumerate(rule.factors)
        if factor.kind == FactorKind.NEED_REPLICATION
    )
    kept = f" need_replication={{{whole}}}" if whole else ""
    mapping = f"({side(rule.operands)})->({side(rule.results)})"
    return f"#sdy.op_sharding_rule<{mapping} {{{sizes}}}{kept}>"


class _Reader:
    """Reads each of Shardy's texts once."""

    def __init__(self, subject: Subject) -> None:
        self.mesh = subject.mesh
        self.shapes = subject.imported.value_shapes
        self.known: dict[
            tuple[mlir.Attribute | None, tuple[mlir.Type, ...]], list[Dims | None]
        ] = {}

    def of_results(self, op: mlir.Operation) -> list[Dims | None]:
        """How the results of an op are cut; None where the plan's axes cannot say."""
        attributes = op.attributes
        said = attributes.get(SDY_SHARDING)
        types = tuple(result.type for result in op.results)
        key = (said, types)
        if key not in self.known:
            shardings = None if said is None else per_value_from_sdy(str(said), self.mesh)
            self.known[key] = [
                self._dims(type_, None if shardings is None else shardings[number])
                for number, type_ in enumerate(types)
            ]
        return self.known[key]

    def of_argument(self, value: int, said: mlir.Attribute | None) -> Dims | None:
        """How an argument is cut."""
        shape = self.shapes[value]
        return self._axes(shape, None if said is None else from_sdy(str(said), self.mesh))

    def _dims(self, type_: mlir.Type, sharding: Sharding | None) -> Dims | None:
        if not isinstance(type_, mlir.RankedTensorType):
            return None
        return self._axes(type_.shape, sharding)

    def _axes(self, shape: Sequence[int], sharding: Sharding | None) -> Dims | None:
        if sharding is None:
            return ((),) * len(shape)
        if any(axis.size is not None for axes in sharding.dims for axis in axes):
            return None
        return tuple(
            # XLA pads what axes do not divide; to the planner it is whole.
            () if size % pieces else tuple(self.mesh.axis_index(axis.name) for axis in axes)
            for size, pieces, axes in zip(shape, sharding.tile, sharding.dims, strict=True)
        )


def _pinned(value: int, dims: Dims, name: str = "Shardy's propagation") -> Pinned:
    return Pinned(value, _pin(dims), None, name)


@cache
def _pin(dims: Dims) -> Pin:
    return Pin(tuple(map(DimPin, dims)))
