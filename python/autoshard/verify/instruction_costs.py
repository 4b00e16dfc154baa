"""Seconds of one instruction of optimised HLO, where the compiler does not say itself.

A roofline with the planner's formulas (docs/design/cost_model.md, "Ops") on what XLA's own cost
analysis counts: every instruction is analysed as a module of its own, with the computations it
calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2, prod

from autoshard import _core
from autoshard._core import Arithmetic
from autoshard.cluster import Cluster
from autoshard.cluster.alone import rule_alone
from autoshard.errors import ParseError
from autoshard.ir.xla_cost import XlaCost, xla_cost
from autoshard.verify.fusion_reads import fusion_reads
from autoshard.verify.hlo_collectives import is_collective
from autoshard.verify.hlo_program import (
    HloArray,
    HloComputation,
    HloInstruction,
    HloProgram,
    arrays_of,
    bytes_of,
)
from autoshard.verify.row_access import RowAccess

TRANSCENDENTAL_OPERATIONS = 10.0
"""Operations of one exponential, logarithm, tanh or the like, as the planner counts them."""

PRODUCTS = frozenset(("dot", "convolution"))
"""Products of matrices."""

_NEEDS_NOTHING = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
        *("partition-id", "replica-id", "opt-barrier", "add-dependency", "get-dimension-size"),
    )
)
"""No code runs for these."""

_FREE_CALLS = frozenset(
    (
        *("AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "SliceId"),
        *("AsyncCollectiveStart", "AsyncCollectiveDone", "GatherScatterIndicesBitpacked"),
    )
)
"""Custom calls that only name values, or tell the compiler something."""

_ATTRIBUTES_WITHOUT_COST = re.compile(
    r", (?:metadata|backend_config|frontend_attributes|sharding|statistics|origin"
    r"|control-predecessors)=\{"
)
_QUOTED_CONFIG = re.compile(r', backend_config="(?:[^"\\]|\\.)*"')
_LAYOUT = re.compile(r"(?<=\])\{[^{}]*\}")
_COMMENT = re.compile(r"/\*.*?\*/")
_WINDOW = re.compile(r"\bwindow=\{size=([\dx]+)")
_FFT_LENGTH = re.compile(r"\bfft_length=\{([\d,]+)\}")
_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
_DIMS = {
    name: re.compile(rf'"?{name}"?[=:][\[{{]([\d,"]*)[\]}}]')
    for name in (
        *("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims"),
        *("lhs_batch_dimensions", "rhs_batch_dimensions"),
        *("lhs_contracting_dimensions", "rhs_contracting_dimensions"),
    )
}
_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW_AND_LABELS = re.compile(
    r"\b(?:window=\{[^}]*\}|dim_labels=[\w>\-]+|feature_group_count=\d+|batch_group_count=\d+)"
)
_CUBLAS = re.compile(r"__cublas\$(?:gemm|lt\$matmul)")
_CUDNN_CONV = re.compile(r"__cudnn\$conv(?:Forward|BiasActivationForward)")
_CUDNN_GRADIENT = re.compile(r"__cudnn\$convBackward(Filter|Input)")
_ARITHMETIC = {
    "f64": Arithmetic.F64,
    "c128": Arithmetic.F64,
    "f32": Arithmetic.F32,
    "c64": Arithmetic.F32,
    "f16": Arithmetic.F16,
    "bf16": Arithmetic.F16,
}


@dataclass(frozen=True, slots=True)
class InstructionCost:
    """One run of one instruction on one device."""

    seconds: float
    """Time by the roofline, with the start of a kernel where the chip has one."""
    flops: float
    """Transcendental functions with the operations that the planner counts."""
    bytes: float
    """Read from memory and written to it."""
    is_known: bool = True
    """False for a custom call of which only the operands and results are known."""
    is_product: bool = False
    """Whether a matmul, a convolution or a kernel is in it."""


NOTHING = InstructionCost(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _ProductSizes:
    """Elements of the dims of a product, as the core knows them."""

    rows: int
    batch: int
    columns: int
    contracted: int
    window: int
    arithmetic: Arithmetic
    flops: float = 0.0


class InstructionCosts:
    """The costs of a program's instructions on one device of a cluster."""

    def __init__(self, program: HloProgram, cluster: Cluster, launch_seconds: float) -> None:
        self.program = program
        self.chip = cluster.chip
        self.launch_seconds = launch_seconds
        mesh = cluster.level_mesh()
        self.axis_sizes = list(mesh.axis_sizes)
        self.core = cluster.to_core(mesh)
        self.analysed: dict[str, XlaCost | None] = {}
        self.rows = RowAccess(cluster.compiler.answers)

    def of(self, instruction: HloInstruction, computation: HloComputation) -> InstructionCost:
        """What one run costs; nothing for what only names values."""
        if instruction.opcode in _NEEDS_NOTHING:
            return NOTHING
        instruction = _as_plain(instruction, computation)
        cost = self._xla_cost(instruction, computation)
        if cost is None and self._is_free(instruction):
            return NOTHING
        is_known = cost is not None or not self._has_unknown_call(instruction)
        if cost is None:
            cost = XlaCost(0.0, 0.0, _touched_bytes(instruction, computation))
        if instruction.opcode == "fft":
            cost = replace(cost, flops=_fft_flops(instruction, computation))
        busy, matmul_flops = 0.0, 0.0
        for product, inside in self._products(instruction, computation):
            own = self._xla_cost(product, inside)
            if own is None:
                continue
            busy += self._matmul_seconds(product, inside, own.flops)
            matmul_flops += own.flops
        gradient = _convolution_gradient(instruction, computation)
        if gradient is not None:
            busy += self._product_seconds(gradient, gradient.flops)
            matmul_flops += gradient.flops
        cost = self._needed(cost, matmul_flops, instruction)
        flops = max(cost.flops, matmul_flops) + TRANSCENDENTAL_OPERATIONS * cost.transcendentals
        busy += max(0.0, flops - matmul_flops) / self.chip.vector_flops.value
        memory = self._memory_seconds(
            cost.bytes + self.rows.waited_bytes(instruction, self.program)
        )
        if busy == 0.0 and cost.bytes == 0.0:
            return NOTHING
        seconds = max(busy, memory) + self.launch_seconds
        return InstructionCost(seconds, flops, cost.bytes, is_known, is_product=matmul_flops > 0)

    def _needed(self, cost: XlaCost, matmul_flops: float, instruction: HloInstruction) -> XlaCost:
        """The cost without what the results of a fusion do not need."""
        if instruction.opcode != "fusion" or len(instruction.called) != 1:
            return cost
        fused = self.program.computations[instruction.called[0]]
        needed = fusion_reads(fused)
        kept = _scattered_into(fused)
        if kept is not None:
            touched = 2 * bytes_of(fused.by_name[fused.root.operands[2]].result)
            whole = cost.operand_bytes[kept] + bytes_of(fused.root.result)
            return replace(cost, bytes=max(0.0, cost.bytes - whole) + touched)
        saved = sum(
            max(0.0, read - needed.operand_bytes.get(number, read))
            for number, read in enumerate(cost.operand_bytes)
        )
        other = max(0.0, cost.flops - matmul_flops)
        return replace(
            cost,
            flops=cost.flops - (1 - needed.computed) * other,
            transcendentals=needed.computed * cost.transcendentals,
            bytes=cost.bytes - saved,
        )

    def _is_free(self, instruction: HloInstruction) -> bool:
        """A custom call that does nothing, or a fusion of such."""
        if instruction.opcode == "custom-call":
            return _target(instruction) in _FREE_CALLS
        return bool(instruction.called) and all(
            each.opcode in _NEEDS_NOTHING or is_collective(each.opcode) or self._is_free(each)
            for name in instruction.called
            for each in self.program.computations[name].instructions
        )

    def _has_unknown_call(self, instruction: HloInstruction) -> bool:
        if instruction.opcode == "custom-call":
            return _target(instruction) not in _FREE_CALLS
        return any(
            self._has_unknown_call(_as_plain(each, self.program.computations[name]))
            for name in instruction.called
            for each in self.program.computations[name].instructions
        )

    def _memory_seconds(self, touched: float) -> float:
        rate = self.chip.memory_bandwidth.value * self.chip.memory_efficiency.value
        return touched / rate

    def _products(
        self, instruction: HloInstruction, computation: HloComputation
    ) -> Iterator[tuple[HloInstruction, HloComputation]]:
        """The products of matrices in it."""
        if instruction.opcode in PRODUCTS:
            yield instruction, computation
        for name in instruction.called:
            inner = self.program.computations[name]
            for each in inner.instructions:
                yield from self._products(_as_plain(each, inner), inner)

    def _matmul_seconds(
        self, product: HloInstruction, computation: HloComputation, flops: float
    ) -> float:
        """Seconds of a matmul as the core counts them: tiles pad as in the planner."""
        left, right = (
            arrays_of(computation.by_name[name].result)[0] for name in product.operands[:2]
        )
        (result,) = product.arrays[:1]
        rows, columns, contracted, batch = product_sizes(product, left, right, result, flops)
        window = _window(product)
        sizes = _ProductSizes(
            rows, batch, columns, max(1, contracted // window), window, _arithmetic((left, right))
        )
        seconds = self._product_seconds(sizes, flops)
        if window > 1:
            return seconds
        names = [*product.operands[:2], None]
        texts = [product.result if n is None else computation.by_name[n].result for n in names]
        return seconds / min(map(self.rows.aligned_share, texts))

    def _product_seconds(self, sizes: _ProductSizes, flops: float) -> float:
        factors = [((0,), (1,), (3,)), ((3,), (4,), (1,), (2,)), ((0,), (1,), (2,))]
        bits = 128  # rows count by themselves, with the layout that they have here
        rule, types = rule_alone(
            _core.Work.MATMUL,
            sizes.arithmetic,
            flops,
            [sizes.rows, sizes.batch, sizes.columns, sizes.contracted, sizes.window],
            [(factors[0], bits), (factors[1], bits)],
            [(factors[2], bits)],
        )
        whole = ((), (), (), (), ())
        return _core.compute(
            rule, types, whole, [False, False], [False], self.core, self.axis_sizes
        ).seconds

    def _xla_cost(self, instruction: HloInstruction, computation: HloComputation) -> XlaCost | None:
        text = self._module(instruction, computation)
        if text not in self.analysed:
            self.analysed[text] = xla_cost(text)
        return self.analysed[text]

    def _module(self, instruction: HloInstruction, computation: HloComputation) -> str:
        """A module whose entry is this instruction.

        XLA counts what a slice reads of a fusion's operand, but all of an operand that the slice
        sees through a bitcast. So operands come as these bitcasts.
        """
        lines = ["HloModule one", ""]
        views: dict[int, HloInstruction] = {}
        for name in self._callees(instruction):
            called = self.program.computations[name]
            instructions = called.instructions
            if instruction.opcode == "fusion" and name in instruction.called:
                views = _only_views(called)
                instructions = _read_as_views(called, views)
            lines.append(f"%{name} {{")
            lines.extend(map(_line, instructions))
            lines.append("}")
        lines.append("ENTRY %entry {")
        renamed: list[str] = []
        for number, name in enumerate(instruction.operands):
            type_text = _plain(views.get(number, computation.by_name[name]).result)
            lines.append(f"  %operand.{number} = {type_text} parameter({number})")
            renamed.append(f"%operand.{number}")
        operands = f"({', '.join(renamed)})"
        if not renamed:
            operands = instruction.rest[: -len(instruction.attributes) or None]
        result = _plain(instruction.result)
        attributes = _without_names(instruction.attributes)
        lines.append(f"  ROOT %it = {result} {instruction.opcode}{operands}{attributes}")
        lines.append("}")
        return "\n".join(lines) + "\n"

    def _callees(self, instruction: HloInstruction) -> list[str]:
        """What it calls, the called ones of these first."""
        found: dict[str, None] = {}

        def add(calling: HloInstruction) -> None:
            for name in calling.called:
                if name not in found:
                    for each in self.program.computations[name].instructions:
                        add(each)
                    found[name] = None

        add(instruction)
        return list(found)


def _fft_flops(fft: HloInstruction, computation: HloComputation) -> float:
    """As the planner counts them; XLA multiplies the logarithms of the dims, not adds them."""
    found = _FFT_LENGTH.search(fft.rest)
    points = prod(map(int, found[1].split(","))) if found else 1
    elements = arrays_of(computation.by_name[fft.operands[0]].result)[0].elements
    return 5.0 * elements * log2(max(2, points))


def _window(product: HloInstruction) -> int:
    """Elements of a convolution's window, where that is smaller than what it is moved over."""
    found = _WINDOW.search(product.rest) if product.opcode == "convolution" else None
    return prod(map(int, found[1].split("x"))) if found else 1


def _convolution_gradient(
    instruction: HloInstruction, computation: HloComputation
) -> _ProductSizes | None:
    """The product that cuDNN's gradient of a convolution is, whose labels are those of the
    convolution."""
    found = _CUDNN_GRADIENT.match(_target(instruction))
    labels = _LABELS.search(instruction.rest)
    if instruction.opcode != "custom-call" or found is None or labels is None:
        return None
    first, second = (
        arrays_of(computation.by_name[name].result)[0] for name in instruction.operands[:2]
    )
    made = instruction.arrays[0]
    is_filter = found[1] == "Filter"
    weights, results = (made, second) if is_filter else (second, first)
    outputs = weights.shape[labels[2].index("o")]
    inputs = weights.shape[labels[2].index("i")]
    window = weights.elements // (inputs * outputs)
    flops = 2.0 * results.elements * inputs * window
    arithmetic = _arithmetic((first, second))
    positions = results.elements // outputs
    if is_filter:
        return _ProductSizes(inputs * window, 1, outputs, positions, 1, arithmetic, flops)
    groups = max(1, _channels(made, labels[1]) // inputs)
    return _ProductSizes(positions, groups, inputs, outputs // groups, window, arithmetic, flops)


def _channels(image: HloArray, label: str) -> int:
    return image.shape[label.index("f")]


def product_sizes(
    product: HloInstruction,
    left: HloArray,
    right: HloArray,
    result: HloArray,
    flops: float,
) -> tuple[int, int, int, int]:
    """Rows, columns, contracted elements and batch of a dot or convolution.

    Of a convolution pixels are rows, and what is contracted follows from the operations, as XLA
    counts only those that meet a pixel.
    """
    if product.opcode == "dot":
        batch_dims = _dims(product, "lhs_batch_dims")
        contracted_dims = _dims(product, "lhs_contracting_dims")
        right_dims = {*_dims(product, "rhs_batch_dims"), *_dims(product, "rhs_contracting_dims")}
        batch = prod(left.shape[d] for d in batch_dims)
        contracted = prod(left.shape[d] for d in contracted_dims)
        columns = prod(size for d, size in enumerate(right.shape) if d not in right_dims)
        rows = result.elements // max(1, batch * columns)
        return max(1, rows), max(1, columns), max(1, contracted), max(1, batch)
    labels = _LABELS.search(product.rest)
    if labels is None:
        raise ParseError(f"a convolution without dim_labels: {product.rest[:200]!r}.")
    columns = result.shape[labels[3].index("f")]
    rows = result.elements // max(1, columns)
    contracted = round(flops / (2 * max(1, result.elements)))
    return max(1, rows), max(1, columns), max(1, contracted), 1


def _dims(product: HloInstruction, name: str) -> tuple[int, ...]:
    found = _DIMS[name].search(product.rest)
    if found is None or not found[1]:
        return ()
    return tuple(int(each.strip('"')) for each in found[1].split(","))


def _as_plain(instruction: HloInstruction, computation: HloComputation) -> HloInstruction:
    """A product of matrices that a GPU library computes, as the dot or convolution that it is."""
    if instruction.opcode != "custom-call":
        return instruction
    target = _target(instruction)
    if not (_CUBLAS.match(target) or _CUDNN_CONV.match(target)):
        return instruction
    result = instruction.arrays[0]
    result_text = f"{result.dtype}[{','.join(map(str, result.shape))}]"
    first_two = ", ".join(f"%{name}" for name in instruction.operands[:2])
    if _CUBLAS.match(target):
        dims = {
            short: _dims(instruction, long)
            for short, long in (
                ("lhs_batch_dims", "lhs_batch_dimensions"),
                ("rhs_batch_dims", "rhs_batch_dimensions"),
                ("lhs_contracting_dims", "lhs_contracting_dimensions"),
                ("rhs_contracting_dims", "rhs_contracting_dimensions"),
            )
        }
        attributes = "".join(
            f", {name}={{{','.join(map(str, numbers))}}}" for name, numbers in dims.items()
        )
        return HloInstruction(
            instruction.name, result_text, "dot", f"({first_two}){attributes}", instruction.is_root
        )
    attributes = "".join(f", {text}" for text in _WINDOW_AND_LABELS.findall(instruction.rest))
    return HloInstruction(
        instruction.name,
        result_text,
        "convolution",
        f"({first_two}){attributes}",
        instruction.is_root,
    )


def _target(instruction: HloInstruction) -> str:
    """What a custom call calls."""
    found = _TARGET.search(instruction.rest)
    return found[1] if found else ""


def _arithmetic(operands: tuple[HloArray, ...]) -> Arithmetic:
    """Arithmetic of the widest operand."""
    return min(_arithmetic_of(array.dtype) for array in operands)


def _arithmetic_of(dtype: str) -> Arithmetic:
    if dtype in _ARITHMETIC:
        return _ARITHMETIC[dtype]
    return Arithmetic.F8 if dtype.startswith("f") else Arithmetic.I8


def _scattered_into(fused: HloComputation) -> int | None:
    """The operand of a fusion over which it scatters, as an update in place writes.

    Buffer assignment gives both one buffer: copies are instructions of their own.
    """
    if fused.root.opcode != "scatter" or len(fused.root.operands) != 3:
        return None
    written = fused.by_name[fused.root.operands[0]]
    while written.opcode == "bitcast":
        written = fused.by_name[written.operands[0]]
    return written.parameter_number


def _touched_bytes(instruction: HloInstruction, computation: HloComputation) -> float:
    operands = [computation.by_name[name].result for name in instruction.operands]
    return sum(array.bytes for text in (instruction.result, *operands) for array in arrays_of(text))


def _only_views(computation: HloComputation) -> dict[int, HloInstruction]:
    """The bitcast that is all that reads a parameter, by the number of that."""
    found: dict[int, HloInstruction] = {}
    for parameter in computation.instructions:
        users = computation.users.get(parameter.name, [])
        is_one = len(users) == 1 and users[0].opcode == "bitcast" and not users[0].is_root
        if parameter.opcode == "parameter" and is_one:
            found[_parameter_number(parameter)] = users[0]
    return found


def _read_as_views(
    computation: HloComputation, views: dict[int, HloInstruction]
) -> list[HloInstruction]:
    """Its instructions, with parameters in the place of the bitcasts of them."""
    bitcasts = {each.name for each in views.values()}
    found: list[HloInstruction] = []
    for each in computation.instructions:
        if each.name in bitcasts:
            continue
        if each.opcode == "parameter" and _parameter_number(each) in views:
            view = views[_parameter_number(each)]
            each = replace(each, name=view.name, result=view.result)
        found.append(each)
    return found


def _parameter_number(parameter: HloInstruction) -> int:
    return int(parameter.rest[1 : parameter.rest.index(")")])


def _line(instruction: HloInstruction) -> str:
    root = "ROOT " if instruction.is_root else ""
    operands = instruction.rest[: len(instruction.rest) - len(instruction.attributes)]
    return (
        f"  {root}%{instruction.name} = {_plain(instruction.result)}"
        f" {instruction.opcode}{_COMMENT.sub('', operands)}{_without_names(instruction.attributes)}"
    )


def _plain(type_text: str) -> str:
    """Without layouts, which do not change what is counted."""
    return _LAYOUT.sub("", _COMMENT.sub("", type_text))


def _without_names(attributes: str) -> str:
    """Without what says where an instruction comes from and how it is compiled."""
    attributes = _QUOTED_CONFIG.sub("", attributes)
    while True:
        found = _ATTRIBUTES_WITHOUT_COST.search(attributes)
        if found is None:
            return _plain(attributes)
        end = _end_of_braces(attributes, found.end() - 1)
        attributes = attributes[: found.start()] + attributes[end:]


def _end_of_braces(text: str, start: int) -> int:
    depth, quoted = 0, False
    index = start
    while index < len(text):
        letter = text[index]
        if quoted:
            if letter == "\\":
                index += 1
            elif letter == '"':
                quoted = False
        elif letter == '"':
            quoted = True
        elif letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    return len(text)
