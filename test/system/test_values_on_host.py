"""Values that wait on the host between the halves of a step give equal results."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
import test_replaced_policies as programs
from jax.sharding import PartitionSpec
from plan_cases import WHOLE_PRODUCTS

import autoshard
from autoshard.frontend import planning
from autoshard.passes import fitting

both_forms = pytest.mark.parametrize("scans", [False, True], ids=["unrolled", "scanned"])
OPTIONS: Any = {
    "cluster": "cpu:8",
    # Straight-line code sends values as well.
    # So is memory of such small values, of which tiles hold little, left as it is.
    "compiler": f"{WHOLE_PRODUCTS},schedule.fetches_at_once,layout.tile_rows,layout.tile_columns",
    "policy": "replace",
    "mesh": "d=8",
    "in_shardings": (None, PartitionSpec("d")),
}


@functools.cache
def planned(scans: bool, share: float | None = None, **options: Any) -> autoshard.Plan:
    """A step within a share of the memory that it takes freely."""
    if share is not None:
        options["memory_limit"] = int(share * planned(scans).peak_bytes)
    fn = programs.step(None, scans)
    return autoshard.plan(fn, *programs.arguments(), **OPTIONS, **options)


POLICY = """\
jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=["out"],
    names_which_can_be_offloaded=["up"],
    offload_src="device",
    offload_dst="pinned_host",
)"""


def summary_of(plan: autoshard.Plan) -> Any:
    assert plan.summary is not None
    return plan.summary


def decisions(plan: autoshard.Plan) -> set[str]:
    return {one.decision for one in summary_of(plan).decided}


@both_forms
@pytest.mark.parametrize("recompute", ["marks", "auto"])
def test_sent_computed_again_and_kept_steps_are_equal(scans: bool, recompute: Any) -> None:
    fn = programs.step(None, scans)
    share = 0.7
    options = {"recompute": recompute, "host_offload": "auto"}
    limit = int(share * planned(scans).peak_bytes)
    step = autoshard.jit(fn, memory_limit=limit, **OPTIONS, **options)
    result = step(*programs.arguments())
    assert decisions(planned(scans, share, **options)) & {"host", "recompute"}
    jax.tree.map(np.testing.assert_array_equal, result, jax.jit(fn)(*programs.arguments()))


@both_forms
def test_what_is_sent_takes_the_memory_of_the_host(scans: bool) -> None:
    free, plan = planned(scans), planned(scans, 0.7, host_offload="auto")
    sent = [one for one in summary_of(plan).decided if one.decision == "host"]
    assert sent
    assert plan.peak_bytes <= 0.7 * free.peak_bytes
    assert summary_of(plan).host_transfer_bytes == 2 * sum(one.bytes for one in sent)
    assert not any(value.is_on_host for value in plan.arguments)
    assert "on the host meanwhile: " in str(plan)


@both_forms
@pytest.mark.parametrize("share", [0.85, 0.7, 0.6])
def test_both_together_are_never_worse_than_computing_again_alone(
    scans: bool, share: float
) -> None:
    again = planned(scans, share, recompute="auto")
    both = planned(scans, share, recompute="auto", host_offload="auto")
    assert both.step_seconds <= again.step_seconds
    assert both.peak_bytes <= share * planned(scans).peak_bytes


TILED = OPTIONS | {"compiler": f"{WHOLE_PRODUCTS},schedule.fetches_at_once"}
"""Values that batches of products read and write take up to 16 times the bytes of elements."""


@pytest.mark.parametrize(
    "options", [{"host_offload": "auto"}, {"recompute": "auto"}], ids=["host", "again"]
)
def test_no_limit_is_refused_that_is_above_what_a_plan_needs(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor above what the error of a smaller limit says that is needed."""
    monkeypatch.setattr(planning, "with_switches", lambda error, *_: error)
    step = (programs.step(None, False), *programs.arguments())
    free = autoshard.plan(*step, **TILED).peak_bytes
    needed: list[float] = []
    refused: list[int] = []
    for percent in range(95, 35, -5):
        limit = int(percent / 100 * free)
        try:
            plan = autoshard.plan(*step, memory_limit=limit, **TILED, **options)
        except autoshard.DoesNotFitError as error:
            needed.append(error.peak_bytes)
            refused.append(limit)
        else:
            needed.append(plan.peak_bytes)
    assert 0 < len(refused) < len(needed)
    assert max(refused) <= min(needed)


def test_estimates_of_what_goes_know_the_padding_of_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = (programs.step(None, False), *programs.arguments())
    limit = int(0.85 * autoshard.plan(*step, **TILED).peak_bytes)
    peaks: list[tuple[float, float]] = []
    rewritten = fitting.Copies.rewritten

    def told(self: fitting.Copies, choice: Any, *rest: Any) -> Any:
        made = rewritten(self, choice, *rest)
        peaks.append((self.beside + choice.peak_bytes, made[0].peak_bytes))
        return made

    monkeypatch.setattr(fitting.Copies, "rewritten", told)
    autoshard.plan(*step, recompute="auto", memory_limit=limit, **TILED)
    estimated, written = peaks[0]
    assert written == estimated <= limit


@both_forms
def test_a_plan_hands_a_policy_back(scans: bool) -> None:
    text = planned(scans, 0.7, host_offload="auto").remat_policy
    assert text == POLICY
    policy = eval(text, {"jax": jax})
    written = autoshard.plan(  # for a TPU: JAX moves nothing on CPU
        programs.step(policy, scans), *programs.arguments(), cluster="v5e:2x4"
    )
    assert summary_of(written).host_transfer_bytes > 0


def test_a_policy_needs_names() -> None:
    plan = autoshard.plan(lambda x: x + 1, np.ones((8, 8), np.float32), cluster="cpu:8")
    with pytest.raises(autoshard.PlanError, match="no value of it has a name"):
        _ = plan.remat_policy
