"""What a plan says it sends on TPUs is what libtpu compiles: kinds and bytes of small steps."""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.sharding import Mesh
from autoshard.verify.ahead_of_time import compile_in_subprocess
from autoshard.verify.hlo_collectives import hlo_collectives

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install autoshard[tpu]"
)

STEP = """
sdy.mesh @mesh = <["x"={devices}]>
func.func public @main(
    %x: tensor<{rows}x1024xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
    %dy: tensor<{rows}x2048xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
    %w: tensor<1024x2048xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> (tensor<{rows}x2048xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
        tensor<1024x2048xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) {{
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<{rows}x1024xbf16>, tensor<1024x2048xbf16>) -> tensor<{rows}x2048xbf16>
      loc("jit(step)/dot_general")
  %dw = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
      : (tensor<{rows}x1024xbf16>, tensor<{rows}x2048xbf16>) -> tensor<1024x2048xbf16>
      loc("jit(step)/dot_general")
  return %y, %dw : tensor<{rows}x2048xbf16>, tensor<1024x2048xbf16>
}}
"""
"""The forward and backward product of one layer: a weight is gathered, its gradient scattered."""

WEIGHT = 1024 * 2048 * 2
"""Bytes."""


@pytest.mark.parametrize(
    ("cluster", "rows", "expected"),
    [
        # All of a slice of 64: both become all-reduces.
        ("v5p:4x4x4", 64 * 256, {"all-reduce": 2 * 2 * 63 / 64 * WEIGHT}),
        # Fewer: a gather, and a slice that reduces, then cuts: a loop of the matmul that scatters
        # its sums would take longer, by what it adds up and transposes.
        (
            "v5p:2x2x2",
            8 * 16384,
            {"all-gather": 7 / 8 * WEIGHT, "all-reduce": 2 * 7 / 8 * WEIGHT},
        ),
        (
            "v5p:2x2x2",
            8 * 256,
            {"all-gather": 7 / 8 * WEIGHT, "all-reduce": 2 * 7 / 8 * WEIGHT},
        ),
    ],
)
def test_a_layer_sends_what_its_plan_says(
    cluster: str, rows: int, expected: dict[str, float]
) -> None:
    machine = Cluster.parse(cluster)
    text = STEP.format(devices=machine.num_devices, rows=rows)
    module = parse_bytes(text.encode(), new_context(), "step")
    planned = search_module(
        module, machine, RecursiveProgramming(mesh=f"x={machine.num_devices}")
    ).summary
    sent = Counter[str]()
    for each in planned.collectives:
        sent[each.kind] += each.bytes * each.times
    assert dict(sent) == pytest.approx(expected)
    run_passes(module, ["autoshard-export-shardy"])
    compiled = compile_in_subprocess(module, machine, timeout=300)
    assert compiled.hlo_text is not None
    made = Counter[str]()
    for found in hlo_collectives(compiled.hlo_text, Mesh.parse(planned.mesh)):
        made[found.kind.value] += found.total_bytes
    assert dict(made) == pytest.approx(expected, rel=0.03)


BOTH_DIMS = """
sdy.mesh @mesh = <["a"=2, "b"=32]>
func.func public @main(
    %x: tensor<16384x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b"}, {}]>},
    %w: tensor<1024x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {"a"}]>})
    -> (tensor<16384x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b"}, {}]>}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<16384x1024xbf16>, tensor<1024x2048xbf16>) -> tensor<16384x2048xbf16>
  return %y : tensor<16384x2048xbf16>
}
"""


def test_a_weight_cut_on_both_dims_is_gathered_dim_by_dim() -> None:
    # In one step it would be an all-reduce over the whole slice, of twice the bytes.
    machine = Cluster.parse("v5p:4x4x4")
    module = parse_bytes(BOTH_DIMS.encode(), new_context(), "step")
    planned = search_module(module, machine, RecursiveProgramming(mesh="a=2,b=32")).summary
    expected = [
        ("all-gather", ("a",), pytest.approx(WEIGHT / 64)),
        ("all-gather", ("b",), pytest.approx(WEIGHT / 32 * 31)),
    ]
    assert sorted((c.kind, c.axes, c.bytes) for c in planned.collectives) == expected
    run_passes(module, ["autoshard-export-shardy"])
    compiled = compile_in_subprocess(module, machine, timeout=300)
    assert compiled.hlo_text is not None
    made = [
        (c.kind.value, tuple(ref.name for ref in c.axes or ()), c.total_bytes)
        for c in hlo_collectives(compiled.hlo_text, Mesh.parse(planned.mesh))
    ]
    assert sorted(made) == expected
