"""Keep arguments and results in the memory of the host, and move them where the device needs them.

before  func @main(%p, %m {tf.aliasing_output = 1}, %g) {
          %0 = stablehlo.custom_call @autoshard.in_host_memory(%m)
          %1 = stablehlo.add %0, %g
          %2 = stablehlo.subtract %p, %1
          return %2, %1
after   func @main(%p, %m {mhlo.memory_kind = "pinned_host", tf.aliasing_output = 1}, %g)
            -> (.., {mhlo.memory_kind = "pinned_host"}) {
          %0 = stablehlo.custom_call @annotate_device_placement(%m) {.. = "device"}
          %1 = stablehlo.add %0, %g
          %3 = stablehlo.custom_call @annotate_device_placement(%1) {.. = "pinned_host"}
          %2 = stablehlo.subtract %p, %1
          return %2, %3

Runs before planning, so that a search knows what the device's memory does not have to hold.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import IN_HOST_MEMORY, MHLO_SHARDING, STRATEGY
from autoshard.ir.boundary import entries_at, main_function, replaced_arguments
from autoshard.ir.host_memory import (
    COMPUTE_TYPE,
    DEVICE,
    PINNED_HOST,
    move,
    moved_to,
    run_on_device,
    runs_on_host,
    set_memory_kinds,
)
from autoshard.ir.reading import shape_of
from autoshard.passes.base import Pass
from autoshard.planned.write import mesh_of
from autoshard.rewrites.given_arguments import arguments_called
from autoshard.rewrites.offload_order import bring_together
from autoshard.sharding import (
    Mesh,
    Sharding,
    format_sharding,
    from_hlo,
    to_v2_results,
    tuple_from_hlo,
)


@dataclass(frozen=True)
class HostOffload(Pass):
    """Keep arguments and results in the memory of the host.

    Those that ``autoshard.in_host_memory`` marks, those that only ``autoshard.on_host`` reads, and
    those that are named. A result that replaces one of them stays there, too. Runs before planning.
    """

    name: ClassVar[str] = "autoshard-host-offload"

    arguments: tuple[str, ...] = ()
    """Arguments that live there besides those marked, by name (opt_state) or number."""

    marks: bool = True
    """Do marks count? false: what they mark stays on the device."""

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``.

        Raises:
            PlanError: An argument that is none, or a mark inside of a function or loop.
        """
        with module.context, mlir.Location.unknown():
            main = main_function(module)
            arguments, results = _read_marks(module, main, self.marks)
            arguments |= set(arguments_called(main, self.arguments, self.name))
            if self.marks:
                arguments |= _read_by_host(main)
            else:
                _run_on_device(module)
            if arguments or results:
                _offload(module, main, arguments, results)


def offload_planned(module: mlir.Module, arguments: Collection[int]) -> None:
    """Do the same to arguments of ``main`` of a module that is planned; the plan stays as it is.

    What is moved is cut in the memory of the host as on the device.

    Args:
        module: Planned, not exported, without calls.
        arguments: By number; none of them is on the host.
    """
    with module.context, mlir.Location.unknown():
        main = main_function(module)
        _offload(module, main, set(arguments), set())
        _Cuts(main, mesh_of(module)).write()


class _Cuts:
    """How moves, and the barriers between them, are cut: as what they take."""

    def __init__(self, main: mlir.Operation, mesh: Mesh) -> None:
        self.mesh, self.entries = mesh, entries_at(main, "arg_attrs")
        (self.block,) = main.regions[0].blocks

    def write(self) -> None:
        for op in (each.operation for each in self.block.operations):
            is_new = op.name == "stablehlo.optimization_barrier" or moved_to(op) is not None
            if not is_new or MHLO_SHARDING in op.attributes:
                continue
            cuts = [self._of(value) for value in op.operands]
            op.attributes[MHLO_SHARDING] = mlir.StringAttr.get(to_v2_results(cuts))
            if moved_to(op) is not None:
                (text,) = map(format_sharding, cuts)
                op.attributes[STRATEGY] = mlir.StringAttr.get(f"{text} -> {text}")

    def _of(self, value: mlir.Value) -> Sharding:
        rank = len(shape_of(value))
        if isinstance(value, mlir.BlockArgument):
            said = self.entries[mlir.BlockArgument(value).arg_number][MHLO_SHARDING]
            return from_hlo(mlir.StringAttr(said).value, self.mesh, rank)
        result = mlir.OpResult(value)
        maker = result.owner.operation
        text = mlir.StringAttr(maker.attributes[MHLO_SHARDING]).value
        if len(maker.results) == 1:
            return from_hlo(text, self.mesh, rank)
        ranks = [len(shape_of(result)) for result in maker.results]
        return tuple_from_hlo(text, self.mesh, ranks)[result.result_number]


def may_use_host(module: bytes) -> bool:
    """May a module, as bytecode, mark arguments or results, or let the host compute?"""
    return any(name.encode() in module for name in (IN_HOST_MEMORY, COMPUTE_TYPE))


