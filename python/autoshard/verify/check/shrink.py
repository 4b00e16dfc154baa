"""The same plan on a smaller mesh.

before  mesh data=64,model=16     {devices=[64,1,16]<=[1024] last_tile_dim_replicate}
after   mesh data=8,model=8       {devices=[8,1,8]<=[64] last_tile_dim_replicate}

How a partitioner splits an op depends on which axes cut which dims, not on how long they are, as
long as they are longer than one.
"""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.ir.attributes import MESH, MHLO_SHARDING, NUM_PARTITIONS
from autoshard.ir.module import operations_of
from autoshard.planned.module import PlannedModule
from autoshard.sharding.hlo_text import parse_hlo, to_v2, tuple_from_hlo
from autoshard.sharding.mesh import Axis, Mesh
from autoshard.sharding.sharding import Sharding

_PLACED = ("{maximal", "{manual")


def smaller_mesh(mesh: Mesh, most_devices: int, fixed: frozenset[str] = frozenset()) -> Mesh:
    """The mesh with its longest even axes halved until it has at most so many devices.

    Args:
        mesh: Of a plan.
        most_devices: If axes of odd length or ``fixed`` ones are longer, it stays larger.
        fixed: Names of axes that stay as they are.
    """
    axes = list(mesh.axes)
    while Mesh(tuple(axes)).size > most_devices:
        halves = [
            (axis.size, -number)
            for number, axis in enumerate(axes)
            if axis.name not in fixed and axis.size % 2 == 0 and axis.size > 2
        ]
        if not halves:
            break
        number = -max(halves)[1]
        axes[number] = Axis(axes[number].name, axes[number].size // 2)
    return mesh if tuple(axes) == mesh.axes else Mesh(tuple(axes))


def shrink(plan: PlannedModule, most_devices: int) -> tuple[Mesh, Mesh]:
    """Put a plan on at most so many devices; its mesh before and after.

    Args:
        plan: Of a module, whose shardings change; it is of no use afterwards.
        most_devices: Of the new mesh.
    """
    before = plan.mesh
    used = [ref for each in plan.placements.values() for dim in each.sharding.dims for ref in dim]
    parted = frozenset(ref.name for ref in used if ref.size is not None)
    after = smaller_mesh(before, most_devices, parted)
    if after == before:
        return before, before
    with plan.module.context:
        writer = _Writer(before, after)
        attributes = plan.module.operation.attributes
        attributes[MESH] = mlir.StringAttr.get(str(after))
        int32 = mlir.IntegerType.get_signless(32)
        attributes[NUM_PARTITIONS] = mlir.IntegerAttr.get(int32, after.size)
        for op in operations_of(plan.module.operation):
            if op.name == "func.func":
                writer.boundary(op)
            elif MHLO_SHARDING in op.attributes:
                writer.op(op)
    return before, after


class _Writer:
    """Rewrites texts on one mesh into texts on another."""

    def __init__(self, before: Mesh, after: Mesh) -> None:
        self.before, self.after = before, after
        self.known: dict[tuple[str, tuple[int, ...]], str] = {}

    def boundary(self, function: mlir.Operation) -> None:
        type_ = mlir.FunctionType(mlir.TypeAttr(function.attributes["function_type"]).value)
        for key, types in (("arg_attrs", type_.inputs), ("res_attrs", type_.results)):
            if key not in function.attributes:
                continue
            written: list[mlir.Attribute] = []
            for item, value_type in zip(
                mlir.ArrayAttr(function.attributes[key]), types, strict=True
            ):
                entries = mlir.DictAttr(item)
                named = {entries[n].name: entries[n].attr for n in range(len(entries))}
                if MHLO_SHARDING in named:
                    named[MHLO_SHARDING] = self._text(named[MHLO_SHARDING], [value_type])
                written.append(mlir.DictAttr.get(named))
            function.attributes[key] = mlir.ArrayAttr.get(written)

    def op(self, op: mlir.Operation) -> None:
        types = [result.type for result in op.results]
        op.attributes[MHLO_SHARDING] = self._text(op.attributes[MHLO_SHARDING], types)

    def _text(self, attribute: mlir.Attribute, types: list[mlir.Type]) -> mlir.Attribute:
        text = mlir.StringAttr(attribute).value
        ranks = tuple(
            mlir.RankedTensorType(each).rank if isinstance(each, mlir.RankedTensorType) else 0
            for each in types
        )
        key = (text, ranks)
        if key not in self.known:
            self.known[key] = self._written(text, ranks)
        return mlir.StringAttr.get(self.known[key])

    def _written(self, text: str, ranks: tuple[int, ...]) -> str:
        if text.startswith(_PLACED):
            return text
        found = [
            to_v2(Sharding(self.after, sharding.dims))
            for sharding in tuple_from_hlo(text, self.before, ranks)
        ]
        return f"{{{', '.join(found)}}}" if isinstance(parse_hlo(text), tuple) else found[0]
