"""The symbolic cost: MindSpore's numbers, its choices or cheaper ones, and its log lines."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from dataclasses import dataclass

import numpy as np
import planning_oracle
import pytest
import symbolic_oracle as oracle
from symbolic_oracle import MatMul

from autoshard import _core
from autoshard.errors import PassOptionError, PlanError
from autoshard.importer.program import import_program
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.pipeline import parse_pipeline, run_passes
from autoshard.passes.sharding_propagation import mesh_of, populate_rules
from autoshard.passes.symbolic import search_symbolic
from autoshard.planned.symbolic_costs import AXES, SymbolicCosts, symbolic_costs
from autoshard.search.suggest_mem_coeff import suggest_mem_coeff
from autoshard.sharding import Mesh

WORKED_EXAMPLE = [MatMul(8192, 4096, 1)]


@dataclass(frozen=True)
class Planned:
    """What ``suggest_mem_coeff`` needs of a plan."""

    symbolic_costs: SymbolicCosts | None


def plan(graph: list[MatMul], levels: int, coefficient: float) -> Planned:
    core, choices = _core.symbolic_programming(oracle.program(graph, levels).core(), coefficient)
    names = ["dot_general"] * len(graph)
    places = [f"/home/model.py:{10 + number}:3" for number in range(len(graph))]
    axes = [f"x{level}" for level in range(levels)]
    return Planned(symbolic_costs(core, choices, coefficient, names, places, axes))


def costs_of(graph: list[MatMul], levels: int, coefficient: float) -> SymbolicCosts:
    found = plan(graph, levels, coefficient).symbolic_costs
    assert found is not None
    return found


def matmul_costs(i: int, k: int, j: int, coefficient: float, parts: int = 2) -> list[float]:
    """I, J, K, none."""
    return list(_core.symbolic_matmul_costs((1, i, k, j), False, coefficient, parts))[2:]


# --- formulas ---


def test_the_worked_example_to_the_digit() -> None:
    (choice,) = costs_of(WORKED_EXAMPLE, 1, 0.01).choices
    totals = {candidate.axis: candidate.total for candidate in choice.candidates}
    assert totals == {"I": 20.48, "J": math.inf, "K": 4096, "none": pytest.approx(16.777216)}
    assert abs(totals["none"] - 16.777216) < 1e-14
    assert choice.chosen == "none"
    (choice,) = costs_of(WORKED_EXAMPLE, 1, 0.013).choices
    assert choice.chosen == "I"


def test_not_cutting_is_weighed_with_cuts_that_are_not_possible() -> None:
    assert matmul_costs(8192, 4096, 1, 0.01)[1] == 8192 * 4096 / 2
    # (2, 8) x (8, 3): K costs 3, so not cutting costs less than I's 1.2 at every level.
    assert matmul_costs(2, 8, 3, 0.1) == pytest.approx([1.2, 8, 3, 1.2**2 / 25])
    assert [c.chosen for c in costs_of([MatMul(2, 8, 3)], 3, 0.1).choices] == ["none"] * 3


def test_a_matmul_whose_cheapest_cut_costs_25_is_cut() -> None:
    assert [c.chosen for c in costs_of([MatMul(16, 10, 5)], 1, 1).choices] == ["I"]
    assert [c.chosen for c in costs_of([MatMul(16, 8, 6)], 1, 1).choices] == ["none"]


def test_other_primes_charge_the_share_that_is_elsewhere() -> None:
    assert matmul_costs(9, 6, 3, 1, parts=3) == pytest.approx([12, 36, 18, 12**2 / 25])


def test_a_batched_matmul_has_six_cuts() -> None:
    left, right, out = 4 * 8 * 16, 4 * 16 * 32, 4 * 8 * 32
    m = 0.15 * min(left, right, out) / 2
    r = 32 / 4 - 1
    expected = [r * m, abs(r * m - 1), right / 2, left / 2, out / 2, m * m / 25]
    assert list(_core.symbolic_matmul_costs((4, 8, 16, 32), True, 0.1)) == pytest.approx(expected)
    # From 32 on every device has whole batch elements: cutting them is free.
    assert list(_core.symbolic_matmul_costs((64, 8, 16, 32), True, 0.1))[:2] == [0, 1]


def test_a_reshard_costs_16_for_each_element_and_level() -> None:
    rows, columns = [[0, 1], []], [[0], [1]]
    assert _core.symbolic_reshard([8, 4], rows, rows, [2, 2]) == 0
    # The second level differs; the first one has left 16 of 32 elements.
    assert _core.symbolic_reshard([8, 4], rows, columns, [2, 2]) == 16 * 16
    assert _core.symbolic_reshard([8, 4], [[], []], columns, [2, 2]) == 16 * 32 + 16 * 16


def test_an_axis_of_8_is_three_levels_of_2() -> None:
    wide = planning_oracle.Program((8,))
    wide.apply(planning_oracle.matmul(64, 32, 16), wide.value(64, 32), wide.value(32, 16))
    core, choices = _core.symbolic_programming(wide.core(), 0.1)
    assert [choice.sizes for choice in choices] == [[1, i, 32, 16] for i in (64, 32, 16)]
    assert core.objective == costs_of([MatMul(64, 32, 16)], 3, 0.1).total


# --- the rows of MindSpore's tests and documents ---

LLAMA = {
    "qkv": [MatMul(4096, 4096, 4096)],
    "mlp": [MatMul(4096, 4096, 11008), MatMul(4096, 11008, 4096, 0)],
    "head": [MatMul(4096, 4096, 32000)],
}
LLAMA_LONG = {name: [MatMul(32768, m.k, m.j, m.left) for m in g] for name, g in LLAMA.items()}

ROWS: dict[str, tuple[list[MatMul], int, float, list[list[list[int]]]]] = {
    # name: matmuls, levels, mem_coeff, blocks of the operands of each
    "1": (
        [MatMul(160, 320, 320), MatMul(160, 320, 320, 0)],
        3,
        1024,
        [[[1, 1], [1, 8]], [[1, 8], [8, 1]]],
    ),
    "2": (
        [MatMul(640, 1280, 1280), MatMul(640, 1280, 1280, 0)],
        6,
        1024,
        [[[1, 1], [1, 64]], [[1, 64], [64, 1]]],
    ),
    "4": (
        [MatMul(32768, 1024, 1024), MatMul(32768, 1024, 1024, 0)],
        3,
        0.1,
        [[[8, 1], [1, 1]], [[8, 1], [1, 1]]],
    ),
    "5": ([MatMul(160, 320, 3200000)], 3, 0.1, [[[1, 1], [1, 8]]]),
    "12": ([MatMul(8, 320, 409600)], 3, 0.1, [[[1, 1], [1, 8]]]),
    "14": ([MatMul(8192, 64, 4096)], 3, 1, [[[4, 1], [1, 2]]]),
    "15": ([MatMul(256, 64, 131072)], 3, 2**-10, [[[4, 1], [1, 2]]]),
    "24 at .01": (WORKED_EXAMPLE, 1, 0.01, [[[1, 1], [1, 1]]]),
    "24 at .013": (WORKED_EXAMPLE, 1, 0.013, [[[2, 1], [1, 1]]]),
    "25 qkv": (LLAMA["qkv"], 3, 0.1, [[[8, 1], [1, 1]]]),
    "25 mlp": (LLAMA["mlp"], 3, 0.1, [[[4, 1], [1, 2]], [[4, 2], [2, 1]]]),
    "25 head": (LLAMA["head"], 3, 0.1, [[[4, 1], [1, 2]]]),
    "25b qkv at .01": (LLAMA["qkv"], 3, 0.01, [[[8, 1], [1, 1]]]),
    "25b mlp at .01": (LLAMA["mlp"], 3, 0.01, [[[8, 1], [1, 1]], [[8, 1], [1, 1]]]),
    "25b head at .01": (LLAMA["head"], 3, 0.01, [[[8, 1], [1, 1]]]),
    "25b mlp at 1": (LLAMA["mlp"], 3, 1, [[[2, 1], [1, 4]], [[2, 4], [4, 1]]]),
    "25b qkv at 4.5": (LLAMA["qkv"], 3, 4.5, [[[1, 1], [1, 8]]]),
    "25b mlp at 4.5": (LLAMA["mlp"], 3, 4.5, [[[1, 1], [1, 8]], [[1, 8], [8, 1]]]),
    "25c qkv": (LLAMA_LONG["qkv"], 3, 4.5, [[[4, 1], [1, 2]]]),
    "25c mlp": (LLAMA_LONG["mlp"], 3, 4.5, [[[2, 1], [1, 4]], [[2, 4], [4, 1]]]),
    "25c head": (LLAMA_LONG["head"], 3, 4.5, [[[1, 1], [1, 8]]]),
}


@pytest.mark.parametrize("row", ROWS)
def test_rows_choose_as_mindspore_does_at_the_same_cost(row: str) -> None:
    graph, levels, coefficient, expected = ROWS[row]
    theirs = oracle.greedy(graph, levels, coefficient)
    ours, reported = oracle.planned(graph, levels, coefficient)
    total = oracle.total(graph, ours, coefficient)
    print(f"row {row}: ours {total:g}, theirs {oracle.total(graph, theirs, coefficient):g}")
    assert [oracle.strategy(cuts) for cuts in theirs] == expected, "the oracle tells their rules"
    assert [oracle.strategy(cuts) for cuts in ours] == expected
    assert total == pytest.approx(reported, rel=1e-12)
    assert total <= oracle.total(graph, theirs, coefficient) * (1 + 1e-12)


@pytest.mark.parametrize("levels", [1, 10])
def test_19_a_chain_of_four_on_2_and_1024_devices(levels: int) -> None:
    graph = [MatMul(3000, 1000, 4000)]
    for number in range(3):
        k, j = ((4000, 1000), (1000, 4000))[number % 2]
        graph.append(MatMul(3000, k, j, number))
    theirs = oracle.greedy(graph, levels, 0.1)
    ours, _ = oracle.planned(graph, levels, 0.1)
    assert oracle.total(graph, ours, 0.1) <= oracle.total(graph, theirs, 0.1)
    # 3000 is divisible by 8 only: more than three levels cut the weights too.
    assert all(cuts[:1] == ["I"] and cuts.count("I") == min(levels, 3) for cuts in ours)


def test_more_mem_coeff_cuts_the_batch_less_and_weights_more() -> None:
    for graph in (*LLAMA.values(), *LLAMA_LONG.values()):
        rows = [
            sum(cuts.count("I") for cuts in oracle.planned(graph, 3, coefficient)[0])
            for coefficient in (0.001, 0.01, 0.1, 0.5, 1, 2, 4.5, 20, 100)
        ]
        assert rows == sorted(rows, reverse=True)
        assert rows[0] == 3 * len(graph)
        assert rows[-1] == 0


# --- against visits that never come back, and against every plan ---


def random_graph(random: np.random.Generator, length: int) -> list[MatMul]:
    """Each matmul reads a parameter and what an earlier one made."""
    sizes = [2, 3, 4, 6, 8, 16, 64]
    graph: list[MatMul] = []
    for number in range(length):
        j = int(random.choice(sizes))
        if number and random.random() < 0.8:
            source = int(random.integers(number))
            graph.append(MatMul(graph[source].i, graph[source].j, j, source))
        else:
            graph.append(MatMul(int(random.choice(sizes)), int(random.choice(sizes)), j))
    return graph


@pytest.mark.parametrize("seed", range(60))
def test_the_whole_network_costs_no_more_than_visits(seed: int) -> None:
    random = np.random.default_rng(seed)
    graph = random_graph(random, int(random.integers(1, 6)))
    coefficient = float(10 ** random.uniform(-2, 2))
    theirs = oracle.total(graph, oracle.greedy(graph, 3, coefficient), coefficient)
    ours, reported = oracle.planned(graph, 3, coefficient)
    assert reported <= theirs * (1 + 1e-9)
    # Readers that want the same share a reshard; MindSpore counts each.
    assert reported <= oracle.total(graph, ours, coefficient) * (1 + 1e-9)


def test_the_whole_network_is_cheaper_where_the_first_visit_does_not_suit_the_second() -> None:
    # I is the cheapest cut of the first matmul, by a tenth. Of the second one it is the dearest,
    # and any other is charged the reshard of what the first one made.
    graph = [MatMul(64, 64, 64), MatMul(64, 64, 4096, 0)]
    theirs = oracle.greedy(graph, 2, 0.9)
    ours, total = oracle.planned(graph, 2, 0.9)
    assert theirs == [["I", "J"], ["J", "J"]]
    assert ours == [["K", "K"], ["J", "J"]]
    assert oracle.total(graph, theirs, 0.9) == pytest.approx(138035.2)
    assert total == oracle.total(graph, ours, 0.9) == 8192


@pytest.mark.parametrize("seed", range(40))
def test_no_plan_of_two_levels_is_cheaper(seed: int) -> None:
    random = np.random.default_rng(1000 + seed)
    graph = random_graph(random, 2)
    coefficient = float(10 ** random.uniform(-2, 2))
    least = min(
        oracle.total(graph, [list(cuts[:2]), list(cuts[2:])], coefficient)
        for cuts in itertools.product(oracle.CUTS, repeat=4)
    )
    core, _ = _core.symbolic_programming(oracle.program(graph, 2).core(), coefficient)
    assert core.objective == pytest.approx(least)
    assert core.lower_bound <= least
    assert core.lower_bound == pytest.approx(least, abs=1e-3)


def test_three_devices_cut_by_three() -> None:
    made = planning_oracle.Program((3,))
    made.apply(planning_oracle.matmul(9, 8, 64), made.value(9, 8), made.value(8, 64))
    (choice,) = _core.symbolic_programming(made.core(), 0.1)[1]
    assert choice.parts == 3
    possible = {one.cut.value: one.op_cost < math.inf for one in choice.candidates}
    assert possible == {"I": True, "J": False, "K": False, "none": True}


def test_3_a_matmul_follows_one_that_the_user_pinned() -> None:
    graph = ROWS["4"][0]
    theirs = oracle.greedy(graph, 3, 0.1, pinned={0: "J"})
    assert [oracle.strategy(cuts) for cuts in theirs] == [[[1, 1], [1, 8]], [[1, 8], [8, 1]]]
    made = planning_oracle.Program((2, 2, 2))
    x, w1, w2 = made.value(32768, 1024), made.value(1024, 1024), made.value(1024, 1024)
    made.pin(x, [], [])
    made.pin(w1, [], [0, 1, 2])
    rule = planning_oracle.matmul(32768, 1024, 1024)
    made.apply(rule, made.apply(rule, x, w1, kept=(True, True)), w2)
    core, choices = _core.symbolic_programming(made.core(), 0.1)
    cuts = {op: [c.candidates[c.chosen].cut.value for c in choices if c.op == op] for op in (0, 1)}
    assert cuts == {0: ["J"] * 3, 1: ["K"] * 3}
    assert core.shardings[core.value_sharding[w1]] == [[], [0, 1, 2]]
    assert core.objective == oracle.total(graph, theirs, 0.1)


# --- programs ---


def imported_plan(text: str, mesh: str, coefficient: float):
    """The plan of a module, its costs and the module's ops."""
    context = new_context()
    module = parse_bytes(text.encode(), context, "test.mlir")
    with context, mlir.Location.unknown():
        module.operation.attributes["autoshard.mesh"] = mlir.StringAttr.get(mesh)
        run_passes(module, parse_pipeline("builtin.module(autoshard-import-strategies)"))
        populate_rules(module)
        imported = import_program(module, mesh_of(module))
        core, costs = search_symbolic(imported, coefficient)
        names = [op.name.removeprefix("stablehlo.") for op in imported.core_ops]
    return core, costs, names


