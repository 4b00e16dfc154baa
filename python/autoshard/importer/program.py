"""Walk a module and fill the core's ``Program``.

One value of the core may be several SSA values: arguments and results of a call are its
operands and what the callee returns; block arguments, results and carried values of a loop are
one; an optimization barrier gives what it takes. Values of rank 0 are left out: they are never
split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from autoshard import _core
from autoshard.errors import ImportModuleError, StrategyError
from autoshard.importer.loops import trip_count
from autoshard.importer.pins import DimPin, Pin, pin_of, pin_of_sharding
from autoshard.importer.rules import (
    NEED_REPLICATION,
    PASS_THROUGH,
    REDUCTION,
    FactorRule,
    registered_rule,
    rule_of,
)
from autoshard.importer.work import WORK_ATTRIBUTES, CoreWork, core_work, work_key, work_of
from autoshard.ir import element_bits, mlir, place
from autoshard.ir.boundary import allows_all_to_all, pads_indivisible
from autoshard.ir.host_memory import MEMORY_KIND, PINNED_HOST, PLACEMENT, moved_to, runs_on_host
from autoshard.sharding import Mesh, OpStrategy, Sharding
from autoshard.sharding.padding import padded_shape, padded_size

NO_VALUE = -1
NO_TYPE = -1

MOST_AXES = 16
"""``max_mesh_axes`` of passes/model/mesh.h."""

CoreTensor = tuple[int, list[list[int]]]
"""Type, and the factors of each dim."""

CoreRule = tuple[list[tuple[int, int, int]], list[CoreTensor], list[CoreTensor]]
"""(size, kind, halo) of each factor, operands, results."""

CoreLoop = tuple[int, int, float, list[int], list[int]]
"""First op, end of its ops, its own trips, carried values, yielded values."""

MARK = "autoshard.mark"
"""Target of the custom call that carries a strategy given by ``autoshard.shard``."""

PIN = "autoshard.pin"
"""Attribute of arguments, results and ops: a sharding that the user fixed."""

STRATEGY = "autoshard.strategy"
"""Attribute of ops: shardings of operands and results while the op runs."""

FEEDS = "autoshard.feeds_argument"
"""Attribute of a result: the number of the argument that it becomes in the next call."""

KEY_WORDS = "autoshard.key_words"
"""Attribute of arguments and results that are PRNG keys: how many last dims are words of a key."""

# Ops that only rename or move elements: a mark reaches its main op through them.
_MOVES = frozenset(
    f"stablehlo.{name}" for name in ("convert", "transpose", "reshape", "broadcast_in_dim")
)
DONATED = ("tf.aliasing_output", "jax.buffer_donor")
"""Attributes of arguments whose storage the caller gives away."""

RULE = "sdy.sharding_rule"
"""Attribute of ops while a module is read: Shardy's factor rule."""

_FREE = frozenset(("stablehlo.constant", "stablehlo.iota"))

_HOST_BITS = 1
"""Of an element in the memory of the host: nearly nothing of the device's, but not nothing, so that
redistributing it there is never free."""

_COPIES_AT_A_TIME = 4
"""From the memory of the host: so many libtpu has been seen to start before its last loop, or at
the start of the step, whatever orders them (docs/host.md). Counted are the largest."""

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
    value_of: dict[mlir.Value, int]
    """Every value of the module -> the core's (-1: rank 0)."""
    value_is_free: list[bool]
    """Constants and the like, of which each reader makes its own copy."""
    pads: bool
    """Whether dims may be cut that have to be padded for it; the core sees them padded."""
    matrix_ops: list[int]
    """Numbers of the core's ops that are one of ``MATRIX_OPS``."""
    host: HostValues
    one_device_ops: set[int] | None = None
    """Numbers of ``result_values`` that one device runs, known once a plan was written."""
    makers: list[int] | None = None
    """By value: which of ``result_values`` it is first, once somebody asked."""
    lines: dict[int, str | None] = field(default_factory=dict[int, "str | None"])
    """``file:line`` of the core's ops, as far as somebody asked."""
    names: dict[int, ValueName] = field(default_factory=dict[int, ValueName])
    """Of the core's values, as far as somebody asked."""


