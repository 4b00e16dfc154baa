"""Whose fault a wrong result is: three programs that differ in who decides what.

1. Plain ``jax.jit`` of the function, with the plan's shardings of arguments and results.
2. The same, with a constraint on the result of every instruction, as the plan has it.
3. The module that autoshard hands to XLA, with every sharding taken off, so that nothing is cut.

If 1 or 2 is wrong, so is XLA's partitioner. If 3 is right, then so is the module, and what is made
of its shardings is wrong; where 3 is wrong, autoshard has changed the program.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax

import autoshard
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.ir.lowering import replace_module
from autoshard.sharding import to_named_sharding
from fuzz.cases import Case, planned_step, settings, unsharded
from fuzz.comparison import first_difference
from fuzz.outcomes import ABORT
from fuzz.programs import Mark, Program, source
from fuzz.styles import arguments_of, run, styled

PLAIN = "plain jax.jit with the plan's shardings"
CONSTRAINED = "jax.jit with a constraint on every value"
UNCUT = "the exported module without its shardings"
VARIANTS = (PLAIN, CONSTRAINED, UNCUT)
RIGHT, WRONG = "right", "wrong"


def blame(verdicts: Mapping[str, str]) -> str:
    """What follows from ``right``, ``wrong``, ``abort`` or the text of an error, by variant."""
    if {verdicts[PLAIN], verdicts[CONSTRAINED]} & {WRONG, ABORT}:
        return "XLA's partitioner"
    if verdicts[UNCUT] == RIGHT:
        return "XLA's partitioner, or shardings that autoshard takes with them"
    return "autoshard" if verdicts[UNCUT] == WRONG else "unknown"


def verdict(case: Case, variant: str) -> str:
    """Whether one variant is right. May end the process, as XLA does at times."""
    with settings(case), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = unsharded(case.program, case.values())
            step = planned_step(case)
            plan = step.plan(*arguments_of(case.program, case.values()))
        except Exception as error:
            return f"there is no plan: {type(error).__name__}"
        make = {
            PLAIN: lambda: _plain(case, plan),
            CONSTRAINED: lambda: _constrained(case, plan),
            UNCUT: lambda: _uncut(step),
        }
        return _verdict(case, expected, make[variant])


def _verdict(case: Case, expected: Any, make: Callable[[], Any]) -> str:
    try:
        found = run(case.program, make(), case.values())
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n")[0][:200]
    difference = first_difference(case.program, found, expected)
    return RIGHT if difference is None else WRONG


def _plain(case: Case, plan: autoshard.Plan, hook: Any = None) -> Any:
    compiled = jax.jit(
        styled(case.program, None, hook),
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
    )
    return lambda *arguments: compiled(*jax.device_put(arguments, plan.in_shardings))


def _constrained(case: Case, plan: autoshard.Plan) -> Any:
    wanted = _shardings_by_name(case.program, case.configuration.marks, plan)

    def constrain(name: str, value: Any) -> Any:
        sharding = wanted.get(name)
        return value if sharding is None else jax.lax.with_sharding_constraint(value, sharding)

    return _plain(case, plan, constrain)


def _shardings_by_name(
    program: Program, marks: Mapping[str, Mark], plan: autoshard.Plan
) -> dict[str, Any]:
    """What the plan says of results of instructions: by line, and by shape where it has several."""
    planned: dict[tuple[str, tuple[int, ...]], Any] = {}
    for op in plan.ops:
        place = re.search(rf"<{program.name} \d+>:(\d+)", op.location or "")
        for text, sharding in zip(op.types, op.shardings, strict=True):
            if place and sharding is not None:
                planned[place.group(1), _shape_of(text)] = sharding
    named: dict[str, Any] = {}
    for name, line in _lines(program, marks).items():
        sharding = planned.get((line, program.kinds[name].shape))
        if sharding is not None:
            named[name] = to_named_sharding(sharding, plan.jax_mesh)
    return named


def _lines(program: Program, marks: Mapping[str, Mark]) -> dict[str, str]:
    """The line of the program's text on which each result is made."""
    lines = source(program, marks).split("\n")
    start = lines.index(next(it for it in lines if it.startswith(f"def {program.name}(")))
    return {
        name: str(start + 2 + number)
        for number, instruction in enumerate(program.instructions)
        for name in instruction.results
    }


def _shape_of(text: str) -> tuple[int, ...]:
    sizes = text.removeprefix("tensor<").split("x")[:-1]
    return tuple(int(size) for size in sizes if size.isdigit())


def _uncut(step: Any) -> Any:
    """What autoshard compiles, replicated over all devices.

    Raises:
        NotImplementedError: Parts of it are written for one device's share.
    """
    (program,) = step._programs.values()
    text = print_module(program.plan.exported("autoshard-export-gspmd")).decode()
    if "SPMDFullToShardShape" in text:
        raise NotImplementedError("it has parts that are computed block by block")
    text = re.sub(
        r"stablehlo\.custom_call @Sharding\((%[\w#]+)\) \{[^\n]*?\} : \((.*?)\) ->.*",
        r"stablehlo.optimization_barrier \1 : \2",
        text,
    )
    text = re.sub(r'mhlo\.sharding = "[^"]*"', 'mhlo.sharding = "{replicated}"', text)
    whole = jax.sharding.NamedSharding(program.plan.jax_mesh, jax.sharding.PartitionSpec())
    arguments, results = program.plan.named_shardings
    module = print_module(parse_bytes(text.encode(), new_context(), "module"), "bytecode")
    lowered = replace_module(
        program.source.program, module, [whole for _ in arguments], [whole for _ in results]
    )
    compiled = lowered.compile()
    return lambda *given: compiled(*jax.device_put(given, whole))
