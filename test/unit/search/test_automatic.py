"""``autoshard.plan`` without annotations: clusters, modes, pins, budgets, and what a plan tells."""

from __future__ import annotations

import inspect
import json
import re
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.errors import DoesNotFitError, PassOptionError
from autoshard.ir import new_context, parse_bytes
from autoshard.planned.given_plan import cost_of_module
from autoshard.planned.summary import PlanSummary
from autoshard.progress import running
from autoshard.search import inputs
from autoshard.search.automatic import Job

PartitionSpec = jax.sharding.PartitionSpec
layout = autoshard.Layout((2, 4), ("dp", "tp"))


def loss(weights, x, y):
    hidden = jnp.tanh(x @ weights["up"])
    return jnp.mean(jnp.square(hidden @ weights["down"] - y))


def train_step(weights, x, y):
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def forward(weights, x):
    return jnp.tanh(x @ weights["up"]) @ weights["down"]


def type_of(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


WEIGHTS = {"up": type_of(64, 256), "down": type_of(256, 64)}
BATCH = type_of(512, 64)
STEP = (WEIGHTS, BATCH, BATCH)


def shardings(values):
    return {value.name: str(value.sharding) for value in values}


def arrays(*types):
    random = np.random.default_rng(0)
    return jax.tree.map(lambda t: jnp.asarray(random.standard_normal(t.shape), jnp.float32), types)


# --- the default mode ---


def test_cluster_alone_means_automatic():
    plan = autoshard.plan(train_step, *STEP, cluster="v5e:2x4")
    assert (plan.mode, plan.cluster, plan.mesh.size) == ("auto", "v5e:2x4", 8)
    assert {value.sharding.mesh for value in plan.arguments} == {plan.mesh}


def test_nothing_at_all_means_automatic_on_the_devices_here():
    plan = autoshard.plan(train_step, *STEP)
    assert (plan.mode, plan.cluster) == ("auto", "cpu:8")
    assert plan.jax_mesh.devices.size == 8


def test_marks_alone_mean_semi_auto():
    marked = autoshard.shard(jnp.matmul, (layout("dp", "None"), layout("None", "tp")))
    plan = autoshard.plan(lambda x, w: marked(x, w), BATCH, WEIGHTS["up"])
    assert (plan.mode, str(plan.mesh), plan.cluster) == ("semi_auto", "dp=2,tp=4", None)


def test_mesh_alone_means_semi_auto():
    with pytest.raises(autoshard.PlanError, match="nothing to propagate"):
        autoshard.plan(train_step, *STEP, mesh="dp=2,tp=4")


def test_unknown_mode_is_refused_before_anything_is_lowered():
    with pytest.raises(autoshard.PlanError, match=r"mode 'magic' is not known\. Use 'auto'"):
        autoshard.jit(train_step, mode="magic")


# --- meshes ---


def test_given_mesh_keeps_its_names_and_order():
    plan = autoshard.plan(train_step, *STEP, cluster="v5e:2x4", mesh="rows=2,columns=4")
    assert str(plan.mesh) == "rows=2,columns=4"
    assert [axis.name for axis in plan.summary.axes] == ["rows", "columns"]


def test_mesh_of_jax_means_its_devices():
    mesh = jax.make_mesh((4, 2), ("p", "q"))
    plan = autoshard.plan(train_step, *STEP, mesh=mesh, mode="auto")
    assert (str(plan.mesh), plan.cluster) == ("p=4,q=2", "cpu:8")
    assert list(plan.jax_mesh.devices.flat) == list(mesh.devices.flat)


def test_made_mesh_covers_the_cluster_and_says_what_its_axes_are_for():
    plan = autoshard.plan(train_step, *STEP, cluster="h100:2x4")
    assert plan.mesh.size == 8
    assert [axis.name for axis in plan.summary.axes] == list(plan.mesh.axis_names)
    physical = [name for axis in plan.summary.axes for name in axis.physical.split(",")]
    levels = autoshard.Cluster.parse("h100:2x4").level_mesh().axis_names
    assert sorted(physical) == sorted(levels)


def test_an_axis_that_cuts_nothing_is_named_after_the_links_it_is_of():
    weights = {"up": type_of(64, 64), "down": type_of(64, 64)}
    plan = autoshard.plan(train_step, weights, type_of(8, 64), type_of(8, 64), cluster="h100:4x8")
    assert str(plan.mesh) == "node_gpu=32"
    assert plan.summary.axes[0].role == "nothing that matters"


def test_axes_that_cut_a_large_batch_are_named_after_it():
    weights = {"up": type_of(512, 512), "down": type_of(512, 512)}
    batch = type_of(1 << 16, 512)
    plan = autoshard.plan(train_step, weights, batch, batch, cluster="h100:8")
    assert {value.name: value.sharding.tile for value in plan.arguments}["x"] == (8, 1)
    assert all(re.fullmatch(r"(data|fsdp)\d?", name) for name in plan.mesh.axis_names)
    assert all(axis.role.startswith("batch") for axis in plan.summary.axes)


@pytest.mark.parametrize("count", [1, 6, 7, 12])
def test_any_number_of_devices_is_planned_for(count):
    idle = pytest.warns(autoshard.AutoshardWarning, match=r"has [37] equal parts")
    with idle if count > 1 else nullcontext():
        plan = autoshard.plan(train_step, *STEP, cluster=f"cpu:{count}")
    assert plan.mesh.size == count


def test_mesh_and_cluster_of_different_sizes_are_refused():
    with pytest.raises(autoshard.ShardingError, match=r"has 8 devices, the cluster v5e:4x4 has 16"):
        autoshard.plan(train_step, *STEP, cluster="v5e:4x4", mesh="dp=2,tp=4")


def test_mesh_of_more_devices_than_here_needs_a_cluster():
    with pytest.raises(autoshard.PlanError, match=r"16 devices, here are 8 \(cpu\). Give cluster="):
        autoshard.plan(train_step, *STEP, mesh="dp=4,tp=4", mode="auto")


# --- pins ---


def test_pin_with_a_mesh_fixes_the_mesh_and_is_kept():
    mesh = jax.make_mesh((4, 2), ("p", "q"))
    pin = jax.sharding.NamedSharding(mesh, PartitionSpec("q", "p"))
    plan = autoshard.plan(train_step, *STEP, cluster="cpu:8", in_shardings=(None, pin, None))
    assert str(plan.mesh) == "p=4,q=2"
    assert shardings(plan.arguments)["x"] == "[{q}, {p}]"


def test_layout_pin_fixes_the_mesh_and_is_kept():
    plan = autoshard.plan(
        train_step,
        *STEP,
        cluster="v5e:2x4",
        in_shardings=({"up": layout("tp", "dp"), "down": None}, None, None),
    )
    assert shardings(plan.arguments)["weights['up']"] == "[{tp}, {dp}]"


def test_axis_names_without_a_mesh_are_refused():
    with pytest.raises(autoshard.PlanError, match="names axes, but there is no mesh"):
        autoshard.plan(
            train_step, *STEP, cluster="v5e:2x4", in_shardings=(None, PartitionSpec("dp"), None)
        )


def test_marks_are_kept_in_automatic_mode():
    columns = autoshard.shard(jnp.matmul, (layout("dp", "None"), layout("None", "tp")))
    plan = autoshard.plan(
        lambda w, x: jnp.tanh(columns(x, w["up"])) @ w["down"], WEIGHTS, BATCH, cluster="v5e:2x4"
    )
    assert (plan.mode, str(plan.mesh)) == ("auto", "dp=2,tp=4")
    (first, _) = (op for op in plan.ops if op.name == "dot_general")
    assert first.strategy.startswith("[{dp}, {}], [{}, {tp}] -> ")


def test_tuple_marks_are_kept_on_a_mesh_that_the_plan_makes():
    columns = autoshard.shard(jnp.matmul, ((4, 1), (1, 2)))
    plan = autoshard.plan(
        lambda w, x: jnp.tanh(columns(x, w["up"])) @ w["down"], WEIGHTS, BATCH, cluster="v5e:2x4"
    )
    by_name = {value.name: value.sharding for value in plan.arguments}
    assert (by_name["x"].tile, by_name["w['up']"].tile) == ((4, 1), (1, 2))


# --- memory ---


def test_what_does_not_fit_says_by_how_much_and_what_fills_the_memory():
    with pytest.raises(DoesNotFitError) as caught:
        autoshard.plan(train_step, *STEP, cluster="v5e:2x4", memory_limit="8KiB")
    error = caught.value
    assert isinstance(error, autoshard.PlanError)
    assert error.memory_limit == 8192
    assert error.peak_bytes > error.memory_limit
    text = str(error)
    assert "no plan fits: the one that needs least needs" in text
    assert "on each of 8 devices" in text
    assert "more than the 8 KiB allowed" in text
    assert re.search(r"KiB (x|y|dot_general|tanh|weights\['up'\]) \d+x\d+xf32", text)
    assert "use more chips" in text


def deep_step(weights, x):
    """Many activations wait for the gradient of few weights."""

    def loss(weights):
        h = x
        for _ in range(8):
            h = jnp.tanh(h @ weights["w"]) + weights["b"]
        return jnp.sum(h * h)

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def test_what_does_not_fit_says_what_autoshards_own_switches_would_take():
    weights, x = {"w": type_of(64, 64), "b": type_of(64)}, type_of(1 << 14, 64)
    options = {"cluster": "cpu:2", "donate_argnums": 0}
    free = autoshard.plan(deep_step, weights, x, recompute="auto", memory_limit="24MiB", **options)
    with pytest.raises(
        DoesNotFitError,
        match=r"Of autoshard's own: recompute='auto' fits, with [\d.]+ MiB and a step of [\d.]+"
        r" m?s; host_offload='auto' fits, with [\d.]+ MiB and a step of [\d.]+ m?s;"
        r" optimizer_parallel=3 needs [\d.]+ MiB;"
        r" micro_batches=\d+ fits, .*Most of it",
    ):
        autoshard.plan(deep_step, weights, x, memory_limit="24MiB", **options)
    assert free.peak_bytes <= 24 << 20


@pytest.mark.parametrize(
    "switches",
    [
        {"recompute": "auto"},
        {"host_offload": "auto"},
        {"recompute": "auto", "host_offload": "auto"},
    ],
)
def test_no_search_begins_after_one_that_was_interrupted(monkeypatch, switches):
    searches, search = [], Job.searched

    def interrupted(*arguments):
        searches.append(arguments)
        running().is_interrupted = True
        return search(*arguments)

    monkeypatch.setattr(Job, "searched", interrupted)
    weights, x = {"w": type_of(64, 64), "b": type_of(64)}, type_of(1 << 14, 64)
    options = {"cluster": "cpu:2", "memory_limit": "24MiB", **switches}
    plan = autoshard.plan(deep_step, weights, x, **options)  # what that search found is made to fit
    assert plan.peak_bytes <= 24 << 20
    assert len(searches) == 1
    with pytest.raises(KeyboardInterrupt):  # nothing makes it fit
        autoshard.plan(deep_step, weights, x, **{**options, "memory_limit": "1MiB"})
    assert len(searches) == 2


def test_switches_that_were_given_are_not_proposed():
    with pytest.raises(DoesNotFitError) as caught:
        autoshard.plan(
            train_step,
            *STEP,
            cluster="v5e:2x4",
            memory_limit="8KiB",
            recompute="auto",
            host_offload="auto",
        )
    assert "recompute=" not in caught.value.advice
    assert "host_offload=" not in caught.value.advice


def test_peak_stays_within_the_limit():
    free = autoshard.plan(train_step, *STEP, cluster="v5e:2x4")
    limit = 0.95 * free.peak_bytes
    tight = autoshard.plan(train_step, *STEP, cluster="v5e:2x4", memory_limit=limit)
    assert tight.peak_bytes <= limit < free.peak_bytes
    assert tight.summary.memory_limit == limit


def test_default_limit_leaves_a_margin():
    plan = autoshard.plan(train_step, *STEP, cluster="v5e:2x4")
    usable = autoshard.Cluster.parse("v5e:2x4").usable_memory_bytes
    assert plan.summary.memory_limit == pytest.approx(0.92 * usable)


@pytest.mark.parametrize("text", ["much", "14 GXB", "-3", "0"])
def test_memory_limit_must_be_bytes(text):
    with pytest.raises(PassOptionError, match="expected bytes, with a unit if you like"):
        autoshard.plan(train_step, *STEP, cluster="v5e:2x4", memory_limit=text)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("overlap", 1.5),
        ("mem_coeff", -1.0),
        ("mem_coeff", float("inf")),
        ("mem_coeff", "0.1"),
        ("mem_coeff", None),
        ("cost_model", "bytes"),
    ],
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(PassOptionError, match=r"is out of range. Give|: expected"):
        autoshard.plan(train_step, *STEP, cluster="v5e:2x4", **{option: value})


