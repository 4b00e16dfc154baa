#!/bin/sh
# Two processes with four CPU devices each, on this machine.
#
# Usage: examples/launch/one_machine.sh [OPTION OF several_processes.py ..]
#
# Ends with 0 when both did. JAX ends a process whose peers are gone, with a message.
set -eu
cd "$(dirname "$0")/.."
export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo
python=${PYTHON:-python3}
port=$("$python" -c 'import socket
with socket.socket() as s:
    s.bind(("localhost", 0))
    print(s.getsockname()[1])')
run() {
  "$python" several_processes.py --coordinator "localhost:$port" --processes 2 --process "$@"
}
run 1 "$@" &
other=$!
run 0 "$@" || { kill "$other" 2>/dev/null; exit 1; }
wait "$other"
