"""GPipe, 1F1B, interleaved and zero bubble: rules for one list scheduler.

A stage does the forward pass as long as it may run ahead; that is all that tells them apart.

    rule          micro-batches that stage s of S runs ahead; chunks of V stages count by themselves
    gpipe         all
    1f1b          S - s, in chunks 2 (S - s - 1) + (V - 1) S + 1
    zero_bubble   likewise; gradients of weights fill the gaps, and nothing is kept of more
                  micro-batches than on the first stage

Sources: Huang et al. 2019, "GPipe"; Narayanan et al. 2021, "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM" (1F1B, interleaved); Qi et al. 2023, "Zero Bubble
Pipeline Parallelism" (ZB-H1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from autoshard import _core
from autoshard.errors import PlanError
from autoshard.schedule.list_scheduler import Limits, Listing, Rank, Schedule, schedule_of
from autoshard.schedule.work import StageSeconds, Work, training_works

Rule = Literal["gpipe", "1f1b", "zero_bubble"]
_PATIENCE = (0, 0.25, 0.5, 0.75, 1)
"""No share of the work that is deferred is best for all; equal stages need none."""
RULES: tuple[Rule, ...] = ("gpipe", "1f1b", "zero_bubble")


def pipeline_schedule(
    rule: Rule,
    chunks: Sequence[StageSeconds],
    stages: int,
    micro_batches: int,
    *,
    transfer_seconds: float = 0,
) -> Schedule:
    """The schedule of a training step by one rule.

    Args:
        rule: See the top of this file. With more chunks than stages 1F1B is interleaved.
        chunks: Of the whole model in their order; chunk ``c`` is on stage ``c % stages``.
        stages: Groups of devices.
        micro_batches: 1 or more.
        transfer_seconds: What it takes to hand something to another stage.

    Raises:
        PlanError: There is no such rule, or the chunks do not fall on the stages equally.
    """
    if rule not in RULES:
        raise PlanError(f"rule {rule!r} is not known. Use one of {', '.join(RULES)}.")
    works = training_works(chunks, stages, splits_gradients=rule == "zero_bubble")
    parts = len(chunks) // stages
    return schedule_of_works(rule, works, stages, micro_batches, parts, transfer_seconds)


def schedule_of_works(
    rule: Rule,
    works: Sequence[Work],
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    transfer_seconds: float = 0,
) -> Schedule:
    """The schedule of any works by one rule.

    Args:
        rule: See the top of this file.
        works: Each behind those that it is after.
        stages: Groups of devices.
        micro_batches: 1 or more.
        chunks: Of the model, on each stage.
        transfer_seconds: As for ``pipeline_schedule``.
    """
    listed = _fastest_runs(rule, works, stages, micro_batches, chunks, transfer_seconds)
    return schedule_of(works, micro_batches, listed)


def seconds_of_works(
    rule: Rule,
    works: Sequence[Work],
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    transfer_seconds: float = 0,
) -> float:
    """Seconds of the schedule that ``schedule_of_works`` finds.

    Args:
        rule: As there.
        works: Likewise.
        stages: Likewise.
        micro_batches: Likewise.
        chunks: Likewise.
        transfer_seconds: Likewise.
    """
    return _fastest_runs(rule, works, stages, micro_batches, chunks, transfer_seconds).seconds


def _fastest_runs(
    rule: Rule,
    works: Sequence[Work],
    stages: int,
    micro_batches: int,
    chunks: int,
    transfer_seconds: float,
) -> _core.ListedRuns:
    rank, limits = rank_of(works, stages), limits_of(rule, stages, chunks)
    listing = Listing(works, rank, limits, transfer_seconds)
    patience = _PATIENCE if rule == "zero_bubble" else (0,)
    return min((listing.runs(micro_batches, each) for each in patience), key=lambda it: it.seconds)


def rank_of(works: Sequence[Work], stages: int) -> Rank:
    """The forward pass comes first, as far as limits let it, and deferred work last.

    ``stages`` micro-batches at a time go through all chunks of a stage.
    """
    return Rank(tuple(2 * work.is_deferred + (work.ahead <= 0) for work in works), stages)


def limits_of(rule: Rule, stages: int, chunks: int) -> Limits:
    """How far each stage runs ahead by a rule, with ``chunks`` of the model on each.

    They are raised where works beside those of the chunks let no stage go on.
    """
    if rule == "gpipe":
        return Limits()
    if chunks == 1:
        ahead = tuple(stages - stage for stage in range(stages))
    else:
        first = (chunks - 1) * stages + 1
        ahead = tuple(2 * (stages - stage - 1) + first for stage in range(stages))
    kept = (max(ahead),) * stages if rule == "zero_bubble" else None
    return Limits(ahead, kept, are_raised=True)
