"""Which plans are compiled, and which one is taken; compilers are stood in for."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.errors import AutoshardWarning, CompileError, DoesNotFitError, PassOptionError
from autoshard.ir import new_context, parse_bytes
from autoshard.search.automatic import Planned
from autoshard.search.refine import Attempt, Budget, Refinement, mesh_shapes, refine

MODULE = b"module { func.func public @main() { return } }"


@dataclass
class Summary:
    """What refining reads of one."""

    mesh: str
    step_seconds: float
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    peak_bytes_per_device: float = 0.0


@dataclass
class Found:
    """What refining reads of a ``Verification``."""

    fits: bool
    schedule: Any
    program: Any = None


@dataclass
class Schedule:
    scheduled_seconds: float
    nothing_hidden_seconds: float = 9.0
    all_hidden_seconds: float = 1.0


def planned(mesh: str, seconds: float) -> Planned:
    summary: Any = Summary(mesh, seconds, compute_seconds=seconds)
    return Planned(parse_bytes(MODULE, new_context(), "module"), summary)


@dataclass
class Compiler:
    """Says of each mesh what it is told."""

    answers: dict[str, Any]
    asked: list[str] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)

    def __call__(self, plan: Planned, timeout: float, stop: threading.Event) -> Any:
        assert plan.summary is not None
        self.asked.append(plan.summary.mesh)
        self.timeouts.append(timeout)
        answer = self.answers[plan.summary.mesh]
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, Found) else Found(True, Schedule(answer))


MODELLED = {"8": 5.0, "2x4": 3.0, "4x2": 4.0, "2x2x2": 2.5}


def refined(
    answers: dict[str, Any], budget: Budget, shapes: tuple[str, ...] = tuple(MODELLED)
) -> tuple[str, Refinement, Compiler, list[Attempt]]:
    """The mesh that is taken, what became of all, the compiler and the last that was shown."""
    compiler = Compiler(answers)
    shown: list[Attempt] = []

    def show(attempts: Any) -> None:
        shown[:] = attempts

    taken, refinement = refine(
        planned("first", 2.0),
        lambda shape: planned(shape, MODELLED[shape]),
        shapes,
        compiler,
        budget,
        show,
    )
    assert taken.summary is not None
    return taken.summary.mesh, refinement, compiler, shown


def test_meshes_join_neighbours_of_the_axes_of_a_search():
    assert mesh_shapes(Cluster.parse("h100:8")) == ("8", "2x4", "4x2", "2x2x2")
    assert mesh_shapes(Cluster.parse("v5e:2x3")) == ("6", "2x3")
    assert mesh_shapes(Cluster.parse("h100:1")) == ()


def test_the_shortest_step_as_scheduled_is_taken_whatever_the_model_says():
    answers = {"first": 4.0, "2x2x2": 3.0, "2x4": 2.0, "4x2": 1.0}
    mesh, refinement, compiler, shown = refined(answers, Budget(3))
    # The first and the two that are fastest by the model; 4x2 is not compiled.
    assert compiler.asked == ["first", "2x2x2", "2x4"]
    assert mesh == "2x4"
    assert refinement.taken.scheduled_seconds == 2.0
    assert [one.is_taken for one in refinement.attempts] == [False, False, True]
    assert shown == list(refinement.attempts)
    assert refinement.ended == "all"


def test_what_does_not_fit_as_compiled_or_is_refused_is_not_taken():
    answers = {
        "first": 4.0,
        "2x2x2": Found(False, Schedule(1.0)),
        "2x4": CompileError("an op is not known", reason="refused"),
    }
    mesh, refinement, _, _ = refined(answers, Budget(3))
    assert mesh == "first"
    assert [one.why for one in refinement.attempts] == [
        "",
        "does not fit",
        "refused: an op is not known",
    ]
    assert "refused: an op" in str(refinement)


def test_where_nothing_fits_the_plan_of_the_search_stays_and_says_so():
    answers = {"first": Found(False, None, program=type("Program", (), {"no_hlo_text": None}))}
    with pytest.warns(AutoshardWarning, match="no plan was compiled that fits .* first: does not"):
        mesh, *_ = refined(answers, Budget(1))
    assert mesh == "first"


def test_a_plan_that_is_the_same_on_another_mesh_is_compiled_once(monkeypatch: Any):
    monkeypatch.setitem(MODELLED, "2x4", 2.0)
    monkeypatch.setitem(MODELLED, "2x2x2", 2.0)
    _, _, compiler, _ = refined({"first": 1.0, "4x2": 2.0, "8": 3.0}, Budget(4))
    assert compiler.asked == ["first", "4x2", "8"]


def test_meshes_on_which_no_plan_fits_are_left_out():
    def plan_on(shape: str) -> Planned:
        if shape == "8":
            raise DoesNotFitError("too large", None, 2.0, 1.0)
        return planned(shape, 3.0)

    compiler = Compiler({"first": 2.0, "2x4": 1.0})
    taken, _ = refine(
        planned("first", 2.0), plan_on, ("8", "2x4"), compiler, Budget(4), lambda _: None
    )
    assert taken.summary is not None
    assert taken.summary.mesh == "2x4"


def test_no_compile_begins_when_the_seconds_are_spent():
    with pytest.warns(AutoshardWarning, match="first: out of time"):
        mesh, refinement, compiler, _ = refined({}, Budget(4, seconds=1e-9))
    assert (mesh, compiler.asked, refinement.ended) == ("first", [], "seconds")


def test_a_compile_may_take_what_is_left():
    _, _, compiler, _ = refined({"first": 1.0}, Budget(1, seconds=50))
    assert 0 < compiler.timeouts[0] <= 50


def test_an_interrupt_takes_the_best_so_far():
    answers = {"first": 4.0, "2x2x2": 3.0, "2x4": KeyboardInterrupt(), "4x2": 1.0}
    mesh, refinement, compiler, _ = refined(answers, Budget(4))
    assert (mesh, refinement.ended) == ("2x2x2", "interrupt")
    assert compiler.asked == ["first", "2x2x2", "2x4"]
    assert [one.state for one in refinement.attempts[2:]] == ["compiling", "waiting"]


def test_a_compiler_that_is_not_installed_is_an_error():
    missing = CompileError("libtpu is not installed", reason="not installed")
    with pytest.raises(CompileError, match="libtpu is not installed"):
        refined({"first": missing}, Budget(2))


def test_compilers_run_beside_each_other():
    both = threading.Barrier(2, timeout=20)

    def compiler(plan: Planned, timeout: float, stop: threading.Event) -> Any:
        both.wait()  # only two at once get past it
        return Found(True, Schedule(1.0))

    _, refinement = refine(
        planned("first", 2.0),
        lambda shape: planned(shape, 3.0),
        ("8",),
        compiler,
        Budget(2, processes=2),
        lambda _: None,
    )
    assert {one.state for one in refinement.attempts} == {"compiled"}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"compiles": 0}, "compiles=0 is out of range"),
        ({"seconds": 0.0}, "seconds=0.0 is out of range"),
        ({"processes": 0}, "processes=0 is out of range"),
    ],
)
def test_a_budget_of_nothing_is_refused(numbers: dict[str, Any], said: str):
    with pytest.raises(PassOptionError, match=said):
        Budget(**numbers)


def test_only_plans_of_the_search_are_refined(tmp_path: Any):
    def double(x: Any) -> Any:
        return 2 * x

    import jax

    x = jax.ShapeDtypeStruct((64, 64), "float32")
    made = autoshard.plan(double, x, cluster="cpu:8", mode="data_parallel", batch_argnums=0)
    with pytest.raises(autoshard.PlanError, match="mode 'data_parallel' does not search"):
        made.refine()
    made = autoshard.plan(double, x, cluster="cpu:8")
    made.save(tmp_path / "plan.json")
    with pytest.raises(autoshard.PlanError, match="a plan that was loaded"):
        autoshard.Plan.load(tmp_path / "plan.json").refine()


def test_the_search_keeps_the_shape_of_a_mesh_and_names_its_axes():
    from autoshard.passes.recursive_programming import RecursiveProgramming, search_module

    text = b"""module { func.func public @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = stablehlo.tanh %x : tensor<64x32xf32>
      return %y : tensor<64x32xf32> } }"""

    def mesh(shape: str) -> str:
        module = parse_bytes(text, new_context(), "module")
        options = RecursiveProgramming(mesh_shape=shape)
        return str(search_module(module, Cluster.parse("h100:8"), options).mesh)

    assert mesh("8") == "gpu=8"
    assert mesh("2x4") == "gpu=2,gpu2=4"
    with pytest.raises(PassOptionError, match="mesh-shape=3x3 joins no neighbours"):
        mesh("3x3")
    with pytest.raises(PassOptionError, match="expected sizes such as 2x4"):
        mesh("2,4")
