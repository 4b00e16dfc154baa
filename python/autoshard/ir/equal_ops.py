"""Join equal ops before anything is planned, as every compiler does.

JAX writes each constant, mask and transposed weight anew where it is used: a train step has a
quarter to two fifths of its ops twice. A plan of them would count their memory and time twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from autoshard.ir.module import functions_of
from autoshard.ir.native import run_native

_BLOCK = "autoshard.block"
"""On ops in the body of another op, a number for each body, while equal ones are joined."""


def join_equal_ops(module: ir.Module) -> None:
    """Make one of ops with the same operands and attributes, and drop those that nobody reads.

    The first one stays, with its line. Those of a loop, a branch or a reducer are joined with each
    other only: a body that reads a value from around it has to be given it, and compilers join none
    either. Ops that compute again behind a barrier read other values than the first time, so that
    they stay, as do those that say other shardings.

    Args:
        module: Changed in place.
    """
    with module.context:
        integer = ir.IntegerType.get_signless(64)
        for number, block in enumerate(_bodies(module)):
            mark = ir.IntegerAttr.get(integer, number)
            for op in block.operations:
                op.attributes[_BLOCK] = mark
        run_native(module, "builtin.module(func.func(cse))", verify=False)
        for block in _bodies(module):
            for op in block.operations:
                del op.attributes[_BLOCK]


def _bodies(module: ir.Module) -> Iterator[ir.Block]:
    """Blocks that stand in ops of functions."""
    around = [block for fn in functions_of(module).values() for block in fn.regions[0].blocks]
    while around:
        for op in around.pop().operations:
            for region in op.regions:
                for block in region.blocks:
                    around.append(block)
                    yield block
