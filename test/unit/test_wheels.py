"""Which wheels ``tools/wheels`` builds: with stand-ins for docker, cibuildwheel and Python."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
# Says what it is asked to do; builds an empty wheel of the tag that setuptools would give.
case "$*" in
  "-c "*version_info*) [ {minor} -ge 12 ]; exit $? ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip" ;;
  "-m build "*)
    echo "builds with 3.{minor}" >>"$SAID"
    mkdir -p "$5"
    : >"$5/autoshard-{tag}.whl" ;;
  "install -q build") ;;
  "install -q "*) echo "3.{minor} installs $3" >>"$SAID" ;;
  *try_wheel.py) echo "3.{minor} tries" >>"$SAID" ;;
  *) echo "3.{minor} does not know: $*" >>"$SAID"; exit 1 ;;
esac
"""


def stand_in(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script and nothing else of a checkout, beside a folder for commands."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "commands").mkdir()
    script = stand_in(tmp_path / "tools" / "wheels", (ROOT / "tools" / "wheels").read_text())
    assert script.parent.parent == tmp_path
    return tmp_path


def run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout / 'commands'}:/usr/bin:/bin"
    return subprocess.run(
        [checkout / "tools" / "wheels", *arguments],
        env=os.environ | {"PATH": path, "SAID": str(checkout / "said")},
        capture_output=True,
        text=True,
        check=False,
    )


def said_by(checkout: Path, *arguments: str) -> list[str]:
    """What the stand-ins were asked to do."""
    ended = run(checkout, *arguments)
    assert ended.returncode == 0, ended.stderr
    return (checkout / "said").read_text().splitlines()


def with_containers(checkout: Path, *, docker_works: bool) -> None:
    stand_in(checkout / "commands" / "docker", f"#!/bin/sh\nexit {int(not docker_works)}\n")
    stand_in(checkout / "commands" / "cibuildwheel", '#!/bin/sh\necho "$0 $*" >>"$SAID"\n')


def python(checkout: Path, minor: int) -> str:
    name = f"python3.{minor}"
    tag = "cp312-abi3" if minor >= 12 else f"cp3{minor}-cp3{minor}"
    text = PYTHON.replace("{minor}", str(minor)).replace("{tag}", tag)
    stand_in(checkout / "commands" / name, text)
    return str(checkout / "commands" / name)


def test_with_docker_and_cibuildwheel_it_is_theirs(checkout: Path) -> None:
    with_containers(checkout, docker_works=True)
    (said,) = said_by(checkout)
    assert said.endswith("cibuildwheel --platform linux --output-dir dist")


def test_machines_that_are_named_are_those_of_containers(checkout: Path) -> None:
    with_containers(checkout, docker_works=True)
    (said,) = said_by(checkout, "--archs", "x86_64 aarch64")
    assert said.endswith("cibuildwheel --platform linux --archs x86_64 aarch64 --output-dir dist")


def test_where_docker_does_not_run_other_machines_are_refused(checkout: Path) -> None:
    with_containers(checkout, docker_works=False)
    ended = run(checkout, "--archs", "aarch64")
    assert ended.returncode == 1
    assert "--archs aarch64 needs docker and cibuildwheel" in ended.stderr


def test_pythons_that_are_named_are_built_for_here_and_share_the_stable_abi(checkout: Path) -> None:
    with_containers(checkout, docker_works=True)
    names = [python(checkout, minor) for minor in (11, 12, 13)]
    own, stable = "dist/autoshard-cp311-cp311.whl", "dist/autoshard-cp312-abi3.whl"
    assert said_by(checkout, *names) == [
        "builds with 3.11",
        f"3.11 installs {own}",
        "3.11 tries",
        "builds with 3.12",
        f"3.12 installs {stable}",
        "3.12 tries",
        f"3.13 installs {stable}",
        "3.13 tries",
    ]
    assert sorted(path.name for path in (checkout / "dist").iterdir()) == [
        Path(own).name,
        Path(stable).name,
    ]


@pytest.mark.parametrize("is_there", [False, True])
def test_without_docker_it_is_the_python_here(checkout: Path, is_there: bool) -> None:
    """Also where docker is there, and its daemon does not answer."""
    if is_there:
        with_containers(checkout, docker_works=False)
    name = python(checkout, 13)
    Path(name).rename(checkout / "commands" / "python3")
    assert said_by(checkout)[0] == "builds with 3.13"


def test_containers_build_for_each_python_and_both_machines() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = project["tool"]["cibuildwheel"]
    assert asked["build"] == ["cp311-manylinux_*", "cp312-manylinux_*"]
    assert project["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    assert "try_wheel.py" in asked["test-command"]
