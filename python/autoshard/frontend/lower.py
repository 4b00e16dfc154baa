"""From a Python function to a module to plan: fresh, unannotated, for all devices of the mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from autoshard.frontend.arguments import Arguments
from autoshard.frontend.mesh import Machine, MeshLike, machine_of, mesh_of_marks, read_machine
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.boundary import mark_texts
from autoshard.ir.lowering import LoweredProgram, lower
from autoshard.ir.mark import TARGET


@dataclass(frozen=True)
class Source:
    """One function, lowered for one mesh and one set of argument types."""

    name: str
    program: LoweredProgram
    machine: Machine
    argument_names: tuple[str, ...]


def lower_source(
    fn: Callable[..., Any],
    arguments: Arguments,
    mesh: MeshLike | None,
    jit_options: Mapping[str, Any],
) -> Source:
    """Lower ``fn`` under a name of its own, so that ``jax.jit(fn)`` never sees the result.

    Args:
        fn: The user's function, also one that is jitted already.
        arguments: Types or arrays.
        mesh: None: the one that the layouts in the program need; ``fn`` is then traced twice.
        jit_options: Static and donated arguments and the like, for ``jax.jit``.

    Raises:
        PlanError: No mesh is given and no layout names one.
        ShardingError: ``mesh`` is no mesh, or the layouts have no common one.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    args, kwargs = arguments.types()

    def lowered(machine: Machine | None) -> LoweredProgram:
        jitted = jax.jit(_fresh(fn), **jit_options)
        return lower(jitted, args, kwargs, None if machine is None else machine.jax_mesh())

    if mesh is None:
        module = parse_bytes(lowered(None).bytecode, new_context(), name)
        machine = machine_of(mesh_of_marks(mark_texts(module, TARGET), name))
    else:
        machine = read_machine(mesh)
    return Source(name, lowered(machine), machine, tuple(arguments.names(fn)))


def _fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` as a function object that JAX has not seen."""

    @functools.wraps(fn, updated=())
    def fresh(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return fresh
