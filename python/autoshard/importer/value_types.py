"""Types of values: as the module has them, and as the core counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from autoshard import _core
from autoshard.errors import ImportModuleError
from autoshard.ir import element_bits, mlir, place
from autoshard.sharding.padding import padded_shape

NO_TYPE = _core.NO_TYPE

_HOST_BITS = 1
"""Bits of an element in the memory of the host: nearly nothing of the device's, but not nothing, so
that resharding it there is never free."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A tensor of rank 1 or more."""

    shape: tuple[int, ...]
    counted: tuple[int, ...]
    """The shape with the sizes that dims count as: padded, where they may be cut so."""
    bits: int
    """Bits of an element."""
    is_on_host: bool = False

    @property
    def is_padded(self) -> bool:
        """Whether some dim counts as larger than it is."""
        return self.shape != self.counted

    @property
    def is_empty(self) -> bool:
        """Whether there are no elements."""
        return 0 in self.shape

    @property
    def total_bits(self) -> int:
        """Bits of a value before it is cut."""
        return prod(self.shape) * self.bits


class TypeTable:
    """Numbers of the types of values, in the order in which they are met."""

    def __init__(self, padded_to: int) -> None:
        self.padded_to = padded_to
        """Dims count as a multiple of this; 1: as they are."""
        self._types: list[ValueType] = []
        self._numbers: dict[mlir.Type, int] = {}
        self._of_float32: dict[int, mlir.RankedTensorType] = {}
        self._rounded: dict[int, mlir.RankedTensorType] = {}
        self._on_host: dict[int, int] = {}

    def __getitem__(self, number: int) -> ValueType:
        return self._types[number]

    @property
    def all(self) -> Sequence[ValueType]:
        """All types, by number."""
        return self._types

    def number_of(self, value: mlir.Value, op: mlir.Operation) -> int:
        """The type of ``value``; ``NO_TYPE`` if it has rank 0 or is no tensor.

        Raises:
            ImportModuleError: A dynamic shape; the place is that of ``op``.
        """
        type_ = value.type
        known = self._numbers.get(type_)
        if known is not None:
            return known
        if isinstance(type_, mlir.RankedTensorType) and not type_.has_static_shape:
            raise ImportModuleError(
                f"{op.name}: dynamic shape {type_}. autoshard plans static shapes only: "
                "lower the function with concrete shapes.",
                place(op.location),
            )
        return self._number_of_type(type_)

    def rounded(self, number: int) -> int:
        """The type in bfloat16 of one in float32; ``NO_TYPE`` of others."""
        type_ = self._of_float32.get(number)
        if type_ is None:
            return NO_TYPE
        rounded = mlir.RankedTensorType.get(type_.shape, mlir.BF16Type.get(type_.context))
        found = self._number_of_type(rounded)
        self._rounded[found] = rounded
        return found

    def rounded_type(self, number: int) -> mlir.RankedTensorType:
        """One of ``rounded`` in the module's words."""
        return self._rounded[number]

    def on_host(self, number: int) -> int:
        """The same type in the memory of the host."""
        if number == NO_TYPE:
            return NO_TYPE
        if number not in self._on_host:
            there = replace(self._types[number], bits=_HOST_BITS, is_on_host=True)
            self._on_host[number] = self._add(there)
        return self._on_host[number]

    def core_types(self) -> list[_core.TensorType]:
        """All of them, by number."""
        return [
            _core.TensorType(type_.counted, type_.bits, is_on_host=type_.is_on_host)
            for type_ in self._types
        ]

    def _number_of_type(self, type_: mlir.Type) -> int:
        known = self._numbers.get(type_)
        if known is not None:
            return known
        number = NO_TYPE
        if isinstance(type_, mlir.RankedTensorType) and type_.rank:
            shape = tuple(type_.shape)
            counted = padded_shape(shape, self.padded_to)
            number = self._add(ValueType(shape, counted, element_bits(type_.element_type)))
            if isinstance(type_.element_type, mlir.F32Type):
                self._of_float32[number] = type_
        self._numbers[type_] = number
        return number

    def _add(self, type_: ValueType) -> int:
        self._types.append(type_)
        return len(self._types) - 1
