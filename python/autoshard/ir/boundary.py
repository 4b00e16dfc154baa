"""The outside of a module: its mesh, and what ``main`` says of its arguments and results."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from jaxlib.mlir import ir

from autoshard.errors import AutoshardError
from autoshard.ir.attributes import (
    ALIASING_OUTPUT,
    BUFFER_DONOR,
    ENABLE_ALLTOALL,
    FEEDS_ARGUMENT,
    INDIVISIBLE,
    KEY_WORDS,
    LAYOUT,
    MESH,
    MHLO_SHARDING,
    NUM_PARTITIONS,
    PIN,
    SAID_TRIPS,
    SDY_SHARDING,
)
from autoshard.ir.locations import place
from autoshard.ir.module import operations_of
from autoshard.ir.native import run_native

PAD = "pad"

_SAID_BY_USERS = frozenset(
    ("stablehlo.custom_call", "sdy.sharding_constraint", "sdy.manual_computation")
)
"""Ops whose pins come from marks, constraints and manual computations."""

_FOLLOW = (
    "builtin.module(sdy-lift-inlined-meshes, sdy-flatten-call-graph, sdy-add-data-flow-edges, "
    "sdy-add-func-data-flow-edges, sdy-apply-sharding-constraints, sdy-user-priority-propagate, "
    "func.func(sdy-sink-data-flow-edges, sdy-sink-func-data-flow-edges))"
)
"""Shardy's propagation without what it does to constants before and after."""

Side = Literal["arg_attrs", "res_attrs"]


def main_function(module: ir.Module) -> ir.Operation:
    """The function that is called from outside."""
    for op in module.body.operations:
        operation = op.operation
        if operation.name == "func.func" and _text(operation.attributes["sym_name"]) == "main":
            return operation
    raise AssertionError("JAX lowers every function to a module with a main")


def entries_at(function: ir.Operation, side: Side) -> list[ir.DictAttr]:
    """What stands at each argument or result of a function, to be read."""
    if side not in function.attributes:
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        count = len(type_.inputs if side == "arg_attrs" else type_.results)
        return [ir.DictAttr.get({}, function.context)] * count
    return list(map(ir.DictAttr, ir.ArrayAttr(function.attributes[side])))


def attributes_at(function: ir.Operation, side: Side) -> list[dict[str, ir.Attribute]]:
    """As ``entries_at``, in dictionaries that can be changed."""
    return [{named.name: named.attr for named in entry} for entry in entries_at(function, side)]


def set_mesh(module: ir.Module, mesh: str | None, device_count: int) -> None:
    """Say which mesh the module is planned for, if that is known, and for how many devices."""
    with module.context:
        attributes = module.operation.attributes
        if mesh is not None:
            attributes[MESH] = ir.StringAttr.get(mesh)
        attributes[NUM_PARTITIONS] = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(32), device_count
        )


def mesh_text(module: ir.Module) -> str:
    """The mesh of the plan."""
    return _text(module.operation.attributes[MESH])


def allow_all_to_all(module: ir.Module, is_allowed: bool) -> None:
    """Say whether reshards may use all-to-alls. Expects the module's context."""
    attributes = module.operation.attributes
    if not is_allowed:
        attributes[ENABLE_ALLTOALL] = ir.BoolAttr.get(False)
    elif ENABLE_ALLTOALL in attributes:
        del attributes[ENABLE_ALLTOALL]


def allows_all_to_all(module: ir.Module) -> bool:
    """Whether they may; a module that says nothing allows it."""
    attributes = module.operation.attributes
    return ENABLE_ALLTOALL not in attributes or ir.BoolAttr(attributes[ENABLE_ALLTOALL]).value


def pad_indivisible(module: ir.Module) -> None:
    """Let dims be cut that must be padded for it. Expects the module's context."""
    module.operation.attributes[INDIVISIBLE] = ir.StringAttr.get(PAD)


def pads_indivisible(module: ir.Module) -> bool:
    """Whether such dims may be cut inside of the program."""
    attributes = module.operation.attributes
    return INDIVISIBLE in attributes and _text(attributes[INDIVISIBLE]) == PAD


def pin(module: ir.Module, side: Side, texts: Mapping[int, str]) -> None:
    """Pin arguments or results of ``main``, by number, to ``mhlo.sharding`` texts."""
    if not texts:
        return
    main = main_function(module)
    with module.context:
        present = attributes_at(main, side)
        for number, text in texts.items():
            present[number][MHLO_SHARDING] = ir.StringAttr.get(text)
        main.attributes[side] = _array(present)


def constrain_arguments(module: ir.Module, texts: Mapping[int, str]) -> None:
    """Let all that reads an argument of ``main`` read it in a sharding of its own.

    Args:
        module: Gets ``sdy.sharding_constraint`` ops.
        texts: ``#sdy.sharding`` by number of the argument.
    """
    if not texts:
        return
    block = main_function(module).regions[0].blocks[0]
    with module.context:
        for number, text in texts.items():
            argument = block.arguments[number]
            held = ir.Operation.create(
                "sdy.sharding_constraint",
                results=[argument.type],
                operands=[argument],
                attributes={"sharding": ir.Attribute.parse(text)},
                loc=argument.location,
                ip=ir.InsertionPoint.at_block_begin(block),
            )
            argument.replace_all_uses_except(held.results[0], held)


