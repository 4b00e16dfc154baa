"""Programs that are lowered twice, from other lines or for other devices."""

import jax
import jax.numpy as jnp

from autoshard.frontend.lower import traced_for
from autoshard.frontend.request import Request


def lowered(function, shape=(8, 4)):
    arguments = (jax.ShapeDtypeStruct(shape, jnp.float32),)
    traced = traced_for(function, (arguments, {}), static=(None, None), donate=(None, None))
    return traced.source(Request(cluster="h100:4")).program


def test_a_program_is_the_same_from_another_line():
    def step(x):
        return jnp.tanh(x) @ x.T

    one = lowered(step)
    other = lowered(step)
    assert one.bytecode != other.bytecode, "the calls are in the locations"
    assert one.is_same(other)


def test_numbers_shapes_and_ops_make_another_program():
    one = lowered(lambda x: x * 2)
    assert one.is_same(lowered(lambda x: x * 2))
    assert not one.is_same(lowered(lambda x: x * 3))
    assert not one.is_same(lowered(lambda x: x + 2))
    assert not one.is_same(lowered(lambda x: x * 2, (8, 8)))
