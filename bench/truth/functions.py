"""How many operations XLA:TPU takes functions of elements to be, beside those of the model.

    python bench/truth/functions.py [--clusters NAME ...] [--types NAME ...] [--functions NAME ...]
                                    [--csv FILE]

A kernel is a chain of one function, y = f(y) + x on 8 million elements that are made of a row and a
column and of which the maxima of columns leave, so that no memory is waited for. It is compiled
ahead of time for one device. A function's operations are the compiler's cycles for the kernel, less
those of a kernel that adds alone, over what vector units do in a cycle (``vector_flops`` of the
chip); the model's are the rows ``functions`` of docs/design/compilers.md, with which the same
program is planned. All chains of a chip and a type are one program.

Chains have to be long enough to compute longer than the kernel waits for anything, and short
enough for registers: no length was found for square roots, powers, and what lies 1 away of
exponentials and logarithms, nor for any chain on v6e, which are not here.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from jax import lax
from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES
from autoshard.importer.work import FUNCTIONS
from autoshard.ir import new_context, parse_bytes
from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.common.corpus import machine
from bench.programs.lowered import lower
from bench.programs.storage import spec

CLUSTERS = ("v5e:1x1", "v5p:1x1x1")
TYPES = ("float32", "bfloat16", "int32")
ROWS, COLUMNS = 4096, 2048
HEADS = (
    "chip",
    "type",
    "function",
    "compiler's operations",
    "model's operations",
    "model / compiler",
)

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_PLACE = re.compile(r'op_name="[^"]*/chain(\d+)/')

Binary = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Chain:
    """A function of the last value and the one before, and the op that it is in StableHLO."""

    function: Binary
    links: int
    """So many that the kernel computes longer than it waits for anything."""
    op: str = ""


def _of_one(function: Callable[[Any], Any]) -> Binary:
    return lambda value, _: function(value)


def _rotated(value: Any, _: Any) -> Any:
    left, right = (jnp.asarray(bits, value.dtype) for bits in (13, 19))
    return lax.shift_left(value, left) | lax.shift_right_logical(value, right)


FLOATS = {
    "multiply": Chain(lambda x, y: x * y, 40),
    "maximum": Chain(lax.max, 40),
    "floor": Chain(_of_one(lax.floor), 20),
    "divide": Chain(lambda x, y: y / x, 20, "divide"),
    "rsqrt": Chain(_of_one(lax.rsqrt), 24, "rsqrt"),
    "exp": Chain(_of_one(lax.exp), 24, "exponential"),
    "log": Chain(_of_one(lax.log), 20, "log"),
    "logistic": Chain(_of_one(lax.logistic), 12, "logistic"),
    "tanh": Chain(_of_one(lax.tanh), 24, "tanh"),
    "erf": Chain(_of_one(lax.erf), 4, "erf"),
    "erfc": Chain(_of_one(lax.erfc), 3, "erfc"),
    "erf_inv": Chain(_of_one(lax.erf_inv), 3, "erf_inv"),
    "sine": Chain(_of_one(lax.sin), 2, "sine"),
    "cosine": Chain(_of_one(lax.cos), 2, "cosine"),
    "tan": Chain(_of_one(lax.tan), 2, "tan"),
    "remainder": Chain(lax.rem, 6, "remainder"),
    "lgamma": Chain(_of_one(lax.lgamma), 2, "lgamma"),
}
INTEGERS = {
    "multiply": Chain(lambda x, y: x * y, 24),
    "rotate, 3 ops": Chain(_rotated, 20),
    "popcnt": Chain(_of_one(lax.population_count), 24),
    "divide": Chain(lambda x, y: lax.div(y, x), 3, "divide"),
    "remainder": Chain(lambda x, y: lax.rem(y, x), 3, "remainder"),
}


def links(chain: Chain, x: Any, y: Any) -> Any:
    """All of a chain; the value before the last is an operand of functions of two."""
    before, last = x, y
    for _ in range(chain.links):
        before, last = last, chain.function(last, before) + x
    return last


def compiled_seconds(cluster: Cluster, dtype: Any, chains: dict[str, Chain]) -> dict[str, float]:
    """The compiler's for each chain."""

    def all_of_them(*lines: Any) -> list[Any]:
        made = []
        for number, chain in enumerate(chains.values()):
            row, column = lines[2 * number : 2 * number + 2]
            with jax.named_scope(f"chain{number}"):
                x = row[None, :] + column[:, None]
                made.append(jnp.max(links(chain, x, row[None, :] * column[:, None]), axis=0))
        return made

    shapes = [spec(size, dtype=dtype) for _ in chains for size in (COLUMNS, ROWS)]
    made = lower(all_of_them, ["batch"] * len(shapes), *shapes)
    module = parse_bytes(made.bytecode, new_context(), "chains")
    compiled = cached_compile(module, cluster, timeout=1200)
    assert compiled.hlo_text is not None, f"{cluster.name}: no text"
    found = dict.fromkeys(chains, 0.0)
    clock = FAMILIES[cluster.chip.name].clock
    assert clock is not None
    for line in compiled.hlo_text.splitlines():
        cycles, place = _CYCLES.search(line), _PLACE.search(line)
        if cycles is not None and place is not None:
            found[list(chains)[int(place[1])]] += int(cycles[1]) / clock.value
    return found


def planned_operations(cluster: Cluster, chain: Chain) -> float:
    """An element's, by the rows of the cluster's compiler."""
    if not chain.op:
        return 3.0 if chain.function is _rotated else 1.0
    row = f"functions.{FUNCTIONS[chain.op].name.lower()}"
    return float(cluster.compiler.answers[row])


def rows_of(cluster: Cluster, name: str, wanted: Sequence[str]) -> list[tuple[str, ...]]:
    """Those of one type of elements."""
    chains = INTEGERS if jnp.issubdtype(jnp.dtype(name), jnp.integer) else FLOATS
    chains = {key: chain for key, chain in chains.items() if not wanted or key in wanted}
    added = {f"add {n}": Chain(lambda x, y: x, n) for n in (128, 256)}
    seconds = compiled_seconds(cluster, jnp.dtype(name), {**chains, **added})
    a_link = (seconds["add 256"] - seconds["add 128"]) / 128
    fixed = seconds["add 128"] - 128 * a_link
    found = []
    for key, chain in chains.items():
        taken = (seconds[key] - fixed) / chain.links - a_link
        operations = taken * cluster.chip.vector_flops.value / (ROWS * COLUMNS)
        planned = planned_operations(cluster, chain)
        ratio = planned / operations
        cells = (f"{operations:.1f}", f"{planned:.1f}", f"{ratio:.2f}")
        found.append((cluster.chip.name, name, key, *cells))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS, metavar="NAME")
    parser.add_argument("--types", nargs="+", default=TYPES, metavar="NAME")
    parser.add_argument("--functions", nargs="+", default=(), metavar="NAME")
    results.add_option(parser, "functions")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="Operations of functions, by XLA:TPU's own cycles and as modelled")
    for index, head in enumerate(HEADS):
        table.add_column(head, justify="left" if index < 3 else "right")
    rows: list[tuple[str, ...]] = []
    for name in options.clusters:
        for dtype in options.types:
            found = rows_of(Cluster.of(name), dtype, options.functions)
            rows.extend(found)
            for row in found:
                table.add_row(*row)
                console.print(f"[dim]{'  '.join(row)}")
    console.print(table)
    results.write_rows(options.csv, HEADS, rows)
    console.print(f"{machine()}.")


if __name__ == "__main__":
    main()
