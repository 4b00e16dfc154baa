"""Names of ops keep the user's words and lose JAX's; phases follow from JAX's and the order."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.explain.record_names import OpNames, Phase, scope_of
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.module import operations_of


@pytest.mark.parametrize(
    ("name", "path", "phase"),
    [
        ("jit(step)", "", None),
        ("jit(step)/jvp(Model)/layers/3/mlp", "Model/layers/3/mlp", Phase.FORWARD),
        ("jit(step)/transpose(jvp(Model))/layers/3", "Model/layers/3", Phase.BACKWARD),
        ("jit(step)/transpose(jvp())/while/body/mlp", "mlp", Phase.BACKWARD),
        ("jit(step)/jvp()/mlp/vmap(BTNH,BSNH->BNTS)", "mlp", Phase.FORWARD),
        ("jit(step)/jit(silu)", "silu", None),
        (
            "jit(f)/transpose(jvp(G))/jvp(G)/checkpoint/rematted_computation/block",
            "G/block",
            Phase.RECOMPUTE,
        ),
    ],
)
def test_a_scope_has_the_words_of_the_user(name, path, phase):
    found = scope_of(name)
    assert (found.path, found.phase) == (path, phase)
    assert found.of_any_layer == path.replace("3", "*")


STACK = 'callsite("M.call"("/a/m.py":2:1) at "f"("/a/run.py":9:1))'
LOCATIONS = (
    '"jit(f)/add"("m.py":1:1)',
    f'"jit(f)/jvp(M)/add"({STACK})',
    f'"jit(f)/transpose(jvp(M))/add"({STACK})',
    '"inner"("m.py":3:1)',
    '"jit(f)/transpose(jvp(M))/add"("m.py":2:1)',
    '"jit(f)/add"("m.py":4:1)',
)
INLINED = ('"M/mlp/add"("m.py":2:1)', LOCATIONS[2], LOCATIONS[5], '"M/mlp/add"("m.py":2:1)')


def program(*locations: str) -> str:
    """One op after the other."""
    ops = (
        f"  %{number} = stablehlo.tanh %{number - 1} : tensor<8xf32> loc({location})"
        for number, location in enumerate(locations, start=1)
    )
    head = "func.func public @main(%0: tensor<8xf32>) {"
    return "\n".join([head, *ops, "  return loc(unknown)", "}"])


def names_of(text: str) -> OpNames:
    module = parse_bytes(text.encode(), new_context())
    ops = [op for op in operations_of(module.operation) if op.name == "stablehlo.tanh"]
    locations = [str(op.location) for op in ops]
    known = list(dict.fromkeys(locations))
    numbers = np.array([known.index(location) for location in locations], np.int32)
    return OpNames(ops, np.zeros_like(numbers), numbers)


def phases_of(text: str) -> list[str]:
    names = names_of(text)
    return [names.phase(number) for number in range(text.count("stablehlo.tanh"))]


def test_what_names_do_not_say_is_of_the_phase_where_it_stands():
    assert phases_of(program(*LOCATIONS)) == [
        "forward",
        "forward",
        "backward",
        "backward",
        "backward",
        "update",
    ]


def test_what_is_behind_in_a_scope_of_the_forward_half_is_its_backward_half():
    assert phases_of(program(*INLINED, LOCATIONS[5])) == [
        "forward",
        "backward",
        "backward",
        "backward",
        "update",
    ]


def test_a_program_without_gradients_has_one_phase():
    text = program(*LOCATIONS).replace("transpose(jvp(M))", "M").replace("jvp(M)", "M")
    assert set(phases_of(text)) == {Phase.STEP.value}


def test_call_stacks_of_one_line_are_there_once():
    names = names_of(program(*LOCATIONS))
    frames = names.stacks.frames
    assert names.frame(1) == names.frame(2)
    inner = frames[names.frame(1)]
    assert (inner.function, inner.file, inner.line) == ("M.call", "/a/m.py", 2)
    assert (frames[inner.caller].function, frames[inner.caller].line) == ("f", 9)
    assert frames[inner.caller].caller == -1


def test_names_have_the_file_without_its_folder():
    assert names_of(program(*LOCATIONS)).name(1) == "M/tanh@m.py:2"
    assert names_of(program(*LOCATIONS)).location(1) == "/a/m.py:2"