# --- data parallelism ---


def test_data_parallel_splits_the_batch_and_copies_the_rest():
    plan = autoshard.plan(train_step, *STEP, cluster="v5e:2x4", mode="data_parallel")
    assert str(plan.mesh) == "data=8"
    assert shardings(plan.arguments) == {
        "weights['down']": "[{}, {}]",
        "weights['up']": "[{}, {}]",
        "x": "[{data}, {}]",
        "y": "[{data}, {}]",
    }
    assert set(shardings(plan.results).values()) == {"[]", "[{}, {}]"}
    assert {one.kind for one in plan.summary.collectives} == {"all-reduce"}
    assert plan.step_seconds > 0


def test_data_parallel_uses_all_axes_of_a_given_mesh():
    plan = autoshard.plan(train_step, *STEP, mesh="a=2,b=4", mode="data_parallel")
    assert shardings(plan.arguments)["x"] == "[{a, b}, {}]"
    assert plan.summary is None


def test_data_parallel_without_state_must_be_told_the_batch():
    with pytest.raises(autoshard.PlanError, match=r"nothing tells the batch.*batch_argnums=1"):
        autoshard.plan(forward, WEIGHTS, BATCH, cluster="v5e:2x4", mode="data_parallel")
    plan = autoshard.plan(
        forward, WEIGHTS, BATCH, cluster="v5e:2x4", mode="data_parallel", batch_argnums=1
    )
    assert shardings(plan.arguments)["x"] == "[{data}, {}]"
    assert shardings(plan.arguments)["weights['up']"] == "[{}, {}]"


