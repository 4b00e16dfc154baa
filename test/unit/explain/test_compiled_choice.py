"""Lines that are chosen by what a compiler makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from programs import once

from autoshard.errors import CompileError, PlanError
from autoshard.explain.chosen_lines import ProgramLines
from autoshard.explain.compiled_choice import compiled_choice
from autoshard.explain.compiled_lines import CompiledLines, LinesCompiler
from autoshard.explain.line_candidates import Candidate
from autoshard.explain.line_choice import Chosen
from autoshard.explain.line_weights import values_of
from autoshard.explain.question import Subject
from autoshard.progress import task


@cache
def subject(name: str) -> Subject:
    return once(name, cluster="cpu:8", mesh="data=4,model=2").subject


@cache
def lines(name: str) -> ProgramLines:
    return ProgramLines(subject(name))


@cache
def chosen(name: str) -> Chosen[Candidate]:
    return lines(name).chosen(20)


@cache
def compiled_once(name: str) -> CompiledLines:
    return LinesCompiler(subject(name))(chosen(name).lines)


class Compiler:
    """Answers with shares of bytes, one after the other, and one op that is to blame."""

    def __init__(self, op: int, *shares: float) -> None:
        self.op, self.shares = op, list(shares)
        self.asked: list[Sequence[Any]] = []

    def __call__(self, lines: Sequence[Any]) -> CompiledLines:
        self.asked.append(lines)
        made = compiled_once("mlp")
        blame = {self.op: made.planned_bytes}
        share, step = self.shares.pop(0), made.planned_seconds
        return replace(made, reproduced=share, step_seconds=step, other=(), blame=blame)


def asked_op() -> int:
    """An op of which lines say how it reads an operand."""
    return next(
        op
        for line in lines("mlp").candidates
        if line.is_writable and line not in chosen("mlp").lines
        for _, readers in values_of(line)
        for op, operand in readers
        if operand >= 0
    )


def test_lines_around_what_is_to_blame_are_added_and_kept() -> None:
    op = asked_op()
    compiler: Any = Compiler(op, 0.5, 0.9, 0.9)
    found = compiled_choice(lines("mlp"), chosen("mlp"), compiler, most=20, compiles=2)
    first, second = compiler.asked
    added = [line for line in second if line not in first]
    assert added
    assert set(added) >= set(found.kept)
    around = {*subject("mlp").imported.program.operands_of(op)}
    around |= {value for line in added for value, readers in values_of(line) if readers}
    assert all(around & set(line.values) for line in added)
    assert found.made.reproduced == 0.9
    assert tuple(second) == found.chosen.lines


def test_worse_lines_are_not_taken_and_fewer_are_tried() -> None:
    compiler: Any = Compiler(asked_op(), 0.5, 0.4, 0.3, 0.2, 0.1)
    found = compiled_choice(lines("mlp"), chosen("mlp"), compiler, most=20, compiles=5)
    first, *others = compiler.asked
    assert found.made.reproduced == 0.5
    assert found.chosen.lines == tuple(first)
    counts = [sum(line not in first for line in other) for other in others]
    assert counts == sorted(counts, reverse=True)


def test_lines_stay_within_their_number_and_are_compiled_as_often_as_said() -> None:
    compiler: Any = Compiler(asked_op(), *[0.1 * n for n in range(1, 9)])
    found = compiled_choice(lines("mlp"), lines("mlp").chosen(3), compiler, most=3, compiles=4)
    assert len(compiler.asked) <= 4
    assert all(len(one) <= 3 for one in compiler.asked)
    assert len(found.chosen.lines) <= 3


def test_what_is_enough_is_compiled_once() -> None:
    compiler: Any = Compiler(asked_op(), 1.0)
    compiled_choice(lines("mlp"), chosen("mlp"), compiler, most=20, compiles=9)
    assert len(compiler.asked) == 1


class Failing(Compiler):
    """Does not compile the second list."""

    def __init__(self, error: BaseException, *shares: float) -> None:
        super().__init__(asked_op(), *shares)
        self.error = error

    def __call__(self, lines: Sequence[Any]) -> CompiledLines:
        if len(self.asked) == 1:
            self.asked.append(lines)
            raise self.error
        return super().__call__(lines)


def test_what_is_not_compiled_is_no_choice() -> None:
    compiler: Any = Failing(CompileError("too late", reason="time limit"), 0.5, 0.9)
    found = compiled_choice(lines("mlp"), chosen("mlp"), compiler, most=20, compiles=3)
    assert len(compiler.asked) == 3
    assert found.made.reproduced == 0.9


def test_ctrl_c_takes_the_best_that_was_compiled() -> None:
    compiler: Any = Failing(KeyboardInterrupt(), 0.5, 0.9)
    with task("annotating", keeps_best=True):
        found = compiled_choice(lines("mlp"), chosen("mlp"), compiler, most=20, compiles=3)
    assert found.made.reproduced == 0.5
    assert len(compiler.asked) == 2
    compiler = Failing(KeyboardInterrupt(), 0.5, 0.9)
    with pytest.raises(KeyboardInterrupt):
        compiled_choice(lines("mlp"), chosen("mlp"), compiler, most=20, compiles=3)


def test_a_compiler_brings_back_more() -> None:
    """XLA's of CPU devices: what lines of propagation alone bring back, and those it chose."""
    name = "attention"
    before = compiled_once(name)
    compiler = LinesCompiler(subject(name))
    made = compiled_choice(lines(name), chosen(name), compiler, most=20, compiles=2).made
    assert made.reproduced > before.reproduced
    assert sum(one.bytes for one in made.other) < sum(one.bytes for one in before.other)


def test_no_compile_is_an_error() -> None:
    plan = once("mlp", cluster="cpu:8", mesh="data=4,model=2")
    with pytest.raises(PlanError, match="compiles=2 without verify=True"):
        plan.annotations(compiles=2)
    with pytest.raises(PlanError, match="compiles=0"):
        plan.annotations(verify=True, compiles=0)
