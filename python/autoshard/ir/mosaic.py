"""The MLIR of TPU kernels: bytecode of any version, whose ops keep the names of that version."""

from __future__ import annotations

import io
import sys
import types

from jaxlib.mlir import ir
from jaxlib.mosaic.python import tpu

from autoshard.ir.module import new_context

# MLIR looks for a Python module of the dialect of each op that it hands out, in four places, and
# forgets that there was none: 0.15 ms an op.
_STABLE_FORM = "jaxlib.mlir.dialects.stable_mosaic"
sys.modules.setdefault(_STABLE_FORM, types.ModuleType(_STABLE_FORM))


def parse_kernel(bytecode: bytes) -> ir.Module | None:
    """The module of a kernel; None where this jaxlib cannot read it.

    Ops of the stable form, ``stable_mosaic.arith.addi``, are not translated: that could only be
    done for versions that this jaxlib knows, and nothing but their names would change.
    """
    context = new_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    try:
        with context, ir.Location.unknown(context):
            return ir.Module.parse(bytecode)
    except ir.MLIRError:
        return None


def kernel_bytecode(module: ir.Module) -> bytes:
    """As ``tpu_custom_call`` takes it."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer, desired_version=0)
    return buffer.getvalue()
