"""Optimizer states and tables in the memory of the host: equal results, bytes where they belong."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from equivalence import shardy
from jax.sharding import PartitionSpec

import autoshard
from autoshard.cluster import Cluster
from autoshard.frontend import checks
from autoshard.search import host_arguments
from autoshard.search.automatic import Job
from autoshard.verify.ahead_of_time import compile_in_subprocess

Tree = Any

WIDTH, LAYERS, ROWS = 64, 6, 96
OPTIMIZER = optax.adam(1e-2)

both_partitioners = pytest.mark.parametrize("use_shardy", [True, False], ids=("shardy", "gspmd"))
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install autoshard[tpu]"
)


def loss(parameters: Tree, x: jax.Array) -> jax.Array:
    for w in parameters:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def train_step(parameters: Tree, state: Tree, x: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(parameters, x)
    updates, state = OPTIMIZER.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, value


def marked_step(parameters: Tree, state: Tree, x: jax.Array) -> Any:
    return train_step(parameters, autoshard.in_host_memory(state), x)


def start(width: int = WIDTH) -> tuple[Tree, Tree, jax.Array]:
    keys = jax.random.split(jax.random.key(0), LAYERS)
    parameters = [jax.random.normal(key, (width, width)) * 0.1 for key in keys]
    return parameters, OPTIMIZER.init(parameters), jnp.ones((16, width))


def three_steps(step: Any) -> tuple[Tree, Tree]:
    parameters, state, x = start()
    for _ in range(3):
        parameters, state, _ = step(parameters, state, x)
    return parameters, state


@both_partitioners
def test_states_on_the_host_give_equal_results(use_shardy: bool) -> None:
    with shardy(use_shardy):
        options: Any = {"cluster": "cpu:8", "donate_argnums": (0, 1)}
        expected = three_steps(autoshard.jit(train_step, **options))
        step = autoshard.jit(marked_step, **options)
        parameters, state = three_steps(step)
    # Copies end fusions, so that XLA:CPU rounds otherwise.
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), (parameters, state), expected)
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state) if leaf.ndim}
    assert kinds == {"pinned_host"}
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(parameters)} == {"device"}


def test_marks_do_not_count_without_offload() -> None:
    plan = autoshard.plan(marked_step, *start(), cluster="cpu:8", host_offload="none")
    assert not any(value.is_on_host for value in (*plan.arguments, *plan.results))
    assert plan.summary is not None
    assert plan.summary.host_transfer_bytes == 0


def test_summary_counts_bytes_and_seconds() -> None:
    plan = autoshard.plan(
        marked_step,
        *start(),
        cluster="v5e:2x2",
        mesh="d=4",
        in_shardings=(PartitionSpec("d"), None, None),
    )
    found = plan.summary
    assert found is not None
    state_bytes = 2 * LAYERS * WIDTH * WIDTH * 4 / 4  # two momenta, float32, on 4 devices
    assert found.host_bytes_per_device == state_bytes
    assert found.host_transfer_bytes == 2 * state_bytes  # to the device and back
    assert found.host_transfer_seconds == pytest.approx(2 * state_bytes / 15e9)
    assert "in the memory of the host" in str(plan)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_states_on_the_host_are_spread_from_the_same_size_on(level: int) -> None:
    options: Any = {"cluster": "cpu:8", "mode": "data_parallel", "optimizer_parallel": level}
    plan = autoshard.plan(marked_step, *start(128), **options)  # of 64 KiB, the threshold
    states = [value for value in plan.arguments if value.is_on_host]
    assert [value.local_shape for value in states] == [(16, 128)] * 2 * LAYERS
    whole = autoshard.plan(marked_step, *start(127), **options)
    states = [value for value in whole.arguments if value.is_on_host]
    assert [value.local_shape for value in states] == [(127, 127)] * 2 * LAYERS


def test_offload_is_chosen_when_nothing_else_fits() -> None:
    arguments = start(512)
    plan: Any = partial(
        autoshard.plan, train_step, *arguments, cluster="cpu:8", donate_argnums=(0, 1)
    )
    whole = plan()
    limit = 0.9 * whole.peak_bytes
    found = plan(memory_limit=limit, host_offload="auto")
    kept = [value.name for value in found.arguments if value.is_on_host]
    assert found.peak_bytes <= limit
    assert 0 < len(kept) < 2 * LAYERS
    assert all("mu" in name or "nu" in name for name in kept)
    with pytest.raises(autoshard.DoesNotFitError, match="even with all optimizer states"):
        plan(memory_limit=0.1 * whole.peak_bytes, host_offload="auto")


def test_arguments_go_to_the_host_in_the_plan_that_nearly_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, searched = Job.read_flat, list[int]()

    def told(job: Job, on_host: Sequence[int] = ()) -> Any:
        searched.append(len(on_host))
        return read(job, on_host)

    monkeypatch.setattr(Job, "read_flat", told)
    # No search is faster than what it starts from.
    monkeypatch.setattr(host_arguments, "_searched_again", lambda job, plan, there, found: found)
    parameters, state, x = start(512)
    options: Any = {"cluster": "cpu:8", "donate_argnums": (0, 1)}
    limit = 0.7 * autoshard.plan(train_step, parameters, state, x, **options).peak_bytes
    options |= {"recompute": "auto", "host_offload": "auto", "memory_limit": limit}
    plan = autoshard.plan(train_step, parameters, state, x, **options)
    on_host = sum(value.is_on_host for value in plan.arguments)
    assert plan.peak_bytes <= limit
    assert on_host not in searched
    step = autoshard.jit(train_step, **options)
    result = step(*jax.tree.map(jnp.copy, (parameters, state, x)))
    kinds = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(result[1])]
    assert kinds.count("pinned_host") == on_host > 0
    expected = jax.jit(train_step)(parameters, state, x)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4), result, expected)


def test_what_is_on_the_host_is_not_in_the_least_that_recomputing_needs() -> None:
    options: Any = {"cluster": "cpu:8", "mode": "data_parallel", "recompute": "auto"}
    options["compiler"] = "xla-tpu-0.0.42"  # one whose results lend no storage
    with pytest.raises(autoshard.DoesNotFitError) as refused:
        autoshard.plan(marked_step, *start(512), **options, memory_limit="1MiB")
    least = refused.value.peak_bytes
    plan = autoshard.plan(marked_step, *start(512), **options, memory_limit=least + 1)
    # What nearly fits is decided for less, and may end below what a far smaller limit was told.
    assert 0.9 * least < plan.peak_bytes <= least + 1


def test_offload_is_not_chosen_when_it_fits() -> None:
    plan = autoshard.plan(train_step, *start(), cluster="cpu:8", host_offload="auto")
    assert not any(value.is_on_host for value in plan.arguments)


@autoshard.on_host
def look_up(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table[rows]


@autoshard.on_host
def update(table: jax.Array, gradient: jax.Array) -> jax.Array:
    return table - 2 * gradient


def table_step(table: jax.Array, w: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(table: jax.Array, w: jax.Array) -> jax.Array:
        return ((look_up(table, rows) @ w) ** 2).sum()

    gradients = cast(Any, jax.grad(loss, (0, 1)))(table, w)
    return update(table, gradients[0]), w - gradients[1]


def table_arguments() -> tuple[jax.Array, jax.Array, jax.Array]:
    table = jnp.arange(ROWS * 16, dtype=jnp.float32).reshape(ROWS, 16) % 5 - 2
    return table, jnp.ones((16, 8)), jnp.arange(32) * 7 % ROWS


@both_partitioners
@pytest.mark.parametrize("options", [{}, {"mode": "data_parallel", "batch_argnums": 2}], ids=str)
def test_lookup_on_the_host_trains_equally(use_shardy: bool, options: Any) -> None:
    """With indices that are cut as the batch, too: the host reads them whole."""
    with shardy(use_shardy):
        step = autoshard.jit(table_step, cluster="cpu:8", **options)
        found = step(*table_arguments())
        plan = step.plan(*table_arguments())
    expected = cast(Any, jax.jit(table_step))(*table_arguments())
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert [value.is_on_host for value in plan.arguments] == [True, False, False]


def test_rows_cut_on_the_host_are_refused() -> None:
    with pytest.raises(autoshard.StrategyError, match="gather: no way to split the op"):
        autoshard.plan(
            table_step,
            *table_arguments(),
            cluster="cpu:8",
            mesh="d=8",
            in_shardings=(PartitionSpec("d"), None, None),
        )


def test_mark_within_a_loop_is_refused() -> None:
    def add(_: int, x: jax.Array) -> jax.Array:
        return autoshard.in_host_memory(x) + 1

    def step(x: jax.Array) -> Any:
        return cast(Any, jax.lax).fori_loop(0, 3, add, x)

    with pytest.raises(autoshard.PlanError, match="inside of a loop"):
        autoshard.plan(step, jnp.ones((8, 8)), cluster="cpu:8")


def test_backend_without_host_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = autoshard.plan(marked_step, *start(), cluster="cpu:8")
    monkeypatch.setattr(checks, "PINNED_HOST", "memory of another machine")
    with pytest.raises(autoshard.PlanError, match="cpu devices have no memory"):
        checks.check_host_memory(plan)


def test_unknown_choice_is_an_error() -> None:
    wrong: Any = "always"
    with pytest.raises(autoshard.PlanError, match="host_offload 'always' is not known"):
        autoshard.plan(train_step, *start(), cluster="cpu:8", host_offload=wrong)


def test_plan_file_keeps_what_is_on_the_host(tmp_path: Any) -> None:
    plan = autoshard.plan(marked_step, *start(), cluster="cpu:8")
    plan.save(tmp_path / "plan.json")
    assert autoshard.Plan.load(tmp_path / "plan.json").arguments == plan.arguments


@needs_libtpu
@both_partitioners
def test_tpu_compiler_keeps_states_and_table_on_the_host(use_shardy: bool) -> None:
    cluster = Cluster.of("v5e:2x2")
    form = "autoshard-export-shardy" if use_shardy else "autoshard-export-gspmd"
    plan = autoshard.plan(marked_step, *start(512), cluster=cluster, donate_argnums=(0, 1))
    made = compile_in_subprocess(plan.exported(form), cluster, use_shardy=use_shardy)
    assert plan.summary is not None
    assert made.host_argument_bytes == plan.summary.host_bytes_per_device
    assert made.host_aliased_bytes == made.host_argument_bytes
    table = autoshard.plan(table_step, *table_arguments(), cluster=cluster, donate_argnums=(0, 1))
    made = compile_in_subprocess(table.exported(form), cluster, use_shardy=use_shardy)
    assert 'custom_call_target="HostExecute"' in (made.hlo_text or "")
    assert (made.host_argument_bytes or 0) > (made.argument_bytes or 0)
