"""A program with few of its equal layers, which stand for the others: to try many things fast.

Layers that are written out follow each other in ``main``, forward, backward and in the update of
their parameters; functions are inlined. Of each such stretch the first layer, the last one, and one
for each way in which the plan cuts those between are kept. What stands in no stretch is of the
layer of all that it reads, or that reads it. What read a value of a layer that goes reads that of
the nearest kept one before it, so that every op reads what it read, of one layer or another. The
ops of a layer that stands for others run as often as all of them together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np

from autoshard.explain.line_candidates import Candidate
from autoshard.explain.line_weights import values_of
from autoshard.explain.question import Subject, subject_of_module
from autoshard.explain.repeats import Stretch, repeated
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import ALIASING_OUTPUT, FEEDS_ARGUMENT
from autoshard.ir.boundary import attributes_at, main_function
from autoshard.ir.inline import inline_calls
from autoshard.ir.module import calls_of, functions_of, operations_of
from autoshard.planned.given_plan import estimated
from autoshard.planned.module import OWN_PREFIX
from autoshard.planned.summarize import line_of, main_values

_LEAST_LAYERS = 5
"""Fewest layers of which some are left out."""

_MOST_WAYS = 4
"""So many ways of cutting a layer have a layer that stands for them; the rest is the first's."""

_LEAST_SHARE = 0.01
"""Share of the ops of ``main`` below which what repeats is left as it is."""

_NUMBER = f"{OWN_PREFIX}number"
"""Number of an op of the plan's module, on the ops of its copy while some are taken out."""


@dataclass(frozen=True)
class Folded:
    """A planned program with few of its layers."""

    subject: Subject
    """The plan on what is left; ops run as often as those that they stand for."""
    values: Mapping[int, int]
    """By the values of the whole program those that are left."""
    ops: Mapping[int, int]
    """By the core's ops of the whole program those that are left."""

    def line(self, line: Candidate) -> Candidate | None:
        """A line of the whole program on what is left; None where nothing of it is."""
        left = [
            (self.values[value], readers)
            for value, said in values_of(line)
            if value in self.values
            for readers in [tuple((self.ops[op], number) for op, number in said if op in self.ops)]
            if readers or not said
        ]
        if not left:
            return None
        values, readers = zip(*left, strict=True)
        return replace(line, values=values, readers=readers if line.readers else ())


def folded(subject: Subject) -> Folded | None:
    """A program with few of its equal layers; None where it has none.

    Args:
        subject: A planned program, which stays as it is.
    """
    originals = operations_of(subject.module.operation)
    module = parse_bytes(print_module(subject.module, "bytecode"), new_context(), subject.name)
    with module.context, mlir.Location.unknown():
        integer = mlir.IntegerType.get_signless(64)
        for number, op in enumerate(operations_of(module.operation)):
            op.attributes[_NUMBER] = mlir.IntegerAttr.get(integer, number)
        inline_calls(module)
        layers = _Layers(subject, module, {op: number for number, op in enumerate(originals)})
        if not layers.gone:
            return None
        arguments = _Cut(module, layers.main, layers.gone).kept_arguments()
        left = [None if (n := _number_of(op)) is None else originals[n] for op in _numbered(module)]
    found = subject_of_module(subject.name, module, subject.summary)
    pairs = dict(zip(found.imported.operations, left, strict=True))
    return _paired(subject, found, layers, pairs, arguments)


def _numbered(module: mlir.Module) -> Iterator[mlir.Operation]:
    """All ops, whose numbers are gone when the next one is asked for."""
    for op in operations_of(module.operation):
        yield op
        if _NUMBER in op.attributes:
            del op.attributes[_NUMBER]


def _number_of(op: mlir.Operation) -> int | None:
    """Number of an op of the plan's module; None: it is new, as what main returns is."""
    attributes = op.attributes
    return mlir.IntegerAttr(attributes[_NUMBER]).value if _NUMBER in attributes else None


