"""Seconds of a collective over any groups of devices, by the cluster's formulas.

The formulas are the planner's own (docs/design/cost_model.md, "Collectives"): the core is asked.
Groups are taken as parts of the machine's dims, whatever mesh a program was planned on. Groups that
are no such part are charged as if all devices of the smallest part that holds them took part.
"""

from __future__ import annotations

from math import prod

import numpy as np

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.cluster.topology import LinkKind
from autoshard.errors import ClusterError
from autoshard.planned.collective import (
    Collective,
    CollectiveKind,
    axes_of_pairs,
    groups_along,
    span_of_groups,
)
from autoshard.sharding.mesh import Axis, Mesh
from autoshard.sharding.placement import prime_factors
from autoshard.sharding.sharding import AxisRef
from autoshard.verify.hlo_collectives import DeviceGroups


class CollectiveSeconds:
    """The collectives of one cluster, for programs on one mesh."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        if mesh.size != cluster.num_devices:
            raise ClusterError(
                f'mesh "{mesh}" has {mesh.size} devices, but cluster {cluster.name} has'
                f" {cluster.num_devices}. Give the cluster that the program was compiled for."
            )
        primes = [
            Axis(f"{name}_{part}_{number}", prime)
            for part, (name, size) in enumerate(cluster.parts)
            for number, prime in enumerate(prime_factors(size))
        ]
        kind_of = {dim.name: dim.kind for dim in cluster.dims}
        self.kinds = [kind_of[name] for name, size in cluster.parts for _ in prime_factors(size)]
        self.mesh = Mesh(tuple(primes), mesh.device_ids)
        """The machine's dims, split into primes; device numbers are the program's."""
        self.core = cluster.to_core(self.mesh)
        self.lines: dict[tuple[bool, tuple[AxisRef, ...]], DeviceGroups] = {}
        self.spans: dict[int, tuple[DeviceGroups, int, int]] = {}

    def of(self, collective: Collective, groups: DeviceGroups) -> float:
        """Seconds of one run.

        Args:
            collective: Its kind and bytes.
            groups: The devices that talk to each other.
        """
        mask, span = self._span(groups, collective.kind)
        participants = 2 if collective.kind is CollectiveKind.PERMUTE else span
        step = _core.Step(collective.kind, mask, participants, collective.local_bytes)
        return _core.collective_seconds(step, self.core, self.mesh.axis_sizes)

    def links(self, collective: Collective, groups: DeviceGroups) -> tuple[LinkKind, ...]:
        """The kinds of links that it goes over."""
        mask, _ = self._span(groups, collective.kind)
        return tuple(
            dict.fromkeys(kind for index, kind in enumerate(self.kinds) if mask >> index & 1)
        )

    def over_axes(self, collective: Collective, axes: tuple[AxisRef, ...], mesh: Mesh) -> float:
        """As ``of``, along axes of the program's mesh."""
        key = (collective.kind is CollectiveKind.PERMUTE, axes)
        if key not in self.lines:
            groups = groups_along(axes, mesh)
            size = groups.shape[1]
            if key[0]:
                # One hop is charged: which of the others a device sends to does not matter.
                pairs = [groups[:, [0, other]] for other in range(1, size)]
                groups, size = np.concatenate(pairs), 2
            self.lines[key] = DeviceGroups((groups,), size, axes)
        return self.of(collective, self.lines[key])

    def _span(self, groups: DeviceGroups, kind: CollectiveKind) -> tuple[int, int]:
        """The axes of the machine as bits, and how many devices they hold."""
        known = self.spans.get(id(groups))
        if known is None:
            if kind is CollectiveKind.PERMUTE:
                refs = axes_of_pairs(groups.blocks[0], self.mesh)
            else:
                refs = span_of_groups(groups.blocks, self.mesh)
            indices = [self.mesh.axis_index(ref.name) for ref in refs]
            mask = sum(1 << index for index in indices)
            span = prod(self.mesh.axis_sizes[index] for index in indices)
            # The groups are kept, so that no others get their id.
            known = self.spans[id(groups)] = (groups, mask, span)
        return known[1], known[2]
