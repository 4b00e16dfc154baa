"""Pipelines on 8 virtual devices against the step that is not split: bit-equal on whole numbers."""

import json
import pickle
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import autoshard

BATCH, WIDTH, LAYERS = 1024, 8, 4


def whole_numbers(shape, seed):
    """Small ones as floats: their sums are exact in any order."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def step(params, batch, rate):
    """The gradient of a network without rounding; the first weights are also the last ones."""

    def loss(params):
        hidden = batch["x"] @ params["ends"]
        for weights in params["layers"]:
            hidden = hidden + jax.numpy.maximum(hidden @ weights, 0)
        return (hidden @ params["ends"].T * batch["y"]).sum()

    value, gradients = jax.value_and_grad(loss)(params)
    norm = sum(gradient.sum() for gradient in jax.tree.leaves(gradients))
    changed = jax.tree.map(lambda p, g: jax.numpy.sign(p - rate * (g + norm)), params, gradients)
    return changed, {"loss": value, "norm": norm}


def arguments():
    layers = [whole_numbers((WIDTH, WIDTH), seed) for seed in range(LAYERS)]
    params = {"ends": whole_numbers((WIDTH, WIDTH), 9), "layers": layers}
    return params, {"x": whole_numbers((BATCH, WIDTH), 7), "y": whole_numbers((BATCH, WIDTH), 8)}


def pipelined(stages, micro_batches, schedule, fn=step, **options):
    pipeline = autoshard.Pipeline(stages, micro_batches, schedule)
    return autoshard.jit(fn, cluster="cpu:8", pipeline=pipeline, batch_argnums=1, **options)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "schedule"),
    [(2, 4, "1f1b"), (2, 8, "zero_bubble"), (4, 4, "gpipe"), (4, 8, "1f1b")],
)
def test_a_step_in_stages_is_bit_equal_and_its_state_is_fed_back(stages, micro_batches, schedule):
    run = pipelined(stages, micro_batches, schedule, donate_argnums=0)
    params, batch = arguments()
    expected = params
    for _ in range(2):
        before = jax.tree.leaves(params)
        params, told = run(params, batch, 1.0)
        expected, wanted = jax.jit(step)(expected, batch, 1.0)
        for found, right in zip(
            jax.tree.leaves((params, told)), jax.tree.leaves((expected, wanted)), strict=True
        ):
            np.testing.assert_array_equal(np.asarray(found), np.asarray(right))
    assert all(leaf.is_deleted() for leaf in before), "the first result was donated to the second"
    plan = run.plan(params, batch, 1.0)
    assert plan.pipeline.schedule == schedule
    assert [leaf.sharding for leaf in jax.tree.leaves(params)] == list(
        jax.tree.leaves(plan.in_shardings[0])
    ), "the state lies where the next step reads it"
    used = {device for leaf in jax.tree.leaves(params) for device in leaf.sharding.device_set}
    assert len(used) > 8 // stages


SLOW_NETWORK = str(Path(__file__).parent / "slow_network.toml")
"""On which reductions are worth memory."""


def test_stages_reduce_gradients_once_and_are_bit_equal():
    cut = jax.sharding.PartitionSpec("data")
    params, batch = jax.tree.map(
        lambda a: np.tile(a, (64, 1)) if len(a) == BATCH else a, arguments()
    )
    run = autoshard.jit(
        step,
        cluster=SLOW_NETWORK,
        mesh="data=4",
        pipeline=autoshard.Pipeline(2, 4, "zero_bubble"),
        in_shardings=(None, {"x": cut, "y": cut}, None),
    )
    once = run.plan(params, batch, 1.0).summary.reduced_once
    assert once is not None
    assert (once.count, once.axes) == (8, ("data",))
    assert once.bytes_once < once.bytes_in_trips
    for found, right in zip(
        jax.tree.leaves(run(params, batch, 1.0)),
        jax.tree.leaves(jax.jit(step)(params, batch, 1.0)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(right))


def test_what_is_not_donated_is_kept_and_results_can_be_donated():
    run = pipelined(2, 4, "auto")
    params, batch = arguments()
    placed, batch, rate = run.plan(params, batch, 1.0).place(params, batch, 1.0)
    first, _ = run(placed, batch, rate)
    second, _ = run(placed, batch, rate)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(placed))
    np.testing.assert_array_equal(np.asarray(first["ends"]), np.asarray(second["ends"]))


def test_arguments_of_less_than_a_byte_an_element_are_taken():
    def of_small(params, batch, rate):
        return step(params, batch, rate.astype("float32"))

    params, batch = arguments()
    rate = jax.numpy.ones((WIDTH, WIDTH), "int4")
    run = pipelined(2, 4, "1f1b", of_small)
    found, right = run(params, batch, rate), jax.jit(of_small)(params, batch, rate)
    jax.tree.map(np.testing.assert_array_equal, found, right)


def test_an_argument_that_is_also_a_result_stays_the_callers():
    def with_rate(params, batch, rate):
        return *step(params, batch, rate), rate, rate

    params, batch = arguments()
    run = pipelined(2, 4, "1f1b", with_rate)
    placed, batch, rate = run.plan(params, batch, np.ones(8, "f")).place(
        params, batch, np.ones(8, "f")
    )
    results = run(placed, batch, rate)[2:]
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    for result in results:
        np.testing.assert_array_equal(add(result), np.full(8, 2))
    assert not rate.is_deleted()


@pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")
def test_meshes_of_jax_are_refused_however_they_are_given():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("d",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params, batch = arguments()
    refused = pytest.raises(autoshard.PlanError, match="with a mesh of JAX, which has devices")
    with refused:
        pipelined(2, 4, "auto", mesh=mesh)
    with refused, jax.set_mesh(mesh):
        pipelined(2, 4, "auto").plan(params, batch, 1.0)
    with refused:
        pipelined(2, 4, "auto", in_shardings=(whole, None, None)).plan(params, batch, 1.0)
    with jax.set_mesh(mesh):
        assert pipelined(2, 4, "auto", mesh="d=4").plan(params, batch, 1.0).mesh.size == 4


def test_overlap_and_trips_of_loops_count_in_the_seconds_of_stages():
    def with_loop(params, batch, rate):
        def again(x):
            def more(carried):
                return carried[0] + 1, carried[1] @ params["ends"]

            return jax.lax.while_loop(lambda carried: carried[0] < rate, more, (0.0, x))[1]

        changed, told = step(params, batch, rate)
        return changed, {**told, "again": (again(batch["x"]) * batch["y"]).sum()}

    def planned(fn, width, **options):
        rows, square = (jax.ShapeDtypeStruct((n, width), "float32") for n in (BATCH, width))
        params = {"ends": square, "layers": [square] * LAYERS}
        run = pipelined(2, 4, "1f1b", fn, mesh="dp=4", **options)
        return run.plan(params, {"x": rows, "y": rows}, 1.0).pipeline

    hidden, shown = (planned(step, 512, overlap=share) for share in (0.9, 0.0))
    assert hidden.step_seconds < 0.9 * shown.step_seconds
    few, many = (planned(with_loop, WIDTH, trip_count=count) for count in (1, 16))
    assert many.step_seconds > 1.1 * few.step_seconds
    with pytest.raises(autoshard.PlanError, match=r"one loop takes 9\d % of the step"):
        planned(with_loop, WIDTH, trip_count=1000)


def test_no_bound_is_said_of_a_pipeline():
    plan = pipelined(2, 4, "1f1b").plan(*arguments(), 1.0)
    assert plan.lower_bound_seconds == 0
    assert plan.gap is None


@pytest.mark.parametrize("limit", ["500B", "100B"])
def test_what_does_not_fit_is_said_with_the_limit_of_a_device(limit):
    run = pipelined(2, 4, "1f1b", memory_limit=limit)
    message = (
        rf"the worst of 2 stages needs .*B or more on a device, and {limit[:-1]} B are allowed"
    )
    with pytest.raises(autoshard.DoesNotFitError, match=message):
        run.plan(*arguments(), 1.0)


def test_what_pipelines_cannot_do_is_refused():
    params, batch = arguments()
    with pytest.raises(autoshard.PlanError, match=r"8 devices of cluster cpu:8 .* 3 stages"):
        pipelined(3, 4, "auto").plan(params, batch, 1.0)
    with pytest.raises(autoshard.PlanError, match=r"micro_batches=6 do not divide dim 0"):
        pipelined(2, 6, "auto").plan(params, batch, 1.0)
    run = pipelined(2, 4, "1f1b")
    with pytest.raises(autoshard.PlanError, match=r"lower\(\) gives one program"):
        run.lower(params, batch, 1.0)
    with pytest.raises(autoshard.PlanError, match=r"Give plan\.pipeline\.verify\(\)"):
        run.plan(params, batch, 1.0).verify()
    with pytest.raises(autoshard.PlanError, match="check is for one program"):
        run.plan(params, batch, 1.0).check()
    with pytest.raises(autoshard.PlanError, match="check=True is for one program"):
        pipelined(2, 4, "1f1b", check=True)
    with pytest.raises(autoshard.PlanError, match="by the search, not in mode='semi_auto'"):
        pipelined(2, 4, "1f1b", mode="semi_auto")


def of_layers(weights, x, y):
    """A step whose stages between the first and the last one do the same."""

    def loss(weights):
        hidden = x
        for stage, own in enumerate(weights):
            layer = autoshard.pipeline_stage(lambda h, w: h + jax.numpy.maximum(h @ w, 0), stage)
            hidden = layer(hidden, own)
        return (hidden * y).sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [jax.numpy.sign(w - g) for w, g in zip(weights, gradients, strict=True)], value


def arguments_of_layers():
    weights = [whole_numbers((WIDTH, WIDTH), seed) for seed in range(4)]
    return weights, whole_numbers((16, WIDTH), 7), whole_numbers((16, WIDTH), 8)


@pytest.mark.parametrize("donated", [(), (0,)])
def test_equal_tasks_of_several_stages_are_compiled_once(monkeypatch, donated):
    compiled = []
    compile_one = jax.stages.Lowered.compile

    def counted(lowered, **options):
        compiled.append(lowered)
        return compile_one(lowered, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    pipeline = autoshard.Pipeline(4, 4, "1f1b")
    rows = jax.sharding.PartitionSpec("d")  # gradients of weights are sums over a stage's devices
    run = autoshard.jit(
        of_layers,
        cluster="cpu:8",
        mesh="d=2",
        pipeline=pipeline,
        in_shardings=(None, rows, rows),
        compiler_options={"xla_cpu_parallel_codegen_split_count": 2},
        donate_argnums=donated,
    )
    weights, x, y = arguments_of_layers()
    plan = run.plan(weights, x, y)
    placed, *batch = plan.place(weights, x, y)
    found = run(placed, *batch)
    tasks = plan.pipeline.step.program.tasks
    # Before, forwards and backwards only stages 1 and 2 do the same, behind the loop all four.
    assert len(tasks) == 4 + 7 + 4
    assert len(compiled) == 3 + 5 + 1
    assert all(weight.is_deleted() == bool(donated) for weight in placed)
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(of_layers)(weights, x, y))
    used = [leaf.sharding.device_set for leaf in found[0]]
    assert len(set.union(*used)) == 8, "each stage has devices of its own"


def test_functions_of_python_are_called():
    told = []

    def with_callbacks(weights, x, y):
        weights, value = of_layers(weights, x, y)
        jax.debug.callback(lambda total: told.append(float(total)), weights[1].sum())
        shape = jax.ShapeDtypeStruct((WIDTH, WIDTH), np.float32)
        times = [partial(np.multiply, np.float32(n)) for n in range(4)]
        changed = [jax.pure_callback(f, shape, w) for f, w in zip(times, weights, strict=True)]
        return changed, value

    run = autoshard.jit(with_callbacks, cluster="cpu:8", pipeline=autoshard.Pipeline(4, 4, "1f1b"))
    weights, x, y = arguments_of_layers()
    found = run(weights, x, y)
    changed, _ = jax.jit(of_layers)(weights, x, y)
    jax.effects_barrier()
    assert told == [float(changed[1].sum())]
    jax.tree.map(np.testing.assert_array_equal, found[0], [n * w for n, w in enumerate(changed)])


def reals(tree):
    """Floats of any kind in the places of whole numbers: their sums depend on the order."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), tree)


