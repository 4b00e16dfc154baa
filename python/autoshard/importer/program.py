"""Walk a module and fill the core's ``Program``.

One value of the core may be several SSA values: arguments and results of a call are its
operands and what the callee returns; block arguments, results and carried values of a loop are
one; an optimization barrier gives what it takes. Values of rank 0 are left out: they are never
split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from autoshard import _core
from autoshard._core import FactorKind
from autoshard.errors import ImportModuleError, StrategyError
from autoshard.importer.factors import FactorRule
from autoshard.importer.faults import fault_key, faulty_factors
from autoshard.importer.host_stacks import THROUGH_HOST, host_stacks, placed_operands
from autoshard.importer.kernels import kernel_key
from autoshard.importer.loops import trip_count
from autoshard.importer.pins import DimPin, Pin, pin_of, pin_of_sharding
from autoshard.importer.rules import registered_rule, rule_of
from autoshard.importer.windows import block_factors, window_key
from autoshard.importer.work import OpWork, work_key, work_of
from autoshard.ir import element_bits, mlir, place
from autoshard.ir.attributes import (
    ALIASING_OUTPUT,
    BUFFER_DONOR,
    FEEDS_ARGUMENT,
    KEY_WORDS,
    MARK,
    MARK_ROLE,
    MEMORY_KIND,
    MHLO_SHARDING,
    PIN,
    SDY_SHARDING,
    SDY_SHARDING_RULE,
    STRATEGY,
)
from autoshard.ir.boundary import allows_all_to_all, main_function, pads_indivisible
from autoshard.ir.host_memory import PINNED_HOST, PLACEMENT, moved_to, runs_on_host
from autoshard.ir.module import operations_of, structure_of
from autoshard.ir.one_device import is_maximal
from autoshard.sharding import Mesh, OpStrategy, Sharding
from autoshard.sharding.padding import padded_shape, padded_size

NO_VALUE = _core.NO_VALUE
NO_TYPE = _core.NO_TYPE


# Ops that only rename or move elements: a mark reaches its main op through them.
_MOVES = frozenset(
    f"stablehlo.{name}" for name in ("convert", "transpose", "reshape", "broadcast_in_dim")
)
DONATED = (ALIASING_OUTPUT, BUFFER_DONOR)
"""Attributes of arguments whose storage the caller gives away."""


_FREE = frozenset(("stablehlo.constant", "stablehlo.iota"))

_HOST_BITS = 1
"""Of an element in the memory of the host: nearly nothing of the device's, but not nothing, so that
redistributing it there is never free."""

_COPIES_AT_A_TIME = 4
"""From the memory of the host: so many have been seen to start before the last loop, or at
the start of the step, whatever orders them (docs/use/host.md). Counted are the largest."""

MATRIX_OPS = frozenset(("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"))
"""Multiply matrices: what an axis cuts of them says what it is for."""


@dataclass(slots=True)
class Pinned:
    """A value that the user fixed, and where."""

    value: int
    pin: Pin
    place: str | None
    text: str
    is_users: bool = True
    """False for what only the type of the value asks for: it is nothing to propagate from."""


@dataclass(slots=True)
class FunctionValues:
    """The core's values at the edges of one function."""

    op: mlir.Operation
    arguments: list[int]
    results: list[int]


@dataclass(frozen=True, slots=True)
class HostValues:
    """What of a program is on the host, by numbers of the core."""

    values: frozenset[int]
    """Values in its memory."""
    moves: tuple[int, ...]
    """Ops that move a value there or back."""
    ops: tuple[int, ...]
    """Ops that it computes."""


@dataclass(frozen=True, slots=True)
class ValueName:
    """One value of the core, as the user knows it."""

    name: str
    """``params['w']`` of an argument, else the op that makes it: ``dot_general``."""
    type: str
    """``4096x11008xbf16``."""
    location: str | None
    """``file:line``."""
    of_any_layer: str
    """The name with stars for numbers."""


@dataclass(slots=True)
class ImportedProgram:
    """A program and the way back from its indices to the module."""

    program: _core.Program
    mesh: Mesh
    """Without axes of size 1; axis ``i`` of the core is ``mesh.axes[i]``."""
    core_ops: list[mlir.Operation]
    """Ops that have a rule, by the core's index."""
    result_values: list[tuple[mlir.Operation, list[int]]]
    """Every op with results, and the core's value of each (-1: rank 0)."""
    functions: list[FunctionValues]
    pins: list[Pinned]
    assumed_loops: list[str]
    """Places of loops whose trip count is not known; ``trip_count`` was assumed."""
    replicated_ops: list[mlir.Operation]
    """Ops without a rule: their operands and results are replicated."""
    value_shapes: list[Sequence[int]]
    """Shape of every value of the core."""
    value_bits: list[int]
    """Bits of an element of every value of the core."""
    value_is_free: list[bool]
    """Constants and the like, of which each reader makes its own copy."""
    pads: bool
    """Whether dims may be cut that have to be padded for it; the core sees them padded."""
    matrix_ops: list[int]
    """Numbers of the core's ops that are one of ``MATRIX_OPS``."""
    host: HostValues
    state: frozenset[int]
    """Numbers of the arguments that a result replaces in the next call: a step's state."""
    one_device_ops: frozenset[int]
    """Numbers of ``result_values`` that one device runs."""
    makers: list[int] | None = None
    """By value: which of ``result_values`` it is first, once somebody asked."""
    lines: dict[int, str | None] = field(default_factory=dict[int, "str | None"])
    """``file:line`` of the core's ops, as far as somebody asked."""
    names: dict[int, ValueName] = field(default_factory=dict[int, ValueName])
    """Of the core's values, as far as somebody asked."""
    values_of_module: dict[mlir.Value, int] | None = None
    """``value_of``, once somebody asked."""

    @property
    def value_of(self) -> dict[mlir.Value, int]:
        """Every value of the module -> the core's (-1: rank 0).

        Made when somebody asks, of the ops that were read: all of them must be there still.
        """
        if self.values_of_module is None:
            found: dict[mlir.Value, int] = {}

            def bind(values: Iterable[mlir.Value], numbers: Iterable[int]) -> None:
                found.update(zip(values, numbers, strict=True))

            for function in self.functions:
                bind(function.op.regions[0].blocks[0].arguments, function.arguments)
            for op, values in self.result_values:
                bind(op.results, values)
                if op.name == "stablehlo.while":
                    for region in op.regions:
                        bind(region.blocks[0].arguments, values)
            self.values_of_module = found
        return self.values_of_module


