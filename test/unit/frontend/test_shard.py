"""``autoshard.shard``: what it leaves in a module, what it leaves alone, what it refuses."""

from __future__ import annotations

import inspect
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.ir.lowering import lower_marks

layout = autoshard.Layout((2, 2, 2), ("dp", "sp", "mp"))
MESH = "mesh[dp=2,sp=2,mp=2]"

X = jnp.arange(8.0 * 16).reshape(8, 16)
W = jnp.arange(16.0 * 4).reshape(16, 4)

matmul = autoshard.shard(
    jnp.matmul, in_strategy=(layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None"))
)


def lower_as_autoshard(fn, *args, debug_info=False):
    with lower_marks():
        return jax.jit(lambda *a: fn(*a)).lower(*args).as_text(debug_info=debug_info)


def marks(fn, *args):
    """``role index layout`` of every mark, in the order of the text."""
    found = []
    for line in lower_as_autoshard(fn, *args).splitlines():
        if "@autoshard.mark" in line:
            role, text = (
                re.search(rf'autoshard\.{k} = "(.*?)"', line)[1] for k in ("role", "layout")
            )
            index = re.search(r"autoshard\.index = (\d+)", line)[1]
            found.append(f"{role} {index} {text}")
    return found


def groups(fn, *args):
    text = lower_as_autoshard(fn, *args)
    return [int(n) for n in re.findall(r"autoshard\.group = (\d+)", text)]


# --- what it leaves in a module ---


def test_each_operand_gets_its_layout_with_the_mesh():
    assert marks(matmul, X, W) == [
        f"in 0 {MESH} [{{mp}}, {{sp, dp}}]",
        f"in 1 {MESH} [{{sp, dp}}, {{}}]",
    ]


def test_tuple_strategies_are_numbers_of_cuts():
    fn = autoshard.shard(jnp.matmul, ((4, 1), (1, 2)))
    assert marks(fn, X, W) == ["in 0 (4, 1)", "in 1 (1, 2)"]


def test_one_result_may_be_written_alone_or_in_a_tuple():
    said = layout("dp", "None")
    alone = autoshard.shard(jnp.matmul, out_strategy=said)
    in_tuple = autoshard.shard(jnp.matmul, out_strategy=(said,))
    assert marks(alone, X, W) == marks(in_tuple, X, W) == [f"out 0 {MESH} [{{dp}}, {{}}]"]


def test_cuts_may_be_numbers_of_numpy():
    four, two, one = np.array([4, 2, 1])
    cuts = autoshard.shard(jnp.matmul, ((four, one), (one, two)), (four, two))
    assert marks(cuts, X, W) == marks(autoshard.shard(jnp.matmul, ((4, 1), (1, 2)), (4, 2)), X, W)


def test_one_result_in_cuts():
    fn = autoshard.shard(jnp.matmul, ((2, 1), (1, 4)), ((2, 4),))
    assert marks(fn, X, W)[-1] == "out 0 (2, 4)"
    assert marks(autoshard.shard(jnp.matmul, None, (2, 4)), X, W) == ["out 0 (2, 4)"]


def test_none_says_nothing_and_is_counted():
    fn = autoshard.shard(jnp.matmul, (None, layout("None", "mp")))
    assert marks(fn, X, W) == [f"in 1 {MESH} [{{}}, {{mp}}]"]


def test_all_marks_of_one_call_share_a_group_and_calls_differ():
    fn = autoshard.shard(jnp.matmul, ((4, 1), (1, 2)), (4, 2))
    first, second = groups(fn, X, W), groups(lambda x, w: fn(x, w) + fn(x, w), X, W)
    assert len(set(first)) == 1
    assert len(first) == 3
    assert len(set(second)) == 2
    assert len(second) == 6


def test_location_is_the_line_of_the_call():
    def net(x, w):
        return jnp.tanh(matmul(x, w))

    line = inspect.getsourcelines(net)[1] + 1
    with lower_marks():
        module = jax.jit(lambda *a: net(*a)).lower(X, W).compiler_ir("stablehlo")
    (main,) = [op for op in module.body if op.attributes["sym_name"].value == "main"]
    locations = [
        str(op.location) for op in main.body.blocks[0] if op.name == "stablehlo.custom_call"
    ]
    assert len(locations) == 2
    assert all(f'test_shard.py":{line}:' in location for location in locations)
    assert not any("autoshard/frontend" in location for location in locations)


def test_pytree_argument_takes_one_strategy_or_a_prefix():
    def linear(p, x):
        return x @ p["w"] + p["b"]

    parameters = {"w": W, "b": jnp.ones(4)}
    each = autoshard.shard(linear, ({"w": (1, 2), "b": (2,)}, None))
    assert marks(each, parameters, X) == ["in 0 (2)", "in 1 (1, 2)"]
    one = autoshard.shard(lambda p: p["a"] @ p["b"], ((2, 2),))
    assert marks(one, {"a": X, "b": W}) == ["in 0 (2, 2)", "in 1 (2, 2)"]


def test_pytree_result_takes_one_strategy_or_a_prefix():
    def two(x):
        return {"up": x + 1, "sum": x.sum()}

    fn = autoshard.shard(two, None, {"up": (2, 1), "sum": None})
    assert marks(fn, X) == ["out 1 (2, 1)"]


def test_arguments_by_name_count_in_the_order_of_the_signature():
    def linear(x, w, b):
        return x @ w + b

    fn = autoshard.shard(linear, ((2, 1), (1, 4), (4,)))
    by_name = marks(lambda x, w, b: fn(b=b, w=w, x=x), X, W, jnp.ones(4))
    assert by_name == marks(fn, X, W, jnp.ones(4)) == ["in 0 (2, 1)", "in 1 (1, 4)", "in 2 (4)"]


def test_arguments_that_are_no_arrays_need_no_entry():
    dims = (((1,), (0,)), ((), ()))
    fn = autoshard.shard(jax.lax.dot_general, ((2, 1), (1, 4)))
    assert marks(lambda x, w: fn(x, w, dims), X, W) == ["in 0 (2, 1)", "in 1 (1, 4)"]
    assert marks(lambda x, w: fn(x, w, dimension_numbers=dims), X, W) == marks(
        lambda x, w: fn(x, w, dims), X, W
    )


def test_empty_tuple_is_for_scalars():
    fn = autoshard.shard(jnp.multiply, ((2, 1), ()))
    assert marks(lambda x: fn(x, 2.0), X) == ["in 0 (2, 1)"]
    assert marks(fn, X, jnp.float32(2)) == ["in 0 (2, 1)", "in 1 ()"]


def test_typed_prng_key_keeps_its_hidden_dims_whole():
    fn = autoshard.shard(jax.random.split, ((),))
    assert marks(fn, jax.random.key(0)) == ["in 0 (1)"]
    fn = autoshard.shard(lambda keys: jax.random.bits(keys[0]), (layout("dp"),))
    assert marks(fn, jax.random.split(jax.random.key(0), 4)) == [f"in 0 {MESH} [{{dp}}, {{}}]"]


# --- transformations ---


def test_vmap_leaves_its_dim_open_where_it_puts_it():
    batched = jnp.ones((3, 8, 16))
    expected = f"in 0 {MESH} [{{?}}, {{mp}}, {{sp, dp}}]"
    assert marks(jax.vmap(matmul, (0, None)), batched, W)[0] == expected
    moved = jnp.moveaxis(batched, 0, 2)
    expected = f"in 0 {MESH} [{{mp}}, {{sp, dp}}, {{?}}]"
    assert marks(jax.vmap(matmul, (2, None)), moved, W)[0] == expected
    cuts = autoshard.shard(jnp.matmul, ((4, 1), (1, 2)))
    assert marks(jax.vmap(jax.vmap(cuts, (0, None)), (0, None)), batched[None], W)[0] == (
        "in 0 (?, ?, 4, 1)"
    )


def test_vmap_leaves_an_operand_without_the_batch_as_it_is():
    assert marks(jax.vmap(matmul, (0, None)), jnp.ones((3, 8, 16)), W)[1] == (
        f"in 1 {MESH} [{{sp, dp}}, {{}}]"
    )


def test_gradients_are_not_marked():
    def loss(x, w):
        return jnp.tanh(matmul(x, w)).sum()

    assert marks(jax.grad(loss, (0, 1)), X, W) == marks(matmul, X, W)


def test_mark_of_a_linear_operand_transposes_to_nothing():
    fn = jax.linear_transpose(lambda x: matmul(x, W), X)
    (cotangent,) = fn(jnp.ones((8, 4)))
    np.testing.assert_array_equal(cotangent, jnp.ones((8, 4)) @ W.T)


def test_custom_vjp_function_keeps_its_rule():
    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (7 * g,))
    fn = autoshard.shard(double, ((2, 1),), (2, 1))
    assert float(jax.grad(lambda x: fn(x).sum())(X)[0, 0]) == 7
    assert "in 0 (2, 1)" in marks(jax.value_and_grad(lambda x: fn(x).sum()), X)


