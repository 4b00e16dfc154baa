"""Sensitivities of a plan: what a tenth more of each number of the machine changes in its step.

The plan stays; its ops and collectives are priced again. What memory is worth is asked by planning
again, since more of it changes no price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoshard import _core
from autoshard.explain.machines import knobs
from autoshard.explain.question import Change, Subject

SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One number of the machine."""

    name: str
    """``memory bandwidth``, ``bandwidth of links (x, y)``."""
    more: float
    """By what part it becomes more: 0.1."""
    change: float
    """By what part a step becomes longer; negative: shorter."""


@dataclass(frozen=True)
class Sensitivities:
    """All numbers of a machine, that which changes most first."""

    name: str
    cluster: str
    step_seconds: float
    rows: tuple[Sensitivity, ...]

    def __rich__(self) -> Any:
        """A row a number."""
        from autoshard.report.what_if_table import sensitivity_table

        return sensitivity_table(self)

    def __str__(self) -> str:
        """The same as text."""
        from autoshard.report.plan_table import render
        from autoshard.report.what_if_table import sensitivity_table

        return render(sensitivity_table(self))


def sensitivities(subject: Subject, share: float = SHARE) -> Sensitivities:
    """What so much more of each number changes.

    Args:
        subject: The plan.
        share: How much more, as a part of what there is.
    """
    plan, mesh = subject.plan, subject.mesh
    rows: list[Sensitivity] = []
    for knob in knobs(subject.cluster, share):
        priced = _core.estimate(
            subject.imported.program,
            knob.cluster.to_core(mesh, subject.summary.overlap),
            shardings=plan.shardings,
            value_sharding=plan.value_sharding,
            strategies=plan.strategies,
            op_strategy=plan.op_strategy,
        )
        rows.append(Sensitivity(knob.name, share, priced.step_seconds / plan.step_seconds - 1))
    again = subject.solved(Change())
    more = subject.solved(Change(memory_limit=subject.memory_limit * (1 + share)))
    if again.plan is not None and more.plan is not None:
        change = min(0.0, more.plan.step_seconds / again.plan.step_seconds - 1)
        rows.append(Sensitivity("memory, planned again", share, change))
    rows.sort(key=lambda row: -abs(row.change))
    return Sensitivities(
        subject.name, subject.summary.cluster, subject.summary.step_seconds, tuple(rows)
    )
