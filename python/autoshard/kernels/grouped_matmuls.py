"""Which Pallas kernel is a grouped matmul like those of megablox: by its tables, blocks and body.

Such a kernel has the grid columns x rows x features (``gmm``) or columns x features x rows
(``tgmm``), of which the rows' size is known only when it runs, and four tables: where each group
begins, group and tile of rows at each place, and the number of the first group. Which dims of the
grid each block follows, through the tables, says what is multiplied with what; a body that does
nothing but multiply blocks, add that up and mask rows by where groups begin computes no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from autoshard.ir import mlir
from autoshard.ir.module import operations_of
from autoshard.ir.reading import shape_of
from autoshard.kernels.mosaic import (
    Kernel,
    Window,
    aliases_of,
    is_tpu_kernel,
    op_name,
    read_kernel,
    talks_to_others,
)
from autoshard.kernels.scalars import maker, roots

NUM_TABLES = 4
READ = 1, 4, 5, 6
"""Operands from which a device makes its part: where groups begin, the first group, and both
matrices. The size of the grid, and group and tile of rows at each place, are made of these."""
_PLACES = {1: "crf", 2: "cfr"}
"""What the dims of the grid go through, by the one whose size is known when it runs: rows (and with
them experts), features that are contracted, and columns."""
_FORMS: dict[tuple[str, ...], tuple[bool, bool]] = {
    ("rf", "rfc", "rc"): (False, False),
    ("rf", "rcf", "rc"): (False, True),
    ("rf", "rc", "rfc"): (True, False),
}
"""Whether it makes gradients of the matrices, and whether it takes them transposed, by what the
dims of both operands' and the result's blocks follow."""


class BlockDim(NamedTuple):
    """A dim of a block."""

    grid_dims: tuple[int, ...]
    """Dims of the grid by which its place is found."""
    extent: int | None
    """Elements; None: they vary."""


@dataclass(frozen=True)
class Form:
    """What a grouped matmul computes."""

    num_experts: int
    """Groups that there are sizes of."""
    tiling: tuple[int, int, int]
    """Rows, contracted features and other features of a block."""
    makes_weights: bool
    """Is it ``tgmm``, the gradient of the matrices?"""
    is_transposed: bool
    """Are the matrices of ``gmm`` contracted over their last dim?"""


def form_of(
    dynamic_dims: Sequence[int],
    blocks: Sequence[Sequence[BlockDim]],
    shapes: Sequence[Sequence[int]],
) -> Form | None:
    """What a kernel with three dims of its grid and four tables computes; None: it is another one.

    Args:
        dynamic_dims: Dims of the grid whose size is known when it runs.
        blocks: Of both operands and the result.
        shapes: Of the tables and the left operand.
    """
    if len(dynamic_dims) != 1 or len(blocks) != len(["lhs", "rhs", "result"]):
        return None
    places = _PLACES.get(dynamic_dims[0], "")
    followed = [[_followed(dim, places) for dim in block] for block in blocks]
    form = _FORMS.get(tuple("".join(each for each, _ in block) for block in followed))
    rows, features, columns = (_tile(followed, dim) for dim in "rfc")
    if form is None or not (rows and features and columns):
        return None
    *tables, lhs = (tuple(shape) for shape in shapes)
    num_experts = tables[0][0] - 1 if tables[0] else 0
    most = lhs[0] // rows + num_experts - 1
    if tables != [(num_experts + 1,), (most,), (most,), (1,)]:
        return None
    return Form(num_experts, (rows, features, columns), *form)


def form_in(op: mlir.Operation) -> Form | None:
    """What the kernel of a ``tpu_custom_call`` computes; None: it is no grouped matmul."""
    kernel = read_kernel(op) if is_tpu_kernel(op) else None
    is_alike = (
        kernel is not None
        and (len(kernel.grid), kernel.num_tables, len(kernel.windows)) == (3, NUM_TABLES, 3)
        and len(op.results) == 1
        and not (aliases_of(op) or talks_to_others(op))
        and _only_multiplies(kernel)
    )
    if kernel is None or not is_alike:
        return None
    dynamic = [dim for dim, size in enumerate(kernel.grid) if size <= 0]
    blocks = [_block_dims(kernel, window) for window in kernel.windows if window is not None]
    # In front of the tables are the sizes that are known when it runs.
    operands = list(op.operands)[len(dynamic) :]
    if len(operands) != NUM_TABLES + 2:
        return None
    return form_of(dynamic, blocks, [shape_of(value) for value in operands[: NUM_TABLES + 1]])


_SCALARS = (
    "constant cmpi index_cast extui extsi addi subi muli divsi remsi minsi maxsi andi ori xori"
)
_PASSES_ON = {
    *("arith.select", "arith.extf", "arith.truncf", "arith.addf"),
    *("vector.broadcast", "vector.shape_cast", "vector.transpose", "tpu.transpose"),
}
"""Ops whose result is made of entries of their operands, or of sums of two."""
_STORE = "tpu.vector_store"
_KNOWN = {
    *(f"arith.{name}" for name in _SCALARS.split()),
    *("scf.if", "scf.yield", "func.func", "func.return", "memref.load", "tpu.iteration_bound"),
    *("vector.load", "arith.sitofp", "tpu.iota", "tpu.matmul"),
    *(*_PASSES_ON, _STORE),
}
"""Ops of a body that multiplies blocks, adds up, and masks."""


def _only_multiplies(kernel: Kernel) -> bool:
    """Whether the body adds up products of its blocks, and masks rows by where groups begin.

    All that it stores is made of such products, zeros, and what it stored before.
    """
    ops = operations_of(kernel.body.owner.operation)
    if any(op_name(op) not in _KNOWN for op in ops):
        return False
    kept, blocks = {*kernel.scratch, *kernel.result_blocks}, set(kernel.blocks)
    products = {op.results[0] for op in ops if op_name(op) == "tpu.matmul"}
    adds = [op for op in ops if op_name(op) == "arith.addf"]
    return (
        bool(products)
        and all(_is_made_of(value, blocks, set()) for each in products for value in _read(each))
        and not any(products.isdisjoint(op.operands) for op in adds)
        and all(_is_made_of(op.operands[0], kept, products) for op in ops if op_name(op) == _STORE)
        and any(op_name(op) == "memref.load" and op.operands[0] == kernel.tables[0] for op in ops)
    )


def _read(product: mlir.Value) -> Sequence[mlir.Value]:
    return list(cast(mlir.Operation, maker(product)).operands)


def _is_made_of(
    value: mlir.Value, memory: Collection[mlir.Value], others: Collection[mlir.Value]
) -> bool:
    """Whether a value is made of what is in memory, of other values, and of zeros."""
    if value in others:
        return True
    op = maker(value)
    if op is None:
        return False
    name, operands = op_name(op), list(op.operands)
    if name == "vector.load":
        return operands[0] in memory
    if name == "arith.constant":
        return _is_zero(op.attributes["value"])
    if name == "arith.select":
        operands = operands[1:]  # any mask
    elif name not in _PASSES_ON and name != "arith.sitofp":
        return False
    return all(_is_made_of(each, memory, others) for each in operands)


def _is_zero(constant: mlir.Attribute) -> bool:
    if isinstance(constant, mlir.DenseElementsAttr):
        return constant.is_splat and _is_zero(constant.get_splat_value())
    return isinstance(constant, mlir.FloatAttr | mlir.IntegerAttr) and constant.value == 0


def _block_dims(kernel: Kernel, window: Window) -> list[BlockDim]:
    found: list[BlockDim] = []
    for extent, place in zip(window.block, window.place, strict=True):
        read = roots(place)
        found.append(
            BlockDim(
                tuple(dim for dim in range(len(kernel.grid)) if window.grid[dim] in read), extent
            )
        )
    return found


def _followed(dim: BlockDim, places: str) -> tuple[str, int | None]:
    """The dim of the grid that one of a block follows, and its extent."""
    is_one = len(dim.grid_dims) == 1 and bool(places)
    return (places[dim.grid_dims[0]] if is_one else "?"), dim.extent


def _tile(blocks: Sequence[Sequence[tuple[str, int | None]]], dim: str) -> int:
    """Extent of the blocks along one dim of the grid; 0: not everywhere the same."""
    sizes = {size for block in blocks for each, size in block if each == dim}
    if dim == "r":
        sizes -= {1}  # of matrices, there is one for each expert
    (size,) = sizes if len(sizes) == 1 else (0,)
    return size or 0
