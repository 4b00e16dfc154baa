"""Rows of arrays that lie on other stages between steps than on those that work on them.

before  part n of an array on stage ``n % stages``: rows of a stage are not next to each other
lies    part n on stage ``n // chunks``: one block a stage, which an array of JAX can have
a step  cuts each block into its parts, sends them, and sends what replaces them back
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
from jax.sharding import Mesh, NamedSharding

from autoshard.pipeline.transfers import SentValue, is_here, sender, without_parts
from autoshard.rewrites.layer_loops.parts import ArrayParts


@dataclass(frozen=True, slots=True)
class RowMoves:
    """What moving rows costs a step."""

    seconds: float = 0.0
    """Before and behind it, in which nothing else is done."""
    kept_bytes: tuple[float, ...] = ()
    """By stage, on one device: blocks that the caller keeps all along."""
    moving_bytes: tuple[float, ...] = ()
    """By stage, on one device: all arguments, or results, as they lie, cut, and as a step has
    them."""


@dataclass(frozen=True, slots=True)
class MovedRow:
    """A part of an array, as an argument or result of ``main``."""

    number: int
    home: int
    """The stage on which it lies between steps."""
    stage: int
    """The one that works on it."""


@dataclass(frozen=True, slots=True)
class MovedArray:
    """An array of which rows are moved."""

    shape: tuple[int, ...]
    """Sizes of a part."""
    dtype: Any
    parts: ArrayParts
    sharding: Callable[[Mesh], NamedSharding]
    """How a part, or a block, lies over the mesh of a stage."""

    def sent(self, origin: Mesh, target: Mesh) -> SentValue:
        """A part on its way."""
        sides = self.sharding(origin), self.sharding(target)
        return SentValue(self.shape, self.dtype, *sides, is_callers=False)


_Part = tuple[int, int]
"""Number of an array, and of one of its parts."""


class RowMover:
    """Moves rows of some of the arguments, or of the results, of a step."""

    def __init__(
        self, arrays: Mapping[int, MovedArray], meshes: Sequence[Mesh], *, is_result: bool
    ) -> None:
        """Compile what cuts blocks, or what makes them.

        Args:
            arrays: By number.
            meshes: Of the stages.
            is_result: Are rows sent to where they lie, not from there?
        """
        self.arrays, self.meshes = arrays, meshes
        lying: dict[int, list[_Part]] = {}
        ways: dict[tuple[int, int], list[_Part]] = {}
        for number, array in arrays.items():
            ends = zip(array.parts.homes, array.parts.stages, strict=True)
            for part, (home, stage) in enumerate(ends):
                lying.setdefault(home, []).append((number, part))
                if home != stage:
                    way = (stage, home) if is_result else (home, stage)
                    ways.setdefault(way, []).append((number, part))
        self._lying = lying
        """What lies on each stage."""
        self._ways = [
            (parts, target, sender([self._sent(*part, origin, target) for part in parts]))
            for (origin, target), parts in sorted(ways.items())
        ]
        self._programs = {
            stage: self._compiled(stage, parts, is_result)
            for stage, parts in lying.items()
            if is_here(meshes[stage])
        }

    def apart(self, blocks: Mapping[int, Sequence[Any]]) -> dict[int, list[Any]]:
        """The parts of each array, on the stages that work on them.

        Args:
            blocks: Of each array, in its order.
        """
        found: dict[_Part, Any] = {}
        for stage, parts in self._lying.items():
            numbers = list(dict.fromkeys(number for number, _ in parts))
            if stage not in self._programs:
                found |= {part: self._absent(*part, stage) for part in parts}
                continue
            its = [blocks[n][self.arrays[n].parts.places.index(stage)] for n in numbers]
            found |= dict(zip(parts, self._programs[stage](*its), strict=True))
        self._send(found)
        return {
            number: [found[number, part] for part in range(len(array.parts.stages))]
            for number, array in self.arrays.items()
        }

    def together(self, parts: Mapping[int, Sequence[Any]]) -> dict[int, list[Any]]:
        """The blocks of each array, on the stages on which they lie.

        Args:
            parts: Of each array, on the stages that have worked on them.
        """
        found = {(n, part): one for n, its in parts.items() for part, one in enumerate(its)}
        self._send(found)
        blocks: dict[int, list[Any]] = {number: [] for number in self.arrays}
        made: dict[tuple[int, int], Any] = {}
        for stage, lying in self._lying.items():
            numbers = list(dict.fromkeys(number for number, _ in lying))
            if stage not in self._programs:
                made |= {(n, stage): self._absent_block(n, stage) for n in numbers}
                continue
            its = self._programs[stage](*(found[part] for part in lying))
            made |= {(n, stage): block for n, block in zip(numbers, its, strict=True)}
        for number, array in self.arrays.items():
            blocks[number] = [made[number, stage] for stage in array.parts.places]
        return blocks

    def _send(self, found: dict[_Part, Any]) -> None:
        """All that is moved; each is replaced by what arrives."""
        for parts, target, send in self._ways:
            if send is None:
                found |= {part: self._absent(*part, target) for part in parts}
                continue
            found |= dict(zip(parts, send([found[part] for part in parts]), strict=True))

    def _sent(self, number: int, part: int, origin: int, target: int) -> SentValue:
        return self.arrays[number].sent(self.meshes[origin], self.meshes[target])

    def _absent(self, number: int, part: int, stage: int) -> jax.Array:
        array = self.arrays[number]
        return without_parts(array.shape, array.dtype, array.sharding(self.meshes[stage]))

    def _absent_block(self, number: int, stage: int) -> jax.Array:
        array = self.arrays[number]
        shape = _block_shape(array)
        return without_parts(shape, array.dtype, array.sharding(self.meshes[stage]))

    def _compiled(self, stage: int, parts: Sequence[_Part], is_result: bool) -> Any:
        """Cuts the blocks of a stage, or makes them."""
        numbers = list(dict.fromkeys(number for number, _ in parts))
        its = [self.arrays[number] for number in numbers]
        mesh = self.meshes[stage]

        def type_of(array: MovedArray, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, array.dtype, sharding=array.sharding(mesh))

        own = [type_of(self.arrays[number], self.arrays[number].shape) for number, _ in parts]
        blocks = [type_of(array, _block_shape(array)) for array in its]
        taken, given = (own, blocks) if is_result else (blocks, own)
        write = partial(_joined if is_result else _cut, its)
        shardings = [cast(Any, one).sharding for one in given]
        return jax.jit(write, out_shardings=shardings).lower(*taken).compile()


def _block_shape(array: MovedArray) -> tuple[int, ...]:
    """Sizes of what lies on one stage."""
    parts, shape = array.parts, array.shape
    rows = shape[parts.dim] * (len(parts.stages) // len(parts.places))
    return (*shape[: parts.dim], rows, *shape[parts.dim + 1 :])


def _cut(arrays: Sequence[MovedArray], *blocks: jax.Array) -> list[jax.Array]:
    return [
        part
        for array, block in zip(arrays, blocks, strict=True)
        for part in jax.numpy.split(
            block, block.shape[array.parts.dim] // array.shape[array.parts.dim], array.parts.dim
        )
    ]


def _joined(arrays: Sequence[MovedArray], *parts: jax.Array) -> list[jax.Array]:
    found: list[jax.Array] = []
    for array in arrays:
        count = len(array.parts.stages) // len(array.parts.places)
        found.append(jax.numpy.concatenate(parts[:count], array.parts.dim))
        parts = parts[count:]
    return found
