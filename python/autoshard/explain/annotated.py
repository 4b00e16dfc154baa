"""A program with lines of annotations in place of its plan, as the user would have written them."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.errors import PlanError
from autoshard.explain.line_weights import MADE, Line, values_of
from autoshard.explain.question import Dims, Subject
from autoshard.exporter.plan_attributes import drop_own
from autoshard.exporter.shardy import plan_mesh
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import MHLO_SHARDING, SDY_SHARDING
from autoshard.ir.boundary import Side, attributes_at, main_function
from autoshard.ir.module import functions_of, operations_of
from autoshard.ir.one_device import is_on_one_device, one_device_meshes
from autoshard.planned.module import OWN_PREFIX
from autoshard.planned.summarize import main_values
from autoshard.sharding import Mesh, Sharding
from autoshard.sharding.sdy_text import to_sdy

_SIDES: tuple[Side, ...] = ("arg_attrs", "res_attrs")
_SHARDINGS = (MHLO_SHARDING, SDY_SHARDING)

_NUMBER = f"{OWN_PREFIX}number"
"""Number of an op of the plan's module in program order, on the ops of its copies."""


class ProgramToAnnotate:
    """The program of a plan without the plan, into copies of which lines are written."""

    def __init__(self, subject: Subject) -> None:
        """``subject``'s module stays as it is."""
        self.subject = subject
        self.main = main_values(subject.imported)
        self.places = {value: number for number, value in enumerate(self.main.arguments)}
        operations = operations_of(subject.module.operation)
        numbers = {op: number for number, op in enumerate(operations)}
        self.numbers = numbers
        """By each op of the module."""
        self.number_of_op = [numbers[op] for op in subject.imported.core_ops]
        """For each of the core's ops its number."""
        self.made = {
            value: (numbers[op], position)
            for op, values in reversed(subject.imported.result_values)
            for position, value in enumerate(values)
            if value != NO_VALUE
        }
        """Number of the first op that makes each value, and which of its results it is."""
        whole = print_module(subject.module, "bytecode")
        bare = parse_bytes(whole, new_context(), subject.name)
        with bare.context, mlir.Location.unknown():
            _without_plan(bare)
            self.mesh_name = plan_mesh(bare, subject.mesh)
        self._bytecode = print_module(bare, "bytecode")

    def with_lines(self, lines: Sequence[Line], *, keep_numbers: bool = False) -> mlir.Module:
        """The program with ``sdy.sharding`` of arguments and constraints of what lines speak of.

        All else is left to the compiler's propagation.

        Args:
            lines: What is written.
            keep_numbers: Ops keep an attribute by which ``number_of`` knows them.

        Raises:
            PlanError: A line speaks of what no op of the module makes.
        """
        module = parse_bytes(self._bytecode, new_context(), self.subject.name)
        with module.context, mlir.Location.unknown():
            operations = operations_of(module.operation)
            ops = {number: op for op in operations if (number := number_of(op)) is not None}
            writer = _Writer(self, module, ops)
            for line in lines:
                writer.write(line)
            writer.write_made(lines)
            writer.write_arguments()
            for op in operations:
                if op.name == "sdy.sharding_constraint":
                    op.results[0].replace_all_uses_with(op.operands[0])
                    op.erase()
                elif not keep_numbers:
                    drop_own(op)
        return module


def annotated_module(subject: Subject, lines: Sequence[Line]) -> mlir.Module:
    """The program of a plan with lines alone; see ``ProgramToAnnotate.with_lines``."""
    return ProgramToAnnotate(subject).with_lines(lines)


def number_of(op: mlir.Operation) -> int | None:
    """Which op of the plan's module it is; None: another one made it."""
    attributes = op.attributes
    return mlir.IntegerAttr(attributes[_NUMBER]).value if _NUMBER in attributes else None


