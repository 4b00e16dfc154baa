"""How far what takes long is: a bar on a terminal, lines of the logger ``autoshard`` elsewhere.

    with task("planning train_step") as running:
        running.says("prices of memory, 14 plans, best 133 ms on 4x4")

Nothing is shown before two seconds, where standard error is no terminal, or in threads other than
the main one. A task within another one says what it does in the bar of the outer one.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

SHOWN_AFTER_SECONDS = 2.0
"""What is done sooner shows nothing."""

LOGGER = logging.getLogger("autoshard")
"""Says what a bar would, at ``INFO``: at most once a second, and what each task took."""

_PAUSE_SECONDS = 1.0


@dataclass(eq=False)
class Task:
    """Something that takes long."""

    name: str
    """``planning train_step``."""
    keeps_best: bool = False
    """Whether Ctrl-C ends it with the best result so far, if there is one."""
    is_interrupted: bool = False
    """Whether it was ended so."""
    bar: Any = None
    """A ``rich.progress.Progress`` once it is shown."""
    began: float = field(default_factory=lambda: time.monotonic())
    logged: float = field(default_factory=lambda: time.monotonic())
    text: str = ""
    """What it does now, and its best result so far."""

    def says(self, text: str) -> None:
        """Say what is being tried, and the best result so far.

        Args:
            text: Of one line.
        """
        if not self.name:
            return  # nobody is shown it
        self.text = text
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], what=text)
        now = time.monotonic()
        is_long = now - self.began >= SHOWN_AFTER_SECONDS
        if is_long and now - self.logged >= _PAUSE_SECONDS:
            self.logged = now
            LOGGER.info("%s: %s", self.name, text)


_UNSEEN = Task("")
"""Takes what nobody is shown."""
_running: list[Task] = []
"""The outermost task of the main thread, if there is one."""


def running() -> Task:
    """The task that runs; one that nobody sees if there is none."""
    is_main = threading.current_thread() is threading.main_thread()
    return _running[0] if is_main and _running else _UNSEEN


@contextmanager
def task(name: str, *, keeps_best: bool = False) -> Generator[Task]:
    """Show a bar for what runs within, once it takes long.

    Args:
        name: What is done, ``planning train_step``.
        keeps_best: Whether Ctrl-C ends it with the best result so far.
    """
    outer = running()
    if outer is not _UNSEEN:
        before, outer.text = outer.text, name
        outer.says(name)
        try:
            yield outer
        finally:
            outer.text = before
        return
    if threading.current_thread() is not threading.main_thread():
        yield Task(name)
        return
    found = Task(name, keeps_best)
    _running.append(found)
    try:
        if sys.stderr.isatty():
            with _bar(found):
                yield found
        else:
            yield found
    finally:
        _running.remove(found)
        seconds = time.monotonic() - found.began
        level = logging.INFO if seconds >= SHOWN_AFTER_SECONDS else logging.DEBUG
        LOGGER.log(level, "%s took %.1f s", name, seconds)


@contextmanager
def silent() -> Generator[None]:
    """Show no bars for what runs within: it shows itself how far it is."""
    if _running or threading.current_thread() is not threading.main_thread():
        yield
        return
    _running.append(Task(""))
    try:
        yield
    finally:
        _running.pop()


@contextmanager
def _bar(of: Task) -> Generator[None]:
    """The bar of a task, from when it has taken long."""
    # Imported here: most that is done takes no time, and needs no bar.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what is printed into a file goes there
    )
    bar.add_task(of.name, total=None, what="")
    lock, is_over = threading.Lock(), False

    def show() -> None:
        with lock:
            if not is_over:
                bar.start()
                of.bar = bar
                of.bar.update(bar.task_ids[0], what=of.text)

    timer = threading.Timer(SHOWN_AFTER_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()
        if of.bar is not None:
            of.bar = None
            bar.stop()
