"""Compile for devices that are not here, in a process of its own.

Compilers end their process on some programs, hang on others and need more memory than there is.
Here each of these is an answer: a program that does not fit, or an error with the last words.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES
from autoshard.errors import CompileError
from autoshard.ir import mlir, print_module
from autoshard.progress import task
from autoshard.verify.process import exit_code
from autoshard.verify.targets import Target, target_of

TIME_LIMIT_SECONDS = 600.0

_PROCESS = ("-m", "autoshard.verify.compile_process")
_LAST_WORDS = 3
"""Lines of a compiler that failed."""


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """What a compiler made of a program, or by how much it does not fit.

    Bytes are of one device. Those of the parts are None where the program does not fit, because
    the compiler stops there.
    """

    target: str
    """The cluster's name."""
    compiler: str
    """``libtpu 0.0.42, jaxlib 0.10.2``."""
    partitioner: str
    """``shardy`` or ``gspmd``."""
    fits: bool
    needed_bytes: int
    """Bytes by the compiler's own count where it fits, else as its message says."""
    usable_bytes: int
    """Bytes by its message where it does not fit, else ``Cluster.usable_memory_bytes``."""
    compile_seconds: float
    """The compiler's, without starting a process and loading it."""
    host_bytes: int
    """The most memory that the compiling process took."""
    argument_bytes: int | None = None
    output_bytes: int | None = None
    aliased_bytes: int | None = None
    """Bytes of outputs that are written over arguments."""
    temporary_bytes: int | None = None
    peak_bytes: int | None = None
    """Arguments, outputs and temporaries, less what is aliased."""
    reported_peak_bytes: int | None = None
    """The compiler's own count of what lives at once; ``live_bytes`` is the part on the device."""
    host_argument_bytes: int | None = None
    """Bytes of arguments in the memory of the host. None of the bytes above counts what is there,
    but those of XLA's CPU devices, which are the host."""
    host_output_bytes: int | None = None
    host_aliased_bytes: int | None = None
    host_temporary_bytes: int | None = None
    refusal: str | None = None
    """What the compiler says where it does not fit."""
    argument_shardings: tuple[str, ...] = ()
    """HloSharding texts; none where the compiler names none."""
    result_shardings: tuple[str, ...] = ()
    argument_layouts: tuple[str, ...] = ()
    """XLA's texts: in which order and tiles dims lie."""
    result_layouts: tuple[str, ...] = ()
    hlo_text: str | None = field(default=None, repr=False)
    """HLO of one partition, optimised; None where ``no_hlo_text`` says why."""
    no_hlo_text: str | None = None
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Options of the compiler, those that the target needs among them."""
    messages: tuple[str, ...] = field(default=(), repr=False)
    """Lines of the compiler's log: warnings and errors, involuntary rematerialisations too."""

    @property
    def live_bytes(self) -> int | None:
        """What lives at once on the device, by the compiler's own count, without the holes between
        buffers. Small buffers that a TPU keeps in its vector memory count, too.

        The count has what lies in the memory of the host in it (libtpu 0.0.42, jax-cuda12-pjrt
        0.10.2: arguments and outputs, what is aliased once). Temporaries there, such as stacks that
        a loop writes, come and go, so that the count says nothing of the device: None.
        """
        if self.reported_peak_bytes is None or self.host_temporary_bytes:
            return None
        on_host = (self.host_argument_bytes or 0) + (self.host_output_bytes or 0)
        return self.reported_peak_bytes - on_host + (self.host_aliased_bytes or 0)

    def to_json(self) -> dict[str, Any]:
        """Everything but the HLO text."""
        fields = asdict(self)
        del fields["hlo_text"]
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], hlo_text: str | None = None) -> CompiledProgram:
        """What ``to_json`` wrote, with the text if it was kept."""
        given = dict(fields)
        shardings, layouts = (
            tuple(f"{side}_{what}" for side in ("argument", "result"))
            for what in ("shardings", "layouts")
        )
        for name in (*shardings, *layouts, "messages"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given, hlo_text=hlo_text)


