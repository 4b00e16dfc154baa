"""Processes that run cases, watched from outside: they may abort, hang or run out of memory."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz.outcomes import ABORT, BROKEN, HANG

_WORKER = Path(__file__).resolve().parent / "worker.py"
_START_SECONDS = 120.0
_BETWEEN_LOOKS = 1.0
_PATIENCE = 10.0
_OTHER_QUESTIONS = {"describe", "unsharded", "variant"}
"""What may be asked of a case but how it goes."""
_ON_ONE_DEVICE = "in _in_double_precision"
"""In the frames of a fatal error: the run that judges a difference ended the process, and that one
has no plan."""


class Process:
    """One worker, started when it is first asked and again after each death."""

    def __init__(self, limit_seconds: float = 120.0) -> None:
        """``limit_seconds``: for one answer; a worker that takes longer is stopped."""
        self._limit_seconds = limit_seconds
        self._process: subprocess.Popen[str] | None = None
        self._log: Any = None
        self.started: dict[str, Any] = {}
        """What the worker says of itself when it is ready."""

    def ask(self, request: dict[str, Any], limit_seconds: float | None = None) -> dict[str, Any]:
        """The answer, or an outcome ``abort`` or ``hang``."""
        limit = limit_seconds or self._limit_seconds
        process = self._running()
        start = time.monotonic()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = self._line(limit)
        except BrokenPipeError:
            line = ""
        seconds = round(time.monotonic() - start, 2)
        if line:
            return json.loads(line)
        is_alive = line is None
        self.stop()
        text = f"no answer within {limit:g} s" if is_alive else self._last_words()
        code = process.returncode
        detail = text if is_alive else f"the process ended with {code}: {text}"
        result = HANG if is_alive else ABORT
        if result == ABORT and not request.keys() & _OTHER_QUESTIONS:
            is_planned = _ON_ONE_DEVICE not in detail and self._runs_unsharded(request, limit)
            result = ABORT if is_planned else BROKEN
        return {"result": result, "detail": detail, "seconds": seconds}

    def _runs_unsharded(self, request: dict[str, Any], limit: float) -> bool:
        """Whether the program of a case, without a plan, does not end the process."""
        return self.ask({**request, "unsharded": True}, limit)["result"] != ABORT

    def ask_for(
        self, case: Any, limit_seconds: float | None = None, variant: str | None = None
    ) -> dict[str, Any]:
        """For a case of one's own: how it goes, or how the variant of it does."""
        pickled = base64.b64encode(pickle.dumps(case)).decode()
        asked = {} if variant is None else {"variant": variant}
        return self.ask({"case": pickled, **asked}, limit_seconds)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        self._process = None

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._log is not None:
            self._log.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if self._log is not None:
            self._log.close()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        ready = self._line(_START_SECONDS)
        if not ready:
            raise RuntimeError(f"the worker does not start: {self._last_words()}")
        self.started = json.loads(ready)
        return self._process

    def _line(self, seconds: float) -> str | None:
        """The next line; empty where the process has ended, None where it says nothing.

        Seconds are those that the process computes, so that a busy machine calls nothing a hang
        that an idle one does not; a process that does not even compute has ``_PATIENCE`` as many.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        start, computed = time.monotonic(), _computed_seconds(self._process.pid)
        while True:
            # Each request has one answer, so that nothing waits in the buffer of the stream.
            readable, _, _ = select.select([self._process.stdout], [], [], _BETWEEN_LOOKS)
            if readable:
                return self._process.stdout.readline()
            if _computed_seconds(self._process.pid) - computed > seconds:
                return None
            if time.monotonic() - start > _PATIENCE * seconds:
                return None

    def _last_words(self) -> str:
        """The failed check or the fatal error in the log, else its end."""
        self._log.seek(0)
        text = self._log.read()
        checks = re.findall(r"^F\d{4} .*$", text, flags=re.MULTILINE)
        if checks:
            return checks[-1][:1500]
        python = text.rfind("Fatal Python error")
        return text[python:][:1500] if python >= 0 else text[-600:]


def _computed_seconds(pid: int) -> float:
    """Seconds of all threads of a process; where the system does not tell, of its clock."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return time.monotonic()
