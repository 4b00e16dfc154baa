"""The collectives of a compiled program, read from its HLO text.

Checked on the text of jaxlib 0.10.2 and 0.12.0.1 (CPU), of libtpu 0.0.42.1 (one and several
slices) and 0.0.52, and of the CUDA plugin of jax 0.10.2.

Between TPU slices there are no collectives but a ``send`` and a ``recv`` to the host, which name
what the host's runtime does: ``_xla_megascale_transfer_type`` and the slices and devices of
``_xla_megascale_target``. A program of several slices is that of one: its device groups are those
of the first slice, and the same in all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from autoshard.errors import ParseError
from autoshard.planned.collective import (
    Collective,
    CollectiveKind,
    axes_of_groups,
    axes_of_pairs,
)
from autoshard.sharding.hlo_text import NamedHlo, parse_hlo
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.placement import IntArray
from autoshard.sharding.sharding import AxisRef
from autoshard.verify.hlo_program import (
    CALLS,
    VIEWS,
    HloComputation,
    HloInstruction,
    HloProgram,
    arrays_of,
    bytes_of,
    find,
)

_KINDS = {
    "all-gather": CollectiveKind.ALL_GATHER,
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
    "ragged-all-to-all": CollectiveKind.ALL_TO_ALL,
    "collective-permute": CollectiveKind.PERMUTE,
    "collective-broadcast": CollectiveKind.PERMUTE,
}
_BETWEEN_SLICES = {
    "ALL_GATHER": CollectiveKind.ALL_GATHER,
    "ALL_REDUCE": CollectiveKind.ALL_REDUCE,
    "REDUCE_SCATTER": CollectiveKind.REDUCE_SCATTER,
    "ALL_TO_ALL": CollectiveKind.ALL_TO_ALL,
}
"""What the runtime between slices does; any other transfer is one from device to device."""

_TALKS = re.compile(
    r" (?:all-|reduce-scatter|ragged-all-to-all|collective-|send|fusion|while|call|conditional"
    r"|async-|custom-call-)[\w-]*\("
)
"""What an instruction is that communicates or that calls others; others may name it in a text."""
_LISTED_GROUPS = re.compile(r"\breplica_groups=\{(\{[\d,{} ]*\})?\}")
_IOTA_GROUPS = re.compile(r"\breplica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH_GROUPS = re.compile(r"\breplica_groups=(mesh\[[^{]*?) ?(\{[^}]*\})")
_PAIRS = re.compile(r"\bsource_target_pairs=\{(\{[\d,{} ]*\})?\}")
_SENT_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?\{(\{[\d,{} ]*\})?\}')
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target="?([^"=]*[\d}])(?=[",])')
_PRODUCT = re.compile(r"\{([^{}]*)\}x\{([^{}]*)\}")
_CHAIN = "frontend_attributes={chain_id="
CHAIN_START, CHAIN_DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
"""The custom calls of XLA:TPU in the first and in the last fusion of a collective that is spread
over several."""
_MATMUL = "dot_general"
"""End of the names that JAX gives matmuls."""
_SLICE_UNIT = 100_000
"""In the targets between slices, device 3 of the second slice is 200003."""


@dataclass(frozen=True, slots=True)
class DeviceGroups:
    """Which devices of a mesh talk to each other in one collective."""

    blocks: tuple[IntArray, ...]
    """Groups of one size each, int64 of shape ``(number of groups, group size)``; of a permute
    one array of (source, target), without those that stay."""
    size: int
    """Devices of the largest group; 2 for a permute, 1 where nobody talks."""
    axes: tuple[AxisRef, ...] | None
    """As ``Collective.axes``."""


@dataclass(frozen=True, slots=True)
class FoundCollective:
    """A collective of the text with its devices."""

    collective: Collective
    groups: DeviceGroups
    instruction: HloInstruction
    computation: HloComputation


def hlo_collectives(hlo_text: str, mesh: Mesh, *, unknown_trip_count: int = 1) -> list[Collective]:
    """Every collective of a compiled program, once for each place that calls it.

    Args:
        hlo_text: ``compiled.as_text()``: one partition's optimised HLO.
        mesh: The plan's mesh, whose device numbers are the partition numbers.
        unknown_trip_count: Trips of a loop for which the compiler knows none; collectives in it
            have ``times_known=False``.

    Returns:
        Collectives over groups of two or more devices, in program order. An asynchronous one is
        counted once; of a conditional, every branch counts.

    Raises:
        ParseError: The text has no ``ENTRY`` computation, device groups of an unknown form, or is
            damaged: it names what it does not have.
    """
    try:
        program = HloProgram.parse(hlo_text)
        return [found.collective for found in find_collectives(program, mesh, unknown_trip_count)]
    except (KeyError, IndexError, ValueError, RecursionError) as error:
        raise ParseError(
            f"the HLO text is damaged: {type(error).__name__}: {error}. Give the whole text of one"
            " compiled module, as compiled.as_text() returns it."
        ) from error


def find_collectives(
    program: HloProgram, mesh: Mesh, unknown_trip_count: int
) -> list[FoundCollective]:
    """As ``hlo_collectives``, with the devices and the instruction of each."""
    reader = CollectiveReader(program, mesh, unknown_trip_count)
    return list(reader.collectives(program.entry, 1, True))


def is_collective(opcode: str) -> bool:
    """Whether an instruction is a collective, or the start or end of one."""
    return opcode.removesuffix("-start").removesuffix("-done") in _KINDS


class CollectiveReader:
    """The collectives of one program, by instruction or along its call graph."""

    def __init__(self, program: HloProgram, mesh: Mesh, unknown_trip_count: int) -> None:
        self.program = program
        self.mesh = mesh
        self.unknown_trip_count = unknown_trip_count
        self.devices = program.num_partitions or mesh.size
        self.slices, left = divmod(mesh.size, self.devices)
        if left:
            raise ParseError(
                f'the compiled program is one for {self.devices} devices, but mesh "{mesh}" has'
                f" {mesh.size}. Give the mesh that it was compiled for."
            )
        self.inside: dict[str, list[FoundCollective]] = {}
        self.groups: dict[str, DeviceGroups] = {}

    def collectives(
        self, computation: HloComputation, times: int, known: bool
    ) -> Iterator[FoundCollective]:
        """All that a computation and what it calls run, ``times`` times over."""
        if not _TALKS.search("\n".join(computation.lines)):
            return
        for instruction in computation.instructions:
            if instruction.opcode == "while":
                yield from self._while(computation, instruction, times, known)
            elif instruction.opcode in CALLS:
                for name in instruction.called:
                    yield from self._repeated(name, times, known)
            else:
                yield from self._own(instruction, computation, times, known)

    def carried_by(
        self, instruction: HloInstruction, computation: HloComputation
    ) -> list[FoundCollective]:
        """What one run of an instruction begins, if it is neither a loop nor a call.

        An asynchronous collective is that of its start, and one that XLA:TPU spreads over several
        fusions that of the first.
        """
        return list(self._own(instruction, computation, 1, True))

    def _own(
        self, instruction: HloInstruction, computation: HloComputation, times: int, known: bool
    ) -> Iterator[FoundCollective]:
        opcode = instruction.opcode
        if _CHAIN in instruction.rest and not self._starts_chain(computation):
            # XLA:TPU spreads a collective over several fusions; each of them names it.
            return
        if opcode.removesuffix("-start") in _KINDS:
            yield from self._collective(instruction, computation, times, known)
        elif opcode == "send":
            yield from self._sent(instruction, computation, times, known)
        elif opcode.removesuffix("-start") == "fusion":
            yield from self._fused(instruction, times, known)

    def _starts_chain(self, computation: HloComputation) -> bool:
        return any(CHAIN_START in each.rest for each in computation.instructions)

    def _while(
        self, computation: HloComputation, loop: HloInstruction, times: int, known: bool
    ) -> Iterator[FoundCollective]:
        trips = self.program.trips(computation, loop)
        count = self.unknown_trip_count if trips is None else trips
        body = self.program.body(loop).name
        yield from self._repeated(body, times * count, known and trips is not None)

    def _fused(self, fusion: HloInstruction, times: int, known: bool) -> Iterator[FoundCollective]:
        """What a fusion communicates.

        An all-reduce of which it takes only slices is how XLA:TPU writes a reduce-scatter: as
        one fusion it sends no more than that. The fusion has the source line.
        """
        for name in fusion.called:
            for found in self._repeated(name, times, known):
                one = found.collective
                if one.kind is CollectiveKind.ALL_REDUCE and _is_sliced(found):
                    one = replace(one, kind=CollectiveKind.REDUCE_SCATTER)
                if one.place is None:
                    place, op_name = self.program.place(fusion), fusion.op_name
                    one = replace(one, place=place, op_name=op_name or one.op_name)
                yield replace(found, collective=one)

    def _repeated(self, name: str, times: int, known: bool) -> Iterator[FoundCollective]:
        if name not in self.inside:
            self.inside[name] = list(self.collectives(self.program.computations[name], 1, True))
        for found in self.inside[name]:
            one = found.collective
            yield replace(
                found,
                collective=replace(
                    one, times=one.times * times, times_known=one.times_known and known
                ),
            )

    def _collective(
        self, instruction: HloInstruction, computation: HloComputation, times: int, known: bool
    ) -> Iterator[FoundCollective]:
        opcode = instruction.opcode.removesuffix("-start")
        kind = _KINDS[opcode]
        groups = self._groups_of(instruction, kind)
        if groups.size < 2:
            return
        local = _local_bytes(kind, _result_bytes(instruction, computation), groups.size)
        ring = self._ring_of(instruction, kind, groups)
        if ring is not None:
            size = ring.size
            gathers = any(1 in array.shape for array in instruction.arrays)
            kind = CollectiveKind.ALL_GATHER if gathers else CollectiveKind.REDUCE_SCATTER
            local = local / (size - 1) if gathers else local * size / (size - 1)
            groups = ring
        yield self._found(instruction, computation, kind, groups, local, times, known)

    def _ring_of(
        self, instruction: HloInstruction, kind: CollectiveKind, groups: DeviceGroups
    ) -> DeviceGroups | None:
        """Devices of a gather or scatter of which a permute is one turn; None if it is none.

        XLA:TPU gathers an operand of a matmul, or scatters its partial sums, while it
        multiplies: a loop over blocks that pass along rings of all devices of a group. A block
        that is gathered has a dim of size 1 more.
        """
        if kind is not CollectiveKind.PERMUTE or not instruction.op_name.endswith(_MATMUL):
            return None
        key = f"ring {groups.blocks[0].tobytes().hex()}"
        if key not in self.groups:
            rings = _rings(groups.blocks[0])
            self.groups[key] = self._in_groups([rings] if rings.size else [])
        found = self.groups[key]
        return found if found.axes is not None and found.size > 2 else None

    def _sent(
        self, instruction: HloInstruction, computation: HloComputation, times: int, known: bool
    ) -> Iterator[FoundCollective]:
        """What a ``send`` does between slices, or between devices; nothing if to the host."""
        arrays = instruction.arrays
        local = arrays[0].bytes if arrays else 0.0
        transfer = _TRANSFER.search(instruction.rest)
        pairs = _SENT_PAIRS.search(instruction.rest)
        if transfer:
            kind = _BETWEEN_SLICES.get(transfer[1], CollectiveKind.PERMUTE)
            groups = self._groups_between_slices(instruction, kind)
        elif pairs:
            kind, groups = (
                CollectiveKind.PERMUTE,
                self._of_pairs(self._in_all_slices(_listed(pairs[1]))),
            )
        elif "is_host_transfer=true" in instruction.rest:
            return
        else:
            raise ParseError(
                f"cannot read which devices the send {instruction.rest[:200]!r} reaches."
            )
        if groups.size > 1:
            yield self._found(instruction, computation, kind, groups, local, times, known)

    def _found(
        self,
        instruction: HloInstruction,
        computation: HloComputation,
        kind: CollectiveKind,
        groups: DeviceGroups,
        local_bytes: float,
        times: int,
        known: bool,
    ) -> FoundCollective:
        collective = Collective(
            kind=kind,
            axes=groups.axes,
            group_size=groups.size,
            local_bytes=local_bytes,
            times=times,
            times_known=known,
            place=self.program.place(instruction),
            op_name=instruction.op_name,
        )
        return FoundCollective(collective, groups, instruction, computation)

    # Groups -------------------------------------------------------------------------------------

    def _groups_of(self, instruction: HloInstruction, kind: CollectiveKind) -> DeviceGroups:
        rest = instruction.attributes
        if kind is CollectiveKind.PERMUTE and "source_target_pairs" in rest:
            key = find(_PAIRS, rest)[0]
            if key not in self.groups:
                pairs = self._in_all_slices(_listed(find(_PAIRS, rest)[1]))
                self.groups[key] = self._of_pairs(pairs)
            return self.groups[key]
        match = _IOTA_GROUPS.search(rest) or _MESH_GROUPS.search(rest)
        match = match or _LISTED_GROUPS.search(rest)
        if match is None:
            raise ParseError(f"cannot read the device groups of the collective {rest[:200]!r}.")
        key = match[0] + (", device_ids" if "device_ids=" in rest else "")
        if key not in self.groups:
            blocks = _device_groups(rest, self.devices)
            self.groups[key] = self._in_groups([self._in_all_slices(block) for block in blocks])
        return self.groups[key]

    def _groups_between_slices(
        self, instruction: HloInstruction, kind: CollectiveKind
    ) -> DeviceGroups:
        target = find(_TARGET, instruction.rest)[1]
        key = f"{kind.value} {target}"
        if key not in self.groups:
            rows = _rows_between_slices(target, self.devices)
            if kind is CollectiveKind.PERMUTE:
                pairs = [(row[0], other) for row in rows for other in row[1:]]
                self.groups[key] = self._of_pairs(np.array(pairs, dtype=np.int64).reshape(-1, 2))
            else:
                self.groups[key] = self._in_groups(_blocks(rows))
        return self.groups[key]

    def _in_all_slices(self, block: IntArray) -> IntArray:
        if self.slices == 1 or not len(block):
            return block
        return np.concatenate([block + index * self.devices for index in range(self.slices)])

    def _in_groups(self, blocks: Sequence[IntArray]) -> DeviceGroups:
        blocks = tuple(block for block in blocks if block.shape[1] > 1)
        if not blocks:
            return DeviceGroups((), 1, ())
        size = max(block.shape[1] for block in blocks)
        axes = axes_of_groups(blocks[0], self.mesh) if len(blocks) == 1 else None
        return DeviceGroups(blocks, size, axes)

    def _of_pairs(self, pairs: IntArray) -> DeviceGroups:
        moving = pairs[pairs[:, 0] != pairs[:, 1]] if len(pairs) else pairs
        if not len(moving):
            return DeviceGroups((), 1, ())
        return DeviceGroups((moving,), 2, axes_of_pairs(moving, self.mesh))


def _is_sliced(found: FoundCollective) -> bool:
    """Whether its computation reads only slices of its result."""
    front, slices = [found.instruction], 0
    while front:
        value = front.pop()
        for user in found.computation.users.get(value.name, ()):
            if user.opcode in VIEWS or user.opcode == "get-tuple-element":
                front.append(user)
            elif user.opcode == "dynamic-slice" and user.operands[0] == value.name:
                slices += 1
            else:
                return False
    return slices > 0


def _result_bytes(instruction: HloInstruction, computation: HloComputation) -> float:
    """Bytes that a device has after the collective."""
    if not instruction.opcode.endswith("-start"):
        return bytes_of(instruction.result)
    done = computation.end_of(instruction)
    if done is not None:
        return bytes_of(done.result)
    # The start names operands and results, then flags.
    arrays = [array for array in arrays_of(instruction.result) if array.shape]
    if not instruction.result.startswith("("):
        return sum(array.bytes for array in arrays)
    return sum(array.bytes for array in arrays[len(arrays) // 2 :])


def _local_bytes(kind: CollectiveKind, result_bytes: float, size: int) -> float:
    """What a device holds before the call, from what it holds after."""
    if kind is CollectiveKind.ALL_GATHER:
        return result_bytes / size
    if kind is CollectiveKind.REDUCE_SCATTER:
        return result_bytes * size
    return result_bytes


# Groups of devices ------------------------------------------------------------------------------


def _device_groups(rest: str, device_count: int) -> list[IntArray]:
    """Devices per group, those of one size as int64 of shape ``(number of groups, size)``."""
    iota = _IOTA_GROUPS.search(rest)
    if iota:
        shape, order = (tuple(map(int, iota[n].split(","))) for n in (1, 2))
        devices = np.arange(np.prod(order)).reshape(order)
        if iota[3]:
            devices = devices.transpose(tuple(map(int, iota[3].split(","))))
        return [devices.reshape(shape)]
    named = _MESH_GROUPS.search(rest)
    if named:
        return [_groups_on_mesh(named[1].rstrip(" ,"), named[2])]
    listed = find(_LISTED_GROUPS, rest)
    if not listed[1]:
        return [np.arange(device_count).reshape(1, -1)]
    return _blocks([[int(n) for n in row.split(",")] for row in _rows(listed[1])])


def _rings(pairs: IntArray) -> IntArray:
    """Devices of each closed ring that the pairs are made of, a ring a row; empty if the pairs
    are no rings of one length."""
    after = {int(source): int(target) for source, target in pairs}
    rings: list[list[int]] = []
    left = dict(after)
    while left:
        first = next(iter(left))
        ring = [first]
        while (device := left.pop(ring[-1], first)) != first:
            ring.append(device)
        if after.get(ring[-1]) != first:
            return np.zeros((0, 0), dtype=np.int64)
        rings.append(ring)
    if len({len(ring) for ring in rings}) != 1:
        return np.zeros((0, 0), dtype=np.int64)
    return np.array([sorted(ring) for ring in rings], dtype=np.int64)


def _rows(text: str) -> list[str]:
    return re.findall(r"\{([\d, ]+)\}", text)


def _blocks(rows: Sequence[Sequence[int]]) -> list[IntArray]:
    """Groups of one size together."""
    sizes = sorted({len(row) for row in rows})
    return [
        np.array([row for row in rows if len(row) == size], dtype=np.int64).reshape(-1, size)
        for size in sizes
    ]


def _listed(text: str | None) -> IntArray:
    """``{0,1},{2,3}`` as an array of pairs."""
    rows = [[int(n) for n in row.split(",")] for row in _rows(text or "")]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 2)


def _rows_between_slices(target: str, devices: int) -> list[list[int]]:
    """Groups of ``{1,2}x{0:15}`` (each device with those at its place in other slices) or of
    ``{{100000,200000},..}`` (device ``n % 100000`` of slice ``n // 100000``, from 1), or pairs
    ``{{100000->200000},..}``."""
    product = _PRODUCT.fullmatch(target.strip())
    if product:
        slices, places = (_numbers(product[part]) for part in (1, 2))
        return [[(index - 1) * devices + place for index in slices] for place in places]
    rows = [
        [int(n) for n in re.split(",|->", row)] for row in re.findall(r"\{([\d,>-]+)\}", target)
    ]
    if not rows:
        raise ParseError(f"cannot read the devices of the transfer between slices {target!r}.")
    return [[(n // _SLICE_UNIT - 1) * devices + n % _SLICE_UNIT for n in row] for row in rows]


def _numbers(text: str) -> list[int]:
    """``0:3,8`` is 0, 1, 2, 3, 8."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition(":")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _groups_on_mesh(mesh_text: str, axes_text: str) -> IntArray:
    """``mesh['a'=2,'b'=4]`` and ``{'b'}``: the lines along the axes."""
    value = parse_hlo(f"{{{mesh_text}, [{axes_text}]}}")
    if not isinstance(value, NamedHlo):
        raise ParseError(f"cannot read the device groups {mesh_text} {axes_text}.")
    sharding = value.sharding.with_whole_axes()
    mesh = sharding.mesh
    along = [mesh.axis_index(ref.name) for ref in sharding.dims[0]]
    rest = [index for index in range(len(mesh.axes)) if index not in along]
    devices = mesh.device_order().reshape(mesh.axis_sizes).transpose(*rest, *along)
    return devices.reshape(-1, prod(mesh.axis_sizes[index] for index in along))
