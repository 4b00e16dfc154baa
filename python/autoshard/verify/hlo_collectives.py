"""The collectives of a compiled program, read from its HLO text.

Checked on the text of jaxlib 0.10.2 and 0.12.0.1 (CPU) and of libtpu 0.0.42. Source lines come
from ``metadata`` (``source_file``/``source_line``, or ``stack_frame_id`` and the tables at the
top); jaxlib 0.12 leaves them out on collectives that the partitioner made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from autoshard.errors import ParseError
from autoshard.sharding.hlo_text import NamedHlo, parse_hlo
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.placement import IntArray
from autoshard.verify.collective import (
    Collective,
    CollectiveKind,
    axes_of_groups,
    axes_of_pairs,
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

_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_ELEMENT = re.compile(r"\b([a-z]\w*)\[([\d,<= ]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([^\s=]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LISTED_GROUPS = re.compile(r"\breplica_groups=\{(\{[\d,{} ]*\})?\}")
_IOTA_GROUPS = re.compile(r"\breplica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH_GROUPS = re.compile(r"\breplica_groups=(mesh\[[^{]*?) ?(\{[^}]*\})")
_PAIRS = re.compile(r"\bsource_target_pairs=\{(\{[\d,{} ]*\})?\}")
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_SOURCE = re.compile(r'\bsource_file="([^"]*)" source_line=(\d+)')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_FIRST_OPERAND = re.compile(r"\(%?([\w.\-]+)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_INTEGER = re.compile(r"\((-?\d+)\)")
_INDEX = re.compile(r"\bindex=(\d+)")
_CHAIN = "frontend_attributes={chain_id="
_COPIES = frozenset({"copy", "copy-start", "copy-done", "bitcast"})


@dataclass(slots=True)
class _Instruction:
    name: str
    result: str
    """Text of the result's type."""
    opcode: str
    rest: str
    """Operands and attributes."""


