"""Pins of the core's values, in the order in which they are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoshard import _core
from autoshard.errors import StrategyError
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.pins import DimPin, Pin, Pinned, pin_of, pin_of_sharding
from autoshard.importer.value_types import TypeTable, ValueType
from autoshard.ir import mlir, place
from autoshard.ir.attributes import PIN, attribute_of
from autoshard.sharding import Mesh, Sharding


class PinnedValues:
    """What the user fixed, and what the types of values ask for. Values of rank 0 have no pin."""

    def __init__(self, builder: _core.ProgramBuilder, types: TypeTable, mesh: Mesh) -> None:
        self.all: list[Pinned] = []
        self._builder = builder
        self._types = types
        self._mesh = mesh
        self._first: dict[int, Pinned] = {}
        """The first that the user gave each value."""
        self._marks: dict[int, Pinned] = {}
        """The first that a mark gave each argument."""
        self._read: dict[tuple[str, tuple[int, ...]], Pin] = {}

    # What the user fixed

    def pin(
        self,
        value: int,
        op: mlir.Operation,
        attribute: mlir.Attribute,
        *,
        at_boundary: bool = False,
    ) -> None:
        """Pin ``value`` as the text of an ``autoshard.pin`` says; no boundary is padded."""
        if value != NO_VALUE:
            pin = self._pin_of(value, op, attribute, at_boundary=at_boundary)
            self._add(value, op, pin, mlir.StringAttr(attribute).value)

    def pin_results(self, op: mlir.Operation, values: Sequence[int]) -> None:
        """Pin the results of an op as its ``autoshard.pin`` says, if it has one."""
        for value, attribute in _pins_on(op, values):
            self.pin(value, op, attribute)

    def pin_sharding(self, value: int, op: mlir.Operation, sharding: Sharding) -> None:
        """Pin ``value`` to a sharding that ``op`` says."""
        if value != NO_VALUE:
            shape = self._type(value).counted
            pin = pin_of_sharding(sharding, self._mesh, shape, place(op.location))
            self._add(value, op, pin, str(sharding))

    def contradicted(self, op: mlir.Operation, values: Sequence[int]) -> list[int]:
        """Which of its results an op pins otherwise than the core's values are, by position."""
        return [
            position
            for position, (value, attribute) in enumerate(_pins_on(op, values))
            if (first := self._first.get(value)) is not None
            and not self._pin_of(value, op, attribute).agrees(first.pin)
        ]

    def mark_argument(self, argument: int, marked: int) -> None:
        """An argument that a marked op reads lies as the mark says, unless it is pinned itself.

        Read by two marked ops it must be wanted in one sharding by both.

        Args:
            argument: Of ``main``.
            marked: What the mark makes of it, pinned.
        """
        pinned = self._first[marked]
        if argument not in self._marks and all(known.value != argument for known in self.all):
            self.all.append(replace(pinned, value=argument))
        first = self._marks.setdefault(argument, pinned)
        if first.text != pinned.text:
            raise StrategyError(
                f"two strategies contradict on one argument: {first.text} at {first.place} and "
                f"{pinned.text} at {pinned.place}. Give both ops one strategy for it, or "
                "reshard it for one of them with jax.lax.with_sharding_constraint.",
                pinned.place,
            )

    # What only the type of a value asks for

    def keep_whole(self, value: int, op: mlir.Operation) -> None:
        """Cut no dim: XLA gives each device all of an array without elements, cut or not."""
        self._keep(value, op, [False] * len(self._type(value).shape))

    def keep_indivisible_whole(self, value: int, op: mlir.Operation) -> bool:
        """Leave all dims open but those that would have to be padded; False if there are none."""
        if value == NO_VALUE or not (type_ := self._type(value)).is_padded:
            return False
        sizes = zip(type_.shape, type_.counted, strict=True)
        self._keep(value, op, [size == counted for size, counted in sizes])
        return True

    def keep_key_words(self, value: int, op: mlir.Operation, attribute: mlir.Attribute) -> None:
        """Leave all dims of an array of PRNG keys open but the words of a key, which stay whole."""
        if value != NO_VALUE:
            rank, words = len(self._type(value).shape), mlir.IntegerAttr(attribute).value
            self._keep(value, op, [dim < rank - words for dim in range(rank)])

    def _keep(self, value: int, op: mlir.Operation, are_open: Sequence[bool]) -> None:
        pin = Pin(tuple(DimPin(is_open=is_open) for is_open in are_open))
        text = f"[{', '.join('{?}' if is_open else '{}' for is_open in are_open)}]"
        self.all.append(Pinned(value, pin, place(op.location), text, is_users=False))

    # Reading and writing down

    def _add(self, value: int, op: mlir.Operation, pin: Pin, text: str) -> None:
        pinned = Pinned(value, pin, place(op.location), text)
        self.all.append(pinned)
        self._first.setdefault(value, pinned)

    def _pin_of(
        self,
        value: int,
        op: mlir.Operation,
        attribute: mlir.Attribute,
        *,
        at_boundary: bool = False,
    ) -> Pin:
        text = mlir.StringAttr(attribute).value
        type_ = self._type(value)
        shape = type_.shape if at_boundary else type_.counted
        pin = self._read.get((text, shape))
        if pin is None:
            pin = self._read[text, shape] = pin_of(text, self._mesh, shape, place(op.location))
        return pin

    def _type(self, value: int) -> ValueType:
        return self._types[self._builder.type_of(value)]


def _pins_on(op: mlir.Operation, values: Sequence[int]) -> list[tuple[int, mlir.Attribute]]:
    """The results of an op, each with what is to be pinned; nothing if the op is not pinned."""
    attribute = attribute_of(op, PIN)
    if attribute is None:
        return []
    several = isinstance(attribute, mlir.ArrayAttr)
    texts = list(mlir.ArrayAttr(attribute)) if several else [attribute] * len(values)
    return list(zip(values, texts, strict=True))
