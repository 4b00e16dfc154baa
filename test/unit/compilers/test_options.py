"""Options of compilers, given by name and value or as a published set."""

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.compilers.compiler import COMPILERS
from autoshard.compilers.options import option_sets, read_compiler_options, read_option_set
from autoshard.errors import PlanError
from autoshard.frontend.plan import Plan


@pytest.mark.parametrize("name", option_sets())
def test_a_set_says_where_it_is_from(name):
    found = read_option_set(name)
    assert found.compiler in COMPILERS
    assert "/" in found.source
    assert found.date.startswith("20")
    assert found.options
    assert all(option.startswith("xla_") for option in found.options)
    assert all(isinstance(value, str) for value in found.options.values())


def test_a_set_is_given_by_its_name():
    found = read_compiler_options("maxtext-v6e")
    assert found == read_option_set("maxtext-v6e").options
    assert found["xla_tpu_scoped_vmem_limit_kib"] == "98304"


def test_an_unknown_set_is_an_error_that_names_the_nearest():
    with pytest.raises(PlanError, match=r'called "maxtext-v6"\. Did you mean "maxtext-v6e"\?'):
        read_compiler_options("maxtext-v6")


def test_options_without_names_are_an_error():
    with pytest.raises(PlanError, match=r"expected the name of a set \(maxtext-"):
        read_compiler_options(["xla_nope"])  # pyright: ignore[reportArgumentType]


X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
QUICK = {"xla_backend_optimization_level": "0"}


def test_a_plan_is_compiled_with_its_options_also_when_it_was_saved(tmp_path):
    plan = autoshard.plan(jnp.sin, X, cluster="cpu:8", compiler_options=QUICK)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.compiler_options == plan.compiler_options == QUICK
    used = loaded.verify().program.options
    assert used.items() >= QUICK.items()
    assert loaded.verify(compiler_options={}).program.options.keys().isdisjoint(QUICK)


def test_jit_compiles_with_the_options():
    run = autoshard.jit(jnp.sin, cluster="cpu:8", compiler_options={"xla_nope": "1"})
    with pytest.raises(Exception, match="No such compile option: 'xla_nope'"):
        run(jnp.ones((8, 16)))


def test_a_request_for_an_unknown_set_is_refused_before_anything_is_lowered():
    with pytest.raises(PlanError, match="no set of options"):
        autoshard.jit(jnp.sin, cluster="cpu:8", compiler_options="nope")
