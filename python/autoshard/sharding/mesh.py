"""The logical device mesh: named axes over devices, first axis outermost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from autoshard.errors import ShardingError
from autoshard.sharding.placement import IntArray, chain_of_cuts, digits_of, prime_factors
from autoshard.sharding.scanner import Scanner, quoted_if_needed

if TYPE_CHECKING:
    import jax

_EXAMPLE = "dp=2,tp=4"


@dataclass(frozen=True, slots=True)
class Axis:
    """One named axis of a mesh; a size of 1 is legal and says nothing.

    Raises:
        ShardingError: No name, one with a quote or backslash, or a size that is no whole number
            from 1 on.
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not name or any(letter in name for letter in "\"'\\"):
            raise ShardingError(
                f"mesh axis name {name!r} is no text, is empty, or contains a quote or backslash."
                ' Use a name such as "dp".'
            )
        size: Any = self.size
        if not isinstance(size, int | np.integer) or isinstance(size, bool):
            raise ShardingError(
                f'mesh axis "{name}" has size {size!r}; a size is a whole number, at least 1.'
            )
        if size < 1:
            raise ShardingError(f'mesh axis "{name}" has size {size}; a size is at least 1.')

    def __str__(self) -> str:
        """``dp=2``."""
        return f"{quoted_if_needed(self.name)}={self.size}"


