"""Gather what the user fixed, whatever form it came in, as ``autoshard.pin``.

before  %0 = stablehlo.add %a, %b {autoshard.in_strategy = ["(4, 1)", "[{dp}, {tp}]"]} ..
        %1 = stablehlo.custom_call @autoshard.mark(%0)
             {autoshard.layout = "mesh[dp=2,sp=2,mp=2] [{mp}, {sp, dp}]", autoshard.role = "in", ..}
        %3 = sdy.sharding_constraint %2 <@mesh, [{"dp"}, {?}]>
after   autoshard.mesh on the module, each call its own callee, composites expanded, a mark on
        every operand and result that an in_strategy or out_strategy names, no marks of stages
        %1 = stablehlo.custom_call @autoshard.mark(%0) {autoshard.pin = "[{mp}, {sp, dp}]", ..}
        %3 = sdy.sharding_constraint %2 <@mesh, [{"dp"}, {?}]> {autoshard.pin = "[{dp}, {?}]"}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from autoshard.ir import mlir
from autoshard.ir.attributes import (
    IN_STRATEGY,
    MHLO_SHARDING,
    OUT_STRATEGY,
    PIPELINE_STAGE,
    SDY_SHARDING,
    custom_call_target,
)
from autoshard.ir.boundary import pad_indivisible
from autoshard.ir.module import is_of_one_device, operations_of
from autoshard.ir.native import nested, run_native
from autoshard.passes.base import Pass
from autoshard.rewrites.composites import expand_composites
from autoshard.rewrites.expert_matmuls import EXPERT_MATMULS, expert_matmuls_as_kernels
from autoshard.rewrites.known_places import AT_PLACES, known_places_as_static
from autoshard.rewrites.one_device_collectives import COLLECTIVES, drop_collectives_of_one
from autoshard.rewrites.pins.op_strategies import expand_op_strategies
from autoshard.rewrites.pins.write import write_pins
from autoshard.sharding import Mesh

_MANUAL = "sdy.manual_computation"
_REWRITTEN = COLLECTIVES | EXPERT_MATMULS | AT_PLACES
_SAYING = {"stablehlo.composite", "sdy.sharding_constraint", _MANUAL, *_REWRITTEN}
"""Ops that may say how they are split without an attribute of those above, or are rewritten."""


@dataclass(frozen=True)
class ImportStrategies(Pass):
    """Turn marks, constraints and sharding attributes into pins over one mesh.

    The mesh is the module's ``autoshard.mesh``, else its ``sdy.mesh``, else the common refinement
    of the layouts in the marks. It is refined until it expresses every strategy. Constraints over
    one-device meshes say nothing and pin nothing. Marks of stages go: it is too late for them.
    """

    name: ClassVar[str] = "autoshard-import-strategies"

    indivisible: Literal["refuse", "pad"] = "refuse"
    """What to do with a dim that shall be cut but has not so many equal parts; pad: cut it inside
    of the program, where XLA pads. A module that says pad already keeps that."""

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        if self.indivisible == "pad":
            with module.context:
                pad_indivisible(module)
        import_strategies(module)


@dataclass(frozen=True, slots=True)
class ReadModule:
    """A module whose pins are written."""

    has_default_mesh: bool
    """No axis of the plan's mesh is the user's."""
    operations: Sequence[mlir.Operation]
    """All there are, as ``operations_of`` gives them."""


def import_strategies(
    module: mlir.Module, default: Mesh | None = None, platform: str | None = None
) -> ReadModule:
    """What the pass does.

    Args:
        module: Changed in place.
        default: The mesh to use where the module names none.
        platform: What it was lowered for; None: nobody knows, and ragged dots stay ops.
    """
    with module.context, mlir.Location.unknown():
        _flatten_calls(module)
        operations = operations_of(module.operation)
        saying = _saying(operations)
        if _drop_stages(saying):
            operations = operations_of(module.operation)
            saying = _saying(operations)
        alone = [op for op in saying if op.name in COLLECTIVES and is_of_one_device(module)]
        places = [op for op in saying if op.name in AT_PLACES]
        has_new_marks = expand_op_strategies(saying)
        experts = [op for op in saying if op.name in EXPERT_MATMULS]
        has_new_calls = expand_composites(saying)  # which erases them
        has_new_calls |= expert_matmuls_as_kernels(module, experts, platform)
        has_fewer = drop_collectives_of_one(alone) | known_places_as_static(places)
        if has_new_calls:
            _flatten_calls(module)
        if has_new_marks or has_new_calls or has_fewer:
            operations = operations_of(module.operation)
            saying = _saying(operations)
        return ReadModule(write_pins(module, saying, default), operations)


def _saying(operations: Sequence[mlir.Operation]) -> list[mlir.Operation]:
    """Those that may say how they are split.

    The bodies of manual computations are left out: they are one device's part, not ours to plan.
    """
    found: list[mlir.Operation] = []
    end_of_manual = 0
    for number, op in enumerate(operations):
        attributes, name = op.attributes, op.name
        # Half of all ops have no attribute at all, which is the fastest to see.
        if number < end_of_manual or not (
            name in _SAYING
            or (
                len(attributes)
                and (
                    SDY_SHARDING in attributes
                    or MHLO_SHARDING in attributes
                    or IN_STRATEGY in attributes
                    or OUT_STRATEGY in attributes
                )
            )
        ):
            continue
        found.append(op)
        if name == _MANUAL:
            end_of_manual = number + len(operations_of(op))
    return found


def _drop_stages(operations: Sequence[mlir.Operation]) -> bool:
    """Take marks of stages away, where no pass has read them; whether there were any."""
    marks = [op for op in operations if custom_call_target(op) == PIPELINE_STAGE]
    for mark in marks:
        mark.results[0].replace_all_uses_with(mark.operands[0])
        mark.erase()
    return bool(marks)


def _flatten_calls(module: mlir.Module) -> None:
    """Give each call site its own callee, so that each can be planned on its own."""
    run_native(module, nested(("builtin.module",), "sdy-flatten-call-graph"), verify=False)
