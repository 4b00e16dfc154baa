"""Which asynchronous instructions a value may come from.

    start = all-gather-start(..)            begun before a loop, and in its body for the next trip
    while(tuple(.., start)), body: done = all-gather-done(get-tuple-element(parameter, 1))

``done`` waits for the one before the loop in the first trip, for that of the body in all others.
"""

from __future__ import annotations

import re
from collections import defaultdict

from autoshard.verify.hlo_program import CALLS, VIEWS, HloComputation, HloInstruction, HloProgram

_INDEX = re.compile(r"\bindex=(\d+)")
_PASSES_ON = VIEWS | {"opt-barrier"}
_BEGINS = ("send", "recv")

_Element = tuple[HloInstruction, HloComputation, tuple[int, ...]]
"""A value, where it stands, and which element of it: of a tuple in a tuple several numbers."""


class Origins:
    """The values of one program."""

    def __init__(self, program: HloProgram) -> None:
        self.program = program
        self.callers: defaultdict[str, list[tuple[HloInstruction, HloComputation]]]
        self.callers = defaultdict(list)
        for computation in program.computations.values():
            for instruction in computation.instructions:
                if instruction.opcode == "while":
                    for inner in (program.body(instruction), program.condition(instruction)):
                        if inner is not None:
                            self.callers[inner.name].append((instruction, computation))
                elif instruction.opcode in CALLS:
                    for name in instruction.called:
                        self.callers[name].append((instruction, computation))

    def starts(
        self, value: HloInstruction, computation: HloComputation
    ) -> list[tuple[HloInstruction, HloComputation]]:
        """Every ``-start``, ``send`` or ``recv`` that it may be, with its computation."""
        found: dict[int, tuple[HloInstruction, HloComputation]] = {}
        front: list[_Element] = [(value, computation, ())]
        seen: set[tuple[int, tuple[int, ...]]] = set()
        while front:
            one, where, path = front.pop()
            if (id(one), path) in seen:
                continue
            seen.add((id(one), path))
            if one.opcode.endswith("-start") or one.opcode in _BEGINS:
                found[id(one)] = (one, where)
            else:
                front.extend(self._made_of(one, where, path))
        return list(found.values())

    def _made_of(
        self, one: HloInstruction, where: HloComputation, path: tuple[int, ...]
    ) -> list[_Element]:
        """What the element at ``path`` of a value is in another instruction."""
        operands = [where.by_name[name] for name in one.operands if name in where.by_name]
        if one.opcode == "get-tuple-element":
            index = _INDEX.search(one.rest)
            assert index is not None
            return [(operands[0], where, (int(index[1]), *path))]
        if one.opcode == "tuple":
            return [(operands[path[0]], where, path[1:])] if path else []
        if one.opcode == "while":
            body = self.program.body(one)
            return [(body.root, body, path)]
        if one.opcode == "parameter":
            return self._passed_to(one, where, path)
        if one.opcode in CALLS:
            inner = [self.program.computations[name] for name in one.called]
            return [(each.root, each, path) for each in inner]
        if one.opcode in _PASSES_ON or one.opcode.endswith("-update"):
            return [(operands[0], where, path)]
        return []

    def _passed_to(
        self, parameter: HloInstruction, where: HloComputation, path: tuple[int, ...]
    ) -> list[_Element]:
        """What callers, and earlier trips of a loop, give to a parameter."""
        found: list[_Element] = []
        number = parameter.parameter_number
        for caller, outside in self.callers[where.name]:
            if caller.opcode == "while":
                body = self.program.body(caller)
                found.append((outside.by_name[caller.operands[0]], outside, path))
                found.append((body.root, body, path))
            elif number is not None and number < len(caller.operands):
                operand = outside.by_name[caller.operands[number]]
                found.append((operand, outside, path))
        return found