def import_program(
    module: mlir.Module,
    mesh: Mesh,
    *,
    unknown_trip_count: int = 100,
    keep_strategies: bool = True,
) -> ImportedProgram:
    """Read a module that ``autoshard-import-strategies`` has prepared.

    Args:
        module: Calls flattened (each call has its own callee), factor rules populated.
        mesh: The mesh of the plan.
        unknown_trip_count: Assumed for loops that are not counted loops.
        keep_strategies: Pin the operands and results of ops that already carry a strategy.

    Raises:
        ImportModuleError: A dynamic shape, no function ``main``, or a mesh of more than 16 axes.
        StrategyError: A pin that does not fit its value.
    """
    mesh = mesh.without_unit_axes()
    if len(mesh.axes) > MOST_AXES:
        raise ImportModuleError(
            f"mesh {mesh} has {len(mesh.axes)} axes, {MOST_AXES} are the most. Join some of them."
        )
    importer = _Importer(mesh, unknown_trip_count, keep_strategies)
    importer.read(module)
    return importer.finish()


class _Importer:
    def __init__(self, mesh: Mesh, unknown_trip_count: int, keep_strategies: bool) -> None:
        self.mesh = mesh
        self.has_all_to_all = True
        self.pads = False
        self.shapes: list[list[int]] = []
        """Of each type; ``types`` has them padded where dims may be."""
        self.keep_strategies = keep_strategies
        self.unknown_trip_count = unknown_trip_count
        self.functions: dict[str, mlir.Operation] = {}
        self.type_ids: dict[mlir.Type, int] = {}
        self.types: list[tuple[list[int], int]] = []
        self.host_types: dict[int, int] = {}
        self.host_values: set[int] = set()
        self.moves: list[int] = []
        self.host_ops: list[int] = []
        self.loaded: list[int] = []
        """Values that are copied from the memory of the host."""
        self.made_on_host: set[int] = set()
        self.host_depth = 0
        """Calls around the op at hand that the host computes."""
        self.rule_ids: dict[tuple[object, ...], int] = {}
        self.rules: list[CoreRule] = []
        self.matrix_rules: set[int] = set()
        self.works: list[CoreWork] = []
        self.value_type: list[int] = []
        self.value_is_free: list[bool] = []
        self.value_of: dict[mlir.Value, int] = {}
        self.made_by: dict[mlir.Value, mlir.Value] = {}
        self.op_rule: list[int] = []
        self.op_trips: list[float] = []
        self.op_after: list[int] = []
        self.op_until: list[int] = []
        self.made_after: dict[mlir.Value, int] = {}
        """For values of rank 0, and for what barriers give: the last op of the core that they wait
        for, if any."""
        self.maker_of: dict[int, int] = {}
        """Value of the core -> the op of the core that makes it."""
        self.has_barriers = False
        self.operands: list[int] = []
        self.operand_kept: list[bool] = []
        self.operand_offset: list[int] = [0]
        self.results: list[int] = []
        self.result_offset: list[int] = [0]
        self.joins: list[tuple[int, int, float]] = []
        self.pins: list[Pinned] = []
        self.read_pins: dict[tuple[str, tuple[int, ...]], Pin] = {}
        self.loops: list[CoreLoop] = []
        self.main_values: tuple[list[int], list[int]] = ([], [])
        self.donated: set[int] = set()
        self.core_ops: list[mlir.Operation] = []
        self.result_values: list[tuple[mlir.Operation, list[int]]] = []
        self.function_values: list[FunctionValues] = []
        self.assumed_loops: list[str] = []
        self.replicated_ops: list[mlir.Operation] = []
        self.waiting_marks: set[int] = set()
        self.open_functions: list[mlir.Operation] = []
        self.argument_marks: dict[int, Pinned] = {}
        self.whole_arguments: set[int] = set()
        """With a dim that would have to be padded: marks hold for what reads them."""
        self.handlers = {
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

    def new_value(self, type_id: int, is_free: bool = False) -> int:
        if type_id == NO_TYPE:
            return NO_VALUE
        self.value_type.append(type_id)
        self.value_is_free.append(is_free)
        return len(self.value_type) - 1

    def host_type(self, type_id: int) -> int:
        """The same shape in the memory of the host."""
        if type_id == NO_TYPE:
            return NO_TYPE
        if type_id not in self.host_types:
            self.host_types[type_id] = len(self.types)
            self.shapes.append(self.shapes[type_id])
            self.types.append((self.types[type_id][0], _HOST_BITS))
        return self.host_types[type_id]

    def new_host_value(self, type_id: int) -> int:
        value = self.new_value(self.host_type(type_id))
        if value != NO_VALUE:
            self.host_values.add(value)
        return value

    def new_values(self, op: mlir.Operation, values: Iterable[mlir.Value]) -> list[int]:
        return [self.new_value(self.type_id(op, value)) for value in values]

    def values(self, values: Iterable[mlir.Value]) -> list[int]:
        value_of = self.value_of
        return [value_of[value] for value in values]

    def bind(self, values: Iterable[mlir.Value], ids: Sequence[int]) -> None:
        for value, index in zip(values, ids, strict=True):
            self.value_of[value] = index

    def bits(self, value: int) -> int:
        """Of a value before it is cut."""
        type_id = self.value_type[value]
        return prod(self.shapes[type_id]) * self.types[type_id][1]

    def join(self, source: int, target: int, trips: float) -> None:
        if source != target and source != NO_VALUE:
            self.joins.append((source, target, trips))

    def pin(self, value: int, pin: Pin, op: mlir.Operation, text: str) -> Pinned | None:
        if value == NO_VALUE:
            return None
        pinned = Pinned(value, pin, place(op.location), text)
        self.pins.append(pinned)
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
        text = mlir.StringAttr(attribute).value
        if value != NO_VALUE:
            type_id = self.value_type[value]
            shape = tuple(self.shapes[type_id] if at_boundary else self.types[type_id][0])
            pin = self.read_pins.get((text, shape))
            if pin is None:
                pin = pin_of(text, self.mesh, shape, place(op.location))
                self.read_pins[text, shape] = pin
            self.pin(value, pin, op, text)

    def keep_indivisible_whole(self, value: int, op: mlir.Operation) -> bool:
        """Leave all dims open but those that would have to be padded; False if there are none."""
        if value == NO_VALUE:
            return False
        type_id = self.value_type[value]
        sizes = zip(self.shapes[type_id], self.types[type_id][0], strict=True)
        dims = tuple(DimPin(is_open=size == counted) for size, counted in sizes)
        if all(dim.is_open for dim in dims):
            return False
        text = f"[{', '.join('{?}' if dim.is_open else '{}' for dim in dims)}]"
        self.pins.append(Pinned(value, Pin(dims), place(op.location), text, is_users=False))
        return True

    def pin_key_words(self, value: int, op: mlir.Operation, attribute: mlir.Attribute) -> None:
        """Leave all dims of an array of PRNG keys open but the words of a key, which stay whole."""
        if value != NO_VALUE:
            rank = len(self.types[self.value_type[value]][0])
            words = mlir.IntegerAttr(attribute).value
            dims = tuple(DimPin(is_open=dim < rank - words) for dim in range(rank))
            text = f"[{', '.join('{?}' if dim.is_open else '{}' for dim in dims)}]"
            self.pins.append(Pinned(value, Pin(dims), place(op.location), text, is_users=False))

    # Walking

    def read(self, module: mlir.Module) -> None:
        self.has_all_to_all = allows_all_to_all(module)
        self.pads = pads_indivisible(module)
        for op in module.body.operations:
            operation = op.operation
            if operation.name == "func.func":
                self.functions[mlir.StringAttr(operation.attributes["sym_name"]).value] = operation
        main = self.functions.get("main")
        if main is None:
            found = ", ".join(sorted(self.functions)) or "none"
            raise ImportModuleError(
                f"no function main; functions: {found}. Rename the entry function to main.",
                place(module.operation.location),
            )
        _check_has_body(main, main)
        self.open_functions.append(main)
        self.function(main, self.arguments(main), trips=1.0, is_main=True)

    def arguments(self, main: mlir.Operation) -> list[int]:
        block = main.regions[0].blocks[0]
        dictionaries = _dictionaries(main, "arg_attrs")
        ids: list[int] = []
        for argument, attributes in zip(block.arguments, dictionaries, strict=True):
            type_id = self.type_id(main, argument)
            is_on_host = MEMORY_KIND in attributes and _is_host(attributes[MEMORY_KIND])
            ids.append(self.new_host_value(type_id) if is_on_host else self.new_value(type_id))
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
        self, function: mlir.Operation, arguments: list[int], trips: float, is_main: bool = False
    ) -> list[int]:
        block = function.regions[0].blocks[0]
        self.bind(block.arguments, arguments)
        self.block(block, trips)
        results = self.values(_terminator(block).operands)
        if is_main:
            results = self.main_results(function, arguments, results)
            self.main_values = (arguments, results)
        self.function_values.append(FunctionValues(function, arguments, results))
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
        free_donated = _free_donated(main)
        for index, attributes in enumerate(_dictionaries(main, "res_attrs")):
            argument = free_donated.get(index)
            if PIN in attributes and argument is not None and argument == same_storage[index]:
                self.pin_attribute(arguments[argument], main, attributes[PIN], at_boundary=True)
                continue
            is_key = KEY_WORDS in attributes and index not in same_storage
            is_padded = index not in same_storage and self.is_padded(results[index])
            is_kept = PIN in attributes or is_key or is_padded
            if not is_kept or results[index] == NO_VALUE:
                continue
            target = self.new_value(self.value_type[results[index]])
            if results[index] in self.host_values:
                self.host_values.add(target)
            if PIN in attributes:
                self.pin_attribute(target, main, attributes[PIN], at_boundary=True)
            elif is_key:
                self.pin_key_words(target, main, attributes[KEY_WORDS])
            else:
                self.keep_indivisible_whole(target, main)
            self.join(results[index], target, 1.0)
            results[index] = target
            pinned.add(index)
        for index, argument in same_storage.items():
            target = arguments[argument]
            if index in pinned or target == NO_VALUE or results[index] == NO_VALUE:
                continue
            self.join(results[index], target, 1.0)
            results[index] = target
        return results

    def is_padded(self, value: int) -> bool:
        """Whether some dim of ``value`` counts as larger than it is."""
        if value == NO_VALUE:
            return False
        type_id = self.value_type[value]
        return self.shapes[type_id] != self.types[type_id][0]

    def block(self, block: mlir.Block, trips: float) -> None:
        handlers = self.handlers
        for operation in operations_of(block):
            name = operation.name
            handler = handlers.get(name)
            if handler is None:
                self.plain(operation, name, trips)
            else:
                handler(operation, trips)

    def plain(self, op: mlir.Operation, name: str, trips: float) -> None:
        """An op whose regions, if it has any, compute single elements.

        Nearly all ops come here, so calls are spared where they would be one or two an op.
        """
        results = op.results
        if len(results) == 1:
            results = (results[0],)
        elif not len(results):
            return
        attributes = op.attributes
        operands = list(op.operands)
        value_of, value_type = self.value_of, self.value_type
        operand_ids = [value_of.get(value, NO_VALUE) for value in operands]
        is_free = name in _FREE or (
            name == "stablehlo.broadcast_in_dim"
            and (operand_ids[0] == NO_VALUE or self.value_is_free[operand_ids[0]])
        )
        result_types: list[int] = []
        ids: list[int] = []
        for value in results:
            type_id = self.type_ids.get(value.type)
            if type_id is None:
                type_id = self.type_id(op, value)
            result_types.append(type_id)
            index = NO_VALUE
            if type_id != NO_TYPE:
                index = len(value_type)
                value_type.append(type_id)
                self.value_is_free.append(is_free)
            ids.append(index)
            value_of[value] = index
        self.result_values.append((op, ids))
        if PIN in attributes:
            self.pin_results(op, ids)
        if name in _FREE:
            return
        after = -1
        if self.has_barriers or NO_VALUE in operand_ids:
            after = max((self.made_after.get(value, -1) for value in operands), default=-1)
        if NO_VALUE in operand_ids:
            operand_types = [NO_TYPE if v == NO_VALUE else value_type[v] for v in operand_ids]
        else:
            operand_types = [value_type[v] for v in operand_ids]
        if NO_VALUE in ids:
            is_scalar = max(operand_types, default=NO_TYPE) < 0 and max(result_types) < 0
            self.note_after(results, after if is_scalar else len(self.op_rule))
            if is_scalar:
                return
        rule = self.rule_id(op, name, attributes, operand_types, result_types)
        kept = [False] * len(operand_ids)
        if self.host_values or self.host_depth:
            kept = self.kept_on_host(operand_ids, ids)
        if self.keep_strategies and STRATEGY in attributes:
            operand_ids, kept = self.given_strategy(op, operand_ids, ids, trips)
        if self.waiting_marks:
            self.reach_main_op(op, operand_ids, kept, ids)
        number = len(self.op_rule)
        for value in ids:
            self.maker_of[value] = number
        self.op_after.append(after)
        self.op_until.append(-1)
        self.op_rule.append(rule)
        self.op_trips.append(trips)
        self.operands += operand_ids
        self.operand_kept += kept
        self.operand_offset.append(len(self.operands))
        self.results += ids
        self.result_offset.append(len(self.results))
        self.core_ops.append(op)

    def kept_on_host(self, operands: list[int], results: list[int]) -> list[bool]:
        """Which operands an op takes as they are, because nothing can redistribute them there."""
        there = self.made_on_host
        kept = [value in self.host_values for value in operands]
        if self.host_depth:
            kept = [
                is_kept or value in there for is_kept, value in zip(kept, operands, strict=True)
            ]
            there.update(value for value in results if value != NO_VALUE)
        return kept

    def note_after(self, values: Iterable[mlir.Value], op: int) -> None:
        """Those of rank 0 among ``values`` depend on op ``op`` of the core, or on none: -1."""
        if op >= 0:
            self.made_after.update(dict.fromkeys(values, op))

    def pass_after(self, sources: Iterable[mlir.Value], targets: Iterable[mlir.Value]) -> None:
        """Each target depends on what its source depends on."""
        for source, target in zip(sources, targets, strict=True):
            if source in self.made_after:
                self.made_after[target] = self.made_after[source]

    def reach_main_op(
        self, op: mlir.Operation, operands: list[int], kept: list[bool], results: list[int]
    ) -> None:
        """The first reader of a marked value takes it as it is; through ops that only move."""
        for index, value in enumerate(operands):
            if value in self.waiting_marks:
                kept[index] = True
        if any(kept):
            self.waiting_marks.difference_update(operands)
            if op.name in _MOVES:
                self.waiting_marks.update(results)

    def rule_id(
        self,
        op: mlir.Operation,
        name: str,
        attributes: mlir.OpAttributeMap,
        operand_types: list[int],
        result_types: list[int],
    ) -> int:
        attribute = attributes[RULE] if RULE in attributes else None  # noqa: SIM401
        if name in ("stablehlo.custom_call", "stablehlo.composite"):
            attribute = registered_rule(op) or attribute
        key = (name, attribute, *operand_types, None, *result_types)
        if name in WORK_ATTRIBUTES:
            key = (*key, *work_key(op))
        if self.host_depth:
            key = (*key, "on the host")
        known = self.rule_ids.get(key)
        if known is not None:
            if not self.rules[known][0]:
                self.note_replicated(op)
            return known
        rule = rule_of(op, attribute)
        if self.host_depth:
            rule = _for_host(rule, op)
        if not rule.factors:
            self.note_replicated(op)
        self.rule_ids[key] = len(self.rules)
        if name in MATRIX_OPS:
            self.matrix_rules.add(len(self.rules))
        if self.pads and name not in ("stablehlo.custom_call", "stablehlo.composite"):
            rule = _padded(rule, self.mesh.size)
        self.rules.append(_core_rule(rule, operand_types, result_types))
        self.works.append(core_work(work_of(op)))
        return self.rule_ids[key]

    def note_replicated(self, op: mlir.Operation) -> None:
        """Remember an op that nobody gave a rule; one that keeps its device needs none."""
        said = (RULE, STRATEGY, "sdy.sharding", "mhlo.sharding")
        if not any(name in op.attributes for name in said):
            self.replicated_ops.append(op)

    def pin_results(self, op: mlir.Operation, ids: list[int]) -> None:
        if PIN not in op.attributes:
            return
        attribute = op.attributes[PIN]
        texts = (
            list(mlir.ArrayAttr(attribute))
            if isinstance(attribute, mlir.ArrayAttr)
            else [attribute] * len(ids)
        )
        for value, text in zip(ids, texts, strict=True):
            self.pin_attribute(value, op, text)

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
            if value != NO_VALUE and not self.value_is_free[value]:
                pinned[index] = self.new_value(self.value_type[value])
                self.join(value, pinned[index], trips)
                self.pin_sharding(pinned[index], sharding, op)
        if PIN not in op.attributes:
            for value, sharding in zip(results, strategy.results, strict=True):
                if value != NO_VALUE and not self.value_is_free[value]:
                    self.pin_sharding(value, sharding, op)
        return pinned, [value != NO_VALUE for value in pinned]

    def pin_sharding(self, value: int, sharding: Sharding, op: mlir.Operation) -> None:
        if value != NO_VALUE:
            shape = self.types[self.value_type[value]][0]
            pin = pin_of_sharding(sharding, self.mesh, shape, place(op.location))
            self.pin(value, pin, op, str(sharding))

    # Ops with a meaning of their own

    def call(self, op: mlir.Operation, trips: float) -> None:
        callee = self.functions[mlir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        _check_has_body(callee, op)
        if callee in self.open_functions:
            raise ImportModuleError(
                "a function that calls itself cannot be planned: nobody knows how often. Write a"
                " stablehlo.while.",
                place(op.location),
            )
        block = callee.regions[0].blocks[0]
        for argument, operand in zip(block.arguments, op.operands, strict=True):
            self.made_by[argument] = operand
        self.pass_after(op.operands, block.arguments)
        self.open_functions.append(callee)
        before = len(self.core_ops)
        self.host_depth += runs_on_host(op)
        results = self.function(
            callee, [self.value_of.get(v, NO_VALUE) for v in op.operands], trips
        )
        self.open_functions.pop()
        self.host_depth -= runs_on_host(op)
        if runs_on_host(op):
            self.host_ops.extend(range(before, len(self.core_ops)))
        for result, returned in zip(op.results, _terminator(block).operands, strict=True):
            self.made_by[result] = returned
        self.pass_after(_terminator(block).operands, op.results)
        self.alias(op, results)
        self.pin_results(op, results)

    def alias(self, op: mlir.Operation, ids: list[int]) -> None:
        self.bind(op.results, ids)
        self.result_values.append((op, ids))

    def resolve(self, value: mlir.Value) -> mlir.Value:
        while (source := self.made_by.get(value)) is not None:
            value = source
        return value

    def loop(self, op: mlir.Operation, trips: float) -> None:
        condition, body = (region.blocks[0] for region in op.regions)
        carried = self.new_values(op, op.results)
        for initial, target in zip(op.operands, carried, strict=True):
            self.join(self.value_of.get(initial, NO_VALUE), target, trips)
        for block in (condition, body):
            self.bind(block.arguments, carried)
        # Walk the body once before its trip count is known: calls inside must be followed first.
        first_op, first_join = len(self.op_trips), len(self.joins)
        self.block(condition, 1.0)
        self.block(body, 1.0)
        yielded = [self.value_of.get(value, NO_VALUE) for value in _terminator(body).operands]
        for source, target in zip(yielded, carried, strict=True):
            self.join(source, target, 1.0)
        count = trip_count(op, self.resolve)
        if count is None:
            self.assumed_loops.append(place(op.location) or op.name)
            count = self.unknown_trip_count
        scale = trips * count
        for index in range(first_op, len(self.op_trips)):
            self.op_trips[index] *= scale
        for index in range(first_join, len(self.joins)):
            source, target, inner = self.joins[index]
            self.joins[index] = (source, target, inner * scale)
        self.note_after(op.results, len(self.op_rule) - 1)
        self.maker_of.update(dict.fromkeys(carried, len(self.op_rule) - 1))
        kept = [slot for slot, target in enumerate(carried) if target != NO_VALUE]
        self.loops.append(
            (
                first_op,
                len(self.op_rule),
                float(count),
                [carried[slot] for slot in kept],
                [NO_VALUE if yielded[s] == carried[s] else yielded[s] for s in kept],
            )
        )
        self.alias(op, carried)
        self.pin_results(op, carried)

    def branches(self, op: mlir.Operation, trips: float) -> None:
        """Any branch may run: each is counted."""
        results = self.new_values(op, op.results)
        for region in op.regions:
            block = region.blocks[0]
            self.block(block, trips)
            for yielded, target in zip(_terminator(block).operands, results, strict=True):
                self.join(self.value_of.get(yielded, NO_VALUE), target, trips)
        self.note_after(op.results, len(self.op_rule) - 1)
        self.alias(op, results)
        self.pin_results(op, results)

    def barrier(self, op: mlir.Operation, trips: float) -> None:
        del trips
        for result, operand in zip(op.results, op.operands, strict=True):
            self.made_by[result] = operand
        values = [self.value_of.get(v, NO_VALUE) for v in op.operands]
        # what one operand waits for, every result waits for
        waits = [self.made_after.get(value, -1) for value in op.operands]
        makers = [self.maker_of.get(value, -1) for value in values if value != NO_VALUE]
        for maker in makers:
            if maker >= 0 and self.op_until[maker] < 0:
                self.op_until[maker] = len(self.op_rule)
        waits += makers
        self.note_after(op.results, max(waits, default=-1))
        self.has_barriers = True
        self.alias(op, values)
        self.pin_results(op, values)

    def copy(self, op: mlir.Operation, trips: float) -> tuple[int, int]:
        """A new value for the one result of ``op``, joined to its operand."""
        source = self.value_of.get(op.operands[0], NO_VALUE)
        target = self.new_value(self.type_id(op, op.results[0]))
        self.join(source, target, trips)
        self.pass_after(op.operands, op.results)
        self.alias(op, [target])
        return source, target

    def constraint(self, op: mlir.Operation, trips: float) -> None:
        if PIN not in op.attributes:
            self.made_by[op.results[0]] = op.operands[0]
            self.pass_after(op.operands, op.results)
            self.alias(op, [self.value_of.get(op.operands[0], NO_VALUE)])
            return
        _, target = self.copy(op, trips)
        self.pin_results(op, [target])

    def custom_call(self, op: mlir.Operation, trips: float) -> None:
        target_name = mlir.StringAttr(op.attributes["call_target_name"]).value
        if target_name == "Sharding":
            self.constraint(op, trips)
            return
        if target_name == PLACEMENT:
            self.move(op, trips)
            return
        if target_name != MARK:
            self.plain(op, op.name, trips)
            return
        source, target = self.copy(op, trips)
        self.pin_results(op, [target])
        if target == NO_VALUE or mlir.StringAttr(op.attributes["autoshard.role"]).value != "in":
            return
        self.waiting_marks.add(target)
        if source in self.argument_ids - self.whole_arguments:
            self.mark_argument(source, self.pins[-1])

    def move(self, op: mlir.Operation, trips: float) -> None:
        """To the memory of the host or of the device."""
        before = len(self.core_ops)
        (result,) = op.results
        type_id = self.type_id(op, result)
        to_host = moved_to(op) == PINNED_HOST
        if to_host:
            self.type_ids[result.type] = self.host_type(type_id)  # while this op is read
        self.plain(op, op.name, trips)
        self.type_ids[result.type] = type_id
        if to_host and self.value_of[result] != NO_VALUE:
            self.host_values.add(self.value_of[result])
        self.moves.extend(range(before, len(self.core_ops)))
        if not to_host and self.value_of[result] != NO_VALUE:
            self.loaded.append(self.value_of[result])

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

    def composite(self, op: mlir.Operation, trips: float) -> None:
        """With a rule of the user one op, else what it is made of."""
        if registered_rule(op) is not None:
            self.plain(op, op.name, trips)
            return
        raise ImportModuleError(
            f"composite {op.attributes['name']} is not expanded: run "
            "autoshard-import-strategies before planning.",
            place(op.location),
        )

    def manual_computation(self, op: mlir.Operation, trips: float) -> None:
        """Taken as it is: its in and out shardings are pins, its body is not looked at."""
        inside, outside = self.manual_pins(op)
        for operand, pin in zip(op.operands, inside, strict=True):
            source = self.value_of.get(operand, NO_VALUE)
            if source == NO_VALUE:
                continue
            target = self.new_value(self.value_type[source])
            self.join(source, target, trips)
            self.pin_attribute(target, op, pin)
        results = self.new_values(op, op.results)
        for value, pin in zip(results, outside, strict=True):
            self.pin_attribute(value, op, pin)
        self.alias(op, results)

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
        program = _core.Program(
            axis_sizes=[axis.size for axis in self.mesh.axes],
            types=self.types,
            rules=self.rules,
            value_type=np.array(self.value_type, np.int32),
            value_is_free=np.array(self.value_is_free, np.uint8),
            op_rule=np.array(self.op_rule, np.int32),
            op_trips=np.array(self.op_trips, np.float64),
            operand_offset=np.array(self.operand_offset, np.int32),
            operands=np.array(self.operands, np.int32),
            operand_kept=np.array(self.operand_kept, np.uint8),
            result_offset=np.array(self.result_offset, np.int32),
            results=np.array(self.results, np.int32),
            join_source=np.array([join[0] for join in self.joins], np.int32),
            join_target=np.array([join[1] for join in self.joins], np.int32),
            join_trips=np.array([join[2] for join in self.joins], np.float64),
            pins=[core_pin(pinned) for pinned in self.pins],
            works=self.works,
            op_after=np.array(self.op_after, np.int32),
            op_until=np.array(self.op_until, np.int32),
            loops=self.loops,
            arguments=[
                (value, index in self.donated) for index, value in enumerate(self.main_values[0])
            ],
            program_results=self.main_values[1],
            early=sorted(self.loaded, key=self.bits, reverse=True)[:_COPIES_AT_A_TIME],
            all_to_all=self.has_all_to_all,
        )
        return ImportedProgram(
            program,
            self.mesh,
            self.core_ops,
            self.result_values,
            self.function_values,
            self.pins,
            self.assumed_loops,
            self.replicated_ops,
            [self.shapes[type_id] for type_id in self.value_type],
            [self.types[type_id][1] for type_id in self.value_type],
            self.value_of,
            self.value_is_free,
            self.pads,
            [op for op, rule in enumerate(self.op_rule) if rule in self.matrix_rules],
            HostValues(frozenset(self.host_values), tuple(self.moves), tuple(self.host_ops)),
        )


def core_pin(
    pinned: Pinned,
) -> tuple[int, list[tuple[list[int], bool, int | None]], list[int]]:
    """A pin as the core's ``Program`` takes it."""
    return (
        pinned.value,
        [(list(dim.axes), dim.is_open, dim.num_shards) for dim in pinned.pin.dims],
        list(pinned.pin.replicated),
    )


def operations_of(block: mlir.Block) -> Iterable[mlir.Operation]:
    """The ops of a block.

    A walk below its op takes half the time of iterating over the block, which makes a view of
    every op; it visits the ops of one block if its op has no other.
    """
    owner = block.owner.operation
    if len(owner.regions) > 1 or len(owner.regions[0].blocks) > 1:
        return [op.operation for op in block.operations]
    found: list[mlir.Operation] = []
    advance, skip = mlir.WalkResult.ADVANCE, mlir.WalkResult.SKIP

    def visit(op: mlir.Operation) -> mlir.WalkResult:
        found.append(op)
        return skip if len(found) > 1 else advance

    owner.walk(visit, mlir.WalkOrder.PRE_ORDER)
    return found[1:]


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


def _terminator(block: mlir.Block) -> mlir.Operation:
    return block.operations[len(block.operations) - 1].operation


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
        if FEEDS in attributes:
            pairs[index] = mlir.IntegerAttr(attributes[FEEDS]).value
    for argument, attributes in enumerate(_dictionaries(main, "arg_attrs")):
        if "tf.aliasing_output" in attributes:
            pairs.setdefault(mlir.IntegerAttr(attributes["tf.aliasing_output"]).value, argument)
    return pairs


def _free_donated(main: mlir.Operation) -> dict[int, int]:
    """Result -> argument that is donated to it and has no pin."""
    return {
        mlir.IntegerAttr(attributes["tf.aliasing_output"]).value: argument
        for argument, attributes in enumerate(_dictionaries(main, "arg_attrs"))
        if "tf.aliasing_output" in attributes
        and PIN not in attributes
        and KEY_WORDS not in attributes
    }


def state_arguments(main: mlir.Operation) -> frozenset[int]:
    """Numbers of the arguments that a result replaces in the next call: a step's state."""
    return frozenset(_same_storage(main).values())


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
    return replace(
        rule,
        factors=tuple(
            replace(factor, kind=NEED_REPLICATION)
            if index in whole or factor.kind == REDUCTION
            else factor
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
            if index not in several and factor.kind in (PASS_THROUGH, REDUCTION)
            else factor
            for index, factor in enumerate(rule.factors)
        ),
    )


def _core_rule(rule: FactorRule, operand_types: list[int], result_types: list[int]) -> CoreRule:
    def tensors(
        types: list[int], dims: tuple[tuple[tuple[int, ...], ...], ...]
    ) -> list[CoreTensor]:
        return [
            (type_id, [] if type_id == NO_TYPE else [list(factors) for factors in tensor])
            for type_id, tensor in zip(types, dims, strict=True)
        ]

    return (
        [(factor.size, factor.kind, factor.halo) for factor in rule.factors],
        tensors(operand_types, rule.operands),
        tensors(result_types, rule.results),
    )
