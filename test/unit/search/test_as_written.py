"""Decisions with what they add to a step as it turned out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attention_layers
import pytest

import autoshard
from autoshard.passes import fitting, recompute
from autoshard.passes.as_written import decide_again
from autoshard.passes.fitting import Outcome
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.decision import Answer, Fate
from autoshard.rewrites.recomputation.question import Dearer, Rules

AIM = 100.0


class Choices:
    """Each value alone is enough: what it is estimated to add to a step of 100 s, and adds."""

    def __init__(self, **seconds: tuple[float, float]) -> None:
        self.estimated = [estimated for estimated, _ in seconds.values()]
        self.written = [written for _, written in seconds.values()]
        self.asked: list[int] = []
        self.copies = SimpleNamespace(
            first=SimpleNamespace(step_seconds=100.0),
            beside=0.0,
            without=2 * AIM,
            choice=self.choice,
        )
        self.aim = AIM
        self.best: Any = None
        self.write(self.choice(AIM, Rules()), AIM, Rules())

    def choice(self, wanted: float, rules: Rules, dearer: Dearer | None = None, **_: Any) -> Any:
        def answer(chosen: dict[int, Fate]) -> Answer:
            adds = [(dearer or {}).get((one, Fate.AGAIN), 0.0) for one in chosen]
            return Answer(0.0, sum(self.estimated[one] for one in chosen) + sum(adds))

        one = min(range(len(self.estimated)), key=lambda one: answer({one: Fate.AGAIN}).seconds)
        chosen = {one: Fate.AGAIN}
        effect = SimpleNamespace(answer=answer(chosen))
        question = SimpleNamespace(limit=wanted, rules=rules, pairs=[], answer=answer)
        return SimpleNamespace(
            question=question,
            chosen=chosen,
            effect=effect,
            values_of=lambda number: [(number, Fate.AGAIN)],
        )

    def write(self, choice: Any, wanted: float, rules: Rules) -> Outcome:
        (one,) = choice.chosen
        self.asked.append(one)
        found = SimpleNamespace(
            peak_bytes=AIM, step_seconds=100.0 + self.written[one], first=choice
        )
        if self.best is None or found.step_seconds < self.best.step_seconds:
            self.best = found
        return Outcome(found.peak_bytes, found.step_seconds)


@pytest.mark.parametrize(
    ("choices", "written"),
    [
        (Choices(a=(10.0, 10.0), b=(11.0, 1.0)), [0]),  # nobody knows that it is cheaper
        (Choices(a=(10.0, 20.0), b=(11.0, 1.0)), [0, 1]),
        (Choices(a=(10.0, 20.0), b=(11.0, 30.0), c=(12.0, 12.0)), [0, 1, 2]),
        (Choices(a=(10.0, 20.0), b=(19.8, 1.0)), [0]),  # it saves too little
        (Choices(a=(10.0, 20.0), b=(25.0, 25.0)), [0]),
    ],
)
def test_others_are_written_where_the_first_ones_are_dearer_than_expected(
    choices: Choices, written: list[int]
) -> None:
    fitting: Any = choices
    decide_again(fitting)
    assert choices.asked == written


def test_a_step_is_shorter_where_others_go_than_what_is_dearer_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scores that are computed again add more than those that they are copies of, where nobody
    looks at the kernels of copies before."""
    monkeypatch.setattr(Block, "seconds_besides", lambda *_: {})
    # Single changes and smaller limits find that, too.
    monkeypatch.setattr(fitting, "_MOST_OPS_IMPROVED", 0)
    monkeypatch.setattr(fitting, "_MOST_OPS_COSTED", 0)
    step = attention_layers.step_of(6)
    limit = int(0.7 * autoshard.plan(*step, cluster="v5e:1x1").peak_bytes)

    def fitted() -> autoshard.Plan:
        return autoshard.plan(*step, cluster="v5e:1x1", recompute="auto", memory_limit=limit)

    again = fitted()
    monkeypatch.setattr(recompute, "decide_again", lambda _: None)
    once = fitted()
    assert again.peak_bytes <= limit
    assert again.step_seconds < 0.995 * once.step_seconds
