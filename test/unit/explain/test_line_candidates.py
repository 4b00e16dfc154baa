"""Lines that the user's code can say of a planned program."""

from __future__ import annotations

from autoshard.cluster import Cluster
from autoshard.explain.line_candidates import candidates
from autoshard.explain.question import Subject
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module

UNREAD = """
func.func public @main(%x: tensor<4096x2048xbf16>, %w: tensor<2048x8192xbf16>)
    -> tensor<4096x8192xbf16> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4096x2048xbf16>, tensor<2048x8192xbf16>) -> tensor<4096x8192xbf16> loc("m.py":1:1)
  %y = stablehlo.exponential %h : tensor<4096x8192xbf16> loc("m.py":2:1)
  %unread = stablehlo.compare EQ, %h, %y
      : (tensor<4096x8192xbf16>, tensor<4096x8192xbf16>) -> tensor<4096x8192xi1> loc("m.py":3:1)
  return %y : tensor<4096x8192xbf16>
}
"""


def test_what_nobody_reads_has_no_line() -> None:
    """The plan cuts it by chance, and a constraint behind which nobody reads is one of all of it:
    Shardy takes it for that of the value."""
    module = parse_bytes(UNREAD.encode(), new_context(), "unread")
    planned = search_module(module, Cluster.of("v5e:2x4"), RecursiveProgramming())
    lines = list(candidates(Subject("unread", module, planned.costed(), planned.summary)))
    places = {line.annotation.location for line in lines}
    assert {"m.py:1", "m.py:2"} <= places
    assert "m.py:3" not in places
