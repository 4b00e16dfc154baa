"""Random programs in micro-batches on one device, compared with the whole batch.

    python test/fuzz/micro_batches.py --seeds 0:2000
    python test/fuzz/micro_batches.py --seeds 0:2000 --devices 2

Any arguments whose dim 0 the micro-batches divide are taken for the batch, whatever they mean: what
``autoshard-micro-batch`` does not refuse is the same for every choice, bit for bit where sums are
the same in every order. With several devices these share the batch, and all sums that
``autoshard-reduce-once`` finds are reduced behind the loop. Programs as in ``random_programs.py``.
``batch`` says which arguments; a finding is printed with the program.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = (
        "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8"
    )
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.attributes import MESH, PIN
from autoshard.ir.boundary import main_function, with_attribute
from autoshard.ir.compile import compile_module
from autoshard.ir.native import verify
from autoshard.ir.reading import shape_of
from autoshard.passes.export_shardy import ExportShardy
from autoshard.passes.pipeline import run_passes
from autoshard.passes.sharding_propagation import ShardingPropagation
from autoshard.planned.given_plan import cost_of_module
from autoshard.planned.write import mesh_of, write_plan
from autoshard.rewrites.micro_batches.rewrite import into_micro_batches
from autoshard.rewrites.reduce_once.chains import chains_of
from autoshard.rewrites.reduce_once.write import write_chains
from fuzz.comparison import first_difference, judged
from fuzz.outcomes import BROKEN, EQUAL, FINDINGS, REFUSED, TRACEBACK
from fuzz.programs import Program, random_values, standalone
from fuzz.random_programs import random_program
from fuzz.styles import arguments_of, styled, styled_text

_CALLBACK = "xla_ffi_python_cpu_callback"
UNRUN = "nothing to cut"
_CLEARINGS = 20
"""So many programs between two clearings of JAX's caches, which would fill the memory."""


@dataclass(frozen=True)
class MicroBatchCase:
    """A program, the arguments that are its batch, and the micro-batches."""

    program: Program
    seed: int
    batch: tuple[int, ...]
    """Numbers among the flattened arguments."""
    count: int


def random_micro_batch_case(seed: int, devices: int = 1) -> MicroBatchCase | None:
    """The same at every call; None where no argument of the program can be cut.

    Args:
        seed: Of the program and the choice.
        devices: That can share each part.
    """
    program, random = random_program(seed), np.random.default_rng([seed, 20])
    with jax.enable_x64(program.x64):
        shapes = [leaf.shape for leaf in _leaves(program, seed)]
    sizes = {shape[0] for shape in shapes if shape and shape[0] > 1}
    if devices > 1:
        sizes = {size for size in sizes if size > devices and size % devices == 0}
    if not sizes:
        return None
    size = int(random.choice(sorted(sizes)))
    count = int(random.choice([m for m in range(2, size + 1) if size % (m * devices) == 0]))
    equal = [number for number, shape in enumerate(shapes) if shape and shape[0] == size]
    kept = random.integers(1, len(equal) + 1)
    batch = sorted(int(it) for it in random.choice(equal, kept, replace=False))
    return MicroBatchCase(program, seed, tuple(batch), count)


