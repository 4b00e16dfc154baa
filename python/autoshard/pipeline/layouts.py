"""In which order the dims of values lie in memory, between the tasks of a stage.

Arguments and results of programs lie row by row, and compilers copy what they would have otherwise.
What only tasks of one stage see lies as one of them has it: that is compiled first, and the others
for the layout that the compiler chose. Tasks of the loop come first, as they run most: what is
made before it lies as they read it, what is read behind it as they make it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoshard.compilers.compiler import Compiler
from autoshard.errors import CompileError
from autoshard.ir import mlir
from autoshard.ir.attributes import ANY_ORDER, LAYOUT_MODE
from autoshard.ir.boundary import Side, attributes_at, main_function
from autoshard.rewrites.stage_tasks.program import Call, StageProgram, Transfer


@dataclass(frozen=True, slots=True)
class Inside:
    """Where a task takes and gives what only tasks of its stage see."""

    operands: Mapping[int, int]
    """By place: the value, that of the sum before the loop where it is one."""
    results: Mapping[int, int]

    @property
    def values(self) -> set[int]:
        """What lies in one layout wherever it is."""
        return {*self.operands.values(), *self.results.values()}


_NOTHING = Inside({}, {})


def inside_of_stages(program: StageProgram, compiler: Compiler) -> Mapping[str, Inside]:
    """By name of the task; empty where the compiler takes no layouts of single results.

    Values are left out that the caller of the step has or that are sent, and what the loop carries
    that is no sum of one task's.
    """
    if not compiler.does("layout.chosen_results"):
        return {}
    known = _inside(program)
    return {
        call.task.name: Inside(
            {at: known[value] for at, value in enumerate(call.operands) if value in known},
            {at: known[value] for at, value in enumerate(call.results) if value in known},
        )
        for call in program.all_calls
    }


def _inside(program: StageProgram) -> dict[int, int]:
    """By value: itself; the sum before the loop for what becomes of that."""
    seen = {*program.arguments, *program.results}
    seen.update(step.operand for step in program.steps if isinstance(step, Transfer))
    made = {value: call for call in program.all_calls for value in call.results}
    reads = Counter(value for call in program.all_calls for value in call.operands)
    carried = Counter(one.start for one in program.carried)
    carried.update(one.update for one in program.carried)
    found: dict[int, int] = {}
    for one in program.carried:
        values = (one.start, one.argument, one.update, one.result)
        update = made.get(one.update)
        is_own = (
            update is not None
            and one.start in made
            and one.argument in update.operands
            and [reads[value] for value in values[:3]] == [0, 1, 0]
            and carried[one.start] == carried[one.update] == 1
        )
        if is_own and reads[one.result] and seen.isdisjoint(values):
            found.update(dict.fromkeys(values, one.start))
        seen.update(values)
    found.update((value, value) for value in made if value not in seen and reads[value])
    return found


def set_layouts(
    module: mlir.Module, operands: Mapping[int, str], results: Mapping[int, str]
) -> None:
    """Say how arguments and results of ``main`` lie in memory.

    Args:
        module: Of a task.
        operands: By place, XLA's text of a layout, or ``ANY_ORDER``.
        results: Likewise.
    """
    main = main_function(module)
    sides: tuple[tuple[Side, Mapping[int, str]], ...] = (
        ("arg_attrs", operands),
        ("res_attrs", results),
    )
    with module.context:
        for side, layouts in sides:
            if layouts:
                entries = attributes_at(main, side)
                for place, layout in layouts.items():
                    entries[place][LAYOUT_MODE] = mlir.StringAttr.get(layout)
                main.attributes[side] = mlir.ArrayAttr.get(
                    [mlir.DictAttr.get(entry) for entry in entries]
                )


def leave_order(module: mlir.Module, inside: Inside | None) -> None:
    """Let the compiler lay out what only tasks of a stage see."""
    if inside is not None:
        taken, given = inside.operands, inside.results
        set_layouts(module, dict.fromkeys(taken, ANY_ORDER), dict.fromkeys(given, ANY_ORDER))


class Layouts:
    """Layouts that compilers chose, as tasks are compiled one after the other."""

    def __init__(self, program: StageProgram, inside: Mapping[str, Inside]) -> None:
        self._inside = inside
        parts = (program.loop, program.before, program.after)
        self._order = [step.task.name for part in parts for step in part if isinstance(step, Call)]
        self._chosen: dict[int, str] = {}
        """By value, XLA's text."""
        self._again: set[str] = set()
        """Tasks that have to be compiled once more."""

    def in_turn(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Tasks that can be compiled side by side, as soon as those before are compiled and kept.

        One that takes and gives a sum in two layouts comes once more.
        """
        asked = set(names)
        waiting = [name for name in self._order if name in asked]
        while waiting:
            seen, ready = set[int](), list[str]()
            for name in waiting:
                open_ = self._of(name).values - self._chosen.keys()
                if seen.isdisjoint(open_):
                    ready.append(name)
                seen |= open_
            yield ready
            waiting = [name for name in waiting if name not in ready or name in self._again]

    def lay_out(self, module: mlir.Module, name: str) -> None:
        """Say in the module of a task how what it takes and gives lies in memory."""
        inside = self._of(name)
        taken, given = (
            {at: self._chosen.get(value, ANY_ORDER) for at, value in side.items()}
            for side in (inside.operands, inside.results)
        )
        set_layouts(module, taken, given)

    def keep(self, name: str, operands: Sequence[str], results: Sequence[str]) -> None:
        """Remember how a compiled task has its values.

        Args:
            name: Of the task.
            operands: XLA's texts of all; none where the task does not fit in memory.
            results: Likewise. A sum is taken as it is given.

        Raises:
            CompileError: It was compiled for other layouts than it was told.
        """
        if not operands and not results:
            return
        inside = self._of(name)
        found = [(value, results[at]) for at, value in inside.results.items()]
        found += [(value, operands[at]) for at, value in inside.operands.items()]
        for value, layout in found:
            self._chosen.setdefault(value, layout)
        other = next((one for one in found if self._chosen[one[0]] != one[1]), None)
        if other is None:
            self._again.discard(name)
        elif name in self._again:
            raise CompileError(
                f"the compiler lays out an array of {name} as {other[1]}, it was told"
                f" {self._chosen[other[0]]}. Plan for the same compiler with"
                ' ":without=layout.chosen_results" behind its name (compiler=), so that tasks take'
                " and give all arrays row by row, and report the program.",
                reason="refused",
            )
        else:
            self._again.add(name)

    def _of(self, name: str) -> Inside:
        return self._inside.get(name, _NOTHING)
