"""Ops on one device's blocks, collectives among them: what the forms of this package write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import numpy as np

from autoshard.ir import mlir, stablehlo
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.ir.constants import constant, zeros
from autoshard.ir.module import operations_of
from autoshard.ir.reading import element_of, shape_of
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.placement import IntArray
from autoshard.sharding.sharding import AxisRef, Sharding

_CHANNEL = "channel_handle"

Axes = tuple[AxisRef, ...]
"""Axes that cut one dim, major first."""


Enter = Callable[[mlir.Value, mlir.InsertionPoint, mlir.Location], mlir.Value]


@dataclass(slots=True)
class Emitter:
    """Writes StableHLO into a region that every device runs on its own blocks."""

    where: mlir.InsertionPoint
    why: mlir.Location
    mesh: Mesh
    channels: Iterator[int]
    """Numbers that no collective of the module has."""
    enter: Enter | None = None
    """Brings a value that is whole on every device onto the blocks, where GSPMD has to be told."""

    # Ops ------------------------------------------------------------------------------------

    def op(
        self,
        name: str,
        types: Sequence[mlir.Type],
        operands: Sequence[mlir.Value],
        attributes: dict[str, mlir.Attribute] | None = None,
        regions: int = 0,
    ) -> mlir.Operation:
        """Any op."""
        return mlir.Operation.create(
            name,
            results=list(types),
            operands=list(operands),
            attributes=attributes or {},
            regions=regions,
            loc=self.why,
            ip=self.where,
        )

    def value(
        self,
        name: str,
        type_: mlir.Type,
        operands: Sequence[mlir.Value],
        attributes: dict[str, mlir.Attribute] | None = None,
    ) -> mlir.Value:
        """The result of an op that has one."""
        return self.op(name, [type_], operands, attributes).results[0]

    def slice(
        self, value: mlir.Value, dim: int, start: int, limit: int, stride: int = 1
    ) -> mlir.Value:
        """Every ``stride``-th element of ``[start, limit)`` along ``dim``."""
        shape = shape_of(value)
        if (start, limit, stride) == (0, shape[dim], 1):
            return value
        starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
        starts[dim], limits[dim], strides[dim] = start, limit, stride
        type_ = with_size(value.type, dim, -(-(limit - start) // stride))
        attributes = {
            "start_indices": int_array(starts),
            "limit_indices": int_array(limits),
            "strides": int_array(strides),
        }
        return self.value("stablehlo.slice", type_, [value], attributes)

    def concatenated(self, values: Sequence[mlir.Value], dim: int) -> mlir.Value:
        """The values behind each other along ``dim``."""
        if len(values) == 1:
            return values[0]
        type_ = with_size(values[0].type, dim, sum(shape_of(value)[dim] for value in values))
        int64 = mlir.IntegerType.get_signless(64)
        return self.value(
            "stablehlo.concatenate", type_, values, {"dimension": mlir.IntegerAttr.get(int64, dim)}
        )

    def padded(
        self,
        value: mlir.Value,
        dim: int,
        low: int,
        high: int,
        interior: int = 0,
        fill: mlir.Value | None = None,
    ) -> mlir.Value:
        """``stablehlo.pad`` along ``dim``, with zeros where there is no ``fill``."""
        if not (low or high or interior):
            return value
        shape = shape_of(value)
        size = shape[dim] + low + high + max(0, shape[dim] - 1) * interior
        lows, highs, interiors = ([0] * len(shape) for _ in range(3))
        lows[dim], highs[dim], interiors[dim] = low, high, interior
        attributes = {
            "edge_padding_low": int_array(lows),
            "edge_padding_high": int_array(highs),
            "interior_padding": int_array(interiors),
        }
        fill = fill or self.zeros(mlir.RankedTensorType.get([], element_of(value)))
        return self.value(
            "stablehlo.pad", with_size(value.type, dim, size), [value, fill], attributes
        )

    def reshaped(self, value: mlir.Value, shape: Sequence[int]) -> mlir.Value:
        """The same elements in another shape."""
        if tuple(shape) == shape_of(value):
            return value
        return self.value("stablehlo.reshape", tensor(shape, element_of(value)), [value])

    def broadcast(
        self, value: mlir.Value, shape: Sequence[int], dims: Sequence[int] = ()
    ) -> mlir.Value:
        """``value`` along ``dims`` of a tensor of ``shape``."""
        return self.value(
            "stablehlo.broadcast_in_dim",
            tensor(shape, element_of(value)),
            [value],
            {"broadcast_dimensions": int_array(dims)},
        )

    def dynamic_slice(
        self, value: mlir.Value, starts: Sequence[mlir.Value], sizes: Sequence[int]
    ) -> mlir.Value:
        """``sizes`` elements from ``starts`` on, which are clamped."""
        return self.value(
            "stablehlo.dynamic_slice",
            tensor(sizes, element_of(value)),
            [value, *starts],
            {"slice_sizes": int_array(sizes)},
        )

    def slice_at(self, value: mlir.Value, dim: int, start: mlir.Value, size: int) -> mlir.Value:
        """``size`` elements along ``dim`` from ``start`` on, a scalar; it is clamped."""
        shape = list(shape_of(value))
        zero = self.scalar(0, element_of(start))
        starts = [zero] * len(shape)
        shape[dim], starts[dim] = size, start
        return self.dynamic_slice(value, starts, shape)

    def update_at(
        self, value: mlir.Value, update: mlir.Value, starts: Sequence[mlir.Value]
    ) -> mlir.Value:
        """``value`` with ``update`` written over it; ``starts`` are clamped."""
        return self.value("stablehlo.dynamic_update_slice", value.type, [value, update, *starts])

    # Numbers --------------------------------------------------------------------------------

    def zeros(self, type_: mlir.Type) -> mlir.Value:
        """A tensor of zeros."""
        return self._entered(zeros(type_, self.where, self.why).results[0])

    def scalar(self, number: int, element: mlir.Type) -> mlir.Value:
        """An integer of rank 0."""
        return self.numbers(np.array(number), element)

    def numbers(self, numbers: Any, element: mlir.Type) -> mlir.Value:
        """A constant of integers."""
        array: IntArray = np.asarray(numbers, np.int64)
        type_ = tensor(array.shape, element)
        return self._entered(constant(type_, str(array.tolist()), self.where, self.why).results[0])

    def _entered(self, value: mlir.Value) -> mlir.Value:
        """XLA makes one of equal constants; so this one enters the blocks like any other value."""
        return value if self.enter is None else self.enter(value, self.where, self.why)

    def iota(self, shape: Sequence[int], dim: int, element: mlir.Type) -> mlir.Value:
        """Each element's index along ``dim``."""
        int64 = mlir.IntegerType.get_signless(64)
        return self.value(
            "stablehlo.iota",
            tensor(shape, element),
            [],
            {"iota_dimension": mlir.IntegerAttr.get(int64, dim)},
        )

    def binary(self, name: str, a: mlir.Value, b: mlir.Value) -> mlir.Value:
        """``add``, ``subtract``, ``minimum``, ... of two tensors of one type."""
        return self.value(f"stablehlo.{name}", a.type, [a, b])

    def compared(self, direction: str, a: mlir.Value, b: mlir.Value) -> mlir.Value:
        """``LT``, ``GE``, ... of two tensors of integers."""
        bits = mlir.IntegerType.get_signless(1)
        attribute = mlir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
        return self.value(
            "stablehlo.compare",
            tensor(shape_of(a), bits),
            [a, b],
            {"comparison_direction": attribute},
        )

    def selected(self, where: mlir.Value, a: mlir.Value, b: mlir.Value) -> mlir.Value:
        """``a`` where it is true, else ``b``."""
        return self.value("stablehlo.select", a.type, [where, a, b])

    def converted(self, value: mlir.Value, element: mlir.Type) -> mlir.Value:
        """The same numbers in another type."""
        if element_of(value) == element:
            return value
        return self.value("stablehlo.convert", tensor(shape_of(value), element), [value])

    def clamped(self, value: mlir.Value, low: int, high: int) -> mlir.Value:
        """A scalar within ``[low, high]``."""
        element = element_of(value)
        bounds = self.scalar(low, element), self.scalar(high, element)
        return self.value("stablehlo.clamp", value.type, [bounds[0], value, bounds[1]])

    # Devices --------------------------------------------------------------------------------

    def index(self, axes: Axes) -> mlir.Value:
        """Which block of a dim that ``axes`` cut this device has: an int32 of rank 0."""
        int32 = mlir.IntegerType.get_signless(32)
        unsigned = mlir.IntegerType.get_unsigned(32)
        manual: dict[str, mlir.Attribute] = {}
        if self.enter is not None:
            manual[MHLO_SHARDING] = mlir.StringAttr.get("{manual}")
        number = self.value("stablehlo.partition_id", tensor((), unsigned), [], manual)
        number = self.converted(number, int32)
        if self.mesh.device_ids is not None:
            return self.looked_up(block_numbers(self.mesh, axes).tolist(), number)
        total: mlir.Value | None = None
        minor = num_blocks(self.mesh, axes)
        for axis in axes:
            size = _size(self.mesh, axis)
            minor //= size
            digit = self.binary("divide", number, self.scalar(_stride(self.mesh, axis), int32))
            digit = self.binary("remainder", digit, self.scalar(size, int32))
            digit = self.binary("multiply", digit, self.scalar(minor, int32))
            total = digit if total is None else self.binary("add", total, digit)
        assert total is not None
        return total

    def looked_up(self, table: Sequence[int], index: mlir.Value) -> mlir.Value:
        """``table[index]`` of int32."""
        if len(set(table)) == 1:
            return self.scalar(table[0], mlir.IntegerType.get_signless(32))
        constant = self.numbers(table, mlir.IntegerType.get_signless(32))
        return self.reshaped(self.dynamic_slice(constant, [index], [1]), ())

    def shifted(self, value: mlir.Value, axes: Axes, hops: int) -> mlir.Value:
        """What the device ``hops`` blocks before this one has as ``value``; zeros before all."""
        blocks = num_blocks(self.mesh, axes)
        pairs = [
            (int(row[source]), int(row[source + hops]))
            for row in _devices(self.mesh, axes)
            for source in range(blocks)
            if 0 <= source + hops < blocks
        ]
        if not pairs:
            return self.zeros(value.type)
        return self.value(
            "stablehlo.collective_permute",
            value.type,
            [value],
            {
                "source_target_pairs": pair_array(pairs),
                "channel_handle": stablehlo.ChannelHandle.get(next(self.channels), 1),
            },
        )


