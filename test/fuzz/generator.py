"""Random programs: values picked, instructions added, bounds carried along.

Arguments are small integers, and every value carries a bound of its entries. While sums stay below
what a dtype holds without rounding they are the same in every order, so that a sharded run has to
give the same bits; where an op rounds, the value and all that follow are no longer ``exact``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

import jax
import numpy as np

from fuzz.programs import KEY, Argument, Instruction, Kind, Program, evaluator, kind_of

FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int32", "uint8", "int8", "uint32", "int64", "int16")
COMPLEX = ("complex64", "complex128")
WHOLE = {
    "float32": 2.0**24,
    "bfloat16": 2.0**8,
    "float16": 2.0**11,
    "float64": 2.0**53,
    "complex64": 2.0**22,
    "complex128": 2.0**50,
}
"""Integers up to here are exact in the dtype; for complex numbers, so are sums of products."""
LARGEST = {"float16": 3e4, "bfloat16": 1e6}
"""No value of the dtype may be able to grow beyond; 1e9 for the others."""

T = TypeVar("T")


class Unfit(Exception):
    """A choice that cannot be made here; another is tried."""


@dataclass(frozen=True)
class Maker:
    """Adds one or a few instructions to a program that is being made."""

    name: str
    weight: float
    add: Callable[[Generator], Any]
    inside: bool
    """May it stand in bodies of loops and the like?"""
    differentiable: bool
    """May it stand in programs that are differentiated?"""


MAKERS: dict[str, Maker] = {}


def maker(
    weight: float, inside: bool = True, differentiable: bool = True
) -> Callable[[Callable[[Generator], Any]], Callable[[Generator], Any]]:
    """Register a function that adds instructions, to be chosen by its weight."""

    def register(add: Callable[[Generator], Any]) -> Callable[[Generator], Any]:
        MAKERS[add.__name__] = Maker(add.__name__, weight, add, inside, differentiable)
        return add

    return register


@dataclass
class Generator:
    """A program that grows; ``program`` gives it when it is done."""

    random: np.random.Generator
    sizes: tuple[int, ...]
    budget: int = 1024
    """Entries that a value may have."""
    x64: bool = False
    differentiated: bool = False
    depth: int = 0
    """How many bodies are around."""
    numbers: Any = field(default_factory=count)
    arguments: list[Argument] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    kinds: dict[str, Kind] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)

    # Choices

    def integer(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return int(self.random.integers(low, high + 1))

    def choice(self, options: Sequence[T]) -> T:
        if not options:
            raise Unfit
        return options[int(self.random.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def order(self, number: int) -> tuple[int, ...]:
        return tuple(int(it) for it in self.random.permutation(number))

    def some_dims(self, rank: int, probability: float = 0.5) -> tuple[int, ...]:
        return tuple(dim for dim in range(rank) if self.chance(probability))

    def size(self) -> int:
        return self.choice(self.sizes)

    def shape(self, rank: int) -> tuple[int, ...]:
        for _ in range(20):
            shape = tuple(self.size() for _ in range(rank))
            if np.prod(shape) <= self.budget:
                return shape
        return tuple(min(self.size(), 4) for _ in range(rank))

    def dtypes(self) -> list[str]:
        plain = ["float32"] * 6 + ["int32"] * 2
        others = ["bfloat16", "float16", "bool", "uint8", "int8", "uint32", "complex64"]
        return plain + others + (["float64", "int64"] * 3 if self.x64 else [])

    # Values

    def name(self, prefix: str = "v") -> str:
        return f"{prefix}{next(self.numbers)}"

    def argument(
        self, shape: Sequence[int], dtype: str = "float32", low: int = -3, high: int = 3
    ) -> str:
        """A new argument; in a body a constant, since its arguments are given."""
        kind = Kind(tuple(shape), dtype, float(max(abs(low), abs(high))))
        if self.depth:
            return self._constant(kind, low, high)
        name = self.name("a")
        self.arguments.append(Argument(name, kind, low, high))
        self.kinds[name] = kind
        return name

    def _constant(self, kind: Kind, low: int, high: int) -> str:
        if kind.dtype == KEY:
            raise Unfit
        low = max(low, 0) if kind.dtype.startswith("u") or kind.dtype == "bool" else low
        high = min(high, 1) if kind.dtype == "bool" else high
        values = "np.random.default_rng({seed}).integers({low}, {end}, {shape})"
        parameters = dict(seed=self.integer(0, 999), low=low, end=high + 1)
        parameters |= dict(shape=kind.shape, dtype=kind.dtype)
        return self.emit(f"jnp.asarray({values}, {{dtype}})", [], parameters, bound=kind.bound)[0]

    def named(self, accepts: Callable[[Kind], bool]) -> list[str]:
        return [name for name, it in self.kinds.items() if it.dtype != KEY and accepts(it)]

    def pick(
        self,
        dtypes: Sequence[str] = FLOATS,
        rank: tuple[int, int] = (0, 4),
        accepts: Callable[[Kind], bool] = lambda kind: True,
        exact: bool = False,
        bound: float | None = 64.0,
        fresh: float = 0.12,
        nonempty: bool = False,
    ) -> str:
        """Some value, rather a late or an unused one; sometimes a new argument.

        Args:
            dtypes: Which it may have.
            rank: From, and up to.
            accepts: What else must hold.
            exact: Only values whose bits are the same in every order of sums?
            bound: The value is clipped where it may be larger.
            fresh: Probability of a new argument.
            nonempty: Only values with entries?
        """

        def fits(kind: Kind) -> bool:
            is_wanted = kind.dtype in dtypes and rank[0] <= kind.rank <= rank[1]
            has_rest = (kind.exact or not exact) and (kind.size > 0 or not nonempty)
            return is_wanted and has_rest and accepts(kind)

        names = self.named(fits)
        if names and not self.chance(fresh):
            late = [(1 + k) * (3 if not self.uses.get(it) else 1) for k, it in enumerate(names)]
            weights = np.array(late, float)
            name = names[int(self.random.choice(len(names), p=weights / weights.sum()))]
        else:
            name = self._fresh(dtypes, rank, fits)
        self.uses[name] = self.uses.get(name, 0) + 1
        return name if bound is None else self.small(name, bound)

    def _fresh(
        self, dtypes: Sequence[str], rank: tuple[int, int], fits: Callable[[Kind], bool]
    ) -> str:
        dtype = self.choice([it for it in self.dtypes() if it in dtypes] or list(dtypes[:1]))
        for _ in range(30):
            shape = self.shape(self.integer(rank[0], min(rank[1], max(rank[0], 3))))
            if fits(Kind(shape, dtype)):
                return self.argument(shape, dtype)
        raise Unfit

    def number(self, **options: Any) -> str:
        """A value of any dtype of numbers, floats first."""
        groups = [FLOATS, FLOATS, FLOATS, FLOATS + INTEGERS, FLOATS + COMPLEX, INTEGERS]
        allowed = set(self.dtypes())
        dtypes = tuple(it for it in self.choice(groups) if it in allowed)
        return self.pick(dtypes=dtypes, **options)

    def matching(self, shape: Sequence[int], dtype: str) -> str:
        """A value of this shape and dtype: a known one, one broadcast, or a new argument."""
        shape = tuple(shape)
        same = self.named(lambda kind: kind.shape == shape and kind.dtype == dtype)
        if same and self.chance(0.6):
            return self.small(self.choice(same), 64)
        kept = self.some_dims(len(shape)) if self.chance(0.4) else tuple(range(len(shape)))
        narrow = self.argument([shape[dim] for dim in kept], dtype)
        if len(kept) == len(shape):
            return narrow
        parameters = dict(shape=shape, dims=kept)
        template = "lax.broadcast_in_dim({0}, {shape}, {dims})"
        return self.emit(template, [narrow], parameters, bound=self.kinds[narrow].bound)[0]

    def small(self, name: str, bound: float) -> str:
        """The value itself where no entry can be larger than ``bound``, else clipped to 3."""
        kind = self.kinds[name]
        if kind.is_integer or kind.dtype in ("bool", KEY) or kind.bound <= bound:
            return name
        template = "jnp.clip({0}, -3, 3)"
        if kind.is_complex:
            template = "lax.complex(jnp.clip({0}.real, -3, 3), jnp.clip({0}.imag, -3, 3))"
        return self.emit(template, [name], bound=4.5 if kind.is_complex else 3.0)[0]

    def indices(self, shape: Sequence[int], low: int, high: int) -> str:
        """Integers from ``low`` to ``high``, both included: an argument, or computed."""
        high = max(low, high)
        if not shape or self.chance(0.7):
            return self.argument(shape, "int32", low, high)
        parameters = dict(shape=tuple(shape), dim=self.integer(0, len(shape) - 1))
        parameters |= dict(count=high - low + 1, low=low)
        template = "lax.broadcasted_iota('int32', {shape}, {dim}) % {count} + {low}"
        return self.emit(template, [], parameters)[0]

    def scalar(self) -> str:
        """An integer, perhaps outside of what it is an index of."""
        known = self.named(lambda kind: kind.shape == () and kind.dtype == "int32")
        return self.choice(known) if known and self.chance(0.5) else self.indices((), -2, 12)

    def key(self) -> str:
        known = [name for name, kind in self.kinds.items() if kind.dtype == KEY and not kind.shape]
        if known and self.chance(0.8):
            return self.choice(known)
        return self.argument((), KEY)

    # Instructions

    def emit(
        self,
        template: str,
        operands: Sequence[str],
        parameters: Mapping[str, Any] | None = None,
        bound: float = 4.0,
        bounds: Sequence[float] | None = None,
        exact: bool | None = None,
    ) -> tuple[str, ...]:
        """Add an instruction.

        Args:
            template: The expression; ``{0}`` is the first operand, ``{axes}`` a parameter.
            operands: Names of values.
            parameters: What else is filled in.
            bound: Of all results.
            bounds: Of each result, instead.
            exact: Does the op round nothing? None: it does not. Results are exact where the
                operands are, too, and the bound lets sums be exact.

        Returns:
            Names of the results.

        Raises:
            Unfit: JAX does not accept it, or it becomes too large.
        """
        parameters = dict(parameters or {})
        specs = [self.kinds[name].spec() for name in operands]
        try:
            found = jax.eval_shape(evaluator(template, len(operands), parameters), *specs)
        except (TypeError, ValueError, NotImplementedError, IndexError) as error:
            raise Unfit(f"{template}: {error}") from error
        unpacks = isinstance(found, tuple | list)
        results = tuple(found) if unpacks else (found,)
        is_exact = exact is not False and all(self.kinds[name].exact for name in operands)
        kinds = [
            self._kind(spec, bounds[number] if bounds else bound, is_exact)
            for number, spec in enumerate(results)
        ]
        names = tuple(self.name() for _ in kinds)
        self.kinds.update(zip(names, kinds, strict=True))
        self.instructions.append(Instruction(names, template, tuple(operands), parameters, unpacks))
        return names

    def _kind(self, spec: Any, bound: float, is_exact: bool) -> Kind:
        kind = kind_of(spec, bound, is_exact)
        if kind.size > 4 * self.budget or bound > LARGEST.get(kind.dtype, 1e9):
            raise Unfit
        return replace(kind, exact=is_exact and bound <= WHOLE.get(kind.dtype, np.inf))

    def grow(self, steps: int, emphasis: Mapping[str, float] | None = None) -> None:
        """Add some instructions, made by makers chosen at random."""
        makers = [it for it in MAKERS.values() if it.inside or not self.depth]
        makers = [it for it in makers if it.differentiable or not self.differentiated]
        weights = np.array([it.weight * (emphasis or {}).get(it.name, 1.0) for it in makers])
        weights /= weights.sum()
        made = 0
        for _ in range(4 * steps):
            if made == steps:
                return
            made += self._tries(
                makers[int(self.random.choice(len(makers), p=weights / weights.sum()))]
            )

    def _tries(self, chosen: Maker) -> bool:
        before = len(self.arguments), len(self.instructions), dict(self.kinds)
        try:
            chosen.add(self)
        except Unfit:
            del self.arguments[before[0] :], self.instructions[before[1] :]
            self.kinds = before[2]
            return False
        return True

    # Bodies

    def body(self, kinds: Sequence[Kind]) -> Generator:
        """A program inside, with arguments of these kinds."""
        inner = replace(
            self, depth=self.depth + 1, budget=min(self.budget, 512), arguments=[],
            instructions=[], kinds={}, uses={},
        )  # fmt: skip
        for kind in kinds:
            name = self.name("b")
            inner.arguments.append(Argument(name, kind))
            inner.kinds[name] = kind
        return inner

    def finished(self, outputs: Sequence[str], name: str = "", style: str = "function") -> Program:
        """What has been made, without what no output needs."""
        return Program(
            tuple(self.arguments), tuple(self.instructions), tuple(outputs), dict(self.kinds),
            name or self.name("body"), self.x64, style,
        ).without_dead_code(keep_arguments=self.depth > 0)  # fmt: skip

    def computed(self, accepts: Callable[[Kind], bool] = lambda kind: True) -> list[str]:
        """Results of instructions, in their order."""
        results = [name for it in self.instructions for name in it.results]
        return [it for it in results if self.kinds[it].dtype != KEY and accepts(self.kinds[it])]

    def unused(self, names: Sequence[str]) -> list[str]:
        used = {name for it in self.instructions for name in it.operands}
        return [name for name in names if name not in used]
