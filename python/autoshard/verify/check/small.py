"""A planned program as a small one: fewer ops, fewer trips, fewer devices, smaller sizes.

Sizes hang together by the ops that are kept. Where they stay large, fewer are: of ops that differ
by their sizes only, as those of a scan that is unrolled into halves, one of each kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.errors import CheckError
from autoshard.importer.rules import is_between_stages
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.inline import inline_calls
from autoshard.ir.locations import place
from autoshard.ir.module import operations_of
from autoshard.planned.module import PlannedModule, PlannedOp, read_plan
from autoshard.rewrites.lockstep.export import with_stages
from autoshard.rewrites.lockstep.step import lockstep_of
from autoshard.verify.check.finite import keep_finite
from autoshard.verify.check.part import entry_of, keep_part
from autoshard.verify.check.plain import without_storage
from autoshard.verify.check.sample import keep_distinct
from autoshard.verify.check.scale import scale
from autoshard.verify.check.shapes.elements import IDENTITY_TARGETS
from autoshard.verify.check.shrink import shrink
from autoshard.verify.check.sizes import Least
from autoshard.verify.check.trips import shorten_loops

MOST_ELEMENTS = 2**31
"""Elements of all values together; more would not be run in the time."""

_LEASTS = (Least(), Least(atom=2), Least(atom=2, local=1))
"""How small sizes become: the first that leaves few elements."""

_FEW_ELEMENTS = 2**26
"""Elements of all values together that are computed in seconds."""

_MANY_ELEMENTS = 2**29
"""Elements of all values together: of a program of more, fewer ops are kept."""

_NOT_RUN = frozenset(
    {
        *("stablehlo.rng", "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send"),
        *("stablehlo.recv", "sdy.manual_computation", "stablehlo.custom_call"),
    }
)
"""Ops that one CPU device does not compute as many do: random numbers without a key, what the user
splits by hand, and calls of libraries and of Python."""


@dataclass(frozen=True, slots=True)
class Small:
    """A planned program made small."""

    program: bytes
    """Planned module."""
    mesh: str
    """Mesh of the plan, along its first axis the stages of one in lockstep."""
    checked_mesh: str
    ops: int
    """Number of ops of ``main``, calls included."""
    looked_at: int
    """Those of them that are in ``program``."""
    not_run: tuple[str, ...]
    """What was left out."""
    sizes: tuple[tuple[int, int], ...]
    """Each size and what it has become, largest first."""


def make_small(bytecode: bytes, most_devices: int) -> Small:
    """Make a planned module small.

    Raises:
        CheckError: Its sizes stay large, no op of it is run, or one in a loop is not.
    """
    module = parse_bytes(bytecode, new_context(), "module")
    without_storage(module)
    with module.context:
        inline_calls(module)
        plan = read_plan(module)
        ops = len(entry_of(plan).body.ops) - 1
        not_run = _leave_out(plan)
        looked_at = keep_distinct(read_plan(module)).after
        shorten_loops(module)
        lockstep = lockstep_of(module)
        stages = 1 if lockstep is None else lockstep.stages
        before, after = shrink(read_plan(module), max(most_devices // stages, 1))
        if lockstep is not None:
            before, after = with_stages(before, stages), with_stages(after, stages)
        _need_results(read_plan(module), not_run)
    shrunk = print_module(module, "bytecode")
    scaled = scale(module, _LEASTS, _FEW_ELEMENTS)
    if scaled.after > _MANY_ELEMENTS:
        module = parse_bytes(shrunk, new_context(), "module")
        with module.context:
            looked_at = keep_distinct(read_plan(module), by_size=False).after
        scaled = scale(module, _LEASTS, _FEW_ELEMENTS)
    if scaled.after > MOST_ELEMENTS:
        size, _ = max((pair for pair in scaled.sizes if pair[0] == pair[1]), default=(0, 0))
        raise CheckError(
            f"the program cannot be made small: {scaled.after:.2g} elements are left of"
            f" {scaled.before:.2g}; a dim of {size} keeps its size. Check it with smaller"
            " arguments, planned by the same pins."
        )
    with module.context:
        keep_finite(read_plan(module))
        module.operation.verify()
    return Small(
        program=print_module(module, "bytecode"),
        mesh=str(before),
        checked_mesh=str(after),
        ops=ops,
        looked_at=looked_at,
        not_run=not_run,
        sizes=scaled.sizes,
    )


def _need_results(plan: PlannedModule, not_run: Sequence[str]) -> None:
    if not entry_of(plan).body.ops[-1].op.operands:
        raise CheckError(
            "there is nothing to compare: the program has no op that a CPU runs as many devices do"
            f"{', but ' if not_run else ''}{', '.join(not_run)}. Check a program that does more."
        )


def _leave_out(plan: PlannedModule) -> tuple[str, ...]:
    """Take ops away that cannot be compared; what they were."""
    ops = entry_of(plan).body.ops[:-1]
    said: list[str] = []
    kept: set[int] = set()
    for number, planned in enumerate(ops):
        if _is_run(planned.op):
            _check_inside(planned)
            kept.add(number)
        else:
            said.append(_described(planned.op))
    if said:
        keep_part(plan, kept)
    return tuple(sorted(set(said)))


def _check_inside(planned: PlannedOp) -> None:
    for op in operations_of(planned.op)[1:] if len(planned.op.regions) else ():
        if not _is_run(op):
            raise CheckError(
                f"{_described(op)} stands in a loop or branch and cannot be left out there. Check"
                " the program without it.",
                place(op.location),
            )


def _is_run(op: mlir.Operation) -> bool:
    if op.name not in _NOT_RUN or is_between_stages(op):
        return True
    return op.name == "stablehlo.custom_call" and _target(op) in IDENTITY_TARGETS


def _target(op: mlir.Operation) -> str:
    return mlir.StringAttr(op.attributes["call_target_name"]).value


def _described(op: mlir.Operation) -> str:
    name = f"custom_call @{_target(op)}" if op.name == "stablehlo.custom_call" else op.name
    where = place(op.location)
    return name if where is None else f"{name} ({where})"
