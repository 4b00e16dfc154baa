"""What a pinned module looks like for one partitioner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from autoshard.exporter.blocks import BlockOp, Emitter, Enter, free_channels
from autoshard.ir import mlir
from autoshard.planned.module import Placement, PlannedModule


class Form(ABC):
    """How shardings are written, on the boundary, on values, and around ops on blocks."""

    boundary_attribute: ClassVar[str]
    """The attribute that carries the sharding of an entry function's argument or result."""

    def begin(self, plan: PlannedModule) -> None:
        """Called once, before any other method; may add to the module."""
        self._mesh = plan.mesh
        self._channels = free_channels(plan.module)

    def emitter(
        self, where: mlir.InsertionPoint, why: mlir.Location, enter: Enter | None = None
    ) -> Emitter:
        """Writes ops on whole values, or on blocks for ``on_blocks``; see ``Emitter``."""
        return Emitter(where, why, self._mesh, self._channels, enter)

    @abstractmethod
    def boundary(self, sharding: Placement) -> mlir.Attribute:
        """The attribute of an argument or result."""

    @abstractmethod
    def constraint(
        self, value: mlir.Value, sharding: Placement, where: mlir.InsertionPoint, why: mlir.Location
    ) -> mlir.Value:
        """``value`` held in ``sharding``; the new op says it comes from ``why``."""

    @abstractmethod
    def on_blocks(self, op: BlockOp, where: mlir.InsertionPoint) -> list[mlir.Value]:
        """The results of ``op``, which every device computes on its own blocks."""
