"""The process that runs a program twice: a folder with two modules in, what differs out.

``plain.mlirbc`` runs on one device, or on one for each stage in lockstep, ``sharded.mlirbc`` on all
of them, with the same arguments.
"""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.ir.compile import CompiledModule

_PR_SET_PDEATHSIG = 1


def main(folder: Path) -> None:
    """Write ``result.json``; ``stage`` always says what is being done."""
    request = json.loads((folder / "request.json").read_text())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with its parent
    if request["host_memory_bytes"] is not None:
        limit = request["host_memory_bytes"]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    result = _run(folder, request)
    (folder / "writing.json").write_text(json.dumps(result))
    (folder / "writing.json").rename(folder / "result.json")


def _run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    import jax

    from autoshard.ir import new_context, parse_bytes
    from autoshard.ir.compile import CompilationFailed, compile_module
    from autoshard.verify.check.compare import DOUBLE, SINGLE, by_stage, compare
    from autoshard.verify.check.inputs import draw, draws, indexed_size

    jax.config.update("jax_num_cpu_devices", request["num_devices"])
    jax.config.update("jax_enable_x64", True)
    devices = jax.devices("cpu")
    tolerance = SINGLE if request["rounds"] else DOUBLE
    plain, sharded = (
        parse_bytes((folder / f"{name}.mlirbc").read_bytes(), new_context(), name)
        for name in ("plain", "sharded")
    )

    def compiled(module: Any, chosen: Sequence[Any]) -> CompiledModule:
        return compile_module(
            module, chosen, use_shardy=request["use_shardy"], options=request["options"]
        )

    stages = _Stages(folder / "stage", *request["patience"])
    indexed, types = indexed_size(plain), _argument_types(plain)
    found: list[list[dict[str, Any]]] = []
    try:
        with stages.whole("compiling"):
            whole = compiled(plain, devices[: request["stages"]])
        with stages.split("compiling"):
            split = compiled(sharded, devices)
        for number in draws(indexed):
            arguments = draw(types, indexed, number)
            with stages.whole("running"):
                expected = whole.run_pieces(*arguments)
            with stages.split("running"):
                results = split.run_pieces(*arguments)
            each = zip(expected, results, request["exact"], strict=True)
            found.append(
                [
                    asdict(compare(*by_stage(right, pieces), None if is_exact else tolerance))
                    for right, pieces, is_exact in each
                ]
            )
    except CompilationFailed as error:
        return {"refusal": str(error)}
    return {"refusal": None, "draws": found}


class _Stages:
    """What is being done, in a file; the process ends where splitting makes it take forever.

    An alarm ends it even where XLA does not return to Python.
    """

    def __init__(self, file: Path, seconds: float, times: float) -> None:
        self.file, self.seconds, self.times = file, seconds, times
        self.taken = 0.0

    @contextmanager
    def whole(self, what: str) -> Generator[None]:
        """For one device."""
        self.file.write_text(f"{what} the program")
        start = time.perf_counter()
        yield
        self.taken = time.perf_counter() - start

    @contextmanager
    def split(self, what: str) -> Generator[None]:
        """The same, right after, for all devices."""
        self.file.write_text(f"{what} the split program")
        signal.setitimer(signal.ITIMER_REAL, self.seconds + self.times * self.taken)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.file.write_text("comparing")


def _argument_types(module: Any) -> list[Any]:
    from autoshard.ir import mlir
    from autoshard.ir.module import functions_of
    from autoshard.ir.types import numpy_type

    (block,) = functions_of(module)["main"].regions[0].blocks
    types = [mlir.RankedTensorType(argument.type) for argument in block.arguments]
    return [(tuple(type_.shape), numpy_type(type_.element_type)) for type_ in types]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
