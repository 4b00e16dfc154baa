"""Kernels of a compiled program cost what the planner says of the exported one."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import RecursiveProgramming, plan_automatically
from autoshard.sharding import Mesh
from autoshard.verify.kernel_costs import kernel_costs
from autoshard.verify.step_time import estimate_step

CLUSTER = Cluster.of("v5e:2x2")
QUERIES = jax.ShapeDtypeStruct((4, 8, 1024, 128), jnp.bfloat16)


def exported() -> mlir.Module:
    """Attention whose batch or heads four devices share out."""
    device = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(flash_attention).trace(QUERIES, QUERIES, QUERIES)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    module = parse_bytes(text.encode(), new_context())
    plan_automatically(module, CLUSTER, RecursiveProgramming())
    run_passes(module, ["autoshard-export-shardy"])
    return module


def test_a_kernel_is_found_by_its_module_and_costs_what_is_planned() -> None:
    ((body, cost),) = kernel_costs(exported(), CLUSTER).items()
    whole = 2 * 2 * 4 * 8 * 1024 * 1024 * 128
    assert cost.flops == pytest.approx(whole / 4)
    config = json.dumps({"custom_call_config": {"body": body}}, separators=(",", ":"))
    text = f"""HloModule m, num_partitions=4

ENTRY %main (q: bf16[1,8,1024,128]) -> bf16[1,8,1024,128] {{
  %q = bf16[1,8,1024,128]{{3,2,1,0}} parameter(0)
  ROOT %k = bf16[1,8,1024,128]{{3,2,1,0}} custom-call(%q), custom_call_target="tpu_custom_call",
backend_config={config}
}}
"""
    mesh = Mesh.parse("d=4")
    costs = {body: cost}
    assert estimate_step(text, mesh, CLUSTER, kernels=costs).compute_seconds == cost.seconds
    assert not estimate_step(text, mesh, CLUSTER, kernels=costs).unknown
    (unknown,) = estimate_step(text, mesh, CLUSTER).unknown
    assert unknown.seconds < cost.seconds
