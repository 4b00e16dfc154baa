"""In which other ways a program is planned, for a compiler to choose: meshes and forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.cluster import Cluster
from autoshard.errors import DoesNotFitError
from autoshard.ir import mlir
from autoshard.search.automatic import Job
from autoshard.search.forms import FORMS, Form, pinned_form

MOST_AXES = 3
"""Axes of the meshes that are tried."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way; with nothing said that of the search itself."""

    mesh_shape: str = ""
    """``2x4``."""
    form: Form | None = None
    """How arguments are cut; None: as the search decides."""

    @property
    def name(self) -> str:
        """What its plan is called where the mesh does not say all."""
        return self.form or ""

    def job(self, job: Job) -> Job:
        """A job in this way.

        Raises:
            DoesNotFitError: The program does not tell what the form cuts, or that does not divide.
        """
        if self.form is None:
            shape = self.mesh_shape
            return replace(job, options=replace(job.options, mesh_shape=shape)) if shape else job
        read = job.read
        pinned = pinned_form(read(()), self.form, job.num_devices)
        if pinned is None:
            raise DoesNotFitError(f"{job.name}: no plan of form {self.form}.", None, 0.0, 0.0)

        def with_pins(on_host: Sequence[int]) -> mlir.Module:
            return pinned.write(read(on_host))

        return replace(job, read=with_pins, options=replace(job.options, mesh=str(pinned.mesh)))


def ways_on(cluster: Cluster) -> tuple[Way, ...]:
    """All that are tried where no mesh is given."""
    if cluster.num_devices == 1:
        return ()
    return (*map(Way, mesh_shapes(cluster)), *(Way(form=form) for form in FORMS))


def mesh_shapes(cluster: Cluster) -> tuple[str, ...]:
    """Every mesh of up to ``MOST_AXES`` axes that joins neighbours of the search's axes.

    Example: ``h100:8`` has 8, 2x4, 4x2 and 2x2x2; one device has none.
    """
    sizes = [axis.size for axis in cluster.level_mesh().axes]
    found: dict[str, None] = {}

    def add(start: int, groups: tuple[int, ...]) -> None:
        if groups and start == len(sizes):
            found["x".join(map(str, groups))] = None
        elif len(groups) < MOST_AXES:
            for end in range(start + 1, len(sizes) + 1):
                add(end, (*groups, math.prod(sizes[start:end])))

    add(0, ())
    return tuple(sorted(found, key=lambda shape: (shape.count("x"), shape)))