@pytest.mark.parametrize("schedule", ["1f1b", "auto"])
def test_a_plan_that_was_saved_is_run_bit_equal(tmp_path, monkeypatch, schedule):
    params, batch = reals(arguments())
    run = pipelined(2, 4, schedule, donate_argnums=0)
    plan = run.plan(params, batch, 1.0)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    for again in (loaded, pickle.loads(pickle.dumps(plan))):
        assert again.pipeline.gantt() == plan.pipeline.gantt()
        assert again.pipeline.schedule == again.pipeline.asked.schedule == plan.pipeline.schedule
        assert again.step_seconds == plan.step_seconds
        assert again.pipeline.peak_bytes == plan.pipeline.peak_bytes
        assert again.in_shardings == plan.in_shardings
        assert again.out_shardings == plan.out_shardings
    monkeypatch.setattr("autoshard.frontend.jit.plan_source", None)
    right = run(*plan.place(params, batch, 1.0))
    for kept in (plan, loaded, tmp_path / "plan.json"):
        kept_run = autoshard.jit(step, plan=kept, donate_argnums=0)
        placed, *others = plan.place(params, batch, 1.0)
        found = kept_run(placed, *others)
        jax.tree.map(np.testing.assert_array_equal, found, right)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(placed))


def test_a_pipeline_that_is_kept_is_run_for_its_program_and_is_not_updated(tmp_path):
    params, batch = arguments()
    plan = pipelined(2, 4, "1f1b", donate_argnums=0).plan(params, batch, 1.0)
    plan.save(tmp_path / "plan.json")
    older = json.loads((tmp_path / "plan.json").read_text())
    del older["pipeline"]["arrays"]  # as it was written before arrays were cut into parts
    (tmp_path / "plan.json").write_text(json.dumps(older))
    assert autoshard.Plan.load(tmp_path / "plan.json").pipeline.staging == plan.pipeline.staging
    with pytest.raises(autoshard.PlanError, match="the plan is for another program"):
        autoshard.jit(step, plan=plan)(params, batch, 1.0)
    with pytest.raises(autoshard.PlanError, match="and the plan that is given is a pipeline"):
        autoshard.jit(step, plan=plan, update="if-better")(params, batch, 1.0)
    with pytest.raises(autoshard.PlanError, match="check=True is for one program"):
        autoshard.jit(step, plan=plan, check=True, donate_argnums=0)(params, batch, 1.0)
    with pytest.raises(autoshard.PlanError, match=r"lower\(\) gives one program"):
        autoshard.jit(step, plan=plan, donate_argnums=0).lower(params, batch, 1.0)
    with pytest.raises(autoshard.PlanError, match=r"plan=.* is for one program"):
        pipelined(2, 4, "1f1b", plan=plan, update="if-better")


