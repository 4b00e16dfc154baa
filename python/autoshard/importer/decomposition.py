"""What the function behind a call of ``autoshard.kernel`` computes, counted over its ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from autoshard._core import Arithmetic, Work
from autoshard.importer.loops import trip_count
from autoshard.ir import mlir
from autoshard.ir.module import module_of
from autoshard.kernels.calls import decomposition_of


class _OpWork(Protocol):
    @property
    def work(self) -> Work: ...

    @property
    def arithmetic(self) -> Arithmetic: ...

    @property
    def flops(self) -> float: ...


@dataclass(slots=True)
class DecompositionWork:
    """Operations of all ops together."""

    matmul_flops: float = 0.0
    other_flops: float = 0.0
    product: Arithmetic | None = None
    """Arithmetic of the first matmul."""


def decomposition_work(
    op: mlir.Operation, work_of: Callable[[mlir.Operation], _OpWork]
) -> DecompositionWork:
    """Operations of what a composite stands for; a loop whose trips nobody knows counts once."""
    function = decomposition_of(op)
    symbols = mlir.SymbolTable(module_of(op))
    total = DecompositionWork()

    def count(operations: Iterable[mlir.OpView | mlir.Operation], trips: float) -> None:
        for each in operations:
            inner = each.operation
            if inner.name == "func.call":
                called = mlir.FlatSymbolRefAttr(inner.attributes["callee"]).value
                count(symbols[called].operation.regions[0].blocks[0].operations, trips)
            elif inner.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
                known = trip_count(inner, _same) if inner.name == "stablehlo.while" else 1
                for region in inner.regions:
                    count(region.blocks[0].operations, trips * (known or 1))
            elif len(inner.results) and isinstance(inner.results[0].type, mlir.RankedTensorType):
                add(work_of(inner), trips)

    def add(work: _OpWork, trips: float) -> None:
        if work.work in (Work.MATMUL, Work.KERNEL):
            total.matmul_flops += trips * work.flops
            total.product = total.product or work.arithmetic
        else:
            total.other_flops += trips * work.flops

    count(function.regions[0].blocks[0].operations, 1.0)
    return total


def _same(value: mlir.Value) -> mlir.Value:
    return value
