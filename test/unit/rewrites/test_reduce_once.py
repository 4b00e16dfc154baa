"""Sums of loops that are reduced behind them: the same numbers, and only where that is right."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plan_cases import whole_products

import autoshard
from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.boundary import main_function
from autoshard.ir.compile import compile_module
from autoshard.ir.native import verify
from autoshard.passes import reduce_once
from autoshard.passes.memory_limit import memory_limit_of
from autoshard.passes.reduce_once import reduced_once
from autoshard.planned.given_plan import cost_of_module
from autoshard.rewrites.reduce_once.chains import chains_of
from autoshard.rewrites.reduce_once.write import write_chains
from autoshard.sharding import Mesh
from planned_text import planned_module

MESH = "dp=2,tp=2"

LOOP = """
func.func public @main(%x: tensor<3x8x6xf32> $([{}, {dp}, {}]), %w: tensor<6x6xf32> $([{}, {}]))
    -> (tensor<SHAPE> $(CUT)) {
  %first = stablehlo.constant $([]) dense<0> : tensor<i32>
  %none = stablehlo.constant $(CUT) dense<0.0> : tensor<SHAPE>
  %r:4 = stablehlo.while(%m = %first, %xs = %x, %v = %w, %sum = %none)
      : tensor<i32>, tensor<3x8x6xf32>, tensor<6x6xf32>, tensor<SHAPE>
      attributes $([], [{}, {dp}, {}], [{}, {}], CUT)
  cond {
    %trips = stablehlo.constant $([]) dense<3> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips $([]) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %i0 = stablehlo.constant $([]) dense<0> : tensor<i32>
    %i1 = stablehlo.constant $([]) dense<1> : tensor<i32>
    %z = stablehlo.constant $([]) dense<0.0> : tensor<f32>
    %next = stablehlo.add %m, %i1 $([]) : tensor<i32>
    %slice = stablehlo.dynamic_slice %xs, %m, %i0, %i0, sizes = [1, 8, 6]
        $([{}, {dp}, {}], [], [], [] -> [{}, {dp}, {}])
        : (tensor<3x8x6xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x6xf32>
    %p = stablehlo.reshape %slice $([{}, {dp}, {}] -> [{dp}, {}])
        : (tensor<1x8x6xf32>) -> tensor<8x6xf32>
    BODY
    %more = stablehlo.add %sum, %t $(CUT, CUT -> CUT) : tensor<SHAPE>
    stablehlo.return %next, %xs, %v, %more
        : tensor<i32>, tensor<3x8x6xf32>, tensor<6x6xf32>, tensor<SHAPE>
  }
  return %r#3 : tensor<SHAPE>
}
"""

DOT = """%g = stablehlo.dot_general %p, %p, contracting_dims = [0] x [0]
    $([{dp}, {}], [{dp}, {}] -> [{}, {}]) : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<6x6xf32>
"""
SCATTERED = DOT.replace("-> [{}, {}])", "-> [{dp}, {}])")
"""The sum is cut over the axis that it is reduced over."""


def one(op, attributes, types):
    """An op that makes ``%t`` of ``%g``."""
    return f"{DOT} %t = {op} $({attributes}) : {types}"


SAME = "tensor<6x6xf32>"
FOLLOWERS = {
    "plain": (SCATTERED.replace("%g", "%t"), "6x6xf32", "[{dp}, {}]"),
    "transpose": (
        one(
            "stablehlo.transpose %g, dims = [1, 0]",
            "[{}, {}] -> [{}, {}]",
            f"({SAME}) -> {SAME}",
        ),
        "6x6xf32",
        "[{}, {}]",
    ),
    "reshape": (
        one("stablehlo.reshape %g", "[{}, {}] -> [{}, {}, {}]", f"({SAME}) -> tensor<2x3x6xf32>"),
        "2x3x6xf32",
        "[{}, {}, {}]",
    ),
    "broadcast": (
        one(
            "stablehlo.broadcast_in_dim %g, dims = [0, 2]",
            "[{}, {}] -> [{}, {}, {}]",
            f"({SAME}) -> tensor<6x2x6xf32>",
        ),
        "6x2x6xf32",
        "[{}, {}, {}]",
    ),
    "slice": (
        one(
            "stablehlo.slice %g [1:5:2, 0:6]",
            "[{}, {}] -> [{}, {}]",
            f"({SAME}) -> tensor<2x6xf32>",
        ),
        "2x6xf32",
        "[{}, {}]",
    ),
    "pad": (
        one(
            "stablehlo.pad %g, %z, low = [1, 0], high = [0, 2], interior = [0, 1]",
            "[{}, {}], [] -> [{}, {}]",
            f"({SAME}, tensor<f32>) -> tensor<7x13xf32>",
        ),
        "7x13xf32",
        "[{}, {}]",
    ),
    "concatenate": (
        one(
            "stablehlo.concatenate %g, %g, dim = 1",
            "[{}, {}], [{}, {}] -> [{}, {}]",
            f"({SAME}, {SAME}) -> tensor<6x12xf32>",
        ),
        "6x12xf32",
        "[{}, {}]",
    ),
    "reduce": (
        one(
            "stablehlo.reduce(%g init: %z) applies stablehlo.add across dimensions = [0]",
            "[{}, {}], [] -> [{}]",
            f"({SAME}, tensor<f32>) -> tensor<6xf32>",
        ),
        "6xf32",
        "[{}]",
    ),
    "multiply": (
        one("stablehlo.multiply %g, %v", "[{}, {}], [{}, {}] -> [{}, {}]", SAME),
        "6x6xf32",
        "[{}, {}]",
    ),
    "subtract and negate": (
        f"""{DOT} %h = stablehlo.negate %g $([{{}}, {{}}] -> [{{}}, {{}}]) : {SAME}
        %t = stablehlo.subtract %h, %g $([{{}}, {{}}], [{{}}, {{}}] -> [{{}}, {{}}]) : {SAME}""",
        "6x6xf32",
        "[{}, {}]",
    ),
    "select": (
        f"""{DOT} %q = stablehlo.compare EQ, %v, %v $([{{}}, {{}}], [{{}}, {{}}] -> [{{}}, {{}}])
            : ({SAME}, {SAME}) -> tensor<6x6xi1>
        %o = stablehlo.constant $([{{}}, {{}}]) dense<0.0> : {SAME}
        %t = stablehlo.select %q, %g, %o
            $([{{}}, {{}}], [{{}}, {{}}], [{{}}, {{}}] -> [{{}}, {{}}]) : tensor<6x6xi1>, {SAME}""",
        "6x6xf32",
        "[{}, {}]",
    ),
    "barrier": (
        f"""{DOT} %t = "stablehlo.optimization_barrier"(%g) $([{{}}, {{}}])
            : ({SAME}) -> {SAME}""",
        "6x6xf32",
        "[{}, {}]",
    ),
    "dynamic update": (
        f"""{DOT} %row = stablehlo.dynamic_slice %g, %m, %i0, sizes = [1, 6]
            $([{{}}, {{}}], [], [] -> [{{}}, {{}}])
            : ({SAME}, tensor<i32>, tensor<i32>) -> tensor<1x6xf32>
        %o = stablehlo.constant $([{{}}, {{}}]) dense<0.0> : {SAME}
        %t = stablehlo.dynamic_update_slice %o, %row, %i1, %i0
            $([{{}}, {{}}], [{{}}, {{}}], [], [] -> [{{}}, {{}}])
            : ({SAME}, tensor<1x6xf32>, tensor<i32>, tensor<i32>) -> {SAME}""",
        "6x6xf32",
        "[{}, {}]",
    ),
    "sum of columns": (
        """%c = stablehlo.transpose %p, dims = [1, 0] $([{dp}, {}] -> [{}, {dp}])
            : (tensor<8x6xf32>) -> tensor<6x8xf32>
        %t = stablehlo.reduce(%c init: %z) applies stablehlo.add across dimensions = [1]
            $([{}, {dp}], [] -> [{}]) : (tensor<6x8xf32>, tensor<f32>) -> tensor<6xf32>""",
        "6xf32",
        "[{}]",
    ),
    "scatter": (
        """%k = stablehlo.iota dim = 0 $([{dp}, {}] -> [{dp}, {}]) : tensor<8x1xi32>
        %o = stablehlo.constant $([{}, {}]) dense<0.0> : tensor<9x6xf32>
        %t = "stablehlo.scatter"(%o, %k, %p) <{
            scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
                inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
                index_vector_dim = 1>}> ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %ab = stablehlo.add %a, %b : tensor<f32>
            stablehlo.return %ab : tensor<f32>
        }) $([{}, {}], [{dp}, {}], [{dp}, {}] -> [{}, {}])
            : (tensor<9x6xf32>, tensor<8x1xi32>, tensor<8x6xf32>) -> tensor<9x6xf32>""",
        "9x6xf32",
        "[{}, {}]",
    ),
}


def looped(body, shape="6x6xf32", cut="[{}, {}]", element="f32"):
    text = LOOP.replace("BODY", body).replace("SHAPE", shape).replace("CUT", cut)
    if element != "f32":
        text = text.replace("f32", element).replace("dense<0.0>", "dense<0>")
    return planned_module(text, MESH)


def chains(module):
    return chains_of(main_function(module), Mesh.parse(MESH))


def run(module):
    """On one device, without the plan."""
    bare = re.sub(r', mhlo\.sharding = "[^"]*"|mhlo\.sharding = "[^"]*"(, )?', "", str(module))
    values = np.random.default_rng(0).integers(-2, 3, (3, 8, 6)).astype(np.float32)
    weights = np.arange(36, dtype=np.float32).reshape(6, 6)
    compiled = compile_module(parse_bytes(bare.encode(), new_context()), jax.devices()[:1])
    return np.asarray(compiled.run(values, weights)[0])


@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_sum_reduced_once_is_the_same(name):
    module = looped(*FOLLOWERS[name])
    wanted = run(module)
    (chain,) = chains(module)
    assert chain.axes == ("dp",)
    with module.context, mlir.Location.unknown():
        write_chains([chain], Mesh.parse(MESH))
    verify(module)
    assert "across dimensions = [0]" in str(module)
    np.testing.assert_array_equal(run(module), wanted)


ELEMENTWISE = f"$([{{}}, {{}}] -> [{{}}, {{}}]) : {SAME}"
PAIRWISE = f"$([{{}}, {{}}], [{{}}, {{}}] -> [{{}}, {{}}]) : {SAME}"
ONE = "%u = stablehlo.constant $([]) dense<1.0> : tensor<f32>"
NEEDS_THE_SUM = {
    "no linear op": f"{DOT} %t = stablehlo.tanh %g {ELEMENTWISE}",
    "a product of sums": f"{DOT} %t = stablehlo.multiply %g, %g {PAIRWISE}",
    "read by another op": f"""{DOT} %h = stablehlo.tanh %g {ELEMENTWISE}
        %t = stablehlo.multiply %g, %h {PAIRWISE}""",
    "summed in place": DOT.replace("%g", "%t").replace("{dp}", "{}"),
    "of another op": f"{DOT} %t = stablehlo.add %g, %v {PAIRWISE}",
    "by what was added up": f"""{DOT} %h = stablehlo.tanh %sum {ELEMENTWISE}
        %t = stablehlo.multiply %g, %h {PAIRWISE}""",
}


@pytest.mark.parametrize("name", NEEDS_THE_SUM)
def test_a_sum_that_is_needed_in_the_loop_is_reduced_there(name):
    assert chains(looped(NEEDS_THE_SUM[name])) == []


@pytest.mark.parametrize("name", ["pad", "reduce", "sum of columns"])
def test_each_part_would_have_what_is_added_once(name):
    body, *shape = FOLLOWERS[name]
    assert len(chains(looped(f"{ONE} {body}", *shape))) == 1
    assert chains(looped(f"{ONE} {body.replace('%z', '%u')}", *shape)) == []


def test_a_sum_that_begins_with_something_is_reduced_in_the_loop():
    begun = LOOP.replace(
        "%none = stablehlo.constant $(CUT) dense<0.0>",
        "%none = stablehlo.constant $(CUT) dense<1.0>",
    )
    text = begun.replace("BODY", FOLLOWERS["plain"][0]).replace("SHAPE", "6x6xf32")
    assert chains(planned_module(text.replace("CUT", "[{dp}, {}]"), MESH)) == []


def test_a_sum_that_says_when_the_loop_ends_is_reduced_in_it():
    ends = LOOP.replace(
        "%go = stablehlo.compare LT, %m, %trips $([]) : (tensor<i32>, tensor<i32>)",
        """%corner = stablehlo.slice %sum [0:1, 0:1] $([{}, {}] -> [{}, {}])
        : (tensor<6x6xf32>) -> tensor<1x1xf32>
    %value = stablehlo.reshape %corner $([{}, {}] -> []) : (tensor<1x1xf32>) -> tensor<f32>
    %most = stablehlo.constant $([]) dense<100.0> : tensor<f32>
    %go = stablehlo.compare LT, %value, %most $([]) : (tensor<f32>, tensor<f32>)""",
    )
    text = ends.replace("BODY", DOT.replace("%g", "%t")).replace("SHAPE", "6x6xf32")
    assert chains(planned_module(text.replace("CUT", "[{}, {}]"), MESH)) == []


def test_a_sum_that_becomes_narrower_is_reduced_before():
    narrow = f"""{DOT} %t = stablehlo.convert %g $([{{}}, {{}}] -> [{{}}, {{}}])
        : ({SAME}) -> tensor<6x6xbf16>"""
    module = looped(narrow, "6x6xbf16")
    assert chains(module) == []


@pytest.mark.parametrize(("element", "count"), [("f32", 1), ("i32", 0)])
def test_a_sum_of_whole_numbers_is_divided_when_it_is_whole(element, count):
    body = f"{DOT} %t = stablehlo.divide %g, %v {PAIRWISE}"
    assert len(chains(looped(body, element=element))) == count


def test_a_sum_that_is_pinned_stays_as_the_user_says():
    module = looped(DOT.replace("%g", "%t"))
    assert len(chains(module)) == 1
    text = str(module).replace(
        "{autoshard.strategy", '{autoshard.pin = "[{}, {}]", autoshard.strategy'
    )
    assert chains(parse_bytes(text.encode(), new_context())) == []


TWO = """
func.func public @main(%x: tensor<8x4096x1024xf32> $([{}, {dp}, {}]))
    -> (tensor<1024x1024xf32> $([{}, {}]), tensor<1024x1024xf32> $([{dp}, {}])) {
  %first = stablehlo.constant $([]) dense<0> : tensor<i32>
  %a0 = stablehlo.constant $([{}, {}]) dense<0.0> : tensor<1024x1024xf32>
  %b0 = stablehlo.constant $([{dp}, {}]) dense<0.0> : tensor<1024x1024xf32>
  %r:4 = stablehlo.while(%m = %first, %xs = %x, %a = %a0, %b = %b0)
      : tensor<i32>, tensor<8x4096x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>
      attributes $([], [{}, {dp}, {}], [{}, {}], [{dp}, {}])
  cond {
    %trips = stablehlo.constant $([]) dense<8> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips $([]) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %i0 = stablehlo.constant $([]) dense<0> : tensor<i32>
    %i1 = stablehlo.constant $([]) dense<1> : tensor<i32>
    %next = stablehlo.add %m, %i1 $([]) : tensor<i32>
    %slice = stablehlo.dynamic_slice %xs, %m, %i0, %i0, sizes = [1, 4096, 1024]
        $([{}, {dp}, {}], [], [], [] -> [{}, {dp}, {}])
        : (tensor<8x4096x1024xf32>, tensor<i32>, tensor<i32>, tensor<i32>)
        -> tensor<1x4096x1024xf32>
    %p = stablehlo.reshape %slice $([{}, {dp}, {}] -> [{dp}, {}])
        : (tensor<1x4096x1024xf32>) -> tensor<4096x1024xf32>
    %g = stablehlo.dot_general %p, %p, contracting_dims = [0] x [0]
        $([{dp}, {}], [{dp}, {}] -> [{}, {}])
        : (tensor<4096x1024xf32>, tensor<4096x1024xf32>) -> tensor<1024x1024xf32>
    %h = stablehlo.dot_general %p, %p, contracting_dims = [0] x [0]
        $([{dp}, {}], [{dp}, {}] -> [{dp}, {}])
        : (tensor<4096x1024xf32>, tensor<4096x1024xf32>) -> tensor<1024x1024xf32>
    %c = stablehlo.add %a, %g $([{}, {}], [{}, {}] -> [{}, {}]) : tensor<1024x1024xf32>
    %d = stablehlo.add %b, %h $([{dp}, {}], [{dp}, {}] -> [{dp}, {}]) : tensor<1024x1024xf32>
    stablehlo.return %next, %xs, %c, %d
        : tensor<i32>, tensor<8x4096x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>
  }
  return %r#2, %r#3 : tensor<1024x1024xf32>, tensor<1024x1024xf32>
}
"""


@pytest.mark.parametrize(("limit", "count"), [("1GB", 2), ("45MiB", 1)])
def test_sums_that_are_whole_anyway_are_reduced_once_where_memory_is_short(limit, count):
    """The first sum is whole on each device as it is; the second one would have to become so."""
    cluster = whole_products("v5p:2x2x1")
    bytes_ = memory_limit_of(cluster, limit)
    found = reduced_once(planned_module(TWO, "dp=4"), cluster, bytes_)
    assert found is not None
    assert found.summary.peak_bytes_per_device <= bytes_
    once = found.summary.reduced_once
    assert once is not None
    assert (once.count, once.axes) == (count, ("dp",))
    assert once.bytes_once < once.bytes_in_trips
    sent = {(each.kind, each.times) for each in found.summary.collectives}
    assert sent == {("all-reduce", times) for times in ((1,) if count == 2 else (1, 8))}


PART_BYTES = 3 * 1024 * 1024
"""What a device holds more of the second sum of ``TWO``: all of 4 MiB, and not a quarter."""


@pytest.fixture
def written(monkeypatch):
    """How many sums were reduced once in each copy that was written, in order."""
    counts, write = [], reduce_once.write_chains

    def counted(chains, mesh):
        counts.append(len(chains))
        write(chains, mesh)

    monkeypatch.setattr(reduce_once, "write_chains", counted)
    return counts


def test_what_is_known_not_to_fit_is_not_written(written):
    """Parts are held all through the loop, and there the step needs most as it is."""
    module, cluster = planned_module(TWO, "dp=4"), whole_products("v5p:2x2x1")
    before = cost_of_module(module, cluster).summary.peak_bytes_per_device
    assert reduced_once(module, cluster, before + PART_BYTES - 1) is None
    assert written == [1]
    assert reduced_once(module, cluster, before + PART_BYTES) is None
    assert written == [1, 2, 1]


def test_what_was_written_for_one_limit_is_taken_for_the_next(written):
    """Both sums are reduced once within much memory, and known to need too much within less."""
    cluster, few = whole_products("v5p:2x2x1"), 45 << 20
    sums = reduce_once.SumsOnce(planned_module(TWO, "dp=4"), cluster, 0.0, 100)
    more, less = sums.within(1e9), sums.within(few)
    counts = [None if made is None else made.summary.reduced_once.count for made in (more, less)]
    assert counts == [2, 1]
    assert written == [2, 1]
    alone = reduced_once(planned_module(TWO, "dp=4"), cluster, few)
    assert less is not None
    assert alone is not None
    assert less.summary.reduced_once == alone.summary.reduced_once
    assert less.summary.step_seconds == alone.summary.step_seconds


def test_a_step_without_memory_for_it_stays_as_it_is():
    assert reduced_once(planned_module(TWO, "dp=4"), Cluster.of("h100:4"), 1.0) is None


def test_operands_that_compilers_cast_are_cast_as_they_lie_in_parts():
    def step(weights, x):
        def loss(weights):
            made, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
            return (made**2).sum()

        return weights - 0.1 * jax.grad(loss)(weights)

    shapes = ((4, 512, 512), (1024, 512))
    plan = autoshard.plan(
        step,
        *(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes),
        cluster="v5p:2x2x2",
        micro_batches=4,
        batch_argnums=1,
    )
    assert plan.summary is not None
    assert plan.summary.reduced_once is not None
    products = [line for line in plan.to_mlir().splitlines() if "stablehlo.dot_general" in line]
    assert any("batching_dims = [0" in line for line in products), "of parts"
    assert all("autoshard.rounded" in line for line in products)
