"""What all planning passes share: the rules they read, and the attributes they write.

A plan is ``autoshard.mesh`` on the module, ``mhlo.sharding`` on every value and
``autoshard.strategy`` on every op with a rule; docs/use/passes.md has examples.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from autoshard import _core
from autoshard.errors import ShardingError, StrategyError
from autoshard.importer.imported_program import NO_VALUE, FunctionValues, ImportedProgram
from autoshard.importer.kernels import why_whole
from autoshard.ir import mlir, place, warn
from autoshard.ir.attributes import (
    CUSTOM_PARTITIONING,
    MESH,
    MHLO_SHARDING,
    PIN,
    PLAN,
    RESHARDED_BYTES,
    ROUNDED,
    STRATEGY,
    custom_call_target,
    text_of,
)
from autoshard.ir.locations import LIBRARIES
from autoshard.ir.lowering import user_line
from autoshard.ir.module import operations_to_plan
from autoshard.ir.native import nested, run_native
from autoshard.ir.types import tensor_bytes
from autoshard.kernels.calls import is_opaque_kernel, kernel_call
from autoshard.kernels.cudnn_attention import is_cudnn_attention
from autoshard.kernels.mosaic import is_tpu_kernel
from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.sharding import Mesh, Sharding, format_sharding, to_v2

_POPULATE = nested(("builtin.module", "func.func"), "sdy-populate-op-sharding-rules")
_DROP = nested(("builtin.module", "func.func"), "sdy-drop-sharding-rules")


def mesh_of(module: mlir.Module) -> Mesh:
    """The mesh that ``autoshard-import-strategies`` or ``--mesh`` wrote on the module."""
    attributes = module.operation.attributes
    if MESH not in attributes:
        raise ShardingError(
            "the module has no autoshard.mesh. Run autoshard-import-strategies first, or give "
            "--mesh=dp=2,tp=4.",
            place(module.operation.location),
        )
    return Mesh.parse(text_of(attributes[MESH], MESH, module.operation))


def populate_rules(module: mlir.Module) -> None:
    """Write Shardy's factor rule on every op that has one."""
    with warnings.catch_warnings():
        # marks have no rule and need none; custom calls without one are reported by write_plan
        warnings.filterwarnings("ignore", ".*unknown to SDY sharding rule registry")
        run_native(module, _POPULATE, verify=False)


def remove_rules(module: mlir.Module) -> None:
    """Take the factor rules away again: they are ours to read, not a part of the program.

    Also those in functions that are not planned, as the decomposition of a composite: XLA fails on
    a module that still has some.
    """
    run_native(module, _DROP, verify=False)


def explain(imported: ImportedProgram, error: _core.Contradiction) -> StrategyError:
    """The core's contradiction in the user's terms: the lines, the pins, the way out."""
    message, op_index, value = error.args
    if value >= 0:
        pins = [pin for pin in imported.pins if pin.value == value]
        if len(pins) == 1:
            return StrategyError(
                f"no axes of the mesh {imported.mesh} split a value as pinned: {pins[0].text}. "
                "Choose other numbers of blocks, or a mesh with smaller axes.",
                pins[0].place,
            )
        listed = " and ".join(f"{pin.text} at {pin.place}" for pin in pins)
        return StrategyError(
            f"pins contradict on one value: {listed}. Remove one, or reshard between them "
            "with jax.lax.with_sharding_constraint.",
            pins[-1].place,
        )
    if op_index >= 0:
        op = imported.core_ops[op_index]
        padded = (
            " A dim in uneven parts can only be cut by ops that go through it element by element"
            " or reduce it."
            if imported.pads
            else ""
        )
        return StrategyError(
            f"{op.name}: no way to split the op fits its pinned operands "
            f"({_operands_text(imported, op)}): dims that are contracted or matched with each "
            "other must be split by the same axes, and no axis may split two dims."
            f"{padded} Change one of the strategies.",
            place(op.location),
        )
    listed = "; ".join(f"{pin.text} at {pin.place}" for pin in imported.pins[:8])
    return StrategyError(f"{message}: {listed}. Remove or change one of them.")


