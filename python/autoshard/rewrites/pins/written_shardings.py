"""Shardings that stand on a module, in the attributes of Shardy or of GSPMD."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from autoshard.errors import AutoshardError, ShardingError, StrategyError
from autoshard.ir import mlir, place, sdy
from autoshard.ir.attributes import MESH, MHLO_SHARDING, SDY_SHARDING, text_of
from autoshard.rewrites.pins.wishes import ONE_DEVICE
from autoshard.sharding import Mesh, Sharding, from_hlo, tuple_from_hlo
from autoshard.sharding.sdy_text import from_sdy, mesh_from_sdy


@contextmanager
def errors_at(owner: mlir.Operation) -> Generator[None]:
    """Give errors about a text the place of the op that carries it."""
    try:
        yield
    except AutoshardError as error:
        if error.location is None and (where := place(owner.location)) is not None:
            raise type(error)(error.message, where) from error
        raise


def rank_of(value: mlir.Value) -> int:
    """Rank of a tensor; 0 for anything else."""
    return value.type.rank if isinstance(value.type, mlir.RankedTensorType) else 0


class WrittenShardings:
    """Reads them over the meshes of the module."""

    def __init__(self, module: mlir.Module) -> None:
        self._meshes = {
            mlir.StringAttr(op.operation.attributes["sym_name"]).value: _mesh_of(op.operation)
            for op in module.body.operations
            if op.operation.name == "sdy.mesh"
        }
        self._read: dict[str, Sharding] = {}
        self.given = self._given_mesh(module)
        """The mesh that the module names, or that its meshes have in common."""

    def from_sdy(self, attribute: mlir.Attribute, owner: mlir.Operation) -> Sharding:
        """One ``#sdy.sharding``, which stands on ``owner``."""
        text = str(attribute)
        if text not in self._read:
            with errors_at(owner):
                self._read[text] = from_sdy(text, self._meshes)
        return self._read[text]

    def of_constraint(self, constraint: mlir.Operation) -> Sharding | None:
        """What an ``sdy.sharding_constraint`` says; None if nothing."""
        return _vacuous_is_none(self.from_sdy(constraint.attributes["sharding"], constraint))

    def of_values(
        self,
        shardy: mlir.Attribute | None,
        gspmd: mlir.Attribute | None,
        values: Sequence[mlir.Value],
        owner: mlir.Operation,
    ) -> list[Sharding | None] | None:
        """One sharding a value from either attribute; None if there is none that says something."""
        from_shardy = None if shardy is None else self._of_shardy(shardy, owner)
        from_gspmd = None if gspmd is None else self._of_gspmd(gspmd, values, owner)
        if from_shardy is not None and from_gspmd is not None:
            for one, other in zip(from_shardy, from_gspmd, strict=True):
                if one is not None and other is not None and not one.same_placement(other):
                    raise StrategyError(
                        f"two shardings contradict on one value: {SDY_SHARDING} says {one}, "
                        f"{MHLO_SHARDING} says {other}. Remove one of the two attributes.",
                        place(owner.location),
                    )
            # One that says nothing, as over a mesh of one device, leaves it to the other.
            found = [
                other if one is None else one
                for one, other in zip(from_shardy, from_gspmd, strict=True)
            ]
        else:
            found = from_gspmd if from_shardy is None else from_shardy
        if found is None or all(sharding is None for sharding in found):
            return None
        return found

    def _of_shardy(self, attribute: mlir.Attribute, owner: mlir.Operation) -> list[Sharding | None]:
        if sdy.TensorShardingPerValueAttr.isinstance(attribute):
            several = sdy.TensorShardingPerValueAttr(attribute).shardings
            return [_vacuous_is_none(self.from_sdy(one, owner)) for one in several]
        return [_vacuous_is_none(self.from_sdy(attribute, owner))]

    def _of_gspmd(
        self, attribute: mlir.Attribute, values: Sequence[mlir.Value], owner: mlir.Operation
    ) -> list[Sharding | None]:
        text = text_of(attribute, MHLO_SHARDING, owner)
        ranks = [rank_of(value) for value in values]
        if not any(ranks):
            return [None] * len(ranks)  # a scalar is on every device, whatever the text says
        if self.given is None and text == "{replicated}":
            return [Sharding.fully_replicated(ONE_DEVICE, rank) for rank in ranks]
        if self.given is None:
            raise ShardingError(
                f"{MHLO_SHARDING} = {text}: no mesh gives names to its devices. Give one: "
                "--mesh=dp=2,tp=4, or mesh= in Python.",
                place(owner.location),
            )
        with errors_at(owner):
            if len(values) != 1:
                return list(tuple_from_hlo(text, self.given, ranks))
            return [from_hlo(text, self.given, ranks[0])]

    def _given_mesh(self, module: mlir.Module) -> Mesh | None:
        attributes = module.operation.attributes
        if MESH in attributes:
            return Mesh.parse(text_of(attributes[MESH], MESH, module.operation))
        large = [mesh.without_unit_axes() for mesh in self._meshes.values() if mesh.size > 1]
        return Mesh.common_refinement(large) if large else None


def _mesh_of(op: mlir.Operation) -> Mesh:
    """What an ``sdy.mesh`` declares."""
    try:
        return mesh_from_sdy(str(op.attributes["mesh"]))
    except ShardingError:
        # a mesh that stands for one single device: it says nothing about a plan
        return Mesh(())


def _vacuous_is_none(sharding: Sharding) -> Sharding | None:
    """A constraint over one device, or with every dim open and uncut, says nothing."""
    if sharding.mesh.size == 1 or (
        sharding.rank
        and all(sharding.open_dims)
        and not any((*sharding.dims, sharding.replicated, sharding.unreduced, sharding.manual))
    ):
        return None
    return sharding
