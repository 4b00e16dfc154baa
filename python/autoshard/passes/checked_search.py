"""Checks around a search: its mesh, and what the core refuses, in the user's names."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.errors import ShardingError
from autoshard.importer.imported_program import ImportedProgram
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MESH
from autoshard.planned.does_not_fit import does_not_fit
from autoshard.planned.write import explain, mesh_of
from autoshard.sharding import Mesh


def set_mesh(module: mlir.Module, mesh: str) -> None:
    """Write the mesh that an option names.

    Raises:
        ShardingError: The module has another one.
    """
    attributes = module.operation.attributes
    wanted = str(Mesh.parse(mesh))
    if MESH in attributes and str(mesh_of(module)) != wanted:
        raise ShardingError(
            f'mesh={mesh}, but the module has {MESH} = "{mesh_of(module)}". Leave the option out, '
            "or remove the attribute.",
            place(module.operation.location),
        )
    attributes[MESH] = mlir.StringAttr.get(wanted)


def check_size(mesh: Mesh, cluster: Cluster, module: mlir.Module) -> None:
    """Compare devices.

    Raises:
        ShardingError: The mesh has not as many as the cluster.
    """
    if mesh.size != cluster.num_devices:
        raise ShardingError(
            f"mesh {mesh} has {mesh.size} devices, the cluster {cluster.name} has "
            f"{cluster.num_devices}. Give a mesh or a cluster of another size.",
            place(module.operation.location),
        )


@contextmanager
def explained(imported: ImportedProgram, limit: float, stages: int = 1) -> Generator[None]:
    """What the core says, in the user's names; the limit is that of all stages.

    Raises:
        DoesNotFitError: No plan was found that fits.
        StrategyError: Pins that no plan keeps.
    """
    try:
        yield
    except _core.Contradiction as error:
        raise explain(imported, error) from error
    except _core.DoesNotFit as error:
        _, peak, _, live = error.args
        raise does_not_fit(imported, stages * peak, limit, live) from error