def micro_batch_outcome(case: MicroBatchCase, devices: int = 1) -> tuple[str, str]:
    """One of the words of ``outcomes.py``, and what there is to say.

    Args:
        case: What is run.
        devices: That share the batch; with one, nothing is planned.
    """
    program = case.program
    with jax.enable_x64(program.x64):
        try:
            values = random_values(program, case.seed)
            function = jax.jit(styled(program), keep_unused=True)
            lowered = function.lower(*arguments_of(program, values))
            expected = _plain(function(*arguments_of(program, values)))
        except Exception as error:
            return BROKEN, f"{type(error).__name__}: {error}"
        try:
            text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
            if _CALLBACK in text:  # a callback is of the process that lowered it
                return UNRUN, "it calls Python"
            module = parse_bytes(text.encode(), new_context())
            with module.context, mlir.Location.unknown():
                into_micro_batches(module, case.batch, case.count)
            said = ""
            if devices > 1:
                said = f"{reduce_all_once(module, case.batch, devices)} sums"
            verify(module)
            if devices > 1:
                run_passes(module, [ExportShardy()])
            compiled = compile_module(module, jax.devices()[:devices])
            leaves = compiled.run(*map(np.asarray, _leaves(program, case.seed)))
        except PlanError as error:
            return REFUSED, str(error)
        except Exception as error:
            return TRACEBACK, f"{type(error).__name__}: {error}"
        found = jax.tree.unflatten(jax.tree.structure(expected), leaves)
        if first_difference(program, found, expected) is None:
            return EQUAL, said
        return judged(program, values, expected, found)


def reduce_all_once(module: mlir.Module, batch: Sequence[int], devices: int) -> int:
    """Cut the batch over devices, and reduce all sums behind their loops that can be.

    Returns:
        How many there are.
    """
    with module.context, mlir.Location.unknown():
        module.operation.attributes[MESH] = mlir.StringAttr.get(f"data={devices}")
        main = main_function(module)
        for number in batch:
            shape = shape_of(main.regions[0].blocks[0].arguments[number])
            if shape[0] % devices == 0:
                dims = ", ".join(["{data, ?}", *["{?}"] * (len(shape) - 1)])
                pin = mlir.StringAttr.get(f"[{dims}]")
                with_attribute(main, "arg_attrs", PIN, pin, [number])
        run_passes(module, [ShardingPropagation(needs_pins=False)])
        mesh = mesh_of(module)
        chains = chains_of(main, mesh)
        write_chains(chains, mesh)
        costed = cost_of_module(module, Cluster.of(f"cpu:{devices}"))
        write_plan(module, costed.imported, costed.plan)
    return sum(len(chain.sums) for chain in chains)


def _leaves(program: Program, seed: int) -> list[Any]:
    arguments = arguments_of(program, random_values(program, seed))
    return jax.tree.leaves(_plain(arguments))


def _plain(tree: Any) -> Any:
    """On the host, keys as the numbers that they are made of."""

    def plain(leaf: Any) -> Any:
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    return jax.device_get(jax.tree.map(plain, tree))


def main() -> int:
    """Run the cases and print a table of outcomes; 1 where there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", default="0:200", help="from:to, the last one not included")
    parser.add_argument("--refusals", action="store_true", help="print every refusal, too")
    parser.add_argument("--devices", type=int, default=1, help="that share the batch; at most 8")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for seed in range(first, last):
        if seed % _CLEARINGS == 0:
            jax.clear_caches()
            print(f"{seed - first} programs: {dict(counts)}", file=sys.stderr, flush=True)
        try:
            case = random_micro_batch_case(seed, options.devices)
        except Exception as error:  # a fault of the generator is reported, and the next is run
            counts[BROKEN] += 1
            print(f"seed {seed}: {error}", flush=True)
            continue
        if case is None:
            counts[UNRUN] += 1
            continue
        result, detail = micro_batch_outcome(case, options.devices)
        counts[result] += 1
        if result == EQUAL and detail and not detail.startswith("0"):
            counts["with sums reduced once"] += 1
        if result in FINDINGS:
            where = f"{case.count} micro-batches of arguments {case.batch}"
            print(f"{result}: seed {seed}, {where}: {detail}")
            print(standalone(case.program, {}), styled_text(case.program), sep="\n", flush=True)
        elif result != EQUAL and options.refusals:
            print(f"{result}: seed {seed}: {detail}", flush=True)
    for result, count in counts.most_common():
        print(f"  {result:22}{count:6}")
    print(f"{last - first} programs in {time.monotonic() - start:.0f} s")
    return int(any(counts[it] for it in FINDINGS))


if __name__ == "__main__":
    sys.exit(main())
