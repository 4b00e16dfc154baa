"""What takes long says how far it is, on a terminal by a bar, else to the logger ``autoshard``."""

from __future__ import annotations

import io
import logging
import threading
import time

import pytest

from autoshard import progress
from autoshard.progress import running, silent, task


class Terminal(io.StringIO):
    """Standard error of somebody who looks."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(progress, "_PAUSE_SECONDS", 0.0)


def test_a_long_task_shows_a_bar_with_its_best_so_far(monkeypatch):
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    with task("planning step") as found:
        found.says("levels, 3 compared, best a step of 2 ms on a mesh of 4x4")
        time.sleep(0.3)
    assert "planning step" in seen.getvalue()
    assert "best a step of 2 ms on a mesh of 4x4" in seen.getvalue()


def test_a_short_task_shows_nothing(monkeypatch):
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    with task("planning step") as found:
        found.says("levels")
    time.sleep(0.1)
    assert seen.getvalue() == ""


def test_without_a_terminal_the_logger_is_told(capsys, caplog):
    with caplog.at_level(logging.INFO, logger="autoshard"), task("planning step") as found:
        found.says("too soon")
        time.sleep(0.06)
        found.says("levels")
        with task("compiling"):
            pass
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["planning step: levels", "planning step: compiling"]
    assert said[2].startswith("planning step took 0.")
    assert capsys.readouterr().err == ""


def test_a_task_in_another_one_or_in_a_thread_has_no_bar_of_its_own(monkeypatch):
    seen, inner = Terminal(), []
    monkeypatch.setattr("sys.stderr", seen)
    with task("refining") as outer:
        with task("planning") as found:
            assert found is outer
        assert outer.text == ""

        def elsewhere():
            with task("compiling") as found:
                time.sleep(0.1)
                inner.append((found is outer, running() is outer, found.bar))

        thread = threading.Thread(target=elsewhere)
        with silent():
            thread.start()
            thread.join()
    assert inner == [(False, False, None)]
    assert running() is not outer
