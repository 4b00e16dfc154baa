"""Plans of published training runs beside the splits they were published with, both compiled.

    python bench/quality/recipes.py [--recipes PART ...] [--plans autoshard published replaced]
                                    [--no-flags] [--cached] [--save FILE] [--show FILE]

Train steps of MaxText, lowered from shapes alone, with Pallas kernels in them ($AUTOSHARD_RECIPES:
a folder of NAME.mlir.gz). Ours is what the search finds with nothing given. The published split is
written as marks on arguments and results, by the rules of MaxText: the model's features are cut
over "fsdp", hidden features, heads, vocabulary and norms over "tensor", the batch over "fsdp".
What lies between is completed by the same search, the best that could happen to it. "replaced" is
ours with policy="replace", recompute="auto" and host_offload="auto". Where no
plan fits the usual limit, the least that the refusal says is needed is allowed. Both are compiled
ahead of time, with the flags of the published run unless --no-flags, and the step is estimated from
both compiled programs by the same code.

The kernels need the libtpu that comes with the JAX that lowered them, 0.12: run this in an
environment with it. Compiled programs are kept (bench/common/compile_cache.py); ``--cached`` shows
what is there. Each row runs in a process of its own, and stays with its reason where it failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.compilers.options import read_compiler_options
from autoshard.ir import mlir, new_context, parse_file
from autoshard.ir.module import operations_of
from autoshard.kernels.mosaic import TARGET, is_tpu_kernel
from autoshard.sharding import Mesh
from autoshard.verify.hlo_program import VIEWS, HloComputation, HloInstruction, HloProgram
from autoshard.verify.kernel_costs import KernelCosts, kernel_costs
from bench.common import results
from bench.common.corpus import attach, in_a_process, machine
from bench.common.points import SavedRows, step_fields

PLANS = ("autoshard", "published")
REPLACED = "replaced"
"""A third plan: the program's own remat policy is undone, and decided anew with the sharding."""


@dataclass(frozen=True)
class Recipe:
    """A published run."""

    name: str
    """Name of the module."""
    cluster: str
    layers: int
    features: int
    """Size of the model's features, which are cut over fsdp."""
    fsdp: int
    tensor: int
    inner: tuple[int, ...]
    """Sizes of hidden features, heads and vocabulary, which are cut over tensor."""
    published: str
    """Seconds of a step, or what was published of it."""
    options: str
    """XLA's, a set of ``autoshard/compilers/option_sets``."""


RECIPES = (
    Recipe(
        "llama31_8b_v6e8",
        *("v6e:2x4", 32, 4096, 8, 1, ()),
        "3.443 s",
        "maxtext-v6e-offload",
    ),
    Recipe(
        "llama31_8b_v6e8_full",
        *("v6e:2x4", 32, 4096, 8, 1, ()),
        "not published",
        "maxtext-v6e-offload",
    ),
    Recipe(
        "default16b_v5e256",
        *("v5e:16x16", 32, 4096, 256, 1, ()),
        "61.1 % of peak: 10.3 s",
        "maxtext-v5e",
    ),
    Recipe(
        "gpt3_175b_v6e256",
        *("v6e:16x16", 96, 12288, 256, 1, ()),
        "17.182 s",
        "maxtext-v6e",
    ),
    Recipe(
        "default32b_v5p64",
        *("v5p:4x4x4", 32, 8192, 16, 4, (28672, 64, 32000)),
        "328 TFLOP/s a chip: 7.3 s",
        "maxtext-v5p",
    ),
)
"""Sources: AI-Hypercomputer/tpu-recipes (training/trillium) and maxtext (configs/v5e, configs/v5p);
those of the options stand in their sets. Seconds of models without a published step: FLOPs as
MaxText counts them, 6 for each weight and token and 12 for each layer, feature of queries, token
and position, over the rate."""


def recipes_folder() -> Path | None:
    """``$AUTOSHARD_RECIPES``, by default ``../shared/recipes`` beside the checkout, or None."""
    default = Path(__file__).resolve().parents[3] / "shared" / "recipes"
    folder = Path(os.environ.get("AUTOSHARD_RECIPES", default))
    return folder if folder.is_dir() else None


def load(recipe: Recipe) -> mlir.Module:
    """The module, as it was lowered.

    Raises:
        FileNotFoundError: There are no recipes.
    """
    folder = recipes_folder()
    if folder is None:
        raise FileNotFoundError("no recipes: set AUTOSHARD_RECIPES to a folder of NAME.mlir.gz")
    return parse_file(folder / f"{recipe.name}.mlir.gz", new_context())


