"""Random programs in micro-batches on one device, compared with the whole batch.

    python test/fuzz/micro_batches.py --seeds 0:2000

Any arguments whose dim 0 the micro-batches divide are taken for the batch, whatever they mean: what
``autoshard-micro-batch`` does not refuse is the same for every choice, bit for bit where sums are
the same in every order. Programs as in ``random_programs.py``. ``batch`` says which arguments;
a finding is printed with the program.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from autoshard.errors import PlanError
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.compile import compile_module
from autoshard.ir.native import verify
from autoshard.rewrites.micro_batches.rewrite import into_micro_batches
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


def random_micro_batch_case(seed: int) -> MicroBatchCase | None:
    """The same at every call; None where no argument of the program can be cut."""
    program, random = random_program(seed), np.random.default_rng([seed, 20])
    with jax.enable_x64(program.x64):
        shapes = [leaf.shape for leaf in _leaves(program, seed)]
    sizes = {shape[0] for shape in shapes if shape and shape[0] > 1}
    if not sizes:
        return None
    size = int(random.choice(sorted(sizes)))
    count = int(random.choice([m for m in range(2, size + 1) if size % m == 0]))
    equal = [number for number, shape in enumerate(shapes) if shape and shape[0] == size]
    kept = random.integers(1, len(equal) + 1)
    batch = sorted(int(it) for it in random.choice(equal, kept, replace=False))
    return MicroBatchCase(program, seed, tuple(batch), count)


def micro_batch_outcome(case: MicroBatchCase) -> tuple[str, str]:
    """One of the words of ``outcomes.py``, and what there is to say."""
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
            verify(module)
            compiled = compile_module(module, jax.devices()[:1])
            leaves = compiled.run(*map(np.asarray, _leaves(program, case.seed)))
        except PlanError as error:
            return REFUSED, str(error)
        except Exception as error:
            return TRACEBACK, f"{type(error).__name__}: {error}"
        found = jax.tree.unflatten(jax.tree.structure(expected), leaves)
        if first_difference(program, found, expected) is None:
            return EQUAL, ""
        return judged(program, values, expected, found)


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
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for seed in range(first, last):
        if seed % _CLEARINGS == 0:
            jax.clear_caches()
            print(f"{seed - first} programs: {dict(counts)}", file=sys.stderr, flush=True)
        try:
            case = random_micro_batch_case(seed)
        except Exception as error:  # a fault of the generator is reported, and the next is run
            counts[BROKEN] += 1
            print(f"seed {seed}: {error}", flush=True)
            continue
        if case is None:
            counts[UNRUN] += 1
            continue
        result, detail = micro_batch_outcome(case)
        counts[result] += 1
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
