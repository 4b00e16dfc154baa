"""A dear decision is given up for first values of another group, where that is cheaper."""

from __future__ import annotations

from typing import cast

import pytest

from autoshard._core import Dropped
from autoshard.rewrites.recomputation.decision import Answer, Chosen, Fate
from autoshard.rewrites.recomputation.parts import Parts, exchanged
from autoshard.rewrites.recomputation.question import BlockQuestion, Group

LARGE, DEAR, CHEAP = range(3)
MISSING = 103.0


class Bytes:
    """Each value frees some bytes for some seconds, whatever becomes of the others.

    The large one frees 100 bytes for 10 s, the dear one 3; each of ten equal ones 2 for 0.75 s, so
    that all of these are dearer than the dear one.
    """

    def __init__(self, dear: float) -> None:
        self.values = {0: (100.0, 10.0), 1: (3.0, dear), **dict.fromkeys(range(2, 12), (2.0, 0.75))}
        both = (Fate.AGAIN, Fate.HOST)
        groups = ([0], [1], range(2, 12))
        self.items = [
            Group(tuple(Dropped(n, early=0, late=2, middle=1) for n in numbers), both)
            for numbers in groups
        ]
        self.fates = [(Fate.AGAIN,)] * 3
        self.apart: dict[int, Fate] = {}
        self.answers = 0

    def answer(self, chosen: Chosen) -> Answer:
        self.answers += 1
        gone = [
            self.values[one.number]
            for item, fate in chosen.items()
            for one in self.items[item].members
            if self.apart.get(one.number, fate) is not Fate.KEEP
        ]
        freed = sum(size for size, _ in gone)
        return Answer(max(0.0, MISSING - freed), sum(seconds for _, seconds in gone))


def decisions(question: Bytes, chosen: dict[int, Fate], apart: dict[int, Fate]) -> Parts:
    question.apart = apart
    return question.answer(chosen), chosen, apart


def exchanges(question: Bytes, parts: Parts, most_answers: int = 1000) -> Parts:
    return exchanged(cast(BlockQuestion, question), parts, most_answers)


def test_first_values_of_a_group_replace_a_dear_decision() -> None:
    question = Bytes(dear=5.0)
    found = exchanges(question, decisions(question, {LARGE: Fate.AGAIN, DEAR: Fate.AGAIN}, {}))
    answer, chosen, apart = found
    assert chosen == {LARGE: Fate.AGAIN, CHEAP: Fate.AGAIN}
    assert apart == dict.fromkeys(range(4, 12), Fate.KEEP)
    assert answer == Answer(0.0, 10.0 + 2 * 0.75)


def test_less_than_a_hundredth_of_the_seconds_changes_nothing() -> None:
    question = Bytes(dear=1.6)
    parts = decisions(question, {LARGE: Fate.AGAIN, DEAR: Fate.AGAIN}, {})
    assert exchanges(question, parts) == parts


def test_values_that_go_another_way_still_do() -> None:
    question = Bytes(dear=5.0)
    question.values[0] = (95.0, 10.0)
    last = {10: Fate.HOST, 11: Fate.HOST}
    start = {**dict.fromkeys(range(3, 10), Fate.KEEP), **last}
    chosen = {LARGE: Fate.AGAIN, DEAR: Fate.AGAIN, CHEAP: Fate.AGAIN}
    _, chosen, apart = exchanges(question, decisions(question, chosen, start))
    assert chosen == {LARGE: Fate.AGAIN, CHEAP: Fate.AGAIN}
    assert apart == {**dict.fromkeys(range(4, 10), Fate.KEEP), **last}


@pytest.mark.parametrize("most", range(12))
def test_the_question_is_asked_no_more_often_than_allowed(most: int) -> None:
    question = Bytes(dear=5.0)
    parts = decisions(question, {LARGE: Fate.AGAIN, DEAR: Fate.AGAIN}, {})
    question.answers = 0
    exchanges(question, parts, most)
    assert question.answers <= most