def _operands_text(imported: ImportedProgram, op: mlir.Operation) -> str:
    """Types of the operands and, where they are marked, their pins."""
    parts: list[str] = []
    for operand in op.operands:
        owner = operand.owner
        pin = ""
        if isinstance(owner, mlir.OpView | mlir.Operation):
            attributes = owner.operation.attributes
            if PIN in attributes:
                pin = f" as {mlir.StringAttr(attributes['autoshard.pin']).value}"
        parts.append(f"{operand.type}{pin}")
    return ", ".join(parts)


def write_plan(
    module: mlir.Module,
    imported: ImportedProgram,
    plan: _core.CorePlan,
    mesh: Mesh | None = None,
    written: _core.CorePlan | None = None,
) -> None:
    """Write ``mhlo.sharding`` on every value and ``autoshard.strategy`` on every op.

    Args:
        module: What was imported.
        imported: The program that was planned.
        plan: Its plan.
        mesh: Whose axes the plan's shardings count; None: those of the imported program.
        written: A plan on the same mesh that the module has already; only what differs is written.
    """
    texts = _Texts(mesh or imported.mesh, plan.shardings)
    value_sharding = plan.value_sharding
    stays = _Unchanged(plan, written)
    hlo = {index: mlir.StringAttr.get(texts.hlo(index)) for index in set(value_sharding)}
    # By value; the last entry is that of NO_VALUE.
    attributes = [hlo[index] for index in value_sharding]
    attributes.append(mlir.StringAttr.get("{replicated}"))

    tuples: dict[tuple[mlir.Attribute, ...], mlir.Attribute] = {}
    is_same = stays.is_same
    keeps_device = imported.one_device_ops
    for number, (op, values) in enumerate(imported.result_values):
        if len(values) == 1:
            # Nearly all ops, and after another plan nearly all of them stay as they are.
            value = values[0]
            if not (is_same[value] or number in keeps_device):
                op.attributes[MHLO_SHARDING] = attributes[value]
            continue
        if number in keeps_device or all(is_same[value] for value in values):
            continue
        key = tuple(attributes[value] for value in values)
        if key not in tuples:
            parts = ", ".join(mlir.StringAttr(attribute).value for attribute in key)
            tuples[key] = mlir.StringAttr.get(f"{{{parts}}}")
        op.attributes[MHLO_SHARDING] = tuples[key]
    strategies = plan.strategies
    written_as: dict[int, mlir.Attribute] = {}
    _write_rounded(imported, plan, texts)
    core_ops, rounded = imported.core_ops, imported.rounded
    for number, index in stays.changed_strategies(plan.op_strategy):
        if number in rounded:
            continue
        known = written_as.get(index)
        if known is None:
            known = mlir.StringAttr.get(texts.strategy(*strategies[index]))
            written_as[index] = known
        core_ops[number].attributes[STRATEGY] = known
    _write_unread_casts(imported, plan, texts)
    entries: dict[tuple[mlir.Attribute | None, mlir.Attribute], mlir.Attribute] = {}
    for function in imported.functions:
        _write_function(function, attributes, is_same, entries)
    module.operation.attributes[RESHARDED_BYTES] = mlir.FloatAttr.get_f64(plan.resharded_bytes)
    if imported.replicated_ops:
        _warn_of_replicated(imported, plan)
    if imported.assumed_loops:
        count = len(imported.assumed_loops)
        warn(
            f"{count} loop{'s' if count > 1 else ''} without a known trip count"
            f" {'are' if count > 1 else 'is'} counted as the option trip-count says, first at"
            f" {imported.assumed_loops[0]}{_where_it_is_planned(imported.assumed_loops[0])}. Give"
            " how often they run: trip_count= of autoshard.plan and autoshard.jit."
        )


def _where_it_is_planned(first: str) -> str:
    """For a loop of whose call stack only frames of libraries are known: the user's line."""
    line = user_line() if any(part in first for part in LIBRARIES) else None
    is_python = line is not None and line.rpartition(":")[0].endswith(".py")
    return f" in what {line} plans" if is_python else ""  # a command has no line


