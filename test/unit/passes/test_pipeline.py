"""Pipelines from Python: parsing, running, what passes see, processes of their own."""

import pytest

from autoshard.errors import AutoshardWarning, PassError, PassOptionError
from autoshard.ir import mlir, new_context, parse_bytes, warn
from autoshard.ir.isolated import run_isolated
from autoshard.passes.base import Pass
from autoshard.passes.pipeline import NativePass, parse_pass, parse_pipeline, run_passes

TWO_ADDS = b"""
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32> loc("model.py":4:2)
  return %2 : tensor<4xf32>
}
"""


def module_of(text: bytes) -> mlir.Module:
    return parse_bytes(text, new_context())


class SetAttribute(Pass):
    """Write an attribute."""

    name = "autoshard-set-attribute"

    def run(self, module: mlir.Module) -> None:
        module.operation.attributes["test.ran"] = mlir.UnitAttr.get()


class BreakModule(Pass):
    """Leave an op with a wrong result type."""

    name = "autoshard-break-module"

    def run(self, module: mlir.Module) -> None:
        (function,) = module.body.operations
        function.attributes["function_type"] = mlir.TypeAttr.parse("() -> ()")


class Warn(Pass):
    """Warn about the multiplication."""

    name = "autoshard-warn"

    def run(self, module: mlir.Module) -> None:
        (function,) = module.body.operations
        warn("slow", function.regions[0].blocks[0].operations[2].location)


def test_pipeline_gives_each_pass_under_its_anchor():
    assert parse_pipeline("builtin.module(cse,func.func(canonicalize{max-iterations=2},cse))") == (
        NativePass("cse"),
        NativePass("canonicalize", "max-iterations=2", ("builtin.module", "func.func")),
        NativePass("cse", "", ("builtin.module", "func.func")),
    )


def test_single_pass_is_put_under_the_op_it_runs_on():
    step = parse_pass("sdy-populate-op-sharding-rules")
    assert isinstance(step, NativePass)
    assert step.text == "builtin.module(func.func(sdy-populate-op-sharding-rules))"


def test_pipeline_of_module_passes_under_a_function_is_refused():
    # jaxlib ends the process here.
    with pytest.raises(PassOptionError, match=r"runs on builtin.module, not on func.func"):
        parse_pipeline("func.func(sdy-import-pipeline)")


def test_own_and_native_passes_run_in_order_and_are_timed():
    module = module_of(TWO_ADDS)
    started: list[str] = []
    timed: list[str] = []
    adds: list[int] = []
    run_passes(
        module,
        [SetAttribute(), "cse", SetAttribute()],
        started=started.append,
        timing=lambda name, seconds: timed.append(name),
        print_after=lambda name, module: adds.append(str(module).count("stablehlo.add")),
    )
    assert started == timed == ["autoshard-set-attribute", "cse", "autoshard-set-attribute"]
    assert adds == [2, 1, 1]
    assert "test.ran" in module.operation.attributes


def test_pass_that_breaks_the_module_is_named():
    with pytest.raises(PassError, match="autoshard-break-module left an invalid module"):
        run_passes(module_of(TWO_ADDS), [BreakModule()])


def test_warning_names_the_users_line():
    with pytest.warns(AutoshardWarning, match="model.py:4:2: slow"):
        run_passes(module_of(TWO_ADDS), [Warn()])


def test_isolated_pass_changes_the_module_in_place():
    module = module_of(TWO_ADDS)
    run_isolated(module, "builtin.module(cse)")
    assert str(module).count("stablehlo.add") == 1
    assert 'loc("model.py":4:2)' in module.operation.get_asm(enable_debug_info=True)


def test_isolated_pass_that_takes_too_long_is_stopped():
    with pytest.raises(PassError, match=r"did not end within 0.01 s"):
        run_isolated(module_of(TWO_ADDS), "builtin.module(cse)", time_limit_seconds=0.01)
