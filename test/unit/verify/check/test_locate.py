"""Which op is the wrong one, of runs that are only told here."""

import pytest

from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.ir.module import operations_of
from autoshard.planned.module import read_plan
from autoshard.verify.check.compare import Difference
from autoshard.verify.check.locate import locate, locate_failure
from autoshard.verify.check.part import entry_of
from autoshard.verify.check.run import Failure, Outcome
from planned_text import planned_module

_SAME = Difference(different=0, elements=64, error=1e-17, finite=64, largest=1.0)


def _bytecode(body: str) -> bytes:
    module = planned_module(f"""
func.func @main(%x: tensor<64xf32> $([{{dp}}])) -> (tensor<64xf32> $([{{dp}}])) {{{body}
  return %r : tensor<64xf32>
}}
""")
    return print_module(module, "bytecode")


_CHAIN = _bytecode("""
  %a = stablehlo.tanh %x $([{dp}] -> [{dp}]) : tensor<64xf32>
  %b = stablehlo.subtract %a, %a $([{dp}], [{dp}] -> [{dp}]) : tensor<64xf32>
  %r = stablehlo.sine %b $([{dp}] -> [{dp}]) : tensor<64xf32>""")

_LOOP = _bytecode("""
  %z = stablehlo.constant $([]) dense<0> : tensor<i32>
  %l:2 = stablehlo.while(%i = %z, %y = %x) : tensor<i32>, tensor<64xf32> attributes
      {mhlo.sharding = "{{replicated}, {devices=[2,4]<=[8] last_tile_dim_replicate}}"}
    cond {
      %n = stablehlo.constant $([]) dense<4> : tensor<i32>
      %c = stablehlo.compare LT, %i, %n $([], [] -> []) : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant $([]) dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one $([], [] -> []) : tensor<i32>
      %s = stablehlo.sine %y $([{dp}] -> [{dp}]) : tensor<64xf32>
      %t = stablehlo.tanh %s $([{dp}] -> [{dp}]) : tensor<64xf32>
      stablehlo.return %j, %t : tensor<i32>, tensor<64xf32>
    }
  %r = stablehlo.cosine %l#1 $([{dp}] -> [{dp}]) : tensor<64xf32>""")


def _names(program: bytes) -> tuple[set[str], list[str]]:
    """Names of all ops of a program, and of those whose results it returns."""
    with new_context() as context:
        module = parse_bytes(program, context)
        last = entry_of(read_plan(module)).body.ops[-1].op
        returned = [value.owner.name.removeprefix("stablehlo.") for value in last.operands]
        every = {op.name.removeprefix("stablehlo.") for op in operations_of(module.operation)}
        return every, returned


def _different(error: float) -> Outcome:
    return Outcome((Difference(3, 64, error, 64, 1.0),), (False,))


def _located(wrong: dict[str, float], *, without: str):
    """What is named where these ops are off by so much, but right in programs without another."""

    def run(program: bytes) -> Outcome:
        names, returned = _names(program)
        off = wrong if without in names else {}
        found = [
            Difference(3, 64, off[name], 64, 1.0) if name in off else _SAME for name in returned
        ]
        return Outcome(tuple(found), (False,) * len(found))

    return locate(_CHAIN, _different(1.0), run)


def test_the_first_op_that_is_off_is_wrong():
    found = _located({"tanh": 0.5, "subtract": 0.5, "sine": 1.0}, without="tanh")
    assert found is not None
    assert (found.op, found.is_certain) == ("stablehlo.tanh", True)


def test_rounding_and_what_is_made_of_it_is_not_wrong():
    assert _located({"subtract": 1e-15, "sine": 1.0}, without="tanh") is None


def test_an_op_that_is_wrong_of_other_operands_too_is_wrong():
    found = _located({"subtract": 1e-15, "sine": 1.0}, without="sine")
    assert found is not None
    assert (found.op, found.is_certain) == ("stablehlo.sine", True)


@pytest.mark.parametrize(("error", "op"), [(1e-8, None), (1.0, "stablehlo.sine")])
def test_what_is_gone_when_values_before_it_are_compared_was_rounding_if_it_was_small(error, op):
    same = Outcome((_SAME,) * 3, (False,) * 3)
    found = locate(_CHAIN, _different(error), lambda _: same)
    assert (found and found.op) == op
    assert found is None or not found.is_certain


def test_an_op_that_cannot_be_split_is_named_in_its_loop():
    def run(program: bytes) -> Outcome | Failure:
        names, returned = _names(program)
        if "tanh" in names:
            return Failure(is_of_plan=True, text="refused")
        return Outcome((_SAME,) * len(returned), (False,) * len(returned))

    found = locate_failure(_LOOP, run)
    assert found is not None
    assert (found.op, found.is_inside) == ("stablehlo.tanh", True)


def test_an_op_is_not_named_where_parts_cannot_be_run_whole():
    found = locate_failure(_CHAIN, lambda _: Failure(is_of_plan=False, text="no time"))
    assert found is None