@dataclass(frozen=True)
class Mesh:
    """Devices in a grid of named axes; row-major, first axis outermost (slowest).

    A device is known by its number in the program's device assignment, as in `mhlo.sharding`
    texts: 0 to ``size - 1``. JAX's mesh lists devices; its order *is* the assignment.

    Args:
        axes: The axes, outermost first. No axis: one device.
        device_ids: The device at each mesh position, row-major; None means ``0, 1, 2, ..``.

    Raises:
        ShardingError: Two axes of one name, or ``device_ids`` is no permutation of ``0..size-1``.
    """

    axes: tuple[Axis, ...]
    device_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(self.axis_names).items() if count > 1]
        if repeated:
            raise ShardingError(
                f'mesh {",".join(map(str, self.axes))} names axis "{repeated[0]}" more than once.'
                " Give every axis its own name."
            )
        if self.device_ids is None:
            return
        count = len(self.device_ids)
        if count != self.size or sorted(self.device_ids) != list(range(count)):
            shown = ",".join(map(str, self.device_ids[:16]))
            raise ShardingError(
                f"mesh {','.join(map(str, self.axes))}: the device order {shown}"
                f"{',...' if len(self.device_ids) > 16 else ''} does not name each of the devices"
                f" 0..{self.size - 1} exactly once ({len(self.device_ids)} given, {self.size}"
                " needed). List every device once, or leave the order out."
            )
        if self.device_ids == tuple(range(self.size)):
            object.__setattr__(self, "device_ids", None)

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read ``dp=2,tp=4``, with ``device_ids=0,2,1,..`` behind it for another device order.

        Raises:
            ParseError: The text has another form.
            ShardingError: The text says what no mesh can be.
        """
        scanner = Scanner(text, "mesh", _EXAMPLE)
        mesh = read_mesh(scanner)
        scanner.expect_end()
        return mesh

    def __str__(self) -> str:
        """``dp=2,tp=4``, and ``device_ids=..`` if the order is not ``0, 1, 2, ..``."""
        axes = ",".join(map(str, self.axes))
        if self.device_ids is None:
            return axes
        return f"{axes} device_ids={','.join(map(str, self.device_ids))}".lstrip()

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return prod(axis.size for axis in self.axes)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes, outermost first."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def axis_sizes(self) -> tuple[int, ...]:
        """Sizes of the axes, outermost first."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def _index_by_name(self) -> dict[str, int]:
        return {axis.name: index for index, axis in enumerate(self.axes)}

    def axis_index(self, name: str) -> int:
        """Place of the axis, 0 is outermost.

        Raises:
            ShardingError: No axis has this name.
        """
        index = self._index_by_name.get(name)
        if index is None:
            known = ", ".join(f'"{known}"' for known in self.axis_names) or "none"
            raise ShardingError(
                f'axis "{name}" is not an axis of mesh "{self}" (axes: {known}).'
                " Use one of these or add the axis to the mesh."
            )
        return index

    def axis_size(self, name: str) -> int:
        """Size of the axis, or ShardingError if no axis has this name."""
        return self.axes[self.axis_index(name)].size

    def device_order(self) -> IntArray:
        """The device at each mesh position, row-major: int64 of shape ``(size,)``."""
        if self.device_ids is None:
            return np.arange(self.size, dtype=np.int64)
        return np.array(self.device_ids, dtype=np.int64)

    def in_primes(self, name: str) -> Mesh:
        """The same devices with every axis split into primes, named ``name_0``, ``name_1``, .."""
        primes = [prime for axis in self.axes for prime in prime_factors(axis.size)]
        axes = tuple(Axis(f"{name}_{number}", prime) for number, prime in enumerate(primes))
        return Mesh(axes, self.device_ids)

    def without_unit_axes(self) -> Mesh:
        """The mesh without its axes of size 1."""
        return Mesh(tuple(axis for axis in self.axes if axis.size > 1), self.device_ids)

    def check_device_count(self, available: int, location: str | None = None) -> None:
        """Raise ShardingError if the mesh needs more than ``available`` devices."""
        if self.size > available:
            raise ShardingError(
                f'mesh "{self}" needs {self.size} devices, but there are {available}.'
                f" Make its axes smaller (their product at most {available}), or start with more"
                " devices (on CPU: XLA_FLAGS=--xla_force_host_platform_device_count="
                f"{self.size}).",
                location,
            )

    @classmethod
    def from_jax(
        cls,
        jax_mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
        assignment: Sequence[Any] | None = None,
    ) -> Mesh:
        """The same mesh without devices.

        Args:
            jax_mesh: A mesh of devices, or an abstract one.
            assignment: The program's device assignment, which numbers the devices. None: the
                mesh's own order, which is what ``jax.jit`` uses when all arrays live on it.

        Raises:
            ShardingError: An axis name is not a string, or ``assignment`` has other devices.
        """
        from autoshard.sharding.jax_types import mesh_from_jax

        return mesh_from_jax(jax_mesh, assignment)

    def to_jax(
        self, devices: Sequence[Any] | None = None, axis_types: Sequence[Any] | None = None
    ) -> jax.sharding.Mesh:
        """A JAX mesh, with axes of type Auto unless others are said.

        Args:
            devices: The program's device assignment, at least ``size`` devices; None:
                ``jax.devices()``. Mesh position ``p`` gets ``devices[device_ids[p]]``.
            axis_types: JAX's type of each axis.

        Raises:
            ShardingError: There are fewer devices than the mesh needs.
        """
        from autoshard.sharding.jax_types import mesh_to_jax

        return mesh_to_jax(self, devices, axis_types)

    @classmethod
    def common_refinement(cls, meshes: Sequence[Mesh]) -> Mesh:
        """The coarsest mesh on which a sharding of any of ``meshes`` needs whole axes only.

        The result keeps the device order and the axis names of the first mesh. An axis that
        must be split becomes ``tp_0`` (outer), ``tp_1``, ..; axes of size 1 are left out, unless
        there is only one device.
        ``[4,2]`` and ``[2,4]`` give ``[2,2,2]``.

        Raises:
            ShardingError: No mesh given, different device counts, or sizes such as ``[2,3]``
                and ``[3,2]`` for which there is no such mesh.
        """
        if not meshes:
            raise ShardingError("a common refinement needs at least one mesh, but none was given.")
        base = meshes[0]
        if base.size == 1 and all(mesh.size == 1 for mesh in meshes):
            return next((mesh for mesh in meshes if mesh.axes), base)
        cuts: set[int] = set()
        for mesh in meshes:
            cuts |= _cuts_on(base, mesh)
        chain = chain_of_cuts(cuts)
        if isinstance(chain, tuple):
            texts = " and ".join(dict.fromkeys(f'"{mesh}"' for mesh in meshes))
            raise ShardingError(
                f"meshes {texts} have no common refinement: one has its axes change every"
                f" {chain[0]} devices and another every {chain[1]}, and {chain[1]} %"
                f" {chain[0]} = {chain[1] % chain[0]}. Use axis sizes that divide each other,"
                " or one mesh for the whole program."
            )
        return Mesh(_refined_axes(base, chain), base.device_ids)


