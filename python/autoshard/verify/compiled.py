"""Compare a compiled program with its plan; every difference is a sentence for the user."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from autoshard.planned.collective import Collective, CollectiveKind, total_bytes
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import AxisRef

_SHOWN = 3
"""Collectives named in one message, largest first."""


def collective_differences(
    planned: Iterable[Collective], compiled: Iterable[Collective], tolerance: float = 0.01
) -> list[str]:
    """Where the compiled program moves more bytes than the plan says.

    Compilers split, combine and reorder collectives, so bytes are compared, not ops: first those
    of the whole program and, if they are more, those along each set of mesh axes.

    Args:
        planned: From ``shardy_collectives``; for XLA's CPU compiler, through ``as_on_cpu``.
        compiled: From ``hlo_collectives``.
        tolerance: Part of the planned bytes that the compiler may add unnoticed.

    Returns:
        One message for each set of axes with more bytes than planned, largest difference first;
        empty if the whole program moves no more than planned.
    """
    planned, compiled = list(planned), list(compiled)
    if total_bytes(compiled) <= total_bytes(planned) * (1 + tolerance):
        return []
    planned_by_axes, compiled_by_axes = _by_axes(planned), _by_axes(compiled)
    more = {
        axes: total_bytes(found) - total_bytes(planned_by_axes.get(axes, []))
        for axes, found in compiled_by_axes.items()
    }
    return [
        _message(axes, planned_by_axes.get(axes, []), compiled_by_axes[axes])
        for axes in sorted(more, key=lambda axes: -more[axes])
        if more[axes] > 0
    ]


def differences_from_readings(
    readings: Sequence[Callable[[], Sequence[Collective]]],
    compiled: Sequence[Collective],
    mesh: Mesh,
    *,
    on_cpu: bool,
    besides: Callable[[], Sequence[Collective]] = tuple,
) -> list[str]:
    """None where XLA moves no more than one reading of the plan.

    A plan can be read in more than one way: as Shardy spells it out, or as the search counted it,
    whose reduce-scatters Shardy may gather. XLA may also reduce the first one axis by axis.

    Args:
        readings: The ways, at least one; the first is what messages speak of, and is read only if
            XLA moves more than each of the others.
        compiled: From ``hlo_collectives``.
        mesh: Of the plan.
        on_cpu: Was it XLA's CPU compiler?
        besides: What the compiler adds to each reading; asked only if XLA moves more without it.

    Returns:
        As ``collective_differences`` of the first reading, or nothing.
    """

    def made_of(read: Callable[[], Sequence[Collective]]) -> list[Collective]:
        reading = read()
        return [*(as_on_cpu(reading) if on_cpu else reading)]

    first, *others = readings
    made = [made_of(read) for read in others]
    if any(not collective_differences(reading, compiled) for reading in made):
        return []
    added = besides()
    if added and any(not collective_differences([*one, *added], compiled) for one in made):
        return []
    spelled = [*made_of(first), *added]
    found = collective_differences(spelled, compiled)
    if found and not collective_differences(axis_by_axis(spelled, mesh), compiled):
        return []
    return found


def as_on_cpu(collectives: Iterable[Collective]) -> list[Collective]:
    """What XLA's CPU compiler makes of planned collectives.

    It has no reduce-scatter, and makes an all-reduce; it sends bf16 as f32. Seen on jaxlib 0.10.2:
    ResNet-50 and Llama-2-7B of the corpus, where planned and compiled bytes are then the same.
    """
    found: list[Collective] = []
    for collective in collectives:
        if collective.kind is CollectiveKind.REDUCE_SCATTER:
            collective = replace(collective, kind=CollectiveKind.ALL_REDUCE)
        if collective.element == "bf16":
            collective = replace(collective, local_bytes=2 * collective.local_bytes, element="f32")
        found.append(collective)
    return found


def axis_by_axis(collectives: Iterable[Collective], mesh: Mesh) -> list[Collective]:
    """The same with every all-reduce over several axes as one for each axis.

    XLA's partitioner makes these where it sums over several dims of a tensor: ``jnp.sum`` of a
    matrix that is cut both ways.
    """
    found: list[Collective] = []
    for collective in collectives:
        if collective.kind is CollectiveKind.ALL_REDUCE and collective.axes is not None:
            for ref in collective.axes:
                size = mesh.axis_size(ref.name) if ref.size is None else ref.size
                found.append(replace(collective, axes=(ref,), group_size=size))
        else:
            found.append(collective)
    return found


_Axes = tuple[AxisRef, ...] | None


def _by_axes(collectives: Iterable[Collective]) -> dict[_Axes, list[Collective]]:
    groups: dict[_Axes, list[Collective]] = defaultdict(list)
    for collective in collectives:
        groups[collective.axes].append(collective)
    return dict(groups)


def _message(axes: _Axes, planned: list[Collective], compiled: list[Collective]) -> str:
    name = "irregular groups" if axes is None else f"axes {', '.join(map(str, axes))}"
    largest = sorted(compiled, key=lambda collective: -collective.total_bytes)
    named = "; ".join(map(str, largest[:_SHOWN]))
    others = f"; and {len(largest) - _SHOWN} more" if len(largest) > _SHOWN else ""
    return (
        f"over {name} each device sends {total_bytes(compiled):,.0f} bytes, planned are"
        f" {total_bytes(planned):,.0f}: {named}{others}."
    )