def test_batch_that_cannot_be_split_is_named():
    x = type_of(12, 64)
    with pytest.raises(autoshard.PlanError, match=r"x of shape \(12, 64\) holds the batch, but 8"):
        autoshard.plan(
            forward, WEIGHTS, x, cluster="v5e:2x4", mode="data_parallel", batch_argnums=(1,)
        )
    with pytest.raises(autoshard.PlanError, match=r"dim 0 of no argument but the state can be"):
        autoshard.plan(train_step, WEIGHTS, x, x, cluster="v5e:2x4", mode="data_parallel")


@pytest.mark.parametrize(
    ("argument", "what"),
    [(type_of(), "a scalar"), (jax.eval_shape(jax.random.key, 0), "a PRNG key")],
)
def test_what_has_no_examples_holds_no_batch(argument, what):
    with pytest.raises(autoshard.PlanError, match=f"x holds the batch, but it is {what}"):
        autoshard.plan(lambda x: x, argument, mesh="data=8", mode="data_parallel", batch_argnums=0)


def test_batch_argnums_must_exist_and_go_with_the_mode():
    with pytest.raises(autoshard.PlanError, match=r"batch_argnums=5, but there are 2 positional"):
        autoshard.plan(
            forward, WEIGHTS, BATCH, cluster="v5e:2x4", mode="data_parallel", batch_argnums=5
        )
    with pytest.raises(autoshard.PlanError, match="says what modes 'auto' and"):
        autoshard.plan(forward, WEIGHTS, BATCH, mesh="d=8", mode="semi_auto", batch_argnums=1)


