"""A program as data: arguments, instructions, outputs, and the Python text that they stand for.

An instruction is an expression with places for its operands and parameters,

    Instruction(("v3",), "lax.pad({0}, {1}, {config})", ("v1", "a2"), {"config": ((0, 1, 0),)})

so that what runs and what is printed for a reader are the same text, and a program can be cut down
by dropping instructions and lowering numbers. A parameter that is a program is printed as a
function of its own, before the one that uses it.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import autoshard
from fuzz import faults, helpers

KEY = "key"
"""The dtype of a PRNG key, which is a scalar."""

IMPORTS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
"""


@dataclass(frozen=True)
class Kind:
    """What is known of a value before it is computed."""

    shape: tuple[int, ...]
    dtype: str
    bound: float = 4.0
    """No entry is larger than this in absolute value; means nothing for integers."""
    exact: bool = True
    """Is every entry, and everything summed up on the way to it, exactly representable?"""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_integer(self) -> bool:
        return self.dtype.startswith(("int", "uint"))

    @property
    def is_complex(self) -> bool:
        return self.dtype.startswith("complex")

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    def spec(self) -> jax.ShapeDtypeStruct:
        if self.dtype == KEY:
            return jax.ShapeDtypeStruct(self.shape, jax.random.key(0).dtype)
        return jax.ShapeDtypeStruct(self.shape, jnp.dtype(self.dtype))


def kind_of(spec: Any, bound: float, exact: bool) -> Kind:
    """Kind of an abstract value that JAX gives."""
    is_key = jax.dtypes.issubdtype(spec.dtype, jax.dtypes.prng_key)
    return Kind(tuple(spec.shape), KEY if is_key else str(spec.dtype), bound, exact)


@dataclass(frozen=True)
class Argument:
    """An array of random integers from ``low`` to ``high``, both included."""

    name: str
    kind: Kind
    low: int = -3
    high: int = 3


@dataclass(frozen=True)
class Instruction:
    """``results = template``, filled with the names of operands and with parameters."""

    results: tuple[str, ...]
    template: str
    operands: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    unpacks: bool = False
    """Does the expression give a tuple, even where it holds one result?"""

    @property
    def bodies(self) -> dict[str, Program]:
        return {key: it for key, it in self.parameters.items() if isinstance(it, Program)}

    @property
    def label(self) -> str:
        """The function that the expression calls first, or the operator."""
        called = re.match(r"[\w.]*\w(?=\()", self.template.removeprefix("tuple("))
        if called is None:
            method = re.search(r"\.\w+(?=\()|\.(real|imag|T)\b", self.template)
            return method.group() if method else self.template
        name = called.group()
        chosen = self.parameters.get("function")
        return f"{name}:{chosen}" if isinstance(chosen, str) else name


@dataclass(frozen=True)
class Mark:
    """What ``autoshard.shard`` is given for one instruction, as text."""

    in_strategy: str
    out_strategy: str


