"""Matmuls as XLA's partitioner cuts them, and as annotations take it to: the same collectives?

    python bench/truth/partitioned.py [--cluster h100:8]

Matmuls of two matrices, of gradients over two dims, of many rows and of few, and of activations
with a weight, each with its operands and its result cut in many ways on fsdp=4, model=2. They are
compiled, and beside that stand the collectives of least resharding between what is read and made,
and those of ``explain/partitioned.py``, which knows where the partitioner sums elsewhere.
"scatters" are the matmuls of which it is right whether sums are reduce-scattered, "kinds" those of
which all kinds of collectives are right, "bytes off" what is sent too much or too little of a kind,
over what is sent.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import autoshard
from autoshard.cluster import Cluster
from autoshard.explain.partitioned import partitioned
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import Propagated, propagated
from autoshard.importer.pins import DimPin, Pin, Pinned
from autoshard.ir import new_context, parse_bytes
from autoshard.sharding import Mesh
from autoshard.verify.hlo_collectives import hlo_collectives
from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.common.corpus import machine

HEADINGS = (
    *("matmuls", "scatters", "by least resharding"),
    *("kinds", "kinds by least", "bytes off", "bytes off by least"),
)
MESH = Mesh.parse("fsdp=4,model=2")
F, M, FM, MF, W = ("fsdp",), ("model",), ("fsdp", "model"), ("model", "fsdp"), ()

Axes = tuple[str, ...]
Cut = tuple[Axes, ...]
Bytes = Counter[str]
"""Bytes that one device sends, by kind of collective."""


@dataclass(frozen=True)
class Form:
    """A matmul of two operands."""

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """Sizes of both operands and the result."""
    summed: tuple[tuple[int, ...], tuple[int, ...]]
    """Dims of each operand that are summed over."""
    cuts: tuple[tuple[Cut, Cut, Cut], ...]
    """How operands and result are cut."""


def _matrices() -> Iterator[tuple[Cut, Cut, Cut]]:
    sides = (W, M, F, FM, MF)
    for left, right, rows, columns in product((W, M), (W, M), sides, sides):
        is_possible = not ((left and right) or set(rows) & set(columns))
        if is_possible and {*rows, *columns} & {"fsdp"}:
            yield (F, left), (F, right), (rows, columns)


_GRADIENTS = tuple(
    (left, right, made)
    for left, right in (
        *(((FM, W, W), (F, W, M)), ((FM, W, W), (FM, W, W))),
        *(((F, W, M), (FM, W, W)), ((F, W, W), (F, W, M))),
    )
    for made in ((W, M), (W, MF), (W, FM), (F, M), (M, F), (W, F), (W, W), (M, W))
)
_FEW_ROWS = tuple(
    (left, right, made)
    for left, right in (
        *(((FM, W, W), (FM, W, W)), ((F, M, W), (F, M, W)), ((F, W, W), (F, W, W))),
        *(((F, W, M), (F, W, W)), ((F, W, W), (F, W, M))),
    )
    for made in ((W, W), (M, W), (W, M))
)
_ACTIVATIONS = tuple(
    (left, right, made)
    for left, right in (
        *(((F, W, M), (M, W)), ((F, W, M), (MF, W)), ((F, W, M), (M, F)), ((F, W, M), (W, W))),
        *(((F, W, M), (F, W)), ((F, M, W), (M, W)), ((FM, W, W), (M, W))),
    )
    for made in ((F, W, W), (FM, W, W), (F, M, W), (F, W, M))
)
_ROWS, _TOKENS, _FEATURES, _HIDDEN = 32, 1024, 2048, 8192
_FEW = 64
"""Tokens of which operands are so small that it would send less to cut them further."""
FORMS = (
    Form(
        "matrices",
        ((_ROWS * _TOKENS, _FEATURES), (_ROWS * _TOKENS, _HIDDEN), (_FEATURES, _HIDDEN)),
        ((0,), (0,)),
        tuple(_matrices()),
    ),
    Form(
        "gradients of weights",
        ((_ROWS, _TOKENS, _FEATURES), (_ROWS, _TOKENS, _HIDDEN), (_FEATURES, _HIDDEN)),
        ((0, 1), (0, 1)),
        _GRADIENTS,
    ),
    Form(
        "gradients of few rows",
        ((_ROWS, _FEW, _FEATURES), (_ROWS, _FEW, _HIDDEN), (_FEATURES, _HIDDEN)),
        ((0, 1), (0, 1)),
        _FEW_ROWS,
    ),
    Form(
        "activations",
        ((_ROWS, _TOKENS, _HIDDEN), (_HIDDEN, _FEATURES), (_ROWS, _TOKENS, _FEATURES)),
        ((2,), (0,)),
        _ACTIVATIONS,
    ),
)


@cache
def subject(form: Form, cluster: str) -> Subject:
    """The matmul alone, planned on the mesh."""
    left, right, _ = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in form.shapes)

    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.dot_general(x, y, (form.summed, ((), ())))

    return autoshard.plan(multiply, left, right, cluster=cluster, mesh=str(MESH)).subject


def told(form: Form, cuts: Sequence[Cut], cluster: str) -> tuple[Bytes, Bytes]:
    """What least resharding sends, and what the partitioner is taken to send."""
    asked = subject(form, cluster)
    main = asked.imported.functions[-1]
    axis = {name: number for number, name in enumerate(asked.mesh.axis_names)}
    pins = [
        Pinned(value, Pin(tuple(DimPin(tuple(axis[a] for a in axes)) for axes in cut)), None, "pin")
        for value, cut in zip([*main.arguments, *main.results], cuts, strict=True)
    ]
    return _sent(propagated(asked, pins)), _sent(partitioned(asked, pins))


def _sent(found: Propagated) -> Bytes:
    sent: Bytes = Counter()
    for one in found.collectives:
        sent[one.key[0]] += round(one.bytes)
    return +sent


def compiled(form: Form, cuts: Sequence[Cut], cluster: str, timeout: float) -> Bytes:
    """What the compiled matmul sends."""
    x, y, made = (f"tensor<{'x'.join(map(str, shape))}xbf16>" for shape in form.shapes)
    left, right, result = (
        "{sdy.sharding = #sdy.sharding<@mesh, ["
        + ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in cut)
        + "]>}"
        for cut in cuts
    )
    over = " x ".join(str(list(dims)) for dims in form.summed)
    text = f"""
module attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["fsdp"=4, "model"=2]>
  func.func public @main(%x: {x} {left}, %y: {y} {right}) -> ({made} {result}) {{
    %0 = stablehlo.dot_general %x, %y, contracting_dims = {over} : ({x}, {y}) -> {made}
    return %0 : {made}
  }}
}}"""
    module = parse_bytes(text.encode(), new_context())
    program = cached_compile(module, Cluster.of(cluster), timeout=timeout)
    assert program.hlo_text is not None, program.no_hlo_text
    sent: Bytes = Counter()
    for one in hlo_collectives(program.hlo_text, MESH, unknown_trip_count=1):
        sent[one.kind.value] += round(one.total_bytes)
    return +sent


def measure(form: Form, cluster: str, timeout: float) -> list[str]:
    """The row of one form."""
    right, off, whole = Counter[str](), Counter[str](), 0
    for cuts in form.cuts:
        made = compiled(form, cuts, cluster, timeout)
        least, known = told(form, cuts, cluster)
        whole += made.total()
        for name, said in (("least", least), ("partitioned", known)):
            right[f"scatters {name}"] += ("reduce-scatter" in said) == ("reduce-scatter" in made)
            right[f"kinds {name}"] += said.keys() == made.keys()
            off[name] += ((said - made) + (made - said)).total()
        if known.keys() != made.keys():
            print(form.name, *cuts, dict(made), dict(least), dict(known), file=sys.stderr)
    return [
        str(len(form.cuts)),
        *(str(right[f"scatters {name}"]) for name in ("partitioned", "least")),
        *(str(right[f"kinds {name}"]) for name in ("partitioned", "least")),
        *(f"{off[name] / whole:.0%}" for name in ("partitioned", "least")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cluster", default="h100:8")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of a compile (300)")
    results.add_option(parser, "partitioned")
    given = parser.parse_args()
    table = Table("form", title=f"Matmuls for {given.cluster}, told and compiled")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for form in FORMS:
        table.add_row(form.name, *measure(form, given.cluster, given.timeout))
    Console(width=140).print(table)
    print(f"Measured on {machine()}.")
    results.write(given.csv, table)


if __name__ == "__main__":
    main()
