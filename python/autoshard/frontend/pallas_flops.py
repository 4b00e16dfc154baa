"""Operations of a Pallas kernel, from its jaxpr, counted over its grid.

Loops run as often, and conditions choose that branch, which integers made of the place in the grid
say: of a causal attention each block of queries reads the keys before it. Integers are arrays over
the points that are looked at, places of the grid and trips of loops, or of one element where they
are the same at all of these; None where they are not known, as what is read from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from autoshard.kernels.scalars import Integers, truncated

Value = Integers | None

_MOST_POINTS = 2**16
"""Places, and trips of a loop at all places, that are looked at where there are more."""


@dataclass(frozen=True, slots=True)
class Operations:
    """What a kernel computes, at all places of its grid together."""

    matmul_flops: float = 0.0
    """Operations of matmuls, two for each multiply-add."""
    exponentials: float = 0.0
    """Elements of exponentials, logarithms, roots, tanh and the like."""
    vector_flops: float = 0.0
    """Other operations on elements, two for each: vector units multiply and add in that time."""

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.matmul_flops + other.matmul_flops,
            self.exponentials + other.exponentials,
            self.vector_flops + other.vector_flops,
        )

    def __mul__(self, times: float) -> Operations:
        return Operations(
            self.matmul_flops * times, self.exponentials * times, self.vector_flops * times
        )


_NOTHING = Operations()


def operations(params: Mapping[str, Any]) -> Operations:
    """What a kernel computes: its author's estimate, else counted over the grid.

    A loop whose trips are not known counts once, of a condition that is not the branch that does
    most. Of more than 65,536 places that a kernel tells apart so many are looked at, spread evenly,
    and so of the trips of a loop at all places; the mean stands for the others.

    Args:
        params: Of a ``pallas_call``.
    """
    estimate = params.get("cost_estimate")
    if estimate is not None:
        return Operations(float(estimate.flops), float(estimate.transcendentals))
    grid: tuple[int, ...] = tuple(params["grid_mapping"].grid)
    body = params["jaxpr"]
    asked = {axis for name, axis in asked_in(body) if name == "program_id"}
    dims = [dim for dim in range(len(grid)) if dim in asked]
    sizes = [grid[dim] for dim in dims]
    places = _spread(prod(sizes))
    ids = dict(zip(dims, np.unravel_index(places, sizes), strict=True)) if dims else {}
    counted, _ = _count(body, [None] * len(body.invars), _Points(grid, ids, len(places)))
    return counted * (prod(grid) / max(1, len(places)))


def product_type(params: Mapping[str, Any]) -> Any:
    """The dtype of what a kernel multiplies, in the first of its matmuls; None: it has none."""
    return next((each.invars[0].aval.dtype for each in _products(params["jaxpr"])), None)


def _products(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in _inside(equation):
            yield from _products(inner)


def asked_in(jaxpr: Any) -> Iterator[tuple[str, int | None]]:
    """Name and axis of every operation in a body, those inside of others too."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name, equation.params.get("axis")
        for inner in _inside(equation):
            yield from asked_in(inner)


def _inside(equation: Any) -> Iterator[Any]:
    """Bodies that an operation holds."""
    for value in jax.tree.leaves(equation.params):
        inner = _opened(value)
        if hasattr(inner, "eqns"):
            yield inner


def _opened(value: Any) -> Any:
    """A body without what it closes over."""
    return getattr(value, "jaxpr", value)


@dataclass(frozen=True, slots=True)
class _Points:
    """Where a body runs: places of the grid, each once for every trip of the loops around it."""

    grid: tuple[int, ...]
    ids: Mapping[int, Integers]
    """The place along those dims of the grid that the kernel asks for."""
    count: int

    def taken(self, indices: NDArray[np.int64]) -> _Points:
        """These of them."""
        ids = {dim: places[indices] for dim, places in self.ids.items()}
        return _Points(self.grid, ids, len(indices))


def _spread(total: int) -> NDArray[np.int64]:
    """All numbers below ``total``, or as many as are looked at.

    Those are multiples of the golden ratio, less what is whole of them: with these no dim of a grid
    keeps step.
    """
    if total <= _MOST_POINTS:
        return np.arange(total)
    parts = (np.arange(_MOST_POINTS) + 0.5) * ((5**0.5 - 1) / 2) % 1.0
    return np.sort((parts * total).astype(np.int64))


def _count(
    jaxpr: Any, arguments: Sequence[Value], points: _Points
) -> tuple[Operations, dict[Any, Value]]:
    """Operations at all points together, and the integers of a body by its variables."""
    known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
    total = _NOTHING
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        given = [_read(known, each) for each in equation.invars]
        made: Sequence[Value] = [None] * len(equation.outvars)
        if name == "dot_general":
            total += Operations(matmul_flops=_dot_flops(equation)) * points.count
        elif name in ("while", "scan"):
            total += _loop(equation, given, points)
        elif name == "cond":
            total += _choice(equation, given, points)
        elif bodies := list(_inside(equation)):
            inside, made = _call(bodies, given, points, len(made))
            total += inside
        elif len(made) == 1 and getattr(equation.outvars[0].aval, "shape", None) == ():
            made = [_integer(equation, given, points)]
        else:
            total += _of_elements(equation) * points.count
        known.update(zip(equation.outvars, made, strict=True))
    return total, known


