"""The headline in words: lines, and tables that a terminal, Markdown and HTML show alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.explain.headline import Headline, Part
from autoshard.explain.record import Record
from autoshard.planned.summary import bytes_text, seconds_text

MOST_FUNCTIONS = 12
MOST_COLLECTIVES = 10
_LONGEST_SCOPE = 36


@dataclass(frozen=True, slots=True)
class TextTable:
    """Columns with names, rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def headline_lines(found: Headline) -> Iterator[str]:
    """The step, its bottleneck, memory and bound; a line each."""
    summary = found.summary
    step = summary.step_seconds
    hidden = summary.communication_seconds - found.exposed_seconds
    parts = [
        f"compute {seconds_text(summary.compute_seconds)}",
        f"exposed communication {seconds_text(found.exposed_seconds)}"
        + (f" ({seconds_text(hidden)} more are hidden)" if hidden > step * 1e-6 else ""),
    ]
    if summary.host_exposed_seconds:
        parts.append(f"host transfers {seconds_text(summary.host_exposed_seconds)}")
    on = f"{summary.devices} devices of {summary.cluster}"
    name = found.name or "a module"
    yield f"{name} on mesh {found.mesh} ({on})"
    yield f"step {seconds_text(step)} = {' + '.join(parts)}"
    worst = found.bottleneck
    part = found.worst_function
    where = "" if part is None else f", most of all in {_where(part)}"
    share = "" if part is None else f", {_share(part.spent_on(worst.what), step)}"
    yield f"bottleneck: {worst.what}, {_share(worst.seconds, step)} of the step{where}{share}"
    yield _memory_line(found)
    if summary.gap is None:
        yield "bound: none is known, as nothing was searched by time"
    else:
        yield (
            f"bound: {seconds_text(summary.lower_bound_seconds)}, the plan is {summary.gap:.1%}"
            f" above it ({summary.bound_covers})"
        )
    if found.missing is not None:
        yield found.missing
    if summary.recompute_seconds:
        yield f"computing again takes {seconds_text(summary.recompute_seconds)} of the step"


def _memory_line(found: Headline) -> str:
    summary = found.summary
    peak, limit = summary.peak_bytes_per_device, summary.memory_limit
    at = "" if summary.peak_line is None else f", at {_short(summary.peak_line)}"
    allowed = "" if limit is None else f" of {bytes_text(limit)} allowed ({_share(peak, limit)})"
    return f"memory {bytes_text(peak)} a device{allowed}{at}"


def headline_tables(found: Headline, record: Record) -> Iterator[TextTable]:
    """What the step is spent on, by phase, by function, and the dearest collectives."""
    step = found.summary.step_seconds
    yield TextTable(
        "A step is spent on",
        ("", "seconds", "share"),
        tuple(
            (share.what, seconds_text(share.seconds), _share(share.seconds, step))
            for share in found.shares
        ),
    )
    if len(found.phases) > 1:
        yield _parts("By phase", "phase", found.phases, step, has_place=False)
    yield _parts("By function", "function", found.functions, step, has_place=True)
    yield _collectives(record, found)


_COLUMNS = ("ops", "seconds", "share", "compute", "exposed", "roofline", "wasted", "bound by")


def _parts(title: str, kind: str, parts: Sequence[Part], step: float, has_place: bool) -> TextTable:
    shown = parts[:MOST_FUNCTIONS]
    place = ("line",) if has_place else ()
    rows = [
        (
            short_scope(part.name),
            *((part.place,) if has_place else ()),
            str(part.ops),
            seconds_text(part.seconds),
            _share(part.seconds, step),
            _seconds(part.compute_seconds),
            _seconds(part.exposed_seconds),
            _distance(part),
            _seconds(part.wasted_seconds),
            part.bound.partition(" (")[0],
        )
        for part in shown
    ]
    rest = parts[len(shown) :]
    if rest:
        seconds = sum(part.seconds for part in rest)
        rows.append(
            (
                f"and {len(rest)} more",
                *(("",) if has_place else ()),
                str(sum(part.ops for part in rest)),
                seconds_text(seconds),
                _share(seconds, step),
                seconds_text(sum(part.compute_seconds for part in rest)),
                seconds_text(sum(part.exposed_seconds for part in rest)),
                "",
                seconds_text(sum(part.wasted_seconds for part in rest)),
                "",
            )
        )
    return TextTable(title, (kind, *place, *_COLUMNS), tuple(rows))


def _collectives(record: Record, found: Headline) -> TextTable:
    step = found.summary.step_seconds
    shown = record.collectives[:MOST_COLLECTIVES]
    rows = [
        (
            one.kind,
            ", ".join(one.axes or ("irregular groups",)),
            f"{one.value} {one.type}".strip(),
            short_scope(one.scope) or one.of,
            _short(one.location),
            f"{one.times:,.0f}",
            bytes_text(one.total_bytes),
            seconds_text(one.seconds or 0.0),
            _share(one.seconds or 0.0, step),
        )
        for one in shown
    ]
    rest = record.collectives[len(shown) :]
    if rest:
        seconds = sum(one.seconds or 0.0 for one in rest)
        times = f"{sum(one.times for one in rest):,.0f}"
        sent = bytes_text(sum(one.total_bytes for one in rest))
        first = f"and {len(rest)} more"
        rows.append(
            (first, "", "", "", "", times, sent, seconds_text(seconds), _share(seconds, step))
        )
    columns = ("collective", "over", "of", "for", "line", "times", "sent", "seconds", "of the step")
    return TextTable("Collectives, dearest first", columns, tuple(rows))


def _distance(part: Part) -> str:
    """How many times as long as at the roofline."""
    if part.roofline_seconds <= 0:
        return ""
    return f"{part.compute_seconds / part.roofline_seconds:.2f} x"


def _where(part: Part) -> str:
    name = short_scope(part.name)
    return f"{name} ({part.place})" if part.place else name


def short_scope(scope: str) -> str:
    """The inner part of a long one: ``../layers/*/mlp/down_proj``."""
    if len(scope) <= _LONGEST_SCOPE or "/" not in scope:
        return scope
    parts = scope.split("/")
    while len(parts) > 1 and len("/".join(parts)) > _LONGEST_SCOPE:
        parts.pop(0)
    return "/".join(["..", *parts])


def _seconds(seconds: float) -> str:
    """Nothing for none."""
    return seconds_text(seconds) if seconds > 0 else ""


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else ""


def _short(location: str | None) -> str:
    """``model.py:42`` of ``/home/me/model.py:42``."""
    return "" if location is None else location.rpartition("/")[2]
