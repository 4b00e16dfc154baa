"""Standard output of the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def printing() -> Generator[None]:
    """Print within; whoever reads may stop reading, as ``head`` does.

    Example:
        with printing():
            print(table)
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered goes nowhere, also when Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
