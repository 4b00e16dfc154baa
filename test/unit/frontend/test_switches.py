"""What is proposed where no plan fits."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from autoshard.errors import DoesNotFitError, PlanError
from autoshard.frontend.switches import with_switches

GIB = 2.0**30


@dataclass(frozen=True)
class Asked:
    """All else was given."""

    recompute: str = "auto"
    host_offload: str = "auto"
    optimizer_parallel: int | None = 3
    micro_batches: int = 1


@pytest.mark.parametrize(
    ("batch", "tried", "said"),
    [
        (64, [2, 4], "micro_batches=4 fits, with 9 GiB and a step of 1 s"),
        (2, [2, 4], "micro_batches=2 needs 11 GiB"),
    ],
)
def test_as_many_micro_batches_are_proposed_as_fit(batch: int, tried: list[int], said: str) -> None:
    """8 GiB are made of the batch, 7 are not."""
    counts: list[int] = []

    def plan(request: Any) -> Any:
        count = request.micro_batches
        counts.append(count)
        if batch % count:
            raise PlanError("it does not divide the batch")
        needed = (7 + 8 / count) * GIB
        if needed > 10 * GIB:
            raise DoesNotFitError("too much", None, needed, 10 * GIB)
        return SimpleNamespace(step_seconds=1.0, peak_bytes=needed)

    request: Any = Asked()
    whole = DoesNotFitError("too much", None, 15 * GIB, 10 * GIB)
    assert said in with_switches(whole, request, plan).advice
    assert counts == tried


def test_no_more_micro_batches_are_tried_where_the_rest_alone_needs_too_much() -> None:
    counts: list[int] = []

    def plan(request: Any) -> Any:
        counts.append(request.micro_batches)
        raise DoesNotFitError("too much", None, 13 * GIB, 10 * GIB)

    request: Any = Asked()
    whole = DoesNotFitError("too much", None, 15 * GIB, 10 * GIB)
    found = with_switches(whole, request, plan)
    assert "micro_batches=2 needs 13 GiB" in found.advice
    assert counts == [2]