def test_marks_inside_a_custom_vjp_rule_survive():
    @jax.custom_vjp
    def project(x, w):
        return x @ w

    project.defvjp(
        lambda x, w: (matmul(x, w), (x, w)), lambda saved, g: (g @ saved[1].T, saved[0].T @ g)
    )
    assert len(marks(jax.value_and_grad(lambda x: project(x, W).sum()), X)) == 2


@pytest.mark.parametrize("transform", ["scan", "remat", "cond", "while", "jit"])
def test_marks_survive(transform):
    square = jnp.ones((16, 16))
    step = autoshard.shard(jnp.matmul, ((2, 1), (1, 4)))

    def through(x, w):
        if transform == "scan":
            return jax.lax.scan(lambda c, _: (step(c, w), None), x, None, length=3)[0]
        if transform == "remat":
            return jax.checkpoint(step)(x, w)
        if transform == "cond":
            return jax.lax.cond(x[0, 0] >= 0, step, lambda x, w: x, x, w)
        if transform == "while":
            return jax.lax.fori_loop(0, 3, lambda _, c: step(c, w), x)
        return jax.jit(step)(x, w)

    assert set(marks(through, X, square)) == {"in 0 (2, 1)", "in 1 (1, 4)"}
    if transform != "while":
        grad = jax.value_and_grad(lambda x, w: through(x, w).sum())
        assert set(marks(grad, X, square)) >= {"in 0 (2, 1)", "in 1 (1, 4)"}
    np.testing.assert_array_equal(jax.jit(through)(X, square), plain_result(transform, X, square))


