"""ResNet-50, a U-Net and ConvNeXt-T, as published: is a searched plan equal to one device?

    python bench/truth/image_networks.py [NAME ..]

Loss and all gradients in whole numbers (test/system/image_networks.py), compared bit for bit, on 8
virtual CPU devices: planned for the machine here and for two made-up clusters, with fast and with
slow links, each with Shardy and GSPMD. The exit status is 1 if one differs.
"""

from __future__ import annotations

import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 8)

TEST = Path(__file__).resolve().parents[2] / "test"
sys.path[:0] = [str(TEST / "system"), str(TEST)]

from equivalence import assert_equal, shardy, unsharded  # noqa: E402
from image_networks import Network, cut_images, networks  # noqa: E402

import autoshard  # noqa: E402

CLUSTERS = {
    "cpu:8": "cpu:8",
    "fast links": str(TEST / "fuzz" / "slow_chips.toml"),
    "slow links": str(TEST / "fuzz" / "slow_links.toml"),
}


def outcome(network: Network, cluster: str, wanted: Any) -> tuple[str, bool]:
    """A row, and whether the two are equal."""
    args = network.arguments()
    step = autoshard.jit(network.step, cluster=CLUSTERS[cluster])
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", autoshard.PlanMismatchWarning)
        plan = step.plan(*args)
        planned = time.perf_counter() - start
        found = jax.device_get(step(*args))
    try:
        assert_equal(found, wanted, 0.0)
        said, is_equal = "equal", True
    except AssertionError as error:
        said, is_equal = f"DIFFERS: {error}", False
    convolutions = [op for op in plan.ops if op.name == "convolution"]
    mismatches = sum(one.category is autoshard.PlanMismatchWarning for one in caught)
    return (
        f"{len(plan.ops):5} {cut_images(plan):4} of {len(convolutions):3}  {planned:7.1f}"
        f"  {time.perf_counter() - start:7.1f}  {mismatches:8}  {said}"
    ), is_equal


def main(names: list[str]) -> int:
    """Print one row a plan."""
    print(f"jax {jax.__version__}, {platform.machine()}, 8 virtual CPU devices")
    print("network     cluster     form      ops  images cut  plan (s)  all (s)  warnings")
    differing = 0
    for network in networks():
        if names and network.name not in names:
            continue
        wanted = unsharded(network.step, network.arguments())
        for cluster in CLUSTERS:
            for active in (True, False):
                with shardy(active):
                    row, is_equal = outcome(network, cluster, wanted)
                form = "shardy" if active else "gspmd"
                print(f"{network.name:10}  {cluster:10}  {form:6}  {row}", flush=True)
                differing += not is_equal
    print(f"{differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