def test_tokens_are_cut_where_a_step_reads_them_whole_as_fast():
    def step(weights, tokens):
        def loss(weights):
            hidden = jax.nn.gelu(weights["e"][tokens[:, :-1]] @ weights["up"])
            scores = jax.nn.log_softmax(hidden @ weights["out"])
            return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    weights = {"e": type_of(32000, 2048), "up": type_of(2048, 8192), "out": type_of(8192, 32000)}
    tokens = type_of(256, 1025, dtype=jnp.int32)
    plan = autoshard.plan(step, weights, tokens, cluster="v5p:2x2x2", donate_argnums=0)
    assert plan.arguments[-1].sharding.tile[0] == plan.batch.data_parallel == 8
    assert ",".join(axis.physical for axis in plan.summary.axes) == "x,y,z"
    pins = {"in_shardings": (None, jax.P()), "mesh": "d=8", "mode": "auto"}
    pinned = autoshard.plan(step, weights, tokens, cluster="v5p:2x2x2", **pins)
    assert pinned.arguments[-1].sharding.tile == (1, 1)  # a pin comes first


def mlp_step(weights, x, y):
    def loss(weights):
        return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - g, weights, gradient), value


def test_a_batch_that_is_named_is_cut_alike_with_its_link_to_the_host_counted(monkeypatch):
    # The search does so by itself.
    monkeypatch.setattr(inputs, "_pays", lambda *plans: False)
    weights = [type_of(512, 512), type_of(512, 8)]
    batch = type_of(8192, 512), type_of(8192, 8)
    options = {"cluster": "v5p:2x2x2", "donate_argnums": 0}
    free = autoshard.plan(mlp_step, weights, *batch, **options)
    cuts = [value.sharding.num_shards(0) for value in free.arguments[2:]]
    assert free.batch.data_parallel == min(cuts) < max(cuts)
    plan = autoshard.plan(mlp_step, weights, *batch, batch_argnums=(1, 2), **options)
    named = [value.sharding.num_shards(0) for value in plan.arguments[2:]]
    assert named == [8, 8]
    assert plan.batch.data_parallel == 8
    assert free.step_seconds < plan.step_seconds  # dearer but for the link


