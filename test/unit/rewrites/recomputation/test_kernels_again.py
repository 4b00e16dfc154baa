"""What values add to a step that are computed again, by the kernels of their copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import attention_layers
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.fitting import Copies, Fitting
from autoshard.passes.recompute import FittedPlans, Recompute
from autoshard.rewrites.recomputation.choice import Choice
from autoshard.rewrites.recomputation.decision import Fate
from autoshard.rewrites.recomputation.question import BlockQuestion, Group, Rules

CLUSTERS = ("v5e:1x1", "h100:1")


@dataclass(frozen=True)
class Again:
    """One of several equal values, which alone is computed again; seconds that it adds."""

    op: str
    by_ops: float
    """If copies take what originals do."""
    estimated: float
    written: float


@lru_cache(maxsize=1)
def _copies(cluster: str) -> Copies:
    plan = autoshard.plan(*attention_layers.step_of(6), cluster=cluster)
    module = parse_bytes(plan.bytecode, new_context(), "plan")
    return FittedPlans(module, Cluster.of(cluster), Recompute(choose="auto")).copies


def _again(cluster: str) -> Iterator[Again]:
    """Those of which it is known that their copies are in other kernels."""
    copies = _copies(cluster)
    with copies.first.module.context, mlir.Location.unknown():
        block, limit, rules = copies.block, 0.6 * copies.without, Rules()
        besides = block.seconds_besides(False, False)
        question = BlockQuestion(block, limit, rules)
        for number, item in enumerate(question.items):
            assert isinstance(item, Group)
            first, *others = item.members
            if not besides.get(first.number):
                continue
            question.apart = {one.number: Fate.KEEP for one in others}
            chosen = {number: Fate.AGAIN}
            choice = Choice(question, chosen, question.effect(chosen))
            seconds = choice.effect.answer.seconds
            outcome = Fitting(copies, limit, limit).write(choice, limit, rules)
            yield Again(
                block.ops[block.core.value(first.number).maker].name,
                seconds - besides[first.number],
                seconds,
                outcome.step_seconds - copies.first.step_seconds,
            )


def test_scores_are_stored_for_a_row_of_maxima_and_read_by_more_than_they_were() -> None:
    dearer = (one for one in _again("v5e:1x1") if one.estimated > one.by_ops + 1e-5)
    (scores,) = (one for one in dearer if one.op == "stablehlo.dot_general")
    assert scores.estimated == pytest.approx(scores.written, rel=1e-6)


def test_estimates_by_kernels_are_closer_than_those_by_ops() -> None:
    found = list(_again("v5e:1x1"))
    assert found
    by_ops = sum(abs(one.by_ops - one.written) for one in found)
    assert sum(abs(one.estimated - one.written) for one in found) < by_ops / 2


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_copies_are_never_taken_for_cheaper_than_originals(cluster: str) -> None:
    """On h100:1 the kernels that are expected would save most of what attention's shares take."""
    assert all(one.estimated > one.by_ops for one in _again(cluster))


def test_what_is_known_of_copies_depends_on_no_limit() -> None:
    block = _copies("v5e:1x1").block
    known = dict(block.seconds_besides(False, False))
    assert known
    assert block.seconds_besides(False, False) == known
    assert block.seconds_besides(True, True) is not block.seconds_besides(False, False)
