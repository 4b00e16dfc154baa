"""Which ops a compiled program sends bytes for."""

from __future__ import annotations

import pytest

from autoshard.explain.compiled_ops import name_ops, sent_by_ops, sent_more
from autoshard.explain.reproduced import Key
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.locations import op_name, place
from autoshard.ir.module import operations_of
from autoshard.sharding import Mesh

GATHER: Key = ("all-gather", ("a",), None)
REDUCE: Key = ("all-reduce", ("a",), None)


def test_names_keep_what_jax_said_and_where() -> None:
    module = parse_bytes(
        b"""func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %0 = stablehlo.negate %x : tensor<8xf32> loc("jit(f)/neg"("model.py":7:3))
          return %0 : tensor<8xf32>
        }""",
        new_context(),
    )
    op = next(op for op in operations_of(module.operation) if op.name == "stablehlo.negate")
    name_ops([(12, op)])
    assert op_name(op.location) == "autoshard.op12/jit(f)/neg"
    assert place(op.location) == "model.py:7:3"
    name_ops([(3, op)])
    assert isinstance(op.location, mlir.NameLoc)


def test_the_innermost_number_is_the_ops() -> None:
    """Names of inlined calls stand before those of the ops inside."""
    text = """HloModule m, num_partitions=4

add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add, metadata={op_name="autoshard.op4/jit(f)/autoshard.op9/add" source_file="model.py" source_line=7}
}
"""  # noqa: E501
    assert sent_by_ops(text, Mesh.parse("a=4"), 1) == {(9, REDUCE): 2 * 3 / 4 * 32}


def test_ops_are_blamed_for_kinds_that_send_more_in_all() -> None:
    than = {(1, GATHER): 10.0, (2, GATHER): 10.0, (3, REDUCE): 5.0}
    assert sent_more(than, than) == {}
    moved = {(1, GATHER): 20.0, (3, REDUCE): 5.0}  # under another name, and no more
    assert sent_more(moved, than) == {}
    more = {(1, GATHER): 20.0, (2, GATHER): 15.0, (None, REDUCE): 100.0}
    found = sent_more(more, than)
    assert found == {1: 10.0, 2: 5.0}
    fewer = {(1, GATHER): 40.0}  # 20 more in all, and op 2 sends nothing
    assert sent_more(fewer, than) == {1: pytest.approx(20.0)}