def compile_in_subprocess(
    module: mlir.Module | bytes,
    cluster: Cluster,
    *,
    use_shardy: bool = True,
    device_order: Sequence[int] | None = None,
    timeout: float = TIME_LIMIT_SECONDS,
    compiler_options: Mapping[str, str] | None = None,
    host_memory_bytes: int | None = None,
    stop: threading.Event | None = None,
) -> CompiledProgram:
    """Compile an exported module for a cluster.

    A module that the compiler refuses for want of something measured on a device is compiled again
    with ``Target.options_against`` that; ``CompiledProgram.options`` has them.

    Args:
        module: With a public function ``main``, exported for this partitioner; or its bytecode.
        cluster: One whose compiler is installed.
        use_shardy: Partition with Shardy, else with GSPMD.
        device_order: The cluster's device, in the order of its dims, that each partition of the
            module is on; None: partition ``p`` is on device ``p``.
        timeout: Seconds; after them the process and what it started are killed.
        compiler_options: XLA's, such as ``{"xla_gpu_autotune_level": "0"}``, beside those that
            the target needs.
        host_memory_bytes: That the compiling process may take; None: no limit.
        stop: Ends the compile as the time limit does, from another thread.

    Raises:
        CompileError: The compiler is not installed, refuses the module for another reason than
            memory, ended its process, or was not done in time.
        ClusterError: No compiler knows such devices.
    """
    target = target_of(cluster)
    request: dict[str, Any] = {
        "target": asdict(target),
        "use_shardy": use_shardy,
        "device_order": None if device_order is None else list(device_order),
        "options": dict(target.options) | dict(compiler_options or {}),
        "host_memory_bytes": host_memory_bytes,
    }
    data = module if isinstance(module, bytes) else print_module(module, "bytecode")
    try:
        return _compiled(data, cluster, target, request, timeout, stop)
    except CompileError as error:
        options: dict[str, str] = request["options"]
        others = target.options_against(error.message) if error.reason == "refused" else {}
        if others.keys() <= options.keys():
            raise
    request["options"] = options | others
    return _compiled(data, cluster, target, request, timeout, stop)


def _compiled(
    data: bytes,
    cluster: Cluster,
    target: Target,
    request: dict[str, Any],
    timeout: float,
    stop: threading.Event | None,
) -> CompiledProgram:
    """See ``compile_in_subprocess``; with one set of options."""
    compiler = target.compiler()
    partitioner = "shardy" if request["use_shardy"] else "gspmd"
    what = f"compiling for {target.name} with {partitioner} ({compiler})"
    with tempfile.TemporaryDirectory(prefix="autoshard-compile-") as name:
        folder = Path(name)
        (folder / "module.mlirbc").write_bytes(data)
        (folder / "request.json").write_text(json.dumps(request))
        start = time.perf_counter()
        with task(what):
            code = exit_code(_PROCESS, folder, timeout, stop)
        seconds = time.perf_counter() - start
        log = (folder / "log").read_text(errors="replace")
        result = folder / "result.json"
        if code is None:
            raise CompileError(
                f"{what} was not done after {seconds:.0f} s and was stopped."
                f" {last_words(log)}Give it more time (timeout), or compile a smaller program:"
                " scanned layers compile in the time of one.",
                reason="time limit",
            )
        if not result.exists():
            reason = "killed" if code == -signal.SIGKILL else "ended"
            raise CompileError(f"{what} {_death(code, log)}", reason=reason)
        said: dict[str, Any] = json.loads(result.read_text())
        said.update(target=target.name, compiler=compiler, partitioner=partitioner)
        said.update(messages=_messages(log), options=request["options"])
        refusal = said["refusal"]
        memory = None if refusal is None else read_out_of_memory(refusal)
        if memory is not None:
            said["needed_bytes"], said["usable_bytes"] = memory
            return CompiledProgram.from_json(said | {"fits": False})
        if refusal is not None:
            raise CompileError(
                f"{what} failed: {_first_lines(refusal)} Plan it in another way, or report the"
                " module.",
                reason="refused",
            )
        said["needed_bytes"] = said["peak_bytes"]
        said["usable_bytes"] = cluster.usable_memory_bytes
        said["fits"] = _fits(cluster, target, said["needed_bytes"])
        text = folder / "hlo.txt"
        return CompiledProgram.from_json(said, text.read_text() if text.exists() else None)


