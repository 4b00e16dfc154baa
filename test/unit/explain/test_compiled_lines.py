"""Lines of annotations as compiled, beside the whole plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
from small_step import PARAMS, rows, step_with

import autoshard
from autoshard.errors import CompileError
from autoshard.explain.annotations import Annotations, annotated_values
from autoshard.explain.compiled_lines import CompiledLines, LinesCompiler
from autoshard.explain.line_candidates import candidates
from autoshard.explain.question import Subject
from autoshard.verify.ahead_of_time import CompiledProgram


@pytest.fixture(scope="module")
def found() -> tuple[Subject, Annotations]:
    """A plan, and its lines with what they are compiled to."""
    plan = autoshard.plan(
        step_with(jnp.square), PARAMS, rows(4096), cluster="cpu:8", mesh="a=4,b=2"
    )
    return plan.subject, plan.annotations(verify=True)


def compared(found: tuple[Subject, Annotations], *programs: CompiledProgram) -> CompiledLines:
    """The same with other answers of the compiler."""
    left = iter(programs)

    def compiler(*_: Any, **__: Any) -> CompiledProgram:
        return next(left)

    return LinesCompiler(found[0], compiler=compiler)(annotated_values(found[0])[1])


def test_what_is_missing_and_besides_adds_up(found: tuple[Subject, Annotations]) -> None:
    made = found[1].as_compiled
    assert made is not None
    assert f"as compiled by {made.program.compiler}" in str(found[1]).replace("\n", " ")
    assert made.planned_bytes > 0
    missing = sum(one.bytes for one in made.missing)
    assert missing == pytest.approx((1 - made.reproduced) * made.planned_bytes)
    assert made.reproduced > 0.5
    assert made.step_seconds > 0
    assert made.lacking_bytes == 0


def test_the_plan_beside_itself_is_all_of_it(found: tuple[Subject, Annotations]) -> None:
    planned = as_compiled(found).planned
    made = compared(found, planned, planned)
    assert made.reproduced == 1
    assert made.missing == made.other == ()
    assert made.step_seconds == made.planned_seconds


def test_every_byte_is_sent_for_an_op(found: tuple[Subject, Annotations]) -> None:
    """Without lines, the matmuls are to blame for the plan's bytes that are missing."""
    subject = found[0]
    made = LinesCompiler(subject)([])
    assert sum(made.blame.values()) == pytest.approx(
        sum(one.bytes for one in (*made.missing, *made.other)), rel=0.01
    )
    worst = max(made.blame, key=made.blame.__getitem__)
    assert subject.imported.core_ops[worst].name == "stablehlo.dot_general"


def test_donated_arguments_that_lines_leave_unlike_their_results_are_compiled() -> None:
    """XLA refuses buffers of different sizes that are said to be one."""
    plan = autoshard.plan(
        step_with(jnp.square), PARAMS, rows(4096), cluster="cpu:8", mesh="a=8", donate_argnums=0
    )
    line = next(
        line
        for line in candidates(plan.subject)
        if line.annotation.location is None and any(line.dims) and "up" in line.name
    )
    assert LinesCompiler(plan.subject)([line]).program.fits


def test_lines_that_do_not_fit_bring_nothing_back(found: tuple[Subject, Annotations]) -> None:
    made = compared(found, as_compiled(found).planned, too_large(as_compiled(found).program))
    assert made.reproduced == 0
    assert made.step_seconds == float("inf")
    assert made.lacking_bytes == 1 << 30
    text = str(replace(found[1], as_compiled=made)).replace("\n", " ")
    assert "it does not fit: 1 GiB too much" in text


def test_a_plan_that_does_not_fit_is_an_error(found: tuple[Subject, Annotations]) -> None:
    with pytest.raises(CompileError, match="the plan does not fit as compiled: 3 GiB of 2 GiB"):
        compared(found, too_large(as_compiled(found).planned))


def as_compiled(found: tuple[Subject, Annotations]) -> CompiledLines:
    assert found[1].as_compiled is not None
    return found[1].as_compiled


def too_large(program: CompiledProgram) -> CompiledProgram:
    return replace(program, fits=False, needed_bytes=3 << 30, usable_bytes=2 << 30, hlo_text=None)
