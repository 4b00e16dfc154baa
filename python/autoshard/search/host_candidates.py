"""Which arguments may live in the memory of the host, and what that costs on its link."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.importer.dataflow import dataflow
from autoshard.importer.roles import Role, argument_roles
from autoshard.ir import mlir
from autoshard.ir.boundary import main_function
from autoshard.ir.host_memory import on_host
from autoshard.ir.types import tensor_bytes
from autoshard.passes.import_strategies import import_strategies
from autoshard.planned.write import populate_rules
from autoshard.sharding import Mesh

_LEAST_BYTES = 1 << 16
"""Smaller arguments are not worth a transfer; the threshold of optimizer parallelism, 64 KiB."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One argument of ``main``."""

    argument: int
    bytes: float
    """Bytes of the whole array."""
    transfers: int
    """Transfers of all of it over the link to the host in one step."""


def candidates(module: mlir.Module, mesh: Mesh) -> list[Candidate]:
    """Optimizer states, and parameters that one op reads; cheapest for a byte first, then largest.

    Args:
        module: A copy, which is not used any more afterwards.
        mesh: Any of this many devices.
    """
    with module.context, mlir.Location.unknown():
        import_strategies(module, mesh)
        populate_rules(module)
        main = main_function(module)
        roles = argument_roles(main, dataflow(module))
        there = on_host(main, "arg_attrs")
        found: list[Candidate] = []
        for number, argument in enumerate(main.regions[0].blocks[0].arguments):
            role, size = roles.arguments[number], tensor_bytes(argument.type)
            is_read_once = len(list(argument.uses)) == 1
            may_move = role is Role.OPTIMIZER_STATE or (role is Role.PARAMETER and is_read_once)
            if may_move and size >= _LEAST_BYTES and number not in there:
                found.append(Candidate(number, size, 1 + (number in roles.updates)))
        return sorted(found, key=lambda one: (one.transfers, -one.bytes))