def test_a_batch_is_named_where_nothing_is_replaced():
    weights = {"up": type_of(512, 512), "down": type_of(512, 8)}
    batch = type_of(8192, 512), type_of(8192, 8)
    plan = autoshard.plan(loss, weights, *batch, cluster="v5p:2x2x2", batch_argnums=(1, 2))
    named = [value.sharding.num_shards(0) for value in plan.arguments[2:]]
    assert len(set(named)) == 1
    assert named[0] == plan.batch.data_parallel > 1


def test_a_batch_that_is_dear_to_cut_alike_stays_as_it_is_with_a_warning():
    def products(w, x, y):
        return w + x.T @ x * y[0, 0]  # x in parts: sums of a large product

    types = type_of(512, 512), type_of(8, 512), type_of(8, 16)
    options = {"cluster": "v5e:2x4"}
    with pytest.warns(
        autoshard.AutoshardWarning, match=r"products: the arrays .* unlike \(x into 1"
    ):
        plan = autoshard.plan(products, *types, batch_argnums=(1, 2), **options)
    assert plan.batch.data_parallel == 1
    pins = {"in_shardings": (None, jax.P(), None), "mesh": "d=8"}
    pinned = autoshard.plan(products, *types, batch_argnums=1, **options, **pins)
    assert str(pinned.arguments[1].sharding) == "[{}, {}]"  # a pin comes first


def test_keys_are_no_batch():
    def step(weights, x, key):
        noise = jax.random.normal(key, x.shape)
        return jax.tree.map(lambda w: w + jnp.sum(x * noise), weights)

    key = jax.eval_shape(lambda: jax.random.key(0))
    plan = autoshard.plan(step, WEIGHTS, BATCH, key, cluster="cpu:8", mode="data_parallel")
    assert shardings(plan.arguments)["key"] == "[]"
    raw = type_of(2, dtype=jnp.uint32)
    plan = autoshard.plan(
        lambda w, x, k: step(w, x, jax.random.wrap_key_data(k)),
        WEIGHTS,
        BATCH,
        raw,
        cluster="cpu:2",
        mode="data_parallel",
    )
    assert shardings(plan.arguments)["k"] == "[{}]"


# --- what a plan tells ---


def test_numbers_of_a_plan_add_up():
    plan = autoshard.plan(train_step, *STEP, cluster="v5e:2x4", mesh="dp=2,tp=4")
    summary = plan.summary
    assert plan.step_seconds == pytest.approx(plan.compute_seconds + plan.communication_seconds)
    assert sum(one.seconds for one in summary.collectives) == pytest.approx(
        plan.communication_seconds
    )
    assert 0 < sum(value.bytes for value in summary.peak_values) <= plan.peak_bytes * 1.0001
    assert 0 < plan.lower_bound_seconds <= plan.step_seconds * 1.0001
    assert plan.gap == pytest.approx(
        max(0, plan.step_seconds / plan.lower_bound_seconds - 1), abs=1e-9
    )
    assert {"strategies", "rules", "import", "write"} <= set(plan.planning_seconds)


def test_overlap_hides_communication():
    exposed = autoshard.plan(train_step, *STEP, cluster="h100:2x4", mode="data_parallel")
    hidden = autoshard.plan(
        train_step, *STEP, cluster="h100:2x4", mode="data_parallel", overlap=0.5
    )
    assert hidden.communication_seconds == exposed.communication_seconds > 0
    saved = min(0.5 * exposed.communication_seconds, exposed.compute_seconds)
    assert hidden.step_seconds == pytest.approx(exposed.step_seconds - saved)


