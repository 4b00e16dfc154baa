"""The part of a program that updates parameters: what of a plan it takes to spread it.

Used by ``autoshard-optimizer-parallel``. Chooses how parameters and states are cut, finds where
gradients are finished, and so which values and ops belong to the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import prod

from autoshard.importer.dataflow import BRANCH, CARRY, IDENTITY, Dataflow
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.importer.pins import DimPin, Pin, Pinned
from autoshard.importer.roles import Role, Roles
from autoshard.importer.work import is_elementwise
from autoshard.ir.types import tensor_bytes
from autoshard.planned.given_plan import Dims
from autoshard.rewrites.parameter_prelude import VIEWS, Nodes, Prelude, PreludeReader
from autoshard.sharding import Mesh


@dataclass(frozen=True, slots=True)
class SpreadOptions:
    """How far to spread; the fields of ``OptimizerParallel`` that say so."""

    level: int
    threshold_kb: float
    shard_size: int | None
    gradient_accumulation_shard: bool


@dataclass
class ParameterUpdate:
    """What is spread, and what of the plan may change for it."""

    imported: ImportedProgram
    flow: Dataflow
    roles: Roles
    planned: list[Dims]
    """Dims of each value of the core, as planned."""
    options: SpreadOptions
    pins: dict[int, Dims] = field(default_factory=dict[int, Dims])
    """Value of the core -> how it is to be cut."""
    after_states: set[int] = field(default_factory=set[int])
    """Nodes that depend on states in this step."""
    roots: set[int] = field(default_factory=set[int])
    """Nodes where gradients are finished: what makes them is no part of the update."""
    whole: set[int] = field(default_factory=set[int])
    """Roots that stay as planned."""
    free: set[int] = field(default_factory=set[int])
    """Values of the core that are planned again."""
    prelude: dict[int, Prelude] = field(default_factory=dict[int, Prelude])
    """Argument -> what it becomes before it is used."""
    changing: set[int] = field(default_factory=set[int])
    """Nodes whose values may be cut anew."""

    def __post_init__(self) -> None:
        self.nodes = Nodes(self.imported, self.flow)
        self._preludes = PreludeReader(self.nodes)

    @property
    def mesh(self) -> Mesh:
        """Without axes of size 1."""
        return self.imported.mesh

    def spread(self) -> None:
        """Choose how everything is cut, and free the values of the update."""
        arguments = self.flow.arguments
        held = {n: self.flow.held_by_loops(arguments[n]) for n in self.roles.updates}
        all_held = {node for nodes in held.values() for node in nodes}
        fixed = self._fixed_arguments()
        ends: list[tuple[int, list[int]]] = []
        starts: set[int] = set()
        for number in self.roles.of(Role.PARAMETER):
            cut = self._spread_of(number, self._dims_of_loops(number))
            states = self._states_to_spread(number, cut, fixed)
            if not states and (cut is None or self.options.level == 1):
                continue
            if cut is not None and self.options.level == 3 and number not in fixed:
                self._pin_parameter(number, cut)
            for state, dims in states.items():
                for node in held[state]:
                    self._pin(node, dims)
                starts |= held[state]
            if number not in self.roles.updates:
                continue
            made = [self.flow.results[self.roles.updates[n]] for n in (number, *states)]
            for end, dims in zip(made, (cut, *states.values()), strict=True):
                if end not in all_held and dims is not None:
                    self._pin(end, dims)
            ends.append((number, made))
        self._free_values(starts, ends, frozenset(all_held))

    def _fixed_arguments(self) -> set[int]:
        """Arguments that the user pinned, themselves or as results that lie in their place."""
        values = map(self.nodes.value, self.flow.arguments)
        return {number for number, value in enumerate(values) if value in self._said}

    @cached_property
    def _said(self) -> frozenset[int]:
        """Values that the user pinned."""
        return frozenset(pinned.value for pinned in self.imported.pins) - {NO_VALUE}

    def _states_to_spread(self, number: int, cut: Dims | None, fixed: set[int]) -> dict[int, Dims]:
        """States of a parameter -> how they are cut: as the parameter where that is possible."""
        found: dict[int, Dims] = {}
        shape = self.nodes.shape(self.flow.arguments[number])
        looped = self._dims_of_loops(number)
        for state in self.roles.states.get(number, ()):
            value = self.nodes.value(self.flow.arguments[state])
            if state in fixed or value == NO_VALUE:
                continue
            own = self._spread_of(
                state, looped if self.nodes.shape_of(value) == shape else frozenset()
            )
            if own is None:
                continue
            found[state] = cut if cut is not None and self.nodes.shape_of(value) == shape else own
        return found

    def _spread_of(self, number: int, looped: frozenset[int]) -> Dims | None:
        """How an argument is cut over more axes; None if it is small, or nothing divides it."""
        value = self.nodes.value(self.flow.arguments[number])
        if value == NO_VALUE:
            return None
        dims, shape = self.planned[value], self.nodes.shape_of(value)
        if self._local_bytes(number) < 1024 * self.options.threshold_kb:
            return None
        used = {axis for axes in dims for axis in axes}
        sizes = self.mesh.axis_sizes
        left = [axis for axis in range(len(sizes)) if axis not in used]
        local = [
            size // prod(sizes[axis] for axis in axes)
            for size, axes in zip(shape, dims, strict=True)
        ]
        # a loop takes slices along these: cut, it would have to gather all of it for each
        order = sorted(range(len(shape)), key=lambda dim: (dim in looped, bool(dims[dim]), dim))
        for axes in self._choices(left):
            count = prod(sizes[axis] for axis in axes)
            for dim in order:
                if local[dim] > 0 and local[dim] % count == 0:
                    cut = list(dims)
                    cut[dim] = (*dims[dim], *axes)  # minor: each device keeps a part of what it has
                    return tuple(cut)
        return None

    def _local_bytes(self, number: int) -> float:
        """Bytes of an argument on a device or its host, where the search counts nearly nothing."""
        node = self.flow.arguments[number]
        sizes = self.mesh.axis_sizes
        parts = prod(sizes[axis] for axes in self.planned[self.nodes.value(node)] for axis in axes)
        return tensor_bytes(self.flow.node_value[node].type) / parts

    def _choices(self, left: Sequence[int]) -> list[tuple[int, ...]]:
        """Sets of axes to spread over, the largest product first, then the innermost axes."""
        sizes = self.mesh.axis_sizes
        sets = [found for size in range(1, len(left) + 1) for found in combinations(left, size)]
        wanted = self.options.shard_size
        if wanted is not None:
            sets = [axes for axes in sets if prod(sizes[axis] for axis in axes) <= wanted]
        return sorted(
            sets, key=lambda axes: (prod(sizes[axis] for axis in axes), axes), reverse=True
        )

    # Parameters before they are used

    def _dims_of_loops(self, number: int) -> frozenset[int]:
        """Dims of a parameter along which loops take slices: its layers."""
        if number not in self.prelude:
            self.prelude[number] = self._preludes.read(self.flow.arguments[number])
        return self.prelude[number].looped

    def _pin_parameter(self, number: int, cut: Dims) -> None:
        """Keep a parameter cut up to the ops that compute with it, casts and slices included."""
        for node, dims in self.prelude[number].dims.items():
            mapped = tuple(() if dim is None else cut[dim] for dim in dims)
            if set(mapped) >= {axes for axes in cut if axes} and self._divides(node, mapped):
                self._pin(node, mapped)

    def _divides(self, node: int, dims: Dims) -> bool:
        sizes = self.mesh.axis_sizes
        shape = self.nodes.shape(node)
        return all(
            size % prod(sizes[axis] for axis in axes) == 0
            for size, axes in zip(shape, dims, strict=True)
        )

    # The update

    def _find_roots(self, ends: Sequence[int], number: int, held: frozenset[int]) -> None:
        """Walk from what replaces a parameter and its states to where the gradient is finished."""
        flow = self.flow
        parameter = self.nodes.value(flow.arguments[number])
        found = set(ends)
        waiting = [node for node in ends if node not in held]
        for node in ends:
            if node in held:  # updated in a loop: the update ends at what the loop yields
                waiting += [s for step in flow.makers[node] for s in flow.sources[step]]
        while waiting:
            node = waiting.pop()
            for step in flow.makers[node]:
                for source in self._light_sources(step, node, parameter):
                    if source not in found and source not in held and self.nodes.is_array(source):
                        found.add(source)
                        waiting.append(source)

    def _light_sources(self, step: int, node: int, parameter: int) -> Sequence[int]:
        """Values from which a step makes ``node`` by little work; none where a gradient is made."""
        flow = self.flow
        name, sources = flow.names[step], flow.sources[step]
        if name == CARRY and not self.options.gradient_accumulation_shard:
            self._keep_buffer(node, parameter)
        if name in (CARRY, BRANCH, IDENTITY) or name in VIEWS or is_elementwise(name):
            return sources
        if name in ("stablehlo.broadcast_in_dim", "stablehlo.concatenate"):
            return sources
        if name == "stablehlo.dynamic_update_slice":
            return sources[:2]
        if not sources:
            return ()
        if node in self.after_states:
            return sources  # made of a state: the update itself multiplies or adds up
        size, count = prod(self.nodes.shape(node)), prod(self.nodes.shape_of(parameter))
        whole = [s for s in sources if size < count == prod(self.nodes.shape(s))]
        if not whole:
            self.roots.add(node)
        return whole

    def _keep_buffer(self, carried: int, parameter: int) -> None:
        """Cut what adds up gradients in a loop like the parameter was, no further."""
        flow = self.flow
        adds_up = any(
            flow.names[step] == "stablehlo.add" and carried in flow.sources[step]
            for maker in flow.makers[carried]
            for step in flow.makers[flow.sources[maker][0]]
        )
        if adds_up and self.nodes.shape(carried) == self.nodes.shape_of(parameter):
            self._pin(carried, self.planned[parameter])

    def _free_values(
        self, starts: set[int], ends: Sequence[tuple[int, list[int]]], held: frozenset[int]
    ) -> None:
        """Plan again what is made of gradients and states, and what only updates are made of."""
        flow = self.flow
        begun = {
            target
            for node in starts
            for step in flow.readers[node]
            for target in flow.targets[step]
        }
        self.after_states = flow.reached(begun - held, held)
        for number, made in ends:
            self._find_roots(made, number, held)
        after = self.after_states | flow.reached(self.roots - held, held)
        last = {node for _, made in ends for node in made}
        before = flow.sources_of(last - held, held | self.roots)
        makers = {
            source
            for node in self.roots
            for step in flow.makers[node]
            for source in flow.sources[step]
        }
        earlier = flow.sources_of(makers - held, held)
        if self.options.level == 1:
            self.whole |= self.roots
        kept = held | self.whole | set(flow.arguments)
        self.changing = (after | before) - earlier - kept
        self.free = {self.nodes.value(node) for node in self.changing} - {NO_VALUE} - set(self.pins)
        self.free -= {self.nodes.value(node) for node in kept}

    def changed_ops(self) -> list[bool]:
        """Whether each op of the core is a part of the update, or prepares a parameter.

        All others keep their strategies, also those that make gradients.
        """
        flow = self.flow
        prepared = {
            node
            for prelude in self.prelude.values()
            for node in prelude.dims
            if self.nodes.value(node) in self.pins
        }
        changed = (self.changing | prepared) - self.roots
        return [flow.nodes[op.results[0]] in changed for op in self.imported.core_ops]

    def _pin(self, node: int, dims: Dims) -> None:
        value = self.nodes.value(node)
        if value != NO_VALUE and value not in self._said:
            self.pins[value] = dims

    def all_pins(self) -> list[Pinned]:
        """Pins of all values: as spread, free but for what the user says, or as planned."""
        known: dict[Dims, Pin] = {}

        def exactly(dims: Dims) -> Pin:
            if dims not in known:
                known[dims] = Pin(tuple(DimPin(axes) for axes in dims))
            return known[dims]

        imported = self.imported
        fixed = {
            value: exactly(self.pins.get(value) or dims)
            for value, dims in enumerate(self.planned)
            if value in self.pins or not (value in self.free or imported.value_is_free[value])
        }
        pins = [Pinned(value, pin, None, "as planned") for value, pin in fixed.items()]
        return pins + [pinned for pinned in imported.pins if pinned.value not in fixed]