def free_channels(module: mlir.Module) -> Iterator[int]:
    """Numbers that no collective of ``module`` has when the first one is asked for."""
    ops = operations_of(module.operation)
    taken = (op.attributes[_CHANNEL] for op in ops if _CHANNEL in op.attributes)
    yield from count(1 + max((stablehlo.ChannelHandle(it).handle for it in taken), default=0))


def block_numbers(mesh: Mesh, axes: Axes) -> IntArray:
    """For each device which block of a dim that ``axes`` cut it has, by its number."""
    positions = np.arange(mesh.size)
    total = np.zeros(mesh.size, np.int64)
    for axis in axes:
        size = _size(mesh, axis)
        total = total * size + positions // _stride(mesh, axis) % size
    found = np.empty(mesh.size, np.int64)
    found[mesh.device_order()] = total
    return found


def num_blocks(mesh: Mesh, axes: Axes) -> int:
    """Into how many blocks ``axes`` cut a dim."""
    return prod(_size(mesh, axis) for axis in axes)


def _devices(mesh: Mesh, axes: Axes) -> IntArray:
    """A row for every group of devices that differ in ``axes`` alone, in the order of blocks."""
    numbers = block_numbers(mesh, axes)
    count = int(numbers.max()) + 1
    order = mesh.device_order()
    # Devices of one block are in mesh order, so those at one place in it form a group.
    by_block = np.argsort(numbers[order], kind="stable")
    return order[by_block].reshape(count, -1).T


