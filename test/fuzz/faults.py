"""Instructions that go wrong on purpose, so that tests see whether it is noticed.

Each does nothing in the process's first trace that meets its name, which is the unsharded run.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import jax

_traces: Counter[str] = Counter()


def traced_before(name):
    """How often a trace has met this name before."""
    _traces[name] += 1
    return _traces[name] - 1


def end_the_process():
    if traced_before("end"):
        os.abort()
    return 0


def end_in_double_precision():
    if jax.config.jax_enable_x64:
        os.abort()
    return traced_before("double")


def sleep_long():
    if traced_before("sleep"):
        time.sleep(600)
    return 0


def raise_an_error():
    if traced_before("raise"):
        raise ZeroDivisionError("nobody's error")
    return 0