def stage_axis(names: Collection[str]) -> str:
    """The name of the axis that the stages of a pipeline are on, which no other axis has."""
    name = "stage"
    while name in names:
        name += "_"
    return name


def read_mesh(scanner: Scanner, device_mark: str = "device_ids") -> Mesh:
    """Read a mesh where ``scanner`` stands: axes, then ``device_ids=..`` or ``; ..``."""
    axes: list[Axis] = []
    while True:
        name = scanner.name()
        scanner.expect("=")
        axes.append(Axis(name, scanner.integer()))
        if not scanner.accept(","):
            break
    if scanner.accept(";"):
        device_ids = _read_device_ids(scanner)
    elif scanner.accept(device_mark):
        scanner.expect("=")
        device_ids = _read_device_ids(scanner)
    else:
        device_ids = None
    return Mesh(tuple(axes), device_ids)


def _read_device_ids(scanner: Scanner) -> tuple[int, ...]:
    device_ids = [scanner.integer()]
    while scanner.accept(","):
        device_ids.append(scanner.integer())
    return tuple(device_ids)


def _cuts_on(base: Mesh, mesh: Mesh) -> set[int]:
    """After how many positions of ``base`` an axis of ``mesh`` begins or ends."""
    if mesh.size != base.size:
        raise ShardingError(
            f'meshes "{base}" ({base.size} devices) and "{mesh}" ({mesh.size} devices) have no'
            " common refinement: the device counts differ. Use all devices in every mesh, with a"
            " further axis for those that would be idle."
        )
    place_of_device = np.empty(base.size, dtype=np.int64)
    place_of_device[base.device_order()] = np.arange(base.size)
    places = place_of_device[mesh.device_order()]
    cuts = {1, base.size}
    block = 1
    for size in reversed(mesh.axis_sizes):
        digits = digits_of(places[: block * size : block][:, None])
        if digits is None or any(digit.step[0] < 1 for digit in digits):
            raise _orders_differ(base, mesh)
        for digit in digits:
            cuts |= {digit.step[0], digit.step[0] * digit.size}
        block *= size
    if digits_of(places[:, None]) is None:
        raise _orders_differ(base, mesh)
    return cuts


def _orders_differ(base: Mesh, mesh: Mesh) -> ShardingError:
    return ShardingError(
        f'meshes "{base}" and "{mesh}" have no common refinement: their device orders are not'
        " transposes of each other. Give both the same device order."
    )


def _refined_axes(base: Mesh, cuts: list[int]) -> tuple[Axis, ...]:
    taken = set(base.axis_names)
    axes: list[Axis] = []
    end = base.size
    for axis in base.axes:
        begin = end // axis.size
        inside = [cut for cut in cuts if begin <= cut <= end]
        sizes = [larger // smaller for smaller, larger in pairwise(inside)]
        if len(sizes) == 1:
            axes.append(axis)
        else:
            for part, size in enumerate(reversed(sizes)):
                name = f"{axis.name}_{part}"
                while name in taken:
                    name += "_"
                taken.add(name)
                axes.append(Axis(name, size))
        end = begin
    return tuple(axes)
