"""Calibration: the fit gives back what made the points, the file keeps it, plans use it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard import AutoshardError, Cluster, ClusterError
from autoshard.calibration.calibrate import Calibration, calibrate
from autoshard.calibration.fit import filling, fit_cluster, minimise, qualities
from autoshard.calibration.measure import ladders
from autoshard.calibration.points import (
    Exchange,
    Model,
    Point,
    Product,
    Stream,
    axes_of_dims,
    device_groups,
)
from autoshard.cli import cluster as cli
from autoshard.cluster import Constant
from autoshard.cluster.record import CalibrationRecord
from autoshard.report.calibration_plot import text_plot

RECORD = CalibrationRecord("2026-01-31", "0.10.2", "0.10.2", "cpu", "some processor", 8, 120)


def with_values(cluster: Cluster, **values: float) -> Cluster:
    constants = {key: Constant(value, "made up") for key, value in values.items()}
    return replace(cluster, chip=replace(cluster.chip, **constants))


def with_links(cluster: Cluster, *links: tuple[float, float]) -> Cluster:
    dims = tuple(
        replace(dim, bandwidth=Constant(bandwidth, "made up"), latency=Constant(latency, "made up"))
        for dim, (bandwidth, latency) in zip(cluster.dims, links, strict=True)
    )
    return replace(cluster, dims=dims)


def points_of(truth: Cluster) -> list[Point]:
    """What would be measured on ``truth``, without noise."""
    model = Model(truth)
    works = [step for ladder in ladders(truth) for step in ladder.steps]
    points = [Point(work, 1.0, 0 if isinstance(work, Product) else 1) for work in works]
    return [replace(point, seconds=model.seconds(point)) for point in points]


CPU = with_links(
    with_values(
        Cluster.parse("cpu:8"),
        **{"matmul_f64": 3e9, "matmul_f32": 9e9, "matmul_f16": 11e9, "matmul_f8": 2e9},
        **{"matmul_i8": 5e9, "vector_flops": 1.5e9, "memory_bandwidth": 7e9},
        **{"matmul_efficiency": 1.0, "memory_efficiency": 1.0, "launch_seconds": 9e-6},
    ),
    (0.9e9, 23e-6),
)
TORUS = with_links(Cluster.parse("v5p:4x4x4"), (50e9, 2e-6), (60e9, 3e-6), (70e9, 1e-6))
# Slower than products in f64, which the model else gives to the vector unit.
NODES = with_values(Cluster.parse("h100:4x8"), vector_flops=30e12)
NODES = with_links(NODES, (20e9, 30e-6), (200e9, 6e-6))
FITTED = ("matmul_f64", "matmul_f32", "matmul_f16", "matmul_f8", "matmul_i8")


def reached(cluster: Cluster) -> dict[str, float]:
    """Rates with their efficiency, which is what the model uses."""
    chip = cluster.chip
    rates = {key: value.value for key, value in chip.constants().items()}
    rates = {key: rates[key] * rates["matmul_efficiency"] for key in FITTED}
    rates["memory"] = chip.memory_bandwidth.value * chip.memory_efficiency.value
    return rates | {"vector": chip.vector_flops.value, "launch": chip.launch_seconds.value}


@pytest.mark.parametrize("truth", [CPU, NODES], ids=lambda cluster: cluster.name)
def test_fit_gives_back_the_rates_that_made_the_points(truth: Cluster):
    fitted = fit_cluster(Cluster.parse(truth.name), points_of(truth), "made up")
    assert reached(fitted) == pytest.approx(reached(truth), rel=1e-4)


@pytest.mark.parametrize("truth", [CPU, TORUS, NODES], ids=lambda cluster: cluster.name)
def test_fit_gives_back_the_links_that_made_the_points(truth: Cluster):
    exchanges = [point for point in points_of(truth) if isinstance(point.work, Exchange)]
    base = replace(Cluster.parse(truth.name), chip=truth.chip)
    fitted = fit_cluster(base, exchanges, "made up")
    for dim, wanted in zip(fitted.dims, truth.dims, strict=True):
        assert dim.bandwidth.value == pytest.approx(wanted.bandwidth.value, rel=1e-4)
        assert dim.latency.value == pytest.approx(wanted.latency.value, rel=1e-4)


def test_one_point_that_went_wrong_moves_the_fit_by_little():
    points = points_of(CPU)
    wrong = next(i for i, p in enumerate(points) if p.kind == "matmul f32" and p.seconds > 1e-3)
    points[wrong] = replace(points[wrong], seconds=50 * points[wrong].seconds)
    fitted = fit_cluster(Cluster.parse("cpu:8"), points, "made up")
    assert reached(fitted)["matmul_f32"] == pytest.approx(9e9, rel=0.05)
    worst = {quality.kind: quality.worst_error for quality in qualities(fitted, points)}
    assert worst["matmul f32"] > 10


def test_types_without_points_are_scaled_as_the_measured_ones():
    base = with_values(Cluster.parse("cpu:8"), vector_flops=CPU.chip.vector_flops.value)
    points = [p for p in points_of(CPU) if p.kind in ("matmul f32", "launch", "memory")]
    fitted = fit_cluster(base, points, "made up")
    scale = 9e9 / reached(base)["matmul_f32"]
    wanted = reached(base)["matmul_f64"] * scale
    assert reached(fitted)["matmul_f64"] == pytest.approx(wanted, rel=1e-4)
    assert fitted.chip.matmul_f64.source.startswith("not measured")
    assert fitted.chip.vector_flops == base.chip.vector_flops
    assert fitted.dims == base.dims


@pytest.mark.parametrize(("gibibytes", "moved"), [(16, 128), (1, 32), (0.25, 8)])
def test_memory_is_measured_beyond_caches_where_there_is_room(gibibytes: float, moved: int):
    chip = replace(CPU.chip, memory_bytes=Constant(gibibytes * 2**30, "a test"))
    (first, *_), *_ = (
        each.steps for each in ladders(replace(CPU, chip=chip)) if each.name == "memory"
    )
    assert isinstance(first, Stream)
    assert first.bytes_read + first.bytes_written == moved * 2**20


def test_types_whose_rate_still_grows_were_not_measured():
    def cubes(name: str, *rates: float) -> list[Point]:
        works = [Product(name, 16, n, n, n) for n in (256, 512, 1024)[: len(rates)]]
        return [Point(work, work.flops / rate) for work, rate in zip(works, rates, strict=True)]

    reached, growing = cubes("f32", 1e12, 5e12, 6e12), cubes("f16", 1e12, 5e12)
    assert filling([*reached, *growing]) == (tuple(reached), ("f16",))
    # One point says nothing of others.
    assert filling(cubes("f8", 1e12)) == (tuple(cubes("f8", 1e12)), ())


def test_links_that_were_measured_at_one_size_stay_as_they_were():
    points = [point for point in points_of(CPU) if isinstance(point.work, Exchange)]
    least = min(point.work.held_bytes for point in points if isinstance(point.work, Exchange))
    small = [p for p in points if isinstance(p.work, Exchange) and p.work.held_bytes <= 4 * least]
    assert len(small) > 5
    base = Cluster.parse("cpu:8")
    assert fit_cluster(base, small, "made up").dims == base.dims


def test_minimise_finds_the_least_squares_of_a_line():
    x = np.arange(10.0)
    place, loss = minimise(lambda p: p[0] + p[1] * x - (3 + 0.05 * x), np.zeros(2))
    assert place == pytest.approx([3, 0.05], abs=1e-8)
    assert loss < 1e-12


def test_device_groups_are_those_that_the_model_tells_apart():
    assert axes_of_dims(Cluster.parse("h100:4x8"))[0] == ("node0", "node1")
    assert device_groups(Cluster.parse("cpu:8")) == [
        ("cpu2",),
        ("cpu1", "cpu2"),
        ("cpu0", "cpu1", "cpu2"),
    ]
    rings = device_groups(Cluster.parse("v5p:4x4x4"))
    assert ("x0",) in rings
    assert ("x1",) in rings
    assert ("x0", "x1", "y0", "y1", "z0", "z1") in rings
    assert device_groups(Cluster.parse("cpu:1")) == []


def test_file_keeps_the_record_and_the_sources(tmp_path: Path):
    calibration = Calibration(replace(CPU, calibration=RECORD), (), (), 1.0)
    calibration.save(tmp_path / "my.toml")
    read = Cluster.of(str(tmp_path / "my.toml"))
    assert read == calibration.cluster
    assert read.calibration == RECORD
    assert "measured on 2026-01-31, 120 points on 8 x some processor" in read.describe()
    assert "[calibration]" not in Cluster.parse("cpu:8").to_toml()


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("num_points = 120", "num_points = 1.5", r"calibration\.num_points = 1\.5 is no whole"),
        ('jax = "0.10.2"\n', "", r"calibration\.jax is missing"),
        ("platform", "plattform", r'calibration\.plattform is no key.*"platform"'),
    ],
)
def test_errors_of_the_record_name_the_key(tmp_path: Path, old: str, new: str, match: str):
    path = tmp_path / "my.toml"
    path.write_text(replace(CPU, calibration=RECORD).to_toml().replace(old, new))
    with pytest.raises(ClusterError, match=match):
        Cluster.of(path)


def test_plans_are_costed_with_the_constants_of_the_file(tmp_path: Path):
    slow = with_links(Cluster.parse("cpu:8"), (1e6, 1e-3))
    (tmp_path / "slow.toml").write_text(slow.to_toml())

    def step(w: Any, x: Any) -> Any:
        return x @ w

    args = (jnp.zeros((64, 64)), jnp.zeros((64, 64)))
    pins = (P("m", None), P(None, "m"))
    plans = [
        autoshard.plan(step, *args, cluster=c, mesh="m=8", mode="semi_auto", in_shardings=pins)
        for c in ("cpu:8", str(tmp_path / "slow.toml"))
    ]
    assert plans[0].communication_seconds > 0
    # A reduce-scatter of 16 KiB: seven steps, and seven eighths of the bytes.
    assert plans[1].communication_seconds == pytest.approx(7e-3 + 7 / 8 * 16384 / 1e6)
    assert plans[1].compute_seconds == plans[0].compute_seconds


def test_devices_of_another_number_than_the_cluster_are_an_error():
    with pytest.raises(ClusterError, match="cpu:4 has 4 devices, but 8 are to be measured"):
        calibrate(cluster="cpu:4", path=None)


def test_devices_of_several_processes_are_an_error():
    class Device:
        device_kind = "cpu"
        platform = "cpu"

        def __init__(self, process: int) -> None:
            self.process_index = process

    with pytest.raises(ClusterError, match=r"one process, but these are of 2\. Calibrate one host"):
        calibrate([Device(0), Device(1)], path=None)


def test_a_budget_of_nothing_is_an_error():
    with pytest.raises(ClusterError, match="budget_seconds is 0"):
        calibrate(budget_seconds=0, path=None)


def test_one_device_is_calibrated_without_collectives():
    calibration = calibrate(jax.devices()[:1], path=None, budget_seconds=1e-9, progress=False)
    assert calibration.cluster.dims == ()
    assert "one device: there are no collectives to measure" in calibration.notes
    assert any("were not enough" in note for note in calibration.notes)


def test_command_writes_a_file_that_planning_accepts(tmp_path: Path):
    """Structure only: what the numbers are depends on the machine and on who else uses it."""
    path = tmp_path / "two.toml"
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, "-m", "autoshard.cli.cluster", "calibrate", "-o", str(path)]
    ran = subprocess.run(
        [*command, "--virtual-devices", "2", "--budget", "4"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    cluster = Cluster.of(str(path))
    assert cluster.name == "cpu:2-calibrated"
    assert [dim.size for dim in cluster.dims] == [2]
    assert cluster.calibration is not None
    assert cluster.calibration.jax == jax.__version__
    assert cluster.calibration.num_devices == 2
    assert cluster.chip.launch_seconds.source.startswith("measured ")
    assert "predicted (up) over measured (right)" in ran.stdout
    assert str(path) in ran.stdout
    plan = autoshard.plan(jnp.matmul, *[jnp.zeros((64, 64))] * 2, cluster=str(path))
    assert plan.step_seconds > 0


def test_plot_as_html_needs_plotly(tmp_path: Path):
    points = tuple(points_of(CPU))
    calibration = Calibration(replace(CPU, calibration=RECORD), points, (), 1.0)
    path = tmp_path / "fit.html"
    if importlib.util.find_spec("plotly") is None:
        with pytest.raises(AutoshardError, match=r"needs plotly.*autoshard\[report\]"):
            calibration.save_html(path)
    else:
        calibration.save_html(path)
        assert "matmul f32" in path.read_text()


def test_points_that_fit_lie_on_the_diagonal_of_the_plot():
    calibration = Calibration(replace(CPU, calibration=RECORD), tuple(points_of(CPU)), (), 1.0)
    rows = text_plot(calibration).splitlines()[1:-2]
    places = [{at for at, mark in enumerate(row[1:]) if mark not in " ."} for row in rows]
    assert sum(map(len, places)) > 20
    for line, columns in enumerate(reversed(places)):
        assert all(abs((column + 0.5) / 72 - (line + 0.5) / 22) <= 1 / 22 for column in columns)


def test_command_asks_for_plotly_before_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    output = tmp_path / "cluster.toml"
    words = ["calibrate", "-o", str(output), "--html", str(tmp_path / "fit.html")]
    assert cli.main(words) == 1
    assert "a plot as HTML needs plotly" in capsys.readouterr().err
    assert not output.exists()


def test_command_reports_errors_in_a_line(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["calibrate", "--cluster", "cpu:3", "-o", "unused.toml"]) == 1
    assert "autoshard-cluster: error: cluster cpu:3 has 3 devices" in capsys.readouterr().err