class _Writer:
    """Writes lines into a copy of the program."""

    def __init__(
        self, program: ProgramToAnnotate, module: mlir.Module, ops: dict[int, mlir.Operation]
    ) -> None:
        self.program, self.ops = program, ops
        self.function = main_function(module)
        self.arguments: dict[int, mlir.Attribute] = {}
        """Shardings of arguments, by their numbers."""

    def write(self, line: Line) -> None:
        """One line, at all values that it speaks of."""
        program = self.program
        sharding = self._attribute(line.dims)
        for value, readers in values_of(line):
            for op, operand in readers:
                if operand == MADE:
                    continue
                reader = self.ops[program.number_of_op[op]]
                held = _constraint(reader.operands[operand], sharding, mlir.InsertionPoint(reader))
                reader.operands[operand] = held.results[0]
            if readers:
                continue
            if value in program.places:
                self.arguments[program.places[value]] = sharding
                continue
            if value not in program.made:
                name = program.subject.name
                raise PlanError(f"{name}: {line.name} is made by no op of the module.")
            number, position = program.made[value]
            maker = self.ops[number]
            _hold(maker, maker.results[position], sharding)

    def write_made(self, lines: Sequence[Line]) -> None:
        """What ops make, before it is held as other lines say: when these are written."""
        for line in lines:
            for value, readers in values_of(line):
                if any(operand == MADE for _, operand in readers):
                    number, position = self.program.made[value]
                    maker = self.ops[number]
                    _hold(maker, maker.results[position], self._attribute(line.dims))

    def write_arguments(self) -> None:
        """Shardings of all arguments that a line speaks of."""
        found = attributes_at(self.function, "arg_attrs")
        for number, sharding in self.arguments.items():
            found[number][SDY_SHARDING] = sharding
        _set(self.function, "arg_attrs", found)

    def _attribute(self, dims: Dims) -> mlir.Attribute:
        mesh: Mesh = self.program.subject.mesh
        names = mesh.axis_names
        axes = [tuple(names[axis] for axis in dim) for dim in dims]
        return mlir.Attribute.parse(to_sdy(Sharding.named(mesh, *axes), self.program.mesh_name))


def _hold(op: mlir.Operation, value: mlir.Value, sharding: mlir.Attribute) -> None:
    """All that read a result of an op read it held."""
    held = _constraint(value, sharding, mlir.InsertionPoint.after(op))
    value.replace_all_uses_except(held.results[0], held)


def _constraint(
    value: mlir.Value, sharding: mlir.Attribute, where: mlir.InsertionPoint
) -> mlir.Operation:
    return mlir.Operation.create(
        "sdy.sharding_constraint",
        results=[value.type],
        operands=[value],
        attributes={"sharding": sharding},
        ip=where,
    )


def _without_plan(module: mlir.Module) -> None:
    """Take the plan and all shardings off, but of what runs on one device, and number the ops.

    Constraints stay, of which lines may speak. These are the user's, in whose place lines are
    written, and what JAX leaves of some that were traced on one device.
    """
    alone = one_device_meshes(module)
    drop_own(module.operation)
    integer = mlir.IntegerType.get_signless(64)
    for number, op in enumerate(operations_of(module.operation)):
        drop_own(op)
        op.attributes[_NUMBER] = mlir.IntegerAttr.get(integer, number)
        if not is_on_one_device(op, alone):
            for name in _SHARDINGS:
                if name in op.attributes:
                    del op.attributes[name]
    for function in functions_of(module).values():
        for side in _SIDES:
            kept = [
                {
                    name: said
                    for name, said in entries.items()
                    if name not in _SHARDINGS and not name.startswith(OWN_PREFIX)
                }
                for entries in attributes_at(function, side)
            ]
            _set(function, side, kept)


def _set(function: mlir.Operation, side: Side, found: list[dict[str, mlir.Attribute]]) -> None:
    function.attributes[side] = mlir.ArrayAttr.get([mlir.DictAttr.get(one) for one in found])
