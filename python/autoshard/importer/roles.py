"""What each argument of a program is for: parameter, optimizer state, batch, ..., by structure.

Nobody names them in a module. What tells them apart:

- A result that becomes an argument in the next call makes that argument *carried*. Which result
  that is, aliasing or the frontend says; else the result of its type that is made from it.
- *Data* is what depends on arguments that are not carried.
- A carried array that meets data in its own shape only, element by element, is updated: the
  state of an optimizer if a parameter's update reads it, or if it follows one; else some other
  state, such as a running mean.
- A carried array that meets data otherwise (contracted, broadcast, looked up) is read by the model.
  It is a parameter if its update adds to it: if an elementwise path, or a scatter that adds,
  leads from it to its result. A cache that is overwritten is state.
- Of what is not carried, integers hold the batch. So do floats that share the batch's dim, as the
  factor rules of the ops tell; those that do not are parameters that stay as they are. So is
  a table of which only rows are looked up, if these share their dim with what is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from autoshard.importer.dataflow import BRANCH, CARRY, IDENTITY, Dataflow, shape_of
from autoshard.importer.factors import FactorRule
from autoshard.importer.rules import rule_of
from autoshard.importer.work import is_elementwise
from autoshard.ir import mlir
from autoshard.ir.attributes import SDY_SHARDING_RULE, attribute_of
from autoshard.ir.boundary import replaced_arguments


class Role(Enum):
    """What an argument is for."""

    PARAMETER = "parameter"
    """Read by the model, and trained, or kept as it is."""
    OPTIMIZER_STATE = "optimizer state"
    """Read by the update of a parameter only, or a copy that follows it."""
    STATE = "state"
    """Another array that a result replaces: running means, caches, environments."""
    BATCH = "batch"
    """Data of one call."""
    COUNTER = "counter"
    """Numbers that do not depend on data: steps, learning rates."""
    KEY = "key"
    """Key of a random number generator."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of ``main``'s arguments, and what belongs together."""

    arguments: tuple[Role, ...]
    updates: Mapping[int, int]
    """Number of an argument -> number of the result that replaces it."""
    states: Mapping[int, tuple[int, ...]]
    """Number of a parameter -> numbers of the arguments that are its optimizer state."""

    def of(self, role: Role) -> tuple[int, ...]:
        """Numbers of the arguments with a role."""
        return tuple(n for n, found in enumerate(self.arguments) if found is role)


def argument_roles(
    main: mlir.Operation, flow: Dataflow, given: Mapping[int, Role] | None = None
) -> Roles:
    """Find the roles of a program's arguments.

    Args:
        main: The function; its module is flattened and its ops have their factor rules.
        flow: Of the module.
        given: Roles that are known, by number of the argument.
    """
    return _Finder(main, flow, given or {}).find()


def is_added_to(flow: Dataflow, node: int, result: int) -> bool:
    """Does an elementwise path, or a scatter that adds, lead from ``node`` to ``result``?"""
    count = prod(shape_of(flow.node_value[node]))
    found, waiting = {result}, [result]
    while waiting:
        current = waiting.pop()
        if current == node:
            return True
        for step in flow.makers[current]:
            name, sources = flow.names[step], flow.sources[step]
            if name == "stablehlo.scatter" and _scatter_adds(flow.ops[step]):
                sources = sources[:1]
            elif not (is_elementwise(name) or name in _RESHAPES):
                continue
            for source in sources:
                if source not in found and prod(shape_of(flow.node_value[source])) == count:
                    found.add(source)
                    waiting.append(source)
    return False


_SAME = frozenset((CARRY, BRANCH, IDENTITY, "stablehlo.convert"))
"""Steps that hand an array on."""

_RESHAPES = frozenset((CARRY, BRANCH, IDENTITY, "stablehlo.reshape", "stablehlo.transpose"))