def import_program(
    module: mlir.Module,
    mesh: Mesh,
    *,
    unknown_trip_count: int = 100,
    keep_strategies: bool = True,
    operations: Sequence[mlir.Operation] | None = None,
) -> ImportedProgram:
    """Read a module that ``autoshard-import-strategies`` has prepared.

    Args:
        module: Calls flattened (each call has its own callee), factor rules populated.
        mesh: The mesh of the plan.
        unknown_trip_count: Assumed for loops that are not counted loops.
        keep_strategies: Pin the operands and results of ops that already carry a strategy, and
            arguments as marked ops read them. False: the plan stands; it may have spread these,
            and what reads a mark first may be another op now, such as one that computes again.
        operations: All of the module as ``operations_of`` gives them, where they are known.

    Raises:
        ImportModuleError: A dynamic shape, no function ``main``, or a mesh of more than 16 axes.
        StrategyError: A pin that does not fit its value.
    """
    mesh = mesh.without_unit_axes()
    if len(mesh.axes) > _core.MAX_MESH_AXES:
        raise ImportModuleError(
            f"mesh {mesh} has {len(mesh.axes)} axes, {_core.MAX_MESH_AXES} are the most."
            " Join some of them."
        )
    operations = operations or operations_of(module.operation)
    importer = _Importer(module, operations, mesh, unknown_trip_count, keep_strategies)
    importer.read()
    return importer.finish()


