"""Train steps of image networks as the search splits them: the bits of one device.

``bench/truth/image_networks.py`` runs the published sizes.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest
from equivalence import CLUSTER, assert_equal, shardy, unsharded
from image_networks import Network, cut_images, small_networks

import autoshard

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
CLUSTERS = (CLUSTER, str(FUZZ / "slow_chips.toml"), str(FUZZ / "slow_links.toml"))
"""The last two: links that are fast beside the chips, and links that are not."""


@cache
def on_one_device(network: Network) -> Any:
    return unsharded(network.step, network.arguments())


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda name: Path(name).stem)
@pytest.mark.parametrize("network", small_networks(), ids=lambda network: network.name)
def test_the_gradients_of_a_searched_plan_are_those_of_one_device(
    network: Network, cluster: str
) -> None:
    args = network.arguments()
    with shardy(cluster != CLUSTERS[-1]), warnings.catch_warnings():
        # Whether XLA moves as little as planned is not what is asked here.
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        step = autoshard.jit(network.step, cluster=cluster)
        found = jax.device_get(step(*args))
    loss, gradients = on_one_device(network)
    assert loss
    assert all(gradient.any() for gradient in gradients)
    assert_equal(found, (loss, gradients), 0.0)
    # Else nothing of what XLA gets wrong would have been asked.
    assert cluster == CLUSTER or cut_images(step.plan(*args))
