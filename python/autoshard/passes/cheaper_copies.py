"""Let values go of which copies are cheaper than they, whatever memory there is.

A value that is stored for two readers may be stored for neither once each of them computes it: then
the step is faster without it, also where it fits.
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.passes.as_written import decide_again
from autoshard.passes.fitting import LEAST_GAIN, Copies, Fitting, Trial
from autoshard.rewrites.recomputation.question import Rules


def let_cheaper_go(fitting: Fitting, rules: Rules) -> None:
    """Write what estimates find fastest with all memory, if it fits and may be the best.

    The same is decided for all limits, so that none of them gives a slower step than a smaller one
    for that. Of what loops stack for each other estimates know too little.
    """
    copies, rules = fitting.copies, replace(rules, host=False)
    if not rules.again or copies.has_loops:
        return
    if min(rules.besides(copies.block).values(), default=0.0) >= 0:
        return
    wanted, before = copies.without, copies.first.step_seconds
    choice = copies.choice(wanted, rules, though_it_fits=True)
    seconds, peak = choice.effect.answer.seconds, copies.beside + choice.peak_bytes
    is_useful = fitting.best is None or before + seconds < fitting.best.step_seconds
    if seconds < -LEAST_GAIN * before and peak <= fitting.limit and is_useful:
        fitting.write(choice, wanted, rules)


def faster_copy(copies: Copies, limit: float, rules: Rules) -> Trial | None:
    """What is faster than a module that fits, and fits as well; None: nothing is."""
    fitting = Fitting(copies, limit, limit)
    let_cheaper_go(fitting, rules)
    decide_again(fitting)
    if fitting.best is not None:
        fitting.improve(replace(rules, host=False))
    found = fitting.best
    return found if found is not None and found.step_seconds < copies.first.step_seconds else None


def take_better(fitting: Fitting, other: Fitting) -> None:
    """Take what others decided for the same limit, where that is better."""
    for trial in (other.least, other.least_without_host, other.closest, other.best):
        if trial is not None and trial is not fitting.copies.first:
            fitting.add(trial)