def _read(known: Mapping[Any, Value], variable: Any) -> Value:
    # Literals cannot be hashed.
    if not hasattr(variable, "val"):
        return known.get(variable)
    value = np.asarray(variable.val)
    return value.astype(np.int64) if value.dtype.kind in "iub" and not value.shape else None


def _dot_flops(equation: Any) -> float:
    left, made = equation.invars[0].aval, equation.outvars[0].aval
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2.0 * prod(made.shape) * prod(left.shape[dim] for dim in contracted)


_EXPONENTIALS = frozenset(
    ("cbrt", "cos", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "log", "log1p", "logistic")
) | {"pow", "rsqrt", "sin", "sqrt", "tanh"}


_MOVES = frozenset(("broadcast_in_dim", "transpose", "reshape", "squeeze", "copy"))


def _of_elements(equation: Any) -> Operations:
    """What an operation does to each element, or adds up; nothing where it only moves them."""
    name, (made, *_) = equation.primitive.name, equation.outvars
    given = [getattr(each.aval, "shape", ()) for each in equation.invars]
    if name in _MOVES or not any(given):
        return _NOTHING
    if name.startswith(("reduce_", "arg")):
        return Operations(vector_flops=2.0 * prod(given[0]))
    shape = getattr(made.aval, "shape", ())
    if not all(_is_along(each, shape) for each in given) or _is_of_memory(equation):
        return _NOTHING
    elements = float(prod(shape))
    if name in _EXPONENTIALS:
        return Operations(exponentials=elements)
    return Operations(vector_flops=2.0 * elements)


def _is_along(given: Sequence[int], made: Sequence[int]) -> bool:
    """Whether an operand has an element for each of a result's, or one for many of them."""
    if not given:
        return True
    pairs = zip(given, made, strict=False)
    return len(given) == len(made) and all(size in (1, whole) for size, whole in pairs)


def _is_of_memory(equation: Any) -> bool:
    """Whether an operation reads or writes a block."""
    return any(hasattr(each.aval, "inner_aval") for each in equation.invars)


def _call(
    bodies: Sequence[Any], given: Sequence[Value], points: _Points, num_results: int
) -> tuple[Operations, Sequence[Value]]:
    """What an operation's bodies do, and what it makes where it is a call of one."""
    if len(bodies) == 1 and len(bodies[0].invars) == len(given):
        inside, known = _count(bodies[0], given, points)
        made = [_read(known, each) for each in bodies[0].outvars]
        return inside, made if len(made) == num_results else [None] * num_results
    unknown = ([None] * len(body.invars) for body in bodies)
    counted = (_count(body, each, points) for body, each in zip(bodies, unknown, strict=True))
    return sum((inside for inside, _ in counted), _NOTHING), [None] * num_results


def _choice(equation: Any, given: Sequence[Value], points: _Points) -> Operations:
    branches = [_opened(branch) for branch in equation.params["branches"]]
    index, *operands = given
    if index is None:
        counted = (_count(branch, operands, points)[0] for branch in branches)
        return max(counted, key=lambda each: (each.matmul_flops, each.vector_flops))
    total = _NOTHING
    chosen = np.broadcast_to(np.clip(index, 0, len(branches) - 1), points.count)
    for number, branch in enumerate(branches):
        (here,) = np.nonzero(chosen == number)
        if len(here):
            total += _count(branch, _taken(operands, here), points.taken(here))[0]
    return total


def _taken(values: Sequence[Value], indices: NDArray[np.int64]) -> list[Value]:
    return [value[indices] if value is not None and value.ndim else value for value in values]


# Loops


def _loop(equation: Any, given: Sequence[Value], points: _Points) -> Operations:
    """Operations of a ``while`` or ``scan`` with these operands."""
    params = equation.params
    if equation.primitive.name == "scan":
        body = _opened(params["jaxpr"])
        last = _of_equal_rank(equation.invars, body.invars)
        first = last - _of_equal_rank(equation.outvars, body.outvars)
        consts, carry = given[:first], given[first:last]
        trips: Value = np.asarray(params["length"])
    else:
        body, num_consts = _opened(params["body_jaxpr"]), params["body_nconsts"]
        outer, inner = given[: params["cond_nconsts"]], given[params["cond_nconsts"] :]
        consts, carry = inner[:num_consts], inner[num_consts:]
        trips = _trips(_opened(params["cond_jaxpr"]), outer, _Carried(body, consts, carry), points)
    carried = _Carried(body, consts, carry)
    if trips is None:
        return _count(body, carried.arguments(None), points)[0]
    each = np.broadcast_to(trips, points.count)
    ends = np.cumsum(each)
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        return _NOTHING
    looked_at = _spread(total)
    place = np.searchsorted(ends, looked_at, side="right")
    at_trip = _Carried(body, _taken(consts, place), _taken(carry, place))
    trip = looked_at - (ends - each)[place]
    counted, _ = _count(body, at_trip.arguments(trip), points.taken(place))
    return counted * (total / len(looked_at))