def blocks(core: _core.CorePlan, mesh: str, op: int) -> list[list[int]]:
    """Blocks of each dim of each operand of an op."""
    sizes = [axis.size for axis in Mesh.parse(mesh).axes]
    return [
        [math.prod(sizes[axis] for axis in axes) for axes in core.shardings[index]]
        for index in core.strategies[core.op_strategy[op]][0]
    ]


def dot(result: str, x: str, w: str, i: int, k: int, j: int) -> str:
    return (
        f"{result} = stablehlo.dot_general {x}, {w}, contracting_dims = [1] x [0]"
        f" : (tensor<{i}x{k}xf32>, tensor<{k}x{j}xf32>) -> tensor<{i}x{j}xf32>\n"
    )


def function(arguments: str, body: str, result: str) -> str:
    *_, last = re.findall(r"^ *(%\w+)", body, re.MULTILINE)
    return f"func.func @main({arguments}) -> {result} {{\n{body}\n return {last} : {result}\n}}\n"


def sequence(size: int, tail: str = "", result: str | None = None) -> str:
    """Rows 1, 2, 9 and 10: MatMul, Sub, MatMul, Add and what follows."""
    i, n = size, 2 * size
    return function(
        f"%x: tensor<{i}x{n}xf32>, %w1: tensor<{n}x{n}xf32>, %s: tensor<{i}x{n}xf32>,"
        f" %w2: tensor<{n}x{n}xf32>, %b: tensor<{i}x{n}xf32>",
        dot("%m", "%x", "%w1", i, n, n)
        + f"%d = stablehlo.subtract %m, %s : tensor<{i}x{n}xf32>\n"
        + dot("%n", "%d", "%w2", i, n, n)
        + f"%a = stablehlo.add %n, %b : tensor<{i}x{n}xf32>\n"
        + tail,
        result or f"tensor<{i}x{n}xf32>",
    )


