"""Lines of user code that make propagation arrive at a plan: found, written and tried."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from user_files import module_at

import autoshard
from autoshard.errors import PlanError
from autoshard.explain import line_candidates, line_choice
from autoshard.explain.halves import Half, Halves
from autoshard.explain.line_choice import LineChoice
from autoshard.explain.propagated_lines import propagation_of
from autoshard.explain.question import subject_of

MODEL = """
import jax
import jax.numpy as jnp


def loss(params, x):
    for layer in params:
        hidden = x @ layer["up"]
        hidden = jax.nn.gelu(hidden)
        x = x + hidden @ layer["down"]
    return jnp.mean(x**2)


def step(params, x):
    gradients = jax.grad(loss)(params, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)
"""


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


PARAMS = [{"up": array(2048, 8192), "down": array(8192, 2048)}] * 3
X = array(4096, 2048)


def patched(text, patch):
    """A file with a unified diff that only adds lines."""
    rows = text.splitlines(keepends=True)
    added, at = {}, 0
    for row in patch.splitlines(keepends=True):
        if row.startswith("@@"):
            at = int(row.split()[1][1:].partition(",")[0]) - 1
        elif row.startswith("+") and not row.startswith("+++"):
            added.setdefault(at, []).append(row[1:])
        elif row.startswith(" "):
            assert row[1:] == rows[at]
            at += 1
    assert added
    return "".join(
        line
        for number in range(len(rows) + 1)
        for line in [*added.get(number, []), *rows[number : number + 1]]
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("annotated") / "annotated_model.py"
    path.write_text(MODEL)
    step = module_at(path, "annotated_model").step
    plan = autoshard.plan(step, PARAMS, X, cluster="v5e:4x4", mesh="data=4,model=4")
    return path, plan, plan.annotations()


def test_a_few_lines_reproduce_what_a_plan_sends(made):
    _, _, found = made
    assert found.reproduced > 0.8
    assert 1 <= len(found.lines) <= 10
    assert not found.not_by_shardy
    assert sum(one.bytes for one in found.missing) == pytest.approx(
        (1 - found.reproduced) * found.planned_bytes, abs=1
    )


def test_no_line_can_be_left_out(made):
    """Without any of them less is reproduced, or more is sent besides or the step is longer."""
    _, plan, found = made
    subject = plan.subject
    said = [one for one in line_candidates.candidates(subject) if one.annotation in found.lines]
    assert len(said) == len(found.lines) > 1
    propagation, _ = propagation_of(subject)
    choice = LineChoice(subject, said, propagation)
    everything = propagation(said)
    assert choice._share(everything) == pytest.approx(found.reproduced)
    for line in said:
        less = propagation([other for other in said if other is not line])
        assert choice._share(less) < found.reproduced or choice._excess(less) > choice._excess(
            everything
        ), line.annotation


def test_lines_that_were_not_tried_without_are_counted(made, monkeypatch):
    _, plan, found = made
    monkeypatch.setattr(line_choice, "_OPS_AGAIN", len(plan.subject.imported.core_ops))
    hurried = plan.annotations()
    assert hurried.untried >= len(found.lines)
    said = f"without {hurried.untried} of the lines it was not tried"
    assert said in " ".join(str(hurried).split())
    assert found.untried == 0


def test_lines_of_operands_are_what_the_plan_has_ops_read(made, monkeypatch):
    """Alone, they bring back collectives; values lie as propagation has them.

    What ops that ask for a collective read as it is held is one as well, but only for these ops.
    """
    _, plan, _ = made
    subject = plan.subject
    rows = subject.plan.shardings
    asking = set(subject.plan.reshards.index)
    halves, ops = Halves(subject), subject.imported.core_ops
    lines = list(line_candidates._of_operands(subject, halves))
    for line in lines:
        for value, readers in zip(line.values, line.readers, strict=True):
            if not readers:  # its cotangent
                assert subject.dims[value] == line.dims
                assert halves.of_value(value) is not Half.FORWARD
                continue
            is_asked = asking & {op for op, _ in readers}
            is_again = all(halves.is_backward(ops[op]) for op, _ in readers)
            assert subject.dims[value] != line.dims or is_asked or is_again
            for op, operand in readers:
                operands, _ = subject.plan.strategies[subject.plan.op_strategy[op]]
                assert rows[operands[operand]] == list(map(list, line.dims))
    monkeypatch.setattr(line_candidates, "_of_values", lambda *_: iter(()))
    found = plan.annotations()
    assert found.lines
    words = {one.name.partition(" ")[0] for one in found.lines}
    assert words <= {"operand", "read", "made"}
    assert {one.location for one in found.lines} <= {one.annotation.location for one in lines}
    assert found.reproduced > 0
    assert "operand 0 of dot_general" in found.to_python()
    assert found.to_patch().startswith("# by hand")


def test_the_lines_written_into_the_program_propagate_to_the_plan(made, tmp_path):
    """The patch is applied, and the file planned from its own annotations alone."""
    path, plan, found = made
    target = tmp_path / "annotated_model.py"
    target.write_text(patched(path.read_text(), found.to_patch()))
    mesh = jax.sharding.AbstractMesh((4, 4), ("data", "model"))
    specs = jax.tree.unflatten(
        jax.tree.structure((PARAMS, X)), [found.spec_of(value.name) for value in plan.arguments]
    )
    with jax.sharding.use_abstract_mesh(mesh):
        again = autoshard.plan(
            module_at(target, "annotated_again").step,
            PARAMS,
            X,
            cluster="v5e:4x4",
            mesh="data=4,model=4",
            mode="semi_auto",
            in_shardings=specs,
        )
    assert again.step_seconds == pytest.approx(found.step_seconds, rel=0.1)
    assert again.step_seconds < 1.15 * plan.step_seconds


MAPPED = """
import jax
import jax.numpy as jnp


