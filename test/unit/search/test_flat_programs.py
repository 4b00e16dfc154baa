"""Programs that may let values go are read once, without calls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.ir import mlir, new_context
from autoshard.ir.inline import bytes_of
from autoshard.passes import fitting, recompute
from autoshard.passes.recompute import flatten, is_flat
from autoshard.rewrites.recomputation.marks import has_switches

_CALLS = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @twice(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @twice(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""


def test_a_flat_module_has_no_calls_nor_ops_that_nobody_reads() -> None:
    module = mlir.Module.parse(_CALLS, new_context())
    assert not is_flat(module)
    flatten(module)
    assert is_flat(module)
    (main,) = module.body.operations
    names = [op.operation.name for op in main.operation.regions[0].blocks[0].operations]
    assert names == ["stablehlo.add", "func.return"]


@pytest.mark.parametrize(
    ("scope", "is_kept"),
    [("mp0_po1", True), ("mp1_po0", True), ("mp0_po0", True), ("mp1_po1", False)],
)
def test_switches_are_found_in_names(scope: str, is_kept: bool) -> None:
    name = f"jit(step)/autoshard_recompute_{scope}/tanh"
    text = f"""
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
      %0 = stablehlo.tanh %x : tensor<8xf32> loc("{name}")
      return %0 : tensor<8xf32>
    }}
    """
    assert has_switches(bytes_of(mlir.Module.parse(text, new_context()))) is is_kept


def _step(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        h = x
        for _ in range(8):
            h = jax.jit(jnp.tanh)(h @ weights)
        return jnp.sum(h * h)

    return weights - jax.grad(loss)(weights)


ARGUMENTS = (
    jax.ShapeDtypeStruct((64, 64), jnp.float32),
    jax.ShapeDtypeStruct((1 << 14, 64), jnp.float32),
)


def planned_within_70_percent() -> autoshard.Plan:
    free = autoshard.plan(_step, *ARGUMENTS, cluster="cpu:2").summary.peak_bytes_per_device
    limit = int(0.7 * free)
    return autoshard.plan(_step, *ARGUMENTS, cluster="cpu:2", recompute="auto", memory_limit=limit)


def test_a_plan_of_a_search_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_again(*_: Any) -> Any:
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(recompute, "_copied", read_again)
        made = planned_within_70_percent().summary
    assert made.recomputed
    monkeypatch.setattr(recompute, "is_flat", lambda _: False)
    copied = planned_within_70_percent().summary
    assert (made.step_seconds, made.peak_bytes_per_device) == (
        copied.step_seconds,
        copied.peak_bytes_per_device,
    )


def test_decisions_that_were_written_are_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Any] = []
    rewritten, try_with = fitting.Copies.rewritten, fitting.Fitting.try_with

    def counted(self: Any, choice: Any, *rest: Any) -> Any:
        written.append(choice.written)
        return rewritten(self, choice, *rest)

    def tried_again(self: Any, rules: Any, **options: Any) -> bool:
        found = try_with(self, rules, **options)
        before = len(written)
        self.write(self.choice(self.aim, rules), self.aim, rules)
        assert len(written) == before > 0
        return found

    monkeypatch.setattr(fitting.Copies, "rewritten", counted)
    monkeypatch.setattr(fitting.Fitting, "try_with", tried_again)
    planned_within_70_percent()
    assert len(set(written)) == len(written)
