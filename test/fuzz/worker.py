"""A process that runs cases: one line of JSON in, one out, until there are no more.

``{"seed": 3, "plan": 0}`` asks for a random case, ``{"case": ".."}`` for a pickled one in base64.
"""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import pickle
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
    ]
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax

from fuzz.attribution import verdict
from fuzz.cases import Case, Reference, run_case, run_unsharded
from fuzz.configurations import random_configuration
from fuzz.outcomes import BROKEN, Outcome
from fuzz.random_programs import random_program

_PROGRAMS_BETWEEN_CLEARINGS = 10
"""What JAX and XLA keep of compiled programs would fill the memory."""


class Worker:
    """Answers requests one by one."""

    def __init__(self) -> None:
        self._reference = Reference()
        self._case: Case | None = None
        self._seed: int | None = None
        self._programs = 0

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        case = self._asked(request)
        if isinstance(case, Outcome):
            return asdict(case)
        if request.get("variant"):
            return {"result": verdict(case, str(request["variant"]))}
        if request.get("unsharded"):
            return asdict(run_unsharded(case))
        described = {
            "family": case.configuration.family,
            "style": case.program.style,
            "labels": case.program.labels,
        }
        if request.get("describe"):
            return described
        return asdict(run_case(case, self._reference)) | described

    def _asked(self, request: dict[str, object]) -> Case | Outcome:
        if "case" in request:
            return pickle.loads(base64.b64decode(str(request["case"])))
        seed, plan = int(str(request["seed"])), int(str(request["plan"]))
        try:
            if self._case is None or self._seed != seed:
                self._clear()
                program = random_program(seed)
            else:
                program = self._case.program
            with jax.enable_x64(program.x64):
                configuration = random_configuration(program, seed, plan)
        except Exception as error:  # a fault of the generator is reported, and the next is run
            return Outcome(BROKEN, f"{type(error).__name__}: {error}"[:500])
        self._seed, self._case = seed, Case(program, configuration, seed)
        return self._case

    def _clear(self) -> None:
        self._programs += 1
        if self._programs % _PROGRAMS_BETWEEN_CLEARINGS == 0:
            jax.clear_caches()


def main() -> None:
    faulthandler.enable()
    worker = Worker()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what XLA or a program prints is no answer
    print(json.dumps({"ready": jax.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
