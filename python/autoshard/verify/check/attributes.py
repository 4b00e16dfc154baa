"""Sizes in the attributes of ops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from autoshard.ir import mlir
from autoshard.ir.types import numpy_type

Numbers = Sequence[int]


def shape_of(value: mlir.Value) -> tuple[int, ...]:
    """Shape of a tensor; that of other values is empty."""
    type_ = value.type
    return tuple(type_.shape) if isinstance(type_, mlir.RankedTensorType) else ()


def numbers_of(op: mlir.Operation, name: str, default: Numbers | None = None) -> list[int]:
    """A list of numbers, ``default`` where there is none."""
    if default is not None and name not in op.attributes:
        return list(default)
    return list(cast(Sequence[int], mlir.DenseI64ArrayAttr(op.attributes[name])))


def pairs_of(op: mlir.Operation, name: str, count: int) -> list[tuple[int, int]]:
    """A list of ``count`` pairs, of zeros where there is none."""
    if name not in op.attributes:
        return [(0, 0)] * count
    dense = mlir.DenseIntElementsAttr(op.attributes[name])
    values = [int(dense[index]) for index in range(len(dense))]
    return list(zip(values[::2], values[1::2], strict=True))


def integer_of(op: mlir.Operation, name: str) -> int:
    """One number."""
    return mlir.IntegerAttr(op.attributes[name]).value


@dataclass(frozen=True, slots=True)
class Constant:
    """What a ``stablehlo.constant`` says, read from its text: bindings know few element types."""

    body: str
    """What stands in ``dense<..>``."""
    type: mlir.RankedTensorType

    @classmethod
    def of(cls, op: mlir.Operation) -> Constant:
        """As the attribute has it; the type of the result may have changed already."""
        try:
            text = str(op.attributes["value"])
        except TypeError:  # complex numbers
            text = str(op.get_asm(use_local_scope=True))
        start = text.index("dense<") + len("dense<")
        end = text.index("> : tensor<", start)
        rest = text[end + len("> : ") :]
        depth = 0
        for place, letter in enumerate(rest):
            depth += (letter == "<") - (letter == ">")
            if letter == ">" and depth == 0:
                type_ = mlir.Type.parse(rest[: place + 1], op.context)
                return cls(text[start:end], mlir.RankedTensorType(type_))
        raise AssertionError("a constant has a type")

    @property
    def is_splat(self) -> bool:
        """One number for all elements."""
        return bool(self.body) and not self.body.startswith(("[", _HEX))

    @property
    def first(self) -> complex:
        """The first element, the only one of a splat."""
        return complex(self.values.reshape(-1)[0])

    @property
    def values(self) -> np.ndarray:
        """All elements, a splat as an array of one."""
        dtype = numpy_type(self.type.element_type)
        shape = () if self.is_splat else tuple(self.type.shape)
        if self.body.startswith(_HEX):
            data = bytes.fromhex(self.body[len(_HEX) : -1])
            if dtype == np.bool_:
                bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
                return bits[: prod(shape)].astype(dtype).reshape(shape)
            return np.frombuffer(data, dtype).reshape(shape)
        found = [_number(text, dtype) for text in _NUMBER.findall(self.body)]
        if dtype.kind == "c":
            found = [a + 1j * b for a, b in zip(found[::2], found[1::2], strict=True)]
        return np.array(found).astype(dtype).reshape(shape)


def cut_constant(op: mlir.Operation, shape: Sequence[int]) -> None:
    """The first elements of a constant, in every dim."""
    constant = Constant.of(op)
    if list(constant.type.shape) == list(shape):
        return
    new_type = mlir.RankedTensorType.get(shape, constant.type.element_type)
    values = constant.values
    set_constant(op, values if constant.is_splat else values[tuple(map(slice, shape))], new_type)


def set_constant(op: mlir.Operation, values: np.ndarray, type_: mlir.Type) -> None:
    """Write the value of a constant; an array of one is a splat.

    A complex one becomes another op: bindings take no such attribute.
    """
    if values.dtype.kind != "c":
        op.attributes["value"] = dense_of(values, type_)
        return
    text = f"{{value = {_dense_text(values, type_)}}} : () -> {type_}"
    made = mlir.Operation.parse(f'"stablehlo.constant"() {text}', context=op.context).operation
    for name in op.attributes:
        if name != "value":
            made.attributes[name] = op.attributes[name]
    mlir.InsertionPoint(op).insert(made)
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def dense_of(values: np.ndarray, type_: mlir.Type) -> mlir.Attribute:
    """An array as a constant of a type."""
    if values.dtype == np.bool_:
        if values.ndim == 0:
            return mlir.Attribute.parse(f"dense<{str(bool(values)).lower()}> : {type_}")
        return mlir.DenseElementsAttr.get(cast(Any, np.ascontiguousarray(values)), type=type_)
    return mlir.Attribute.parse(_dense_text(values, type_))


def _dense_text(values: np.ndarray, type_: mlir.Type) -> str:
    return f'dense<{_HEX}{values.tobytes().hex()}"> : {type_}'


_HEX = '"0x'
_NUMBER = re.compile(r"true|false|0x[0-9A-Fa-f]+|-?\d[\d.]*(?:[eE][+-]?\d+)?")


def _number(text: str, dtype: np.dtype[np.generic]) -> complex:
    """A number as MLIR writes it: in hex what is infinite, or no number."""
    if text in ("true", "false"):
        return text == "true"
    if not text.startswith("0x"):
        return float(text) if dtype.kind in "fVc" else int(text)
    part = dtype if dtype.kind != "c" else np.empty(0, dtype).real.dtype
    bits = int(text, 16).to_bytes(part.itemsize, "little")
    return float(np.frombuffer(bits, part)[0].astype(np.float64))