class _Importer:
    """Ops, and values of the module, go by their numbers in the order of MLIR's walk."""

    def __init__(
        self,
        module: mlir.Module,
        operations: Sequence[mlir.Operation],
        mesh: Mesh,
        unknown_trip_count: int,
        keep_strategies: bool,
    ) -> None:
        self.module = module
        self.ops = operations
        structure = structure_of(module)
        self.builder = _core.ProgramBuilder(structure)
        assert self.builder.num_module_ops == len(operations)
        self.mesh = mesh
        self.pads = pads_indivisible(module)
        self.shapes: list[list[int]] = []
        """Of each type; ``types`` has them padded where dims may be."""
        self.keep_strategies = keep_strategies
        self.unknown_trip_count = unknown_trip_count
        self.functions: dict[str, int] = {}
        self.type_ids: dict[mlir.Type, int] = {}
        self.types: list[tuple[list[int], int]] = []
        self.host_types: dict[int, int] = {}
        self.host_values: set[int] = set()
        self.moves: list[int] = []
        self.host_ops: list[int] = []
        self.loaded: list[int] = []
        """Values that are copied from the memory of the host."""
        self.rule_ids: dict[tuple[object, ...], int] = {}
        self.rules: list[_core.Rule] = []
        self.matrix_rules: set[int] = set()
        self.one_device_classes: set[int] = set()
        self.made_by: dict[mlir.Value, mlir.Value] = {}
        self.pins: list[Pinned] = []
        self.first_pins: dict[int, Pin] = {}
        """The first that the user gave each value."""
        self.read_pins: dict[tuple[str, tuple[int, ...]], Pin] = {}
        self.loops: list[_core.Loop] = []
        self.main_values: tuple[list[int], list[int]] = ([], [])
        self.donated: set[int] = set()
        self.state: frozenset[int] = frozenset()
        self.function_values: list[FunctionValues] = []
        self.assumed_loops: list[str] = []
        self.open_functions: list[int] = []
        self.argument_marks: dict[int, Pinned] = {}
        self.whole_arguments: set[int] = set()
        """With a dim that would have to be padded: marks hold for what reads them."""
        self.handlers: dict[str, Callable[[int, float], None]] = {
            "func.call": self.call,
            "stablehlo.while": self.loop,
            "stablehlo.case": self.branches,
            "stablehlo.if": self.branches,
            "stablehlo.optimization_barrier": self.barrier,
            "stablehlo.custom_call": self.custom_call,
            "stablehlo.composite": self.composite,
            "sdy.sharding_constraint": self.constraint,
            "sdy.manual_computation": self.manual_computation,
        }
        self.host_stacks: set[mlir.Value] = set()
        """Of loops, in the memory of the host, and what they start with."""
        if PLACEMENT.encode() in structure:
            self.host_stacks = host_stacks(module, main_function(module))
            self.handlers |= dict.fromkeys(THROUGH_HOST, self.through_host)

    # Values and types

    def type_id(self, op: mlir.Operation, value: mlir.Value) -> int:
        """Index of the type of ``value``; -1 if it has rank 0 or is no tensor."""
        value_type = value.type
        known = self.type_ids.get(value_type)
        if known is not None:
            return known
        index = NO_TYPE
        if isinstance(value_type, mlir.RankedTensorType):
            if not value_type.has_static_shape:
                raise ImportModuleError(
                    f"{op.name}: dynamic shape {value_type}. autoshard plans static shapes only: "
                    "lower the function with concrete shapes.",
                    place(op.location),
                )
            if value_type.rank:
                index = len(self.types)
                shape = list(value_type.shape)
                self.shapes.append(shape)
                counted = list(padded_shape(shape, self.mesh.size)) if self.pads else shape
                self.types.append((counted, element_bits(value_type.element_type)))
        self.type_ids[value_type] = index
        return index

    def host_type(self, type_id: int) -> int:
        """The same shape in the memory of the host."""
        if type_id == NO_TYPE:
            return NO_TYPE
        if type_id not in self.host_types:
            self.host_types[type_id] = len(self.types)
            self.shapes.append(self.shapes[type_id])
            self.types.append((self.types[type_id][0], _HOST_BITS))
        return self.host_types[type_id]

    def new_value(self, type_id: int, is_on_host: bool = False) -> int:
        value = self.builder.new_value(self.host_type(type_id) if is_on_host else type_id)
        if is_on_host:
            self.note_on_host(value)
        return value

    def note_on_host(self, value: int) -> None:
        if value != NO_VALUE:
            self.host_values.add(value)
            self.builder.set_on_host(value)

    def new_results(self, op: mlir.Operation) -> list[int]:
        return [self.new_value(self.type_id(op, value)) for value in op.results]

    def operand_values(self, number: int) -> list[int]:
        return self.builder.values_of(self.builder.operands(number))

    def bits(self, value: int) -> int:
        """Of a value before it is cut."""
        type_id = self.builder.type_of(value)
        return prod(self.shapes[type_id]) * self.types[type_id][1]

    def pin(self, value: int, pin: Pin, op: mlir.Operation, text: str) -> Pinned | None:
        if value == NO_VALUE:
            return None
        pinned = Pinned(value, pin, place(op.location), text)
        self.pins.append(pinned)
        self.first_pins.setdefault(value, pin)
        return pinned

    def pin_attribute(
        self,
        value: int,
        op: mlir.Operation,
        attribute: mlir.Attribute,
        *,
        at_boundary: bool = False,
    ) -> None:
        """Pin ``value`` as the text of an ``autoshard.pin`` says; no boundary is padded."""
        if value != NO_VALUE:
            pin = self.read_pin(value, op, attribute, at_boundary=at_boundary)
            self.pin(value, pin, op, mlir.StringAttr(attribute).value)

    def read_pin(
        self,
        value: int,
        op: mlir.Operation,
        attribute: mlir.Attribute,
        *,
        at_boundary: bool = False,
    ) -> Pin:
        """What ``pin_attribute`` pins."""
        text = mlir.StringAttr(attribute).value
        type_id = self.builder.type_of(value)
        shape = tuple(self.shapes[type_id] if at_boundary else self.types[type_id][0])
        pin = self.read_pins.get((text, shape))
        if pin is None:
            pin = pin_of(text, self.mesh, shape, place(op.location))
            self.read_pins[text, shape] = pin
        return pin

    def keep_indivisible_whole(self, value: int, op: mlir.Operation) -> bool:
        """Leave all dims open but those that would have to be padded; False if there are none."""
        if value == NO_VALUE:
            return False
        type_id = self.builder.type_of(value)
        sizes = zip(self.shapes[type_id], self.types[type_id][0], strict=True)
        dims = tuple(DimPin(is_open=size == counted) for size, counted in sizes)
        if all(dim.is_open for dim in dims):
            return False
        text = f"[{', '.join('{?}' if dim.is_open else '{}' for dim in dims)}]"
        self.pins.append(Pinned(value, Pin(dims), place(op.location), text, is_users=False))
        return True

    def keep_whole(self, value: int, op: mlir.Operation) -> None:
        """Cut no dim: XLA gives each device all of an array without elements, cut or not."""
        dims = (DimPin(),) * len(self.shapes[self.builder.type_of(value)])
        text = f"[{', '.join('{}' for _ in dims)}]"
        self.pins.append(Pinned(value, Pin(dims), place(op.location), text, is_users=False))

    def pin_key_words(self, value: int, op: mlir.Operation, attribute: mlir.Attribute) -> None:
        """Leave all dims of an array of PRNG keys open but the words of a key, which stay whole."""
        if value != NO_VALUE:
            rank = len(self.types[self.builder.type_of(value)][0])
            words = mlir.IntegerAttr(attribute).value
            dims = tuple(DimPin(is_open=dim < rank - words) for dim in range(rank))
            text = f"[{', '.join('{?}' if dim.is_open else '{}' for dim in dims)}]"
            self.pins.append(Pinned(value, Pin(dims), place(op.location), text, is_users=False))

    # Walking

    def read(self) -> None:
        (module_block,) = self.builder.blocks(0)
        number = module_block.first_op
        while number <= module_block.last_op:
            op = self.ops[number]
            if op.name == "func.func":
                self.functions[mlir.StringAttr(op.attributes["sym_name"]).value] = number
            number = self.builder.end(number)
        main = self.functions.get("main")
        if main is None:
            found = ", ".join(sorted(self.functions)) or "none"
            raise ImportModuleError(
                f"no function main; functions: {found}. Rename the entry function to main.",
                place(self.module.operation.location),
            )
        op = self.ops[main]
        _check_has_body(op, op)
        self.open_functions.append(main)
        self.function(main, self.arguments(op), trips=1.0, is_main=True)

    def arguments(self, main: mlir.Operation) -> list[int]:
        block = main.regions[0].blocks[0]
        dictionaries = _dictionaries(main, "arg_attrs")
        ids = [
            self.new_value(
                self.type_id(main, argument),
                MEMORY_KIND in attributes and _is_host(attributes[MEMORY_KIND]),
            )
            for argument, attributes in zip(block.arguments, dictionaries, strict=True)
        ]
        for index, attributes in enumerate(dictionaries):
            if PIN in attributes:
                self.pin_attribute(ids[index], main, attributes[PIN], at_boundary=True)
            elif KEY_WORDS in attributes:
                self.pin_key_words(ids[index], main, attributes[KEY_WORDS])
            elif self.keep_indivisible_whole(ids[index], main):
                self.whole_arguments.add(ids[index])
            if any(name in attributes for name in DONATED):
                self.donated.add(index)
        self.argument_ids = set(ids) - {NO_VALUE}
        return ids

    def function(
        self, number: int, arguments: list[int], trips: float, is_main: bool = False
    ) -> list[int]:
        op = self.ops[number]
        (block,) = self.builder.blocks(number)
        self.block(block, arguments, trips)
        results = self.operand_values(block.last_op)
        if is_main:
            results = self.main_results(op, arguments, results)
            self.main_values = (arguments, results)
        self.function_values.append(FunctionValues(op, arguments, results))
        return results

    def main_results(
        self, main: mlir.Operation, arguments: list[int], results: list[int]
    ) -> list[int]:
        """A pinned result is a value of its own; one that becomes an argument is that argument.

        Both where only the result is pinned, and its argument is donated to it: XLA reuses the
        memory of those that are split alike.
        """
        results = list(results)
        pinned: set[int] = set()
        same_storage = _same_storage(main)
        self.state = frozenset(same_storage.values())
        free_donated = _free_donated(main)
        for index, attributes in enumerate(_dictionaries(main, "res_attrs")):
            argument = free_donated.get(index)
            if PIN in attributes and argument is not None and argument == same_storage[index]:
                self.pin_attribute(arguments[argument], main, attributes[PIN], at_boundary=True)
                continue
            is_key = KEY_WORDS in attributes and index not in same_storage
            is_padded = index not in same_storage and self.is_padded(results[index])
            is_empty = index not in same_storage and self.is_empty(results[index])
            is_kept = PIN in attributes or is_key or is_padded or is_empty
            if not is_kept or results[index] == NO_VALUE:
                continue
            target = self.new_value(self.builder.type_of(results[index]))
            if results[index] in self.host_values:
                self.note_on_host(target)
            if PIN in attributes:
                self.pin_attribute(target, main, attributes[PIN], at_boundary=True)
            elif is_key:
                self.pin_key_words(target, main, attributes[KEY_WORDS])
            elif is_empty:
                self.keep_whole(target, main)
            else:
                self.keep_indivisible_whole(target, main)
            self.builder.join(results[index], target, 1.0)
            results[index] = target
            pinned.add(index)
        for index, argument in same_storage.items():
            target = arguments[argument]
            if index in pinned or target == NO_VALUE or results[index] == NO_VALUE:
                continue
            self.builder.join(results[index], target, 1.0)
            results[index] = target
        return results

    def is_padded(self, value: int) -> bool:
        """Whether some dim of ``value`` counts as larger than it is."""
        return value != NO_VALUE and self.has_padded_dim(self.builder.type_of(value))

    def is_empty(self, value: int) -> bool:
        """Whether ``value`` has no elements."""
        return value != NO_VALUE and 0 in self.shapes[self.builder.type_of(value)]

    def block(self, block: _core.RegionBlock, arguments: list[int], trips: float) -> None:
        builder = self.builder
        number, end = block.first_op, builder.end(block.last_op)
        builder.bind(block.arguments, arguments)
        while True:
            number = builder.add_plain(number, end, trips, self.op_class, self.rule_id)
            if number == end:
                return
            self.handlers.get(self.ops[number].name, self.plain)(number, trips)
            number = builder.end(number)

    def op_class(self, number: int) -> _core.OpClass:
        """What the core's ``OpClass`` says of an op and all that are like it."""
        op = self.ops[number]
        name, attributes = op.name, op.attributes
        is_special = (
            name in self.handlers
            or PIN in attributes
            or (self.keep_strategies and STRATEGY in attributes)
        )
        if MHLO_SHARDING in attributes and is_maximal(attributes[MHLO_SHARDING]):
            self.one_device_classes.add(self.builder.class_of(number))
        is_broadcast = name == "stablehlo.broadcast_in_dim"
        types = [self.type_id(op, value) for value in op.results]
        return _core.OpClass(
            is_special=is_special,
            is_free=name in _FREE,
            is_broadcast=is_broadcast,
            only_moves=name in _MOVES,
            result_types=types,
        )

    def plain(self, number: int, trips: float, result_types: list[int] | None = None) -> None:
        """An op whose regions, if it has any, compute single elements.

        Nearly all ops are; those without pins the builder reads by itself.
        """
        op, builder = self.ops[number], self.builder
        core_op = builder.num_ops
        builder.add(number, trips, self.op_class, self.rule_id, result_types)
        results = builder.values_of(builder.results(number))
        self.pin_results(op, results)
        if self.keep_strategies and STRATEGY in op.attributes and builder.num_ops > core_op:
            operands = self.operand_values(number)
            builder.set_operands(core_op, *self.given_strategy(op, operands, results, trips))

    def rule_id(
        self, number: int, operand_types: Sequence[int], result_types: Sequence[int]
    ) -> int:
        """The rule of an op, by the types of its operands and results."""
        op = self.ops[number]
        name, attribute = op.name, attribute_of(op, SDY_SHARDING_RULE)
        if name in ("stablehlo.custom_call", "stablehlo.composite"):
            attribute = registered_rule(op) or attribute
        is_on_host = self.builder.host_depth > 0
        types = (*operand_types, None, *result_types)
        key = (name, attribute, *types, is_on_host, *work_key(op), None, *window_key(op))
        key = (*key, fault_key(op), kernel_key(op))
        known = self.rule_ids.get(key)
        if known is not None:
            return known
        rule = rule_of(op, attribute)
        faulty = faulty_factors(op, rule)
        if faulty:
            rule = _whole(rule, faulty)
        if is_on_host:
            rule = _for_host(rule, op)
        self.rule_ids[key] = len(self.rules)
        if name in MATRIX_OPS:
            self.matrix_rules.add(len(self.rules))
        if self.pads and name not in ("stablehlo.custom_call", "stablehlo.composite"):
            if any(map(self.has_padded_dim, (*operand_types, *result_types))):
                rule = _whole(rule, block_factors(op, rule))
            rule = _padded(rule, self.mesh.size)
        self.rules.append(_core_rule(rule, operand_types, result_types, work_of(op)))
        return self.rule_ids[key]

    def has_padded_dim(self, type_id: int) -> bool:
        """Whether some dim of a type counts as larger than it is."""
        return type_id != NO_TYPE and self.shapes[type_id] != self.types[type_id][0]

    def pin_results(self, op: mlir.Operation, ids: list[int]) -> None:
        for value, attribute in self.pins_on(op, ids):
            self.pin_attribute(value, op, attribute)

    def pins_on(self, op: mlir.Operation, ids: list[int]) -> list[tuple[int, mlir.Attribute]]:
        """The results of an op, each with what is to be pinned; nothing if the op is not pinned."""
        attribute = attribute_of(op, PIN)
        if attribute is None:
            return []
        several = isinstance(attribute, mlir.ArrayAttr)
        texts = list(mlir.ArrayAttr(attribute)) if several else [attribute] * len(ids)
        return list(zip(ids, texts, strict=True))

    def given_strategy(
        self, op: mlir.Operation, operands: list[int], results: list[int], trips: float
    ) -> tuple[list[int], list[bool]]:
        """Pin operands and results of an op that already carries a strategy."""
        text = mlir.StringAttr(op.attributes[STRATEGY]).value
        strategy = OpStrategy.parse(text, self.mesh)
        if len(strategy.operands) != len(operands) or len(strategy.results) != len(results):
            raise StrategyError(
                f'{op.name}: strategy "{text}" has {len(strategy.operands)} operands and '
                f"{len(strategy.results)} results, the op has {len(operands)} and {len(results)}.",
                place(op.location),
            )
        pinned = list(operands)
        for index, (value, sharding) in enumerate(zip(operands, strategy.operands, strict=True)):
            if value != NO_VALUE and not self.builder.is_free(value):
                pinned[index] = self.new_value(self.builder.type_of(value))
                self.builder.join(value, pinned[index], trips)
                self.pin_sharding(pinned[index], sharding, op)
        if PIN not in op.attributes:
            for value, sharding in zip(results, strategy.results, strict=True):
                if value != NO_VALUE and not self.builder.is_free(value):
                    self.pin_sharding(value, sharding, op)
        return pinned, [value != NO_VALUE for value in pinned]

    def pin_sharding(self, value: int, sharding: Sharding, op: mlir.Operation) -> None:
        if value != NO_VALUE:
            shape = self.types[self.builder.type_of(value)][0]
            pin = pin_of_sharding(sharding, self.mesh, shape, place(op.location))
            self.pin(value, pin, op, str(sharding))

    # Ops with a meaning of their own

    def call(self, number: int, trips: float) -> None:
        op, builder = self.ops[number], self.builder
        callee = self.functions[mlir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        function = self.ops[callee]
        _check_has_body(function, op)
        if callee in self.open_functions:
            raise ImportModuleError(
                "a function that calls itself cannot be planned: nobody knows how often. Write a"
                " stablehlo.while.",
                place(op.location),
            )
        (block,) = builder.blocks(callee)
        arguments = function.regions[0].blocks[0].arguments
        self.made_by.update(zip(arguments, op.operands, strict=True))
        builder.pass_after(builder.operands(number), block.arguments)
        self.open_functions.append(callee)
        before = builder.num_ops
        builder.host_depth += runs_on_host(op)
        results = self.function(callee, self.operand_values(number), trips)
        self.open_functions.pop()
        builder.host_depth -= runs_on_host(op)
        if runs_on_host(op):
            self.host_ops.extend(range(before, builder.num_ops))
        terminator = block.last_op
        self.made_by.update(zip(op.results, self.ops[terminator].operands, strict=True))
        builder.pass_after(builder.operands(terminator), builder.results(number))
        self.alias_or_copy(number, results, trips)

    def alias(self, number: int, values: list[int]) -> None:
        """The results of an op are values that the core has; they may be pinned."""
        self.builder.alias(number, values)
        self.pin_results(self.ops[number], values)

    def alias_or_copy(self, number: int, values: list[int], trips: float) -> None:
        """As ``alias``, but a value that is pinned otherwise is redistributed.

        Shardy's propagation leaves two shardings on barriers and calls of closed values.
        """
        values = list(values)
        op = self.ops[number]
        for index, (value, attribute) in enumerate(self.pins_on(op, values)):
            known = self.first_pins.get(value)
            if known is None or self.read_pin(value, op, attribute).agrees(known):
                continue
            values[index] = self.new_value(self.builder.type_of(value))
            if value in self.host_values:
                self.note_on_host(values[index])
            self.builder.join(value, values[index], trips)
        self.alias(number, values)

    def resolve(self, value: mlir.Value) -> mlir.Value:
        while (source := self.made_by.get(value)) is not None:
            value = source
        return value

    def loop(self, number: int, trips: float) -> None:
        op, builder = self.ops[number], self.builder
        condition, body = builder.blocks(number)
        inside = op.regions[1].blocks[0].arguments
        carried = [
            self.new_value(self.type_id(op, value), is_on_host=argument in self.host_stacks)
            for value, argument in zip(op.results, inside, strict=True)
        ]
        for initial, target in zip(self.operand_values(number), carried, strict=True):
            builder.join(initial, target, trips)
        # Walk the body once before its trip count is known: calls inside must be followed first.
        first = builder.mark()
        self.block(condition, carried, 1.0)
        self.block(body, carried, 1.0)
        yielded = self.operand_values(body.last_op)
        for source, target in zip(yielded, carried, strict=True):
            builder.join(source, target, 1.0)
        count = trip_count(op, self.resolve)
        if count is None:
            self.assumed_loops.append(place(op.location) or op.name)
            count = self.unknown_trip_count
        builder.scale_trips(first, trips * count)
        builder.set_after(builder.results(number), builder.num_ops - 1)
        builder.set_makers(carried, builder.num_ops - 1)
        kept = [slot for slot, target in enumerate(carried) if target != NO_VALUE]
        self.loops.append(
            _core.Loop(
                first.op,
                builder.num_ops,
                float(count),
                [carried[slot] for slot in kept],
                [NO_VALUE if yielded[s] == carried[s] else yielded[s] for s in kept],
            )
        )
        self.alias(number, carried)

    def branches(self, number: int, trips: float) -> None:
        """Any branch may run: each is counted."""
        builder = self.builder
        results = self.new_results(self.ops[number])
        for block in builder.blocks(number):
            self.block(block, [], trips)
            for yielded, target in zip(self.operand_values(block.last_op), results, strict=True):
                builder.join(yielded, target, trips)
        builder.set_after(builder.results(number), builder.num_ops - 1)
        self.alias(number, results)

    def barrier(self, number: int, trips: float) -> None:
        op, builder = self.ops[number], self.builder
        self.made_by.update(zip(op.results, op.operands, strict=True))
        # what one operand waits for, every result waits for
        builder.set_after(builder.results(number), builder.wait_for(builder.operands(number)))
        builder.has_barriers = True
        self.alias_or_copy(number, self.operand_values(number), trips)

    def copy(self, number: int, trips: float) -> tuple[int, int]:
        """A new value for the one result of an op, joined to its operand."""
        builder = self.builder
        (source,) = self.operand_values(number)
        (target,) = self.new_results(self.ops[number])
        builder.join(source, target, trips)
        builder.pass_after(builder.operands(number), builder.results(number))
        self.alias(number, [target])
        return source, target

    def constraint(self, number: int, trips: float) -> None:
        op, builder = self.ops[number], self.builder
        if PIN in op.attributes:
            self.copy(number, trips)
            return
        self.made_by[op.results[0]] = op.operands[0]
        builder.pass_after(builder.operands(number), builder.results(number))
        self.alias(number, self.operand_values(number))

    def custom_call(self, number: int, trips: float) -> None:
        op = self.ops[number]
        target_name = mlir.StringAttr(op.attributes["call_target_name"]).value
        if target_name == "Sharding":
            self.constraint(number, trips)
            return
        if target_name == PLACEMENT:
            self.move(number, trips)
            return
        if target_name != MARK:
            self.plain(number, trips)
            return
        source, target = self.copy(number, trips)
        is_in = mlir.StringAttr(op.attributes[MARK_ROLE]).value == "in"
        if target == NO_VALUE or not is_in or not self.keep_strategies:
            return
        self.builder.set_marked(target)
        if source in self.argument_ids - self.whole_arguments:
            self.mark_argument(source, self.pins[-1])

    def move(self, number: int, trips: float) -> None:
        """To the memory of the host or of the device."""
        op, builder = self.ops[number], self.builder
        before = builder.num_ops
        (result,) = op.results
        type_id = self.type_id(op, result)
        to_host = moved_to(op) == PINNED_HOST
        self.plain(number, trips, [self.host_type(type_id) if to_host else type_id])
        (value,) = builder.values_of(builder.results(number))
        self.moves.extend(range(before, builder.num_ops))
        if to_host:
            self.note_on_host(value)
        elif value != NO_VALUE:
            self.loaded.append(value)

    def through_host(self, number: int, trips: float) -> None:
        """An op that places a part of a value: on the host, if that is there."""
        op, builder = self.ops[number], self.builder
        placed = self.operand_values(number)[: len(placed_operands(op))]
        (result,) = op.results
        if result not in self.host_stacks and self.host_values.isdisjoint(placed):
            self.plain(number, trips)
            return
        self.plain(number, trips, [self.host_type(self.type_id(op, result))])
        for value in builder.values_of(builder.results(number)):
            self.note_on_host(value)

    def mark_argument(self, argument: int, pinned: Pinned) -> None:
        """An argument that a marked op reads lies as the mark says, unless it is pinned itself.

        Read by two marked ops it must be wanted in one sharding by both.
        """
        if argument not in self.argument_marks and all(p.value != argument for p in self.pins):
            self.pins.append(replace(pinned, value=argument))
        first = self.argument_marks.setdefault(argument, pinned)
        if first.text != pinned.text:
            raise StrategyError(
                f"two strategies contradict on one argument: {first.text} at {first.place} and "
                f"{pinned.text} at {pinned.place}. Give both ops one strategy for it, or "
                "redistribute it for one of them with jax.lax.with_sharding_constraint.",
                pinned.place,
            )

    def composite(self, number: int, trips: float) -> None:
        """With a rule of the user one op, else what it is made of."""
        op = self.ops[number]
        if registered_rule(op) is not None:
            self.plain(number, trips)
            return
        raise ImportModuleError(
            f"composite {op.attributes['name']} is not expanded: run "
            "autoshard-import-strategies before planning.",
            place(op.location),
        )

    def manual_computation(self, number: int, trips: float) -> None:
        """Taken as it is: its in and out shardings are pins, its body is not looked at."""
        op, builder = self.ops[number], self.builder
        inside, outside = self.manual_pins(op)
        for source, pin in zip(self.operand_values(number), inside, strict=True):
            if source == NO_VALUE:
                continue
            target = self.new_value(builder.type_of(source))
            builder.join(source, target, trips)
            self.pin_attribute(target, op, pin)
        results = self.new_results(op)
        for value, pin in zip(results, outside, strict=True):
            self.pin_attribute(value, op, pin)
        builder.alias(number, results)

    def manual_pins(self, op: mlir.Operation) -> tuple[list[mlir.Attribute], list[mlir.Attribute]]:
        if PIN not in op.attributes:
            raise ImportModuleError(
                "manual computation without autoshard.pin: run autoshard-import-strategies before "
                "planning.",
                place(op.location),
            )
        pins = list(mlir.ArrayAttr(op.attributes[PIN]))
        return pins[: len(op.operands)], pins[len(op.operands) :]

    # The core's program

    def finish(self) -> ImportedProgram:
        builder, ops = self.builder, self.ops
        value_types, are_free, op_rules = builder.types, builder.are_free, builder.op_rules
        core_ops = [ops[number] for number in builder.read_ops]
        read_values = builder.result_values
        early = sorted(self.loaded, key=self.bits, reverse=True)[:_COPIES_AT_A_TIME]
        program = builder.program(
            axis_sizes=[axis.size for axis in self.mesh.axes],
            types=[_core.TensorType(dims, bits) for dims, bits in self.types],
            rules=self.rules,
            pins=[core_pin(pinned) for pinned in self.pins],
            loops=self.loops,
            arguments=[
                _core.Argument(value, index in self.donated)
                for index, value in enumerate(self.main_values[0])
            ],
            results=self.main_values[1],
            early=early,
            all_to_all=allows_all_to_all(self.module),
        )
        without_factors = {number for number, rule in enumerate(self.rules) if not rule.factors}
        return ImportedProgram(
            program,
            self.mesh,
            core_ops,
            [(ops[number], values) for number, values in read_values],
            self.function_values,
            self.pins,
            self.assumed_loops,
            [
                op
                for op, rule in zip(core_ops, op_rules, strict=True)
                if rule in without_factors and _says_nothing(op) and not _is_empty(op)
            ],
            [self.shapes[type_id] for type_id in value_types],
            [self.types[type_id][1] for type_id in value_types],
            are_free,
            self.pads,
            [op for op, rule in enumerate(op_rules) if rule in self.matrix_rules],
            HostValues(frozenset(self.host_values), tuple(self.moves), tuple(self.host_ops)),
            self.state,
            self.on_one_device([number for number, _ in read_values]),
        )

    def on_one_device(self, numbers: Sequence[int]) -> frozenset[int]:
        """Positions in ``numbers`` of ops that one device runs."""
        if not self.one_device_classes:
            return frozenset()
        class_of = self.builder.class_of
        return frozenset(
            position
            for position, number in enumerate(numbers)
            if class_of(number) in self.one_device_classes
        )


def core_pin(pinned: Pinned) -> _core.Pin:
    """A pin as the core's ``Program`` takes it."""
    return _core.Pin(
        pinned.value,
        [_core.DimPin(dim.axes, dim.is_open, dim.num_shards) for dim in pinned.pin.dims],
        pinned.pin.replicated,
    )


def attribute_of(op: mlir.Operation, name: str) -> mlir.Attribute | None:
    """An attribute of ``op``, or None."""
    attributes = op.attributes
    return attributes[name] if name in attributes else None  # noqa: SIM401 (0.10.2 has no .get)


def _check_has_body(function: mlir.Operation, caller: mlir.Operation) -> None:
    if not len(function.regions[0].blocks):
        name = mlir.StringAttr(function.attributes["sym_name"]).value
        raise ImportModuleError(
            f"function {name} has no body: it cannot be planned. Define it in the module.",
            place(caller.location),
        )


def _is_empty(op: mlir.Operation) -> bool:
    """Are there no elements that could be split?"""
    types = [v.type for v in op.results if isinstance(v.type, mlir.RankedTensorType)]
    return bool(types) and all(0 in mlir.RankedTensorType(type_).shape for type_ in types)


def _says_nothing(op: mlir.Operation) -> bool:
    """Of how it is split; an op that keeps its device needs no rule."""
    said = (SDY_SHARDING_RULE, STRATEGY, SDY_SHARDING, MHLO_SHARDING)
    return not any(name in op.attributes for name in said)


def _dictionaries(
    function: mlir.Operation, name: str
) -> Sequence[mlir.DictAttr | dict[str, mlir.Attribute]]:
    """``arg_attrs`` or ``res_attrs``, one for each argument or result."""
    if name in function.attributes:
        return [mlir.DictAttr(attribute) for attribute in mlir.ArrayAttr(function.attributes[name])]
    types = mlir.FunctionType(mlir.TypeAttr(function.attributes["function_type"]).value)
    return [{} for _ in (types.inputs if name == "arg_attrs" else types.results)]


def _same_storage(main: mlir.Operation) -> dict[int, int]:
    """Result -> argument that it becomes in the next call, or else that is donated to it."""
    pairs: dict[int, int] = {}
    for index, attributes in enumerate(_dictionaries(main, "res_attrs")):
        if FEEDS_ARGUMENT in attributes:
            pairs[index] = mlir.IntegerAttr(attributes[FEEDS_ARGUMENT]).value
    for argument, attributes in enumerate(_dictionaries(main, "arg_attrs")):
        if ALIASING_OUTPUT in attributes:
            pairs.setdefault(mlir.IntegerAttr(attributes[ALIASING_OUTPUT]).value, argument)
    return pairs


def _free_donated(main: mlir.Operation) -> dict[int, int]:
    """Result -> argument that is donated to it and has no pin."""
    return {
        mlir.IntegerAttr(attributes[ALIASING_OUTPUT]).value: argument
        for argument, attributes in enumerate(_dictionaries(main, "arg_attrs"))
        if ALIASING_OUTPUT in attributes and PIN not in attributes and KEY_WORDS not in attributes
    }


def _is_host(kind: mlir.Attribute) -> bool:
    return mlir.StringAttr(kind).value == PINNED_HOST


def _for_host(rule: FactorRule, op: mlir.Operation) -> FactorRule:
    """Without what would need a collective there: nothing is summed, and indices stay whole.

    So a table is looked up in columns: each device has its own of all rows, for all indices. Masks
    are no indices.
    """
    tensors = zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True)
    whole = {
        factor
        for value, dims in tensors
        if isinstance(value.type, mlir.RankedTensorType)
        and isinstance(value.type.element_type, mlir.IntegerType)
        and mlir.IntegerType(value.type.element_type).width > 1
        for dim in dims
        for factor in dim
    }
    summed = {
        index for index, factor in enumerate(rule.factors) if factor.kind == FactorKind.REDUCTION
    }
    return _whole(rule, frozenset(whole | summed))


