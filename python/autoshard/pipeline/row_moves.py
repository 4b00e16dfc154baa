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

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Sizes of what lies on one stage."""
        dim, parts = self.parts.dim, self.parts
        rows = self.shape[dim] * (len(parts.stages) // len(parts.places))
        return (*self.shape[:dim], rows, *self.shape[dim + 1 :])

    def absent(self, shape: tuple[int, ...], mesh: Mesh) -> jax.Array:
        """What stands for a part, or a block, that is on devices of other processes."""
        return without_parts(shape, self.dtype, self.sharding(mesh))


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
            (parts, target, sender([self._sent(number, origin, target) for number, _ in parts]))
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
                found |= self._absent(parts, stage)
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
        made: dict[tuple[int, int], Any] = {}
        for stage, lying in self._lying.items():
            numbers = list(dict.fromkeys(number for number, _ in lying))
            if stage not in self._programs:
                for n in numbers:
                    array = self.arrays[n]
                    made[n, stage] = array.absent(array.block_shape, self.meshes[stage])
                continue
            its = self._programs[stage](*(found[part] for part in lying))
            made |= {(n, stage): block for n, block in zip(numbers, its, strict=True)}
        return {
            number: [made[number, stage] for stage in array.parts.places]
            for number, array in self.arrays.items()
        }

    def _send(self, found: dict[_Part, Any]) -> None:
        """All that is moved; each is replaced by what arrives."""
        for parts, target, send in self._ways:
            if send is None:
                found |= self._absent(parts, target)
                continue
            found |= dict(zip(parts, send([found[part] for part in parts]), strict=True))

    def _sent(self, number: int, origin: int, target: int) -> SentValue:
        array = self.arrays[number]
        sides = array.sharding(self.meshes[origin]), array.sharding(self.meshes[target])
        return SentValue(array.shape, array.dtype, *sides, is_callers=False)

    def _absent(self, parts: Sequence[_Part], stage: int) -> dict[_Part, jax.Array]:
        arrays, mesh = self.arrays, self.meshes[stage]
        return {part: arrays[part[0]].absent(arrays[part[0]].shape, mesh) for part in parts}

    def _compiled(self, stage: int, parts: Sequence[_Part], is_result: bool) -> Any:
        """Cuts the blocks of a stage, or makes them."""
        numbers = list(dict.fromkeys(number for number, _ in parts))
        its = [self.arrays[number] for number in numbers]
        mesh = self.meshes[stage]

        def type_of(array: MovedArray, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, array.dtype, sharding=array.sharding(mesh))

        own = [type_of(self.arrays[number], self.arrays[number].shape) for number, _ in parts]
        blocks = [type_of(array, array.block_shape) for array in its]
        taken, given = (own, blocks) if is_result else (blocks, own)
        write = partial(_joined if is_result else _cut, its)
        shardings = [cast(Any, one).sharding for one in given]
        return jax.jit(write, out_shardings=shardings).lower(*taken).compile()


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
