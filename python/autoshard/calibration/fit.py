"""Constants of the cost model that fit measured points best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.calibration.points import (
    ARITHMETIC,
    Exchange,
    Model,
    Point,
    Product,
    Stream,
    axes_of_dims,
)
from autoshard.cluster.chips import Constant
from autoshard.cluster.cluster import Cluster

Vector = NDArray[np.float64]

_NEAR = 0.2
"""Logarithms of ratios up to this count squared, larger ones by their size: one point that went
wrong does not move the others."""
_LEAST_SPAN = 16
"""Least ratio of the largest to the smallest bytes of a dim's collectives: below it bandwidth and
latency cannot be told apart, and the link stays as it was."""
_STILL_GROWS = 1.5
_MAX_ROUNDS = 200
_LEAST_SECONDS = 1e-10
"""Where the search for a latency ends that the points do not show."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How well points of one kind fit."""

    kind: str
    points: int
    median_ratio: float
    """Median of the ratio of predicted to measured seconds."""
    median_error: float
    """Median of the factor between predicted and measured seconds, less 1."""
    worst_error: float


def fit_cluster(base: Cluster, points: Sequence[Point], source: str) -> Cluster:
    """``base`` with the constants that fit ``points``.

    Minimises the logarithm of predicted / measured over all points, each counting alike, with
    Huber's loss: first rates and launch of the ops, all at once, then each dim's bandwidth and
    latency by the collectives along that dim alone. Tiles stay those of ``base``.

    Args:
        base: Dims and tiles, and every constant of which there is no point. Matmul rates without
            points are scaled as those with points came out.
        points: As measured on ``base``'s dims.
        source: Of the numbers, such as "measured on 2026-01-31 with jax 0.10.2".
    """
    cluster = _fit_chip(base, [p for p in points if not isinstance(p.work, Exchange)], source)
    exchanges = [p for p in points if isinstance(p.work, Exchange)]
    for index in range(len(cluster.dims)):
        cluster = _fit_dim(cluster, index, exchanges, source)
    return cluster


def filling(points: Sequence[Point]) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """The points without products of a type whose rate still grows with the largest ones, and the
    names of such types: what a full chip reaches was not measured."""
    by_type: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        if isinstance(point.work, Product):
            rate = point.work.flops / point.seconds
            by_type.setdefault(point.work.arithmetic, []).append((point.work.flops, rate))
    growing = tuple(name for name, rates in by_type.items() if _grows(rates))
    kept = (p for p in points if not (isinstance(p.work, Product) and p.work.arithmetic in growing))
    return tuple(kept), growing


def _grows(rates: Sequence[tuple[float, float]]) -> bool:
    """Whether the largest products are much faster than those of a quarter of their operations."""
    largest = max(flops for flops, _ in rates)
    smaller = [rate for flops, rate in rates if flops <= largest / 4]
    return bool(smaller) and max(rate for _, rate in rates) > _STILL_GROWS * max(smaller)


def qualities(cluster: Cluster, points: Sequence[Point]) -> list[Quality]:
    """How well the model with ``cluster``'s constants fits, by kind of point."""
    model = Model(cluster)
    by_kind: dict[str, list[float]] = {}
    for point in points:
        by_kind.setdefault(point.kind, []).append(model.seconds(point) / point.seconds)
    found: list[Quality] = []
    for kind, ratios in by_kind.items():
        errors = np.exp(np.abs(np.log(ratios))) - 1
        found.append(
            Quality(
                kind,
                len(ratios),
                float(np.median(ratios)),
                float(np.median(errors)),
                float(np.max(errors)),
            )
        )
    return found


def minimise(residuals: Callable[[Vector], Vector], start: Vector) -> tuple[Vector, float]:
    """Levenberg-Marquardt with Huber's loss; returns the place and its loss.

    Args:
        residuals: Of a place.
        start: Where to begin.
    """

    def loss(r: Vector) -> float:
        size = np.abs(r)
        return float(np.sum(np.where(size <= _NEAR, r * r / 2, _NEAR * (size - _NEAR / 2))))

    at, damping = start, 1e-2
    here = residuals(at)
    best = loss(here)
    for _ in range(_MAX_ROUNDS):
        slopes = np.stack(
            [(residuals(at + step) - here) / 1e-6 for step in 1e-6 * np.eye(len(at))], axis=1
        )
        weights = np.minimum(1, _NEAR / np.maximum(np.abs(here), 1e-30))
        curvature = slopes.T @ (weights[:, None] * slopes)
        downhill = -slopes.T @ (weights * here)
        scale = np.diag(np.diag(curvature) + 1e-9)
        move = np.clip(np.linalg.solve(curvature + damping * scale, downhill), -2, 2)
        there = residuals(at + move)
        if loss(there) < best:
            at, here, damping = at + move, there, max(damping / 5, 1e-12)
            settled = best - loss(here) <= 1e-15 * best
            best = loss(here)
            if settled or best < 1e-24:
                break
        elif damping > 1e12:
            break
        else:
            damping *= 4
    return at, best


# --- ops ---


def _fit_chip(base: Cluster, points: Sequence[Point], source: str) -> Cluster:
    if not points:
        return base
    measured = np.log([point.seconds for point in points])
    keys, start = _first_guess(points)

    def chip_of(place: Vector) -> Cluster:
        return _with_chip(base, dict(zip(keys, np.exp(place), strict=True)))

    def residuals(place: Vector) -> Vector:
        model = Model(chip_of(place))
        return np.log([model.seconds(point) for point in points]) - measured

    place, _ = minimise(residuals, np.log(start))
    fitted = dict(zip(keys, map(float, np.exp(place)), strict=True))
    return _split_efficiency(base, points, fitted, source)


