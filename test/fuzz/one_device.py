"""Whether a wrong result is wrong because of what one device computes, not of how it is split.

XLA:CPU computes some ops wrongly, or rounds them otherwise, at the sizes of a part and not at those
of the whole: jaxlib 0.10.2 reads beyond the end of a convolution's image where its padding is
negative before and positive behind. In double precision it takes other ways, XLA's partitioner the
same ones.
"""

from __future__ import annotations

import time
from typing import Any

import jax

from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.ir.lowering import replace_module
from autoshard.verify.check.plain import without_plan, without_storage
from autoshard.verify.check.run import Failure, Limits, run_both
from fuzz.comparison import first_difference
from fuzz.programs import Program
from fuzz.styles import run

_SECONDS = 3600.0
"""More than any case has: what counts is the case's own limit, at which its process is stopped. A
limit here would make a busy machine call wrong what an idle one does not."""


def is_of_one_device(
    program: Program, step: Any, values: list[Any], expected: Any, is_shardy: bool
) -> bool:
    """Is the planned module right when it is not split, and also when split in double precision?"""
    (planned,) = step._programs.values()
    unsplit = run(program, _unsplit(planned), values)
    if first_difference(program, unsplit, expected) is not None:
        return False
    module = parse_bytes(planned.plan.bytecode, new_context(), program.name)
    without_storage(module)
    limits = Limits(time.monotonic() + _SECONDS, None)
    outcome = run_both(print_module(module, "bytecode"), is_shardy, limits)
    return not isinstance(outcome, Failure) and all(it.is_same for it in outcome.results)


def _unsplit(planned: Any) -> Any:
    """The planned module without its plan, whole on every device."""
    module = parse_bytes(planned.plan.bytecode, new_context(), planned.plan.name)
    without_plan(module)
    whole = jax.sharding.NamedSharding(planned.plan.jax_mesh, jax.sharding.PartitionSpec())
    arguments, results = planned.plan.named_shardings
    compiled = replace_module(
        planned.source.program,
        print_module(module, "bytecode"),
        [whole for _ in arguments],
        [whole for _ in results],
    ).compile()
    return lambda *given: compiled(*jax.device_put(given, whole))
