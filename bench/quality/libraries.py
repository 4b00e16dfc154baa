"""Small real programs of the libraries that people use, in every mode beside plain ``jit``.

    python bench/quality/libraries.py [--python PYTHON] [--only NAME ..] [--csv]

Makes an environment of its own, ``build/libraries-venv``, with autoshard from this checkout and the
newest libraries of the index that its JAX takes, and runs each program of
``bench/programs/libraries`` there, a process for each, on 8 virtual CPU devices: with the library's
own ``jit`` on one device, then as ``auto`` plans it, as ``semi_auto`` does from the batch cut over
one axis, and ``data_parallel``. A row says whether results are equal, or why there are none.

``first s`` is the first call: traced, planned, compiled and run. ``call`` is the time of the host's
thread in one that is known, arguments where the plan wants them, over that of the library's own
``jit`` with the same arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import results

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "build" / "libraries-venv"
RUN = ROOT / "bench" / "programs" / "libraries" / "run_program.py"
LIBRARIES = {
    "blackjax": "blackjax",
    "brax": "brax",
    "diffrax": "diffrax",
    "distrax": "distrax",
    "equinox": "equinox",
    "flax": "flax",
    "haiku": "dm-haiku",
    "jaxopt": "jaxopt",
    "jraph": "jraph",
    "keras": "keras",
    "lineax": "lineax",
    "mujoco mjx": "mujoco-mjx",
    "numpyro": "numpyro",
    "optax": "optax",
    "optimistix": "optimistix",
    "orbax": "orbax-checkpoint",
    "ott": "ott-jax",
    "rlax": "rlax",
}
"""Name in the table -> name on the index."""
DATA = "scikit-learn"
Row = tuple[str, ...]
HEADS = (
    "library",
    "program",
    "mode",
    "result",
    "difference",
    "mesh",
    "first s",
    "plain s",
    "call us",
    "plain us",
    "call / plain",
    "warns",
)


def main() -> None:
    """Print a line for each program and mode."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="makes the environment")
    parser.add_argument("--as-is", action="store_true", help="install nothing anew")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="programs; rows of others stay in the file"
    )
    results.add_option(parser, "libraries")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a program")
    asked = parser.parse_args()
    python = environment(asked.python, asked.as_is)
    listed = programs(python)
    unknown = set(asked.only or ()) - {name for name, *_ in listed}
    if unknown:
        sys.exit(f"no program {', '.join(sorted(unknown))}: {', '.join(n for n, *_ in listed)}")
    before = rows_before(asked.csv) if asked.only else {}
    missing = without_rows(listed, asked.only, before) if asked.csv is not None else []
    if missing:
        sys.exit(
            f"{asked.csv} has no rows of {', '.join(missing)}: name them in --only, too, or run all"
        )
    rows: list[Row] = []
    for name, library, does in listed:
        if asked.only and name not in asked.only:
            rows += before.get((library, does), [])
            continue
        for found in outcomes(python, name, asked.limit):
            rows.append(row(library, does, found))
            print(name, *rows[-1][2:], sep="  ", flush=True)
        if asked.csv is not None:
            asked.csv.write_text(str(results.Results(about(python), HEADS, tuple(rows))))
    if asked.csv is not None:
        print(f"wrote {asked.csv}; now python bench/report.py")


def without_rows(
    listed: Sequence[tuple[str, str, str]],
    only: Sequence[str] | None,
    before: Mapping[tuple[str, str], Sequence[Row]],
) -> list[str]:
    """Programs that are neither run nor in the file, so that the table would lack them."""
    return [
        name
        for name, library, does in listed
        if only and name not in only and (library, does) not in before
    ]


def rows_before(path: Path | None) -> dict[tuple[str, str], list[Row]]:
    """Rows of the file by library and program; none without one."""
    found: dict[tuple[str, str], list[Row]] = {}
    for each in results.read(path).rows if path is not None and path.exists() else ():
        found.setdefault(each[:2], []).append(each)
    return found


def environment(python: str, as_is: bool) -> Path:
    """The Python of the environment, made if it is not there, autoshard installed anew.

    Args:
        python: Makes it.
        as_is: Nothing is installed.
    """
    found = ENVIRONMENT / "bin" / "python"
    if as_is:
        return found
    if not found.exists():
        subprocess.run([python, "-m", "venv", ENVIRONMENT], check=True)
    install = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, ROOT, DATA, *LIBRARIES.values()], check=True)
    return found


def programs(python: Path) -> list[tuple[str, str, str]]:
    """Name, library, and what each does, as ``run_program.py`` lists them."""
    listed = subprocess.check_output([python, RUN, "--list"], env=clean(), text=True)
    return [tuple(each) for each in json.loads(listed)]


def outcomes(python: Path, name: str, limit: float) -> Iterator[dict[str, Any]]:
    """What each mode gave; where a process ends before its last mode, a row says how."""
    command = [python, RUN, name]
    try:
        run = subprocess.run(command, env=clean(), capture_output=True, text=True, timeout=limit)
        out, end = run.stdout, f"ended with {run.returncode}: {last_line(run.stderr)}"
        if run.returncode == 0:
            end = ""
    except subprocess.TimeoutExpired as late:
        out, end = (late.stdout or b"").decode(), f"not done within {limit:.0f} s"
    lines = [line for line in out.splitlines() if line.startswith("outcome ")]
    yield from (json.loads(line.partition(" ")[2]) for line in lines)
    if end:
        yield {"mode": "", "result": end}


def clean() -> dict[str, str]:
    """The environment's own packages and no others."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]


def row(library: str, does: str, found: dict[str, Any]) -> Row:
    """Cells of the table."""
    call, plain = found.get("call_microseconds"), found.get("plain_call_microseconds")
    apart = found.get("difference")
    return (
        library,
        does,
        found["mode"],
        found["result"].replace("|", "/"),
        "" if apart is None else f"{apart:.0e}" if apart else "0",
        found.get("mesh", ""),
        number(found.get("first_seconds"), 1),
        number(found.get("plain_first_seconds"), 1),
        number(call, 0),
        number(plain, 0),
        number(call / plain, 2) if call and plain else "",
        found.get("warns", "").replace("|", "/").replace(f"{ROOT}/", ""),
    )


def number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def about(python: Path) -> dict[str, str]:
    """As ``results.about_this_run``, with the releases of the environment."""
    names = ["jax", "jaxlib", *LIBRARIES.values()]
    script = (
        "import importlib.metadata as m, platform, sys\n"
        "print(platform.python_version())\n"
        "print(', '.join(f'{name} {m.version(name)}' for name in sys.argv[1:]))"
    )
    told = subprocess.check_output([python, "-c", script, *names], env=clean(), text=True)
    version, releases = told.splitlines()
    here = results.about_this_run()
    machine, _, load = here["machine"].partition(", Python ")
    return {
        **here,
        "versions": releases,
        "machine": f"{machine}, Python {version}, {load.partition(', ')[2]}",
    }


if __name__ == "__main__":
    main()
