"""Where values are said that one line makes for many callers."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import pytest
from user_files import module_at

import autoshard
from autoshard.explain.call_sites import Place
from autoshard.explain.halves import Halves
from autoshard.explain.line_candidates import candidates

if TYPE_CHECKING:
    from pathlib import Path

    from autoshard.explain.question import Subject

MODEL = """
import autoshard
import jax
import jax.numpy as jnp


def dense(x, w, cut):
    return autoshard.shard(jnp.matmul, out_strategy=cut)(x, w)


def layers(x, first, second, cuts):
    y = dense(x, first, cuts[0])
    z = dense(x, second, cuts[1])
    return jnp.sin(y) * jnp.sin(z)


def again(x, first, second, cuts):
    run = jax.checkpoint(layers, static_argnums=3)
    return jax.value_and_grad(lambda w: run(x, *w, cuts).sum())((first, second))
"""
DENSE, FIRST, SECOND = "8", "12", "13"
TYPE = "64x128xf32"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    path: Path = tmp_path_factory.mktemp("called") / "called_model.py"
    path.write_text(MODEL)
    return module_at(path, "called_model")


def planned(function: object, *cuts: tuple[int, int]) -> Subject:
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (32, 128)))
    plan = autoshard.plan(
        function, x, w, w, cuts, cluster="v5e:2x2", mesh="a=2,b=2", static_argnums=3
    )
    return plan.subject


def places(subject: Subject) -> list[tuple[str, str, str]]:
    """Places of the matmuls' results, by the numbers of their lines."""
    halves = Halves(subject)
    found = [
        place
        for number, op in enumerate(subject.imported.core_ops)
        if op.name == "stablehlo.dot_general" and not halves.is_backward(op)
        if number not in subject.imported.rounded
        if (place := halves.sites.of(op, op.results[0].type)) is not None
    ]
    return [_numbers(place) for place in found]


def _numbers(place: Place) -> tuple[str, str, str]:
    return place.location.rpartition(":")[2], place.type, place.within.rpartition(":")[2]


def test_what_is_cut_alike_is_at_its_own_line(model: ModuleType) -> None:
    said = places(planned(model.layers, (2, 2), (2, 2)))
    assert said == [(DENSE, TYPE, ""), (DENSE, TYPE, "")]


def test_what_is_cut_otherwise_is_where_the_function_is_called(model: ModuleType) -> None:
    subject = planned(model.layers, (2, 2), (1, 4))
    assert places(subject) == [(FIRST, TYPE, DENSE), (SECOND, TYPE, DENSE)]
    lines = [line.annotation for line in candidates(subject) if line.annotation.within]
    made = {line.text.rpartition("/")[2]: line.spec for line in lines if line.name == "dot_general"}
    assert {tuple(map(len, spec)) for spec in made.values()} == {(1, 1), (0, 2)}
    for line in lines:
        if line.name == "dot_general":
            assert line.what == f"dot_general of {line.within.rpartition('/')[2]}"
            assert line.what in line.text


def test_what_is_computed_again_is_at_the_line_of_what_it_repeats(model: ModuleType) -> None:
    """No line of code could tell them apart."""
    said = places(planned(model.again, (2, 2), (1, 4)))
    assert set(said) == {(FIRST, TYPE, DENSE), (SECOND, TYPE, DENSE)}
    assert len(said) == 4
