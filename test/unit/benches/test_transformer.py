"""The models that benches compare plans on (bench/programs/transformer.py)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bench.programs import transformer


@pytest.mark.parametrize("name", transformer.MODELS)
def test_models_have_as_many_parameters_as_published(name: str) -> None:
    config = transformer.named(name, scan=True)
    transformer.check_parameters(config, transformer.train_step(config).num_parameters)


def test_a_wrong_size_is_found() -> None:
    config = transformer.named("llama2-7b", scan=True, hidden=11_000)
    count = transformer.train_step(config).num_parameters
    with pytest.raises(ValueError, match="published 6,738,415,616: a size in MODELS is wrong"):
        transformer.check_parameters(config, count)


def test_lora_trains_two_thin_matrices_beside_each_frozen_one() -> None:
    config = transformer.named("llama2-7b-lora", scan=True)
    step = transformer.train_step(config)
    trained, _, frozen, *_ = step.arguments
    sizes = {leaf.dtype for leaf in jax.tree.leaves(frozen)}
    # 32 layers; query, key, value and output; 4096 x 16 and 16 x 4096.
    assert sum(leaf.size for leaf in jax.tree.leaves(trained)) == 32 * 4 * 2 * 4096 * 16
    assert sizes == {jnp.dtype(jnp.bfloat16)}
    assert step.num_parameters == config.parameters


def test_alibi_slopes_of_twelve_heads_continue_those_of_eight() -> None:
    eight = [2.0**-n for n in range(1, 9)]
    assert transformer.alibi_slopes(8) == eight
    assert transformer.alibi_slopes(12) == [*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]


SMALL: dict[str, Any] = {
    "features": 16,
    "hidden": 24,
    "heads": 4,
    "kv_heads": 4,
    "layers": 2,
    "vocabulary": 32,
    "tokens": 8,
    "batch": 2,
}


@pytest.mark.parametrize("name", ["llama2-70b", "baichuan2-13b", "pangu-alpha-2.6b"])
def test_a_loop_over_layers_computes_what_single_layers_do(name: str) -> None:
    changes = SMALL | ({"kv_heads": 2} if name == "llama2-70b" else {})
    config = transformer.named(name, **changes)
    numbers = np.random.default_rng(0)

    def filled(shape: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray(numbers.normal(0, 0.1, shape.shape), shape.dtype)

    values = jax.tree.map(filled, transformer.train_step(config).arguments[0])
    tokens = jnp.asarray(numbers.integers(0, 32, (2, 8)), jnp.int32)
    alone = _logits(config, values, tokens)
    together = _logits(dataclasses.replace(config, scan=True), _stacked(values), tokens)
    assert np.all(np.isfinite(alone))
    # Sums of bfloat16 may be taken in another order.
    np.testing.assert_allclose(together, alone, atol=2e-2 * float(np.abs(alone).max()))


def _logits(config: Any, values: Any, tokens: jax.Array) -> np.ndarray:
    model = nnx.eval_shape(lambda: transformer.Transformer(config, nnx.Rngs(0)))
    graph, state = nnx.split(model, nnx.Param)
    network = nnx.merge(graph, transformer.filled(state, values))
    return np.asarray(network(tokens), np.float32)


def _stacked(parameters: dict[str, Any]) -> dict[str, Any]:
    """Layers one after another in front, as a loop takes them."""
    if "layers" not in parameters:
        return parameters
    layers = [parameters["layers"][number] for number in sorted(parameters["layers"])]
    return {**parameters, "layers": jax.tree.map(lambda *each: jnp.stack(each), *layers)}


def test_constraints_stand_in_the_program() -> None:
    config = dataclasses.replace(
        transformer.named("llama2-7b", scan=True, remat=True, **SMALL),
        constraints=(("residual", ("data", None, None)), ("hidden", ("data", None, "model"))),
    )
    mesh = transformer.mesh_for_constraints({"data": 2, "model": 4})
    with jax.sharding.use_abstract_mesh(mesh):
        step = transformer.train_step(config)
        text = (
            jax.jit(step.function)
            .trace(*step.arguments)
            .lower(lowering_platforms=("tpu",))
            .as_text()
        )
    assert "sdy.sharding_constraint" in text
    assert '[{"data"}, {}, {"model"}]' in text
