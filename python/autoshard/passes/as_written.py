"""Decide again where what was written is dearer than estimated.

An op that runs again is taken for as dear as the one that it is a copy of. What compilers store for
the copies, and compute in other kernels, is known when they are written: where that is dear, others
may be cheaper.
"""

from __future__ import annotations

from autoshard.passes.fitting import Fitting, Outcome
from autoshard.rewrites.recomputation.choice import Choice, price
from autoshard.rewrites.recomputation.decision import Fate

_MOST_ROUNDS = 2
"""How often it is decided again, at most."""

_WORTH = 0.005
"""Share of a step that others have to save, as far as estimates tell, to be written."""

_CLOSE = 0.01
"""Share of the bytes to keep within by which less is asked for where something needs more."""


def decide_again(fitting: Fitting) -> None:
    """Decide with what decisions add to a step as it turned out, as long as that is better.

    Of what loops stack for each other estimates know too little.
    """
    best = fitting.best
    if best is None or best.first is None or best.first.question.pairs:
        return
    choice, before = best.first, fitting.copies.first.step_seconds
    outcome = Outcome(best.peak_bytes, best.step_seconds)
    wanted, rules = choice.question.limit + fitting.copies.beside, choice.question.rules
    dearer: dict[tuple[int, Fate], float] = {}
    for _ in range(_MOST_ROUNDS):
        more = outcome.step_seconds - before - choice.effect.answer.seconds
        is_dearer = more > _WORTH * before and learn(choice, more, dearer)
        is_too_large = bool(dearer) and outcome.peak_bytes > fitting.aim
        if not (is_dearer or is_too_large):
            return
        if is_too_large:
            wanted -= outcome.peak_bytes - (1 - _CLOSE) * fitting.aim
        choice = fitting.copies.choice(wanted, rules, dearer=dearer)
        now, answer = fitting.best, choice.effect.answer
        if answer.excess > 0 or now is None:
            return
        if before + answer.seconds > now.step_seconds - _WORTH * before:
            return
        outcome = fitting.write(choice, wanted, rules)


def learn(choice: Choice, more: float, dearer: dict[tuple[int, Fate], float]) -> bool:
    """Share seconds that nobody expected among decisions, by what each was expected to add.

    Returns:
        Was any expected to add something?
    """
    prices = {number: price(choice, number) for number in choice.chosen}
    total = sum(prices.values())
    if total <= 0:
        return False
    for number, seconds in prices.items():
        values = choice.values_of(number)
        for value in values:
            dearer[value] = dearer.get(value, 0.0) + more * seconds / total / len(values)
    return True