class _Finder:
    def __init__(self, main: mlir.Operation, flow: Dataflow, given: Mapping[int, Role]) -> None:
        self.flow = flow
        self.given = given
        self.number_of = {node: number for number, node in enumerate(flow.arguments)}
        self.types = [flow.node_value[node].type for node in flow.arguments]
        self.shapes: dict[int, tuple[int, ...]] = {}
        known = {name: is_elementwise(name) for name in set(flow.names)}
        self.elementwise = [known[name] for name in flow.names]
        self.updates = self._updates(main)
        self.storage: dict[int, int] = {}
        """Node -> the carried argument that it is, in this step or in a trip of a loop."""
        for number, result in self.updates.items():
            for node in (*flow.held_by_loops(flow.arguments[number]), flow.results[result]):
                self.storage[node] = number

    def find(self) -> Roles:
        flow = self.flow
        roles: list[Role | None] = [self.given.get(n) for n in range(len(flow.arguments))]
        keys = {n for n in range(len(roles)) if self._is_key(n)}
        self.data = flow.reached(
            node
            for number, node in enumerate(flow.arguments)
            if number not in self.updates
            and number not in keys
            and self._shape(node)
            and self.given.get(number) is not Role.PARAMETER
        ) or flow.reached(flow.arguments[number] for number in keys)
        updated: list[int] = []
        for number in self.updates:
            if roles[number] is None:
                roles[number] = self._carried(number, number in keys)
                if roles[number] is None:
                    updated.append(number)
        states = self._link(roles, updated)
        free = [number for number, role in enumerate(roles) if role is None]
        for number, role in self._not_carried(free, keys, roles):
            roles[number] = role
        return Roles(
            tuple(role for role in roles if role is not None),
            self.updates,
            {number: tuple(found) for number, found in states.items()},
        )

    # What becomes what

    def _updates(self, main: mlir.Operation) -> dict[int, int]:
        """As the module says; else the result of the same type that is made of fewest arguments."""
        said = {argument: result for result, argument in replaced_arguments(main).items()}
        if said:
            return said
        flow = self.flow
        candidates: dict[int, set[int]] = {}
        for result, node in enumerate(flow.results):
            near = self._elementwise_sources(node)
            type_ = flow.node_value[node].type
            found = {
                number
                for number, argument in enumerate(flow.arguments)
                if argument in near and argument != node and self.types[number] == type_
            }
            if found:
                candidates[result] = found
        pairs: dict[int, int] = {}
        for result in sorted(candidates, key=lambda result: (len(candidates[result]), result)):
            left = candidates[result] - set(pairs)
            if left:
                pairs[min(left)] = result
        return pairs

    def _elementwise_sources(self, node: int) -> set[int]:
        """Values of the shape of ``node`` that it is made of, element by element."""
        flow, shape = self.flow, self._shape(node)
        found, waiting = {node}, [node]
        while waiting:
            current = waiting.pop()
            for step in flow.makers[current]:
                if not (self._is_elementwise(step) or flow.names[step] in (CARRY, BRANCH)):
                    continue
                for source in flow.sources[step]:
                    if source not in found and self._shape(source) == shape:
                        found.add(source)
                        waiting.append(source)
        return found

    # Carried arguments

    def _carried(self, number: int, is_key: bool) -> Role | None:
        """None for what is updated element by element: state of an optimizer, or another."""
        if is_key:
            return Role.KEY
        flow = self.flow
        node = flow.arguments[number]
        is_float = self._is_float(number)
        result = flow.results[self.updates[number]]
        is_unchanged = result == node
        if not is_float and (result not in self.data or not self._shape(node)):
            return Role.COUNTER
        is_read = self._is_read_by_model(node)
        if is_read and is_float and (is_unchanged or is_added_to(flow, node, result)):
            return Role.PARAMETER if is_unchanged or result in self.data else Role.COUNTER
        if is_read:
            return Role.STATE if result in self.data else Role.COUNTER
        return None if result in self.data or self._shape(node) else Role.COUNTER

    def _is_read_by_model(self, node: int) -> bool:
        """Does it meet data in another way than element by element in its own shape?"""
        flow = self.flow
        count = prod(self._shape(node))
        own = flow.held_by_loops(node)
        waiting = list(own)
        while waiting:
            current = waiting.pop()
            for step in flow.readers[current]:
                if flow.names[step] == CARRY and not self._passes_on(flow.targets[step][0], own):
                    continue
                others = [source for source in flow.sources[step] if source not in own]
                targets = flow.targets[step]
                if any(other in self.data and self._shape(other) for other in others):
                    same = all(prod(self._shape(target)) == count for target in targets)
                    if not (self._is_elementwise(step) and same):
                        return True
                    continue
                for target in targets:
                    if target not in own:
                        own.add(target)
                        waiting.append(target)
        return False

    def _passes_on(self, carried: int, own: set[int]) -> bool:
        """Does a loop only read a carried value that starts as one of ``own``?"""
        flow = self.flow
        return all(flow.sources[maker][0] in own for maker in flow.makers[carried])

    def _link(self, roles: list[Role | None], updated: Sequence[int]) -> dict[int, list[int]]:
        """Give what is updated its role, and each state to its parameter."""
        fed = {number: self._fed(number) for number in updated}
        for number in updated:
            # a scale of few elements meets statistics of its own shape, but the model reads it
            parameters = {other for other in fed[number] if roles[other] is Role.PARAMETER}
            if len(parameters) > 1:
                roles[number] = Role.PARAMETER
        is_parameter = [role is Role.PARAMETER for role in roles]
        states: dict[int, list[int]] = {
            number: [] for number in self.updates if is_parameter[number]
        }
        for number in self.updates:
            said = self.given.get(number)
            if is_parameter[number] or (number not in fed and said is not Role.OPTIMIZER_STATE):
                continue
            parameter = self._best(
                [n for n in fed.get(number) or self._fed(number) if is_parameter[n]], number
            )
            if parameter is None:
                parameter = self._followed(number, is_parameter)
            if parameter is not None:
                states[parameter].append(number)
            if said is None:
                roles[number] = Role.STATE if parameter is None else Role.OPTIMIZER_STATE
        return states

    def _fed(self, number: int) -> set[int]:
        """Other carried arguments whose next value is made from this one, arrays only."""
        flow = self.flow
        start = flow.held_by_loops(flow.arguments[number])
        found, waiting = set(start), list(start)
        reached: set[int] = set()
        while waiting:
            for step in flow.readers[waiting.pop()]:
                for target in flow.targets[step]:
                    if target in found or not self._shape(target):
                        continue
                    found.add(target)
                    holder = self.storage.get(target)
                    if holder is None or holder == number:
                        waiting.append(target)
                    else:
                        reached.add(holder)
        return reached

    def _best(self, parameters: Sequence[int], state: int) -> int | None:
        """The parameter that a state belongs to: of its shape, else with its dims among its own."""
        own = self._shape(self.flow.arguments[state])

        def rank(number: int) -> tuple[bool, bool, int]:
            shape = self._shape(self.flow.arguments[number])
            return shape != own, not _is_part_of(own, shape), number

        return min(parameters, key=rank, default=None)

    def _followed(self, number: int, is_parameter: Sequence[bool]) -> int | None:
        """The parameter of which an array is a running copy."""
        near = self._elementwise_sources(self.flow.results[self.updates[number]])
        held = {self.storage[node] for node in near if node in self.storage}
        return min((other for other in held if is_parameter[other]), default=None)

    # Arguments that no result replaces

    def _not_carried(
        self, free: Sequence[int], keys: set[int], roles: Sequence[Role | None]
    ) -> list[tuple[int, Role]]:
        arguments = self.flow.arguments
        trained = {arguments[n] for n, role in enumerate(roles) if role is Role.PARAMETER}
        batch = self._batch_dims(free, keys)
        features: dict[int, set[int]] | None = None
        found: list[tuple[int, Role]] = []
        for number in free:
            node = arguments[number]
            shape = self._shape(node)
            is_weight = (
                number not in keys
                and self._is_float(number)
                and bool(batch)
                and node not in batch
                and bool(self.flow.readers[node])
            )
            if is_weight and trained:
                if features is None:
                    start = {n: set(range(len(self._shape(n)))) for n in trained}
                    features = _same_dims(self.flow, start)
                known = features.get(node, set()) | self._looked_up(node)
                is_weight = all(dim in known for dim, size in enumerate(shape) if size > 1)
            if number in keys:
                found.append((number, Role.KEY))
            elif is_weight:
                found.append((number, Role.PARAMETER if shape else Role.COUNTER))
            else:
                found.append((number, Role.BATCH))
        return found

    def _looked_up(self, node: int) -> set[int]:
        """Dim 0, if rows of an array are all that is read of it: that of an embedding's table."""
        flow = self.flow
        found, waiting = {node}, [node]
        is_table = False
        while waiting:
            current = waiting.pop()
            for step in flow.readers[current]:
                (target, *_), first = flow.targets[step], flow.sources[step][0]
                if flow.names[step] == "stablehlo.gather" and first == current:
                    if self._shape(target)[-1:] != self._shape(node)[1:]:
                        return set()
                    is_table = True
                elif flow.names[step] in _SAME and target not in found:
                    found.add(target)
                    waiting.append(target)
                elif target not in found:
                    return set()
        return {0} if is_table else set()

    def _batch_dims(self, free: Sequence[int], keys: set[int]) -> dict[int, set[int]]:
        """Dims that are one with dim 0 of the integers of the batch, by the factors of the ops.

        A program without state is followed from its results, too.
        """
        flow = self.flow
        batch = {number for number, role in self.given.items() if role is Role.BATCH}
        batch |= {n for n in free if n not in keys and not self._is_float(n)}
        start = [flow.arguments[number] for number in batch]
        if not self.updates:
            start += flow.results
        return _same_dims(
            flow, {node: {0} for node in start if self._shape(node)[:1] not in ((), (1,))}
        )

    def _is_float(self, number: int) -> bool:
        return isinstance(_element(self.types[number]), mlir.FloatType)

    def _is_key(self, number: int) -> bool:
        """Words of unsigned 32-bit integers that make random numbers."""
        type_, shape = self.types[number], self._shape(self.flow.arguments[number])
        element = _element(type_)
        if not (isinstance(element, mlir.IntegerType) and element.width == 32):
            return False
        return element.is_unsigned and bool(shape) and shape[-1] in (2, 4)

    def _shape(self, node: int) -> tuple[int, ...]:
        found = self.shapes.get(node)
        if found is None:
            found = self.shapes[node] = shape_of(self.flow.node_value[node])
        return found

    def _is_elementwise(self, step: int) -> bool:
        return self.elementwise[step]