class _Layers:
    """The ops of ``main``, and the layers that they are of."""

    def __init__(
        self, subject: Subject, module: mlir.Module, numbers: Mapping[mlir.Operation, int]
    ) -> None:
        self._subject, self._module, self._numbers = subject, module, numbers
        self._block = main_function(module).regions[0].blocks[0]
        self.main = [op.operation for op in self._block.operations]
        self._number = {op: number for number, op in enumerate(self.main)}
        self._stretches = self._found()
        self._layer_of = np.full(len(self.main), -1)
        """The layer of each op of ``main``; -1: of none."""
        self.runs = np.ones(len(self.main))
        """For how many layers each op of ``main`` stands."""
        self.gone: dict[int, int] = {}
        """By ops of ``main`` that go, those whose results are read instead."""
        if self._stretches:
            longest = max(self._stretches, key=lambda one: one.length * one.times)
            if longest.times >= _LEAST_LAYERS:
                self._say_layers(longest)
                self._say_others()
                self._choose(longest)

    def at(self, op: mlir.Operation) -> int:
        """The op of ``main`` that an op of the plan's module is in; -1: none."""
        return self._places.get(self._numbers[op], -1)

    @cached_property
    def _places(self) -> Mapping[int, int]:
        """By numbers of the plan's ops those of the ops of ``main`` that they are in."""
        functions, found = functions_of(self._module), dict[int, int]()
        calls = calls_of(self._module.operation)

        def say(root: mlir.Operation, place: int) -> None:
            for op in operations_of(root):
                number = _number_of(op)
                if number is not None:
                    found[number] = place
                if op.name == "func.call":
                    name = mlir.FlatSymbolRefAttr(op.attributes["callee"]).value
                    # A planned module has a callee for each call.
                    if len(calls[name]) == 1:
                        say(functions[name], place)

        for place, op in enumerate(self.main):
            say(op, place)
        return found

    @cached_property
    def _keys(self) -> Sequence[int]:
        """Equal for ops that are alike."""
        known: dict[object, int] = {}
        return [
            known.setdefault(
                (
                    op.name,
                    line_of(op),
                    tuple(operand.type for operand in op.operands),
                    tuple(result.type for result in op.results),
                ),
                len(known),
            )
            for op in self.main
        ]

    def _found(self) -> list[Stretch]:
        return repeated(self._keys, [1.0] * len(self._keys), _LEAST_SHARE * len(self._keys))

    def _say_layers(self, longest: Stretch) -> None:
        """The layer of all ops that repeat, from those of the longest stretch on.

        Ops of one place in their rounds are of as many layers as there are rounds: of that of most
        of what each reads, or else of what reads it.
        """
        self._columns(longest)[...] = np.arange(longest.times)[:, None]
        others = [one for one in self._stretches if one is not longest]
        is_more = bool(others)
        while is_more:
            is_more = False
            for back in (False, True):
                for stretch in others:
                    columns = self._columns(stretch)
                    for column in range(stretch.length)[:: -1 if back else 1]:
                        if (columns[:, column] < 0).all():
                            is_more |= self._say(stretch, columns, column, back=back)

    def _say_others(self) -> None:
        """The layer of ops of no stretch: the one of all that they read, or that reads them.

        So are those whose order is not that of rounds, as of parameters whose names are in the
        order of text: 0, 1, 10, 11, 2.
        """
        for back in (False, True, False, True):
            near = self._readers if back else self._read
            for number in range(len(self.main) - 1)[:: -1 if back else 1]:
                if self._layer_of[number] < 0:
                    layers = {int(self._layer_at(other)) for other in near[number]} - {-1}
                    if len(layers) == 1:
                        self._layer_of[number] = next(iter(layers))
                        self._say_arguments(number)

    def _say_arguments(self, number: int) -> None:
        for other in self._read[number]:
            if other < 0:
                self._layer_of_argument.setdefault(other, int(self._layer_of[number]))

    def _columns(self, stretch: Stretch) -> np.ndarray:
        """Layers of a stretch, of shape ``(times, length)``."""
        return self._layer_of[stretch.first : stretch.end].reshape(-1, stretch.length)

    def _say(self, stretch: Stretch, columns: np.ndarray, column: int, *, back: bool) -> bool:
        near = self._readers if back else self._read
        most: list[list[int]] = []
        for number in range(stretch.first + column, stretch.end, stretch.length):
            layers = Counter(
                layer for other in near[number] if (layer := int(self._layer_at(other))) >= 0
            )
            most.append([layer for layer in layers if layers[layer] == max(layers.values())])
        for one_of in (min, max):  # rounds may begin within a layer, and then read of two
            voted = [one_of(layers, default=-1) for layers in most]
            said = [layer for layer in voted if layer >= 0]
            if len(voted) - 1 <= len(said) == len(set(said)):
                break
        else:
            return False
        columns[:, column] = voted
        first = stretch.first + column
        for number in range(first, stretch.end, stretch.length):
            self._say_arguments(number)
        return True

    def _layer_at(self, number: int) -> int:
        return self._layer_of[number] if number >= 0 else self._layer_of_argument.get(number, -1)

    @cached_property
    def _made_of(self) -> list[list[int]]:
        """For each op of ``main`` those that make what it reads; arguments count from -1 down."""
        found: list[list[int]] = []
        for op in self.main:
            found.append([])
            for operand in op.operands:
                if isinstance(owner := operand.owner, mlir.Block):
                    found[-1].append(-1 - mlir.BlockArgument(operand).arg_number)
                else:
                    found[-1].append(self._number[owner.operation])
        return found

    @cached_property
    def _read(self) -> Sequence[Sequence[int]]:
        """As ``_made_of``, without what is made of constants, which all layers share."""
        is_constant: list[bool] = []
        for op, read in zip(self.main, self._made_of, strict=True):
            depends = any(other < 0 or not is_constant[other] for other in read)
            is_constant.append(not depends and not op.regions)
        return [
            [other for other in read if other < 0 or not is_constant[other]]
            for read in self._made_of
        ]

    @cached_property
    def _readers(self) -> Sequence[Sequence[int]]:
        found: list[list[int]] = [[] for _ in self.main]
        for number, read in enumerate(self._made_of):
            for other in read:
                if other >= 0:
                    found[other].append(number)
        return found

    @cached_property
    def _layer_of_argument(self) -> dict[int, int]:
        """By arguments the layer of the ops that read them first."""
        found: dict[int, int] = {}
        for number, read in enumerate(self._read):
            for other in read:
                if other < 0 and self._layer_of[number] >= 0:
                    found.setdefault(other, int(self._layer_of[number]))
        return found

    def _choose(self, longest: Stretch) -> None:
        """Which layers go, and what stands for them."""
        stands = self._stands_for(longest)
        kept = set(stands.values())
        for numbers in self._alike():
            of_layer = {int(self._layer_of[number]): number for number in numbers}
            last = numbers[0]
            for number in numbers:
                layer = int(self._layer_of[number])
                if number == last or layer < 0 or layer in kept:
                    last = number
                else:
                    self.gone[number] = last
                    self.runs[of_layer.get(stands[layer], last)] += 1

    def _alike(self) -> Iterator[Sequence[int]]:
        """Ops of which each layer has one, in order."""
        in_rounds = np.zeros(len(self.main), bool)
        for stretch in self._stretches:
            for column, layers in enumerate(self._columns(stretch).T):
                if (layers >= 0).sum() >= len(layers) - 1:
                    yield range(stretch.first + column, stretch.end, stretch.length)
                    in_rounds[stretch.first + column : stretch.end : stretch.length] = True
        seen = Counter[tuple[int, int]]()
        others: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (key, layer) in enumerate(
            zip(self._keys, self._layer_of.tolist(), strict=True)
        ):
            if layer >= 0 and not in_rounds[number]:
                others[key, seen[key, layer]].append(number)
                seen[key, layer] += 1
        yield from others.values()

    def _stands_for(self, longest: Stretch) -> Mapping[int, int]:
        """By each layer the one that stands for it."""
        imported, plan = self._subject.imported, self._subject.plan
        ways: defaultdict[int, list[int]] = defaultdict(list)
        for op, way in zip(imported.core_ops, plan.op_strategy, strict=True):
            number = self.at(op)
            if longest.first <= number < longest.end:
                ways[(number - longest.first) // longest.length].append(way)
        last = longest.times - 1
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for layer in range(1, last):
            alike[tuple(ways[layer])].append(layer)
        groups = sorted(alike.values(), key=lambda layers: (-len(layers), layers[0]))
        found = {0: 0, last: last}
        for rank, layers in enumerate(groups):
            said = layers[0] if rank < _MOST_WAYS else groups[0][0]
            found |= dict.fromkeys(layers, said)
        return found


class _Cut:
    """Takes ops out of ``main``, with the arguments and results that are theirs alone."""

    def __init__(
        self, module: mlir.Module, main: Sequence[mlir.Operation], gone: Mapping[int, int]
    ) -> None:
        self._module, self._main, self._gone = module, main, gone
        self._function = main_function(module)
        self._block = self._function.regions[0].blocks[0]

    def kept_arguments(self) -> list[int]:
        """Do it; the numbers of the arguments that are left."""
        returned = self._main[-1]
        of = {op: number for number, op in enumerate(self._main)}
        owners = [operand.owner for operand in returned.operands]
        results = [
            number
            for number, owner in enumerate(owners)
            if isinstance(owner, mlir.Block) or of[owner.operation] not in self._gone
        ]
        read = [bool(list(argument.uses)) for argument in self._block.arguments]
        with mlir.InsertionPoint(returned):
            mlir.Operation.create(
                returned.name,
                operands=[returned.operands[number] for number in results],
                loc=returned.location,
            )
        returned.erase()
        for number, twin in self._gone.items():
            pairs = zip(self._main[number].results, self._main[twin].results, strict=True)
            for result, other in pairs:
                result.replace_all_uses_with(other)
        for number in sorted(self._gone, reverse=True):
            self._main[number].erase()
        arguments = [
            number
            for number, argument in enumerate(self._block.arguments)
            if not read[number] or list(argument.uses)
        ]
        self._say_type(arguments, results)
        self._drop_uncalled()
        return arguments

    def _say_type(self, arguments: Sequence[int], results: Sequence[int]) -> None:
        type_ = mlir.FunctionType(mlir.TypeAttr(self._function.attributes["function_type"]).value)
        of_arguments = attributes_at(self._function, "arg_attrs")
        of_results = attributes_at(self._function, "res_attrs")
        said = [of_arguments[number] for number in arguments]
        made = [of_results[number] for number in results]
        _renumber(said, ALIASING_OUTPUT, results, mlir.IntegerType.get_signless(32))
        _renumber(made, FEEDS_ARGUMENT, arguments, mlir.IntegerType.get_signless(64))
        for number in sorted(set(range(len(type_.inputs))) - set(arguments), reverse=True):
            self._block.erase_argument(number)
        inputs, outputs = type_.inputs, type_.results
        inputs = [inputs[number] for number in arguments]
        outputs = [outputs[number] for number in results]
        self._function.attributes["function_type"] = mlir.TypeAttr.get(
            mlir.FunctionType.get(inputs, outputs)
        )
        for side, entries in (("arg_attrs", said), ("res_attrs", made)):
            self._function.attributes[side] = mlir.ArrayAttr.get(
                [mlir.DictAttr.get(entry) for entry in entries]
            )

    def _drop_uncalled(self) -> None:
        while True:
            calls = calls_of(self._module.operation)
            left = [
                function
                for name, function in functions_of(self._module).items()
                if name != "main" and name not in calls
            ]
            if not left:
                return
            for function in left:
                function.erase()


def _renumber(
    entries: Sequence[dict[str, mlir.Attribute]], name: str, left: Sequence[int], type_: mlir.Type
) -> None:
    """Numbers of what is left, in place of those that it had."""
    places = {number: place for place, number in enumerate(left)}
    for entry in entries:
        if name in entry:
            number = mlir.IntegerAttr(entry.pop(name)).value
            if number in places:
                entry[name] = mlir.IntegerAttr.get(type_, places[number])


def _paired(
    subject: Subject,
    found: Subject,
    layers: _Layers,
    originals: Mapping[mlir.Operation, mlir.Operation | None],
    arguments: Sequence[int],
) -> Folded:
    """What is left, by the numbers that it had."""
    whole, left = subject.imported, found.imported
    numbers: defaultdict[mlir.Operation, list[int]] = defaultdict(list)
    for number, op in enumerate(whole.core_ops):
        numbers[op].append(number)
    seen: Counter[mlir.Operation] = Counter()
    ops: dict[int, int] = {}
    trips = left.program.op_trips
    for number, op in enumerate(left.core_ops):
        original = originals[op]
        assert original is not None
        ops[numbers[original][seen[original]]] = number
        seen[original] += 1
        trips[number] *= layers.runs[layers.at(original)]
    values: dict[int, int] = {}
    makers = dict[mlir.Operation | None, list[int]](reversed(whole.result_values))
    of_arguments = main_values(whole).arguments
    pairs = chain(
        zip((of_arguments[n] for n in arguments), main_values(left).arguments, strict=True),
        *(zip(makers[originals[op]], made, strict=True) for op, made in left.result_values),
        *(
            zip(whole.program.operands_of(one), left.program.operands_of(other), strict=True)
            for one, other in ops.items()
            if one in whole.rounded
        ),
    )
    for one, other in pairs:
        if NO_VALUE not in (one, other):
            values.setdefault(one, other)
    changed = left.changed(found.mesh, left.pins, op_trips=trips)
    costed = estimated(replace(found.costed, imported=changed), overlap=subject.summary.overlap)
    limit = subject.memory_limit * costed.plan.peak_bytes / subject.plan.peak_bytes
    summary = replace(found.summary, memory_limit=limit)
    return Folded(Subject(subject.name, found.module, costed, summary), values, ops)