def _read_marks(
    module: mlir.Module, main: mlir.Operation, are_kept: bool
) -> tuple[set[int], set[int]]:
    """Take the marks away; numbers of the arguments and results that they mark."""
    found: list[mlir.Operation] = []

    def visit(op: mlir.Operation) -> mlir.WalkResult:
        if op.name == "stablehlo.custom_call" and _target(op) == IN_HOST_MEMORY:
            found.append(op)
        return mlir.WalkResult.ADVANCE

    module.operation.walk(visit)
    (block,) = main.regions[0].blocks
    end = _terminator(block)
    arguments: set[int] = set()
    results: set[int] = set()
    # The last one first: what it marks may be marked twice.
    for mark in reversed(found):
        value, marked = mark.operands[0], mark.results[0]
        if are_kept and mark.block != block:
            raise PlanError(
                "autoshard.in_host_memory marks a value inside of a loop or of a function that is"
                " jitted by itself. Mark arguments and results of the function that is planned.",
                place(mark.location),
            )
        if are_kept:
            returned = {n for n, each in enumerate(end.operands) if each == marked}
            results |= returned
            if isinstance(value, mlir.BlockArgument):
                arguments.add(mlir.BlockArgument(value).arg_number)
            elif not returned:
                raise PlanError(
                    "autoshard.in_host_memory marks a value that is neither an argument nor a"
                    " result of the function that is planned. Mark one of these, or use"
                    " jax.checkpoint with an offloading policy for values in between.",
                    place(mark.location),
                )
        marked.replace_all_uses_with(value)
        mark.erase()
    return arguments, results


def _run_on_device(module: mlir.Module) -> None:
    def visit(op: mlir.Operation) -> mlir.WalkResult:
        if runs_on_host(op):
            run_on_device(op)
        return mlir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _read_by_host(main: mlir.Operation) -> set[int]:
    """Arguments that the host alone reads, in ops of ``main``."""
    found: set[int] = set()
    for number, argument in enumerate(main.regions[0].blocks[0].arguments):
        readers = [use.owner.operation for use in argument.uses]
        if _may_be_table(argument.type) and readers and all(map(runs_on_host, readers)):
            found.add(number)
    return found


def _may_be_table(type_: mlir.Type) -> bool:
    """Whether it has rank 2 or more and holds no indices, which are integers of 32 bits or more."""
    if not isinstance(type_, mlir.RankedTensorType) or type_.rank < 2:
        return False
    element = type_.element_type
    return not (isinstance(element, mlir.IntegerType) and element.width >= 32)


def _offload(
    module: mlir.Module, main: mlir.Operation, arguments: set[int], results: set[int]
) -> None:
    (block,) = main.regions[0].blocks
    for result, argument in replaced_arguments(main).items():
        if result in results or argument in arguments:
            results.add(result)
            arguments.add(argument)
    end = _terminator(block)
    for number in sorted(arguments):
        _move_to_device(block.arguments[number], end, results)
    for number in sorted(results):
        _move_to_host(end, number, arguments)
    bring_together(module, block)
    set_memory_kinds(main, "arg_attrs", arguments)
    set_memory_kinds(main, "res_attrs", results)


def _move_to_device(argument: mlir.Value, end: mlir.Operation, results: set[int]) -> None:
    """For all that the device computes of an argument; it may be returned as it is."""
    uses: list[tuple[mlir.Operation, int]] = []
    for use in argument.uses:
        reader = use.owner.operation
        is_returned = reader == end and use.operand_number in results
        if not (runs_on_host(reader) or moved_to(reader) is not None or is_returned):
            uses.append((reader, use.operand_number))
    if not uses:
        return
    first = _in_block(uses[0][0], end)
    for reader, _ in uses:
        other = _in_block(reader, end)
        if other != first and other.is_before_in_block(first):
            first = other
    where = mlir.InsertionPoint(first)
    moved = move(argument, DEVICE, where, argument.location).results[0]
    for reader, number in uses:
        reader.operands[number] = moved


def _move_to_host(end: mlir.Operation, number: int, arguments: set[int]) -> None:
    value = end.operands[number]
    if isinstance(value, mlir.BlockArgument) and mlir.BlockArgument(value).arg_number in arguments:
        return
    owner = value.owner
    if isinstance(owner, mlir.Block):
        where, why = mlir.InsertionPoint(end), end.location
    else:
        maker = owner.operation
        if moved_to(maker) == PINNED_HOST:
            return
        where, why = mlir.InsertionPoint.after(maker), maker.location
    end.operands[number] = move(value, PINNED_HOST, where, why).results[0]


def _in_block(op: mlir.Operation, end: mlir.Operation) -> mlir.Operation:
    """The op of the outermost block that ``op`` is, or is inside of."""
    while op.block != end.block:
        parent = op.parent
        assert parent is not None, "an op inside of main"
        op = parent.operation
    return op


def _target(op: mlir.Operation) -> str:
    return mlir.StringAttr(op.attributes["call_target_name"]).value


def _terminator(block: mlir.Block) -> mlir.Operation:
    return block.operations[len(block.operations) - 1].operation
