"""Print a plan as tables: arguments and results, ops, reshards.

    arguments and results of @main
     what    name  type          sharding     a device holds
     arg 0   x     8x16xf32      [{dp}, {}]   4x16xf32   256 B

The module stays as it is.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar

from rich import box
from rich.console import Console
from rich.table import Table

from autoshard.errors import PassOptionError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import RESHARDED_BYTES, RESULT_INFO, STRATEGY
from autoshard.passes.base import Pass
from autoshard.planned.module import (
    Kind,
    Placement,
    PlannedBlock,
    PlannedFunction,
    PlannedModule,
    PlannedOp,
    read_plan,
)
from autoshard.writing import write_file


@dataclass(frozen=True)
class PrintPlan(Pass):
    """Print a plan: every argument, result and op with its sharding, and what is resharded.

    Equal rows are printed once with their count. Bytes of reshards are those of the whole
    value; those inside a loop are not multiplied by its trips.
    """

    name: ClassVar[str] = "autoshard-print-plan"

    file: str = ""
    """Where to print; standard error when empty."""

    max_rows: int = 100
    """Rows printed of each table; 0 means all."""

    width: int = 0
    """Columns of text; 0 means those of the terminal, or 160 when there is none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_rows < 0 or self.width < 0:
            raise PassOptionError(
                f"{self.name}: max-rows={self.max_rows} width={self.width}: expected 0 or more."
            )

    def run(self, module: mlir.Module) -> None:
        """Raises PlanError for a module without plan, OutputError when the file is not written."""
        plan = read_plan(module)
        if not self.file:
            self._print(plan, sys.stderr)
            return
        text = io.StringIO()
        self._print(plan, text)
        write_file(self.file, text.getvalue().encode())

    def _print(self, plan: PlannedModule, file: IO[str]) -> None:
        width = self.width or (None if file.isatty() else 160)
        console = Console(file=file, width=width, highlight=False, emoji=False, markup=False)
        console.print(f"plan on mesh {plan.mesh} ({plan.mesh.size} devices)")
        attributes = plan.module.operation.attributes
        if RESHARDED_BYTES in attributes:
            total = mlir.FloatAttr(attributes[RESHARDED_BYTES]).value
            console.print(f"each device sends {_size_text(total)} to reshard values")
        for function in plan.functions:
            if function.is_entry:
                title = f"arguments and results of @{_symbol(function.op)}"
                self._table(console, title, _BOUNDARY_COLUMNS, _boundary_rows(function))
        self._table(console, "ops", _OP_COLUMNS, _counted(_op_rows(plan)))
        moves = list(_reshards(plan))
        if moves:
            self._table(console, "reshards", _MOVE_COLUMNS, _counted(moves))
        else:
            console.print("\nno reshards")

    def _table(
        self, console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
    ) -> None:
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for column in columns:
            table.add_column(column, overflow="fold")
        all_rows = list(rows)
        shown = all_rows[: self.max_rows] if self.max_rows else all_rows
        for row in shown:
            table.add_row(*row)
        console.print()
        console.print(table)
        if len(shown) < len(all_rows):
            left = len(all_rows) - len(shown)
            console.print(f"and {left} more rows (max-rows={self.max_rows})")


_BOUNDARY_COLUMNS = ("what", "name", "type", "sharding", "a device holds", "bytes")
_OP_COLUMNS = ("times", "op", "place", "type", "strategy", "sharding")
_MOVE_COLUMNS = ("times", "value", "for", "place", "type", "from", "to", "kind", "bytes")

Row = tuple[str, ...]


def _counted(rows: Iterable[Row]) -> Iterator[Row]:
    """Equal rows once, with their number before them."""
    for row, count in Counter(rows).items():
        yield (str(count), *row)


# Arguments and results


def _boundary_rows(function: PlannedFunction) -> Iterator[Row]:
    (block,) = function.op.regions[0].blocks
    arguments: Sequence[Any] = block.arguments
    for number, (value, found) in enumerate(zip(arguments, function.arguments, strict=True)):
        name = _location_name(value.location)
        yield (f"arg {number}", name, *_placed(value.type, found))
    function_type = mlir.FunctionType(mlir.TypeAttr(function.op.attributes["function_type"]).value)
    infos = _result_infos(function.op, len(function_type.results))
    for number, (type_, info, found) in enumerate(
        zip(function_type.results, infos, function.results, strict=True)
    ):
        yield (f"result {number}", info, *_placed(type_, found))


def _placed(type_: mlir.Type, found: Placement | None) -> tuple[str, str, str, str]:
    """Type, sharding, and type and bytes of the part on one device."""
    if found is None or not isinstance(type_, mlir.RankedTensorType):
        return str(type_), "-", "-", "-"
    shape = found.sharding.local_shape(type_.shape)
    return (
        _type_text(type_.shape, type_),
        str(found.sharding),
        _type_text(shape, type_),
        _bytes_text(shape, type_),
    )


def _location_name(location: mlir.Location) -> str:
    return location.name_str if isinstance(location, mlir.NameLoc) else ""


