"""``jax.experimental.custom_partitioning`` in a planned program: its callbacks see the plan's mesh.

JAX lowers such a function to a custom call that names a record of callbacks. The partitioner calls
them while it compiles, with the mesh around the lowering. A function is lowered before it is
planned, so there is none then: the callbacks got an empty mesh, and shardings without a spec.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import custom_partitioning, sharding_impls
from jaxlib.mlir import ir

from autoshard.ir.attributes import CUSTOM_PARTITIONING, custom_call_target
from autoshard.ir.locations import place
from autoshard.ir.module import operations_of

_CALLBACKS = ("partition", "infer_sharding_from_operands", "propagate_user_sharding")


@dataclass(frozen=True)
class CallbackFailure:
    """What a callback of the user raised while the program was compiled."""

    location: str | None
    """Location of the call of the function."""
    callback: str
    error: Exception


def show_mesh(module: ir.Module, mesh: jax.sharding.Mesh) -> list[CallbackFailure]:
    """Give the callbacks that a module names a mesh, and ``NamedSharding``s over it.

    The records belong to the lowering that the module is of, so no other program sees the change.

    Args:
        module: Of a program that was lowered in this process and is to be compiled.
        mesh: Of its plan.

    Returns:
        Filled while the program is compiled: the partitioner reports a part of a traceback only.
    """
    failures: list[CallbackFailure] = []
    seen: set[int] = set()
    for op, record in _records(module):
        if id(record) in seen:
            continue
        seen.add(id(record))
        record.mesh = mesh
        # callbacks may ask for the shardings of XLA instead: def_partition(decode_shardings=False)
        before = inspect.getclosurevars(record.to_mesh_pspec_sharding).nonlocals
        if before.get("decode_shardings", True):
            record.to_mesh_pspec_sharding = _named_over(mesh)
        for name in _CALLBACKS:
            callback = getattr(record, name)
            if callback is not None:
                setattr(record, name, _watched(callback, name, place(op.location), failures))
    return failures


def names_callbacks(module: ir.Module) -> bool:
    """Does a module name records of callbacks, which are of this process alone?"""
    return any(
        custom_call_target(op) == CUSTOM_PARTITIONING for op in operations_of(module.operation)
    )


def _records(module: ir.Module) -> Iterator[tuple[ir.Operation, Any]]:
    for op in operations_of(module.operation):
        if custom_call_target(op) != CUSTOM_PARTITIONING:
            continue
        key = ir.StringAttr(op.attributes["backend_config"]).value
        known: Any = custom_partitioning._sharding_callbacks  # pyright: ignore[reportPrivateUsage]
        record = known.get(key.encode())
        if record is not None:
            yield op, record


def _named_over(mesh: jax.sharding.Mesh) -> Callable[[Any, int], Any]:
    """What makes a sharding over the axes of ``mesh`` from one of XLA and a rank."""

    def named(sharding: Any, rank: int) -> Any:
        if sharding is None:
            return None
        (spec, *_) = sharding_impls.parse_flatten_op_sharding(sharding, mesh)
        dims = (*spec, *(None,) * (rank - len(spec)))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*dims))

    return named


def _watched(
    callback: Callable[..., Any],
    name: str,
    location: str | None,
    failures: list[CallbackFailure],
) -> Callable[..., Any]:
    def watched(*args: Any) -> Any:
        try:
            return callback(*args)
        except Exception as error:
            failures.append(CallbackFailure(location, name, error))
            raise

    return watched
