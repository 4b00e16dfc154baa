"""A train step as StableHLO, with what a corpus file says about it, and JAX's own seconds."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from autoshard.ir.module import print_module

DONATED = ("params", "opt_state", "cache")


@dataclass(frozen=True)
class Lowered:
    """One program and how long JAX took to make it."""

    bytecode: bytes
    arguments: list[dict[str, Any]]
    """index, path, role, shape, dtype, bytes and aliases_result, as ``args`` in the corpus."""
    trace_seconds: float
    lower_seconds: float


def lower(step: Callable[..., Any], roles: Sequence[str], *args: Any) -> Lowered:
    """Trace and lower ``step``, whose arguments with a role of ``DONATED`` are donated.

    Args:
        step: Returns what replaces its donated arguments first, in their order.
        roles: Of each argument.
        args: Pytrees of ``jax.ShapeDtypeStruct``.
    """
    donated = tuple(i for i, role in enumerate(roles) if role in DONATED)
    jitted = jax.jit(step, donate_argnums=donated, keep_unused=True)
    start = time.perf_counter()
    traced = jitted.trace(*args)
    middle = time.perf_counter()
    lowered = traced.lower(lowering_platforms=("tpu",))
    end = time.perf_counter()
    arguments: list[dict[str, Any]] = []
    for number, (role, tree) in enumerate(zip(roles, args, strict=True)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            index = len(arguments)
            arguments.append(
                {
                    "index": index,
                    "arg": number,
                    "path": jax.tree_util.keystr(path),
                    "role": role,
                    "shape": list(leaf.shape),
                    "dtype": str(leaf.dtype),
                    "bytes": math.prod(leaf.shape) * leaf.dtype.itemsize,
                    "aliases_result": index if number in donated else None,
                }
            )
    bytecode = print_module(lowered.compiler_ir("stablehlo"), "bytecode")
    return Lowered(bytecode, arguments, middle - start, end - middle)


@dataclass(frozen=True)
class Command:
    """What the command line of a script with models asks for."""

    model: str
    changes: dict[str, Any]
    """Changes of the model's configuration."""
    output: Path | None
    """Where to write the bytecode."""

    @classmethod
    def read(cls, description: str, models: Iterable[str]) -> Command:
        """The command in ``sys.argv``; ``models`` are those to choose from."""
        parser = argparse.ArgumentParser(description=description.splitlines()[0])
        parser.add_argument("model", choices=list(models))
        parser.add_argument("--layers", type=int)
        parser.add_argument("--scan", action="store_true")
        parser.add_argument("--remat", action="store_true")
        parser.add_argument("--fused", action="store_true")
        parser.add_argument("--batch", type=int)
        parser.add_argument("-o", "--output", type=Path, help="where to write the bytecode")
        given = vars(parser.parse_args())
        model, output = given.pop("model"), given.pop("output")
        return cls(model, {key: said for key, said in given.items() if said is not None}, output)

    def finish(self, made: Lowered, about: str) -> None:
        """Write the bytecode, and print ``about`` with its size and JAX's seconds."""
        if self.output:
            self.output.write_bytes(made.bytecode)
        print(
            f"{about}, {len(made.bytecode):,} bytes; "
            f"trace {made.trace_seconds:.2f} s, lower {made.lower_seconds:.2f} s"
        )
