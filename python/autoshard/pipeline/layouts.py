"""In which order the dims of values lie in memory, between the tasks of a stage.

Arguments and results of programs lie row by row, and compilers copy what they would have otherwise.
What only tasks of one stage see lies as the task that makes it has it: that is compiled first, and
those that read it are compiled for the layout that the compiler chose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoshard.compilers.compiler import Compiler
from autoshard.ir import mlir
from autoshard.ir.attributes import ANY_ORDER, LAYOUT_MODE
from autoshard.ir.boundary import Side, attributes_at, main_function
from autoshard.rewrites.stage_tasks.program import Call, StageProgram, Transfer


@dataclass(frozen=True, slots=True)
class Inside:
    """Where a task takes and gives what only tasks of its stage see."""

    operands: Mapping[int, tuple[str, int]]
    """By place: the task that gives it, and where."""
    results: tuple[int, ...]
    """Places."""


_NOTHING = Inside({}, ())


def inside_of_stages(program: StageProgram, compiler: Compiler) -> Mapping[str, Inside]:
    """By name of the task; empty where the compiler takes no layouts of single results.

    Values are left out that the caller of the step has, that are sent, or that the loop carries:
    these several tasks make in turns.
    """
    if not compiler.does("layout.chosen_results"):
        return {}
    steps = (*program.before, *program.loop, *program.after)
    seen = {*program.arguments, *program.results}
    seen.update(step.operand for step in steps if isinstance(step, Transfer))
    for one in program.carried:
        seen.update((one.start, one.argument, one.update, one.result))
    calls = [step for step in steps if isinstance(step, Call)]
    read = {value for call in calls for value in call.operands}
    made = {
        value: (call.task.name, place)
        for call in calls
        for place, value in enumerate(call.results)
        if value in read and value not in seen
    }
    return {
        call.task.name: Inside(
            {at: made[value] for at, value in enumerate(call.operands) if value in made},
            tuple(place for place, value in enumerate(call.results) if value in made),
        )
        for call in calls
    }


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

    def __init__(self, inside: Mapping[str, Inside]) -> None:
        self._inside = inside
        self._chosen: dict[tuple[str, int], str] = {}
        """By task and place of the result, XLA's text."""

    def in_turn(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Tasks that can be compiled side by side, as soon as those before are compiled.

        Args:
            names: Of tasks, each behind those that make what it reads.
        """
        waiting = list(names)
        while waiting:
            makers = {
                name: {maker for maker, _ in self._inside.get(name, _NOTHING).operands.values()}
                for name in waiting
            }
            ready = [name for name in waiting if makers[name].isdisjoint(waiting)]
            yield ready
            waiting = [name for name in waiting if name not in ready]

    def lay_out(self, module: mlir.Module, name: str) -> None:
        """Say in the module of a task how what it takes and gives lies in memory."""
        inside = self._inside.get(name, _NOTHING)
        taken = {at: self._chosen.get(made) for at, made in inside.operands.items()}
        given = {at: self._chosen.get((name, at), ANY_ORDER) for at in inside.results}
        set_layouts(module, {at: layout for at, layout in taken.items() if layout}, given)

    def keep(self, name: str, layouts: Sequence[str]) -> None:
        """Remember how the results of a compiled task lie.

        Args:
            name: Of the task.
            layouts: XLA's texts of all results; none where the task does not fit in memory.
        """
        if layouts:
            self._chosen.update(
                ((name, at), layouts[at]) for at in self._inside.get(name, _NOTHING).results
            )
