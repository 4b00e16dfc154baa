"""Several programs that share arguments: one layout, or one for each with moves between."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.frontend.plan import PlannedValue
from autoshard.sharding import Mesh, Sharding

STEP = {"donate_argnums": 0}


def hidden(params: Any, ids: Any) -> Any:
    h = params["embed"][ids]
    for layer in params["layers"]:
        h = h + jax.nn.gelu(h @ layer["up"]) @ layer["down"]
    return h


def train(params: Any, ids: Any) -> Any:
    def loss(params: Any) -> Any:
        scores = jax.nn.log_softmax(hidden(params, ids[:, :-1]) @ params["embed"].T)
        return -jnp.take_along_axis(scores, ids[:, 1:, None], -1).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def decode(params: Any, ids: Any) -> Any:
    return jnp.argmax(hidden(params, ids) @ params["embed"].T, -1)


def model(width: int, vocabulary: int, layers: int) -> Any:
    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {"up": array(width, 4 * width), "down": array(4 * width, width)}
    return {"embed": array(vocabulary, width), "layers": [layer] * layers}


def ids(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def large(weights: tuple[float, float], **options: Any) -> Any:
    params = model(2048, 32000, 2)
    return autoshard.plan_together(
        [(train, params, ids(64, 513)), (decode, params, ids(64))],
        share="params",
        weights=weights,
        each=[STEP, {}],
        **{"cluster": "v5p:2x2x2", **options},
    )


def test_the_program_that_runs_most_decides_and_weights_say_which() -> None:
    rare, often = large((1, 1)), large((1, 10_000))
    assert rare.way.name == "as train"
    assert often.way.name != "as train"
    assert [plan.name for plan in rare.plans] == ["train", "decode"]
    for found in (rare, often):
        assert found.way == min(found.ways, key=lambda way: way.round_seconds)
        assert len(found.ways) == 3
        together = sum(w * s for w, s in zip(found.weights, found.way.step_seconds, strict=True))
        assert found.way.round_seconds == pytest.approx(together + found.way.move_seconds)
    alone = autoshard.plan(decode, model(2048, 32000, 2), ids(64), cluster="v5p:2x2x2")
    assert often.way.step_seconds[1] == alone.step_seconds
    assert "decode × 10000 a round" in str(often)


def test_latency_is_that_of_the_program_that_runs_most() -> None:
    fast, short = (large((1, 1.5), objective=said) for said in ("latency", "round"))
    alone = autoshard.plan(decode, model(2048, 32000, 2), ids(64), cluster="v5p:2x2x2")
    assert fast.way.step_seconds[1] == alone.step_seconds
    assert fast.way.step_seconds[1] < short.way.step_seconds[1]
    assert fast.way.round_seconds > short.way.round_seconds
    assert fast.way == fast.ways[0]
    assert set(fast.ways) == set(short.ways)


def test_one_layout_is_that_of_all_programs() -> None:
    found = large((1, 1))
    first, second = (plan.arguments[:-1] for plan in found.plans)
    for one, other in zip(first, second, strict=True):
        assert one.sharding.same_placement(other.sharding)
    assert found.moves == (None, None)
    with pytest.raises(autoshard.PlanError, match="lies where it wants it, nothing moves"):
        found.move(1)


def test_no_way_needs_more_than_is_allowed() -> None:
    apart = next(way for way in large((1, 1)).ways if way.name == "each its own")
    limit = int(apart.peak_bytes * 0.99)
    tight = large((1, 1), memory_limit=limit)
    assert all(way.peak_bytes <= limit for way in tight.ways)


@pytest.mark.parametrize("weights", [(1, 1), (1, 1e6)])
def test_the_plans_run_in_turns_as_on_one_device(weights: tuple[float, float]) -> None:
    params = jax.tree.map(
        lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape) / 8, model(64, 128, 2)
    )
    batch = jax.random.randint(jax.random.key(0), (16, 17), 0, 128)
    found = autoshard.plan_together(
        [(train, params, batch), (decode, params, batch[:, 0])],
        share="params",
        weights=weights,
        cluster="cpu:8",
        each=[STEP, {}],
    )
    step = autoshard.jit(train, plan=found.plans[0], **STEP)
    sample = autoshard.jit(decode, plan=found.plans[1])
    after, _ = jax.jit(train)(params, batch)
    new, _ = step(*found.plans[0].place(params, batch))
    moved = new
    if found.moves[1] is not None:
        leaves, tree = jax.tree.flatten(new)
        moved = jax.tree.unflatten(tree, found.move(1)(*leaves))
        for leaf, planned in zip(
            jax.tree.leaves(moved), found.plans[1].named_shardings[0], strict=False
        ):
            assert leaf.sharding.is_equivalent_to(planned, leaf.ndim)
    np.testing.assert_array_equal(
        sample(moved, found.plans[1].place(moved, batch[:, 0])[1]), decode(after, batch[:, 0])
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"share": "weights"}, "train has no argument weights, only params, ids"),
        ({"weights": (1, 0)}, r"weights=\(1, 0\) for 2 programs"),
        ({"objective": "speed"}, "objective='speed'. Give 'round' or 'latency'"),
        ({"mesh": "d=8"}, "mesh is what it decides"),
        ({"each": [STEP]}, "each= has 1 entries for 2 programs"),
        ({"weights": []}, r"weights=\[\] for 2 programs"),
        ({"weights": (1, "often")}, r"weights=\(1, 'often'\) for 2 programs"),
        ({"share": ""}, "train has no argument"),
        ({"share": ("params", "ids", "cache")}, "share='cache' is an argument of no program"),
        ({"each": [{"cluster": "cpu:4"}, {}]}, "all programs run on the same devices"),
        ({"each": [{"pipeline": None}, {}]}, "pipeline= puts arguments on stages"),
        ({"each": [{"static_argnums": 0}, {}]}, "params of train is static"),
    ],
)
def test_what_says_nothing_is_refused(change: dict[str, Any], said: str) -> None:
    params = model(64, 128, 1)
    programs = [(train, params, ids(16, 17)), (decode, params, ids(16))]
    with pytest.raises(autoshard.PlanError, match=said):
        autoshard.plan_together(programs, **{"share": "params", "cluster": "cpu:8", **change})


def test_what_is_shared_has_one_type() -> None:
    programs = [(train, model(64, 128, 1), ids(16, 17)), (decode, model(64, 128, 2), ids(16))]
    with pytest.raises(autoshard.PlanError, match="params of decode has other arrays than"):
        autoshard.plan_together(programs, share="params", cluster="cpu:8")
    with pytest.raises(autoshard.PlanError, match=r"1 program\. Give two or more"):
        autoshard.plan_together(programs[:1], share="params", cluster="cpu:8")


def attend(params: Any, cache: Any, token: Any, by: int) -> Any:
    new = params["w"] @ token
    return (cache * 0.5).at[by].set(new), new


def with_cache(**options: Any) -> Any:
    cache = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
    params = {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)}
    token = jax.ShapeDtypeStruct((1024,), jnp.float32)

    def score(params: Any, x: Any) -> Any:
        return x @ params["w"]

    x = jax.ShapeDtypeStruct((8, 1024), jnp.float32)
    return autoshard.plan_together(
        [(score, params, x), (attend, params, cache, token, 3)],
        share="params",
        cluster="cpu:8",
        each=[options, {"donate_argnums": 1, "static_argnums": 3}],
    )


def test_what_waits_on_the_device_counts_and_static_arguments_do_not() -> None:
    found = with_cache()
    first, second = found.plans
    waits = sum(value.local_bytes for value in second.arguments[1:])
    assert found.way.peak_bytes >= first.peak_bytes + waits
    with pytest.raises(autoshard.DoesNotFitError, match=r"no plan fits|wait there for the other"):
        with_cache(memory_limit=int(first.peak_bytes + waits / 2))


def test_two_parts_may_be_shared_and_two_programs_may_update_one() -> None:
    def fill(params: Any, cache: Any, x: Any) -> Any:
        return cache + x @ params["w"]

    def one(params: Any, cache: Any, token: Any) -> Any:
        return attend(params, cache, token, 3)

    traces: list[str] = []

    def counted(params: Any, cache: Any, token: Any) -> Any:
        traces.append("one")
        return one(params, cache, token)

    params = {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)}
    cache = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
    found = autoshard.plan_together(
        [(fill, params, cache, cache), (counted, params, cache, cache.update(shape=(1024,)))],
        share=("params", "cache"),
        cluster="cpu:8",
        donate_argnums=1,
    )
    assert len(traces) == 1
    for move, names in zip(found.moves, found.moved, strict=True):
        assert (move is None) == (not names)
    if found.way.name != "each its own":
        (_, a, _), (_, b, _) = (plan.arguments for plan in found.plans)
        assert a.sharding.same_placement(b.sharding)


def test_bytes_of_a_part_count_bits_and_uneven_rows() -> None:
    cut = Sharding.named(Mesh.parse("d=8"), ("d",), ())
    assert PlannedValue("x", (9, 3), "int4", cut).local_bytes == 3
    assert PlannedValue("x", (9, 3), "float32", cut).local_bytes == 24
    assert PlannedValue("k", (8, 1), "key<fry>", cut).local_bytes == 8


def rows_up(params: Any, x: Any) -> Any:
    """Updates by the gradient of a batch: fastest if rows of the batch are cut."""
    return params - 0.01 * (x.T @ jnp.tanh(x @ params))


def columns_up(params: Any, x: Any) -> Any:
    """Updates by one long vector: fastest if the matrix is cut."""
    return params + jnp.outer(x, jnp.cos(x @ params))


def two_updaters(**options: Any) -> Any:
    params = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((65536, 256), jnp.float32)
    return autoshard.plan_together(
        [(rows_up, params, x), (columns_up, params, x.update(shape=(256,)))],
        share="params",
        cluster="cpu:8",
        donate_argnums=0,
        **options,
    )


def test_two_programs_that_update_get_it_from_each_other() -> None:
    found = two_updaters(weights=(100, 1000))
    apart = next(way for way in found.ways if way.name == "each its own")
    assert found.way == apart
    there, back = found.moves[1], found.moves[0]
    assert there is not None
    assert back is not None
    assert apart.move_seconds == pytest.approx(there.step_seconds + back.step_seconds)
    random = np.random.default_rng(0)
    params = random.normal(size=(256, 256)).astype(np.float32)
    batch = random.normal(size=(65536, 256)).astype(np.float32) / 256
    row = batch[0].copy()
    first = autoshard.jit(rows_up, plan=found.plans[0], donate_argnums=0)
    second = autoshard.jit(columns_up, plan=found.plans[1], donate_argnums=0)
    held, expected = found.plans[0].place(params, batch)[0], jnp.asarray(params)
    for _ in range(2):
        held = first(held, found.plans[0].place(params, batch)[1])
        (held,) = found.move(1)(held)
        held = second(held, found.plans[1].place(params, row)[1])
        (held,) = found.move(0)(held)
        expected = columns_up(rows_up(expected, batch), row)
    np.testing.assert_allclose(np.asarray(held), np.asarray(expected), rtol=2e-4, atol=2e-4)


def test_a_limit_of_one_program_is_kept_with_what_waits() -> None:
    free = two_updaters()
    small = free.plans[1].peak_bytes // 2
    with pytest.raises(autoshard.DoesNotFitError, match=r"^columns_up: no plan fits") as caught:
        two_updaters(each=[{}, {"memory_limit": int(small)}])
    assert caught.value.peak_bytes > caught.value.memory_limit == small
    # Enough for the program alone, not beside the batch of the other.
    alone = int(free.plans[1].peak_bytes * 1.5)
    with pytest.raises(autoshard.DoesNotFitError, match=r"^columns_up: .* wait"):
        two_updaters(each=[{}, {"memory_limit": alone}])


def test_keys_of_random_numbers_are_shared_as_other_arrays() -> None:
    def noisy(params: Any, x: Any) -> Any:
        return x + jax.random.normal(params["key"], x.shape) @ params["w"]

    def plain(params: Any, x: Any) -> Any:
        return x @ params["w"]

    params = {"key": jax.random.key(0), "w": jnp.ones((64, 64))}
    x = jnp.ones((512, 64))
    found = autoshard.plan_together(
        [(noisy, params, x), (plain, params, x)], share="params", cluster="cpu:8"
    )
    for fn, planned in zip((noisy, plain), found.plans, strict=True):
        run = autoshard.jit(fn, plan=planned)
        np.testing.assert_allclose(
            np.asarray(run(*planned.place(params, x))), np.asarray(fn(params, x)), rtol=1e-5
        )
