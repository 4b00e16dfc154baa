"""What autoshard-opt does: read the command line and the modules, run passes, write, report."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from autoshard.cli.opt_driver.files import read_chunks, write_output
from autoshard.cli.opt_driver.help import ANSWERS
from autoshard.cli.opt_driver.settings import PROGRAM, command_line_parser, read_settings
from autoshard.cli.opt_driver.timing import Timing
from autoshard.cli.opt_driver.transform import run_chunk
from autoshard.errors import AutoshardError
from autoshard.writing import write_file


def run_command(arguments: Sequence[str], report: Callable[[str], None]) -> int:
    """Run the command.

    Args:
        arguments: Without the program's name.
        report: Called with ``FILE: error: STEP`` before each step, so that it is known should the
            step end the process.

    Returns:
        The exit code: 0, or 1 when something was wrong.
    """
    words = list(arguments)
    try:
        return _run_command(words, report)
    except AutoshardError as error:
        where = error.location or PROGRAM
        print(f"{where}: error: {error.message}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone; what is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if command_line_parser().parse_known_args(words)[0].debug:
            traceback.print_exc()
        print(
            f"{PROGRAM}: error: internal error: {type(error).__name__}: {error}. Please report "
            "it with the input; --debug shows where it happened.",
            file=sys.stderr,
        )
        return 1


def _run_command(words: list[str], report: Callable[[str], None]) -> int:
    answer = next((ANSWERS[word] for word in words if word in ANSWERS), None)
    if answer is not None:
        print(answer())
        return 0
    settings = read_settings(words)
    timing = Timing()
    with timing.measure("read"):
        chunks = read_chunks(settings)
    results = [run_chunk(chunk, settings, timing, report) for chunk in chunks]
    if settings.timing:
        print(timing.table(), file=sys.stderr)
    if not all(result.ok for result in results):
        return 1
    outputs = [result.output for result in results if result.output is not None]
    if settings.plan_json is not None and results[0].plan_json is not None:
        write_file(settings.plan_json, results[0].plan_json)
    write_output(b"// -----\n".join(outputs), settings)
    return 0