# The published split


@dataclass(frozen=True)
class Argument:
    """Argument of the step's entry."""

    index: int
    shape: tuple[int, ...]
    dtype: str
    result: int | None
    """Number of the result that is written over it."""


def arguments_of(module: mlir.Module) -> list[Argument]:
    """In their order."""
    (main,) = (
        op.operation
        for op in module.body.operations
        if op.operation.name == "func.func" and '"main"' in str(op.operation.attributes["sym_name"])
    )
    types = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value).inputs
    found: list[Argument] = []
    for index, (type_, attributes) in enumerate(
        zip(types, mlir.ArrayAttr(main.attributes["arg_attrs"]), strict=True)
    ):
        tensor, items = mlir.RankedTensorType(type_), mlir.DictAttr(attributes)
        result = None
        if "tf.aliasing_output" in items:
            result = mlir.IntegerAttr(items["tf.aliasing_output"]).value
        found.append(Argument(index, tuple(tensor.shape), str(tensor.element_type), result))
    return found


def cut_of(recipe: Recipe, argument: Argument) -> str:
    """The dims of an argument as MaxText cuts them, as Shardy writes it."""
    shape = argument.shape
    cut = [""] * len(shape)
    if argument.dtype == "i32" and len(shape) == 2:
        cut[0] = '"fsdp"'
    elif argument.dtype == "f32":
        # Norms and biases, with a dim for layers or without, are not cut over fsdp.
        is_matrix = len([size for size in shape if size != recipe.layers]) > 1
        for dim, size in enumerate(shape):
            if size == recipe.features and is_matrix:
                cut[dim] = '"fsdp"'
            elif recipe.tensor > 1 and size in (*recipe.inner, recipe.features):
                cut[dim] = '"tensor"'
    return ", ".join(f"{{{axes}}}" for axes in cut)


def mesh_of(recipe: Recipe) -> dict[str, int]:
    """Mesh of the published split."""
    sizes = {"fsdp": recipe.fsdp, "tensor": recipe.tensor}
    return {axis: size for axis, size in sizes.items() if size > 1}


def mark(module: mlir.Module, recipe: Recipe) -> None:
    """Write the published split on arguments and on the results that replace them."""
    arguments = arguments_of(module)
    with module.context:
        cuts = {one.index: cut_of(recipe, one) for one in arguments}
    outs = {one.result: cuts[one.index] for one in arguments if one.result is not None}
    axes = ", ".join(f'"{axis}"={size}' for axis, size in mesh_of(recipe).items())
    attach(module, axes, cuts, outs)


# One row, in a process of its own


Point = tuple[str, str]
POINT = ("recipe", "plan")
"""Recipe, plan."""


