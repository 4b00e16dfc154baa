"""Which values of a differentiated program its author has a name for, and their cotangents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from autoshard.explain.call_sites import CallSites, Place
from autoshard.explain.question import Subject
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.ir import mlir, op_name
from autoshard.ir.module import calls_of
from autoshard.planned.summarize import line_of, main_values, short_name


class Half(Enum):
    """Where a value is made, by JAX's names of ops."""

    FORWARD = "forward"
    """By the code as it is written, or by the same code run again for the gradients."""
    COTANGENT = "cotangent"
    """By the backward half: the cotangent of what a line of the forward half makes, which
    ``jax.custom_vjp`` at this line can hold."""
    GRADIENT = "gradient"
    """By the backward half, and read outside of it: what ``jax.grad`` gives."""
    BACKWARD = "backward"
    """By the backward half, between cotangents: no line of the code names it."""


@dataclass(frozen=True)
class TransposedOperand:
    """A value of the backward half that becomes the cotangent of what a line reads."""

    name: str
    """``operand 1 of dot_general``."""
    place: Place
    """Its line, with the type of the operand."""
    order: tuple[int, ...]
    """For each dim of the operand that of the value."""


class Halves:
    """Tells the halves of a step apart.

    An op of the backward half has the line of the op that it transposes. So what of a line's type
    such ops read of the backward half is the cotangent of what the line makes, and what they make
    for others is that of what the line reads. A sum of cotangents has the line of one of them.
    """

    def __init__(self, subject: Subject) -> None:
        self._imported = imported = subject.imported
        self._names = _Names(imported)
        self.sites = CallSites(subject, self.is_backward)
        made = dict.fromkeys(main_values(imported).arguments, False)
        self._lines: dict[Place, str] = {}
        """What the forward half makes."""
        for op, values in imported.result_values:
            is_backward = self.is_backward(op)
            for result, value in zip(op.results, values, strict=True):
                if value != NO_VALUE:
                    made.setdefault(value, is_backward)
                    place = None if is_backward else self.sites.of(op, result.type)
                    if place is not None:
                        self._lines[place] = short_name(op)
        self._results = {
            maker: value for value, maker in enumerate(imported.program.makers.tolist())
        }
        self._made = frozenset(value for value, is_backward in made.items() if is_backward)
        """What the backward half makes."""
        rounded = {
            one.result: imported.program.operands_of(number)[0]
            for number, one in imported.rounded.items()
        }
        self._operands: dict[Place, str] = {}
        """What the forward half reads."""
        outside: set[int] = set()
        read: defaultdict[Place, set[int]] = defaultdict(set)
        for number, op in enumerate(imported.core_ops):
            if number in imported.rounded:
                continue
            operands = imported.program.operands_of(number)
            values = [rounded.get(value, value) for value in operands]
            if not self.is_backward(op):
                outside.update(values)
                for position, operand in enumerate(op.operands):
                    place = self.sites.of(op, operand.type)
                    if place is not None:
                        self._operands.setdefault(place, f"operand {position} of {short_name(op)}")
                continue
            if _is_sum(op):
                continue
            for operand, value in zip(op.operands, values, strict=False):
                place = self.sites.of(op, operand.type)
                if place is not None and value in self._made and place in self._lines:
                    read[place].add(value)
        self.of_results: Mapping[Place, set[int]] = read
        """Cotangents of what lines make."""
        self.of_operands: Mapping[Place, set[int]] = self._given()
        """Cotangents of what lines read."""
        self._read = {value for values in read.values() for value in values}
        self._gradients = self._joined(outside)

    def is_backward(self, op: mlir.Operation) -> bool:
        """Is an op a transposed one?

        Example: ``jit(f)/transpose(jvp())/dot_general`` is, ``jit(f)/jvp()/transpose`` is not, and
        ``jit(f)/transpose(jvp())/checkpoint/rematted_computation/dot_general`` is the forward
        half's. So is an op of a function of which all calls are.
        """
        return self._names.is_backward(op)

    def read_by(self, op: mlir.Operation, place: Place, value: int) -> str | None:
        """Name of what a line makes whose cotangent an op of the backward half reads; else None.

        Args:
            op: A transposed op of the line.
            place: Its line, with the type of the operand that it reads.
            value: The operand.
        """
        is_it = value in self.of_results.get(place, ()) and not _is_sum(op)
        return self._lines[place] if is_it else None

    def of_value(self, value: int) -> Half:
        """Where a value is made; arguments count as made by the forward half."""
        if value not in self._made:
            return Half.FORWARD
        if value in self._gradients:
            return Half.GRADIENT
        return Half.COTANGENT if value in self._read else Half.BACKWARD

    def operands(self) -> Mapping[int, TransposedOperand]:
        """Values between cotangents that turn into the cotangent of what their line reads.

        Example: of ``y = x @ w`` the gradient of ``w`` is a matmul that is transposed then.
        """
        readers = self._readers()
        found: dict[int, TransposedOperand] = {}
        for op, values in self._imported.result_values:
            location = line_of(op)
            if location is None or _is_sum(op) or len(values) != 1 or not self.is_backward(op):
                continue
            (value,) = values
            if value == NO_VALUE or self.of_value(value) is not Half.BACKWARD:
                continue
            last, end, order = op, value, tuple(range(_rank(op)))
            while following := self._transposition(readers[end], location):
                last, end = following
                said = mlir.DenseI64ArrayAttr(last.attributes["permutation"])
                order = tuple(order[dim] for dim in said)
            place = self.sites.of(last, last.results[0].type)
            if place is not None and place in self._operands:
                found.setdefault(value, TransposedOperand(self._operands[place], place, order))
        return found

    def _transposition(
        self, readers: Sequence[int], location: str
    ) -> tuple[mlir.Operation, int] | None:
        """The op of the line that alone reads a value, if it transposes it, and what it makes."""
        if len(readers) != 1:
            return None
        (number,) = readers
        op = self._imported.core_ops[number]
        is_it = op.name == "stablehlo.transpose" and line_of(op) == location
        return (op, self._results[number]) if is_it and self.is_backward(op) else None

    def _readers(self) -> Mapping[int, Sequence[int]]:
        """For each value the ops that read it, one for each of their operands."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for number in range(len(self._imported.core_ops)):
            for value in self._imported.program.operands_of(number):
                found[value].append(number)
        return found

    def _joined(self, outside: set[int]) -> set[int]:
        """What the backward half makes that is read outside, also behind a loop or a call."""
        sources: defaultdict[int, list[int]] = defaultdict(list)
        for source, target in self._imported.program.joins:
            sources[target].append(source)
        waiting, found = [value for value in outside if value in self._made], set[int]()
        while waiting:
            value = waiting.pop()
            if value not in found:
                found.add(value)
                waiting += [one for one in sources[value] if one in self._made]
        return found

    def _given(self) -> Mapping[Place, set[int]]:
        given: defaultdict[Place, set[int]] = defaultdict(set)
        for op, values in self._imported.result_values:
            if not self.is_backward(op) or _is_sum(op):
                continue
            for result, value in zip(op.results, values, strict=True):
                place = self.sites.of(op, result.type)
                if place is None or place not in self._operands or value not in self._made:
                    continue
                if value not in self.of_results.get(place, ()):
                    given[place].add(value)
        return given


def _rank(op: mlir.Operation) -> int:
    type_ = op.results[0].type
    return mlir.RankedTensorType(type_).rank if isinstance(type_, mlir.RankedTensorType) else 0


def _is_sum(op: mlir.Operation) -> bool:
    return op_name(op.location).endswith("add_any")


class _Names:
    """What JAX's names of ops say, with those of the calls of the functions that they are in."""

    def __init__(self, imported: ImportedProgram) -> None:
        self._calls = calls_of(imported.module.operation)
        self._functions: dict[str, bool] = {}
        self._known: dict[mlir.Operation, bool] = {}

    def is_backward(self, op: mlir.Operation) -> bool:
        """See ``Halves.is_backward``."""
        if op not in self._known:
            self._known[op] = self._is_backward(op)
        return self._known[op]

    def _is_backward(self, op: mlir.Operation) -> bool:
        name = op_name(op.location)
        if "transpose(" in name or "rematted_computation" in name:
            return "rematted_computation" not in name
        if "jvp(" in name:
            return False
        for function in _ancestors(op):
            if function.name == "func.func":
                return self._is_called_backward(function)
        return False

    def _is_called_backward(self, function: mlir.Operation) -> bool:
        name = mlir.StringAttr(function.attributes["sym_name"]).value
        if name not in self._functions:
            calls = self._calls.get(name, [])
            self._functions[name] = bool(calls) and all(map(self.is_backward, calls))
        return self._functions[name]


def _ancestors(op: mlir.Operation) -> Iterator[mlir.Operation]:
    parent = op.parent
    while parent is not None:
        yield parent.operation
        parent = parent.operation.parent