def _fits(cluster: Cluster, target: Target, needed: int) -> bool:
    """The TPU compiler has checked it, if its own limit counts; others do not."""
    built_in = FAMILIES[cluster.chip.name].chip.memory_bytes
    if target.platform == "tpu" and cluster.chip.memory_bytes == built_in:
        return True
    return needed <= cluster.usable_memory_bytes


# The process ------------------------------------------------------------------------------------


def _death(code: int, log: str) -> str:
    if code == -signal.SIGKILL:
        how = "was killed (SIGKILL), as Linux does where the machine has no memory left"
    elif code < 0:
        how = f"ended the compiler's process ({signal.Signals(-code).name})"
    else:
        how = f"ended the compiler's process with exit code {code}"
    return f"{how}. {last_words(log)}Compile on a machine with more memory, or report the module."


_FATAL = re.compile(r"^F\d{4} |Check failed|Assertion|MemoryError|bad_alloc|[Oo]ut of memory")
_STACK = re.compile(r"^\s*(@|#\d+|\*\*\*|Fatal Python error|Thread 0x|File \"|Current thread)")
_PREFIX = re.compile(r"^[IWEF]\d{4} \S+\s+\d+ |^[IWEF]0000 \S+\s+\d+ ")


def last_words(log: str) -> str:
    """The last words: lines about a failed check where there are any, else the last ones."""
    lines = [_PREFIX.sub("", line).strip() for line in _messages(log)]
    lines = [line for line in lines if not _STACK.match(line)]
    fatal = [line for line in lines if _FATAL.search(line)]
    chosen = fatal[-_LAST_WORDS:] or lines[-_LAST_WORDS:]
    if not chosen:
        return "It said nothing. "
    return f"Its last words: {' / '.join(line[:300] for line in chosen).rstrip('.')}. "


def _first_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()][:_LAST_WORDS]
    return " / ".join(line[:300] for line in lines).rstrip(".") + "."


_NOISE = (
    "cudart_stub.cc",
    "before absl::InitializeLog()",
    "Logging before InitGoogle()",
    "TPU accelerator type",
    "TPU_WORKER_HOSTNAMES",
    "=== Source Location Trace",
    "libtpu_init_utils.cc",
)
"""What compilers say wherever they are without their devices."""


def _messages(log: str) -> list[str]:
    return [
        line
        for line in log.splitlines()
        if line.strip() and not any(noise in line for noise in _NOISE)
    ]


# Messages ---------------------------------------------------------------------------------------

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_USED = (
    re.compile(r"Used ([\d.]+)([KMGT]?)i?B? of ([\d.]+)([KMGT]?)i?B? hbm", re.IGNORECASE),
    re.compile(
        r"required for HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM"
        r" \(([\d.]+)([KMGT]?)\)"
    ),
)


_EXCEEDED = re.compile(r"Exceeded hbm capacity by ([\d.]+)([KMGT]?)", re.IGNORECASE)


def read_out_of_memory(message: str) -> tuple[int, int] | None:
    """Bytes that a program needs and those that it may use, as an XLA message says.

    None where the message is of something else. Messages have two digits behind the point, the
    difference more.
    """
    for pattern in _USED:
        found = pattern.search(message)
        if found is not None:
            needed, usable = _bytes(*found.groups()[:2]), _bytes(*found.groups()[2:])
            exceeded = _EXCEEDED.search(message)
            return (needed if exceeded is None else usable + _bytes(*exceeded.groups())), usable
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit.upper()])
