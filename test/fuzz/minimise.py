"""Make a failing case small, and print it as JAX that anyone can run.

    python test/fuzz/minimise.py --seed 1234 --plan 0
    python test/fuzz/minimise.py --seed 1234 --plan 0 --save clamped_update
    python test/fuzz/minimise.py --report fuzz.jsonl

The second writes the case to ``past/clamped_update.py``, from where every test run takes it; the
third takes all findings of a report and groups them by the instructions that are left.
Instructions and outputs are dropped, values become arguments, sizes and options shrink, as long as
the case still fails in the same way. Every try runs in another process, which may abort.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax

from fuzz.attribution import VARIANTS, blame
from fuzz.cases import Case
from fuzz.configurations import random_configuration
from fuzz.outcomes import FINDINGS, OWN_FAULT, TRACEBACK
from fuzz.printing import printed
from fuzz.random_programs import random_program
from fuzz.run import Line, read_report
from fuzz.shrinking import SMALLER_PROGRAMS, retyped, simpler_configurations
from fuzz.workers import Process

Answer = dict[str, Any]
Runner = Callable[[Case], Answer]


def main() -> int:
    options = _parser().parse_args()
    with Process(options.limit) as process:
        if options.report:
            return _all_of_a_report(read_report(options.report), process, options.seconds)
        case = random_case(options.seed, options.plan)
        small, last = smallest(case, process, options.seconds)
        if last["result"] not in FINDINGS:
            print(f"the case is {last['result']}: {last['detail']}")
            return 1
        text = printed(small, last, attribution(small, process))
    print(text)
    if options.save:
        save(small, text, options.save)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--report", type=Path, help="what run.py wrote")
    parser.add_argument("--plan", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300, help="how long to try, for each case")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each try")
    parser.add_argument("--save", help="name of a module in test/fuzz/past")
    return parser


def _all_of_a_report(lines: list[Line], process: Process, seconds: float) -> int:
    """Print each finding, and at the end how many there are of each kind."""
    kinds: Counter[str] = Counter()
    for line in lines:
        if line["result"] not in FINDINGS:
            continue
        small, last = smallest(random_case(line["seed"], line["plan"]), process, seconds)
        kinds[f"{last['result']} {signature(last)} {', '.join(small.program.labels)}"] += 1
        print(f"# seed {line['seed']} plan {line['plan']}")
        print(printed(small, last, attribution(small, process)), "\n", flush=True)
    for kind, count in kinds.most_common():
        print(f"# {count:4} {kind}")
    return int(bool(kinds))


def save(case: Case, text: str, name_of_module: str) -> None:
    """Write the case, and what was wrong with it, as a module that is run by every test."""
    case_text = f"CASE = {case!r}"
    modules = {
        "cases": ("Case",),
        "configurations": ("Configuration",),
        "programs": ("Argument", "Instruction", "Kind", "Mark", "Program"),
    }
    lines = ['"""Wrong once, made small by ``minimise.py``."""', "", "# ruff: noqa: E501"]
    lines += [line for line in text.split("\n") if line.startswith("# ")] + [""]
    for module, names in modules.items():
        used = [name for name in names if f"{name}(" in case_text]
        lines += [f"from fuzz.{module} import {', '.join(used)}"]
    lines += ["", case_text, ""]
    path = Path(__file__).resolve().parent / "past" / f"{name_of_module}.py"
    path.write_text("\n".join(lines))


def random_case(seed: int, plan: int) -> Case:
    """The same that ``run.py`` runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = random_program(seed)
        with jax.enable_x64(program.x64):
            return Case(program, random_configuration(program, seed, plan), seed)


def report(case: Case, process: Process, seconds: float) -> str:
    """What is wrong with a case, small, with whose fault it is."""
    small, last = smallest(case, process, seconds)
    return printed(small, last, attribution(small, process))


def smallest(case: Case, process: Process, seconds: float) -> tuple[Case, Answer]:
    """The case and how it goes, both made small where that is a finding."""
    first = process.ask_for(case)
    if first["result"] not in FINDINGS:
        return case, first
    return minimised(case, first, process.ask_for, seconds)


def attribution(case: Case, process: Process) -> str:
    """A line for each variant, and what follows."""
    verdicts = {it: process.ask_for(case, variant=it)["result"] for it in VARIANTS}
    lines = [f"{variant}: {verdict}" for variant, verdict in verdicts.items()]
    return "\n".join([*lines, f"fault of: {blame(verdicts)}"])


def minimised(case: Case, answer: Answer, run: Runner, seconds: float) -> tuple[Case, Answer]:
    """The smallest case that was found to fail as ``case`` does, and how it fails."""
    end = time.monotonic() + seconds
    size = 0
    while size != (size := len(repr(case))):
        for step in (*SMALLER_PROGRAMS, simpler_configurations):
            case, answer = _by_one_kind_of_step(step, case, answer, run, end)
    return case, answer


def _by_one_kind_of_step(
    step: Callable[[Any], Iterator[Any]], case: Case, answer: Answer, run: Runner, end: float
) -> tuple[Case, Answer]:
    """Take such steps until none is left that fails in the same way, or the time is over."""
    is_changing = True
    while is_changing:
        is_changing = False
        for candidate in _candidates(step, case):
            if time.monotonic() > end:
                return case, answer
            found = run(candidate)
            if is_same_failure(found, answer):
                case, answer, is_changing = candidate, found, True
                break
    return case, answer


def is_same_failure(found: Answer, wanted: Answer) -> bool:
    return found["result"] == wanted["result"] and signature(found) == signature(wanted)


def signature(answer: Answer) -> str:
    """Where a failed check or an error is, without the values in its text."""
    detail = answer["detail"]
    check = re.search(r"\w+\.(?:cc|h|cpp):\d+", detail)
    if check:
        return check.group()
    if answer["result"] in (TRACEBACK, OWN_FAULT):
        return re.sub(r"[\d\[\](){}<>, x]+", " ", detail.split("\n")[0])[:60]
    return ""


def _candidates(step: Callable[[Any], Iterator[Any]], case: Case) -> Iterator[Case]:
    """Smaller ones that fit together."""
    if step is simpler_configurations:
        for configuration in step(case.configuration):
            yield replace(case, configuration=configuration)
        return
    count = len(case.program.arguments)
    for program in step(case.program):
        if not program.arguments or not program.outputs:
            continue
        try:
            with warnings.catch_warnings(), jax.enable_x64(program.x64):
                warnings.simplefilter("ignore")
                fitting = retyped(program)
        except Exception:
            continue
        yield replace(case, program=fitting, configuration=_fitted(case, fitting, count))


def _fitted(case: Case, program: Any, count: int) -> Any:
    """The configuration with the pins of the arguments that are left."""
    configuration = case.configuration
    pins = configuration.argument_pins
    if pins and program.style == case.program.style == "function" and len(pins) == count:
        by_name = dict(zip((it.name for it in case.program.arguments), pins, strict=True))
        pins = tuple(by_name.get(it.name, "None") for it in program.arguments)
    results = configuration.result_pins
    if results and program.style == case.program.style == "function":
        of_result = dict(zip(case.program.outputs, results, strict=True))
        results = tuple(of_result.get(name, "None") for name in program.outputs)
    return replace(configuration, argument_pins=pins, result_pins=results)


if __name__ == "__main__":
    sys.exit(main())
