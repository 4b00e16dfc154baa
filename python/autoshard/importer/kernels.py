"""Rules of kernels: a factor for each dim of the grid that may be cut, or as a table of known calls
says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard._core import FactorKind
from autoshard.importer.factors import Dims, Factor, FactorRule
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.ir.reading import shape_of
from autoshard.kernels.cudnn_attention import cudnn_attention
from autoshard.kernels.cuts import Cut, cuts_of, cuts_or_reasons
from autoshard.kernels.mosaic import (
    Kernel,
    aliases_of,
    is_tpu_kernel,
    kernel_of,
    talks_to_others,
    why_unread,
)
from autoshard.kernels.scalars import Integers
from autoshard.kernels.tables import table_contents
from autoshard.kernels.work import kernel_work


@dataclass(frozen=True)
class ProvenKernel:
    """A kernel of which something may be cut."""

    cuts: tuple[Cut, ...]
    num_tables: int
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of whole operands and results."""
    rule: FactorRule


def only_kernel(bytecode: bytes, num_operands: int) -> ProvenKernel | None:
    """The one kernel of a module for TPUs that does nothing else.

    None: there are more, it has other operands, or nothing of it may be cut.
    """
    module = parse_bytes(bytecode, new_context())
    with module.context:
        kernels = [op for op in operations_of(module.operation) if is_tpu_kernel(op)]
        if len(kernels) != 1 or len(kernels[0].operands) != num_operands:
            return None
        (op,) = kernels
        found = kernel_cuts(op)
        if found is None:
            return None
        kernel, cuts = found
        shapes = tuple(map(shape_of, (*op.operands, *op.results)))
        return proven_kernel(kernel.grid, cuts, shapes, kernel.num_tables, num_operands)


def proven_kernel(
    grid: Sequence[int],
    cuts: Sequence[Cut],
    shapes: tuple[tuple[int, ...], ...],
    num_tables: int,
    num_operands: int,
) -> ProvenKernel | None:
    """A kernel of which a device can tell its part by the shapes of its operands.

    None: nothing of it may be cut that any operand is cut with. Arguments as of ``grid_rule``.
    """
    told = tuple(cut for cut in cuts if any(d is not None for d in cut.dims[:num_operands]))
    if not told:
        return None
    rule = grid_rule(grid, told, shapes, num_operands)
    return ProvenKernel(told, num_tables, shapes, rule)


def kernel_cuts(op: mlir.Operation) -> tuple[Kernel, tuple[Cut, ...]] | None:
    """The kernel of a ``tpu_custom_call``, and what of its grid may be cut; None: nothing."""
    kernel = None if talks_to_others(op) else kernel_of(op)
    if kernel is None:
        return None
    shapes = tuple(map(shape_of, (*op.operands, *op.results)))
    cuts = cuts_of(kernel, shapes, _used_results(op))
    cuts = tuple(cut for cut in cuts if _cuts_aliases_alike(op, cut))
    return (kernel, cuts) if cuts else None


def why_whole(op: mlir.Operation) -> str:
    """In a few words, why nothing of a ``tpu_custom_call`` may be cut."""
    if talks_to_others(op):
        return "it talks to other devices"
    kernel = kernel_of(op)
    if kernel is None:
        return why_unread(op)
    shapes = tuple(map(shape_of, (*op.operands, *op.results)))
    found = enumerate(cuts_or_reasons(kernel, shapes, _used_results(op)))
    said = [
        f"along dim {dim} of its grid, of {kernel.grid[dim]:,} places, "
        + (reason if isinstance(reason, str) else "a result is written over what is cut otherwise")
        for dim, reason in found
        if kernel.grid[dim] > 1
    ]
    return "; ".join(said) or "its grid has one place"


def kernel_key(op: mlir.Operation) -> tuple[bool | bytes | None, ...]:
    """What two kernels of equal types and attributes must share to have one rule.

    Of each result, whether anything reads it, and what its tables say; nothing of other ops.
    """
    kernel = kernel_of(op) if is_tpu_kernel(op) else None
    if kernel is None:
        return ()
    tables = map(table_contents, list(op.operands)[: kernel.num_tables])
    contents = (None if table is None else table.tobytes() for table in tables)
    return (*_used_results(op), *contents)


