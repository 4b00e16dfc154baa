"""``AUTOSHARD_CACHE`` keeps plans between processes, by everything that decides them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import autoshard

X = jnp.ones((32, 64))
W = jnp.ones((64, 64))


def step(w, x):
    return x @ w


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOSHARD_CACHE", str(tmp_path / "plans"))
    return tmp_path / "plans"


@pytest.fixture
def searches(monkeypatch):
    """Names of what is searched."""
    from autoshard.frontend import planning

    found = []
    before = planning._planned

    def counted(source, request):
        found.append(source.name)
        return before(source, request)

    monkeypatch.setattr(planning, "_planned", counted)
    return found


def test_a_plan_is_found_again_by_plan_and_jit(directory, searches):
    plan = autoshard.plan(step, W, X, cluster="cpu:8")
    again = autoshard.plan(step, W, X, cluster="cpu:8")
    assert again == plan
    assert autoshard.jit(step, cluster="cpu:8")(W, X).sharding == plan.out_shardings
    assert searches == ["step"]
    assert len(list(directory.iterdir())) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"cluster": "cpu:4"},
        {"cluster": "v5e:2x4"},
        {"overlap": 0.5},
        {"donate_argnums": 0},
        {"mesh": "a=2,b=4"},
        {"in_shardings": (jax.sharding.PartitionSpec("a"), None), "mesh": "a=8"},
        {"compiler_options": {"xla_cpu_enable_fast_math": False}},
    ],
    ids=str,
)
def test_another_question_is_another_plan(directory, searches, options):
    autoshard.plan(step, W, X, cluster="cpu:8")
    autoshard.plan(step, W, X, **{"cluster": "cpu:8", **options})
    assert len(searches) == 2


def test_a_plan_whose_micro_batches_were_chosen_is_found_again(directory, searches):
    asked = {"cluster": "cpu:8", "micro_batches": "auto", "batch_argnums": 1}
    plan = autoshard.plan(step, W, X, **asked)
    count = len(searches)
    again = autoshard.plan(step, W, X, **asked)
    assert len(searches) == count
    assert again == plan
    assert again.summary.tried_micro_batches == plan.summary.tried_micro_batches
    assert again.origin.request.micro_batches == 1


def test_what_was_kept_and_is_damaged_is_warned_of_and_made_anew(directory, searches):
    plan = autoshard.plan(step, W, X, cluster="cpu:8")
    (file,) = directory.iterdir()
    file.write_text(file.read_text()[:1000])
    with pytest.warns(autoshard.AutoshardWarning, match=r"step is planned again: .*no plan can be"):
        anew = autoshard.plan(step, W, X, cluster="cpu:8")
    assert anew.arguments == plan.arguments
    assert autoshard.plan(step, W, X, cluster="cpu:8") == anew
    assert len(searches) == 2


def test_a_directory_that_cannot_be_written_is_warned_of(directory, searches):
    directory.write_text("a file")
    with pytest.warns(autoshard.AutoshardWarning, match="step is not kept: .*AUTOSHARD_CACHE"):
        autoshard.plan(step, W, X, cluster="cpu:8")


def test_calls_into_python_are_not_kept(directory, searches):
    def tells(x):
        jax.debug.callback(lambda _: None, x.sum())
        return x * 2

    autoshard.plan(tells, X, cluster="cpu:8")
    assert not directory.exists()
