"""What becomes of a parameter before an op computes with it: casts, slices of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autoshard.importer.dataflow import CARRY, Dataflow
from autoshard.importer.factors import FactorRule
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.importer.rules import rule_of
from autoshard.importer.work import is_elementwise
from autoshard.ir import mlir
from autoshard.ir.attributes import SDY_SHARDING_RULE, attribute_of

VIEWS = frozenset(
    f"stablehlo.{name}" for name in ("reshape", "transpose", "slice", "reverse", "pad")
)
"""Ops between a gradient and its update, besides elementwise ones, that only move elements."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of the data flow, as the core knows them."""

    imported: ImportedProgram
    flow: Dataflow

    def value(self, node: int) -> int:
        """The core's value of a node; -1 for scalars."""
        return self.imported.value_of.get(self.flow.node_value[node], NO_VALUE)

    def is_array(self, node: int) -> bool:
        """Does the core know a value of it?"""
        return self.value(node) != NO_VALUE

    def shape(self, node: int) -> Sequence[int]:
        """Empty for scalars."""
        return self.shape_of(self.value(node))

    def shape_of(self, value: int) -> Sequence[int]:
        """The shape of a value of the core."""
        return () if value == NO_VALUE else self.imported.value_shapes[value]


@dataclass(frozen=True, slots=True)
class Prelude:
    """What a parameter becomes before an op computes with it."""

    dims: Mapping[int, tuple[int | None, ...]]
    """Node -> for each of its dims the dim of the parameter that it is."""
    looped: frozenset[int]
    """Dims of the parameter along which loops take slices."""


class PreludeReader:
    """Keeps the rules of ops that it has met."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self._rules: dict[tuple[mlir.Attribute | None, int], FactorRule] = {}

    def read(self, start: int) -> Prelude:
        """Follow an argument through loops, casts, views, slices, and stacks of these."""
        nodes, flow = self.nodes, self.nodes.flow
        whole = tuple(range(len(nodes.shape(start))))
        found: dict[int, tuple[int | None, ...]] = dict.fromkeys(flow.held_by_loops(start), whole)
        looped: set[int] = set()
        waiting = list(found)
        while waiting:
            node = waiting.pop()
            for step in flow.readers[node]:
                name, target = flow.names[step], flow.targets[step][0]
                if target in found or not nodes.is_array(target):
                    continue
                if name == CARRY:
                    makers = flow.makers[target]
                    if all(flow.sources[maker][0] in found for maker in makers):
                        found[target] = found[node]
                        waiting.append(target)
                    continue
                arrays = [s for s in flow.sources[step] if nodes.is_array(s)]
                if name == "stablehlo.dynamic_update_slice" and self._is_stacked(step, node):
                    found[arrays[0]] = found[target] = found[node]
                    waiting += (arrays[0], target)
                    continue
                is_slice = name == "stablehlo.dynamic_slice"
                is_light = is_slice or is_elementwise(name) or name in VIEWS
                if arrays != [node] or not (is_light or self._adds_dims(step)):
                    continue
                dims = self._through(step, found[node])
                if is_slice:
                    looped |= self._sliced(node, target, found[node])
                found[target] = dims
                waiting.append(target)
        return Prelude(found, frozenset(looped))

    def _sliced(self, node: int, target: int, dims: tuple[int | None, ...]) -> set[int]:
        """Dims of the parameter of which a slice takes a part."""
        before, after = self.nodes.shape(node), self.nodes.shape(target)
        return {
            source
            for source, size, left in zip(dims, before, after, strict=True)
            if source is not None and left < size
        }

    def _is_stacked(self, step: int, node: int) -> bool:
        """Does a loop stack ``node`` for a later one, from zeros on?"""
        nodes, flow = self.nodes, self.nodes.flow
        (stack, update, *_), target = flow.sources[step], flow.targets[step][0]
        starts = {flow.sources[maker][0] for maker in flow.makers[stack]} - {target}
        return (
            update == node
            and all(flow.names[maker] == CARRY for maker in flow.makers[stack])
            and all(nodes.imported.value_is_free[nodes.value(start)] for start in starts)
        )

    def _adds_dims(self, step: int) -> bool:
        """A broadcast that adds dims of size 1 only."""
        nodes, flow = self.nodes, self.nodes.flow
        (source, *_), target = flow.sources[step], flow.targets[step][0]
        is_broadcast = flow.names[step] == "stablehlo.broadcast_in_dim"
        return is_broadcast and prod(nodes.shape(source)) == prod(nodes.shape(target))

    def _through(self, step: int, dims: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Dims of the result of a step by those of its first operand: equal major factors."""
        op = self.nodes.flow.ops[step]
        attribute = attribute_of(op, SDY_SHARDING_RULE)
        key = (attribute, len(op.operands))
        if key not in self._rules or attribute is None:
            self._rules[key] = rule_of(op, attribute)
        rule = self._rules[key]
        if not rule.factors:
            return (None,) * len(rule.results[0])
        major = {factors[0]: dims[dim] for dim, factors in enumerate(rule.operands[0]) if factors}
        return tuple(major.get(factors[0]) if factors else None for factors in rule.results[0])