def _same_dims(flow: Dataflow, start: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """For nodes the dims that are one with a dim of ``start``, by the ops between them."""
    found = {node: set(dims) for node, dims in start.items()}
    waiting = list(found)
    rules: dict[tuple[mlir.Attribute | None, int, int], FactorRule] = {}
    while waiting:
        node = waiting.pop()
        for step in (*flow.readers[node], *flow.makers[node]):
            for other, dims in _carried_over(flow, step, found, rules):
                if not dims <= found.get(other, set()):
                    found.setdefault(other, set()).update(dims)
                    waiting.append(other)
    return found


def _carried_over(
    flow: Dataflow,
    step: int,
    found: Mapping[int, set[int]],
    rules: dict[tuple[mlir.Attribute | None, int, int], FactorRule],
) -> list[tuple[int, set[int]]]:
    """What the labelled dims around one step say of the dims of all its tensors."""
    ends = (*flow.sources[step], *flow.targets[step])
    if flow.names[step] in (CARRY, BRANCH, IDENTITY):
        dims = found.get(ends[0], set()) | found.get(ends[1], set())
        return [(end, dims) for end in ends]
    op = flow.ops[step]
    attribute = attribute_of(op, SDY_SHARDING_RULE)
    key = (attribute, len(flow.sources[step]), len(ends))
    rule = rules.get(key) if attribute is not None else rule_of(op, None)
    if rule is None:
        rule = rules[key] = rule_of(op, attribute)
    tensors = (*rule.operands, *rule.results)
    # the major factor of a dim is the batch where the dim is: batch x tokens
    factors = {
        tensor[dim][0]
        for end, tensor in zip(ends, tensors, strict=True)
        for dim in found.get(end, ())
        if tensor[dim]
    }
    if not factors:
        return []
    return [
        (end, {dim for dim, made_of in enumerate(tensor) if made_of and made_of[0] in factors})
        for end, tensor in zip(ends, tensors, strict=True)
    ]


def _scatter_adds(op: mlir.Operation) -> bool:
    """Does the scatter add to what is there? Else it overwrites."""
    return any(
        inner.operation.name in ("stablehlo.add", "stablehlo.subtract")
        for inner in op.regions[0].blocks[0].operations
    )


def _element(type_: mlir.Type) -> mlir.Type:
    return type_.element_type if isinstance(type_, mlir.RankedTensorType) else type_


def _is_part_of(part: Sequence[int], whole: Sequence[int]) -> bool:
    """Are the dims of ``part`` some of those of ``whole``, in order? Dims of 1 do not count."""
    rest = iter(whole)
    return all(any(size == other for other in rest) for size in part if size > 1)