def _used_results(op: mlir.Operation) -> tuple[bool, ...]:
    return tuple(any(True for _ in result.uses) for result in op.results)


def _cuts_aliases_alike(op: mlir.Operation, cut: Cut) -> bool:
    """Whether results that are written over operands are cut as those are."""
    return all(
        cut.dims[operand] == cut.dims[len(op.operands) + result]
        for result, operand in aliases_of(op)
    )


def kernel_rule(op: mlir.Operation) -> FactorRule | None:
    """The rule of a call of a kernel; None: it calls none, or nothing of it may be cut."""
    return _attention_rule(op) or (_grid_rule(op) if is_tpu_kernel(op) else None)


def _attention_rule(op: mlir.Operation) -> FactorRule | None:
    attention = cudnn_attention(op)
    if attention is None:
        return None
    number = {name: index for index, name in enumerate(attention.factors)}
    factors = tuple(
        Factor(size) if name in attention.cuttable else Factor(size, FactorKind.NEED_REPLICATION)
        for name, size in attention.factors.items()
    )

    def placed(tensors: tuple[tuple[tuple[str, ...], ...], ...]) -> tuple[Dims, ...]:
        return tuple(tuple(tuple(number[n] for n in dim) for dim in dims) for dims in tensors)

    return FactorRule(factors, placed(attention.operands), placed(attention.results))


def _grid_rule(op: mlir.Operation) -> FactorRule | None:
    """The rule of a ``tpu_custom_call``; None where nothing of it may be cut."""
    found = kernel_cuts(op)
    if found is None:
        return None
    kernel, cuts = found
    shapes = tuple(map(shape_of, (*op.operands, *op.results)))
    rule = grid_rule(kernel.grid, cuts, shapes, len(op.operands))
    tables = [table_contents(value) for value in list(op.operands)[: kernel.num_tables]]
    factors = list(rule.factors)
    for number, cut in enumerate(cuts):
        shares = _shares(kernel, tables, cut, factors[number])
        factors[number] = replace(factors[number], shares=shares)
    return replace(rule, factors=tuple(factors))


def _shares(
    kernel: Kernel, tables: Sequence[Integers | None], cut: Cut, factor: Factor
) -> tuple[float, ...]:
    """What of the kernel's work belongs to each unit of a cut; empty where it is the same for all.

    It differs where tables say which places have anything to do, as a causal mask does.
    """
    is_told = all(table is not None for table in tables)
    if not is_told or all(dim is None for dim in cut.dims[: kernel.num_tables]):
        return ()
    work = kernel_work(kernel, tables, along=cut.grid_dim)
    counted = work.matmul_flops if work.product is not None else work.vector_flops
    units = np.broadcast_to(counted, kernel.grid[cut.grid_dim]).reshape(factor.size, -1).sum(1)
    total = float(units.sum())
    if total == 0.0 or bool(np.all(units == units[0])):
        return ()
    return tuple(float(unit) / total for unit in units)


def grid_rule(
    grid: Sequence[int],
    cuts: Sequence[Cut],
    shapes: Sequence[tuple[int, ...]],
    num_operands: int,
) -> FactorRule:
    """The rule of a kernel.

    A dim of an array that follows the grid is cut in as many parts as the grid is, so it is made of
    two factors: units of the grid, and what of the array belongs to one of them.

    Args:
        grid: Places along each dim.
        cuts: Dims of it that may be cut.
        shapes: Of operands and results.
        num_operands: Number of operands, tables among them.
    """
    factors = [Factor(grid[cut.grid_dim] // cut.unit) for cut in cuts]
    tensors: list[list[tuple[int, ...]]] = [[() for _ in shape] for shape in shapes]
    for number, cut in enumerate(cuts):
        for value, dim in enumerate(cut.dims):
            if dim is None:
                continue
            inside = shapes[value][dim] // factors[number].size
            tensors[value][dim] = (number,)
            if inside > 1:
                tensors[value][dim] = (number, len(factors))
                factors.append(Factor(inside, FactorKind.NEED_REPLICATION))
    dims: list[Dims] = [tuple(tensor) for tensor in tensors]
    return FactorRule(tuple(factors), tuple(dims[:num_operands]), tuple(dims[num_operands:]))
