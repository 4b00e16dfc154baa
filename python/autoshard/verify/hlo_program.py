"""A compiled program as its HLO text says: computations, what calls what, how often, source lines.

Checked on the text of jaxlib 0.10.2 and 0.12.0.1 (CPU), of libtpu 0.0.42.1 and 0.0.52 and of the
CUDA plugin of jax 0.10.2. An instruction is one line, but where an attribute has lines of its own,
as ``kernel_metadata`` of Pallas kernels has. Source lines come from ``metadata``
(``source_file``/``source_line``, or ``stack_frame_id`` and the tables at the top); jaxlib 0.12
leaves them out on collectives that the partitioner made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from autoshard.errors import ParseError

_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<= ]*)\](?:\{([^{}]*)\})?")
_HOST_MEMORY = "S(5)"
"""What layouts of XLA:TPU and XLA:GPU say of arrays in the memory of the host."""
_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_COMPUTATION_END = re.compile(r'^\}(?:, execution_thread="[^"]*")?\s*$')
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|true_computation|false_computation|select|scatter)=%?([\w.\-]+)"
)
_SEVERAL = re.compile(r"\b(?:branch_computations|called_computations|calls)=\{([^}]*)\}")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_SOURCE = re.compile(r'\bsource_file="([^"]*)" source_line=(\d+)')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_PARENTHESIS = re.compile(r"[()]")
_INTEGER = re.compile(r"^\((-?\d+)\)")
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
"""The direction of a comparison whose sides change places."""
_PARTITIONS = re.compile(r"^HloModule .*?\bnum_partitions=(\d+)")
_REPLICAS = re.compile(r"^HloModule .*?\breplica_count=(\d+)")
_COPIES = frozenset({"copy", "copy-start", "copy-done", "bitcast"})

CALLS = frozenset(("call", "call-start", "conditional", "async-start", "custom-call-start"))
"""What runs other computations as they stand, loops aside."""

VIEWS = _COPIES | {"convert", "reshape", "transpose"}
"""What moves or converts elements, and picks none."""


@dataclass(frozen=True, slots=True)
class HloArray:
    """One array type of HLO text, ``bf16[8,128]{1,0:T(8,128)S(1)}``."""

    dtype: str
    shape: tuple[int, ...]
    on_host: bool = False
    """In the memory of the host; XLA:CPU never says so."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> float:
        """Without the padding of its layout."""
        return self.elements * dtype_bits(self.dtype) / 8


