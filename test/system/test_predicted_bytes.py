"""What the cost model says a reshard moves is what the compiled program moves."""

from __future__ import annotations

import itertools

import pytest

from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.compile import compile_module
from autoshard.passes.pipeline import run_passes
from autoshard.planned.collective import total_bytes
from autoshard.sharding import Mesh, Sharding
from autoshard.verify.hlo_collectives import hlo_collectives

MESH = Mesh.parse("dp=2,tp=4")

SHARDINGS = [
    Sharding.named(MESH, *dims)
    for dims in (
        *[(None, None), ("dp", None), (None, "dp"), ("tp", None), (None, "tp")],
        *[("dp", "tp"), ("tp", "dp"), (("dp", "tp"), None), (None, ("dp", "tp"))],
        *[(("tp", "dp"), None), (None, ("tp", "dp"))],
    )
]


def reshard(source: Sharding, target: Sharding) -> mlir.Module:
    def attribute(sharding: Sharding) -> str:
        dims = ", ".join(
            "{" + ", ".join(f'"{ref.name}"' for ref in dim) + "}" for dim in sharding.dims
        )
        return f"{{sdy.sharding = #sdy.sharding<@mesh, [{dims}]>}}"

    text = f"""
      sdy.mesh @mesh = <["dp"=2, "tp"=4]>
      func.func @main(%x: tensor<16x8xf32> {attribute(source)})
          -> (tensor<16x8xf32> {attribute(target)}) {{
        return %x : tensor<16x8xf32>
      }}"""
    return parse_bytes(text.encode(), new_context())


@pytest.mark.parametrize("source", SHARDINGS, ids=str)
def test_every_reshard_of_a_matrix_moves_the_predicted_bytes(source: Sharding) -> None:
    for target in SHARDINGS:
        if source == target:
            continue
        module = reshard(source, target)
        run_passes(module, ["autoshard-import-strategies", "autoshard-sharding-propagation"])
        attribute = module.operation.attributes["autoshard.resharded_bytes"]
        predicted = mlir.FloatAttr(attribute).value
        run_passes(module, ["autoshard-export-shardy"])
        found = hlo_collectives(compile_module(module).hlo_text(), MESH)
        assert total_bytes(found) == predicted, f"{source} -> {target}"


def test_all_shardings_are_tried() -> None:
    pairs = list(itertools.permutations(SHARDINGS, 2))
    assert len(pairs) == 110
    assert len(set(map(str, SHARDINGS))) == 11