@pytest.mark.parametrize(("size", "levels"), [(160, 3), (640, 6)])
def test_1_and_2_ops_between_matmuls_follow_them(size: int, levels: int) -> None:
    mesh = ",".join(f"x{level}=2" for level in range(levels))
    core, _, names = imported_plan(sequence(size), mesh, 1024)
    devices = 2**levels
    first, second = (n for n, name in enumerate(names) if name == "dot_general")
    assert blocks(core, mesh, first) == [[1, 1], [1, devices]]
    assert blocks(core, mesh, second) == [[1, devices], [devices, 1]]
    assert blocks(core, mesh, names.index("subtract")) == [[1, devices]] * 2
    # The partial sums are scattered and the sum is made in parts, where MindSpore on 8 devices
    # sends twice as much, an all-reduce, and makes all of it everywhere.
    added = blocks(core, mesh, names.index("add"))
    assert math.prod(added[0]) == devices
    assert core.resharded_bytes == 4 * size * 2 * size * (devices - 1) / devices


@pytest.mark.parametrize("shape", [(64, 10, 1280), (10, 64, 1280)])
def test_9_and_10_a_reshape_and_what_follows_are_cut(shape: tuple[int, int, int]) -> None:
    mesh = ",".join(f"x{level}=2" for level in range(6))
    dims = "x".join(map(str, shape))
    tail = (
        f"%r = stablehlo.reshape %a : (tensor<640x1280xf32>) -> tensor<{dims}xf32>\n"
        f"%e = stablehlo.add %r, %r : tensor<{dims}xf32>\n"
    )
    core, _, names = imported_plan(sequence(640, tail, f"tensor<{dims}xf32>"), mesh, 1024)
    last = max(n for n, name in enumerate(names) if name == "add")
    assert math.prod(blocks(core, mesh, last)[0]) == 64
    # At least a reduce-scatter over all devices; sums are scattered over one dim only.
    least = 4 * 640 * 1280 * 63 / 64
    assert least <= core.resharded_bytes <= 1.02 * least


