"""One module of the input: parsed, given its mesh, passed through, printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autoshard.cli.opt_driver.expected_diagnostics import check_diagnostics
from autoshard.cli.opt_driver.files import Chunk
from autoshard.cli.opt_driver.messages import diagnostic_of, in_file, print_diagnostics, warnings_to
from autoshard.cli.opt_driver.settings import Settings
from autoshard.cli.opt_driver.timing import Timing
from autoshard.errors import AutoshardError, PlanError, ShardingError
from autoshard.explain.record_build import record_of_module
from autoshard.ir import mlir, new_context, parse_bytes, parse_given, place, print_module
from autoshard.ir.attributes import MESH
from autoshard.ir.diagnostics import Diagnostic
from autoshard.passes.pipeline import run_passes
from autoshard.planned.given_plan import has_plan
from autoshard.sharding import Mesh


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a chunk."""

    ok: bool
    output: bytes | None
    """None when there is no module, after an error."""
    plan_json: bytes | None = None
    """What ``--plan-json`` asks for; None without it, or after an error."""


def run_chunk(
    chunk: Chunk, settings: Settings, timing: Timing, report: Callable[[str], None]
) -> Result:
    """Run the passes on a module and print what they say of it."""
    found: list[Diagnostic] = []
    output: bytes | None = None
    plan = _LastPlan()
    with warnings_to(found):
        try:
            output = _transform(chunk, settings, timing, report, plan)
        except AutoshardError as error:
            found.append(diagnostic_of(error))
    found = [in_file(diagnostic, chunk.name) for diagnostic in found]
    if settings.verify_diagnostics:
        wrong = check_diagnostics(chunk.text or "", chunk.name, found)
        print_diagnostics(wrong, chunk)
        return Result(not wrong, output, plan.text)
    print_diagnostics(found, chunk)
    return Result(output is not None, output, plan.text)


class _LastPlan:
    """The last plan that was seen: exports take it off the module."""

    def __init__(self) -> None:
        self.bytecode: bytes | None = None
        self.text: bytes | None = None
        """Its record, once all passes have run."""

    def look(self, module: mlir.Module) -> None:
        """Remember the module, if it has a plan that is not exported."""
        if has_plan(module):
            self.bytecode = print_module(module, "bytecode")

    def write(self, name: str) -> None:
        """Make the record of what was seen; of nothing there is none."""
        if self.bytecode is not None:
            planned = parse_bytes(self.bytecode, new_context(), name)
            self.text = record_of_module(planned, Path(name).name).to_json().encode()


def _transform(
    chunk: Chunk,
    settings: Settings,
    timing: Timing,
    report: Callable[[str], None],
    plan: _LastPlan,
) -> bytes:
    """The chunk's module after all passes.

    Raises:
        AutoshardError: It does not parse, or a pass refuses it.
    """
    report(f"{chunk.name}: error: reading the module")
    with timing.measure("parse"):
        module = parse_given(chunk.data, new_context(), chunk.name, chunk.text_file)
    if settings.mesh is not None:
        _set_mesh(module, settings.mesh)

    def after(name: str, module: mlir.Module) -> None:
        if settings.plan_json is not None:
            plan.look(module)
        if not settings.print_after_all:
            return
        text = print_module(module, "generic" if settings.emit == "generic" else "text")
        print(f"// -----// IR Dump After {name} //----- //", file=sys.stderr)
        print(text.decode(), file=sys.stderr)

    run_passes(
        module,
        settings.steps,
        started=lambda name: report(f"{chunk.name}: error: {name}"),
        print_after=after,
        timing=timing.add,
    )
    if settings.plan_json is not None:
        plan.look(module)
        plan.write(chunk.name)
        if plan.text is None:
            raise PlanError(
                f"--plan-json={settings.plan_json}: the module has no plan. Plan it: "
                "--autoshard-recursive-programming='cluster=v5e:4x4'."
            )
    with timing.measure("print"):
        return print_module(module, settings.emit, settings.debug_info)


def _set_mesh(module: mlir.Module, mesh: str) -> None:
    """Write the mesh on a module that has none yet.

    Raises:
        ShardingError: The module has another mesh.
    """
    attributes = module.operation.attributes
    if MESH not in attributes:
        attributes[MESH] = mlir.StringAttr.get(mesh, module.context)
        return
    present = mlir.StringAttr(attributes[MESH]).value
    if not _is_mesh(present, mesh):
        raise ShardingError(
            f'--mesh={mesh}, but the module has {MESH} = "{present}". '
            "Leave --mesh out, or remove the attribute.",
            place(module.operation.location),
        )


def _is_mesh(text: str, mesh: str) -> bool:
    """A text that is no mesh is another one."""
    try:
        return str(Mesh.parse(text)) == mesh
    except AutoshardError:
        return False
