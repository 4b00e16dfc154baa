"""What the function behind a call of ``autoshard.kernel`` computes, counted over its ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Protocol

from autoshard._core import Arithmetic, Function, Work
from autoshard.compilers.compiler import read_rules
from autoshard.importer.loops import trip_count
from autoshard.ir import mlir
from autoshard.ir.module import module_of
from autoshard.ir.types import tensor_bytes
from autoshard.kernels.calls import decomposition_of


class _OpWork(Protocol):
    @property
    def work(self) -> Work: ...

    @property
    def arithmetic(self) -> Arithmetic: ...

    @property
    def flops(self) -> float: ...
    @property
    def function(self) -> Function: ...
    @property
    def operand_bytes(self) -> tuple[float, ...]: ...
    @property
    def result_bytes(self) -> tuple[float, ...]: ...


@dataclass(slots=True)
class DecompositionWork:
    """Operations of all ops together."""

    matmul_flops: float = 0.0
    other_flops: float = 0.0
    product: Arithmetic | None = None
    """Arithmetic of the first matmul."""
    loop_bytes: float = 0.0
    """Bytes of memory that ops in loops read and write, at all trips."""
    loop_kernels: float = 0.0
    """Kernels that loops run, at all trips."""


def decomposition_work(
    op: mlir.Operation, work_of: Callable[[mlir.Operation], _OpWork]
) -> DecompositionWork:
    """Operations of what a composite stands for; a loop whose trips nobody knows counts once."""
    function = decomposition_of(op)
    symbols = mlir.SymbolTable(module_of(op))
    total = DecompositionWork()

    def count(
        operations: Iterable[mlir.OpView | mlir.Operation],
        trips: float,
        *,
        is_in_loop: bool = False,
        is_carried: bool = False,
    ) -> None:
        """``is_carried``: the next trip gets what the operations return."""
        for each in operations:
            inner = each.operation
            if inner.name == "func.call":
                called = mlir.FlatSymbolRefAttr(inner.attributes["callee"]).value
                body = symbols[called].operation.regions[0].blocks[0]
                carried = is_carried and _is_returned(inner)
                count(body.operations, trips, is_in_loop=is_in_loop, is_carried=carried)
            elif inner.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
                is_loop = inner.name == "stablehlo.while"
                within = trips * ((trip_count(inner, _same) if is_loop else 1) or 1)
                for region in inner.regions:
                    count(
                        region.blocks[0].operations,
                        within,
                        is_in_loop=is_in_loop or is_loop,
                        is_carried=is_loop or (is_carried and _is_returned(inner)),
                    )
            elif len(inner.results) and isinstance(inner.results[0].type, mlir.RankedTensorType):
                work = work_of(inner)
                add(work, trips)
                if is_in_loop and (_is_kernel(inner, work) or (is_carried and _is_returned(inner))):
                    total.loop_kernels += trips
                    total.loop_bytes += trips * _moved_bytes(inner, work)

    def add(work: _OpWork, trips: float) -> None:
        if work.work in (Work.MATMUL, Work.KERNEL):
            total.matmul_flops += trips * work.flops
            total.product = total.product or work.arithmetic
        else:
            total.other_flops += trips * work.flops * _operations(work.function)

    count(function.regions[0].blocks[0].operations, 1.0)
    return total


def _operations(function: Function) -> float:
    """An element's, as they are taken of a compiler of which nothing is known."""
    if function == Function.NONE:
        return 1.0
    return float(read_rules()[f"functions.{function.name.lower()}"].unknown)


def _is_kernel(op: mlir.Operation, work: _OpWork) -> bool:
    """Does the op store what it makes? All else is fused with what reads it.

    Single numbers, as places of slices, are not counted.
    """
    stores = work.work in (Work.MATMUL, Work.KERNEL, Work.REDUCE, Work.OTHER, Work.INDEXED)
    return stores and prod(mlir.RankedTensorType(op.results[0].type).shape) > 1


def _is_returned(op: mlir.Operation) -> bool:
    readers = [use.owner for result in op.results for use in result.uses]
    return any(reader.name in ("stablehlo.return", "func.return") for reader in readers)


def _moved_bytes(op: mlir.Operation, work: _OpWork) -> float:
    """Bytes of what an op reads and writes."""
    touched = (work.operand_bytes, op.operands), (work.result_bytes, op.results)
    moved = 0.0
    for given, values in touched:
        for number, value in enumerate(values):
            own = given[number] if number < len(given) else -1.0
            moved += own if own >= 0 else tensor_bytes(value.type)
    return moved


def _same(value: mlir.Value) -> mlir.Value:
    return value
