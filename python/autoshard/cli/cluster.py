"""The command ``autoshard-cluster``: what is known of a cluster, or is measured, and from where."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from autoshard.cli.output import printing
from autoshard.cluster.chips import FAMILIES
from autoshard.cluster.cluster import Cluster
from autoshard.cluster.detect import detected
from autoshard.errors import AutoshardError

_DETECT = "detect"
_CALIBRATE = "calibrate"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autoshard-cluster",
        description="Show chips, links and axes of a cluster, and the source of every constant.",
        epilog=f'"autoshard-cluster {_CALIBRATE}" measures the devices here and writes a file; see'
        " its --help. Known chips: "
        + "; ".join(f"{name}, {family.title}" for name, family in FAMILIES.items())
        + ".",
    )
    parser.add_argument(
        "cluster",
        metavar="CLUSTER",
        help=f'a name such as v5p:4x4x4 or h100:4x8, a TOML file, or "{_DETECT}" for the devices'
        " that jax finds here",
    )
    parser.add_argument(
        "--toml", action="store_true", help="print it as a TOML file, to change and use"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; errors go to standard error without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == [_CALIBRATE]:
            # Imported here: it needs jax, which the tables do not.
            from autoshard.cli import calibrate

            calibrate.main(words[1:])
            return 0
        options = _parser().parse_args(words)
        text: str = options.cluster
        cluster = Cluster.detect() if text == _DETECT else Cluster.of(text)
    except AutoshardError as error:
        print(f"autoshard-cluster: error: {error}", file=sys.stderr)
        return 1
    with printing():
        if text == _DETECT and not options.toml:
            print(f"{detected()}\n")
        print(cluster.to_toml() if options.toml else cluster.describe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