def _whole(rule: FactorRule, kept: frozenset[int]) -> FactorRule:
    """With some factors that are not cut."""
    return replace(
        rule,
        factors=tuple(
            replace(factor, kind=FactorKind.NEED_REPLICATION) if index in kept else factor
            for index, factor in enumerate(rule.factors)
        ),
    )


def _padded(rule: FactorRule, devices: int) -> FactorRule:
    """With the sizes that factors count as; those of a dim of several factors stay as they are.

    Nor does padding help where blocks read their neighbours.
    """
    several = {
        factor
        for tensor in (*rule.operands, *rule.results)
        for dim in tensor
        for factor in dim
        if len(dim) > 1
    }
    return replace(
        rule,
        factors=tuple(
            replace(factor, size=padded_size(factor.size, devices))
            if index not in several
            and factor.kind in (FactorKind.PASS_THROUGH, FactorKind.REDUCTION)
            else factor
            for index, factor in enumerate(rule.factors)
        ),
    )


def _core_rule(
    rule: FactorRule, operand_types: Sequence[int], result_types: Sequence[int], work: OpWork
) -> _core.Rule:
    def tensors(
        types: Sequence[int], dims: tuple[tuple[tuple[int, ...], ...], ...]
    ) -> list[_core.RuleTensor]:
        return [
            _core.RuleTensor(type_id, () if type_id == NO_TYPE else tensor)
            for type_id, tensor in zip(types, dims, strict=True)
        ]

    return _core.Rule(
        [_core.Factor(factor.size, factor.kind, factor.halo) for factor in rule.factors],
        tensors(operand_types, rule.operands),
        tensors(result_types, rule.results),
        work=work.work,
        arithmetic=work.arithmetic,
        flops=work.flops,
        is_cheap=work.is_cheap,
        has_workspace=work.has_workspace,
        operand_bytes=work.operand_bytes,
        result_bytes=work.result_bytes,
        in_place_operand=work.in_place_operand,
        padded_bytes=work.padded_bytes,
        expense=work.expense,
    )
