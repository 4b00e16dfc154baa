"""Split an axis of a planned module's mesh in two; the plan stays what it is.

before  autoshard.mesh = "data=8",
        autoshard.strategy = "[{data}, {}] -> [{data}, {}]"
after   autoshard.mesh = "data=2,data_part=4",
        autoshard.strategy = "[{data, data_part}, {}] -> [{data, data_part}, {}]"

``mhlo.sharding`` names devices, not axes, and does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autoshard.ir import mlir
from autoshard.ir.attributes import MESH, PIN, ROUNDED, STRATEGY
from autoshard.ir.module import operations_to_plan
from autoshard.sharding import (
    Axis,
    AxisRef,
    Mesh,
    OpStrategy,
    Sharding,
    parse_sharding,
)


def split_axis(module: mlir.Module, mesh: Mesh, name: str, inner: int) -> None:
    """Make of axis ``name`` an outer part of that name and ``inner`` neighbours.

    Args:
        module: Planned, or with pins only.
        mesh: Of the module.
        name: One of its axes.
        inner: Divides the size of the axis.
    """
    part = f"{name}_part"
    while part in mesh.axis_names:
        part += "_part"
    axes: list[Axis] = []
    for axis in mesh.axes:
        if axis.name == name:
            axes += (Axis(name, axis.size // inner), Axis(part, inner))
        else:
            axes.append(axis)
    change = _Change(mesh, Mesh(tuple(axes), mesh.device_ids), name, part)
    module.operation.attributes[MESH] = mlir.StringAttr.get(str(change.after))
    for op in operations_to_plan(module.operation):
        attributes = op.attributes
        if STRATEGY in attributes:
            attributes[STRATEGY] = change.rewritten(attributes[STRATEGY], change.strategy)
        if ROUNDED in attributes:
            attributes[ROUNDED] = mlir.ArrayAttr.get(
                [
                    change.rewritten(one, lambda text: text and change.strategy(text))
                    for one in mlir.ArrayAttr(attributes[ROUNDED])
                ]
            )
        if PIN in attributes:
            attributes[PIN] = _of_each(attributes[PIN], change)
        if op.name == "func.func":
            for side in ("arg_attrs", "res_attrs"):
                if side in attributes:
                    attributes[side] = _of_boundary(attributes[side], change)


@dataclass(slots=True)
class _Change:
    before: Mesh
    after: Mesh
    name: str
    part: str
    known: dict[str, mlir.Attribute] = field(default_factory=dict[str, mlir.Attribute])

    def rewritten(self, attribute: mlir.Attribute, rewrite: Callable[[str], str]) -> mlir.Attribute:
        """A text, each distinct one read once."""
        text = mlir.StringAttr(attribute).value
        if text not in self.known:
            self.known[text] = mlir.StringAttr.get(rewrite(text))
        return self.known[text]

    def strategy(self, text: str) -> str:
        """Text of an op's strategy, with both axes where one was."""
        said = OpStrategy.parse(text, self.before)
        operands, results = (tuple(map(self.split, s)) for s in (said.operands, said.results))
        return str(OpStrategy(operands, results))

    def pin(self, text: str) -> str:
        """Text of a value's pin, with both axes where one was; numbers of blocks stay."""
        return text if text[0] == "(" else str(self.split(parse_sharding(text, self.before)))

    def split(self, sharding: Sharding) -> Sharding:
        """With both axes where one was."""

        def refs(old: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
            both = (AxisRef(self.name), AxisRef(self.part))
            return tuple(new for ref in old for new in (both if ref.name == self.name else (ref,)))

        dims = tuple(refs(axes) for axes in sharding.dims)
        replicated = refs(sharding.replicated)
        return replace(sharding, mesh=self.after, dims=dims, replicated=replicated)


def _of_each(pins: mlir.Attribute, change: _Change) -> mlir.Attribute:
    """A pin, or one of each value of an op."""
    if not isinstance(pins, mlir.ArrayAttr):
        return change.rewritten(pins, change.pin)
    return mlir.ArrayAttr.get([change.rewritten(pin, change.pin) for pin in mlir.ArrayAttr(pins)])


def _of_boundary(entries: mlir.Attribute, change: _Change) -> mlir.Attribute:
    """Attributes of arguments or results."""
    changed: list[mlir.Attribute] = []
    for entry in mlir.ArrayAttr(entries):
        attributes = {named.name: named.attr for named in mlir.DictAttr(entry)}
        if PIN in attributes:
            attributes[PIN] = change.rewritten(attributes[PIN], change.pin)
        changed.append(mlir.DictAttr.get(attributes))
    return mlir.ArrayAttr.get(changed)