def test_collectives_have_the_users_line():
    plan = autoshard.plan(train_step, *STEP, cluster="h100:2x4", mode="data_parallel")
    lines, first = inspect.getsourcelines(loss)
    places = {f"{__file__}:{first + number}" for number in range(len(lines))}
    assert {one.location for one in plan.summary.collectives} <= places


def test_plan_without_a_cluster_knows_no_seconds():
    plan = autoshard.plan(train_step, *STEP, mesh="data=8", mode="data_parallel")
    with pytest.raises(autoshard.PlanError, match=r"planned it without a cluster.*cluster="):
        _ = plan.step_seconds


def test_semi_auto_with_a_cluster_knows_seconds():
    plan = autoshard.plan(
        forward,
        WEIGHTS,
        BATCH,
        mesh="dp=2,tp=4",
        cluster="v5e:2x4",
        mode="semi_auto",
        in_shardings=(None, PartitionSpec("dp")),
    )
    assert plan.summary.cost_model == "bytes"
    assert plan.step_seconds > 0
    assert plan.gap is None


def test_table_shows_time_memory_bound_and_lines():
    plan = autoshard.plan(train_step, *STEP, cluster="h100:2x4", mode="data_parallel")
    text = str(plan)
    for part in (
        "data_parallel plan on mesh data=8 (8 devices of h100:2x4)",
        "one step: ",
        "memory at the peak: ",
        "axis data=8 cuts batch",
        "test_automatic.py:",
        "all-reduce",
        "in memory",
    ):
        assert part in text
    assert "lower bound" in str(autoshard.plan(train_step, *STEP, cluster="h100:8"))


def test_saved_plan_keeps_its_numbers(tmp_path):
    plan = autoshard.plan(train_step, *STEP, cluster="v5e:2x4")
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded.summary == plan.summary
    assert (loaded.cluster, loaded.step_seconds) == (plan.cluster, plan.step_seconds)


def test_module_of_a_plan_holds_the_same_numbers():
    plan = autoshard.plan(train_step, *STEP, cluster="v5e:2x4")
    (text,) = re.findall(r'autoshard.plan = "((?:[^"\\]|\\.)*)"', plan.to_mlir())
    read = json.loads(text.replace(r"\22", '"'))
    assert read["step_seconds"] == plan.step_seconds
    assert read["gap"] == plan.gap
    assert PlanSummary.from_json(json.dumps(read)) == plan.summary


def test_plan_on_a_module_costs_what_the_search_said():
    plan = autoshard.plan(train_step, *STEP, cluster="v5e:2x4", mesh="dp=2,tp=4")
    module = parse_bytes(plan.bytecode, new_context())
    again = cost_of_module(module, plan.summary.read_cluster()).plan
    assert again.compute_seconds == pytest.approx(plan.compute_seconds)
    assert again.communication_seconds == pytest.approx(plan.communication_seconds)
    assert again.peak_bytes == pytest.approx(plan.peak_bytes)


def test_symbolic_cost_is_an_option():
    plan = autoshard.plan(
        train_step, *STEP, cluster="v5e:2x4", mesh="dp=2,tp=4", cost_model="symbolic"
    )
    assert plan.summary.cost_model == "symbolic"
    assert len(plan.symbolic_costs.ops) == 5
    assert plan.symbolic_costs.mem_coeff == 0.1
    assert plan.step_seconds > 0
    assert autoshard.plan(train_step, *STEP, cluster="v5e:2x4").symbolic_costs is None


# --- running ---


def test_automatic_plan_runs_where_its_devices_are():
    step = arrays(*STEP)
    expected = jax.jit(train_step)(*step)
    found = autoshard.jit(train_step, cluster="cpu:8")(*step)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), found, expected
    )


def test_plan_for_other_machines_does_not_run_here():
    jitted = autoshard.jit(train_step, cluster="v5e:2x4")
    assert jitted.plan(*STEP).mesh.size == 8
    with pytest.raises(autoshard.ShardingError, match=r'plan is for v5e:2x4, .*cluster="cpu:8"'):
        jitted(*arrays(*STEP))


def test_cluster_of_a_file(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(autoshard.Cluster.parse("v5e:2x4").to_toml())
    plan = autoshard.plan(train_step, *STEP, cluster=path)
    assert plan.mesh.size == 8