def one(params, row):
    hidden = jnp.tanh(row @ params["up"])
    return hidden @ params["down"]


def scanned(params, row):
    def body(carry, _):
        carry = jnp.tanh(carry @ params["up"] @ params["down"])
        return carry, None

    return jax.lax.scan(body, row, None, length=2)[0]


def step_of(fn):
    def loss(params, x):
        return jnp.mean(fn(params, x) ** 2)

    def step(params, x):
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    return step


def mapped(fn):
    return jax.vmap(fn, in_axes=(None, 0))


steps = {
    "itself": step_of(mapped(one)),
    "in a function": step_of(mapped(jax.jit(scanned))),
    "in a loop": step_of(mapped(scanned)),
    "not": step_of(one),
    "not in a function": step_of(jax.jit(scanned)),
    "not in a loop": step_of(scanned),
}
"""


@pytest.mark.parametrize(
    ("way", "is_edited"),
    [
        ("itself", False),
        ("in a function", False),
        ("in a loop", False),
        ("not", True),
        ("not in a function", True),
        ("not in a loop", True),
    ],
)
def test_what_vmap_gives_more_dims_is_left_to_the_user(tmp_path, way, is_edited):
    """The line makes a row, of which the program has the whole batch."""
    path = tmp_path / "mapped_model.py"
    path.write_text(MAPPED)
    step = module_at(path, "mapped_model").steps[way]
    params = {"up": array(2048, 8192), "down": array(8192, 2048)}
    plan = autoshard.plan(step, params, X, cluster="v5e:4x4", mesh="data=4,model=4")
    edited, _, by_hand = plan.annotations().to_patch().partition("# by hand:")
    assert ("with_sharding_constraint" in edited) is is_edited
    assert is_edited or "mapped_model.py" in by_hand


def test_a_module_of_specs_can_be_run(made):
    _, _, found = made
    said: dict[str, object] = {}
    exec(found.to_python(), said)
    assert said["MESH"] == {"data": 4, "model": 4}
    assert set(said["ARGUMENTS"]) == set(found.arguments)
    names = ("CONSTRAINTS", "FORWARD", "BACKWARD")
    assert sum(len(said.get(name, ())) for name in names) == found.writable - len(found.arguments)


def test_the_table_says_how_much_is_reproduced(made):
    _, _, found = made
    text = str(found)
    assert f"{len(found.lines)} lines reproduce {found.reproduced:.1%} of" in text


def test_no_lines_are_an_error(made):
    with pytest.raises(PlanError, match=r"most_lines=0\. Give 1 or more"):
        made[1].annotations(0)
    assert subject_of(made[1]).mesh == made[1].mesh