def follow_arguments(module: ir.Module, texts: Mapping[int, str]) -> None:
    """Give values the shardings that follow from those of arguments, by Shardy's propagation.

    Shardy never moves a value to save bytes, so that what is computed from the batch stays cut
    like the batch. Results that replace an argument are as the argument; those that have a sharding
    keep it.

    Args:
        module: Its ops get ``sdy.sharding``.
        texts: ``#sdy.sharding`` of arguments of ``main``, by number; those that have a sharding
            keep it.
    """
    main = main_function(module)
    with module.context:
        arguments, results = attributes_at(main, "arg_attrs"), attributes_at(main, "res_attrs")
        for number, text in texts.items():
            if MHLO_SHARDING not in arguments[number]:
                arguments[number][SDY_SHARDING] = ir.Attribute.parse(text)
        for attributes in results:
            if FEEDS_ARGUMENT in attributes and MHLO_SHARDING not in attributes:
                argument = arguments[ir.IntegerAttr(attributes[FEEDS_ARGUMENT]).value]
                if SDY_SHARDING in argument:
                    attributes[SDY_SHARDING] = argument[SDY_SHARDING]
        main.attributes["arg_attrs"] = _array(arguments)
        main.attributes["res_attrs"] = _array(results)
    with warnings.catch_warnings():
        # marks have no rule, and what they say is a pin of its own
        warnings.filterwarnings("ignore", ".*unknown to SDY sharding rule registry")
        run_native(module, _FOLLOW)
    with module.context:
        results = attributes_at(main, "res_attrs")
        for attributes in results:
            if MHLO_SHARDING in attributes:
                attributes.pop(SDY_SHARDING, None)
        main.attributes["res_attrs"] = _array(results)


def free_values(
    module: ir.Module,
    is_freed: Callable[[ir.Attribute, tuple[ir.Type, ...]], bool],
    *,
    inside: bool,
) -> None:
    """Take ``sdy.sharding`` off results of ``main`` of which ``is_freed`` is true.

    Args:
        module: After ``follow_arguments``.
        is_freed: Of a sharding and the types of what it is of.
        inside: Off ops as well.
    """

    def visit(op: ir.Operation) -> ir.WalkResult:
        attributes = op.attributes
        if SDY_SHARDING in attributes:
            types = tuple(result.type for result in op.results)
            if is_freed(attributes[SDY_SHARDING], types):
                del attributes[SDY_SHARDING]
        return ir.WalkResult.ADVANCE

    if inside:
        module.operation.walk(visit)
    main = main_function(module)
    with module.context:
        results = attributes_at(main, "res_attrs")
        types = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
        for attributes, type_ in zip(results, types, strict=True):
            if SDY_SHARDING in attributes and is_freed(attributes[SDY_SHARDING], (type_,)):
                del attributes[SDY_SHARDING]
        main.attributes["res_attrs"] = _array(results)


def tied_arguments(module: ir.Module) -> dict[int, int]:
    """Result -> argument of ``main`` for the pairs that ``tie_donated`` made."""
    arguments = entries_at(main_function(module), "arg_attrs")
    return {
        ir.IntegerAttr(attributes[ALIASING_OUTPUT]).value: number
        for number, attributes in enumerate(arguments)
        if ALIASING_OUTPUT in attributes
    }


def replaced_arguments(main: ir.Operation) -> dict[int, int]:
    """Result -> argument that it becomes in the next call, or else that is donated to it."""
    return replaced_by(entries_at(main, "arg_attrs"), entries_at(main, "res_attrs"))


def replaced_by(arguments: Sequence[ir.DictAttr], results: Sequence[ir.DictAttr]) -> dict[int, int]:
    """As ``replaced_arguments``, of what stands at the arguments and results of ``main``."""
    pairs: dict[int, int] = {}
    for number, attributes in enumerate(results):
        if FEEDS_ARGUMENT in attributes:
            pairs[number] = ir.IntegerAttr(attributes[FEEDS_ARGUMENT]).value
    for number, attributes in enumerate(arguments):
        if ALIASING_OUTPUT in attributes:
            pairs.setdefault(ir.IntegerAttr(attributes[ALIASING_OUTPUT]).value, number)
    return pairs


def tie_donated(module: ir.Module) -> None:
    """Pair each donated argument with a result of its type, so that planning splits both alike.

    before  %arg0: tensor<8xf32> {jax.buffer_donor = true}
    after   %arg0: tensor<8xf32> {tf.aliasing_output = 0 : i32}

    Results in order take donated arguments in order, as JAX pairs them where all shardings are
    known. Here they are not yet, and JAX leaves the choice to XLA, which finds a pair only if the
    shardings agree by chance.
    """
    main = main_function(module)
    with module.context:
        function = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        arguments = attributes_at(main, "arg_attrs")
        donors: dict[ir.Type, list[int]] = defaultdict(list)
        for number, (attributes, type_) in enumerate(zip(arguments, function.inputs, strict=True)):
            if BUFFER_DONOR in attributes:
                donors[type_].append(number)
        if not donors:
            return
        i32 = ir.IntegerType.get_signless(32)
        for number, type_ in enumerate(function.results):
            if donors[type_]:
                attributes = arguments[donors[type_].pop(0)]
                del attributes[BUFFER_DONOR]
                attributes[ALIASING_OUTPUT] = ir.IntegerAttr.get(i32, number)
        main.attributes["arg_attrs"] = _array(arguments)