def gather(rows: int, columns: int, first: int, second: int) -> str:
    return (
        f'%g = "stablehlo.gather"(%t, %i) <{{dimension_numbers = #stablehlo.gather<'
        f"offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0],"
        f" index_vector_dim = 2>, slice_sizes = array<i64: 1, {columns}>}}> :"
        f" (tensor<{rows}x{columns}xf32>, tensor<{first}x{second}x1xi32>)"
        f" -> tensor<{first}x{second}x{columns}xf32>\n"
    )


def test_6_an_embedding_cuts_its_indices_as_the_matmul_behind_it() -> None:
    text = function(
        "%t: tensor<64x64xf32>, %i: tensor<64x64x1xi32>, %w: tensor<64x64xf32>",
        gather(64, 64, 64, 64)
        + "%r = stablehlo.reshape %g : (tensor<64x64x64xf32>) -> tensor<4096x64xf32>\n"
        + dot("%m", "%r", "%w", 4096, 64, 64),
        "tensor<4096x64xf32>",
    )
    core, _, names = imported_plan(text, "a=2,b=2,c=2", 0.1)
    assert blocks(core, "a=2,b=2,c=2", names.index("gather")) == [[1, 1], [8, 1, 1]]
    assert core.resharded_bytes == 0


def test_11_without_a_matmul_all_devices_work() -> None:
    text = function(
        "%x: tensor<2x2x2xf32>", "%y = stablehlo.tanh %x : tensor<2x2x2xf32>", "tensor<2x2x2xf32>"
    )
    core, costs, _ = imported_plan(text, "a=2", 0.1)
    assert math.prod(blocks(core, "a=2", 0)[0]) == 2
    assert costs.choices == ()


