"""From a module to the core's ``Program``.

Ops are read in the order in which they run, those of callees and loops where they are called:

    block_reader       plain ops, one after the other; it asks the others for ops that are not
    control_flow       calls, loops, branches
    identities         barriers, constraints, marks
    host_moves         moves to the memory of the host and back
    whole_ops          composites, manual computations
    main_values        arguments and results of main

They say it of ``values``. Types of these are in ``value_types``, pins in ``pinned_values``, rules
of ops in ``core_rules``, casts that compilers add before matmuls in ``matmul_precision``. What
comes out is an ``imported_program``.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import _core
from autoshard.compilers.compiler import Compiler
from autoshard.errors import ImportModuleError
from autoshard.importer.block_reader import BlockReader
from autoshard.importer.control_flow import ControlFlow
from autoshard.importer.core_rules import RuleTable
from autoshard.importer.given_strategies import GivenStrategies
from autoshard.importer.host_moves import HostMoves
from autoshard.importer.host_stacks import PLACED, host_stacks
from autoshard.importer.host_values import ValuesOnHost
from autoshard.importer.identities import Identities
from autoshard.importer.imported_program import FunctionValues, ImportedProgram, RoundedOperand
from autoshard.importer.main_values import MainArguments, in_any_order, read_arguments, read_results
from autoshard.importer.matmul_precision import MatmulPrecision
from autoshard.importer.pinned_values import PinnedValues
from autoshard.importer.pins import core_pin
from autoshard.importer.rules import is_between_stages
from autoshard.importer.value_types import TypeTable
from autoshard.importer.values import Values
from autoshard.importer.whole_ops import WholeOps
from autoshard.ir import mlir
from autoshard.ir.attributes import (
    MARK,
    MHLO_SHARDING,
    PIPELINE_STAGE,
    SDY_SHARDING,
    SDY_SHARDING_RULE,
    STRATEGY,
)
from autoshard.ir.boundary import (
    allows_all_to_all,
    pads_indivisible,
)
from autoshard.ir.host_memory import PLACEMENT
from autoshard.ir.module import operations_of, structure_of
from autoshard.kernels.calls import kernel_call
from autoshard.sharding import Mesh

_SAYING = (SDY_SHARDING_RULE, STRATEGY, SDY_SHARDING, MHLO_SHARDING)
"""Attributes that say how an op is split; an op that keeps its device needs no rule."""


def import_program(
    module: mlir.Module,
    mesh: Mesh,
    *,
    unknown_trip_count: int = 100,
    keep_strategies: bool = True,
    operations: Sequence[mlir.Operation] | None = None,
    rules: RuleTable | None = None,
    compiler: Compiler | None = None,
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
        rules: Of another module of the same context, which is nearly the same; what else this one
            takes is added.
        compiler: What will compile the module: it may read operands of matmuls in a narrower type.
            None: nothing is known of it.

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
    padded_to = mesh.size if pads_indivisible(module) else 1
    if rules is None or rules.types.padded_to != padded_to:
        rules = RuleTable(TypeTable(padded_to))
    precision = MatmulPrecision.of(compiler)
    importer = _Importer(
        module, operations, mesh, rules, unknown_trip_count, keep_strategies, precision
    )
    return importer.read()


class _Importer:
    """The tables that a program is read into, and those who read it."""

    def __init__(
        self,
        module: mlir.Module,
        operations: Sequence[mlir.Operation],
        mesh: Mesh,
        rules: RuleTable,
        unknown_trip_count: int,
        keep_strategies: bool,
        precision: MatmulPrecision,
    ) -> None:
        self._module = module
        self._operations = operations
        self._mesh = mesh
        self._keep_strategies = keep_strategies

        structure = structure_of(module)
        self._has_host = PLACEMENT.encode() in structure
        self._builder = _core.ProgramBuilder(structure)
        assert self._builder.num_module_ops == len(operations)

        self._types = rules.types
        self._rules = rules
        self._pins = PinnedValues(self._builder, self._types, mesh)
        stacks = host_stacks(module, operations) if self._has_host else ()
        self._host = ValuesOnHost(self._builder, stacks)
        self._values = Values(operations, self._builder, self._types, self._pins, self._host)

        strategies = GivenStrategies(self._builder, self._pins, mesh) if keep_strategies else None
        self._reader = BlockReader(
            operations,
            self._builder,
            self._values,
            self._pins,
            self._types,
            self._rules,
            strategies,
            precision,
        )
        self._flow = ControlFlow(
            operations,
            self._builder,
            self._values,
            self._host,
            self._reader,
            unknown_trip_count,
        )

    def read(self) -> ImportedProgram:
        """The program, from ``main`` on."""
        number = self._flow.main()
        main = self._operations[number]
        arguments = read_arguments(main, self._values, self._pins)
        self._register_handlers(arguments)
        returned = self._flow.body(number, arguments.values, 1.0)
        results = read_results(main, arguments, returned, self._values, self._pins)
        return self._imported(main, arguments, results)

    def _register_handlers(self, arguments: MainArguments) -> None:
        """Say who reads what is not plain."""
        operations, builder, values = self._operations, self._builder, self._values
        flow, reader = self._flow, self._reader
        identities = Identities(operations, builder, values, self._pins, arguments.free)
        whole = WholeOps(operations, builder, values, self._pins, reader)
        moves = HostMoves(operations, builder, values, self._types, self._host, reader)
        reader.register(
            {
                "func.call": flow.call,
                "stablehlo.while": flow.loop,
                "stablehlo.case": flow.branches,
                "stablehlo.if": flow.branches,
                "stablehlo.optimization_barrier": identities.barrier,
                "sdy.sharding_constraint": identities.constraint,
                "stablehlo.composite": whole.composite,
                "sdy.manual_computation": whole.manual_computation,
            },
            of_targets={
                "Sharding": identities.constraint,
                MARK: identities.mark if self._keep_strategies else identities.planned_mark,
                PIPELINE_STAGE: identities.constraint,
                PLACEMENT: moves.move,
            },
        )
        if self._has_host:
            # Stacks are known by the loops that carry them, not by their operands.
            placed = {} if self._host.stacks else PLACED
            reader.register(dict.fromkeys(PLACED, moves.placed), placed=placed)

    def _imported(
        self, main: mlir.Operation, arguments: MainArguments, results: list[int]
    ) -> ImportedProgram:
        builder, operations, rules = self._builder, self._operations, self._rules
        # The builder has these until it gives the program away.
        op_rules, are_free = builder.op_rules, builder.are_free
        types, types_of_values = self._types.all, builder.types
        shapes, bits = [type_.shape for type_ in types], [type_.bits for type_ in types]
        core_ops = [operations[number] for number in builder.read_ops]
        read_values = builder.result_values
        rounded = {
            one.op: RoundedOperand(
                one.source,
                one.result,
                self._types.rounded_type(types_of_values[one.result]),
                one.position,
            )
            for one in builder.rounded_operands
        }
        unread_casts = builder.unread_casts
        # Alike are casts with one rule, which is of their types.
        op_classes = builder.op_classes
        for number in rounded:
            op_classes[number] = ~op_rules[number]
        whole = {n for n, rule in enumerate(rules.rules) if not any(map(_may_be_cut, rule.factors))}
        one_device_ops = self._reader.on_one_device([number for number, _ in read_values])
        result_classes, op_locations = builder.result_classes, builder.op_locations
        program = self._program(arguments, results)
        return ImportedProgram(
            program=program,
            module=self._module,
            mesh=self._mesh,
            operations=operations,
            read=builder.take_module(),
            core_ops=core_ops,
            result_values=[(operations[number], values) for number, values in read_values],
            functions=[*self._flow.called, FunctionValues(main, arguments.values, results)],
            pins=self._pins.all,
            assumed_loops=self._flow.assumed_loops,
            replicated_ops=[
                op
                for op, rule in zip(core_ops, op_rules, strict=True)
                if rule in whole and _needs_rule(op, rules.rules[rule])
            ],
            value_shapes=[shapes[number] for number in types_of_values],
            value_bits=[bits[number] for number in types_of_values],
            value_is_free=are_free,
            pads=pads_indivisible(self._module),
            unread_casts=unread_casts,
            matrix_ops=[op for op, rule in enumerate(op_rules) if rule in rules.of_matrix_ops],
            host=self._host.found(),
            state=frozenset(arguments.replaced.values()),
            op_classes=op_classes,
            result_classes=result_classes,
            op_locations=op_locations,
            rules=rules,
            rounded=rounded,
            one_device_ops=one_device_ops,
            manual=tuple(self._reader.manual),
        )

    def _program(self, arguments: MainArguments, results: list[int]) -> _core.Program:
        early = self._host.first_copied_back(lambda v: self._values.type_of(v).total_bits)
        return self._builder.program(
            axis_sizes=[axis.size for axis in self._mesh.axes],
            types=self._types.core_types(),
            rules=self._rules.rules,
            pins=[core_pin(pinned) for pinned in self._pins.all],
            loops=self._flow.loops,
            arguments=[
                _core.Argument(value, index in arguments.donated)
                for index, value in enumerate(arguments.values)
            ],
            results=results,
            early=early,
            any_order=in_any_order(arguments, results),
            all_to_all=allows_all_to_all(self._module),
        )


def _may_be_cut(factor: _core.Factor) -> bool:
    return factor.kind != _core.FactorKind.NEED_REPLICATION


def _needs_rule(op: mlir.Operation, rule: _core.Rule) -> bool:
    """Whether an op has elements that could be split, and nobody says how."""
    if rule.factors:
        call = kernel_call(op)
        return call is not None and call.is_unproven
    if any(name in op.attributes for name in _SAYING) or is_between_stages(op):
        return False
    types = [v.type for v in op.results if isinstance(v.type, mlir.RankedTensorType)]
    return not types or any(0 not in mlir.RankedTensorType(type_).shape for type_ in types)