def plain_result(transform, x, w):
    return x @ w @ w @ w if transform in ("scan", "while") else x @ w


def test_it_means_nothing_numerically():
    def net(product):
        def loss(w, x):
            return jnp.tanh(product(x, w)).sum()

        return jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0)))

    marked, plain = net(matmul), net(jnp.matmul)
    batch = jax.random.normal(jax.random.key(0), (3, 8, 16))
    for ours, theirs in zip(
        jax.tree.leaves(marked(W, batch)), jax.tree.leaves(plain(W, batch)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_eager_call_returns_what_the_function_returns():
    np.testing.assert_array_equal(matmul(X, W), jnp.matmul(X, W))
    assert autoshard.shard(lambda x: x, ((1, 1),))(X) is X


def test_strong_and_weak_types_stay():
    fn = autoshard.shard(lambda x: x, ((),))
    weak = jax.jit(lambda: fn(jnp.asarray(2.0) * 1))()
    assert weak.weak_type == jax.jit(lambda: jnp.asarray(2.0) * 1)().weak_type


# --- caches ---


def test_ordinary_jit_lowers_to_nothing():
    marked = jax.jit(lambda x, w: matmul(x, w)).lower(X, W).as_text()
    plain = jax.jit(lambda x, w: jnp.matmul(x, w)).lower(X, W).as_text()
    assert marked == plain


@pytest.mark.parametrize("ours_first", [True, False])
def test_caches_of_jax_never_mix_the_two_lowerings(ours_first):
    inner = jax.jit(lambda x, w: matmul(x, w))
    outer = jax.jit(lambda x, w: inner(x, w) + 1)

    def ours():
        with lower_marks():
            assert "autoshard.mark" in outer.lower(X, W).as_text()
            assert "autoshard.mark" in inner.lower(X, W).as_text()

    def theirs():
        assert "autoshard.mark" not in outer.lower(X, W).as_text()
        assert "autoshard.mark" not in inner.lower(X, W).as_text()
        np.testing.assert_array_equal(outer(X, W), X @ W + 1)

    for check in (ours, theirs, ours, theirs) if ours_first else (theirs, ours, theirs, ours):
        check()


def test_another_thread_is_not_affected():
    texts = []
    fn = jax.jit(lambda x, w: matmul(x, w))
    with lower_marks():
        thread = threading.Thread(target=lambda: texts.append(fn.lower(X, W).as_text()))
        thread.start()
        thread.join()
    assert "autoshard.mark" not in texts[0]


# --- what it refuses ---


def refused(match, kind=autoshard.StrategyError):
    return pytest.raises(kind, match=rf"test_shard\.py:\d+: .*{match}")


def test_error_begins_with_the_line_of_the_call():
    with pytest.raises(autoshard.StrategyError) as caught:
        matmul(X)  # the line
    frame = inspect.currentframe()
    assert caught.value.location == f"{__file__}:{frame.f_lineno - 2}"


def test_wrong_number_of_strategies():
    fn = autoshard.shard(jnp.matmul, ((4, 1),))
    with refused(r"matmul: in_strategy has 1 entry, but argument 1 is an array too"):
        fn(X, W)
    fn = autoshard.shard(jnp.matmul, ((4, 1), (1, 1), (1, 1)))
    with refused(r"matmul: in_strategy has 3 entries, but the call has only 2 arguments"):
        fn(X, W)


def test_wrong_rank():
    with refused(r"matmul operand 0: strategy \(4, 1, 1\) has 3 numbers.* \(8, 16\) has 2 dims"):
        autoshard.shard(jnp.matmul, ((4, 1, 1), (1, 2)))(X, W)
    with refused("matmul operand 0: .* has 2 dims", autoshard.ShardingError):
        matmul(jnp.ones(16), W)


def test_indivisible():
    with refused(r"matmul operand 1: dim 1 \(size 4\) cannot be cut into 3 pieces.* 4 % 3 = 1"):
        autoshard.shard(jnp.matmul, ((4, 1), (1, 3)))(X, W)
    with refused(r'matmul operand 0: dim 1 \(size 15\) .* "sp", "dp"', autoshard.ShardingError):
        matmul(jnp.ones((8, 15)), jnp.ones((15, 4)))


def test_wrong_result():
    with refused(r"matmul result: dim 0 \(size 8\) cannot be cut into 3 pieces"):
        autoshard.shard(jnp.matmul, None, (3, 1))(X, W)
    with refused(r"matmul result: the strategy .* has not the structure of the value"):
        autoshard.shard(jnp.matmul, None, ((2, 1), (2, 1)))(X, W)


def test_tuples_and_layouts_do_not_mix():
    with refused(r"in_strategy\[0\] is \(4, 1\) and in_strategy\[1\] .* cannot be mixed"):
        autoshard.shard(jnp.matmul, ((4, 1), layout("dp", "None")))
    with refused(r"in_strategy\[0\] is \(4, 1\) and out_strategy is .* cannot be mixed"):
        autoshard.shard(jnp.matmul, ((4, 1), None), layout("dp", "None"))


def test_layouts_of_one_call_share_the_device_matrix():
    other = autoshard.Layout((8,), ("tp",))
    with refused(r"on mesh dp=2,sp=2,mp=2 and in_strategy\[1\] on mesh tp=8"):
        autoshard.shard(jnp.matmul, (layout("dp", "None"), other("None", "tp")))


def test_numbers_of_cuts_begin_at_one():
    with refused(r"in_strategy\[0\]: strategy \(4, 0\): dim 1 is cut into 0 pieces"):
        autoshard.shard(jnp.matmul, ((4, 0), None))


def test_things_that_are_no_strategy():
    with refused(r"in_strategy\[0\] is 'dp', which is no strategy"):
        autoshard.shard(jnp.matmul, ("dp", None))
    with refused(r"in_strategy is a tuple with one entry per argument.* write \(\(4, 1\),\)"):
        autoshard.shard(jnp.tanh, (4, 1))
    with refused("takes a function or a module, not int"):
        autoshard.shard(3)


def test_strategy_for_what_is_no_array():
    fn = autoshard.shard(jnp.multiply, ((2, 1), (2,)))
    with refused(r"multiply operand 1 is 2.0, not an array"):
        fn(X, 2.0)


def test_shard_inside_shard_map():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    fn = autoshard.shard(jnp.tanh, ((1, 1),))
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_allclose(jax.jit(mapped)(X), np.tanh(X), rtol=1e-6)
    with pytest.raises(autoshard.StrategyError, match="inside shard_map"):
        lower_as_autoshard(mapped, X)