def test_attention_cuts_batch_and_heads_for_nothing() -> None:
    text = function(
        "%q: tensor<4x16x128x64xf32>, %k: tensor<4x16x64x128xf32>",
        "%s = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1],"
        " contracting_dims = [3] x [2] : (tensor<4x16x128x64xf32>, tensor<4x16x64x128xf32>)"
        " -> tensor<4x16x128x128xf32>",
        "tensor<4x16x128x128xf32>",
    )
    _, costs, _ = imported_plan(text, "a=2", 0.1)
    (choice,) = costs.choices
    assert [c.axis for c in choice.candidates] == list(AXES)
    assert (choice.sizes, choice.chosen) == ((64, 128, 64, 128), "Batch")
    assert choice.candidates[0].total == 0


def test_a_convolution_cuts_the_batch() -> None:
    text = function(
        "%x: tensor<32x16x16x8xf32>, %w: tensor<3x3x8x8xf32>",
        "%y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],"
        " window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64,"
        " feature_group_count = 1 : i64} : (tensor<32x16x16x8xf32>, tensor<3x3x8x8xf32>)"
        " -> tensor<32x16x16x8xf32>",
        "tensor<32x16x16x8xf32>",
    )
    core, costs, names = imported_plan(text, "a=2,b=2", 0.1)
    assert not costs.choices
    assert blocks(core, "a=2,b=2", names.index("convolution"))[0] == [4, 1, 1, 1]
    # Half the filter at each level.
    assert costs.total == 2 * 3 * 3 * 8 * 8 / 2


