"""The command ``autoshard-cluster calibrate``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

DEFAULT_PATH = "calibrated.toml"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autoshard-cluster calibrate",
        description="Measure matmuls, memory and collectives on the devices that jax finds here,"
        " and write the cluster with the constants that fit best.",
    )
    parser.add_argument(
        "-o", "--output", default=DEFAULT_PATH, help=f"TOML file to write ({DEFAULT_PATH})"
    )
    parser.add_argument(
        "--cluster", help="name or file of what the devices are, where that is not detected"
    )
    parser.add_argument(
        "--budget", type=float, default=120.0, help="seconds that measuring may take (120)"
    )
    parser.add_argument(
        "--virtual-devices",
        type=int,
        metavar="N",
        help="measure the CPU as N devices, as jax_num_cpu_devices makes them",
    )
    parser.add_argument("--html", help="file for a plot of the fit; needs autoshard[report]")
    return parser


def main(arguments: Sequence[str]) -> None:
    """Calibrate and write.

    Raises:
        AutoshardError: The devices cannot be measured.
    """
    options = _parser().parse_args(arguments)
    import jax

    if options.virtual_devices is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", options.virtual_devices)
    from autoshard.calibration.calibrate import calibrate
    from autoshard.report.calibration_plot import plotly

    if options.html:
        plotly()  # An error now, not after minutes of measuring.
    calibration = calibrate(
        cluster=options.cluster, path=options.output, budget_seconds=options.budget
    )
    print(calibration)
    print(f'wrote {options.output}; use it as cluster="{options.output}"')
    if options.html:
        calibration.save_html(options.html)
        print(f"wrote {options.html}")
