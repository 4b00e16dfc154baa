"""What if: the same step on other machines, with another batch or another limit, planned anew.

    plan.what_if(batch=[64, 128, 256], bandwidth=[0.5, 1, 2])
    autoshard.sweep(train_step, params, state, batch, clusters=["v5e:4x4", "v5p:2x2x2"])

A program is traced once for each batch, sequence and kind of device, and read once. Where nothing
is pinned and nothing is spread or computed again, a point is one search of it, each on a core.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, cast

import jax

from autoshard.cluster import Cluster
from autoshard.errors import AutoshardError, DoesNotFitError, PlanError
from autoshard.explain.machines import FACTORS, cluster_of_chips, scaled
from autoshard.frontend.batch_arrays import (
    batch_of_source,
    ids_among,
    with_batch,
    with_sequence,
)
from autoshard.frontend.lower import Source, Traced
from autoshard.frontend.planning import job_of, plan_source
from autoshard.frontend.request import Request
from autoshard.importer.imported_program import ImportedProgram
from autoshard.ir import mlir
from autoshard.passes.recursive_programming import read_module, search_imported
from autoshard.planned.summary import PlanSummary, bytes_text
from autoshard.search.inputs import inputs_alike

if TYPE_CHECKING:
    from autoshard.explain.question import Subject
    from autoshard.frontend.plan import Plan

_tree: Any = jax.tree_util

OTHERS = ("cluster", "chips", "batch", "sequence", "memory_limit", "overlap")
"""What may vary besides factors of the machine."""


@dataclass(frozen=True, slots=True)
class Point:
    """One step as it would be planned."""

    changed: Mapping[str, Any]
    """What varies, by name: ``{"batch": 128, "bandwidth": 2}``."""
    cluster: str
    devices: int
    batch: int | None
    """Examples of a step; None where the program does not tell."""
    mesh: str = ""
    """What the plan chose; empty where there is none."""
    step_seconds: float | None = None
    compute_seconds: float | None = None
    communication_seconds: float | None = None
    peak_bytes: float | None = None
    """On one device; of what does not fit what the plan that needs least needs."""
    memory_limit: float | None = None
    reason: str = ""
    """Why there is no plan."""
    tokens: int | None = None
    """Ids of a step; None where the batch has none."""

    @property
    def fits(self) -> bool:
        """Is there a plan?"""
        return self.step_seconds is not None

    @property
    def examples_per_second(self) -> float | None:
        """The batch over a step; None where either is not known."""
        if self.batch is None or not self.step_seconds:
            return None
        return self.batch / self.step_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """The ids of a batch over a step; None where either is not known."""
        if self.tokens is None or not self.step_seconds:
            return None
        return self.tokens / self.step_seconds


@dataclass(frozen=True)
class WhatIf:
    """Steps over a range."""

    name: str
    points: tuple[Point, ...]
    """In the order that was asked for."""

    def fewest_devices(
        self,
        *,
        step_seconds: float | None = None,
        examples_per_second: float | None = None,
        tokens_per_second: float | None = None,
    ) -> Point | None:
        """The point on the fewest devices that is fast enough; of equal ones the fastest.

        Args:
            step_seconds: The longest that a step may take.
            examples_per_second: The least that may be worked through in a second.
            tokens_per_second: Likewise, of ids.
        """
        enough = [
            point
            for point in self.points
            if point.step_seconds is not None
            and (step_seconds is None or point.step_seconds <= step_seconds)
            and (
                examples_per_second is None
                or (point.examples_per_second or 0.0) >= examples_per_second
            )
            and (tokens_per_second is None or (point.tokens_per_second or 0.0) >= tokens_per_second)
        ]
        return min(enough, key=lambda one: (one.devices, one.step_seconds or 0.0), default=None)

    def to_json(self) -> list[dict[str, Any]]:
        """A row a point, for ``json.dumps``."""
        return [
            {**asdict(point), "changed": {k: str(v) for k, v in point.changed.items()}}
            for point in self.points
        ]

    def __rich__(self) -> Any:
        """A row a point, with a bar for its step."""
        from autoshard.report.what_if_table import what_if_table

        return what_if_table(self)

    def __str__(self) -> str:
        """The same as text."""
        from autoshard.report.plan_table import render
        from autoshard.report.what_if_table import WIDTH, what_if_table

        return render(what_if_table(self), WIDTH)


def what_if_plan(plan: Plan, ranges: Mapping[str, Any]) -> WhatIf:
    """See ``Plan.what_if``."""
    origin = plan.origin
    if origin is not None:
        return _Planning(origin.request, origin.traced, origin.source).over(plan.name, ranges)
    if plan.summary is None:
        raise PlanError(f"plan of {plan.name}: it was made without a cluster. Plan it with one.")
    return what_if_module(plan.subject, ranges)


def what_if_module(subject: Subject, ranges: Mapping[str, Any]) -> WhatIf:
    """A planned module or a loaded plan on other machines: what it was lowered for stays.

    Raises:
        PlanError: It is pinned, or another batch is asked for.
    """
    for name in ("batch", "sequence"):
        if name in ranges:
            raise PlanError(
                f"{subject.name}: another {name} takes the function, which a file does not have."
                " Ask what autoshard.plan returned, or autoshard.sweep."
            )
    if any(pinned.is_users for pinned in subject.imported.pins):
        raise PlanError(
            f"{subject.name}: pins name the axes of {subject.mesh}, so that it cannot be planned"
            " on other machines from a file. Ask what autoshard.plan returned."
        )
    request = Request(
        cluster=subject.cluster,
        mode="auto",
        overlap=subject.summary.overlap,
    )
    return _Planning(request, known=(subject.imported, subject.module)).over(subject.name, ranges)


def sweep(
    fn: Any,
    *args: Any,
    clusters: Sequence[Any],
    batch: Sequence[int] | int | None = None,
    sequence: Sequence[int] | int | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **options: Any,
) -> WhatIf:
    """Plan a function for several clusters, and batches: what does one need to buy?

    Args:
        fn: A function of arrays, as ``autoshard.plan`` takes it.
        args: Its arguments: arrays, or ``jax.ShapeDtypeStruct``s in their place.
        clusters: Names, TOML files or ``autoshard.Cluster``s.
        batch: Sizes of the batch, dim 0 of the arguments that hold it; None: as it is.
        sequence: Lengths of its sequences, dim 1 of its ids; None: as they are.
        static_argnums: As in ``jax.jit``.
        static_argnames: As in ``jax.jit``.
        donate_argnums: As in ``jax.jit``.
        donate_argnames: As in ``jax.jit``.
        options: Of ``autoshard.plan``, for every point.

    Returns:
        A row a point; ``fewest_devices(step_seconds=1.5)`` of it says what is enough.

    Raises:
        PlanError: An option that is none, or no cluster.
    """
    from autoshard.frontend.lower import traced_for

    if not clusters:
        raise PlanError("sweep: no cluster is given. Give clusters=['v5e:4x4', 'v5p:2x2x2'].")
    try:
        request = Request(cluster=clusters[0], **options)
    except TypeError as error:
        raise PlanError(f"sweep: {error}. Options are those of autoshard.plan.") from error
    if request.pipeline == "auto":
        raise PlanError(
            "sweep: pipeline='auto' is chosen by autoshard.plan and autoshard.jit alone. Give"
            " pipeline=autoshard.Pipeline(..), or none."
        )
    traced = traced_for(
        fn,
        (args, {}),
        static=(static_argnums, static_argnames),
        donate=(donate_argnums, donate_argnames),
    )
    ranges = {"cluster": clusters, "batch": batch, "sequence": sequence}
    name = getattr(fn, "__name__", type(fn).__name__)
    return _Planning(request, traced).over(name, ranges)


# Planning ---------------------------------------------------------------------------------------


class _Planning:
    """Plans one function over and over; what can be read once is read once."""

    def __init__(
        self,
        request: Request,
        traced: Traced | None = None,
        source: Source | None = None,
        known: tuple[ImportedProgram, mlir.Module] | None = None,
    ) -> None:
        self.request = request
        self.traced = traced
        self.first = source
        self.known = known
        """A program that was read from a file."""
        self.sources: dict[tuple[Any, ...], Source] = {}
        self.programs: dict[tuple[Any, ...], tuple[ImportedProgram, mlir.Module] | None] = {}
        """What points search, by what they share; None: each is planned from the start."""
        self.sizes: dict[tuple[Any, ...], tuple[int | None, int | None]] = {}

    def over(self, name: str, ranges: Mapping[str, Any]) -> WhatIf:
        """A point for every combination of what varies."""
        given = {key: _listed(said) for key, said in ranges.items() if said is not None}
        unknown = [key for key in given if key not in (*OTHERS, *FACTORS)]
        if unknown or not given:
            raise PlanError(
                f"what_if: {unknown[0] if unknown else 'nothing'} is said to vary. What may vary:"
                f" {', '.join((*OTHERS, *FACTORS))}."
            )
        for key in ("batch", "sequence"):
            for size in given.get(key, ()):
                if not isinstance(size, int) or size < 1:
                    raise PlanError(f"what_if: {key}={size!r}: give a whole number above 0.")
        rows = [dict(zip(given, row, strict=True)) for row in product(*given.values())]
        return WhatIf(name, tuple(self._points(rows)))

    def _points(self, rows: Sequence[Mapping[str, Any]]) -> list[Point]:
        """All of them: those of a program that is read, one a core at a time; the largest first.

        Which core has nothing to do in the end then waits for a small one.
        """
        found: dict[int, Point] = {}
        for number, row in enumerate(rows):
            if not self._is_searched_again(row):
                found[number] = self._point(row)
        others = [number for number in range(len(rows)) if number not in found]
        others.sort(key=lambda number: -self._cluster(rows[number]).num_devices)
        # The search itself runs without Python's lock.
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            found.update(zip(others, pool.map(lambda n: self._point(rows[n]), others), strict=True))
        return [found[number] for number in range(len(rows))]

    def _is_searched_again(self, row: Mapping[str, Any]) -> bool:
        """Is this point a search of a program that several share? Reads the program at first."""
        if self.known is not None:
            return True
        key = self._key(row)
        if key not in self.programs:
            try:
                self.programs[key] = self._shared(row)
            except AutoshardError:
                return False  # the point itself says why
        return self.programs[key] is not None

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Points with one key search one program."""
        return _kind(self._cluster(row)), row.get("batch"), row.get("sequence")

    def _asked(self, row: Mapping[str, Any]) -> Request:
        changes = {key: row[key] for key in ("memory_limit", "overlap") if key in row}
        return replace(self.request, cluster=self._cluster(row), compiler=None, **changes)

    def _point(self, row: Mapping[str, Any]) -> Point:
        cluster = self._cluster(row)
        base = Point(row, cluster.name, cluster.num_devices, row.get("batch"))
        try:
            summary = self._planned(row)
            batch, tokens = self._size(row)
        except DoesNotFitError as error:
            missing = bytes_text(error.peak_bytes - error.memory_limit)
            return replace(
                base,
                peak_bytes=error.peak_bytes,
                memory_limit=error.memory_limit,
                reason=f"does not fit: {missing} too much",
            )
        except AutoshardError as error:
            return replace(base, reason=error.message)
        return replace(
            base,
            batch=batch,
            tokens=tokens,
            mesh=summary.mesh,
            step_seconds=summary.step_seconds,
            compute_seconds=summary.compute_seconds,
            communication_seconds=summary.communication_seconds,
            peak_bytes=summary.peak_bytes_per_device,
            memory_limit=summary.memory_limit,
        )

    def _cluster(self, row: Mapping[str, Any]) -> Cluster:
        asked = row.get("cluster", self.request.cluster)
        if asked is None and self.first is not None:
            asked = self.first.cluster  # what was detected
        assert asked is not None
        cluster = Cluster.of(asked, self.request.compiler)
        if "chips" in row:
            cluster = cluster_of_chips(cluster, row["chips"])
        return scaled(cluster, {key: row[key] for key in row if key in FACTORS})

    def _planned(self, row: Mapping[str, Any]) -> PlanSummary:
        """What a plan costs."""
        request = self._asked(row)
        program = self.known or self.programs.get(self._key(row))
        if program is not None:
            return _searched_again(*program, self._cluster(row), request)
        planned = plan_source(self._source(row), request, self.traced)
        assert planned.summary is not None
        return planned.summary

    def _shared(self, row: Mapping[str, Any]) -> tuple[ImportedProgram, mlir.Module] | None:
        """The program that all points of one key search; None where they cannot."""
        source, request = self._source(row), self._asked(row)
        job = job_of(source, request)
        is_plain = (
            source.mode == "auto"
            and not source.has_mesh
            and request.host_offload != "auto"
            and request.cost_model == "seconds"
            and request.micro_batches != "auto"
        )
        module = job.read(()) if is_plain else None
        if module is None or job.changes(module):
            return None
        read = read_module(module, self._cluster(row), job.options)
        is_pinned = any(pinned.is_users for pinned in read.imported.pins)
        return None if is_pinned else (read.imported, read.module)

    def _source(self, row: Mapping[str, Any]) -> Source:
        """The function lowered for such a cluster, batch and sequence."""
        key, cluster, request = self._key(row), self._cluster(row), self._asked(row)
        batch, sequence = row.get("batch"), row.get("sequence")
        is_as_it_was = batch is None and sequence is None
        if self.traced is None:
            if self.first is not None and is_as_it_was and _kind(cluster) == _kind_of(self.first):
                return self.sources.setdefault(key, self.first)
            raise PlanError(
                "the function is not known any more, so that it cannot be lowered for another batch"
                " or another kind of device. Ask what autoshard.plan returned."
            )
        if self.first is None:
            self.first = self.traced.source(request)
        first, traced = self.first, self.traced
        if batch is not None:
            traced = with_batch(first, traced, self._held(first), batch)
        if sequence is not None:
            traced = with_sequence(first, traced, self._held(first), sequence)
        if is_as_it_was and first.cluster is not None and _is_lowered_alike(first.cluster, cluster):
            self.sources[key] = replace(first, cluster=cluster)
        else:
            self.sources[key] = traced.source(request)
        return self.sources[key]

    def _size(self, row: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Examples and ids of a step, as far as the arguments tell."""
        if self.known is not None:
            return None, None
        key = self._key(row)
        if key not in self.sizes:
            source = self.sources[key]
            held = self._held(source)
            leaves = _tree.tree_leaves(cast(Any, source.program.stage).args_info)
            rows = {leaves[number].shape[0] for number in held}
            tokens = {prod(leaves[number].shape) for number in ids_among(leaves, held)}
            self.sizes[key] = _only(rows), _only(tokens)
        return self.sizes[key]

    def _held(self, source: Source) -> list[int]:
        """Arrays among the arguments that hold the batch."""
        return batch_of_source(source, self.request.batch_argnums)


def _searched_again(
    imported: ImportedProgram, module: mlir.Module, cluster: Cluster, request: Request
) -> PlanSummary:
    """What the search finds on another cluster, with its inputs cut alike."""
    return inputs_alike(search_imported(imported, module, cluster, request.options())).summary


def _only(sizes: set[int]) -> int | None:
    return next(iter(sizes)) if len(sizes) == 1 else None


def _listed(said: Any) -> list[Any]:
    return list(said) if isinstance(said, list | tuple | range) else [said]


def _kind(cluster: Cluster) -> tuple[Any, ...]:
    """Clusters of one kind are planned from one reading of a program."""
    return cluster.platform, cluster.compiler.does("schedule.late_gradients")


def _is_lowered_alike(one: Cluster, other: Cluster) -> bool:
    """Is it one cluster but for its numbers? Programs are lowered for devices, not for those."""
    shapes = [[(dim.name, dim.size, dim.kind) for dim in cluster.dims] for cluster in (one, other)]
    return one.name == other.name and _kind(one) == _kind(other) and shapes[0] == shapes[1]


def _kind_of(source: Source) -> tuple[Any, ...]:
    assert source.cluster is not None
    return _kind(source.cluster)