# --- log ---


def test_the_log_reads_as_the_document_says(caplog: pytest.LogCaptureFixture) -> None:
    text = function(
        "%x: tensor<8192x4096xf32>, %w: tensor<4096x1xf32>",
        dot("%y", "%x", "%w", 8192, 4096, 1),
        "tensor<8192x1xf32>",
    )
    caplog.set_level(logging.INFO, logger="autoshard.recursive_programming")
    imported_plan(text, "a=2", 0.01)
    assert [record.getMessage() for record in caplog.records] == [
        "------------Node_name: dot_general_0 -------------",
        "If the I-axis is cut, the op-cost is 20.48, the redist-cost is 0, and the total cost is"
        " 20.48",
        "If the K-axis is cut, the op-cost is 4096, the redist-cost is 0, and the total cost is"
        " 4096",
        "If do NOT cut the axis, the op-cost is 16.7772, the redist-cost is 0, and the total cost"
        " is 16.7772",
        "The costs of cutting the I-axis/J-axis/K-axis/no_cut are : [const vector]{20.48,"
        " 1.79769e+308, 4096, 16.7772}",
        "Choose NOT to cut",
        "Partition Success With 2 devices.",
    ]
    caplog.clear()
    imported_plan(text, "a=2", 0.013)
    assert "The I-axis is chosen to cut" in caplog.messages


def test_the_reshard_of_the_other_cuts_is_in_the_log() -> None:
    costs = costs_of(ROWS["1"][0], 1, 1024)
    second = costs.of("dot_general_1")[0]
    assert second.chosen == "K"
    chosen, other = second.candidate("K"), second.candidate("J")
    assert chosen is not None
    assert other is not None
    assert chosen.reshard_cost == 0
    # What the first matmul made is cut along its columns, which J needs whole.
    assert other.reshard_cost == 16 * 160 * 320


def test_costs_survive_json() -> None:
    costs = costs_of(ROWS["25 mlp"][0], 3, 0.1)
    text = json.dumps(costs.to_json(), allow_nan=False)
    assert SymbolicCosts.from_json(json.loads(text)) == costs


def test_equal_layers_take_no_more_json() -> None:
    graph = [MatMul(64, 64, 64, number - 1 if number else None) for number in range(20)]
    assert len(costs_of(graph, 2, 0.1).to_json()["choices"]) <= 6


def test_mem_coeff_must_be_positive() -> None:
    text = function("%x: tensor<8x8xf32>", dot("%y", "%x", "%x", 8, 8, 8), "tensor<8x8xf32>")
    with pytest.raises(PassOptionError, match=r"mem-coeff=0: the symbolic cost needs a positive"):
        imported_plan(text, "a=2", 0)


# --- suggest_mem_coeff ---