def measure(recipe: Recipe, plan: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one plan."""
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardError, AutoshardWarning
    from autoshard.passes.pipeline import run_passes
    from bench.common.compile_cache import cached_compile

    warnings.simplefilter("ignore", AutoshardWarning)
    cluster = Cluster.of(recipe.cluster)
    whole = kernel_shapes(load(recipe))
    start = time.perf_counter()
    try:
        module, summary = planned(recipe, plan, cluster)
    except AutoshardError as error:
        return {"failed": f"{type(error).__name__}: {error.message}"}
    row: dict[str, Any] = {
        "planning": time.perf_counter() - start,
        "mesh": summary.mesh,
        "step": summary.step_seconds,
        "compute": summary.compute_seconds,
        "communication": summary.communication_seconds,
        "peak": summary.peak_bytes_per_device,
        "limit": summary.memory_limit,
    }
    try:
        run_passes(module, ["autoshard-export-shardy"])
        found = cached_compile(
            module,
            cluster,
            timeout=options.timeout,
            compiler_options=None if options.no_flags else read_compiler_options(recipe.options),
            only_kept=options.cached,
        )
    except AutoshardError as error:
        return row | {"failed": f"{type(error).__name__}: {error.message}"}
    row |= {
        "compiler": found.compiler,
        "compile": found.compile_seconds,
        "fits": found.fits,
        "needed": found.needed_bytes,
        "usable": found.usable_bytes,
        "live": found.live_bytes,
    }
    if found.hlo_text is None:
        return row | {"note": found.no_hlo_text}
    costs = kernel_costs(module, cluster)
    return row | compiled_program(found.hlo_text, Mesh.parse(summary.mesh), cluster, whole, costs)


def planned(recipe: Recipe, plan: str, cluster: Any) -> tuple[mlir.Module, Any]:
    """The planned module and its summary, within the least memory that a plan needs if need be."""
    from autoshard.errors import DoesNotFitError
    from autoshard.passes.recursive_programming import RecursiveProgramming, plan_automatically
    from autoshard.search.plan_pass import PlanProgram

    def within(limit: str) -> tuple[mlir.Module, Any]:
        module, mesh = load(recipe), ""
        if plan == REPLACED:
            options = {"policy": "replace", "recompute": "auto", "host_offload": "auto"}
            return replaced(
                module, PlanProgram(cluster=recipe.cluster, memory_limit=limit, **options)
            )
        if plan == "published":
            mark(module, recipe)
            mesh = ",".join(f"{axis}={size}" for axis, size in mesh_of(recipe).items())
        options = RecursiveProgramming(mesh=mesh, memory_limit=limit)
        return module, plan_automatically(module, cluster, options)

    try:
        return within("")
    except DoesNotFitError as error:
        return within(str(math.ceil(error.peak_bytes)))


def replaced(module: mlir.Module, options: Any) -> tuple[mlir.Module, Any]:
    """The module as autoshard-plan leaves it, and the summary."""
    from autoshard.planned.given_plan import summary_on

    with module.context:
        options.run(module)
    return module, summary_on(module)


Shapes = tuple[tuple[int, ...], ...]
"""Shapes of all results of a kernel."""


def kernel_shapes(module: mlir.Module) -> set[Shapes]:
    """Shapes of the kernels of a module where nothing is cut."""
    found: set[Shapes] = set()
    with module.context:
        for op in operations_of(module.operation):
            if is_tpu_kernel(op):
                types = [mlir.RankedTensorType(value.type) for value in op.results]
                found.add(tuple(tuple(each.shape) for each in types))
    return found


def kernels_of(program: HloProgram) -> list[HloInstruction]:
    """Calls of TPU kernels in a compiled program, each as often as it stands there."""
    return [
        instruction
        for computation in program.computations.values()
        for instruction in computation.instructions
        if _is_kernel(instruction)
    ]


def _is_kernel(instruction: HloInstruction) -> bool:
    return f'custom_call_target="{TARGET}"' in instruction.rest


def gathers_for_kernels(program: HloProgram) -> int:
    """Gathers that nothing but kernels reads, as they are or copied."""
    return sum(
        _feeds_kernels_alone(instruction, computation)
        for computation in program.computations.values()
        for instruction in computation.instructions
        if instruction.opcode in ("all-gather", "all-gather-start")
    )


_PASSED_ON = VIEWS | {"all-gather-done", "get-tuple-element"}


def _feeds_kernels_alone(made: HloInstruction, computation: HloComputation) -> bool:
    users = computation.users.get(made.name, [])
    return bool(users) and all(
        _is_kernel(user) or (user.opcode in _PASSED_ON and _feeds_kernels_alone(user, computation))
        for user in users
    )


def compiled_program(
    text: str, mesh: Mesh, cluster: Any, whole: set[Shapes], costs: KernelCosts
) -> dict[str, Any]:
    """What is read off a compiled program."""
    from autoshard.errors import AutoshardError
    from autoshard.verify.step_time import estimate_step

    program = HloProgram.parse(text)
    kernels = [tuple(array.shape for array in each.arrays) for each in kernels_of(program)]
    row: dict[str, Any] = {
        "whole": sum(shapes in whole for shapes in kernels),
        "cut": sum(shapes not in whole for shapes in kernels),
        "for kernels": gathers_for_kernels(program),
    }
    try:
        step = estimate_step(text, mesh, cluster, kernels=costs)
    except AutoshardError as error:
        return row | {"note": f"no estimate: {error.message}"}
    counted: Counter[str] = Counter()
    for one in step.collectives:
        counted[one.collective.kind.value] += round(one.collective.times)
    return row | {
        "estimate": step.step_seconds,
        "estimated compute": step.compute_seconds,
        "estimated communication": step.communication_seconds,
        "host": step.host_exposed_seconds,
        **step_fields(step),
        "of kernels": sum(o.total_seconds for o in step.slowest_ops if o.opcode == "custom-call"),
        "sent": sum(one.collective.total_bytes for one in step.collectives),
        "collectives": dict(counted.most_common()),
        "ops": [f"{o.total_seconds * 1e3:.1f} ms {o.opcode} {o.op_name}" for o in step.slowest_ops],
        "largest": [
            f"{one.collective.kind.value} {one.collective.local_bytes / 1e6:.1f} MB"
            f" x {one.collective.times:g} = {one.total_seconds * 1e3:.1f} ms"
            for one in sorted(step.collectives, key=lambda one: -one.total_seconds)[:12]
        ],
    }


# The table


HEADS = (
    *("recipe", "cluster", "plan", "mesh", "published", "step planned s", "step as scheduled s"),
    *(
        "nothing hidden s",
        "all hidden s",
        "of it compute s",
        "moving s",
        "host s",
        "sent GB",
        "peak planned GiB",
    ),
    *("peak compiled GiB", "usable GiB", "kernels cut", "whole", "gathers for kernels"),
    *("collectives run", "note"),
)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    recipe = recipe_called(row["recipe"])

    def number(key: str, unit: float = 1.0, digits: int = 2) -> str:
        return "" if row.get(key) is None else f"{row[key] / unit:.{digits}f}"

    counts = row.get("collectives", {})
    note = row.get("failed") or row.get("note") or ""
    if row.get("fits") is False:
        note = "does not fit"
    return [
        *(row["recipe"], recipe.cluster, row["plan"], row.get("mesh", ""), recipe.published),
        *(number("step"), number("as scheduled")),
        number("nothing hidden" if "nothing hidden" in row else "estimate"),
        *(number("all hidden"), number("estimated compute")),
        *(number("estimated communication"), number("host"), number("sent", 1e9)),
        *(number("peak", 2**30), number("live" if row.get("live") else "needed", 2**30)),
        number("usable", 2**30),
        *(str(row.get(key, "")) for key in ("cut", "whole", "for kernels")),
        ", ".join(f"{count} {kind}" for kind, count in counts.items()),
        note[:160],
    ]


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """All rows."""
    made = Table(title="Published runs, as planned and as compiled; of one device and one step")
    for index, head in enumerate(HEADS):
        is_text = index < 5 or index >= len(HEADS) - 2
        made.add_column(head, overflow="fold", justify="left" if is_text else "right")
    for row in rows:
        made.add_row(*cells(row))
    return made


def recipe_called(name: str) -> Recipe:
    """The recipe of a module."""
    return next(recipe for recipe in RECIPES if recipe.name == name)


def points(options: argparse.Namespace) -> Iterator[Point]:
    """Those asked for, the program that compiles fastest first."""
    for recipe in RECIPES:
        if not options.recipes or any(part in recipe.name for part in options.recipes):
            for plan in options.plans:
                yield recipe.name, plan


def why_not() -> str | None:
    """What is missing."""
    if recipes_folder() is None:
        return "no recipes, set AUTOSHARD_RECIPES to a folder of NAME.mlir.gz"
    if importlib.util.find_spec("libtpu") is None:
        return "no libtpu, pip install '.[tpu]'"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", nargs="+", metavar="PART", help="parts of names")
    parser.add_argument("--plans", nargs="+", default=PLANS, choices=(*PLANS, REPLACED))
    parser.add_argument("--no-flags", action="store_true", help="without the published flags")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a compile (900)")
    parser.add_argument("--cached", action="store_true", help="compile nothing")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the table of a saved file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "recipes")
    options = parser.parse_args()
    if options.one:
        name, plan = json.loads(options.one)
        print(json.dumps(measure(recipe_called(name), plan, options)))
        return
    console = Console(width=None if sys.stdout.isatty() else 250)
    rows = SavedRows(POINT, options.show or options.save)
    missing = None if options.show else why_not()
    if missing is not None:
        console.print(f"Skipped: {missing}.")
        return
    for point in rows.missing(() if options.show else points(options)):
        more = ["--timeout", str(options.timeout)]
        more += ["--no-flags"] * options.no_flags + ["--cached"] * options.cached
        made = in_a_process(__file__, json.dumps(point), options.timeout + 300, *more)
        row = rows.add(point, made)
        console.print(f"[dim]{' | '.join(cells(row))}", markup=True, highlight=False)
    console.print(table(list(rows)))
    results.write_rows(options.csv, HEADS, map(cells, rows))
    console.print(f"{machine()}.")


if __name__ == "__main__":
    main()
