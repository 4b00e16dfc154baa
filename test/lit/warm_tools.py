"""Start the tools of lit's tests warm: a process that has loaded them is forked for each RUN line.

A tool is 0.3 to 1.5 seconds of imports and a tenth of that of work. ``start`` writes programs with
the names of the tools into a folder, for ``PATH``; such a program hands its arguments, folder,
environment and files to the server, which forks, and ends as the fork does. The server ends with
the process that started it.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

_LONGEST = 1 << 20
"""Bytes of arguments and environment together."""

_CLIENT = """#!{python} -SEI
import array, json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = json.dumps([{tool!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
files = array.array("i", [0, 1, 2])
server.sendmsg([asked], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
server.shutdown(socket.SHUT_WR)
code = int(server.recv(16))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def start(folder: Path, environment: Mapping[str, str]) -> None:
    """Start the server, and write the programs.

    Args:
        folder: For the programs; made.
        environment: Of the server: what tools read of it before they begin is as there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Not in the folder: the path of a socket has 107 bytes at most. The server removes it.
    address = os.path.join(tempfile.mkdtemp(prefix="lit-"), "server")
    server = subprocess.Popen(
        [sys.executable, __file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(environment),
        text=True,
    )
    _servers.append(server)
    assert server.stdout is not None, "a pipe"
    tools = server.stdout.readline().split()  # when all is loaded
    if not tools:
        raise RuntimeError("the server of warm tools did not start")
    for tool in tools:
        path = folder / tool
        path.write_text(_CLIENT.format(python=sys.executable, address=address, tool=tool))
        path.chmod(0o755)


_servers: list[subprocess.Popen[str]] = []
"""Kept, with the pipe by whose end a server knows that it is not needed."""


def _tools() -> dict[str, Callable[[], int | None]]:
    """What to call for each program."""
    from filecheck.main import main as filecheck

    from autoshard.cli import opt
    from autoshard.passes import registry

    for path in registry.ALL_PASSES.values():
        importlib.import_module(path.partition(":")[0])
    return {
        "autoshard-opt": lambda: opt.run_in_child(sys.argv[1:]),
        "filecheck": filecheck,
    }


def _serve(address: str) -> None:
    tools = _tools()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print(*tools, flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(connection, tools)
            connection.close()
    shutil.rmtree(os.path.dirname(address))


def _answer(connection: socket.socket, tools: Mapping[str, Callable[[], int | None]]) -> None:
    """Run a tool in a fork, kill it if nobody waits any more, and say how it ended."""
    asked, files = b"", array.array("i")
    while True:
        part, said, _, _ = connection.recvmsg(_LONGEST, socket.CMSG_SPACE(3 * files.itemsize))
        for _, _, numbers in said:
            files.frombytes(numbers)
        if not part:
            break
        asked += part
    tool, arguments, folder, environment = json.loads(asked)
    ended, held = os.pipe()  # held by the child until it ends
    child = os.fork()
    if child == 0:
        connection.close()
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        _open_standard_files()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [tool, *arguments]
        os._exit(_run(tools[tool]))
    for file in files:
        os.close(file)
    os.close(held)
    hangs_up = select.poll()
    hangs_up.register(connection, select.POLLHUP)
    hangs_up.register(ended, select.POLLHUP)
    if all(number != ended for number, _ in hangs_up.poll()):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):  # killed above
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _open_standard_files() -> None:
    """Anew: the server's know whether its own files can be sought."""
    encoding = sys.stdout.encoding
    sys.stdin = os.fdopen(0, encoding=encoding, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = os.fdopen(
        2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False
    )


def _run(tool: Callable[[], int | None]) -> int:
    try:
        code = tool()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # as Python ends a process of its own
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code or 0


if __name__ == "__main__":
    # JAX warns of forks, for the sake of its threads: there are none before a tool begins.
    warnings.filterwarnings("ignore", message=r"os.fork\(\) was called", category=RuntimeWarning)
    _serve(sys.argv[1])