@dataclass(frozen=True)
class Program:
    """Straight code over named values, with programs inside of instructions."""

    arguments: tuple[Argument, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[str, ...]
    kinds: Mapping[str, Kind]
    name: str = "program"
    x64: bool = False
    style: str = "function"
    """``function``, ``gradient`` or ``train_step``; see ``styles.py``."""

    def walk(self) -> Iterator[tuple[Program, Instruction]]:
        """Every instruction, those in bodies too, with the program that it is in."""
        for instruction in self.instructions:
            yield self, instruction
            for body in instruction.bodies.values():
                yield from body.walk()

    @property
    def labels(self) -> list[str]:
        return sorted({instruction.label for _, instruction in self.walk()})

    def without_dead_code(self, keep_arguments: bool = False) -> Program:
        needed = set(self.outputs)
        kept: list[Instruction] = []
        for instruction in reversed(self.instructions):
            if needed.intersection(instruction.results):
                kept.append(instruction)
                needed.update(instruction.operands)
        arguments = tuple(a for a in self.arguments if keep_arguments or a.name in needed)
        return replace(self, instructions=tuple(reversed(kept)), arguments=arguments)

    def function(self, marks: Mapping[str, Mark] | None = None, hook: Any = None) -> Any:
        """A Python function of the arguments, which gives a tuple of the outputs.

        Args:
            marks: For instructions, by their first result.
            hook: Called with the name and the value of every result, gives it back or another.
        """
        return _compile(source(self, marks or {}, hooked=hook is not None), self.name, hook)

    @cached_property
    def output_exactness(self) -> tuple[bool, ...]:
        return tuple(self.kinds[name].exact for name in self.outputs)


def expression(instruction: Instruction) -> str:
    """The right side of an instruction."""
    filled = {key: _text(value) for key, value in instruction.parameters.items()}
    return instruction.template.format(*instruction.operands, **filled)


def _text(value: Any) -> str:
    return value.name if isinstance(value, Program) else repr(value)


def source(program: Program, marks: Mapping[str, Mark], hooked: bool = False) -> str:
    """The program as a Python function, its bodies before it."""
    lines: list[str] = []
    for instruction in program.instructions:
        for body in instruction.bodies.values():
            lines += [source(body, marks), ""]
    arguments = ", ".join(argument.name for argument in program.arguments)
    lines.append(f"def {program.name}({arguments}):")
    for instruction in program.instructions:
        left = ", ".join(instruction.results)
        comma = "," if instruction.unpacks and len(instruction.results) == 1 else ""
        right = _marked(instruction, marks.get(instruction.results[0]))
        lines.append(f"    {left}{comma} = {right}")
        if hooked:
            lines += [f"    {it} = _hook({it!r}, {it})" for it in instruction.results]
    outputs = "".join(f"{name}, " for name in program.outputs)
    lines.append(f"    return ({outputs})")
    return "\n".join(lines)


def _marked(instruction: Instruction, mark: Mark | None) -> str:
    if mark is None:
        return expression(instruction)
    names = ", ".join(dict.fromkeys(instruction.operands))
    return (
        f"autoshard.shard(lambda {names}: {expression(instruction)}, {mark.in_strategy},"
        f" {mark.out_strategy})({names})"
    )


def evaluator(template: str, count: int, parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """An expression as a function of its ``count`` operands, without a program around it."""
    names = tuple(f"x{number}" for number in range(count))
    bodies = {it.name: it.function() for it in parameters.values() if isinstance(it, Program)}
    text = f"lambda {', '.join(names)}: {expression(Instruction((), template, names, parameters))}"
    return eval(text, _names() | bodies)


_compiled = 0


def _compile(text: str, name: str, hook: Any) -> Any:
    """Run the text, so that tracebacks and plans can name its lines."""
    global _compiled
    _compiled += 1
    file = f"<{name} {_compiled}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = _names() | {"_hook": hook}
    exec(compile(text, file, "exec"), space)
    return space[name]


def _names() -> dict[str, Any]:
    known = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "autoshard": autoshard}
    return known | vars(helpers) | vars(faults)


def standalone(program: Program, marks: Mapping[str, Mark]) -> str:
    """The program with the helpers that it calls, ready to be run by a reader."""
    text = source(program, marks)
    return "\n\n".join([*helper_sources(text), text])


def helper_sources(text: str) -> list[str]:
    """The functions of ``helpers.py`` that a text names, and those that they name."""
    found: dict[str, str] = {}
    waiting = [text]
    while waiting:
        read = waiting.pop()
        for name in re.findall(r"(?<![\w.])(\w+)(?=\()", read):
            function = getattr(helpers, name, None)
            if inspect.isfunction(function) and name not in found:
                found[name] = inspect.getsource(function)
                waiting.append(found[name])
    return [_without_docstring(it) for it in reversed(found.values())]


def _without_docstring(text: str) -> str:
    return re.sub(r'\n    """.*?"""', "", text, count=1, flags=re.DOTALL).rstrip()


def random_values(program: Program, seed: int) -> list[Any]:
    """Arguments, as NumPy arrays; a key as the number that makes it."""
    random = np.random.default_rng([seed, 77])
    return [_random_value(argument, random) for argument in program.arguments]


def _random_value(argument: Argument, random: np.random.Generator) -> Any:
    kind = argument.kind
    if kind.dtype == KEY:
        return int(random.integers(1000))
    low = max(argument.low, 0) if kind.dtype.startswith("u") else argument.low
    values = random.integers(low, argument.high + 1, kind.shape)
    if kind.dtype == "bool":
        return np.asarray(values % 2 == 1)
    if kind.is_complex:
        return np.asarray(values + 1j * random.integers(low, argument.high + 1, kind.shape)).astype(
            kind.dtype
        )
    return np.asarray(values).astype(jnp.dtype(kind.dtype))


def placed(program: Program, values: list[Any]) -> list[Any]:
    """Fresh arrays of JAX, which may be donated."""
    return [
        jax.random.key(value) if argument.kind.dtype == KEY else jnp.array(value)
        for argument, value in zip(program.arguments, values, strict=True)
    ]
