"""Rules of kernels: a factor for each dim of the grid that may be cut, or as a table of known calls
says."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard._core import FactorKind
from autoshard.importer.factors import Dims, Factor, FactorRule
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.ir.reading import shape_of
from autoshard.kernels.cudnn_attention import cudnn_attention
from autoshard.kernels.cuts import Cut, cuts_of
from autoshard.kernels.mosaic import Kernel, aliases_of, is_tpu_kernel, kernel_of, talks_to_others


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
        found, rule = kernel_cuts(op), kernel_rule(op)
        if found is None or rule is None:
            return None
        kernel, cuts = found
        return ProvenKernel(
            cuts, kernel.num_tables, tuple(map(shape_of, (*op.operands, *op.results))), rule
        )


def kernel_cuts(op: mlir.Operation) -> tuple[Kernel, tuple[Cut, ...]] | None:
    """The kernel of a ``tpu_custom_call``, and what of its grid may be cut; None: nothing."""
    kernel = None if talks_to_others(op) else kernel_of(op)
    if kernel is None:
        return None
    behind = [*list(op.operands)[kernel.num_tables :], *op.results]
    cuts = cuts_of(kernel, tuple(map(shape_of, behind)), kernel_key(op))
    cuts = tuple(cut for cut in cuts if _cuts_aliases_alike(op, kernel, cut))
    return (kernel, cuts) if cuts else None


def kernel_key(op: mlir.Operation) -> tuple[bool, ...]:
    """What two kernels of equal types and attributes must share to have one rule.

    Of each result, whether anything reads it; nothing of other ops.
    """
    if not is_tpu_kernel(op):
        return ()
    return tuple(any(True for _ in result.uses) for result in op.results)


def _cuts_aliases_alike(op: mlir.Operation, kernel: Kernel, cut: Cut) -> bool:
    """Whether results that are written over operands are cut as those are."""
    first = kernel.num_tables
    dims = (*(None,) * first, *cut.array_dims)
    return all(
        dims[operand] == dims[len(op.operands) + result] for result, operand in aliases_of(op)
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
    """The rule of a ``tpu_custom_call``; None where nothing of it may be cut.

    A dim of an array that follows the grid is cut in as many parts as the grid is, so it is made of
    two factors: units of the grid, and what of the array belongs to one of them.
    """
    found = kernel_cuts(op)
    if found is None:
        return None
    kernel, cuts = found
    factors = [Factor(kernel.grid[cut.grid_dim] // cut.unit) for cut in cuts]
    values = [*op.operands, *op.results]
    tensors: list[list[tuple[int, ...]]] = [[() for _ in shape_of(value)] for value in values]
    for number, cut in enumerate(cuts):
        for window, dim in enumerate(cut.array_dims):
            if dim is None:
                continue
            value = kernel.num_tables + window
            inside = shape_of(values[value])[dim] // factors[number].size
            tensors[value][dim] = (number,)
            if inside > 1:
                tensors[value][dim] = (number, len(factors))
                factors.append(Factor(inside, FactorKind.NEED_REPLICATION))
    dims: list[Dims] = [tuple(tensor) for tensor in tensors]
    count = len(op.operands)
    return FactorRule(tuple(factors), tuple(dims[:count]), tuple(dims[count:]))