def forget_plan(module: mlir.Module) -> None:
    """Remove what another plan said of the whole, and of casts that are no ops of the module."""
    del module.operation.attributes[PLAN]
    for op in operations_to_plan(module.operation):
        if ROUNDED in op.attributes:
            del op.attributes[ROUNDED]


def _write_rounded(imported: ImportedProgram, plan: _core.CorePlan, texts: _Texts) -> None:
    """Write ``autoshard.rounded`` on matmuls whose operands the compiler casts."""
    strategies, of_op, of_value = plan.strategies, plan.op_strategy, plan.value_sharding
    said: dict[int, tuple[mlir.Operation, list[str]]] = {}
    for number, one in imported.rounded.items():
        op = imported.core_ops[number]
        _, entries = said.setdefault(id(op), (op, [""] * len(op.operands)))
        operands, results = strategies[of_op[number]]
        entries[one.position] = texts.strategy(operands, (*results, of_value[one.result]))
    for op, entries in said.values():
        op.attributes[ROUNDED] = mlir.ArrayAttr.get(list(map(mlir.StringAttr.get, entries)))


def _write_unread_casts(imported: ImportedProgram, plan: _core.CorePlan, texts: _Texts) -> None:
    """Cut casts that are rounded back as they are read: to the core nothing reads them, and any
    way to cut them costs nothing. Results of functions are cut as the plan says."""
    returned = {value for function in imported.functions for value in function.results}
    for one in imported.unread_casts:
        if one.result in returned:
            continue
        op = imported.core_ops[one.cast]
        cut = plan.strategies[plan.op_strategy[one.reader]][0][one.position]
        op.attributes[STRATEGY] = mlir.StringAttr.get(texts.strategy((cut,), (cut,)))
        op.attributes[MHLO_SHARDING] = mlir.StringAttr.get(texts.hlo(cut))