def test_the_documents_way_to_pure_data_parallelism() -> None:
    found = suggest_mem_coeff(plan(WORKED_EXAMPLE, 1, 0.01), "dot_general_0")
    assert found == pytest.approx(20.48 * 0.01 / 16.777216)
    assert found == 50 / 4096
    assert [c.chosen for c in costs_of(WORKED_EXAMPLE, 1, found).choices] == ["I"]
    assert [c.chosen for c in costs_of(WORKED_EXAMPLE, 1, found * 0.999).choices] == ["none"]


@pytest.mark.parametrize("name", LLAMA)
@pytest.mark.parametrize("want", ["I", "J", "K", "none"])
@pytest.mark.parametrize("coefficient", [0.01, 0.1, 1, 4.5])
def test_a_plan_made_with_the_suggestion_chooses_it(
    name: str, want: str, coefficient: float
) -> None:
    graph = LLAMA[name]
    planned = plan(graph, 3, coefficient)
    for number in range(len(graph)):
        possible = {"J": "K", "K": "J"}.get(want) is None or want == ("J", "K")[number]
        if not possible:
            with pytest.raises(PlanError, match="is the cheapest at no mem_coeff"):
                suggest_mem_coeff(planned, number, want)
            continue
        found = suggest_mem_coeff(planned, number, want)
        again = costs_of(graph, 3, found).of(f"dot_general_{number}")
        assert [choice.chosen for choice in again] == [want] * 3, (number, found)


def test_one_level_flips_before_all_do() -> None:
    planned = plan(LLAMA["head"], 3, 0.01)
    one = suggest_mem_coeff(planned, 0, "J", level=0)
    every = suggest_mem_coeff(planned, 0, "J")
    assert one == pytest.approx(4096 / 32000, rel=2e-5)
    assert every == pytest.approx(4 * 4096 / 32000, rel=2e-5)


def test_neighbours_that_stay_are_paid_for() -> None:
    planned = plan(LLAMA["mlp"], 1, 0.1)
    follow = suggest_mem_coeff(planned, 0, "J")
    stay = suggest_mem_coeff(planned, 0, "J", neighbours="stay")
    assert follow == pytest.approx(4096 / 11008, rel=2e-5)
    # The result is 4096 x 11008 elements.
    i, j, k = 4096, 11008, 4096
    assert stay == pytest.approx((i * k / 2 + 16 * i * j) / (j * k / 2), rel=2e-5)


def test_the_plans_own_coefficient_if_it_chooses_that_already() -> None:
    assert suggest_mem_coeff(plan(WORKED_EXAMPLE, 1, 0.01), 0, "none") == 0.01


def test_an_op_is_found_by_its_place() -> None:
    planned = plan(LLAMA["mlp"], 1, 0.1)
    assert suggest_mem_coeff(planned, "model.py:11", "K") == suggest_mem_coeff(planned, 1, "K")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": 0, "want": "J"}, r"model.py:10:3: dot_general_0: the J-axis cannot be cut at level"
         r" 0 \(mesh axis 'x0'\): its size 1 is not divisible by 2. Ask for another axis"),
        ({"op": 0, "want": "Batch"}, "a matmul without batch dims has none"),
        ({"op": 0, "want": "Q"}, "want='Q' is no axis. Use one of Batch, Expert, I, J, K, none"),
        ({"op": 7}, "op=7, but the plan has 1 matmuls"),
        ({"op": "conv"}, r"no matmul 'conv'. Use a name in plan.symbolic_costs.ops"),
        ({"op": 0, "level": 1}, "level=1, but the plan has levels 0 to 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        suggest_mem_coeff(plan(WORKED_EXAMPLE, 1, 0.01), **arguments)  # pyright: ignore


def test_a_plan_without_symbolic_costs_is_refused() -> None:
    with pytest.raises(PlanError, match="not made by the symbolic cost model"):
        suggest_mem_coeff(Planned(None), 0)


def test_batched_matmuls_do_not_depend_on_the_coefficient() -> None:
    text = function(
        "%q: tensor<2x16x8x64xf32>, %k: tensor<2x16x64x128xf32>",
        "%s = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1],"
        " contracting_dims = [3] x [2] : (tensor<2x16x8x64xf32>, tensor<2x16x64x128xf32>)"
        " -> tensor<2x16x8x128xf32>",
        "tensor<2x16x8x128xf32>",
    )
    _, costs, _ = imported_plan(text, "a=2", 0.1)
    with pytest.raises(PlanError, match="with batch dims do not depend on mem_coeff"):
        suggest_mem_coeff(Planned(costs), 0, "J")
