"""What takes long says how far it is, on a terminal by a bar, else to the logger ``autoshard``."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable
from functools import partial

import pytest

from autoshard import progress
from autoshard.progress import running, silent, task


class Terminal(io.StringIO):
    """Standard error of somebody who looks."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes when a test says so, and the timers that wait for it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        due = [what for when, what in self.waiting if when <= self.now]
        self.waiting = [(when, what) for when, what in self.waiting if when > self.now]
        for what in due:
            what()


class Timer:
    """As ``threading.Timer``, by a clock of tests."""

    def __init__(self, clock: Clock, seconds: float, what: Callable[[], None]) -> None:
        self.clock, self.entry = clock, (clock.now + seconds, what)

    def start(self) -> None:
        self.clock.waiting.append(self.entry)

    def cancel(self) -> None:
        if self.entry in self.clock.waiting:
            self.clock.waiting.remove(self.entry)


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(progress.threading, "Timer", partial(Timer, made))
    return made


def terminal_of(monkeypatch) -> Terminal:
    """Standard error from now on. Fixtures cannot set it: pytest does, between them and a test."""
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    return seen


def test_a_long_task_shows_a_bar_with_its_best_so_far(clock, monkeypatch):
    terminal = terminal_of(monkeypatch)
    with task("planning step") as found:
        found.says("levels, 3 compared, best a step of 2 ms on a mesh of 4x4")
        clock.pass_by(2.5)
        found.bar.refresh()
    assert "planning step" in terminal.getvalue()
    assert "best a step of 2 ms on a mesh of 4x4" in terminal.getvalue()


def test_what_is_printed_into_a_file_goes_there_while_a_bar_shows(clock, monkeypatch):
    terminal, file = terminal_of(monkeypatch), io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    with task("planning step"):
        clock.pass_by(2.5)
        print("loss 2.5")
    assert "planning step" in terminal.getvalue()
    assert file.getvalue() == "loss 2.5\n"


@pytest.mark.parametrize("kind", ["xterm-256color", "dumb"])
def test_a_short_task_shows_nothing(clock, monkeypatch, kind):
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("TERM", kind)
    with task("planning step") as found:
        found.says("levels")
        clock.pass_by(1.5)
    clock.pass_by(1)
    assert terminal.getvalue() == ""


def test_without_a_terminal_the_logger_is_told(capsys, caplog, clock):
    with caplog.at_level(logging.INFO, logger="autoshard"), task("planning step") as found:
        found.says("too soon")
        clock.pass_by(2)
        found.says("levels")
        clock.pass_by(0.5)
        found.says("too soon after that")
        clock.pass_by(0.5)
        with task("compiling"):
            pass
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "planning step: levels",
        "planning step: compiling",
        "planning step took 3.0 s",
    ]
    assert capsys.readouterr().err == ""


def test_what_no_task_is_for_is_told_to_nobody(caplog, clock):
    clock.pass_by(10)
    with caplog.at_level(logging.INFO, logger="autoshard"):
        running().says("levels")
    assert not caplog.records


def test_who_is_silent_in_another_thread_leaves_the_main_one_its_task():
    inside, over = threading.Event(), threading.Event()

    def elsewhere():
        with silent():
            inside.set()
            over.wait(10)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert inside.wait(10)
    with task("planning", keeps_best=True) as found:
        assert found.keeps_best
    over.set()
    thread.join()


def test_a_task_in_another_one_or_in_a_thread_has_no_bar_of_its_own(clock, monkeypatch):
    terminal, inner = terminal_of(monkeypatch), []
    with task("refining") as outer:
        with task("planning") as found:
            assert found is outer
        assert outer.text == ""

        def elsewhere():
            with task("compiling") as found:
                clock.pass_by(3)
                inner.append((found is outer, running() is outer, found.bar))

        thread = threading.Thread(target=elsewhere)
        with silent():
            thread.start()
            thread.join()
    assert inner == [(False, False, None)]
    assert running() is not outer
    assert "compiling" not in terminal.getvalue()
