"""What a pipeline does for every micro-batch, and in which order it may be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.errors import PlanError


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work that is done once for every micro-batch."""

    name: str
    """As a chart shows it, ``F`` or ``B``."""
    stage: int
    """The devices that do it, one piece at a time."""
    seconds: float
    after: tuple[int, ...] = ()
    """Works of the same micro-batch whose results it reads: numbers smaller than its own."""
    ahead: int = 0
    """1: it begins the micro-batch on its stage, or on a chunk of it; -1: other stages wait for
    nothing more of it there."""
    kept: int = 0
    """1: from its start on the stage keeps what later work of the micro-batch reads there;
    -1: at its end that is free."""
    chunk: int = 0
    """The part of the model that it belongs to, of those on the stage."""
    is_deferred: bool = False
    """No other stage waits for it, as for the gradients of weights."""
    moved: tuple[float, ...] = ()
    """Seconds on their way here of what each of ``after`` makes, 0 on one stage. Empty: all that
    comes from another stage takes as long as the schedule says."""

    def after_seconds(
        self, works: Sequence[Work], transfer_seconds: float
    ) -> Iterator[tuple[int, float]]:
        """Each of ``after``, and the seconds on the way from it.

        Args:
            works: All, to which these numbers are.
            transfer_seconds: From another stage, where ``moved`` does not say.
        """
        if self.moved:
            return zip(self.after, self.moved, strict=True)
        ways = (transfer_seconds if works[it].stage != self.stage else 0 for it in self.after)
        return zip(self.after, ways, strict=True)


@dataclass(frozen=True, slots=True)
class Passage:
    """What a task of a stage is on a micro-batch's way through the stages and back."""

    name: str
    """F forward, B back, FB both at once; numbered where it is neither."""
    ahead: int
    """1: it begins a chunk of the stage; -1: it ends one; 0: neither."""
    chunk: int


def passage(place: int, count: int, chunks: int) -> Passage:
    """The passage of one of the tasks of a stage.

    The first tasks begin micro-batches, one for each chunk, and the last ones end them in the
    opposite order. What is in between, as where the last stage turns round, does neither.

    Args:
        place: Of the task among those of its stage for which others wait, in order.
        count: How many these are.
        chunks: Parts of the model on each stage.

    Example: the tasks of two chunks on the last stage are F of the first one, FB of the second one,
    B of the first one.
    """
    ends = min(chunks, count // 2)
    chunk = min(place, count - 1 - place, chunks - 1)
    if place < ends:
        return Passage("F", 1, chunk)
    if place >= count - ends:
        return Passage("B", -1, chunk)
    is_only = count - 2 * ends == 1
    return Passage("FB" if is_only else f"FB{place - ends}.", 0, chunk)


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """What one micro-batch takes on a stage, or on one of its chunks."""

    forward: float
    input_gradient: float
    weight_gradient: float


def training_works(
    chunks: Sequence[StageSeconds], stages: int, *, splits_gradients: bool = False
) -> tuple[Work, ...]:
    """The works of a training step whose layers stand in a row.

    Chunk ``c`` is on stage ``c % stages``. The backward pass goes back chunk by chunk; the gradient
    of a chunk's input also needs what its forward pass kept.

    Args:
        chunks: Of the whole model, in their order; a multiple of ``stages``.
        stages: Groups of devices.
        splits_gradients: Gradients of weights are works of their own, which nobody waits for.

    Raises:
        PlanError: The chunks do not fall on the stages equally.
    """
    if stages < 1 or not chunks or len(chunks) % stages:
        raise PlanError(
            f"{len(chunks)} chunks do not fall on {stages} stages equally. Give a multiple of the"
            " stages."
        )
    works: list[Work] = []
    for number, each in enumerate(chunks):
        before = (number - 1,) if number else ()
        chunk, stage = divmod(number, stages)
        works.append(Work("F", stage, each.forward, before, ahead=1, kept=1, chunk=chunk))
    previous = len(chunks) - 1
    for number, each in reversed(list(enumerate(chunks))):
        after = tuple(sorted({number, previous}))
        chunk, stage = divmod(number, stages)
        inputs, weights = each.input_gradient, each.weight_gradient
        previous = len(works)
        if splits_gradients:
            works.append(Work("I", stage, inputs, after, ahead=-1, chunk=chunk))
            waiting = (previous,)
            works.append(Work("W", stage, weights, waiting, kept=-1, chunk=chunk, is_deferred=True))
        else:
            works.append(Work("B", stage, inputs + weights, after, ahead=-1, kept=-1, chunk=chunk))
    return tuple(works)


def check_works(works: Sequence[Work]) -> None:
    """Raise where works are in no order.

    Raises:
        PlanError: A work reads one behind it, takes negative seconds, or frees what is not kept.
    """
    for number, work in enumerate(works):
        if any(not 0 <= it < number for it in work.after):
            raise PlanError(
                f"work {number} ({work.name}) is after {work.after}: name earlier ones."
            )
        if work.seconds < 0 or work.stage < 0 or any(it < 0 for it in work.moved):
            raise PlanError(f"work {number} ({work.name}) has a stage or seconds below 0.")
    for stage in {work.stage for work in works}:
        own = [work for work in works if work.stage == stage]
        if sum(work.kept for work in own) or sum(work.ahead for work in own):
            raise PlanError(f"stage {stage} begins more of a micro-batch than it ends, or less.")


def longest_before(works: Sequence[Work], transfer_seconds: float = 0) -> list[float]:
    """The earliest second at which each work may start, of a micro-batch alone."""
    starts: list[float] = []
    for work in works:
        ready: float = 0
        for it, moved in work.after_seconds(works, transfer_seconds):
            ready = max(ready, starts[it] + works[it].seconds + moved)
        starts.append(ready)
    return starts


def longest_behind(works: Sequence[Work], transfer_seconds: float = 0) -> list[float]:
    """Seconds that pass at least between the end of each work and that of its micro-batch."""
    tails: list[float] = [0] * len(works)
    for number in reversed(range(len(works))):
        for it, moved in works[number].after_seconds(works, transfer_seconds):
            tails[it] = max(tails[it], moved + works[number].seconds + tails[number])
    return tails


def lower_bound(works: Sequence[Work], micro_batches: int, transfer_seconds: float = 0) -> float:
    """Seconds that no schedule is under, whatever it keeps.

    A stage begins when its first work can, works for all micro-batches, and something of the last
    one is left to do behind it:

        max over stages of  min head + micro_batches * sum of seconds + min tail

    Example: 2 stages, F = B = 1, 3 micro-batches: stage 1 begins at 1, works 6 seconds, and B of
    stage 0 is left, so 8.
    """
    heads = longest_before(works, transfer_seconds)
    tails = longest_behind(works, transfer_seconds)
    bounds: list[float] = []
    for stage in {work.stage for work in works}:
        own = [number for number, work in enumerate(works) if work.stage == stage]
        seconds = micro_batches * sum(works[number].seconds for number in own)
        bounds.append(min(heads[it] for it in own) + seconds + min(tails[it] for it in own))
    whole = max(head + work.seconds for head, work in zip(heads, works, strict=True))
    return max(*bounds, whole)
