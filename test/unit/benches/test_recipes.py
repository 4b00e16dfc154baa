"""What the bench of published runs reads off programs, and how it writes a published split."""

from __future__ import annotations

import pytest

from autoshard.ir import new_context, parse_bytes
from autoshard.verify.hlo_program import HloProgram
from bench.quality import recipes
from bench.quality.recipes import Recipe

RECIPE = Recipe(
    name="small",
    cluster="v5p:2x2x2",
    layers=4,
    features=64,
    fsdp=4,
    tensor=2,
    inner=(256,),
    published="1 s",
    options="maxtext-v5p",
)
STEP = b"""
module @step attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%norm: tensor<64x4xf32> {tf.aliasing_output = 0 : i32},
                         %up: tensor<64x4x256xf32> {tf.aliasing_output = 1 : i32},
                         %key: tensor<4x2xui32>,
                         %tokens: tensor<16x8xi32>)
      -> (tensor<64x4xf32>, tensor<64x4x256xf32>) {
    return %norm, %up : tensor<64x4xf32>, tensor<64x4x256xf32>
  }
}"""


def test_the_published_split_cuts_features_over_fsdp_and_inner_dims_over_tensor() -> None:
    module = parse_bytes(STEP, new_context(), "step")
    cuts = [recipes.cut_of(RECIPE, one) for one in recipes.arguments_of(module)]
    assert cuts == [
        '{"tensor"}, {}',
        '{"fsdp"}, {}, {"tensor"}',
        "{}, {}",
        '{"fsdp"}, {}',
    ]


def test_results_are_cut_as_the_arguments_that_they_replace() -> None:
    module = parse_bytes(STEP, new_context(), "step")
    recipes.mark(module, RECIPE)
    assert '"fsdp"=4, "tensor"=2' in str(module)
    assert str(module).count('[{"fsdp"}, {}, {"tensor"}]') == 2


KERNEL = 'custom-call(%g), custom_call_target="tpu_custom_call"'


@pytest.mark.parametrize(
    ("read_by", "expected"),
    [
        (f"ROOT %k = f32[8]{{0}} {KERNEL}", 1),
        ("ROOT %k = f32[8]{0} negate(%g)", 0),
        (f"%n = f32[8]{{0}} negate(%g)\n  ROOT %k = f32[8]{{0}} {KERNEL}", 0),
        (
            "%c = f32[8]{0} copy(%g)\n  ROOT %k = f32[8]{0} custom-call(%c),"
            ' custom_call_target="tpu_custom_call"',
            1,
        ),
    ],
    ids=["a kernel", "another op", "both", "a kernel, copied"],
)
def test_gathers_that_only_kernels_read_are_counted(read_by: str, expected: int) -> None:
    text = f"""HloModule step, num_partitions=2

ENTRY %main (p: f32[4]) -> f32[8] {{
  %p = f32[4]{{0}} parameter(0)
  %g = f32[8]{{0}} all-gather(%p), replica_groups={{{{0,1}}}}, dimensions={{0}}
  {read_by}
}}
"""
    program = HloProgram.parse(text)
    assert recipes.gathers_for_kernels(program) == expected
    assert len(recipes.kernels_of(program)) == ("tpu_custom_call" in read_by)


def test_without_recipes_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOSHARD_RECIPES", "/nowhere")
    monkeypatch.setattr("sys.argv", ["recipes.py"])
    recipes.main()
    assert "Skipped: no recipes" in capsys.readouterr().out
