"""Smaller programs and simpler configurations, to be tried one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax

from fuzz.configurations import Configuration
from fuzz.programs import KEY, Argument, Instruction, Kind, Program, evaluator, kind_of


def retyped(program: Program) -> Program:
    """The program with the kinds that its values now have.

    Raises:
        TypeError, ValueError: It does not fit together any more.
    """
    kinds = {it.name: it.kind for it in program.arguments}
    instructions: list[Instruction] = []
    for instruction in program.instructions:
        operands = [kinds[name] for name in instruction.operands]
        evaluate = evaluator(instruction.template, len(operands), instruction.parameters)
        found = jax.eval_shape(evaluate, *(kind.spec() for kind in operands))
        results = tuple(found) if isinstance(found, tuple | list) else (found,)
        for name, spec in zip(instruction.results, results, strict=True):
            before = program.kinds[name]
            kinds[name] = kind_of(spec, before.bound, before.exact)
        instructions.append(instruction)
    return replace(program, kinds=kinds, instructions=tuple(instructions))


def _simpler_styles(program: Program) -> Iterator[Program]:
    for style in {"train_step": ("function", "gradient"), "gradient": ("function",)}.get(
        program.style, ()
    ):
        yield replace(program, style=style)
    if program.x64:
        yield replace(program, x64=False)


def _fewer_outputs(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for name in dict.fromkeys(program.outputs):
            yield replace(program, outputs=(name,)).without_dead_code()
        for place in range(len(program.outputs)):
            rest = program.outputs[:place] + program.outputs[place + 1 :]
            yield replace(program, outputs=rest).without_dead_code()
    # What an output is made of stands in its place: ends go, as beginnings do by cutting.
    for place, name in enumerate(program.outputs):
        made = [it for it in program.instructions if name in it.results]
        for operand in made[0].operands if made else ():
            if program.kinds[operand].dtype != KEY:
                outputs = (*program.outputs[:place], operand, *program.outputs[place + 1 :])
                yield replace(program, outputs=tuple(dict.fromkeys(outputs))).without_dead_code()


def _bodies(program: Program) -> Iterator[Program]:
    """The program inside of a loop or a call, on its own."""
    for instruction in program.instructions:
        for body in instruction.bodies.values():
            yield replace(body, style="function", x64=program.x64).without_dead_code()


def _cut_off(program: Program) -> Iterator[Program]:
    """Results of one instruction, or of all up to it, become arguments."""
    count = len(program.instructions)
    for end in dict.fromkeys([count // 2, *range(count - 1, 0, -1)]):
        yield _with_arguments_for(program, program.instructions[:end])
    for instruction in program.instructions:
        yield _with_arguments_for(program, (instruction,))


def _with_arguments_for(program: Program, cut: tuple[Instruction, ...]) -> Program:
    kept = tuple(it for it in program.instructions if it not in cut)
    names = [name for it in cut for name in it.results]
    arguments = tuple(_argument_for(name, program.kinds[name]) for name in names)
    changed = replace(program, instructions=kept, arguments=(*program.arguments, *arguments))
    return changed.without_dead_code()


def _argument_for(name: str, kind: Kind) -> Argument:
    low = 0 if kind.dtype.startswith("u") else -3
    return Argument(name, replace(kind, bound=3.0, exact=True), low, 3)


def _simpler_bodies(program: Program) -> Iterator[Program]:
    """The same instruction with a smaller body, whose arguments and outputs stay."""
    for place, instruction in enumerate(program.instructions):
        for key, body in instruction.bodies.items():
            for smaller in _bodies_like(body):
                parameters = {**instruction.parameters, key: smaller}
                yield _with(program, place, replace(instruction, parameters=parameters))


def _bodies_like(body: Program) -> Iterator[Program]:
    for place, name in enumerate(body.outputs):
        kind = body.kinds[name]
        for other in (*(it.name for it in body.arguments), *body.kinds):
            if other == name:
                break
            known = body.kinds[other]
            if (known.shape, known.dtype) == (kind.shape, kind.dtype):
                outputs = (*body.outputs[:place], other, *body.outputs[place + 1 :])
                yield replace(body, outputs=outputs).without_dead_code(keep_arguments=True)
    for place, instruction in enumerate(body.instructions):
        constants = [_ones(name, body.kinds[name]) for name in instruction.results]
        if instruction.operands and all(constants):
            kept = (*body.instructions[:place], *constants, *body.instructions[place + 1 :])
            yield replace(body, instructions=kept).without_dead_code(keep_arguments=True)
    yield from _lower_numbers(body)


def _ones(name: str, kind: Kind) -> Any:
    if kind.dtype == KEY:
        return None
    parameters = {"shape": kind.shape, "dtype": kind.dtype}
    return Instruction((name,), "jnp.ones({shape}, {dtype})", (), parameters)


def _with(program: Program, place: int, instruction: Instruction) -> Program:
    instructions = (*program.instructions[:place], instruction, *program.instructions[place + 1 :])
    return replace(program, instructions=instructions).without_dead_code()


def _smaller_sizes(program: Program) -> Iterator[Program]:
    """One size everywhere, in arguments and in parameters, or one dim of one argument."""
    sizes = {size for it in program.arguments for size in it.kind.shape}
    for size in sorted(sizes, reverse=True):
        for smaller in _below(size):
            yield replace(
                program,
                arguments=tuple(_resized(it, size, smaller) for it in program.arguments),
                instructions=tuple(
                    replace(it, parameters=_replaced(it.parameters, size, smaller))
                    for it in program.instructions
                ),
            )
    for place, argument in enumerate(program.arguments):
        for dim, size in enumerate(argument.kind.shape):
            for smaller in _below(size):
                shape = (*argument.kind.shape[:dim], smaller, *argument.kind.shape[dim + 1 :])
                changed = replace(argument, kind=replace(argument.kind, shape=shape))
                arguments = (*program.arguments[:place], changed, *program.arguments[place + 1 :])
                yield replace(program, arguments=arguments)


def _below(size: int) -> list[int]:
    """Halves first, so that what is cut in equal parts stays so."""
    return [
        it for it in dict.fromkeys([size // 4, size // 2, 8, 4, 2, 1, size - 1]) if 0 < it < size
    ]


def _resized(argument: Argument, size: int, smaller: int) -> Argument:
    shape = tuple(smaller if it == size else it for it in argument.kind.shape)
    return replace(argument, kind=replace(argument.kind, shape=shape))


def _replaced(value: Any, old: int, new: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(it, old, new) for key, it in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(it, old, new) for it in value)
    return new if value == old and type(value) is int else value


def _lower_numbers(program: Program) -> Iterator[Program]:
    """One number in one parameter: a stride, a padding, an axis."""
    for place, instruction in enumerate(program.instructions):
        for key, value in instruction.parameters.items():
            for lower in _lowered(value):
                parameters = {**instruction.parameters, key: lower}
                yield _with(program, place, replace(instruction, parameters=parameters))


def _lowered(value: Any) -> Iterator[Any]:
    if value is True:
        yield False
    elif type(value) is int:
        yield from (it for it in dict.fromkeys([0, 1, value // 2]) if abs(it) < abs(value))
    elif isinstance(value, tuple):
        for place, it in enumerate(value):
            for lower in _lowered(it):
                yield (*value[:place], lower, *value[place + 1 :])


def _narrower_arguments(program: Program) -> Iterator[Program]:
    """Indices that are within bounds where they can be, and floats of zero to three."""
    for place, argument in enumerate(program.arguments):
        for low, high in ((0, 3), (0, 1), (argument.low, min(argument.high, 3))):
            if high - low < argument.high - argument.low:
                changed = replace(argument, low=low, high=high)
                arguments = (*program.arguments[:place], changed, *program.arguments[place + 1 :])
                yield replace(program, arguments=arguments)


def simpler_configurations(configuration: Configuration) -> Iterator[Configuration]:
    """Candidates with fewer options, marks and pins."""
    if configuration.limit_share is not None:
        yield replace(configuration, limit_share=None)
    for key in configuration.options:
        rest = {it: text for it, text in configuration.options.items() if it != key}
        yield replace(configuration, options=rest)
    for key in configuration.marks:
        rest_of_marks = {it: mark for it, mark in configuration.marks.items() if it != key}
        yield replace(configuration, marks=rest_of_marks)
    if configuration.result_pins:
        yield replace(configuration, result_pins=())
    if configuration.argument_pins:
        yield replace(configuration, argument_pins=())
    for side in ("argument_pins", "result_pins"):
        pins: tuple[str, ...] = getattr(configuration, side)
        for place, pin in enumerate(pins):
            if pin != "None":
                fewer = (*pins[:place], "None", *pins[place + 1 :])
                yield replace(configuration, **{side: fewer})
    if not configuration.is_shardy:
        yield replace(configuration, is_shardy=True)


SMALLER_PROGRAMS = (
    _simpler_styles,
    _fewer_outputs,
    _bodies,
    _cut_off,
    _simpler_bodies,
    _smaller_sizes,
    _lower_numbers,
    _narrower_arguments,
)
"""Each gives candidates for a program; the first ones leave out most."""
