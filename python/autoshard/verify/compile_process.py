"""The process of ``compile_in_subprocess``: a folder with a request in, its results there too."""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(folder: Path) -> None:
    """Compile ``module.mlirbc`` as ``request.json`` says.

    Writes ``result.json``, in which ``refusal`` is the compiler's error or None, and ``hlo.txt``.
    """
    request = json.loads((folder / "request.json").read_text())
    if sys.platform == "linux":
        # Ends with its parent, however that ends.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if request["host_memory_bytes"] is not None:
        limit = request["host_memory_bytes"]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    result = _compile(folder, request)
    result["host_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (folder / "writing.json").write_text(json.dumps(result))
    (folder / "writing.json").rename(folder / "result.json")


def _compile(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    import jax

    from autoshard.ir import new_context, parse_bytes
    from autoshard.ir.compile import CompilationFailed, compile_ahead_of_time, compile_module

    target = request["target"]
    if target["platform"] == "cpu":
        jax.config.update("jax_num_cpu_devices", target["num_devices"])
    devices = ordered_devices(target, request["device_order"])
    module = parse_bytes((folder / "module.mlirbc").read_bytes(), new_context(), "module")
    compiling = compile_module if target["platform"] == "cpu" else compile_ahead_of_time
    start = time.perf_counter()
    try:
        compiled = compiling(
            module, devices, use_shardy=request["use_shardy"], options=request["options"]
        )
    except CompilationFailed as error:
        return {"refusal": str(error), "compile_seconds": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    stats = compiled.executable.get_compiled_memory_stats()
    parts = {
        "argument_bytes": stats.argument_size_in_bytes,
        "output_bytes": stats.output_size_in_bytes,
        "aliased_bytes": stats.alias_size_in_bytes,
        "temporary_bytes": stats.temp_size_in_bytes,
    }
    on_host = {
        "host_argument_bytes": stats.host_argument_size_in_bytes,
        "host_output_bytes": stats.host_output_size_in_bytes,
        "host_aliased_bytes": stats.host_alias_size_in_bytes,
        "host_temporary_bytes": stats.host_temp_size_in_bytes,
    }
    no_text = None
    try:
        (folder / "hlo.txt").write_text(compiled.hlo_text())
    except CompilationFailed as error:
        no_text = f"the compiler cannot print its program: {str(error).splitlines()[0][:300]}"
    return {
        **parts,
        **on_host,
        "peak_bytes": sum(parts.values()) - 2 * parts["aliased_bytes"],
        "reported_peak_bytes": stats.peak_memory_in_bytes,
        "refusal": None,
        "compile_seconds": seconds,
        "argument_layouts": compiled.argument_layouts(),
        "result_layouts": compiled.result_layouts(),
        "argument_shardings": compiled.argument_shardings(),
        "result_shardings": compiled.result_shardings(),
        "no_hlo_text": no_text,
    }


def ordered_devices(target: dict[str, Any], order: list[int] | None) -> list[Any]:
    """The device of each partition."""
    from autoshard.verify.described_devices import devices_of_target

    devices = devices_of_target(target)
    if len(devices) != target["num_devices"]:
        raise SystemExit(
            f"the compiler shows {len(devices)} devices for {target['topology']}, the cluster has"
            f" {target['num_devices']}"
        )
    return devices if order is None else [devices[number] for number in order]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
