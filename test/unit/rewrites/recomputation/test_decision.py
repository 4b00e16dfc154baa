"""Decisions about few values are the best ones: those of exhaustive search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence

import pytest

from autoshard.rewrites.recomputation.decision import (
    Answer,
    Chosen,
    Fate,
    decide,
    decide_more,
)

POINTS = 6


class Values:
    """Values that wait between two points; each is computed of the one before, if it is there.

    What is sent shares a link that is free for some seconds; what is computed again needs all
    that was let go before it, up to what is there.
    """

    def __init__(self, seed: int, most: int) -> None:
        draw = random.Random(seed)
        count = draw.randint(2, most)
        self.sizes = [draw.randint(1, 9) for _ in range(count)]
        self.ranges = [sorted(draw.sample(range(POINTS + 1), 2)) for _ in range(count)]
        self.costs = [draw.randint(0, 9) for _ in range(count)]
        self.rows = [draw.randint(1, 3) for _ in range(count)]
        saved = random.Random(-1 - seed)
        self.saved = [saved.choice((0, 0, saved.randint(1, 5))) for _ in range(count)]
        """By value: what is not spent on keeping it."""
        self.free = draw.randint(0, 12)
        self.fates: Sequence[Sequence[Fate]] = [
            draw.choice([(Fate.AGAIN,), (Fate.HOST,), (Fate.AGAIN, Fate.HOST)])
            for _ in range(count)
        ]
        whole = sum(self.sizes)
        self.limit = draw.uniform(0.1, 0.7) * whole
        self.tells, self.answers = True, 0

    def _excess(self, live: Sequence[float]) -> float:
        return sum(max(0.0, one - self.limit) for one in live)

    def _live(self, gone: Collection[int]) -> list[float]:
        return [
            sum(
                size
                for number, (size, (first, end)) in enumerate(
                    zip(self.sizes, self.ranges, strict=True)
                )
                if first <= point < end and number not in gone
            )
            for point in range(POINTS)
        ]

    def answer(self, chosen: Chosen) -> Answer:
        self.answers += 1
        again = {item for item, fate in chosen.items() if fate is Fate.AGAIN}
        sent = chosen.keys() - again
        live = self._live(chosen.keys())
        runs: set[int] = set()
        for item in again:
            here = item
            while here >= 0 and here in again and here not in runs:
                runs.add(here)
                here -= self.rows[here]
            live[self.ranges[item][1] - 1] += 1  # where it is made again
        waited = max(0.0, sum(2 * self.sizes[item] for item in sent) - self.free)
        saved = sum(self.saved[item] for item in chosen)
        return Answer(self._excess(live), sum(self.costs[item] for item in runs) + waited - saved)

    def most_saved(self, item: int) -> float:
        return self.saved[item]

    def least_excess(self, kept: Collection[int]) -> float:
        return self._excess(self._live([n for n in range(len(self.sizes)) if n not in set(kept)]))

    def least_excess_with(self, chosen: Chosen) -> float:
        return self._excess(self._live(chosen.keys())) if self.tells else 0.0


def best_of_all(values: Values) -> Answer:
    ways = [(Fate.KEEP, *fates) for fates in values.fates]
    return min(
        values.answer({item: fate for item, fate in enumerate(one) if fate is not Fate.KEEP})
        for one in itertools.product(*ways)
    )


@pytest.mark.parametrize("part", range(3))
def test_decisions_are_those_of_exhaustive_search(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        values = Values(seed, 12 if seed % 20 == 0 else 7)
        found = decide(values, 20_000)
        assert found.is_proven
        assert found.answer == values.answer(found.chosen)
        # What fits stays as it is, even where a decision would save seconds.
        does_fit = values.answer({}).excess <= 0
        assert found.answer == (values.answer({}) if does_fit else best_of_all(values)), seed


def test_what_fits_is_left_alone() -> None:
    values = Values(0, 7)
    values.limit = sum(values.sizes)
    assert decide(values, 0).chosen == {}


def test_few_answers_find_something_that_is_not_said_to_be_the_best() -> None:
    values = Values(20, 12)
    found = decide(values, 0)
    assert found.answer.excess == best_of_all(values).excess
    assert not found.is_proven


def test_what_takes_too_long_is_not_decided_to_the_end() -> None:
    values = Values(0, most=6)
    values.sizes, values.ranges, values.costs = [4] * 6, [[0, POINTS]] * 6, [3] * 6
    values.rows, values.saved, values.limit = [1] * 6, [0] * 6, 9.0
    values.fates = [(Fate.AGAIN,)] * 6
    whole, short = decide(values, 20_000), decide(values, 20_000, most_seconds=4.0)
    assert whole.answer.excess == 0
    assert short.answer.excess > 0
    assert 4.0 < short.answer.seconds < whole.answer.seconds


def test_no_answer_is_asked_for_where_more_is_certainly_missing() -> None:
    answers = {True: 0, False: 0}
    for seed in range(60):
        found = list[object]()
        for tells in answers:
            values = Values(seed, 9)
            values.tells = tells
            values.sizes = [1000 * size for size in values.sizes]
            values.limit *= 1000
            found.append(decide(values, 30))
            answers[tells] += values.answers
        assert found[0] == found[1]
    assert answers[True] < answers[False]


def test_what_was_decided_for_another_limit_stays_with_what_is_cheapest_besides() -> None:
    values = Values(0, most=6)
    values.sizes, values.ranges, values.costs = [4] * 6, [[0, POINTS]] * 6, [1, 2, 3, 4, 5, 6]
    values.rows, values.saved, values.limit = [7] * 6, [0] * 6, 16.0
    values.fates = [(Fate.AGAIN,)] * 6
    more = decide_more(values, {5: Fate.AGAIN})
    asked = values.answers
    assert more.chosen == dict.fromkeys((0, 1, 5), Fate.AGAIN)
    assert more.answer == values.answer(more.chosen)
    values.answers = 0
    decide(values, 20_000)
    assert asked < values.answers


def test_what_others_make_needless_is_given_back() -> None:
    values = Values(0, most=6)
    values.sizes, values.ranges, values.costs = [4, 12, 4], [[0, POINTS]] * 3, [9, 1, 9]
    values.rows, values.saved, values.limit = [7] * 3, [0] * 3, 9.0
    values.fates = [(Fate.AGAIN,)] * 3
    assert decide_more(values, {0: Fate.AGAIN}).chosen == {1: Fate.AGAIN}
