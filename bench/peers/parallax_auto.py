"""google-parallax's AUTO for bench/quality/experts.py, run by the Python of an environment with it.

    pip install google-parallax optax
    PYTHONPATH=. python bench/peers/parallax_auto.py MODEL

Prints a JSON object: for each parameter of a model of bench/programs/transformer.py, layers
unrolled, which of its dims AUTO cuts over its axis "model". Loops are not read by it, and axis
sizes play no part in what it decides.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from flax import nnx
from parallax.sharding import auto_shard

from bench.programs.transformer import Transformer, filled, named


def main() -> None:
    config = named(sys.argv[1])
    model = nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0)))
    graph, state = nnx.split(model, nnx.Param)

    def logits(parameters: object, tokens: jax.Array) -> jax.Array:
        return nnx.merge(graph, filled(state, parameters))(tokens)

    tokens = jax.ShapeDtypeStruct((config.batch, config.tokens), jnp.int32)
    mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"))
    with jax.sharding.use_abstract_mesh(mesh):
        (specs, *_), _ = auto_shard.get_shardings(logits, nnx.to_pure_dict(state), tokens)
    leaves = jax.tree_util.tree_leaves_with_path(
        specs, is_leaf=lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec)
    )
    print(json.dumps({jax.tree_util.keystr(path): list(spec) for path, spec in leaves}))


if __name__ == "__main__":
    main()
