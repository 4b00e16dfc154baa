"""Splash attention on some heads or blocks, with their parts of the mask's tables, computes what
the whole does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.pallas_call import pallas_call_p
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from autoshard.frontend.part_of_grid import OnGrid
from autoshard.importer.kernels import only_kernel
from autoshard.ir.lowering import lower_at_home

LENGTH, WIDTH, BLOCK = 1024, 128, 128


def attention(q: Any, k: Any, v: Any) -> Any:
    """Two heads with windows of unequal width."""
    mask = splash.MultiHeadMask(
        [splash.LocalMask((LENGTH, LENGTH), (width, 0), 0) for width in (200, 700)]
    )
    sizes = splash.BlockSizes(
        **dict.fromkeys(("block_q", "block_kv", "block_kv_compute"), BLOCK),
        **dict.fromkeys(("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"), BLOCK),
        **dict.fromkeys(("block_q_dq", "block_kv_dq"), BLOCK),
    )
    return splash.make_splash_mha_single_device(mask, block_sizes=sizes, interpret=True)(q, k, v)


@pytest.fixture(scope="module")
def calls() -> dict[str, Any]:
    """Each kernel of a forward and backward pass: operands, parameters, results."""
    found: dict[str, Any] = {}
    bind = pallas_call_p.bind

    def recorded(*operands: Any, **params: Any) -> Any:
        made = bind(*operands, **params)
        found[params["jaxpr"].debug_info.func_name] = operands, params, made
        return made

    random = np.random.default_rng(3)
    given = [random.normal(size=(2, LENGTH, WIDTH)).astype(np.float32) for _ in "qkv"]
    with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
        patch.setattr(pallas_call_p, "bind", recorded)
        made, back = jax.vjp(attention, *given)
        back(jnp.ones_like(made))
    return found


@pytest.mark.parametrize(
    ("name", "used", "dims"),
    [
        ("splash_mha_fwd_residuals", 2, [0, 1]),
        ("splash_mha_dkv_no_residuals", 2, [2, 0]),
        ("splash_mha_dq_no_residuals", 1, [0, 1]),
    ],
)
def test_parts_are_computed_as_in_the_whole(
    name: str, used: int, dims: list[int], calls: dict[str, Any]
) -> None:
    operands, params, expected = calls[name]

    def kernel(*operands: Any) -> Any:
        return pallas_call_p.bind(*operands, **{**params, "interpret": False})[-used:]

    structs = [jax.ShapeDtypeStruct(np.shape(it), it.dtype) for it in operands]
    device = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")
    proven = only_kernel(lower_at_home(kernel, structs, "tpu", device), len(structs))
    assert proven is not None
    cuts = [cut for cut in proven.cuts if cut.dims[0] is not None]
    assert [cut.dims[0] for cut in cuts] == dims  # of the table
    for cut in cuts:
        parts = proven.shapes[0][cut.dims[0] or 0]
        made: list[Any] = []
        for part in range(parts):
            mine = [
                it if dim is None else np.split(np.asarray(it), parts, dim)[part]
                for it, dim in zip(operands, cut.dims, strict=False)
            ]
            made.append(OnGrid(pallas_call_p, params, proven)(*mine)[-used:])
        for number, whole in enumerate(expected[-used:]):
            dim = cut.dims[len(cut.dims) - used + number]
            assert dim is not None
            together = np.concatenate([np.asarray(part[number]) for part in made], dim)
            np.testing.assert_allclose(together, whole, rtol=2e-6, atol=2e-6)