@dataclass(slots=True)
class HloInstruction:
    """One line of a computation."""

    name: str
    result: str
    """Text of the result's type."""
    opcode: str
    rest: str
    """Operands and attributes."""
    is_root: bool = False

    @property
    def operands(self) -> list[str]:
        """Names of the operands; ``rest`` begins with their list."""
        return _OPERAND.findall(self.rest[: end_of_parenthesis(self.rest, 0)])

    @property
    def attributes(self) -> str:
        """What stands behind the operands."""
        return self.rest[end_of_parenthesis(self.rest, 0) :]

    @property
    def called(self) -> list[str]:
        """Computations that it names, but for the body and condition of a loop."""
        found = _CALLED.findall(self.rest)
        for several in _SEVERAL.finditer(self.rest) if "s={" in self.rest else ():
            found.extend(name.strip().lstrip("%") for name in several[1].split(",") if name.strip())
        return found

    @property
    def parameter_number(self) -> int | None:
        """Which one it is of the computation's; None if it is no parameter."""
        if self.opcode != "parameter":
            return None
        return int(self.rest[1 : self.rest.index(")")])

    @property
    def arrays(self) -> list[HloArray]:
        """The result's arrays."""
        return arrays_of(self.result)

    @property
    def op_name(self) -> str:
        """JAX's name of the op it comes from; empty where the compiler kept none."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""


@dataclass
class HloComputation:
    """Instructions in program order."""

    name: str
    is_entry: bool
    lines: list[str] = field(default_factory=list[str])
    """Its text, read when it is first asked for: most computations are bodies of fusions."""

    @cached_property
    def instructions(self) -> list[HloInstruction]:
        """All of them."""
        return [found for line in self.lines if (found := _read_instruction(line))]

    @cached_property
    def by_name(self) -> dict[str, HloInstruction]:
        """The same, by what they are called."""
        return {instruction.name: instruction for instruction in self.instructions}

    @property
    def root(self) -> HloInstruction:
        """What it gives back."""
        for instruction in reversed(self.instructions):
            if instruction.is_root:
                return instruction
        return self.instructions[-1]

    @cached_property
    def users(self) -> dict[str, list[HloInstruction]]:
        """Who reads each value."""
        found: dict[str, list[HloInstruction]] = {}
        for instruction in self.instructions:
            for name in dict.fromkeys(instruction.operands):
                found.setdefault(name, []).append(instruction)
        return found

    def end_of(self, start: HloInstruction) -> HloInstruction | None:
        """The ``-done`` of an asynchronous instruction; None if it is in another trip."""
        for user in self.users.get(start.name, ()):
            if user.opcode.endswith("-done"):
                return user
            if user.opcode.endswith("-update"):
                return self.end_of(user)
        return None

    def source(self, name: str) -> HloInstruction:
        """The instruction called so, or what it is a copy of.

        Raises:
            ParseError: It is a copy of itself.
        """
        found = self.by_name[name]
        for _ in self.instructions:
            if found.opcode not in _COPIES:
                return found
            found = self.by_name[found.operands[0]]
        raise ParseError(f"the HLO text is damaged: {name} is a copy of itself.")

    def element(self, made: HloInstruction, number: int) -> HloInstruction | None:
        """What element ``number`` of a tuple is; None if it was not made here."""
        return self.source(made.operands[number]) if made.opcode == "tuple" else None


@dataclass(frozen=True, slots=True)
class Run:
    """An instruction of a computation that devices execute line by line, and how often."""

    instruction: HloInstruction
    computation: HloComputation
    times: int
    """Trip counts of the loops around it; one without counts as the reader says."""


@dataclass
class HloProgram:
    """One partition's program."""

    computations: dict[str, HloComputation]
    num_partitions: int | None
    """Devices that run it together, as its first line says; of several TPU slices those of one."""
    _places: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> HloProgram:
        """Read ``compiled.as_text()``.

        Raises:
            ParseError: The text has no ``ENTRY`` computation.
        """
        computations: dict[str, HloComputation] = {}
        current: HloComputation | None = None
        for line in _whole_lines(text):
            if current is None:
                header = _COMPUTATION.match(line)
                if header:
                    current = HloComputation(header[2], bool(header[1]))
                    computations[header[2]] = current
            elif line.startswith("}") and _COMPUTATION_END.match(line):
                current = None
            else:
                current.lines.append(line)
        if not any(computation.is_entry for computation in computations.values()):
            raise ParseError(
                "the HLO text has no ENTRY computation. Give the text of one compiled module, as "
                "compiled.as_text() returns it."
            )
        partitions, replicas = _PARTITIONS.search(text), _REPLICAS.search(text)
        devices = int(partitions[1]) * (int(replicas[1]) if replicas else 1) if partitions else None
        return cls(computations, devices, _source_places(text))

    @cached_property
    def entry(self) -> HloComputation:
        """Where it begins."""
        return next(each for each in self.computations.values() if each.is_entry)

    def place(self, instruction: HloInstruction) -> str | None:
        """``file:line`` of the user's code; None where the compiler kept none."""
        source = _SOURCE.search(instruction.rest)
        if source:
            return f"{source[1]}:{source[2]}"
        frame = _FRAME.search(instruction.rest)
        return self._places.get(frame[1]) if frame else None

    def runs(self, unknown_trip_count: int) -> Iterator[Run]:
        """Every instruction that is executed, with its loops; fusions are one instruction.

        Bodies and conditions of loops, callees, all branches of a conditional and what an
        ``async-start`` wraps are entered; a computation that is called twice comes twice.
        """
        yield from self._runs(self.entry, 1, unknown_trip_count)

    def _runs(self, computation: HloComputation, times: int, unknown: int) -> Iterator[Run]:
        for instruction in computation.instructions:
            yield Run(instruction, computation, times)
            if instruction.opcode == "while":
                trips = self.trips(computation, instruction)
                count = unknown if trips is None else trips
                condition = self.condition(instruction)
                if condition is not None:
                    yield from self._runs(condition, times * (count + 1), unknown)
                yield from self._runs(self.body(instruction), times * count, unknown)
            elif instruction.opcode in CALLS:
                for name in instruction.called:
                    yield from self._runs(self.computations[name], times, unknown)

    def body(self, loop: HloInstruction) -> HloComputation:
        """What a loop runs."""
        return self.computations[find(_BODY, loop.rest)[1]]

    def condition(self, loop: HloInstruction) -> HloComputation | None:
        """What says whether a loop goes on; None where the text does not have it."""
        return self.computations.get(find(_CONDITION, loop.rest)[1])

    def trips(self, computation: HloComputation, loop: HloInstruction) -> int | None:
        """How often a loop runs its body; None where neither text nor counter says it.

        XLA:CPU and XLA:GPU state it. XLA:TPU does not: there it follows from a counter, an element
        of the loop's tuple that starts at a constant, that the body changes by a constant, and that
        the condition compares with a constant, or with an element that is one and stays it.
        """
        stated = _TRIPS.search(loop.rest)
        if stated:
            return int(stated[1])
        condition = self.condition(loop)
        if condition is None or condition.root.opcode != "compare":
            return None
        init = computation.source(loop.operands[0])
        body = self.body(loop)
        direction = find(_DIRECTION, condition.root.rest)[1]
        if direction not in _MIRRORED:
            return None
        left, right = (condition.source(name) for name in condition.root.operands)
        for counter, end, way in ((left, right, direction), (right, left, _MIRRORED[direction])):
            number = _loop_element(counter)
            if number is None:
                continue
            start = _integer(computation.element(init, number))
            step = _step(body, number)
            last = _unchanging(end, computation, init, body)
            if start is not None and step is not None and last is not None:
                return _trips_of_counter(start, last, step, way)
        return None


