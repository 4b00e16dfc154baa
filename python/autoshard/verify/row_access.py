"""How kernels read rows of arrays, as the core counts it (passes/cost/compute.cpp)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from autoshard import _core
from autoshard.verify.hlo_program import HloComputation, HloInstruction, HloProgram, arrays_of

_BITS_READ = 16
"""Elements are read as such numbers, if wider in the kernel."""

_REDUCED = re.compile(r"\bdimensions=\{([\d,]*)\}")
_MINOR_TO_MAJOR = re.compile(r"\]\{(\d+)")


class RowAccess:
    """What rows of other lengths, and reductions of rows, cost on one compiler's kernels."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        """By the compiler's ``fusion.unaligned_rows`` and ``fusion.nested_reductions``."""
        self._unaligned_rows = float(answers["fusion.unaligned_rows"])
        self._nested_reductions = int(answers["fusion.nested_reductions"])

    def aligned_share(self, type_text: str) -> float:
        """What accesses reach to rows that are no multiple of 16 bytes."""
        array, minor = arrays_of(type_text)[0], _minor_dim(type_text)
        row = array.shape[minor] if minor >= 0 else 0
        if row in (0, array.elements):
            return 1.0
        bits = 8 * array.bytes / array.elements
        return _core.aligned_share(row, bits, self._unaligned_rows)

    def waited_bytes(self, instruction: HloInstruction, program: HloProgram) -> float:
        """Bytes for which reductions of such rows wait, and what kernels of nested ones read again.

        Args:
            instruction: As the program has it; what it calls counts as well.
            program: In which it stands.
        """
        waited = 0.0
        for name in instruction.called:
            inner = program.computations[name]
            rows = [each for each in inner.instructions if _reduced_row(each, inner) > 0]
            for each in rows if self._unaligned_rows < 1 else ():
                array = inner.by_name[each.operands[0]].arrays[0]
                row = _reduced_row(each, inner)
                share = _core.aligned_share(row, _BITS_READ, self._unaligned_rows)
                waited += _BITS_READ / 8 * array.elements * (1 / share - 1)
            if instruction.opcode == "fusion" and len(rows) > 1:
                waited += (self._nested_reductions - 1) * _nested_bytes(inner, rows)
            else:
                waited += sum(self.waited_bytes(each, program) for each in inner.instructions)
        return waited


def _minor_dim(type_text: str) -> int:
    """The dim whose elements lie side by side; -1 of a scalar."""
    layout = _MINOR_TO_MAJOR.search(type_text)
    if layout is not None:
        return int(layout[1])
    return len(arrays_of(type_text)[0].shape) - 1


def _reduced_row(instruction: HloInstruction, computation: HloComputation) -> int:
    """Elements of the rows that it reduces; 0 where it reduces none, or all there is."""
    found = _REDUCED.search(instruction.attributes)
    if instruction.opcode != "reduce" or found is None:
        return 0
    operand = computation.by_name[instruction.operands[0]]
    array, minor = operand.arrays[0], _minor_dim(operand.result)
    reduced = [int(dim) for dim in found[1].split(",") if dim]
    return array.shape[minor] if minor in reduced and array.shape[minor] < array.elements else 0


def _nested_bytes(fused: HloComputation, rows: Sequence[HloInstruction]) -> float:
    """Bytes of the operands as large as a result of whole rows, where they are several and a
    reduction is computed from another one."""
    reduced = {each.name for each in rows}
    behind: set[str] = set()
    is_nested = False
    for each in fused.instructions:
        waits = any(name in behind for name in each.operands)
        is_nested = is_nested or (waits and each.name in reduced)
        if waits or each.name in reduced:
            behind.add(each.name)
    whole = fused.root.arrays[0].elements
    if any(fused.by_name[each.operands[0]].arrays[0].elements > whole for each in rows):
        return 0.0
    operands = [
        sum(array.bytes for array in each.arrays)
        for each in fused.instructions
        if each.opcode == "parameter" and each.arrays and each.arrays[0].elements >= whole
    ]
    return sum(operands) if is_nested and len(operands) > 1 else 0.0