def _first_guess(points: Sequence[Point]) -> tuple[list[str], list[float]]:
    """Rates that no point exceeds, so that each point is bound by what it is meant to show."""
    guess: dict[str, float] = {}
    for point in points:
        match point.work:
            case Product(arithmetic=arithmetic) as product:
                key, value = f"matmul_{arithmetic}", product.flops / point.seconds
            case Stream() as stream if point.kind == "launch":
                key, value = "launch_seconds", 1 / point.seconds
            case Stream() as stream if point.kind == "memory":
                moved = stream.bytes_read + stream.bytes_written
                key, value = "memory_bandwidth", moved / point.seconds
            case Stream() as stream:
                key, value = "vector_flops", stream.flops / point.seconds
            case Exchange():
                continue
        guess[key] = max(guess.get(key, 0.0), value)
    if "launch_seconds" in guess:
        guess["launch_seconds"] = 1 / guess["launch_seconds"]
    return list(guess), list(guess.values())


def _with_chip(base: Cluster, values: Mapping[str, float]) -> Cluster:
    """Reached rates instead of peaks, where there are values."""
    constants: dict[str, Any] = {key: Constant(value, "") for key, value in values.items()}
    if any(key.startswith("matmul_") for key in values):
        constants["matmul_efficiency"] = Constant(1.0, "")
    if "memory_bandwidth" in values:
        constants["memory_efficiency"] = Constant(1.0, "")
    return replace(base, chip=replace(base.chip, **constants))


def _split_efficiency(
    base: Cluster, points: Sequence[Point], fitted: Mapping[str, float], source: str
) -> Cluster:
    """Peaks are the best points; the efficiencies make peak x efficiency the fitted rates."""
    keys, best = _first_guess(points)
    peaks = dict(zip(keys, best, strict=True))
    counts = {key: sum(1 for p in points if _first_guess([p])[0] == [key]) for key in keys}
    constants: dict[str, Any] = {}

    def said(key: str, what: str = "fit of") -> str:
        return f"{source}: {what} {counts[key]} points"

    rates = {key: value for key, value in fitted.items() if key.startswith("matmul_")}
    if rates:
        share = min(1.0, float(np.median([rates[key] / peaks[key] for key in rates])))
        constants["matmul_efficiency"] = Constant(
            share, f"{source}: fitted rate over the best one, median over types measured"
        )
        old_share = base.chip.matmul_efficiency.value
        known = base.chip.constants()
        scale = float(np.median([rates[key] / (known[key].value * old_share) for key in rates]))
        for key in (f"matmul_{name}" for name in ARITHMETIC):
            if key in rates:
                constants[key] = Constant(rates[key] / share, said(key))
            else:
                constants[key] = Constant(
                    known[key].value * old_share * scale / share,
                    f"not measured: {scale:.3g} times that of {base.name}, as the types that were",
                )
    if "memory_bandwidth" in fitted:
        share = min(1.0, fitted["memory_bandwidth"] / peaks["memory_bandwidth"])
        constants["memory_bandwidth"] = Constant(
            fitted["memory_bandwidth"] / share, said("memory_bandwidth", "best of")
        )
        constants["memory_efficiency"] = Constant(share, said("memory_bandwidth"))
    for key in ("vector_flops", "launch_seconds"):
        if key in fitted:
            constants[key] = Constant(fitted[key], said(key))
    return replace(base, chip=replace(base.chip, **constants))


# --- links ---


def _fit_dim(cluster: Cluster, index: int, points: Sequence[Point], source: str) -> Cluster:
    dim = cluster.dims[index]
    mine = [p for p in points if _dims_of(cluster, p) == {index}]
    sizes = [_held_bytes(point) for point in mine]
    if not sizes or max(sizes) < _LEAST_SPAN * min(sizes):
        return cluster
    measured = np.log([point.seconds for point in mine])

    def with_link(bandwidth: float, latency: float, said: str = "") -> Cluster:
        changed = replace(dim, bandwidth=Constant(bandwidth, said), latency=Constant(latency, said))
        dims = (*cluster.dims[:index], changed, *cluster.dims[index + 1 :])
        return replace(cluster, dims=dims)

    def link_of(place: Vector) -> tuple[float, float]:
        bandwidth, latency = map(float, np.exp(place))
        return bandwidth, max(latency, _LEAST_SECONDS)

    def residuals(place: Vector) -> Vector:
        model = Model(with_link(*link_of(place)))
        return np.log([model.seconds(point) for point in mine]) - measured

    fastest = max(_held_bytes(p) / p.seconds for p in mine)
    shortest = min(p.seconds for p in mine)
    starts = [
        np.log([fastest * more, shortest * less]) for more in (0.3, 1, 3) for less in (1, 0.1)
    ]
    place, _ = min((minimise(residuals, start) for start in starts), key=lambda found: found[1])
    return with_link(*link_of(place), f"{source}: fit of {len(mine)} points")


def _held_bytes(point: Point) -> int:
    assert isinstance(point.work, Exchange)
    return point.work.held_bytes


def _dims_of(cluster: Cluster, point: Point) -> set[int]:
    assert isinstance(point.work, Exchange)
    names = {axis: d for d, axes in enumerate(axes_of_dims(cluster)) for axis in axes}
    return {names[axis] for axis in point.work.axes}