@dataclass(slots=True)
class _Computation:
    is_entry: bool
    instructions: list[_Instruction] = field(default_factory=list["_Instruction"])
    by_name: dict[str, _Instruction] = field(default_factory=dict[str, "_Instruction"])
    starts_chain: bool = False
    """Has the start of a collective that XLA:TPU spreads over several fusions: each of them names
    it, with the same ``chain_id``."""

    def source(self, name: str) -> _Instruction:
        """The instruction called so, or what it is a copy of."""
        found = self.by_name[name]
        while found.opcode in _COPIES:
            found = self.by_name[_operands(found)[0]]
        return found

    def element(self, made: _Instruction, number: int) -> _Instruction | None:
        """What element ``number`` of a tuple is; None if it was not made here."""
        return self.source(_operands(made)[number]) if made.opcode == "tuple" else None


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
        ParseError: The text has no ``ENTRY`` computation, or device groups of an unknown form.
    """
    computations = _read_computations(hlo_text)
    entry = next((c for c in computations.values() if c.is_entry), None)
    if entry is None:
        raise ParseError(
            "the HLO text has no ENTRY computation. Give the text of one compiled module, as "
            "compiled.as_text() returns it."
        )
    places = _source_places(hlo_text)
    reader = _Reader(computations, places, mesh, unknown_trip_count)
    return list(reader.collectives(entry, 1, True))


def _read_computations(hlo_text: str) -> dict[str, _Computation]:
    computations: dict[str, _Computation] = {}
    current: _Computation | None = None
    for line in hlo_text.splitlines():
        if current is None:
            header = _COMPUTATION.match(line)
            if header:
                current = computations[header[2]] = _Computation(bool(header[1]))
        elif line.startswith("}"):
            current = None
        else:
            instruction = _read_instruction(line)
            if instruction:
                current.instructions.append(instruction)
                current.by_name[instruction.name] = instruction
                if "AsyncCollectiveStart" in instruction.rest:
                    current.starts_chain = True
    return computations


def _read_instruction(line: str) -> _Instruction | None:
    head = _INSTRUCTION.match(line)
    if head is None:
        return None
    start = head.end()
    end = _end_of_tuple(line, start) if line[start] == "(" else line.index(" ", start)
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        return None
    return _Instruction(head[1], line[start:end], opcode[1], line[opcode.end() - 1 :])


def _operands(instruction: _Instruction) -> list[str]:
    """Names of the operands; the rest begins with their list."""
    return _OPERAND.findall(instruction.rest[: _end_of_tuple(instruction.rest, 0)])


def _end_of_tuple(line: str, start: int) -> int:
    depth = 0
    for index in range(start, len(line)):
        if line[index] == "(":
            depth += 1
        elif line[index] == ")":
            depth -= 1
            if depth == 0:
                return index + 1
    return len(line)


class _Reader:
    """Walks the call graph from the entry, with the number of runs so far."""

    def __init__(
        self,
        computations: dict[str, _Computation],
        places: dict[str, str],
        mesh: Mesh,
        unknown_trip_count: int,
    ) -> None:
        self.computations = computations
        self.places = places
        self.mesh = mesh
        self.unknown_trip_count = unknown_trip_count
        self.inside: dict[str, list[Collective]] = {}

    def collectives(
        self, computation: _Computation, times: int, known: bool
    ) -> Iterator[Collective]:
        started: dict[str, _Instruction] = {}
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if _CHAIN in instruction.rest and not computation.starts_chain:
                continue
            if opcode == "while":
                yield from self._while(computation, instruction, times, known)
            elif opcode.removesuffix("-start") in _KINDS and opcode.endswith("-start"):
                started[instruction.name] = instruction
            elif opcode.removesuffix("-done") in _KINDS and opcode.endswith("-done"):
                begun = started[_match(_FIRST_OPERAND, instruction.rest)[1]]
                done = replace_result(begun, instruction.result)
                yield from self._collective(done, opcode.removesuffix("-done"), times, known)
            elif opcode in _KINDS:
                yield from self._collective(instruction, opcode, times, known)
            elif opcode in ("call", "fusion", "conditional", "async-start"):
                for name in _called(instruction.rest):
                    yield from self._repeated(name, times, known)

    def _while(
        self, computation: _Computation, instruction: _Instruction, times: int, known: bool
    ) -> Iterator[Collective]:
        trips = self._trips(computation, instruction)
        count = self.unknown_trip_count if trips is None else trips
        body = _match(_BODY, instruction.rest)[1]
        yield from self._repeated(body, times * count, known and trips is not None)

    def _trips(self, computation: _Computation, loop: _Instruction) -> int | None:
        """Trips that the compiler states, or those of a counter from one constant to another.

        XLA:TPU states none.
        """
        stated = _TRIPS.search(loop.rest)
        if stated:
            return int(stated[1])
        condition = self.computations.get(_match(_CONDITION, loop.rest)[1])
        body = self.computations[_match(_BODY, loop.rest)[1]]
        if condition is None:
            return None
        test = condition.instructions[-1]
        if test.opcode != "compare" or "direction=LT" not in test.rest:
            return None
        counter, end = (condition.source(name) for name in _operands(test))
        if counter.opcode != "get-tuple-element":
            return None
        number = int(_match(_INDEX, counter.rest)[1])
        start = computation.element(computation.source(_operands(loop)[0]), number)
        next_value = body.element(body.instructions[-1], number)
        if start is None or next_value is None or next_value.opcode != "add":
            return None
        parts = [body.source(name) for name in _operands(next_value)]
        step = next((part for part in parts if part.opcode == "constant"), None)
        if step is None or start.opcode != "constant" or end.opcode != "constant":
            return None
        first, last, by = (int(_match(_INTEGER, each.rest)[1]) for each in (start, end, step))
        return max(0, -(-(last - first) // by)) if by > 0 else None

    def _repeated(self, name: str, times: int, known: bool) -> Iterator[Collective]:
        if name not in self.inside:
            self.inside[name] = list(self.collectives(self.computations[name], 1, True))
        for collective in self.inside[name]:
            yield replace(
                collective,
                times=collective.times * times,
                times_known=collective.times_known and known,
            )

    def _collective(
        self, instruction: _Instruction, opcode: str, times: int, known: bool
    ) -> Iterator[Collective]:
        kind = _KINDS[opcode]
        if kind is CollectiveKind.PERMUTE and "source_target_pairs" in instruction.rest:
            pairs = _listed(_match(_PAIRS, instruction.rest)[1])
            moving = pairs[pairs[:, 0] != pairs[:, 1]] if len(pairs) else pairs
            if not len(moving):
                return
            axes, size = axes_of_pairs(moving, self.mesh), 2
        else:
            groups = _device_groups(instruction.rest, self.mesh.size)
            size = groups.shape[1]
            if size < 2:
                return
            axes = axes_of_groups(groups, self.mesh)
        rest = instruction.rest
        op_name = _OP_NAME.search(rest)
        yield Collective(
            kind=kind,
            axes=axes,
            group_size=size,
            local_bytes=_local_bytes(kind, _bytes_of(instruction.result), size),
            times=times,
            times_known=known,
            place=self._place(rest),
            op_name=op_name[1] if op_name else "",
        )

    def _place(self, rest: str) -> str | None:
        source = _SOURCE.search(rest)
        if source:
            return f"{source[1]}:{source[2]}"
        frame = _FRAME.search(rest)
        return self.places.get(frame[1]) if frame else None


def replace_result(instruction: _Instruction, result: str) -> _Instruction:
    """The start of an asynchronous collective with the result that its end gives."""
    return _Instruction(instruction.name, result, instruction.opcode, instruction.rest)


def _called(rest: str) -> Iterator[str]:
    yield from (match[1] for match in _CALLED.finditer(rest))
    branches = _BRANCHES.search(rest)
    if branches:
        yield from (name.strip().lstrip("%") for name in branches[1].split(","))


def _local_bytes(kind: CollectiveKind, result_bytes: float, size: int) -> float:
    """What a device holds before the call, from what it holds after."""
    if kind is CollectiveKind.ALL_GATHER:
        return result_bytes / size
    if kind is CollectiveKind.REDUCE_SCATTER:
        return result_bytes * size
    return result_bytes


def _bytes_of(type_text: str) -> float:
    """Bytes of an array or of a tuple of arrays, without layout padding."""
    return sum(
        _bits(dtype) / 8 * np.prod([int(size.strip(" <=")) for size in sizes.split(",") if size])
        for dtype, sizes in _ELEMENT.findall(type_text)
    )


def _bits(dtype: str) -> int:
    """Bits of an element: ``f8e4m3fn`` 8, ``s4`` 4, ``u32`` 32."""
    if dtype in _BITS:
        return _BITS[dtype]
    digits = re.match(r"[a-z]+(\d+)", dtype)
    if digits is None:
        raise ParseError(f"unknown element type {dtype!r} in HLO text.")
    return int(digits[1])


# Groups of devices ------------------------------------------------------------------------------


def _device_groups(rest: str, device_count: int) -> IntArray:
    """Devices per group, int64 of shape ``(number of groups, group size)``."""
    iota = _IOTA_GROUPS.search(rest)
    if iota:
        shape, order = (tuple(map(int, iota[n].split(","))) for n in (1, 2))
        devices = np.arange(np.prod(order)).reshape(order)
        if iota[3]:
            devices = devices.transpose(tuple(map(int, iota[3].split(","))))
        return devices.reshape(shape)
    named = _MESH_GROUPS.search(rest)
    if named:
        return _groups_on_mesh(named[1].rstrip(" ,"), named[2])
    listed = _LISTED_GROUPS.search(rest)
    if listed:
        if not listed[1]:
            return np.arange(device_count).reshape(1, -1)
        return _listed(listed[1])
    raise ParseError(f"cannot read the device groups of the collective {rest[:200]!r}.")


def _listed(text: str | None) -> IntArray:
    """``{0,1},{2,3}`` as an array; XLA fills groups of uneven size up, all of ours are even."""
    rows = [[int(n) for n in row.split(",")] for row in re.findall(r"\{([\d, ]+)\}", text or "")]
    if len({len(row) for row in rows}) > 1:
        raise ParseError(f"collective groups of different sizes: {text}.")
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1)


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
    return devices.reshape(-1, int(np.prod([mesh.axis_sizes[index] for index in along])))


# Source lines -----------------------------------------------------------------------------------


def _source_places(hlo_text: str) -> dict[str, str]:
    """Stack frame -> ``file:line``, from the tables at the top of the text."""
    files = _table(hlo_text, "FileNames", r'^(\d+) "(.*)"$')
    locations = _table(hlo_text, "FileLocations", r"^(\d+) \{(.*)\}$")
    frames = _table(hlo_text, "StackFrames", r"^(\d+) \{(.*)\}$")
    places: dict[str, str] = {}
    for frame, text in frames.items():
        location = locations.get(_field(text, "file_location_id"), "")
        file = files.get(_field(location, "file_name_id"))
        if file:
            places[frame] = f"{file}:{_field(location, 'line')}"
    return places


def _table(hlo_text: str, title: str, row: str) -> dict[str, str]:
    _, found, rest = hlo_text.partition(f"\n{title}\n")
    if not found:
        return {}
    section = rest.partition("\n\n")[0]
    return dict(re.findall(row, section, flags=re.MULTILINE))


def _field(text: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\d+)", text)
    return found[1] if found else ""


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.search(text)
    if found is None:
        raise ParseError(f"cannot read the HLO instruction {text[:200]!r}: no {pattern.pattern}.")
    return found
