#!/bin/sh
# Every check of the repository: lit directives, lint, lit, pytest.
#
# Usage: tools/test.sh [--python PYTHON] [--jax RELEASE] [PYTEST-ARGUMENT ...]
#
# Builds and installs autoshard into .venv-test-<version of PYTHON> (default: python3), which is
# made when it is missing and kept for the next time. With --jax it has that release in place of the
# newest one, and -jax-RELEASE behind its name. The exit code is 0 when all checks passed.
set -u
cd "$(dirname "$0")/.." || exit 1

python=python3
jax=""
while [ "${1:-}" = "--python" ] || [ "${1:-}" = "--jax" ]; do
  case $1 in
    --python) python=${2:?--python needs a value} ;;
    --jax) jax=${2:?--jax needs a release} ;;
  esac
  shift 2
done
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || exit 1
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "test.sh: autoshard needs Python 3.11 or newer, $python is $version" >&2
  exit 1
}
venv=$PWD/.venv-test-$version${jax:+-jax-$jax}
if [ ! -x "$venv/bin/python3" ]; then
  echo "test.sh: making $venv"
  "$python" -m venv "$venv" || exit 1
fi
PATH=$venv/bin:$PATH
VENV=$venv
export PATH VENV
unset PYTHONPATH

# The build requirements live in the environment, so that a second build compiles only changes.
# What autoshard needs when it runs is fetched while it compiles.
echo "test.sh: installing autoshard with Python $version"
pip() {
  "$venv/bin/python3" -m pip "$@"
}
dependencies() {
  "$venv/bin/python3" -c '
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *extras["test"], *extras["lint"], sep="\n")' &&
    if [ -n "$jax" ]; then printf 'jax==%s\njaxlib==%s\n' "$jax" "$jax"; fi
}
needed=$venv/requirements.txt
dependencies >"$needed" &&
  pip install -q "scikit-build-core>=0.10" "nanobind>=3.1,<3.2" cmake ninja || {
  echo "test.sh: installing what builds autoshard failed" >&2
  exit 1
}
pip install -q -r "$needed" &
fetching=$!
pip install -q --no-build-isolation --no-deps .
built=$?
wait $fetching && [ $built -eq 0 ] || {
  echo "test.sh: installing failed" >&2
  exit 1
}
"$venv/bin/autoshard-opt" --version || exit 1

failed=""
check() {
  name=$1
  shift
  echo
  echo "== $name"
  "$@" || failed="$failed $name"
}

check directives "$venv/bin/python3" tools/check_lit_directives.py
# Lint and the end of lit leave a core idle: side by side they take as long as lit alone.
tools/lint >"$venv/lint.log" 2>&1 &
linting=$!
check lit "$venv/bin/lit" -s --timeout 300 test/lit
wait $linting
linted=$?
check lint cat "$venv/lint.log"
[ $linted -eq 0 ] || failed="$failed lint"
if [ -n "$failed" ]; then
  echo
  echo "test.sh: failed:$failed (pytest follows)"
fi
# One process more than there are cores, since some tests wait for processes of their own; each has
# eight virtual devices, so that more than eight gain little.
workers=$("$venv/bin/python3" -c 'import os; print(min(8, len(os.sched_getaffinity(0)) + 1))')
check pytest "$venv/bin/python3" -m pytest -n "$workers" --dist worksteal "$@"
[ -z "$failed" ]
