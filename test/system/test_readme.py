"""The tour in the README runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard import opt

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    """Code blocks of the README in one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_python_of_the_tour_runs() -> None:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape), jnp.float32)

    names: dict[str, Any] = {
        "weights": {"w1": draw(16, 32), "b1": draw(32), "w2": draw(32, 8), "b2": draw(8)},
        "x": draw(32, 16),
        "y": draw(32, 8),
    }
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), names)
    weights = names["plan"].in_shardings[0]
    assert weights["w1"].spec == jax.sharding.PartitionSpec(None, "tp")
    assert weights["b1"].spec == jax.sharding.PartitionSpec("tp")


def test_command_of_the_tour_runs(tmp_path: Path) -> None:
    (command,) = (block for block in blocks("sh") if "autoshard-opt step.mlir" in block)
    words = command.replace("\\\n", " ").splitlines()[0].split()
    source = tmp_path / "step.mlir"
    source.write_text(
        """func.func public @main(
    %x: tensor<16x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
    %w: tensor<8x32xf32>) -> tensor<16x32xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  return %y : tensor<16x32xf32>
}
"""
    )
    output = tmp_path / "exported.mlir"
    assert words[0] == "autoshard-opt"
    words[words.index("step.mlir")] = str(source)
    assert opt.main([*words[1:], "-o", str(output)]) == 0
    assert "sdy.sharding_constraint" in output.read_text()
