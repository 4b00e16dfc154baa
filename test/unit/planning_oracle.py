"""Small programs for the core, and the least cost of a plan by trying every plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, prod

import numpy as np

from autoshard import _core

PASS_THROUGH, REDUCTION, NEED_REPLICATION, PERMUTATION = _core.FactorKind
TIE = 2.0**-20
"""Cost of a local byte: of plans that send the same, the one that splits more work wins."""
COLLECTIVE = 1024
"""Bytes that stand for the latency of one collective."""

Axes = tuple[int, ...]
Dims = tuple[Axes, ...]
"""The axes that cut each dim, major first."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """Factors (size, kind, halo), and for each tensor and dim the factors that make it up."""

    factors: tuple[tuple[int, int, int], ...]
    operands: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]

    def shape(self, tensor: tuple[tuple[int, ...], ...]) -> Shape:
        return tuple(prod(self.factors[f][0] for f in dim) for dim in tensor)


def elementwise(shape: Shape, operands: int = 1) -> Rule:
    dims = tuple((d,) for d in range(len(shape)))
    factors = tuple((size, PASS_THROUGH, 0) for size in shape)
    return Rule(factors, (dims,) * operands, (dims,))


def matmul(i: int, k: int, j: int) -> Rule:
    factors = ((i, PASS_THROUGH, 0), (k, REDUCTION, 0), (j, PASS_THROUGH, 0))
    return Rule(factors, (((0,), (1,)), ((1,), (2,))), (((0,), (2,)),))


@dataclass(frozen=True)
class Op:
    rule: Rule
    operands: tuple[int, ...]
    results: tuple[int, ...]
    trips: float = 1.0
    kept: tuple[bool, ...] = ()


DimPin = tuple[Axes, bool, int | None]
"""Axes that come first, whether more may follow, or the number of blocks."""


@dataclass
class Program:
    mesh: tuple[int, ...]
    shapes: list[Shape] = field(default_factory=list)
    """Shape of every value; all are float32."""
    ops: list[Op] = field(default_factory=list)
    joins: list[tuple[int, int, float]] = field(default_factory=list)
    pins: list[tuple[int, tuple[DimPin, ...]]] = field(default_factory=list)
    free: set[int] = field(default_factory=set)

    def value(self, *shape: int) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def apply(
        self, rule: Rule, *operands: int, trips: float = 1.0, kept: Sequence[bool] = ()
    ) -> int:
        """Add an op; its one result."""
        result = self.value(*rule.shape(rule.results[0]))
        kept = tuple(kept) or (False,) * len(operands)
        self.ops.append(Op(rule, operands, (result,), trips, kept))
        return result

    def pin(self, value: int, *dims: Sequence[int]) -> None:
        """Pin a value to exactly these axes."""
        self.pins.append((value, tuple((tuple(axes), False, None) for axes in dims)))

    def core(self) -> _core.Program:
        types = list(dict.fromkeys(self.shapes))
        rules = list(dict.fromkeys(op.rule for op in self.ops))

        def tensors(
            rule: Rule, side: tuple[tuple[tuple[int, ...], ...], ...]
        ) -> list[_core.RuleTensor]:
            return [_core.RuleTensor(types.index(rule.shape(t)), t) for t in side]

        def offsets(lists: list[tuple[int, ...]]) -> np.ndarray:
            return np.array([0, *itertools.accumulate(map(len, lists))], np.int32)

        def flat(lists: list[tuple[int, ...]]) -> np.ndarray:
            return np.array([item for items in lists for item in items], np.int32)

        return _core.Program(
            axis_sizes=list(self.mesh),
            types=[_core.TensorType(shape, 32) for shape in types],
            rules=[
                _core.Rule(
                    [_core.Factor(*factor) for factor in r.factors],
                    tensors(r, r.operands),
                    tensors(r, r.results),
                )
                for r in rules
            ],
            value_type=np.array([types.index(s) for s in self.shapes], np.int32),
            value_is_free=np.array([v in self.free for v in range(len(self.shapes))], np.uint8),
            op_rule=np.array([rules.index(op.rule) for op in self.ops], np.int32),
            op_trips=np.array([op.trips for op in self.ops], np.float64),
            operand_offset=offsets([op.operands for op in self.ops]),
            operands=flat([op.operands for op in self.ops]),
            operand_kept=flat([op.kept for op in self.ops]).astype(np.uint8),
            result_offset=offsets([op.results for op in self.ops]),
            results=flat([op.results for op in self.ops]),
            join_source=np.array([j[0] for j in self.joins], np.int32),
            join_target=np.array([j[1] for j in self.joins], np.int32),
            join_trips=np.array([j[2] for j in self.joins], np.float64),
            pins=[
                _core.Pin(value, [_core.DimPin(*dim) for dim in dims]) for value, dims in self.pins
            ],
        )


def placements(bins: int, axes: int) -> Iterator[Dims]:
    """Every way to put some of the axes, in any order, into the bins."""
    for owner in itertools.product(range(-1, bins), repeat=axes):
        sets = [[a for a in range(axes) if owner[a] == b] for b in range(bins)]
        yield from itertools.product(*(itertools.permutations(s) for s in sets))


def blocks(axes: Axes, mesh: tuple[int, ...]) -> int:
    return prod(mesh[axis] for axis in axes)


@cache
def shardings(shape: Shape, mesh: tuple[int, ...]) -> list[Dims]:
    """Every even sharding of a value."""
    return [
        dims
        for dims in placements(len(shape), len(mesh))
        if all(size % blocks(axes, mesh) == 0 for size, axes in zip(shape, dims, strict=True))
    ]


def project(tensor: tuple[tuple[int, ...], ...], cuts: Dims) -> Dims:
    return tuple(tuple(axis for f in dim for axis in cuts[f]) for dim in tensor)


@cache
def strategies(rule: Rule, mesh: tuple[int, ...]) -> list[Dims]:
    """Every way to cut the factors that all tensors can express."""

    def expressible(tensor: tuple[tuple[int, ...], ...], cuts: Dims) -> bool:
        for dim in tensor:
            for major, minor in itertools.pairwise(dim):
                if cuts[minor] and blocks(cuts[major], mesh) != rule.factors[major][0]:
                    return False
        return True

    return [
        cuts
        for cuts in placements(len(rule.factors), len(mesh))
        if all(
            size % blocks(axes, mesh) == 0 and not (axes and kind == NEED_REPLICATION)
            for (size, kind, _), axes in zip(rule.factors, cuts, strict=True)
        )
        and all(expressible(tensor, cuts) for tensor in (*rule.operands, *rule.results))
    ]


@cache
def reshard_cost(
    shape: Shape,
    before: Dims,
    after: Dims,
    partial: Axes,
    mesh: tuple[int, ...],
) -> float:
    made = _core.reshard(shape, 32, before, after, sum(1 << axis for axis in partial), mesh)
    return made.bytes + COLLECTIVE * made.collectives


def local_bytes(shape: Shape, dims: Dims, mesh: tuple[int, ...]) -> float:
    return 4 * prod(shape) / prod(blocks(axes, mesh) for axes in dims)


@cache
def own_cost(rule: Rule, cuts: Dims, mesh: tuple[int, ...]) -> float:
    """Local work and halos of an op."""
    cost = 0.0
    for tensor in (*rule.operands, *rule.results):
        cost += TIE * local_bytes(rule.shape(tensor), project(tensor, cuts), mesh)
    for f, (size, kind, halo) in enumerate(rule.factors):
        if kind != PERMUTATION or not cuts[f] or not halo:
            continue
        share = 1.0 if halo < 0 else halo * blocks(cuts[f], mesh) / size
        for tensor in rule.operands:
            if any(f in dim for dim in tensor):
                local = local_bytes(rule.shape(tensor), project(tensor, cuts), mesh)
                cost += share * local + COLLECTIVE
    return cost


@dataclass(frozen=True)
class Copy:
    """A copy of a value that some of its readers share."""

    value: int
    readings: tuple[tuple[int, int], ...]
    """(op, operand) of each."""
    trips: float


def shared_copies(program: Program) -> list[Copy]:
    """One for each run of two or more readers of a value that run equally often."""
    copies: list[Copy] = []
    for value in range(len(program.shapes)):
        readings = [
            (index, position)
            for index, op in enumerate(program.ops)
            for position, operand in enumerate(op.operands)
            if operand == value and value not in program.free and not op.kept[position]
        ]
        for trips, run in itertools.groupby(readings, lambda r: program.ops[r[0]].trips):
            group = tuple(run)
            if len(group) > 1:
                copies.append(Copy(value, group, trips))
    return copies


def op_cost(
    program: Program,
    index: int,
    cuts: Dims,
    values: Sequence[Dims],
    copies: Mapping[tuple[int, int], Dims],
) -> float:
    """What an op costs when its factors are cut as ``cuts`` and its values as ``values``.

    ``copies`` says which operands are read from a copy.
    """
    op = program.ops[index]
    rule, mesh = op.rule, program.mesh
    cost = own_cost(rule, cuts, mesh)
    for position, (tensor, value, kept) in enumerate(
        zip(rule.operands, op.operands, op.kept, strict=True)
    ):
        if value in program.free:
            continue
        needed = project(tensor, cuts)
        held = copies.get((index, position), values[value])
        if kept and needed != held:
            return inf
        cost += reshard_cost(program.shapes[value], held, needed, (), mesh)
    partial = tuple(
        axis
        for (_, kind, _), axes in zip(rule.factors, cuts, strict=True)
        if kind == REDUCTION
        for axis in axes
    )
    for tensor, value in zip(rule.results, op.results, strict=True):
        if value not in program.free:
            made, shape = project(tensor, cuts), program.shapes[value]
            cost += reshard_cost(shape, made, values[value], partial, mesh)
    return op.trips * cost


def allowed(dims: Dims, pin: tuple[DimPin, ...], mesh: tuple[int, ...]) -> bool:
    for axes, (first, is_open, count) in zip(dims, pin, strict=True):
        if count is not None:
            if blocks(axes, mesh) != count:
                return False
        elif axes[: len(first)] != first or (len(axes) > len(first) and not is_open):
            return False
    return True


def value_options(program: Program) -> list[list[Dims]]:
    """The shardings of every value that its pins allow; a free value is left whole."""
    options: list[list[Dims]] = []
    for value, shape in enumerate(program.shapes):
        if value in program.free:
            options.append([((),) * len(shape)])
            continue
        pins = [pin for pinned, pin in program.pins if pinned == value]
        options.append(
            [
                dims
                for dims in shardings(shape, program.mesh)
                if all(allowed(dims, pin, program.mesh) for pin in pins)
            ]
        )
    return options


def least_cost(program: Program) -> float:
    """The cost of the best plan, infinite if there is none: all shardings of all values are tried.

    Ops do not see each other, so each takes the best of its own strategies.
    """
    mesh = program.mesh
    best = inf
    known: dict[tuple[object, ...], float] = {}
    copies = shared_copies(program)
    for values in itertools.product(*value_options(program)):
        held = _held_cost(program, values)
        if held >= best:
            continue
        for kept in itertools.product(*(shardings(program.shapes[c.value], mesh) for c in copies)):
            cost = held + _copying_cost(program, copies, kept, values)
            readings = _readings(copies, kept)
            for index, op in enumerate(program.ops):
                if cost >= best:
                    break
                read = [readings.get((index, k)) for k in range(len(op.operands))]
                key = (index, *(values[v] for v in (*op.operands, *op.results)), *read)
                if key not in known:
                    known[key] = min(
                        op_cost(program, index, cuts, values, readings)
                        for cuts in strategies(op.rule, mesh)
                    )
                cost += known[key]
            best = min(best, cost)
    return best


def _held_cost(program: Program, values: Sequence[Dims]) -> float:
    """Cost of values and joins."""
    cost = sum(
        TIE * local_bytes(shape, dims, program.mesh)
        for value, (shape, dims) in enumerate(zip(program.shapes, values, strict=True))
        if value not in program.free
    )
    for source, target, trips in program.joins:
        if source not in program.free:
            cost += trips * reshard_cost(
                program.shapes[source], values[source], values[target], (), program.mesh
            )
    return cost


def _copying_cost(
    program: Program, copies: Sequence[Copy], kept: Sequence[Dims], values: Sequence[Dims]
) -> float:
    return sum(
        copy.trips
        * reshard_cost(program.shapes[copy.value], values[copy.value], dims, (), program.mesh)
        for copy, dims in zip(copies, kept, strict=True)
    )


def _readings(copies: Sequence[Copy], kept: Sequence[Dims]) -> dict[tuple[int, int], Dims]:
    return {
        reading: dims for copy, dims in zip(copies, kept, strict=True) for reading in copy.readings
    }


def plan_cost(program: Program, plan: _core.CorePlan) -> float:
    """The cost of a plan of the core, recomputed from its shardings and strategies."""
    table = [tuple(tuple(axes) for axes in dims) for dims in plan.shardings]
    values = [table[index] for index in plan.value_sharding]
    cuts_of = [
        [
            cuts
            for cuts in strategies(op.rule, program.mesh)
            if all(
                project(tensor, cuts) == table[sharding]
                for tensor, sharding in zip(
                    op.rule.operands, plan.strategies[index][0], strict=True
                )
            )
        ]
        for op, index in zip(program.ops, plan.op_strategy, strict=True)
    ]
    copies = shared_copies(program)
    best = inf
    for kept in itertools.product(
        *(shardings(program.shapes[c.value], program.mesh) for c in copies)
    ):
        readings = _readings(copies, kept)
        cost = _copying_cost(program, copies, kept, values) + sum(
            min(op_cost(program, index, cuts, values, readings) for cuts in options)
            for index, options in enumerate(cuts_of)
        )
        best = min(best, cost)
    return _held_cost(program, values) + best
