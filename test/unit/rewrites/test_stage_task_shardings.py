"""Planned shardings of the results of ops, as tasks of stages have them."""

import pytest

from autoshard.errors import ParseError
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.boundary import main_function
from autoshard.rewrites.stage_tasks.shardings import shardings_of

SORT = """
func.func public @main(%x: tensor<8xf32>, %y: tensor<8xi32>) -> tensor<8xf32> {
  %r:2 = "stablehlo.optimization_barrier"(%x, %y) {mhlo.sharding = "SAID"}
      : (tensor<8xf32>, tensor<8xi32>) -> (tensor<8xf32>, tensor<8xi32>)
  return %r#0 : tensor<8xf32>
}
"""


def said_by(text: str) -> list[str | None]:
    module = parse_bytes(SORT.replace("SAID", text).encode(), new_context())
    return shardings_of(main_function(module).regions[0].blocks[0].operations[0].operation)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{{devices=[2]<=[2]}, {replicated}}", ["{devices=[2]<=[2]}", "{replicated}"]),
        (
            "{{devices=[2]0,1}, {devices=[2,2]<=[4] last_tile_dim_replicate}}",
            ["{devices=[2]<=[2]}", "{devices=[2,2]<=[4] last_tile_dim_replicate}"],
        ),
        (
            "{{devices=[2,2]<=[4] last_tile_dims={manual}}, {maximal device=1}}",
            ["{devices=[2,2]<=[4] last_tile_dims={manual}}", "{maximal device=1}"],
        ),
    ],
)
def test_each_result_has_its_element_of_a_tuple(text, found):
    assert said_by(text) == found


def test_an_element_that_cannot_be_read_is_said_with_its_op():
    with pytest.raises(ParseError, match=r"stablehlo\.optimization_barrier: "):
        said_by("{{devices=[2]<=[2]}, {devices=[3]}}")
