"""``autoshard.calibrate``: the constants of a cluster, measured on the devices here."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from autoshard.calibration.fit import Quality, filling, fit_cluster, qualities
from autoshard.calibration.measure import ladders, measure_all
from autoshard.calibration.points import Model, Point
from autoshard.cluster.chips import Constant
from autoshard.cluster.cluster import Cluster
from autoshard.cluster.detect import detected
from autoshard.cluster.devices import physical_place
from autoshard.cluster.record import CalibrationRecord
from autoshard.errors import ClusterError
from autoshard.writing import write_file

ClusterLike = str | os.PathLike[str] | Cluster


@dataclass(frozen=True)
class Calibration:
    """A measured cluster, with the points that its constants fit."""

    cluster: Cluster
    points: tuple[Point, ...]
    notes: tuple[str, ...]
    """What was not measured, and why."""
    seconds: float
    """Seconds that measuring and fitting took."""

    def predicted(self) -> tuple[float, ...]:
        """Seconds of each point by the cost model with the measured constants."""
        model = Model(self.cluster)
        return tuple(model.seconds(point) for point in self.points)

    def qualities(self) -> list[Quality]:
        """How well the constants fit, by kind of point."""
        return qualities(self.cluster, self.points)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cluster as a TOML file, which ``cluster=`` takes everywhere.

        Raises:
            OutputError: It cannot be written.
        """
        write_file(str(path), self.cluster.to_toml().encode())

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write a plot of predicted over measured seconds; needs plotly, extra ``report``."""
        from autoshard.report.calibration_plot import write_html

        write_html(self, Path(path))

    def __str__(self) -> str:
        from autoshard.report.calibration_plot import calibration_report
        from autoshard.report.plan_table import render

        return render(calibration_report(self))


def calibrate(
    devices: Sequence[Any] | None = None,
    *,
    cluster: ClusterLike | None = None,
    path: str | os.PathLike[str] | None = "calibrated.toml",
    budget_seconds: float = 120.0,
    progress: bool = True,
) -> Calibration:
    """Measure matmuls, memory, elementwise work and collectives, and fit the cost model to them.

    All devices work at once, so that what they share (cores, memory, links) is shared as in a
    step. Tiles and the form of the topology are not measured.

    Args:
        devices: Of one process; None: ``jax.devices()``. One device has no links to measure.
        cluster: Its dims, and the constants of which there is no point: a name, a file or a
            ``Cluster`` of as many devices. None: the cluster that ``devices`` are known to be.
        path: TOML file that is written, for ``cluster=`` of later plans; None: none.
        budget_seconds: After which no further size is begun.
        progress: Show a bar on standard error, if that is a terminal.

    Raises:
        ClusterError: Devices that are no known cluster, of several processes, or of another number
            than ``cluster``'s.

    Example:
        ``autoshard.calibrate(path="my.toml"); autoshard.jit(step, cluster="my.toml")``
    """
    if budget_seconds <= 0:
        raise ClusterError(
            f"budget_seconds is {budget_seconds}. Give the seconds that measuring may take, such as"
            " 120."
        )
    chosen: list[Any] = list(cast("list[Any]", jax.devices()) if devices is None else devices)
    asked = Cluster.of(detected(chosen).name if cluster is None else cluster)
    _check(asked, chosen)
    base = replace(asked, order=())  # what is measured are the dims
    base = _with_memory(base, chosen)
    start = time.perf_counter()
    total = sum(len(ladder.steps) for ladder in ladders(base))
    with _bar(total, progress) as advance:
        measured = measure_all(base, sorted(chosen, key=physical_place), budget_seconds, advance)
    today = datetime.date.today().isoformat()
    source = f"measured {today}"
    points, growing = filling(measured.points)
    fitted = fit_cluster(base, points, source)
    record = CalibrationRecord(
        date=today,
        jax=jax.__version__,
        jaxlib=version("jaxlib"),
        platform=chosen[0].platform,
        device_kind=_kind(chosen[0]),
        num_devices=len(chosen),
        num_points=len(points),
    )
    name = f"{base.name}-calibrated"
    notes = measured.notes
    if growing:
        notes = (
            *notes,
            f"products of {', '.join(growing)} are faster the larger they are up to the largest"
            " that was measured; their rate is scaled from the other types",
        )
    if len(chosen) == 1:
        notes = ("one device: there are no collectives to measure", *notes)
    result = Calibration(
        replace(fitted, name=name, calibration=record, order=asked.order),
        points,
        notes,
        time.perf_counter() - start,
    )
    if path is not None:
        result.save(path)
    return result


def _check(cluster: Cluster, devices: Sequence[Any]) -> None:
    processes = {device.process_index for device in devices}
    if len(processes) > 1:
        raise ClusterError(
            f"calibrate measures the devices of one process, but these are of {len(processes)}."
            " Calibrate one host (devices=jax.local_devices()), and add the network's bandwidth and"
            " latency to the file."
        )
    if cluster.num_devices != len(devices):
        raise ClusterError(
            f"cluster {cluster.name} has {cluster.num_devices} devices, but {len(devices)} are"
            " to be measured. Give a cluster of as many, or other devices."
        )


def _with_memory(cluster: Cluster, devices: Sequence[Any]) -> Cluster:
    """Memory that the runtime gives a program; of CPUs a share of the machine's."""
    device = devices[0]
    statistics = cast("dict[str, int]", device.memory_stats() or {})
    if "bytes_limit" in statistics:
        found = Constant(float(statistics["bytes_limit"]), "bytes_limit of the runtime")
    elif device.platform == "cpu":
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found = Constant(float(whole // len(devices)), f"1/{len(devices)} of this machine's memory")
    else:
        return cluster
    return replace(cluster, chip=replace(cluster.chip, memory_bytes=found))


def _kind(device: Any) -> str:
    if device.platform != "cpu":
        return str(device.device_kind)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    return f"device on {os.cpu_count()} cores of {model}"


@contextmanager
def _bar(total: int, shown: bool) -> Generator[Callable[[str, int], None]]:
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("measuring"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda name, done: bar.update(task, description=name, advance=done)
