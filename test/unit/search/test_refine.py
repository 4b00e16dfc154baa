"""Which plans are compiled, and which one is taken; compilers are stood in for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.cluster.corrections import Corrections
from autoshard.errors import (
    AutoshardWarning,
    CompileError,
    DoesNotFitError,
    PassOptionError,
    PlanError,
)
from autoshard.ir import new_context, parse_bytes
from autoshard.search.automatic import Planned
from autoshard.search.corrections import Measured, corrections_of
from autoshard.search.refine import Attempt, Budget, Refinement, Search, refine
from autoshard.search.ways import mesh_shapes

MODULE = b"module { func.func public @main() { return } }"


@dataclass
class Summary:
    """What refining reads of one."""

    mesh: str
    step_seconds: float
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    peak_bytes_per_device: float = 0.0
    scheduled_seconds: float | None = None

    def read_cluster(self) -> Cluster:
        return Cluster.parse("h100:8")


@dataclass
class Found:
    """What refining reads of a ``Verification``."""

    fits: bool
    schedule: Any
    program: Any = field(default_factory=lambda: Program())


@dataclass
class Program:
    needed_bytes: int = 1
    no_hlo_text: str | None = None


@dataclass
class Schedule:
    scheduled_seconds: float
    nothing_hidden_seconds: float = 9.0
    all_hidden_seconds: float = 1.0


def planned(mesh: str, seconds: float) -> Planned:
    summary: Any = Summary(mesh, seconds, seconds, seconds)
    return Planned(parse_bytes(MODULE, new_context(), "module"), summary)


@dataclass
class Compiler:
    """Says of each mesh what it is told."""

    answers: dict[str, Any]
    asked: list[str] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)

    def __call__(
        self, plan: Planned, timeout: float, stop: threading.Event, options: Mapping[str, Any]
    ) -> Any:
        assert plan.summary is not None
        asked = " ".join([plan.summary.mesh, *options])
        self.asked.append(asked)
        self.timeouts.append(timeout)
        answer = self.answers[asked]
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

    search = Search(lambda shape, _: planned(shape, MODELLED[shape]), shapes)
    taken, refinement = refine(planned("first", 2.0), search, compiler, budget, show)
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
    answers = {"first": Found(False, None)}
    with pytest.warns(AutoshardWarning, match="no plan was compiled that fits .* first: does not"):
        mesh, *_ = refined(answers, Budget(1))
    assert mesh == "first"


def test_a_plan_that_is_the_same_on_another_mesh_is_compiled_once(monkeypatch: Any):
    monkeypatch.setitem(MODELLED, "2x4", 2.0)
    monkeypatch.setitem(MODELLED, "2x2x2", 2.0)
    _, _, compiler, _ = refined({"first": 1.0, "4x2": 2.0, "8": 3.0}, Budget(4))
    assert compiler.asked == ["first", "4x2", "8"]


def test_meshes_on_which_no_plan_fits_are_left_out():
    def plan_on(shape: str, _: Corrections) -> Planned:
        if shape == "8":
            raise DoesNotFitError("too large", None, 2.0, 1.0)
        return planned(shape, 3.0)

    compiler = Compiler({"first": 2.0, "2x4": 1.0})
    search = Search(plan_on, ("8", "2x4"))
    taken, _ = refine(planned("first", 2.0), search, compiler, Budget(4), lambda _: None)
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
    assert [one.state for one in refinement.attempts[2:]] == ["compiling"]


def test_a_compiler_that_is_not_installed_is_an_error():
    missing = CompileError("libtpu is not installed", reason="not installed")
    with pytest.raises(CompileError, match="libtpu is not installed"):
        refined({"first": missing}, Budget(2))


def test_compilers_run_beside_each_other():
    both = threading.Barrier(2, timeout=20)

    def compiler(plan: Planned, *_: Any) -> Any:
        assert plan.summary is not None
        if plan.summary.mesh != "first":
            both.wait()  # only two at once get past it
        return Found(True, Schedule(1.0))

    search = Search(lambda shape, _: planned(shape, MODELLED[shape]), ("8", "2x4"))
    budget = Budget(3, processes=2)
    _, refinement = refine(planned("first", 2.0), search, compiler, budget, lambda _: None)
    assert {one.state for one in refinement.attempts} == {"compiled"}
    assert len(refinement.attempts) == 3


def test_the_best_plan_is_compiled_once_more_with_each_set_of_options():
    answers: dict[str, Any] = {
        "first": 4.0,
        "2x2x2": 3.0,
        "2x2x2 slow": 3.5,
        "2x2x2 fast": 2.0,
        "2x2x2 unknown": CompileError("no such option", reason="refused"),
        "2x2x2 large": Found(False, Schedule(1.0)),
    }
    sets = tuple({name: "1"} for name in ("slow", "fast", "unknown", "large"))
    mesh, refinement, compiler, _ = refined(answers, Budget(2, options=sets))
    assert (mesh, compiler.asked) == ("2x2x2", list(answers))
    assert refinement.taken.options == {"fast": "1"}
    assert [one.kind for one in refinement.attempts[2:]] == [
        *("slow=1", "fast=1", "unknown=1", "large=1")
    ]
    assert refinement.attempts[4].why == "refused: no such option"
    assert "fast=1" in str(refinement)


def test_options_that_gain_nothing_are_not_taken():
    answers = {"first": 3.0, "first slow": 3.0}
    _, refinement, _, _ = refined(answers, Budget(1, options=({"slow": "1"},)))
    assert refinement.taken is refinement.attempts[0]
    assert refinement.taken.options == {}


def test_nothing_is_compiled_with_options_that_no_plan_fits_without():
    answers = {"first": Found(False, Schedule(3.0))}
    with pytest.warns(AutoshardWarning, match="no plan was compiled that fits"):
        _, _, compiler, _ = refined(answers, Budget(1, options=({"slow": "1"},)))
    assert compiler.asked == ["first"]


def test_a_set_of_options_that_nobody_published_is_refused_at_once():
    with pytest.raises(PlanError, match='called "maxtext-v5"'):
        Budget(options=("maxtext-v5",))


def corrected(
    answers: dict[str, Any],
    modelled: Any,
    budget: Budget,
    *,
    limit: float = 100.0,
    times: Iterator[float] | None = None,
) -> tuple[str, Refinement, list[tuple[str, Corrections]]]:
    """What is taken where compiled programs need twice the seconds and 8 bytes more; what was
    planned, and with what."""
    asked: list[tuple[str, Corrections]] = []

    def plan_in(way: str, corrections: Corrections) -> Planned:
        asked.append((way, corrections))
        return modelled(way, corrections)

    def measure(plan: Planned, found: Any) -> Measured:
        assert plan.summary is not None
        modelled = plan.summary.peak_bytes_per_device
        took = 2.0 if times is None else next(times)
        return Measured(modelled, found.program.needed_bytes, (1.0, 1.0), (took, took))

    search = Search(plan_in, ("8",), "own", measure, lambda way: way, limit)
    taken, refinement = refine(
        planned("first", 2.0), search, Compiler(answers), budget, lambda _: None
    )
    assert taken.summary is not None
    return taken.summary.mesh, refinement, asked


def test_plans_after_the_first_are_made_with_what_its_program_says():
    answers = {
        "first": Found(True, Schedule(4.0), Program(8)),
        "own": Found(True, Schedule(3.0), Program(6)),
        "8": Found(True, Schedule(5.0), Program(9)),
    }
    mesh, refinement, asked = corrected(
        answers, lambda way, _: planned(way, 3.5 if way == "own" else 3.6), Budget(3)
    )
    assert asked == [("own", Corrections(2.0, 2.0, 8.0)), ("8", Corrections(2.0, 2.0, 8.0))]
    assert mesh == "own"
    assert [one.kind for one in refinement.attempts] == ["", "again", "8"]
    assert refinement.corrections == Corrections(2.0, 2.0, 6.0)
    assert refinement.attempts[1].modelled_peak_bytes == 8.0


def test_what_was_compiled_since_corrects_a_plan_that_waited():
    answers = {name: Found(True, Schedule(4.0)) for name in ("first", "own, 2", "8, 2.5")}

    def plan_in(way: str, corrections: Corrections) -> Planned:
        return planned(f"{way}, {corrections.products:g}", 3.5 if way == "own" else 3.6)

    times = iter((2.0, 3.0, 2.0))
    _, refinement, asked = corrected(answers, plan_in, Budget(3), times=times)
    assert [one.mesh for one in refinement.attempts] == list(answers)
    assert [(way, said.products) for way, said in asked] == [("own", 2), ("8", 2), ("8", 2.5)]


def test_nothing_is_planned_again_when_the_seconds_are_spent(monkeypatch: Any):
    answers = {name: Found(True, Schedule(4.0)) for name in ("first", "own, 2", "8, 2")}

    def plan_in(way: str, corrections: Corrections) -> Planned:
        return planned(f"{way}, {corrections.products:g}", 3.5 if way == "own" else 3.6)

    def times() -> Any:
        yield 2.0
        monkeypatch.setattr(time, "monotonic", lambda: now + 100)
        yield 3.0

    now = time.monotonic()
    _, refinement, asked = corrected(answers, plan_in, Budget(3, seconds=50), times=times())
    assert [(way, said.products) for way, said in asked] == [("own", 2), ("8", 2)]
    assert refinement.attempts[2].why == "out of time"


def said_of(*compiled: tuple[float, float]) -> tuple[float, float]:
    """What is made of plans that take 1 s of products and 1 s of others each by the model."""
    measured = [Measured(10.0, 14.0, (1.0, 1.0), seconds) for seconds in compiled]
    said = corrections_of(measured)
    assert said.memory_bytes == 4.0
    return said.products, said.others


def test_plans_correct_the_costs_together_where_they_say_the_same():
    assert said_of((2.0, 1.0)) == (2.0, 1.0)
    assert said_of((2.0, 1.0), (3.0, 1.0)) == (2.5, 1.0)


def test_costs_stay_as_modelled_where_plans_contradict_each_other():
    assert said_of((2.0, 1.0), (0.5, 1.0)) == (1.0, 1.0)
    # Two of three say the same, and the third is further off with what they say.
    assert said_of((1.1, 1.0), (1.1, 1.0), (0.4, 1.0)) == (1.0, 1.0)


def test_bytes_are_those_that_the_first_plan_lacked():
    said = corrections_of([Measured(10.0, 14.0), Measured(10.0, 8.0)])
    assert said == Corrections(memory_bytes=4.0)


def test_plans_of_another_kind_are_compiled_before_those_that_are_alike(monkeypatch: Any):
    monkeypatch.setitem(MODELLED, "8", 2.001)
    monkeypatch.setitem(MODELLED, "2x4", 2.0005)
    _, _, compiler, _ = refined(
        {"first": 1.0, "2x2x2": 2.0, "4x2": 2.0, "2x4": 2.0, "8": 3.0}, Budget(4)
    )
    assert compiler.asked == ["first", "2x2x2", "4x2", "2x4"]


def test_what_does_not_fit_is_planned_again_with_the_bytes_that_it_lacked():
    sizes = iter((150, 120, 90))

    def plan_in(way: str, corrections: Corrections) -> Planned:
        return planned(f"{way}, {corrections.memory_bytes:g} besides", 3.0 + len(seen))

    seen: list[str] = []
    answers: Any = type(
        "Answers",
        (dict,),
        {
            "__getitem__": lambda self, mesh: (
                seen.append(mesh) or Found(True, Schedule(5.0 - len(seen)), Program(next(sizes)))
            )
        },
    )()
    mesh, refinement, asked = corrected(answers, plan_in, Budget(3))
    assert [one.fits for one in refinement.attempts] == [False, False, True]
    assert [corrections.memory_bytes for way, corrections in asked if way == "own"] == [150, 120]
    assert mesh == refinement.attempts[2].mesh


def test_a_program_that_costs_what_is_modelled_is_not_planned_again():
    asked: list[str] = []

    def plan_in(way: str, corrections: Corrections) -> Planned:
        asked.append(way)
        return planned(way, 3.0)

    search = Search(plan_in, ("8",), "own", lambda *_: Measured(1.0, 1.0, (1.0, 1.0), (1.0, 1.0)))
    compiler = Compiler({"first": 1.0, "8": 2.0})
    refine(planned("first", 2.0), search, compiler, Budget(3), lambda _: None)
    assert asked == ["8"]


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
