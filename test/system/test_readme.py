"""The README's example and the tour in the docs run as they are written; no page is lost."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.cli import opt
from autoshard.cluster.chips import CHIP_CONSTANTS
from autoshard.compilers.compiler import CompilerFile
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.attributes import PIN
from autoshard.ir.module import operations_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TOUR = ROOT / "docs" / "index.md"


def blocks(page: Path, language: str) -> list[str]:
    """Code blocks of a page in one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_example_of_the_readme_prints_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompilerFile, "installed", lambda self: "0.0.42")
    (example,) = blocks(README, "python")
    exec(compile(example, str(README), "exec"), {})
    (picture,) = blocks(README, "text")
    expected, printed = _lines(picture), _lines(capsys.readouterr().out)
    assert printed[: len(expected)] == expected
    assert printed[len(expected)].startswith(" result ")


def _lines(text: str) -> list[str]:
    """Lines that say something; how long planning took differs from run to run."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return [re.sub(r"^planning took .*", "planning took", line) for line in lines]


def test_commands_of_the_readme_are_there() -> None:
    (block,) = blocks(README, "sh")
    commands = [line.split()[0] for line in block.splitlines()]
    assert commands == ["tools/demo.sh", "tools/test.sh"]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)


def test_python_of_the_tour_runs() -> None:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape), jnp.float32)

    names: dict[str, Any] = {
        "weights": {"w1": draw(16, 32), "b1": draw(32), "w2": draw(32, 8), "b2": draw(8)},
        "x": draw(32, 16),
        "y": draw(32, 8),
    }
    for block in blocks(TOUR, "python"):
        exec(compile(block, str(TOUR), "exec"), names)
    weights = names["plan"].in_shardings[0]
    assert weights["w1"].spec == jax.sharding.PartitionSpec(None, "tp")
    assert weights["b1"].spec == jax.sharding.PartitionSpec("tp")


def test_commands_of_the_tour_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in blocks(TOUR, "sh") if "autoshard-opt step.mlir" in block)
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


def test_the_pass_that_newcomers_add_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks(TOUR.parent / "contributing.md", "python")
    (tmp_path / "drop_pins.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    drop_pins = importlib.import_module("drop_pins")
    text = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x {autoshard.pin = "[{dp}]"} : tensor<8xf32>
  %1 = stablehlo.sine %0 {autoshard.pin = "[{dp}]"} : tensor<8xf32>
  return %1 : tensor<8xf32>
}
"""
    module = parse_bytes(text.encode(), new_context(), "step")
    drop_pins.DropPins(keep="stablehlo.sine").run(module)
    kept = [op.name for op in operations_of(module.operation) if PIN in op.attributes]
    assert kept == ["stablehlo.sine"]


def test_every_page_is_on_the_site_and_in_its_index() -> None:
    docs = TOUR.parent
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"index.md"}
    assert len(pages) > 20
    index, site = TOUR.read_text(), (ROOT / "tools" / "mkdocs.yml").read_text()
    assert [page for page in sorted(pages) if f"({page})" not in index] == []
    assert [page for page in sorted(pages) if f"- {page}\n" not in site] == []


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README.read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_public_name_and_every_constant_of_a_chip_is_documented() -> None:
    pages = {page.name: page.read_text() for page in TOUR.parent.rglob("*.md")}
    reference = pages.pop("api.md")
    text = "".join(pages.values())
    public = [name for name in dir(autoshard) if is_public(name)]
    assert len(public) > 20
    assert [name for name in public if not re.search(rf"\b{name}\b", text)] == []
    errors = vars(autoshard.errors)
    assert [n for n in public if f"::: autoshard.{n}\n" not in reference and n not in errors] == []
    clusters = pages["clusters.md"]
    assert [name for name in CHIP_CONSTANTS if f"`{name}`" not in clusters] == []


def test_architecture_has_the_packages_in_the_order_that_lint_holds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    page = (TOUR.parent / "design" / "architecture.md").read_text()
    table = page.split("## Packages")[1].split("The core is built")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == layers


def is_public(name: str) -> bool:
    """Whether a name of the package is the package's own."""
    module = getattr(getattr(autoshard, name), "__module__", "")
    return not name.startswith("_") and str(module).startswith("autoshard.")