def _whole_lines(text: str) -> Iterator[str]:
    """The lines, those that a line break in an attribute made of an instruction put together."""
    whole = ""
    for line in text.splitlines():
        # Only what goes on behind a line break neither begins with spaces nor ends a computation.
        may_go_on = line and not line[0].isspace() and not _COMPUTATION_END.match(line)
        if may_go_on and _INSTRUCTION.match(whole):
            whole += line
            continue
        yield whole
        whole = line
    yield whole


def _loop_element(value: HloInstruction) -> int | None:
    """Which element of the loop's tuple it is."""
    is_element = value.opcode == "get-tuple-element"
    return int(find(_INDEX, value.rest)[1]) if is_element else None


def _integer(value: HloInstruction | None) -> int | None:
    """A constant scalar."""
    if value is None or value.opcode != "constant":
        return None
    found = _INTEGER.match(value.rest)
    return None if found is None else int(found[1])


def _step(body: HloComputation, number: int) -> int | None:
    """What a trip adds to an element of the loop's tuple; None if it is not a constant."""
    changed = body.element(body.root, number)
    if changed is None or changed.opcode not in ("add", "subtract"):
        return None
    left, right = (body.source(name) for name in changed.operands)
    if _loop_element(left) == number and _integer(right) is not None:
        step = _integer(right)
    elif changed.opcode == "add" and _loop_element(right) == number:
        step = _integer(left)
    else:
        return None
    return -step if changed.opcode == "subtract" and step is not None else step


def _unchanging(
    value: HloInstruction, computation: HloComputation, init: HloInstruction, body: HloComputation
) -> int | None:
    """A constant of the condition, or an element that is one before the loop and in every trip."""
    number = _loop_element(value)
    if number is None:
        return _integer(value)
    kept = body.element(body.root, number)
    if kept is None or _loop_element(kept) != number:
        return None
    return _integer(computation.element(init, number))


def _trips_of_counter(start: int, last: int, step: int, direction: str) -> int | None:
    """Trips while the counter is ``direction`` of ``last``; None if there is no end."""
    if direction in ("LE", "GE"):
        last += 1 if direction == "LE" else -1
    if direction == "NE" and (step == 0 or (last - start) % step or (last - start) // step < 0):
        return None
    if direction in ("GT", "GE"):
        start, last, step = -start, -last, -step
    if direction == "NE":
        return (last - start) // step
    if start >= last:
        return 0
    return -(-(last - start) // step) if step > 0 else None


def _read_instruction(line: str) -> HloInstruction | None:
    head = _INSTRUCTION.match(line)
    if head is None:
        return None
    start = head.end()
    end = end_of_parenthesis(line, start) if line[start] == "(" else line.index(" ", start)
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        return None
    rest = line[opcode.end() - 1 :]
    return HloInstruction(head[2], line[start:end], opcode[1], rest, bool(head[1]))


def end_of_parenthesis(line: str, start: int) -> int:
    """Behind the parenthesis that closes the one at ``start``."""
    depth = 0
    for found in _PARENTHESIS.finditer(line, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    return len(line)


def find(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """The first match.

    Raises:
        ParseError: There is none.
    """
    found = pattern.search(text)
    if found is None:
        raise ParseError(f"cannot read the HLO instruction {text[:200]!r}: no {pattern.pattern}.")
    return found


# Types ------------------------------------------------------------------------------------------


def arrays_of(type_text: str) -> list[HloArray]:
    """The arrays of a type: one, or those of a tuple."""
    return [
        HloArray(
            dtype,
            tuple(int(size.strip(" <=")) for size in sizes.split(",") if size),
            _HOST_MEMORY in layout,
        )
        for dtype, sizes, layout in _ARRAY.findall(type_text)
    ]


def bytes_of(type_text: str) -> float:
    """Bytes of an array or of a tuple of arrays, without layout padding."""
    return float(sum(array.bytes for array in arrays_of(type_text)))


def dtype_bits(dtype: str) -> int:
    """Bits of an element: ``f8e4m3fn`` 8, ``s4`` 4, ``u32`` 32."""
    if dtype in _BITS:
        return _BITS[dtype]
    digits = re.match(r"[a-z]+(\d+)", dtype)
    if digits is None:
        raise ParseError(f"unknown element type {dtype!r} in HLO text.")
    return int(digits[1])


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
