"""Constraints that hold a value in a sharding, or bring it to another one step by step."""

from __future__ import annotations

from collections.abc import Collection

from autoshard.exporter.form import Form
from autoshard.exporter.steps import reshard_steps
from autoshard.ir import mlir
from autoshard.planned.module import Placement
from autoshard.sharding.padding import padded_shape
from autoshard.sharding.sharding import AxisRef, Sharding


class Constraints:
    """Writes them in one form; each way between two shardings is searched once for a module."""

    def __init__(self, form: Form, *, has_all_to_all: bool, padded_to: int) -> None:
        self._form = form
        self._has_all_to_all = has_all_to_all
        self._padded_to = padded_to
        """Dims count as a multiple of this."""
        self._known: dict[tuple[Placement, Placement, mlir.Type], tuple[Placement, ...]] = {}
        self._between: dict[Sharding, Placement] = {}

    def held(
        self,
        value: mlir.Value,
        sharding: Placement | None,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        """``value`` behind a constraint; itself where there is nothing to say."""
        if sharding is None or not sharding.rank:
            return value
        return self._form.constraint(value, sharding, where, why)

    def moved(
        self,
        value: mlir.Value,
        source: Placement | None,
        target: Placement | None,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        """``value``, held in ``source``, resharded step by step."""
        if source is target or source is None or target is None or not target.rank:
            return value
        for step in self._steps(source, target, value.type):
            value = self._form.constraint(value, step, where, why)
        return value

    def added_up(
        self,
        value: mlir.Value,
        computed: Placement | None,
        scattered: Collection[AxisRef],
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        """A sum, held whole along the axes over which it is scattered afterwards."""
        if computed is None or not scattered:
            return value
        dims = (
            tuple(axis for axis in dim if axis not in scattered) for dim in computed.sharding.dims
        )
        whole = Sharding(computed.sharding.mesh, tuple(dims))
        return self.held(value, self._placement(whole), where, why)

    def placed(
        self,
        value: mlir.Value,
        computed: Placement | None,
        final: Placement | None,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        """What an op gives, held where it is computed, then brought to where it is planned."""
        value = self.held(value, computed, where, why)
        return self.moved(value, computed, final, where, why)

    def behind_barrier(
        self, value: mlir.Value, where: mlir.InsertionPoint, why: mlir.Location
    ) -> mlir.Value:
        """The same value, such that no pass finds it equal to the first one."""
        return mlir.Operation.create(
            "stablehlo.optimization_barrier",
            results=[value.type],
            operands=[value],
            loc=why,
            ip=where,
        ).results[0]

    def _steps(
        self, source: Placement, target: Placement, type_: mlir.Type
    ) -> tuple[Placement, ...]:
        """The placements to go through, ``target`` last."""
        key = (source, target, type_)
        found = self._known.get(key)
        if found is None:
            shape = padded_shape(mlir.RankedTensorType(type_).shape, self._padded_to)
            *middle, _ = reshard_steps(
                source.sharding, target.sharding, shape, self._has_all_to_all
            )
            found = self._known[key] = (*map(self._placement, middle), target)
        return found

    def _placement(self, sharding: Sharding) -> Placement:
        return self._between.setdefault(sharding, Placement(sharding, sharding.rank))