def _result_infos(function: mlir.Operation, count: int) -> list[str]:
    """JAX's names of the results, ``result[0]['w']``."""
    if "res_attrs" not in function.attributes:
        return [""] * count
    names: list[str] = []
    for attributes in mlir.ArrayAttr(function.attributes["res_attrs"]):
        entry = mlir.DictAttr(attributes)
        key = RESULT_INFO
        names.append(mlir.StringAttr(entry[key]).value if key in entry else "")
    return names


# Ops


def _op_rows(plan: PlannedModule) -> Iterator[Row]:
    for op in _all_ops(plan):
        if not op.results or op.kind is Kind.IDENTITY:
            continue
        results: Sequence[Any] = op.op.results
        strategy = op.op.attributes.get(STRATEGY)
        yield (
            op.op.name,
            _short_place(op.op),
            ", ".join(_type_of(result) for result in results),
            "" if strategy is None else mlir.StringAttr(strategy).value,
            ", ".join(_sharding_text(found) for found in op.results),
        )


def _all_ops(plan: PlannedModule) -> Iterator[PlannedOp]:
    for function in plan.functions:
        yield from _ops_of(function.body)


def _ops_of(block: PlannedBlock) -> Iterator[PlannedOp]:
    for op in block.ops:
        yield op
        for inner in op.blocks:
            yield from _ops_of(inner)


# Reshards


def _reshards(plan: PlannedModule) -> Iterator[Row]:
    """Operands that an op wants elsewhere than they are, and results that are kept elsewhere."""
    for function in plan.functions:
        yield from _block_moves(function.body, {})


def _block_moves(block: PlannedBlock, where: dict[Any, Placement | None]) -> Iterator[Row]:
    """The moves of a block; ``where`` says what each value is, and learns the block's values."""
    where.update(block.arguments)
    for op in block.ops:
        operands: Sequence[Any] = op.op.operands
        # An op without strategy may name fewer wants than operands (None: as it comes).
        for number, (value, wanted) in enumerate(zip(operands, op.operands, strict=False)):
            yield from _move(op, f"operand {number}", value.type, where.get(value), wanted)
        results: Sequence[Any] = op.op.results
        for number, (value, computed, kept) in enumerate(
            zip(results, op.computed, op.results, strict=True)
        ):
            yield from _move(op, f"result {number}", value.type, computed, kept)
            # Constants, iotas and broadcast scalars are made again where they are wanted.
            where[value] = None if op.kind is Kind.RECOMPUTED else kept
        for inner in op.blocks:
            yield from _block_moves(inner, where)


def _move(
    op: PlannedOp, value: str, type_: mlir.Type, have: Placement | None, want: Placement | None
) -> Iterator[Row]:
    if have is None or want is None or have is want:
        return
    assert isinstance(type_, mlir.RankedTensorType)
    yield (
        value,
        op.op.name,
        _short_place(op.op),
        _type_text(type_.shape, type_),
        str(have.sharding),
        str(want.sharding),
        move_kind(have, want),
        _bytes_text(type_.shape, type_),
    )


def move_kind(have: Placement, want: Placement) -> str:
    """What a reshard is, from the axes alone.

    ``slice`` needs no communication, ``all-gather`` gives axes up, ``all-to-all`` moves axes
    between dims or within one; ``mixed`` does several of these.
    """
    pairs = list(zip(have.sharding.dims, want.sharding.dims, strict=True))
    if all(after[: len(before)] == before for before, after in pairs):
        return "slice"
    if all(before[: len(after)] == after for before, after in pairs):
        return "all-gather"
    used_before = {axis for dim in have.sharding.dims for axis in dim}
    used_after = {axis for dim in want.sharding.dims for axis in dim}
    return "all-to-all" if used_before == used_after else "mixed"


# Texts


def _symbol(function: mlir.Operation) -> str:
    return mlir.StringAttr(function.attributes["sym_name"]).value


def _short_place(op: mlir.Operation) -> str:
    """``model.py:42``."""
    found = place(op.location)
    return "" if found is None else found.rpartition("/")[2].rpartition(":")[0]


def _sharding_text(found: Placement | None) -> str:
    return "-" if found is None else str(found.sharding)


def _type_of(value: Any) -> str:
    type_ = value.type
    if isinstance(type_, mlir.RankedTensorType):
        return _type_text(type_.shape, type_)
    return str(type_)


def _type_text(shape: Sequence[int], type_: mlir.RankedTensorType) -> str:
    return "x".join([*map(str, shape), str(type_.element_type)])


def _bytes_text(shape: Sequence[int], type_: mlir.RankedTensorType) -> str:
    """Bytes of a tensor in units of 1024; sub-byte elements are packed."""
    bits = _element_bits(type_.element_type)
    for dim in shape:
        bits *= dim
    return _size_text(-(-bits // 8))


def _size_text(size: float) -> str:
    """Bytes in units of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _element_bits(element: mlir.Type) -> int:
    if isinstance(element, mlir.ComplexType):
        return 2 * _element_bits(element.element_type)
    width: int = getattr(element, "width", 0)
    return 8 if width == 1 else width
