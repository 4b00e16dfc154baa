"""Sharding propagation in the core against every plan of small programs."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planning_oracle import (
    NEED_REPLICATION,
    PASS_THROUGH,
    PERMUTATION,
    REDUCTION,
    DimPin,
    Dims,
    Program,
    Rule,
    Shape,
    allowed,
    elementwise,
    least_cost,
    matmul,
    plan_cost,
    shardings,
)

from autoshard import _core

ALL_AXES_TOGETHER = 10**9
GAP = 1e-4
"""The solver stops when it has proved to be this close."""


def values_of(plan: _core.CorePlan) -> list[Dims]:
    table = [tuple(tuple(axes) for axes in dims) for dims in plan.shardings]
    return [table[index] for index in plan.value_sharding]


def propagate(program: Program, max_options: int = ALL_AXES_TOGETHER) -> _core.CorePlan:
    return _core.propagate(program.core(), max_options=max_options)


# What every op of the kind below does with its operand's dims.


def transpose(shape: Shape) -> Rule:
    factors = tuple((size, PASS_THROUGH, 0) for size in shape)
    return Rule(factors, (((0,), (1,)),), (((1,), (0,)),))


def sum_of_rows(shape: Shape) -> Rule:
    factors = ((shape[0], PASS_THROUGH, 0), (shape[1], REDUCTION, 0))
    return Rule(factors, (((0,), (1,)),), (((0,),),))


def spread(shape: Shape) -> Rule:
    """One dim into two, as a reshape does."""
    factors = ((2, PASS_THROUGH, 0), (shape[0] // 2, PASS_THROUGH, 0))
    return Rule(factors, (((0, 1),),), (((0,), (1,)),))


def ranked(shape: Shape) -> Rule:
    """The last dim must be whole, as in a sort."""
    factors = ((shape[0], PASS_THROUGH, 0), (shape[1], NEED_REPLICATION, 0))
    return Rule(factors, (((0,), (1,)),), (((0,), (1,)),))


def windowed(shape: Shape) -> Rule:
    """The last dim needs two elements of its neighbours, as in a convolution."""
    factors = ((shape[0], PASS_THROUGH, 0), (shape[1], PERMUTATION, 2))
    return Rule(factors, (((0,), (1,)),), (((0,), (1,)),))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Up to five values on a mesh of one or two axes, with pins on some."""
    program = Program(draw(st.sampled_from([(2,), (4,), (2, 2), (2, 4)])))
    large = st.sampled_from([8, 16, 256])
    program.value(draw(large), draw(large))
    for _ in range(draw(st.integers(1, 3))):
        value = draw(st.integers(0, len(program.shapes) - 1))
        shape = program.shapes[value]
        trips = draw(st.sampled_from([1.0, 1.0, 10.0]))
        if len(shape) == 1:
            rule = draw(st.sampled_from([elementwise, spread]))(shape)
            program.apply(rule, value, trips=trips)
            continue
        kind = draw(
            st.sampled_from([elementwise, transpose, sum_of_rows, ranked, windowed, matmul, "add"])
        )
        if kind is matmul:
            other = program.value(shape[1], draw(large))
            program.apply(matmul(*shape, program.shapes[other][1]), value, other, trips=trips)
        elif kind == "add":
            same = [v for v, s in enumerate(program.shapes) if s == shape]
            program.apply(elementwise(shape, 2), value, draw(st.sampled_from(same)), trips=trips)
        else:
            program.apply(kind(shape), value, trips=trips)
        if len(program.shapes) > 4:
            break
    for value, shape in enumerate(program.shapes):
        if draw(st.booleans()):
            program.pins.append((value, draw(pins(shape, program.mesh))))
    pairs = [
        (a, b)
        for a in range(len(program.shapes))
        for b in range(a + 1, len(program.shapes))
        if program.shapes[a] == program.shapes[b]
    ]
    if pairs and draw(st.booleans()):
        program.joins.append((*draw(st.sampled_from(pairs)), 3.0))
    return program


@st.composite
def pins(draw: st.DrawFn, shape: Shape, mesh: tuple[int, ...]) -> tuple[DimPin, ...]:
    wanted = draw(st.sampled_from(shardings(shape, mesh)))
    form = draw(st.sampled_from(["axes", "open", "numbers"]))
    if form == "numbers":
        counts = [1] * len(shape)
        for dim, axes in enumerate(wanted):
            for axis in axes:
                counts[dim] *= mesh[axis]
        return tuple(((), False, count) for count in counts)
    return tuple((axes, form == "open", None) for axes in wanted)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_no_plan_is_cheaper(program: Program) -> None:
    best = least_cost(program)
    assert best < inf
    plan = propagate(program)
    assert plan.objective == pytest.approx(plan_cost(program, plan), rel=1e-9)
    assert plan.objective >= best * (1 - 1e-9)
    assert plan.objective <= best * (1 + GAP) + 1e-9
    assert plan.lower_bound <= best * (1 + 1e-9)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from([1, 4, ALL_AXES_TOGETHER]))
def test_pins_are_kept_however_axes_are_grouped(program: Program, max_options: int) -> None:
    plan = propagate(program, max_options)
    values = values_of(plan)
    for value, pin in program.pins:
        assert allowed(values[value], pin, program.mesh)
    for value, shape in enumerate(program.shapes):
        assert values[value] in shardings(shape, program.mesh)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_axes_one_by_one_give_a_plan_that_costs_what_it_says(program: Program) -> None:
    together = propagate(program)
    one_by_one = propagate(program, max_options=1)
    assert one_by_one.levels == len(program.mesh)
    cost = plan_cost(program, one_by_one)
    assert cost >= together.objective * (1 - GAP) - 1e-9


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_resharded_bytes_are_the_sum_of_what_is_listed(program: Program) -> None:
    plan = propagate(program)
    total = 0.0
    moves = plan.reshards
    for value, before, after, partial, sent, collectives, trips in zip(
        moves.value,
        moves.from_sharding,
        moves.to_sharding,
        moves.partial_axes,
        moves.bytes,
        moves.collectives,
        moves.trips,
        strict=True,
    ):
        expected = _core.reshard(
            program.shapes[value],
            32,
            plan.shardings[before],
            plan.shardings[after],
            partial,
            program.mesh,
        )
        assert (sent, collectives) == (expected.bytes, expected.collectives)
        total += sent * trips
    assert plan.resharded_bytes == pytest.approx(total)