def test_plans_of_pipelines_are_found_again_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOSHARD_CACHE", str(tmp_path))
    params, batch = arguments()
    plan = pipelined(2, 4, "1f1b").plan(params, batch, 1.0)
    monkeypatch.setattr("autoshard.frontend.planning.StagedSearch", None)
    again = pipelined(2, 4, "1f1b")
    assert again.plan(params, batch, 1.0) == plan
    found, right = again(params, batch, 1.0), jax.jit(step)(params, batch, 1.0)
    jax.tree.map(np.testing.assert_array_equal, found, right)
    for other in (pipelined(2, 4, "gpipe"), pipelined(2, 4, "1f1b", donate_argnums=0)):
        with pytest.raises(AttributeError):  # it is searched for
            other.plan(params, batch, 1.0)


def test_tasks_are_compiled_beside_the_plan():
    asked = autoshard.Pipeline(4, 4, "1f1b")
    plan = autoshard.plan(of_layers, *arguments_of_layers(), cluster="cpu:8", pipeline=asked)
    found = plan.pipeline.verify()
    assert found.ok
    assert found.differences == ()
    assert {one.program.target for one in found.tasks.values()} == {"cpu:8/4"}
    for planned, compiled in zip(plan.pipeline.peak_bytes, found.peak_bytes, strict=True):
        assert planned == pytest.approx(compiled, rel=0.2)
    assert str(found).startswith("15 tasks, 9 programs compiled for cpu:8/4 with ")
    assert "a micro-batch planned" in str(found)