def with_attribute(
    main: ir.Operation, side: Side, name: str, value: ir.Attribute, numbers: Collection[int]
) -> None:
    """Give some arguments or results of ``main`` an attribute."""
    if not numbers:
        return
    with main.context:
        present = attributes_at(main, side)
        for number in numbers:
            present[number][name] = value
        main.attributes[side] = _array(present)


def feed_back(module: ir.Module, arguments: Mapping[int, int]) -> None:
    """Say which argument each result becomes in the next call: result number -> argument number."""
    if not arguments:
        return
    main = main_function(module)
    with module.context:
        i64 = ir.IntegerType.get_signless(64)
        results = attributes_at(main, "res_attrs")
        for number, argument in arguments.items():
            results[number][FEEDS_ARGUMENT] = ir.IntegerAttr.get(i64, argument)
        main.attributes["res_attrs"] = _array(results)


def unpin(module: ir.Module, arguments: Collection[int], results: Collection[int]) -> None:
    """Take away all pins but those of these arguments and results of ``main``, and of marks.

    For pins that a mode made, not the user: passes that run later may move what they pin.
    """

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name not in _SAID_BY_USERS and PIN in op.attributes:
            del op.attributes[PIN]
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    main = main_function(module)
    with module.context:
        kept_of: dict[Side, Collection[int]] = {"arg_attrs": arguments, "res_attrs": results}
        for side, kept in kept_of.items():
            present = attributes_at(main, side)
            for number, attributes in enumerate(present):
                if number not in kept:
                    attributes.pop(PIN, None)
            main.attributes[side] = _array(present)


def keep_keys_whole(module: ir.Module, side: Side, words: Mapping[int, int]) -> None:
    """Say which arguments or results of ``main`` are PRNG keys: number -> dims of one key."""
    if not words:
        return
    main = main_function(module)
    with module.context:
        i64 = ir.IntegerType.get_signless(64)
        present = attributes_at(main, side)
        for number, count in words.items():
            present[number][KEY_WORDS] = ir.IntegerAttr.get(i64, count)
        main.attributes[side] = _array(present)


def untie_unequal(module: ir.Module, sharding: str = MHLO_SHARDING) -> None:
    """Leave the choice to XLA again for pairs that are split differently; it refuses such a pair.

    A plan has some only where the user pinned both.

    Args:
        module: Changed in place.
        sharding: The attribute that says how arguments and results are split.
    """
    main = main_function(module)
    with module.context:
        arguments, results = attributes_at(main, "arg_attrs"), attributes_at(main, "res_attrs")
        for attributes in arguments:
            if ALIASING_OUTPUT not in attributes:
                continue
            result = results[ir.IntegerAttr(attributes[ALIASING_OUTPUT]).value]
            if result.get(sharding) != attributes.get(sharding):
                del attributes[ALIASING_OUTPUT]
                attributes[BUFFER_DONOR] = ir.BoolAttr.get(True)
        main.attributes["arg_attrs"] = _array(arguments)


def _array(attributes: list[dict[str, ir.Attribute]]) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([ir.DictAttr.get(found) for found in attributes])


def say_trips(module: ir.Module, trips: int | None) -> None:
    """Say how often loops run whose trips the program does not tell; None: nothing is said."""
    if trips is None:
        return
    with module.context:
        count = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), trips)
        for op in operations_of(module.operation):
            if op.name == "stablehlo.while":
                op.attributes[SAID_TRIPS] = count


def mark_texts(module: ir.Module, target: str) -> list[str]:
    """The ``autoshard.layout`` of every custom call to ``target``, in the order of a walk."""
    return [_text(op.attributes[LAYOUT]) for op in _calls(module, target)]


def check_marks(module: ir.Module, target: str, check: Callable[[str], None]) -> None:
    """Give every mark's text to ``check``; what it raises gets the mark's place."""
    for op in _calls(module, target):
        try:
            check(_text(op.attributes[LAYOUT]))
        except AutoshardError as error:
            raise type(error)(error.message, place(op.location)) from error


def rewrite_marks(module: ir.Module, target: str, rewrite: Callable[[str], str]) -> None:
    """Replace the ``autoshard.layout`` of every custom call to ``target``."""
    with module.context:
        for op in _calls(module, target):
            text = rewrite(_text(op.attributes[LAYOUT]))
            op.attributes[LAYOUT] = ir.StringAttr.get(text)


def _calls(module: ir.Module, target: str) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        is_call = op.name == "stablehlo.custom_call"
        if is_call and _text(op.attributes["call_target_name"]) == target:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _text(attribute: ir.Attribute) -> str:
    return ir.StringAttr(attribute).value