class _Unchanged:
    """What a plan has in common with the one that is written."""

    def __init__(self, plan: _core.CorePlan, written: _core.CorePlan | None) -> None:
        new = plan.value_sharding
        self.is_same = [False] * (len(new) + 1)
        """One entry for each value; the last is that of ``NO_VALUE``."""
        self.old_strategy: Sequence[int] | None = None
        if written is None:
            return
        known = {repr(sharding): index for index, sharding in enumerate(written.shardings)}
        known_as = [known.get(repr(sharding), -2) for sharding in plan.shardings]
        self.is_same = [
            known_as[now] == before for now, before in zip(new, written.value_sharding, strict=True)
        ]
        self.is_same.append(True)

        def in_old(sides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple(
                tuple(NO_VALUE if index == NO_VALUE else known_as[index] for index in side)
                for side in sides
            )

        strategies = {
            tuple(map(tuple, sides)): index for index, sides in enumerate(written.strategies)
        }
        self.strategy_as = [strategies.get(in_old(sides), -1) for sides in plan.strategies]
        self.old_strategy = written.op_strategy

    def changed_strategies(self, op_strategy: Sequence[int]) -> Iterable[tuple[int, int]]:
        """(op, strategy) of all ops that have another one than before."""
        if self.old_strategy is None:
            return enumerate(op_strategy)
        strategy_as = self.strategy_as
        return [
            (op, now)
            for op, (now, before) in enumerate(zip(op_strategy, self.old_strategy, strict=True))
            if strategy_as[now] != before
        ]


def _warn_of_replicated(imported: ImportedProgram, plan: _core.CorePlan) -> None:
    """Ops without a rule: what they cost, and what would give them one."""
    ops = imported.replicated_ops
    calls = [op for op in ops if custom_call_target(op) == CUSTOM_PARTITIONING]
    if calls:
        warn(
            f"{len(calls)} calls of custom_partitioning have no rule and run replicated. Give"
            " def_partition a sharding_rule; JAX hands it on where Shardy is the partitioner.",
            calls[0].location,
        )
    kernels = [op for op in ops if _is_kernel(op)]
    if kernels:
        first = next((op for op in kernels if is_tpu_kernel(op)), None)
        why = "" if first is None else f": {why_whole(first)}"
        warn(
            f"{len(kernels)} kernels run whole on every device{_cost(kernels, imported, plan)},"
            f" with {bytes_text(_whole_bytes(kernels))} of operands and results: nothing of them"
            f" was proven to be what devices may share (docs/design/kernels.md){why}. Say how they"
            " may be cut with autoshard.kernel, call them in jax.shard_map, or give a call that"
            " computes blocks as it is a rule with autoshard.register_rule.",
            (first or kernels[0]).location,
        )
    others = [
        op for op in ops if op not in kernels and custom_call_target(op) != CUSTOM_PARTITIONING
    ]
    if others:
        warn(
            f"{len(others)} ops have no factor rule and run replicated, first"
            f" {_op_text(others[0])}{_cost(others, imported, plan)}. Attach a rule with"
            " autoshard.register_rule.",
            others[0].location,
        )


def _is_kernel(op: mlir.Operation) -> bool:
    return (
        is_tpu_kernel(op)
        or is_cudnn_attention(op)
        or is_opaque_kernel(op)
        or kernel_call(op) is not None
    )


def _cost(ops: Sequence[mlir.Operation], imported: ImportedProgram, plan: _core.CorePlan) -> str:
    """``, 3.1 ms of 9 ms``; nothing where plans have no seconds."""
    if not plan.step_seconds:
        return ""
    seconds, trips = plan.op_seconds, imported.program.op_trips
    wanted = set(ops)
    spent = sum(
        seconds[number] * trips[number]
        for number, op in enumerate(imported.core_ops)
        if op in wanted
    )
    return f", {seconds_text(spent)} of {seconds_text(plan.step_seconds)}"


def _whole_bytes(ops: Sequence[mlir.Operation]) -> float:
    values = [value for op in ops for value in (*op.operands, *op.results)]
    return sum(tensor_bytes(value.type) for value in values)


def _op_text(op: mlir.Operation) -> str:
    target = custom_call_target(op)
    return op.name if target is None else f"{op.name} @{target}"


class _Texts:
    """The texts of a plan's shardings, each made once."""

    def __init__(self, mesh: Mesh, shardings: Sequence[Sequence[Sequence[int]]]) -> None:
        names = mesh.axis_names
        self.shardings = [
            Sharding.named(mesh, *(tuple(names[axis] for axis in axes) for axes in dims))
            for dims in shardings
        ]
        self.texts: dict[int, str] = {NO_VALUE: "[]"}

    def text(self, index: int) -> str:
        known = self.texts.get(index)
        if known is None:
            known = self.texts[index] = format_sharding(self.shardings[index])
        return known

    def hlo(self, index: int) -> str:
        return to_v2(self.shardings[index])

    def strategy(self, operands: Iterable[int], results: Iterable[int]) -> str:
        def side(indices: Iterable[int]) -> str:
            return ", ".join([self.text(index) for index in indices])

        return f"{side(operands)} -> {side(results)}"


def _write_function(
    function: FunctionValues,
    shardings: Sequence[mlir.Attribute],
    is_same: Sequence[bool],
    known: dict[tuple[mlir.Attribute | None, mlir.Attribute], mlir.Attribute],
) -> None:
    """Write the sharding of every argument and result.

    Args:
        function: What to write on.
        shardings: Of every value.
        is_same: Of every value, whether the function has its sharding already.
        known: Entries with a sharding, by the entry before and the sharding.
    """
    for name, values in (("arg_attrs", function.arguments), ("res_attrs", function.results)):
        if all(is_same[value] for value in values):
            continue
        attributes = function.op.attributes
        old: Sequence[mlir.Attribute] = (
            list(mlir.ArrayAttr(attributes[name])) if name in attributes else []
        )
        entries: list[mlir.Attribute] = []
        for index, value in enumerate(values):
            before = old[index] if old else None
            if before is not None and is_same[value]:
                entries.append(before)
                continue
            key = (before, shardings[value])
            entry = known.get(key)
            if entry is None:
                named = {} if before is None else {n.name: n.attr for n in mlir.DictAttr(before)}
                entry = mlir.DictAttr.get({**named, MHLO_SHARDING: shardings[value]})
                known[key] = entry
            entries.append(entry)
        attributes[name] = mlir.ArrayAttr.get(entries)
