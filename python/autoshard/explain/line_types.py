"""The type of what a line of the program makes, as its author sees it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from autoshard.importer.imported_program import ImportedProgram
from autoshard.ir import mlir, op_name
from autoshard.ir.module import calls_of
from autoshard.planned.summarize import line_of, type_text
from autoshard.rewrites.reduce_once.write import REDUCED_ONCE


def type_of_lines(imported: ImportedProgram) -> Mapping[str, str]:
    """The type of what lines of the forward half make last, where it is the one that they name.

    Not of a line that makes values of several types in the end, and not of one under ``jax.vmap``:
    an op of the program has the dims of the map, which the value of the line does not have.
    """
    is_mapped = _Mapped(imported)
    made: defaultdict[str | None, set[str]] = defaultdict(set)
    mapped: set[str | None] = set()
    before: tuple[str | None, str] = (None, "")
    for number, op in enumerate(imported.core_ops):
        if number in imported.rounded:
            continue
        name = op_name(op.location)
        if "transpose(" in name or name == REDUCED_ONCE:
            continue
        location = line_of(op)
        if location != before[0]:
            made[before[0]].add(before[1])
        before = (location, type_text(op.results[-1].type))
        if location not in mapped and is_mapped(op):
            mapped.add(location)
    made[before[0]].add(before[1])
    return {
        location: next(iter(types))
        for location, types in made.items()
        if location is not None and location not in mapped and len(types) == 1
    }


class _Mapped:
    """Whether an op may have dims of ``jax.vmap``: JAX's names say so, its own or its callers'."""

    def __init__(self, imported: ImportedProgram) -> None:
        self._calls = calls_of(imported.module.operation)
        self._functions: dict[str, bool] = {}

    def __call__(self, op: mlir.Operation) -> bool:
        """Is it, or is there no name that would say so?"""
        return not op_name(op.location) or self._is_within(op)

    def _is_within(self, op: mlir.Operation) -> bool:
        while op.name != "func.func":
            if "vmap(" in op_name(op.location):
                return True
            assert op.parent is not None
            op = op.parent.operation
        name = mlir.StringAttr(op.attributes["sym_name"]).value
        if name not in self._functions:
            self._functions[name] = any(self._is_within(call) for call in self._calls.get(name, ()))
        return self._functions[name]
