"""What a loop reads in every trip and is gathered before it is there as long as the loop."""

from __future__ import annotations

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.planned.given_plan import cost_of_module
from planned_text import planned_module

MIB = 2**20
CLUSTER = Cluster.parse("cpu:4")
CUT, WHOLE = "[{data}, {}]", "[{}, {}]"

LOOP = """
func.func public @main(%a: TYPE $(CUT), %b: TYPE $(CUT), %x: TYPE $(CUT)) -> (TYPE $(CUT)) {
  %first = stablehlo.constant $([]) dense<0> : tensor<i32>
  %r:4 = stablehlo.while(%m = %first, %v = %a, %w = %b, %y = %x) : tensor<i32>, TYPE, TYPE, TYPE
      attributes $([], INSIDE, INSIDE, CUT)
  cond {
    %trips = stablehlo.constant $([]) dense<5> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips $([]) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %i1 = stablehlo.constant $([]) dense<1> : tensor<i32>
    %next = stablehlo.add %m, %i1 $([]) : tensor<i32>
    %u = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] $(CUT, WHOLE -> CUT)
        : (TYPE, TYPE) -> TYPE
    %z = stablehlo.dot_general %u, %w, contracting_dims = [1] x [0] $(CUT, WHOLE -> CUT)
        : (TYPE, TYPE) -> TYPE
    stablehlo.return %next, %v, %w, %z : tensor<i32>, TYPE, TYPE, TYPE
  }
  return %r#3 : TYPE
}
""".replace("TYPE", "tensor<1024x1024xf32>")


def peak_bytes(inside: str) -> float:
    text = LOOP.replace("INSIDE", inside).replace("CUT", CUT).replace("WHOLE", WHOLE)
    return cost_of_module(planned_module(text, "data=4"), CLUSTER).plan.peak_bytes


def test_what_is_gathered_before_a_loop_lives_as_long_as_that() -> None:
    one_more = 4 * MIB  # gathered in the loop the two weights live one after the other
    assert peak_bytes(WHOLE) == peak_bytes(CUT) + one_more


WEIGHTS = 8


def step() -> str:
    """Trips through products with weights of 4 MiB each, which are cut outside of the loop."""
    array, rows = "tensor<1024x1024xf32>", "tensor<16384x1024xf32>"
    pinned = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
    numbers = range(WEIGHTS)
    products = [
        f"%y{n + 1} = stablehlo.dot_general %y{n}, %v{n}, contracting_dims = [1] x [0]"
        f" : ({rows}, {array}) -> {rows}"
        for n in numbers
    ]
    types = ", ".join(["tensor<i32>", *[array] * WEIGHTS, rows])
    return f"""
sdy.mesh @mesh = <["x"=4]>
func.func public @main({", ".join(f"%w{n}: {array} {pinned}" for n in numbers)},
    %x: {rows} {pinned}) -> ({rows} {pinned}) {{
  %first = stablehlo.constant dense<0> : tensor<i32>
  %r:{WEIGHTS + 2} = stablehlo.while(%m = %first, {", ".join(f"%v{n} = %w{n}" for n in numbers)},
      %y0 = %x) : {types}
  cond {{
    %trips = stablehlo.constant dense<5> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %m, %one : tensor<i32>
    {"; ".join(products)}
    stablehlo.return %next, {", ".join(f"%v{n}" for n in numbers)}, %y{WEIGHTS} : {types}
  }}
  return %r#{WEIGHTS + 1} : {rows}
}}
""".replace("; ", "\n    ")


def needed(limit: str) -> tuple[float, float]:
    """Bytes and seconds of what the search finds."""
    module = parse_bytes(step().encode(), new_context(), "step")
    options = RecursiveProgramming(mesh="x=4", memory_limit=limit)
    found = search_module(module, CLUSTER, options).summary
    return found.peak_bytes_per_device, found.step_seconds


def test_weights_are_gathered_trip_by_trip_where_they_do_not_fit_all_at_once() -> None:
    free, seconds = needed("1GiB")
    tight, more_seconds = needed("80MiB")
    assert tight <= 80 * MIB < free
    assert more_seconds > seconds
