"""Compiled programs in a folder, so that tables that share a compile pay for it once.

A table that was stopped goes on where it was. The key is the module's text without locations, what
the target says beside the defaults (so that a field more keeps the key), the compiler's release,
the partitioner and its options. Errors are kept as well: a compiler that
refuses a module refuses it again; one that was stopped by the time limit is asked again when it
gets more time, one that the machine killed always. ``AUTOSHARD_BENCH_CACHE`` names the folder;
without it, it is in the system's folder for temporary files.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from autoshard.cluster import Cluster
from autoshard.errors import CompileError
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.verify.ahead_of_time import CompiledProgram, compile_in_subprocess
from autoshard.verify.targets import Target, target_of

FORMAT = 1
"""Format of the files; those of another format are as if they were not there."""


def cache_folder() -> Path:
    """``$AUTOSHARD_BENCH_CACHE``, else ``autoshard-bench`` among the temporary files."""
    named = os.environ.get("AUTOSHARD_BENCH_CACHE")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "autoshard-bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached_compile(
    module: mlir.Module | bytes,
    cluster: Cluster,
    *,
    use_shardy: bool = True,
    device_order: Sequence[int] | None = None,
    timeout: float = 600.0,
    compiler_options: Mapping[str, str] | None = None,
    host_memory_bytes: int | None = None,
    only_kept: bool = False,
) -> CompiledProgram:
    """As ``compile_in_subprocess``, once for each key.

    Args:
        module: See ``compile_in_subprocess``, as the other arguments.
        only_kept: Compile nothing that is not in the folder.

    Raises:
        CompileError: Now or when it was compiled before.
    """
    if isinstance(module, bytes):
        module = parse_bytes(module, new_context(), "module")
    path = (
        cache_folder()
        / f"{_key(module, cluster, use_shardy, device_order, compiler_options)}.json.gz"
    )
    kept = _read(path)
    if kept is not None and not _deserves_another_try(kept, timeout):
        return _result(kept)
    if only_kept:
        raise CompileError("not compiled yet", reason="not kept")
    entry: dict[str, Any] = {"format": FORMAT, "timeout": timeout}
    try:
        found = compile_in_subprocess(
            module,
            cluster,
            use_shardy=use_shardy,
            device_order=device_order,
            timeout=timeout,
            compiler_options=compiler_options,
            host_memory_bytes=host_memory_bytes,
        )
    except CompileError as error:
        if error.reason == "not installed":
            raise
        entry |= {"error": error.message, "reason": error.reason}
        _write(path, entry)
        raise
    _write(path, entry | {"program": found.to_json(), "hlo_text": found.hlo_text})
    return found


def _key(
    module: mlir.Module,
    cluster: Cluster,
    use_shardy: bool,
    device_order: Sequence[int] | None,
    compiler_options: Mapping[str, str] | None,
) -> str:
    target = target_of(cluster)
    about = {
        "target": _beside_defaults(target),
        "usable_bytes": cluster.usable_memory_bytes,
        "compiler": target.compiler(),
        "use_shardy": use_shardy,
        "device_order": device_order and list(device_order),
        "options": sorted((compiler_options or {}).items()),
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    digest.update(print_module(module, "text"))
    return digest.hexdigest()


def _beside_defaults(target: Target) -> dict[str, Any]:
    """The fields of a target that do not have their default value."""
    return {
        field.name: value
        for field in fields(target)
        if (value := getattr(target, field.name)) != field.default
    }


def _deserves_another_try(kept: dict[str, Any], timeout: float) -> bool:
    """Errors that depend on the machine: of the time limit, and of a process that was killed."""
    reason = kept.get("reason")
    return reason == "killed" or (reason == "time limit" and timeout > kept["timeout"])


def _result(kept: dict[str, Any]) -> CompiledProgram:
    if "error" in kept:
        raise CompileError(kept["error"], reason=kept["reason"])
    return CompiledProgram.from_json(kept["program"], kept["hlo_text"])


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    kept = json.loads(gzip.decompress(path.read_bytes()))
    return kept if kept["format"] == FORMAT else None


def _write(path: Path, entry: dict[str, Any]) -> None:
    """Whole or not at all: other processes read the same folder."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(gzip.compress(json.dumps(entry).encode(), mtime=0))
    unfinished.rename(path)
