"""Factors that XLA's partitioner does not cut right, and nobody else does: they stay whole.

What the exporter writes on blocks, or keeps apart by clamps and barriers (``exporter/blocks``,
``exporter/starts.py``), is its own. Of all other ops the table of the installed release of jaxlib
says what is wrong or ends the process (docs/design/partitioner.md).
"""

from __future__ import annotations

from functools import cache

from autoshard._core import FactorKind
from autoshard.compilers.partitioner import PartitionerTable
from autoshard.importer.factor_roles import role_of, traits_of
from autoshard.importer.factors import FactorRule
from autoshard.ir import mlir

BY_THE_EXPORTER = frozenset(
    {
        *("stablehlo.convolution", "stablehlo.select_and_scatter", "stablehlo.pad"),
        *("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"),
        *("stablehlo.gather", "stablehlo.scatter", "stablehlo.fft", "chlo.top_k"),
    }
)
"""Ops of which the exporter does what the partitioner does not do right."""


def faulty_factors(op: mlir.Operation, rule: FactorRule) -> frozenset[int]:
    """Factors of ``op`` that no partition of it may cut."""
    if op.name not in faulty_ops():
        return frozenset()
    table, traits = PartitionerTable.of_installed(), traits_of(op)
    return frozenset(
        index
        for index, factor in enumerate(rule.factors)
        if factor.kind != FactorKind.NEED_REPLICATION
        and table.fault(op.name, traits, [role_of(op, rule, index)]) is not None
    )


def fault_key(op: mlir.Operation) -> frozenset[str]:
    """What two ops, of equal types and rules of Shardy's, must share to have equal faults."""
    return traits_of(op) if op.name in faulty_ops() else frozenset()


@cache
def faulty_ops() -> frozenset[str]:
    """Ops with a factor that may not be cut."""
    rows = PartitionerTable.of_installed().rows
    return frozenset(op for (op, _), row in rows.items() if row.bad) - BY_THE_EXPORTER
