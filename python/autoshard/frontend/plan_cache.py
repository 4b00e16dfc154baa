"""Plans that are kept between processes: ``AUTOSHARD_CACHE=DIR``.

A plan is found again by everything that decides it: the program with its pins and marks, the
cluster with its constants, the options, the devices, and this release of autoshard with its tables.
Locations do not count: lines in a plan that was found are those of the program that it was made
for.
"""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autoshard.compilers.options import read_compiler_options
from autoshard.errors import AutoshardError, AutoshardWarning
from autoshard.frontend.device_order import source_of
from autoshard.frontend.fingerprint import program_text
from autoshard.frontend.kept_plan import bound_to_process, changes_of, plan_for
from autoshard.frontend.lower import Source, whole_cluster
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.ir import mlir

VARIABLE = "AUTOSHARD_CACHE"
"""The directory; without it nothing is kept."""

_PACKAGE = Path(__file__).resolve().parents[1]
_DECIDES = (".py", ".so", ".toml", ".json", ".txt")
"""Ends of the names of files that decide what a plan is."""


def cached(
    source: Source,
    request: Request,
    module: Callable[[], mlir.Module],
    planned: Callable[[], Plan],
) -> Plan:
    """The plan of an earlier process for the same question, or a new one, which is kept.

    What cannot be read or written is warned of and planned again.

    Args:
        source: The program.
        request: What is asked of the plan.
        module: The program with all pins written.
        planned: Makes the plan.
    """
    path = path_of(source, request, module)
    if path is None:
        return planned()
    plan = found_at(path, source)
    if plan is None:
        plan = planned()
        keep(path, plan)
    return plan


def path_of(
    source: Source,
    request: Request,
    module: Callable[[], mlir.Module],
    besides: tuple[object, ...] = (),
) -> Path | None:
    """Where the plan is kept; None where no plan of the program is.

    Args:
        source: The program.
        request: What is asked of the plan.
        module: The program with all pins written.
        besides: What else decides it.
    """
    directory = os.environ.get(VARIABLE)
    if not directory or bound_to_process(source) is not None:
        return None
    return Path(directory).expanduser() / f"{_key(source, request, module(), besides)}.json"


def keep(path: Path, plan: Plan) -> None:
    """Write a plan; what cannot be written is warned of."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plan.save(path)
    except (AutoshardError, OSError) as error:
        _warn(f"the plan of {plan.name} is not kept: {error}. Give {VARIABLE} another directory.")


def found_at(path: Path, source: Source) -> Plan | None:
    """The plan of a file, for this program; None where there is none that is for it."""
    if not path.exists():
        return None
    try:
        plan = Plan.load(path)
        changes = changes_of(plan, source)
    except AutoshardError as error:
        _warn(f"a plan that was kept is not used, {source.name} is planned again: {error}")
        return None
    if changes:  # two programs of one key
        return None
    machine = source_of(plan, source).machine
    return replace(plan_for(plan, source), name=source.name, machine=machine.with_mesh(plan.mesh))


def _key(source: Source, request: Request, module: mlir.Module, besides: tuple[object, ...]) -> str:
    said = (
        Plan.FORMAT,
        release(),
        program_text(module),
        source.argument_names,
        source.mode,
        source.cluster,
        None if source.cluster is None else str(source.cluster.compiler),
        source.machine.numbers,
        source.machine.chosen_ids,
        request.options(),
        request.spreading(),
        request.recomputing(),
        request.host_offload,
        request.batch_argnums,
        request.micro_batches,
        request.per_micro_batch,
        request.constraints,
        None if request.pipeline is None else (request.pipeline, whole_cluster(request)),
        sorted(read_compiler_options(request.compiler_options).items()),
        source.keeps_order,
        *besides,
    )
    return hashlib.sha256("\n".join(map(repr, said)).encode()).hexdigest()


@functools.cache
def release() -> str:
    """A digest of all that decides in this package, code and tables."""
    found = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in _DECIDES:
            found.update(path.relative_to(_PACKAGE).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def _warn(message: str) -> None:
    warnings.warn(AutoshardWarning(message), stacklevel=4)
