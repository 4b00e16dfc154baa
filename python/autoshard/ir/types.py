"""Facts about MLIR's types."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from autoshard.errors import ImportModuleError


def element_bits(element: ir.Type) -> int:
    """Bits one element takes in memory: a predicate 8, a complex number those of both parts.

    Raises:
        ImportModuleError: A type without a width, such as a token.
    """
    if isinstance(element, ir.ComplexType):
        return 2 * element_bits(element.element_type)
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return 8 if element.width == 1 else element.width
    raise ImportModuleError(f"element type {element} has no known width.")


def tensor_bytes(type_: ir.Type) -> float:
    """Bytes of a tensor; 0: it is a token, or has no static shape.

    Raises:
        ImportModuleError: Its elements have no known width.
    """
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return 0.0
    return math.prod(type_.shape) * element_bits(type_.element_type) / 8


def numpy_type(element: ir.Type) -> np.dtype[np.generic]:
    """How NumPy calls an element type.

    Raises:
        ImportModuleError: NumPy has no such type.
    """
    text = str(element)
    name = _NUMPY_NAMES.get(text) or re.sub(r"^(u?)i(\d+)$", r"\1int\2", text)
    holder = ml_dtypes if hasattr(ml_dtypes, name) else np
    if not hasattr(holder, name):
        raise ImportModuleError(f"element type {text} has no name in NumPy.")
    return np.dtype(getattr(holder, name))


_NUMPY_NAMES = {
    "i1": "bool_",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}
