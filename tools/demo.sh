#!/usr/bin/env bash
# Install this checkout into a virtual environment and train a byte-level transformer with it on
# 8 virtual CPU devices: with a few annotations, with none, and on one device.
#
#   tools/demo.sh [--python PYTHON] [options of examples/byte_transformer.py]
#
# Needs Python 3.11 or newer with venv and a C++ compiler; pip brings the rest. The environment
# stays in build/demo-venv, the results in ./demo-output.
set -euo pipefail

python=""
if [[ "${1:-}" == "--python" ]]; then
  python="${2:?--python needs a path}"
  shift 2
fi

is_new_enough() {
  command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'
}

if [[ -z "$python" ]]; then
  for candidate in python3 python3.13 python3.12 python3.11; do
    if is_new_enough "$candidate"; then
      python="$candidate"
      break
    fi
  done
fi
if [[ -z "$python" ]] || ! is_new_enough "$python"; then
  echo "tools/demo.sh: needs Python 3.11 or newer, found ${python:-none in PATH}." \
    "Name one with --python." >&2
  exit 1
fi
compiler="${CXX:-c++}"
if ! command -v "${compiler%% *}" >/dev/null; then
  echo "tools/demo.sh: no C++ compiler '$compiler'. Install one or set CXX." >&2
  exit 1
fi

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
environment="$root/build/demo-venv"
if [[ ! -x "$environment/bin/python" ]] || ! is_new_enough "$environment/bin/python"; then
  echo "Creating $environment"
  "$python" -m venv --clear "$environment"
fi
echo "Installing autoshard from $root"
install() {
  # Modules are compiled when they are first imported: most of them never are.
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}
listed() {
  "$environment/bin/python" -c '
import sys, tomllib
read = tomllib.load(open(sys.argv[1], "rb"))
project, build = read["project"], read["build-system"]["requires"]
wanted = [*project["dependencies"], *project["optional-dependencies"]["demo"]]
print(*(build if sys.argv[2] == "build" else wanted), sep="\n")' "$root/pyproject.toml" "$1"
}
# What autoshard needs when it runs is fetched while it compiles.
mapfile -t building < <(listed build)
mapfile -t running < <(listed run)
install "${building[@]}" cmake ninja
install "${running[@]}" &
fetching=$!
install --no-build-isolation --no-deps "$root"
wait "$fetching"
exec "$environment/bin/python" "$root/examples/byte_transformer.py" "$@"
