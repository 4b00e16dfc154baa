"""A program with lines of annotations in place of its plan, as the user would have written them."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.errors import PlanError
from autoshard.explain.line_weights import Line
from autoshard.explain.question import Dims, Subject, subject_of_module
from autoshard.exporter.plan_attributes import drop_own
from autoshard.exporter.shardy import plan_mesh
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import MHLO_SHARDING, SDY_SHARDING
from autoshard.ir.boundary import Side, attributes_at
from autoshard.ir.module import functions_of, operations_of
from autoshard.ir.one_device import is_on_one_device, one_device_meshes
from autoshard.planned.module import OWN_PREFIX
from autoshard.planned.summarize import main_values
from autoshard.sharding import Mesh, Sharding
from autoshard.sharding.sdy_text import to_sdy

_SIDES: tuple[Side, ...] = ("arg_attrs", "res_attrs")
_SHARDINGS = (MHLO_SHARDING, SDY_SHARDING)


def annotated_module(subject: Subject, lines: Sequence[Line]) -> mlir.Module:
    """The program with ``sdy.sharding`` of arguments and constraints of what lines speak of.

    All else is left to the compiler's propagation.

    Args:
        subject: The plan; its module stays as it is.
        lines: What is written.
    """
    module = parse_bytes(print_module(subject.module, "bytecode"), new_context(), subject.name)
    copy = subject_of_module(subject.name, module, subject.summary)
    with module.context, mlir.Location.unknown():
        old = _without_plan(module)
        writer = _Writer(copy, plan_mesh(module, copy.mesh))
        for line in lines:
            writer.write(line)
        writer.write_arguments()
        for constraint in old:
            constraint.results[0].replace_all_uses_with(constraint.operands[0])
            constraint.erase()
    return module


class _Writer:
    """Writes lines into the module of a plan that is asked about."""

    def __init__(self, copy: Subject, mesh_name: str) -> None:
        self.copy, self.mesh_name = copy, mesh_name
        self.main = main_values(copy.imported)
        self.places = {value: number for number, value in enumerate(self.main.arguments)}
        self.arguments: dict[int, mlir.Attribute] = {}
        """Shardings of arguments, by their numbers."""
        self.made = {
            value: (op, result)
            for op, values in reversed(copy.imported.result_values)
            for value, result in zip(values, op.results, strict=True)
        }
        """The first op that makes each value."""

    def write(self, line: Line) -> None:
        """One line, at all values that it speaks of.

        Raises:
            PlanError: It speaks of what no op of the module makes.
        """
        sharding = self._attribute(line.dims)
        for readers in line.readers:
            for op, operand in readers:
                reader = self.copy.imported.core_ops[op]
                held = _constraint(reader.operands[operand], sharding, mlir.InsertionPoint(reader))
                reader.operands[operand] = held.results[0]
        for value in () if line.readers else line.values:
            if value in self.places:
                self.arguments[self.places[value]] = sharding
                continue
            if value not in self.made:
                raise PlanError(f"{self.copy.name}: {line.name} is made by no op of the module.")
            _hold(*self.made[value], sharding)

    def write_arguments(self) -> None:
        """Shardings of all arguments that a line speaks of."""
        found = attributes_at(self.main.op, "arg_attrs")
        for number, sharding in self.arguments.items():
            found[number][SDY_SHARDING] = sharding
        _set(self.main.op, "arg_attrs", found)

    def _attribute(self, dims: Dims) -> mlir.Attribute:
        mesh: Mesh = self.copy.mesh
        names = mesh.axis_names
        axes = [tuple(names[axis] for axis in dim) for dim in dims]
        return mlir.Attribute.parse(to_sdy(Sharding.named(mesh, *axes), self.mesh_name))


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


def _without_plan(module: mlir.Module) -> list[mlir.Operation]:
    """Take the plan and all shardings off, but of what runs on one device; find constraints.

    These are the user's, in whose place lines are written, and what JAX leaves of some that were
    traced on one device.
    """
    alone = one_device_meshes(module)
    drop_own(module.operation)
    constraints: list[mlir.Operation] = []
    for op in operations_of(module.operation):
        drop_own(op)
        if op.name == "sdy.sharding_constraint":
            constraints.append(op)
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
    return constraints


def _set(function: mlir.Operation, side: Side, found: list[dict[str, mlir.Attribute]]) -> None:
    function.attributes[side] = mlir.ArrayAttr.get([mlir.DictAttr.get(one) for one in found])
