"""The tour in the README runs as it is written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.cli import opt
from autoshard.cluster.chips import CHIP_CONSTANTS

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


def test_commands_of_the_tour_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in blocks("sh") if "autoshard-opt step.mlir" in block)
    propagate, plan, verify, check, _help = map(
        shlex.split, block.replace("\\\n", " ").splitlines()
    )
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "step.mlir"
    pin = ' {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}'
    source.write_text(
        f"""func.func public @main(
    %x: tensor<16x8xf32>{pin},
    %w: tensor<8x32xf32>) -> tensor<16x32xf32> {{
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  return %y : tensor<16x32xf32>
}}
"""
    )
    output = tmp_path / "exported.mlir"
    assert propagate[:2] == plan[:2] == ["autoshard-opt", "step.mlir"]
    assert opt.main([*propagate[1:], "-o", str(output)]) == 0
    assert "sdy.sharding_constraint" in output.read_text()
    source.write_text(source.read_text().replace(pin, ""))
    assert opt.main(plan[1:]) == 0
    assert json.loads((tmp_path / "plan.json").read_text())["cluster"] == "v5e:4x4"
    # The command that verifies it is tested where the compiler is; its file is the one written.
    assert verify[:2] == check[:2] == ["autoshard-verify", "planned.mlir"]
    assert check[2:] == ["--check"]
    assert "autoshard.plan" in (tmp_path / "planned.mlir").read_text()


def test_every_public_name_and_every_constant_of_a_chip_is_documented() -> None:
    folder = README.parent / "docs"
    pages = {page.name: page.read_text() for page in folder.glob("*.md")}
    readme = README.read_text()
    assert [name for name in pages if f"docs/{name}" not in readme] == []
    text = readme + "".join(pages.values())
    public = [name for name in dir(autoshard) if is_public(name)]
    assert len(public) > 20
    assert [name for name in public if not re.search(rf"\b{name}\b", text)] == []
    clusters = pages["clusters.md"]
    assert [name for name in CHIP_CONSTANTS if f"`{name}`" not in clusters] == []


def is_public(name: str) -> bool:
    """Whether a name of the package is the package's own."""
    module = getattr(getattr(autoshard, name), "__module__", "")
    return not name.startswith("_") and str(module).startswith("autoshard.")