def test_one_marked_matmul_splits_its_neighbours_without_sending_anything() -> None:
    program = Program((2, 4))
    x, w = program.value(64, 128), program.value(128, 256)
    program.pin(x, [0], [])
    program.pin(w, [], [1])
    y = program.apply(matmul(64, 128, 256), x, w)
    z = program.apply(elementwise((64, 256)), y)
    plan = propagate(program)
    assert plan.resharded_bytes == 0
    assert values_of(plan)[y] == values_of(plan)[z] == ((0,), (1,))


def test_partial_sums_are_scattered_where_the_reader_is_cut() -> None:
    program = Program((4,))
    x, w = program.value(64, 128), program.value(128, 256)
    program.pin(x, [], [0])
    y = program.apply(matmul(64, 128, 256), x, w, kept=(True, False))
    plan = propagate(program)
    # 3/4 of 64 x 256 float32; an all-reduce would send twice as much
    assert plan.resharded_bytes == 0.75 * 64 * 256 * 4
    assert values_of(plan)[y] in [((0,), ()), ((), (0,))]


def test_a_trip_count_decides_on_which_side_of_a_loop_to_reshard() -> None:
    for trips, inside in ((100.0, False), (0.01, True)):
        program = Program((2,))
        x = program.value(64, 64)
        program.pin(x, [0], [])
        carried = program.value(64, 64)
        program.joins.append((x, carried, 1.0))
        y = program.apply(ranked((64, 64)), carried, trips=trips)
        program.pin(y, [], [])
        z = program.apply(transpose((64, 64)), carried, trips=trips)
        program.pin(z, [0], [])
        plan = propagate(program)
        assert plan.objective == pytest.approx(least_cost(program), rel=GAP)
        assert (values_of(plan)[carried] == values_of(plan)[x]) == inside


def test_kept_operands_are_taken_as_pinned() -> None:
    # cutting the contracted dim sends a partial sum; resharding x first would send less
    program = Program((2,))
    x, w = program.value(8, 2), program.value(2, 256)
    program.pin(x, [], [0])
    program.apply(matmul(8, 2, 256), x, w)
    cheap = propagate(program)
    program.ops[0] = type(program.ops[0])(
        program.ops[0].rule, program.ops[0].operands, program.ops[0].results, 1.0, (True, False)
    )
    kept = propagate(program)
    assert kept.objective == pytest.approx(least_cost(program), rel=GAP)
    assert kept.objective > cheap.objective
    operands, _ = kept.strategies[kept.op_strategy[0]]
    assert kept.shardings[operands[0]] == [[], [0]]


def test_free_values_tie_nobody() -> None:
    program = Program((8,))
    x, y, half = program.value(64, 64), program.value(64, 64), program.value(64, 64)
    program.free.add(half)
    program.pin(x, [0], [])
    program.pin(y, [], [0])
    program.apply(elementwise((64, 64), 2), x, half)
    program.apply(elementwise((64, 64), 2), y, half)
    plan = propagate(program)
    assert plan.resharded_bytes == 0
    assert plan.objective == pytest.approx(least_cost(program), rel=GAP)


def test_a_minor_factor_is_cut_only_where_the_major_one_is_cut_completely() -> None:
    program = Program((2, 2))
    x = program.value(4)
    y = program.apply(spread((4,)), x)
    program.pin(x, [0, 1])
    plan = propagate(program)
    assert plan.resharded_bytes == 0
    assert values_of(plan)[y] == ((0,), (1,))


def test_contradicting_pins_name_the_value() -> None:
    program = Program((2, 4))
    x = program.value(8, 8)
    program.pin(x, [0], [])
    program.pin(x, [1], [])
    program.apply(elementwise((8, 8)), x)
    with pytest.raises(_core.Contradiction) as caught:
        propagate(program)
    message, op, value = caught.value.args
    assert (message, op, value) == ("the pins of one value allow no common sharding", -1, x)


def test_kept_operands_that_do_not_fit_together_name_the_op() -> None:
    program = Program((2, 4))
    x, w = program.value(8, 8), program.value(8, 8)
    program.pin(x, [0], [1])
    program.pin(w, [], [])
    program.apply(matmul(8, 8, 8), x, w, kept=(True, True))
    with pytest.raises(_core.Contradiction) as caught:
        propagate(program)
    assert caught.value.args[1:] == (0, -1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.shapes.__setitem__(1, (4, 4)), "type differs at op 0"),
        (lambda p: setattr(p, "mesh", (1,)), "axis smaller than 2: 0"),
        (lambda p: setattr(p, "mesh", (2,) * 17), "too many mesh axes: 17"),
        (lambda p: p.joins.append((0, 9, 1.0)), "value out of range at join 0"),
        (lambda p: p.pins.append((0, (((), False, None),))), "value or rank wrong at pin 0"),
    ],
)
def test_programs_that_break_their_rules_are_refused(change, message: str) -> None:
    program = Program((2,))
    program.apply(elementwise((8, 8)), program.value(8, 8))
    change(program)
    with pytest.raises(RuntimeError, match=message):
        propagate(program)