def _size(mesh: Mesh, axis: AxisRef) -> int:
    return mesh.axis_size(axis.name) if axis.size is None else axis.size


def _stride(mesh: Mesh, axis: AxisRef) -> int:
    """Between mesh positions that differ by one along ``axis``."""
    inside = prod(mesh.axis_sizes[mesh.axis_index(axis.name) + 1 :])
    if axis.size is None:
        return inside
    return inside * (mesh.axis_size(axis.name) // (axis.pre_size * axis.size))


def tensor(shape: Sequence[int], element: mlir.Type) -> mlir.Type:
    """The type of a tensor."""
    return mlir.RankedTensorType.get(list(shape), element)


def with_size(type_: mlir.Type, dim: int, size: int) -> mlir.Type:
    """The type with another size of ``dim``."""
    old = mlir.RankedTensorType(type_)
    shape = list(old.shape)
    shape[dim] = size
    return mlir.RankedTensorType.get(shape, old.element_type)


def int_array(numbers: Sequence[int]) -> mlir.Attribute:
    """``array<i64: ..>``."""
    return mlir.DenseI64ArrayAttr.get(list(numbers))


def pair_array(pairs: Sequence[tuple[int, int]]) -> mlir.Attribute:
    """The attribute of such pairs."""
    rows = [list(pair) for pair in pairs]
    return mlir.Attribute.parse(f"dense<{rows}> : tensor<{len(rows)}x2xi64>")


def local_shape(type_: mlir.Type, sharding: Sharding) -> tuple[int, ...]:
    """Shape of one device's block."""
    return tuple(sharding.local_shape(mlir.RankedTensorType(type_).shape))


def local_type(type_: mlir.Type, sharding: Sharding) -> mlir.Type:
    """Type of one device's block."""
    old = mlir.RankedTensorType(type_)
    return mlir.RankedTensorType.get(sharding.local_shape(old.shape), old.element_type)
