"""A program from a seed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import jax
import numpy as np

import fuzz.makers  # noqa: F401, registers what programs are made of
from fuzz.generator import MAKERS, Generator, Unfit
from fuzz.networks import convolutional_network, transformer
from fuzz.programs import Program
from fuzz.styles import Roles

_SIZES = (8, 16, 4, 8, 16, 2, 24, 1, 3, 5, 6, 7, 12)


def random_program(seed: int) -> Program:
    """The same at every call.

    Of twenty programs about eleven are plain functions, five are gradients or train steps of such,
    three are train steps of small convolutional networks and one is that of a transformer.
    """
    random = np.random.default_rng(seed)
    while True:
        # A choice that cannot be made, as where a network becomes too large, is made again.
        with suppress(Unfit):
            return _random_program(random)


def _random_program(random: np.random.Generator) -> Program:
    kind = int(random.integers(20))
    with jax.enable_x64(kind < 16 and random.random() < 0.1):
        if kind == 19:
            return transformer(random)
        if kind >= 16:
            return convolutional_network(random)
        style = {11: "gradient", 12: "gradient", 13: "gradient"}.get(kind, "function")
        style = "train_step" if kind in (14, 15) else style
        return _mixed(random, style, bool(jax.config.jax_enable_x64))


def _sizes(random: np.random.Generator) -> tuple[int, ...]:
    """A few sizes, so that dims of different values are often equal."""
    sizes = [8, *random.choice([16, 8, 24], 1), *random.choice([2, 4, 16], 1)]
    sizes += [*random.choice(_SIZES, 2)] + ([0] if random.random() < 0.03 else [])
    return tuple(int(size) for size in sizes)


def _mixed(random: np.random.Generator, style: str, x64: bool) -> Program:
    make = Generator(random, _sizes(random), x64=x64, differentiated=style != "function")
    make.budget = int(random.choice([512, 1024, 2048]))
    for _ in range(make.integer(1, 2)):
        make.argument(make.shape(make.integer(1, 3)))
    emphasis = {name: float(random.choice([0.2, 1, 1, 3])) for name in MAKERS}
    make.grow(make.integer(2, 9), emphasis)
    if style == "function":
        return make.finished(_outputs(make), "program")
    floats = make.computed(lambda kind: kind.dtype in ("float32", "float64"))
    if not floats:
        return make.finished(_outputs(make), "program")
    program = make.finished(make.unused(floats) or floats[-1:], "program", style)
    return program if Roles.of(program).trained else replace(program, style="function")


def _outputs(make: Generator) -> list[str]:
    """Everything that nothing reads, some other values, at times an argument or one twice."""
    results = make.computed()
    unread = make.unused(results)
    outputs = unread + [name for name in results if name not in unread and make.chance(0.15)]
    if make.arguments and (make.chance(0.08) or not outputs):
        outputs += [make.arguments[0].name]
    if outputs and make.chance(0.05):
        outputs += outputs[:1]
    return outputs