def _of_equal_rank(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """Arrays that a ``scan`` has as its body has them: of the others a trip has one entry."""
    pairs = zip(outside, inside, strict=True)
    return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in pairs)


@dataclass(frozen=True, slots=True)
class _Carried:
    """What a loop's body is given: constants, and what each trip hands to the next one."""

    body: Any
    consts: Sequence[Value]
    first: Sequence[Value]
    """Integers that the first trip is handed."""

    def step(self, number: int) -> Value:
        """What each trip adds to integer ``number`` of those handed on; None: something else."""
        first = len(self.consts)
        given, made = self.body.invars[first + number], self.body.outvars[number]
        if made is given:
            return np.asarray(0)
        maker = _maker(self.body, made)
        if maker is None or maker.primitive.name not in ("add", "sub"):
            return None
        left, right = maker.invars
        if left is given:
            step = self._same(right)
            is_sum = maker.primitive.name == "add"
            return step if step is None or is_sum else -step
        return self._same(left) if right is given and maker.primitive.name == "add" else None

    def _same(self, variable: Any) -> Value:
        """An integer of the body that is the same in every trip."""
        if hasattr(variable, "val"):
            return _read({}, variable)
        for number, given in enumerate(self.body.invars):
            if given is variable:
                carried = number - len(self.consts)
                if carried < 0:
                    return self.consts[number]
                return self.first[carried] if self.body.outvars[carried] is given else None
        return None

    def arguments(self, trip: Value) -> list[Value]:
        """What the body is given in trip number ``trip``; None: in any."""
        handed: list[Value] = []
        for number, first in enumerate(self.first):
            step = self.step(number)
            if first is None or step is None:
                handed.append(None)
            elif not step.any():
                handed.append(first)
            else:
                handed.append(None if trip is None else first + step * trip)
        others = len(self.body.invars) - len(self.consts) - len(handed)
        return [*self.consts, *handed, *[None] * others]


def _maker(jaxpr: Any, variable: Any) -> Any:
    """The operation of a body that makes a variable alone; None: there is none."""
    return next((each for each in jaxpr.eqns if each.outvars == [variable]), None)


_UPWARDS = {"lt": 0, "le": 1}
_DOWNWARDS = {"gt": 0, "ge": 1}
"""Comparisons of a counter with its end, and what the trip at the end counts."""


def _trips(cond: Any, consts: Sequence[Value], carried: _Carried, points: _Points) -> Value:
    """Trips of a loop that goes on while one of what it hands on is below or above an end."""
    test = _maker(cond, cond.outvars[0])
    if test is None or test.primitive.name not in _UPWARDS | _DOWNWARDS:
        return None
    counter, end = test.invars
    numbers = {each: n for n, each in enumerate(cond.invars[len(consts) :])}
    if hasattr(counter, "val") or counter not in numbers:
        return None
    number = numbers[counter]
    low, step = carried.first[number], carried.step(number)
    unchanged = carried.arguments(None)[len(carried.consts) :]
    _, known = _count(cond, [*consts, *unchanged], points)
    high = _read(known, end)
    if low is None or step is None or high is None:
        return None
    sign = 1 if test.primitive.name in _UPWARDS else -1
    if bool(np.any(sign * step <= 0)):
        return None
    span = sign * (high - low) + (_UPWARDS | _DOWNWARDS)[test.primitive.name]
    return np.maximum(0, -(-span // (sign * step)))


# Integers


def _remainder(a: Integers, b: Integers) -> Integers:
    return a - truncated(a, b) * b


def _clamped(low: Integers, value: Integers, high: Integers) -> Integers:
    return np.minimum(np.maximum(value, low), high)


def _selected(which: Integers, *cases: Integers) -> Integers:
    return np.choose(which, cases, mode="clip")


def _as_it_is(value: Integers) -> Integers:
    return value


_INTEGERS: dict[str, Callable[..., Integers]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": truncated,
    "rem": _remainder,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "clamp": _clamped,
    "convert_element_type": _as_it_is,
    "squeeze": _as_it_is,
    "reshape": _as_it_is,
    "select_n": _selected,
}
"""What makes a scalar of others; predicates are 0 and 1."""


def _integer(equation: Any, given: Sequence[Value], points: _Points) -> Value:
    """The integer that an operation makes of others."""
    name, made = equation.primitive.name, equation.outvars[0].aval
    if name == "program_id":
        return points.ids[equation.params["axis"]]
    if name == "num_programs":
        axis: int = equation.params["axis"]
        return np.asarray(points.grid[axis])
    values = [value for value in given if value is not None]
    if name not in _INTEGERS or len(values) < len(given) or made.dtype.kind not in "ib":
        return None
    if name in ("div", "rem") and not values[1].all():
        return None
    found = np.asarray(_INTEGERS[name](*values))
    if made.dtype.kind == "b":
        return (found != 0).astype(np.int64)
    # Larger integers would wrap in the kernel.
    largest = min(np.iinfo(made.dtype).max, np.iinfo(np.int32).max)
    return None if bool(np.any(np.abs(found) > largest)) else found
