"""Calls of ``autoshard.kernel``: composites that name a function of this process, and its rule."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.ir import mlir
from autoshard.ir.attributes import KERNEL, KERNEL_AMOUNTS, custom_call_target
from autoshard.ir.local_functions import LocalFunction, local_function, remember
from autoshard.ir.module import module_of

COMPOSITE = "stablehlo.composite"
RAGGED_DOT = "ragged_dot "
"""How keys of kernels begin that say all of a ``ragged_dot_general``."""
GROUPED_MATMUL = "grouped_matmul "
"""The same of a grouped matmul of megablox."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """What a composite says of its kernel."""

    name: str
    """Name of the user's function."""
    rule: str
    """In Shardy's notation."""
    is_unproven: bool
    """It is whole since nobody knows of a part of it."""
    matmul_flops: float
    """Operations of its matmuls; 0: those of what the composite is made of."""
    moved_again: float
    """Bytes that they move beside one pass over operands and results."""
    exponentials: float
    """Exponentials, roots and the like, for which the matmuls wait."""
    vector_flops: float
    """Other operations on vector units for which they wait."""
    product: mlir.Type | None
    """Elements that these multiply; None: those of the widest operand."""
    function: LocalFunction


_OPAQUE = frozenset({"__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2", "triton_kernel_call"})
"""Targets of kernels for GPUs that hold a program which nobody reads here."""


def is_opaque_kernel(op: mlir.Operation) -> bool:
    """Whether ``op`` calls a kernel for GPUs that is a program of its own."""
    return custom_call_target(op) in _OPAQUE


def is_kernel_call(op: mlir.Operation) -> bool:
    """Whether ``op`` is a call of ``autoshard.kernel``."""
    return op.name == COMPOSITE and mlir.StringAttr(op.attributes["name"]).value == KERNEL


def kernel_call(op: mlir.Operation) -> KernelCall | None:
    """The kernel that ``op`` calls.

    None: another op, or its function is of another process, so that nobody can lower it for the
    blocks of a device. What the composite is made of is then planned op by op.
    """
    if not is_kernel_call(op):
        return None
    attributes = mlir.DictAttr(op.attributes["composite_attributes"])
    key, name, rule = (mlir.StringAttr(attributes[it]).value for it in ("key", "name", "rule"))
    function = local_function(key) or _described(key)
    if function is None:
        return None
    is_unproven = mlir.BoolAttr(attributes["is_unproven"]).value
    flops, again, exponentials, others = (
        mlir.FloatAttr(attributes[it]).value for it in KERNEL_AMOUNTS
    )
    product = None
    if "product" in attributes:
        product = mlir.Type.parse(mlir.StringAttr(attributes["product"]).value, op.context)
    return KernelCall(
        name, rule, is_unproven, flops, again, exponentials, others, product, function
    )


def _described(key: str) -> LocalFunction | None:
    """The function that a key of another process describes; None: it only names one."""
    if key.startswith(RAGGED_DOT):
        from autoshard.kernels.ragged_dot import local_ragged_dot  # imports jax

        function = local_ragged_dot(key)
    elif key.startswith(GROUPED_MATMUL):
        from autoshard.kernels.megablox import local_grouped_matmul  # imports jax

        function = local_grouped_matmul(key)
    else:
        return None
    remember(function, key)
    return function


def decomposition_of(op: mlir.Operation) -> mlir.Operation:
    """The function that a composite stands for."""
    name = mlir.FlatSymbolRefAttr(op.attributes["decomposition"]).value
    return mlir.SymbolTable(module_of(op))[name].operation
