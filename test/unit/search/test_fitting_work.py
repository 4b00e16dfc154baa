"""What is not done twice, or not at all, while a step is made to fit."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import attention_layers
import jax
import jax.numpy as jnp
import pytest
import tanh_layers
from jax.sharding import PartitionSpec
from plan_cases import whole_products

import autoshard
from autoshard.errors import DoesNotFitError, SlowerPlanError
from autoshard.frontend import planning
from autoshard.ir.inline import bytes_of
from autoshard.passes import fitting, recompute
from autoshard.passes.bracket import Bracket
from autoshard.passes.recursive_programming import (
    PlannedProgram,
    ReadProgram,
    RecursiveProgramming,
)
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.choice import Choice
from autoshard.rewrites.recomputation.decision import Answer, Fate
from autoshard.rewrites.recomputation.question import Rules
from autoshard.search import automatic
from autoshard.search.automatic import ALL_MEMORY, Job, Planned, least_bytes


def _step(weights: Any, x: Any) -> Any:
    """Each layer is recomputed as it comes: its input alone is stacked."""

    def loss(weights: Any) -> Any:
        def layer(h: Any, weight: Any) -> Any:
            return jnp.tanh(jnp.tanh(h @ weight) @ weight), None

        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2)

    return weights - jax.grad(loss)(weights)


ARGUMENTS = (
    jax.ShapeDtypeStruct((16, 64, 64), jnp.float32),
    jax.ShapeDtypeStruct((1 << 14, 64), jnp.float32),
)


def planned(limit: int, **options: Any) -> autoshard.Plan:
    return autoshard.plan(
        _step,
        *ARGUMENTS,
        cluster=whole_products("v5e:1x2"),
        recompute="auto",
        memory_limit=limit,
        **options,
    )


@pytest.fixture(scope="module")
def free() -> float:
    """Bytes that the step takes with no limit."""
    return autoshard.plan(_step, *ARGUMENTS, cluster=whole_products("v5e:1x2")).peak_bytes


def test_nothing_is_decided_that_is_no_better_than_keeping_all(
    free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack of what a loop carries could be made of itself, for nothing."""
    chosen: list[Choice] = []
    choose = fitting.choose

    def kept(block: Block, limit: float, rules: Rules, **others: Any) -> Choice:
        chosen.append(choose(block, limit, rules, **others))
        return chosen[-1]

    monkeypatch.setattr(fitting, "choose", kept)
    with pytest.raises(DoesNotFitError):
        planned(int(0.4 * free))
    assert any(one.question.pairs for one in chosen)
    for one in chosen:
        if one.chosen:
            assert one.effect.answer < one.question.answer({})


def test_moves_of_stacks_are_costed_with_what_else_is_written(
    free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    costed: list[Any] = []
    cost, rewritten = recompute.cost_of_module, fitting.Copies.rewritten
    costs: list[tuple[Choice, int]] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        costed.append(cost(*arguments, **options))
        return costed[-1]

    def told(self: Any, choice: Choice, *rest: Any) -> Any:
        before = len(costed)
        found = rewritten(self, choice, *rest)
        costs.append((choice, len(costed) - before))
        return found

    monkeypatch.setattr(recompute, "cost_of_module", counted)
    monkeypatch.setattr(fitting.Copies, "rewritten", told)
    plan = planned(int(0.7 * free), host_offload="auto")
    assert plan.summary is not None
    assert "host" in {row.decision for row in plan.summary.decided}
    sent = [count for choice, count in costs if set(choice.chosen.values()) == {Fate.HOST}]
    assert sent
    assert min(sent) == 1
    assert len({id(one.imported.rules) for one in costed}) == 1, "rules are made once"


def test_a_copy_is_not_costed_before_it_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes in ``main``, of which each copy says what the first module says."""

    def updates(weights: Any, batches: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            def layer(h: Any, weight: Any) -> Any:
                return jnp.tanh(jnp.tanh(h @ weight) @ weight), None

            return jnp.sum(jax.lax.scan(layer, x, weights)[0] ** 2)

        def update(weights: Any, x: Any) -> Any:
            return weights - jax.grad(loss)(weights, x), None

        return jax.lax.scan(update, weights, batches)[0]

    x = jax.ShapeDtypeStruct((2, 1 << 12, 64), jnp.float32)
    step, cluster = (updates, ARGUMENTS[0], x), whole_products("v5e:1x2")
    free = autoshard.plan(*step, cluster=cluster).peak_bytes
    costed: list[tuple[Any, bool]] = []
    cost, originals = recompute._cost_of_copy, set[bytes]()
    made = fitting.Copies.__init__

    def told(self: fitting.Copies, first: Any, original: bytes, cost: Any) -> None:
        originals.add(original)
        made(self, first, original, cost)

    def asked(first: Any, options: Any, copy: Any) -> Any:
        costed.append((copy, not is_writing and bytes_of(copy) in originals))
        return cost(first, options, copy)

    is_writing, write = list[bool](), fitting.write_choice

    def written(*rest: Any) -> Any:
        is_writing.append(True)
        try:
            return write(*rest)
        finally:
            is_writing.pop()

    monkeypatch.setattr(fitting, "write_choice", written)
    monkeypatch.setattr(fitting.Copies, "__init__", told)
    monkeypatch.setattr(recompute, "_cost_of_copy", asked)
    limit = int(0.8 * free)
    plan = autoshard.plan(*step, cluster=cluster, recompute="auto", memory_limit=limit)
    assert plan.peak_bytes <= limit
    rewritten = [copy for copy, is_same in costed if not is_same]
    assert rewritten
    assert not any(copy in rewritten for copy, is_same in costed if is_same)


def test_no_search_has_less_memory_than_values_take_that_are_cut_over_all_devices(
    free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device cuts nothing: what it holds at a time no other plan changes."""
    limits: list[str] = []
    searched = ReadProgram.searched

    def told(
        self: ReadProgram, options: RecursiveProgramming, *rest: Any, **more: Any
    ) -> PlannedProgram:
        limits.append(options.memory_limit)
        found = searched(self, options, *rest, **more)
        least = least_bytes(found)
        assert found.summary.peak_bytes_per_device * 0.9 < least
        assert least <= found.summary.peak_bytes_per_device
        return found

    monkeypatch.setattr(ReadProgram, "searched", told)
    limit = int(1.4 * free)
    plan = autoshard.plan(
        _step,
        *ARGUMENTS,
        cluster=whole_products("v5e:1x1"),
        recompute="auto",
        host_offload="auto",
        memory_limit=limit,
    )
    assert plan.peak_bytes <= limit
    assert limits == [ALL_MEMORY]


def test_no_search_has_less_memory_than_one_that_found_nothing(
    free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    searched = ReadProgram.searched

    def told(self: ReadProgram, *rest: Any, **more: Any) -> Any:
        found.append(False)
        made = searched(self, *rest, **more)
        found[-1] = True
        return made

    monkeypatch.setattr(planning, "with_switches", lambda error, *_: error)
    monkeypatch.setattr(ReadProgram, "searched", told)
    with pytest.raises(DoesNotFitError) as error:
        planned(int(0.4 * free), mesh="d=2", in_shardings=(PartitionSpec(), None))
    assert found[0]
    assert found.count(False) == 1
    assert error.value.memory_limit == int(0.4 * free)


def _attention_step(weights: Any, x: Any) -> Any:
    """Scores in float32, and products with them in bfloat16."""

    def loss(weights: Any) -> Any:
        h = x
        for query, key, value in weights:
            narrow = [(h @ one).astype(jnp.bfloat16) for one in (query, key, value)]
            scores = jnp.einsum(
                "bqd,bkd->bqk", narrow[0], narrow[1], preferred_element_type=jnp.float32
            )
            shares = jax.nn.softmax(scores).astype(jnp.bfloat16)
            h = h + jnp.einsum("bqk,bkd->bqd", shares, narrow[2]).astype(jnp.float32)
        return jnp.sum(h * h)

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def test_the_margin_is_not_given_up_where_far_more_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What goes first for less relieves no more where more is allowed."""
    options: Any = {"cluster": "v5e:1x2", "donate_argnums": 0}
    arguments = (
        [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 6,
        jax.ShapeDtypeStruct((4096, 256), jnp.float32),
    )
    free = autoshard.plan(tanh_layers.step, *arguments, **options)
    asked: list[tuple[float, float]] = []
    choice = fitting.Fitting.choice

    def told(self: Any, wanted: float, *rest: Any) -> Choice:
        asked.append((wanted, self.limit))
        return choice(self, wanted, *rest)

    monkeypatch.setattr(planning, "with_switches", lambda error, *_: error)
    monkeypatch.setattr(fitting.Fitting, "choice", told)
    limit = int(0.3 * free.peak_bytes)
    with pytest.raises(DoesNotFitError):
        autoshard.plan(
            tanh_layers.step, *arguments, **options, recompute="auto", memory_limit=limit
        )
    assert any(of == limit for _, of in asked)
    assert (limit, limit) not in asked


def test_more_goes_than_has_to_where_that_makes_the_step_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scores and their copies in bfloat16 are stored nowhere once both are computed again, where
    nobody looks at the kernels of copies before."""
    monkeypatch.setattr(Block, "seconds_besides", lambda *_: {})
    # Single changes and smaller limits find that, too.
    monkeypatch.setattr(fitting, "_MOST_OPS_IMPROVED", 0)
    monkeypatch.setattr(fitting, "_MOST_OPS_COSTED", 0)
    weights = [(jax.ShapeDtypeStruct((128, 128), jnp.float32),) * 3] * 6
    x = jax.ShapeDtypeStruct((8, 1024, 128), jnp.float32)
    step, cluster = (_attention_step, weights, x), "v5p:1x1x1"
    whole = autoshard.plan(*step, cluster=cluster)
    limit = int(0.75 * whole.peak_bytes)

    def fitted() -> autoshard.Plan:
        return autoshard.plan(*step, cluster=cluster, recompute="auto", memory_limit=limit)

    more = fitted()
    monkeypatch.setattr(fitting.Fitting, "let_more_go", lambda self: None)
    least = fitted()
    assert more.peak_bytes < 0.7 * least.peak_bytes
    assert more.step_seconds < 0.98 * whole.step_seconds < 0.98 * least.step_seconds


def test_no_search_follows_where_computing_again_makes_the_step_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No plan within less memory is faster than that of the search with all there could be."""
    weights = [(jax.ShapeDtypeStruct((64, 64), jnp.float32),) * 3] * 6
    x = jax.ShapeDtypeStruct((8, 1024, 64), jnp.float32)
    step = (_attention_step, weights, x)
    limit = int(0.75 * autoshard.plan(*step, cluster="v5p:1x1x1").peak_bytes)
    limits: list[str] = []
    searched = ReadProgram.searched

    def told(
        self: ReadProgram, options: RecursiveProgramming, *rest: Any, **more: Any
    ) -> PlannedProgram:
        limits.append(options.memory_limit)
        return searched(self, options, *rest, **more)

    monkeypatch.setattr(ReadProgram, "searched", told)
    autoshard.plan(*step, cluster="v5p:1x1x1", recompute="auto", memory_limit=limit)
    assert limits == [ALL_MEMORY]


@pytest.mark.parametrize(
    ("peak", "asked"), [(133.0, [inf, 100.0]), (140.0, [inf, 130.0, 100.0]), (102.0, [inf, 100.0])]
)
def test_no_search_has_hardly_less_memory_than_the_last_plan_takes(
    peak: float, asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans take all that they may, up to ``peak``, and 100 bytes are allowed."""
    limits: list[float] = []

    def searched(known: Any, allowed: str) -> Any:
        limits.append(float(allowed) if allowed != ALL_MEMORY else inf)
        taken = min(peak, limits[-1])
        return SimpleNamespace(
            summary=SimpleNamespace(peak_bytes_per_device=taken, step_seconds=1.0)
        )

    module: Any = object()
    summary: Any = SimpleNamespace(step_seconds=1.5)
    job: Any = SimpleNamespace(
        memory_limit=100.0,
        most_seconds=inf,
        most_free_seconds=inf,
        searched_once=searched,
        fitted_once=lambda *_: SimpleNamespace(may_fit=lambda _: True),
        limit_of=lambda _: 100.0,
        _within=lambda *_: Planned(module, summary),
    )
    known: Any = SimpleNamespace(program=SimpleNamespace(module=None))
    monkeypatch.setattr(automatic, "least_bytes", lambda _: 0.0)
    Job._plan_recomputing(job, recompute.Recompute(), known)
    assert limits == asked


def _gated_step(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        h = x
        for one in weights:
            h = h + (jax.nn.silu(h @ one["gate"]) * (h @ one["up"])) @ one["down"]
        return jnp.mean(h.astype(jnp.float32) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def _gated(layers: int, width: int, rows: int) -> tuple[Any, ...]:
    wide = jax.ShapeDtypeStruct((width, 3 * width), jnp.bfloat16)
    down = jax.ShapeDtypeStruct((3 * width, width), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((rows, width), jnp.bfloat16)
    return _gated_step, [{"gate": wide, "up": wide, "down": down}] * layers, x


def test_a_plan_that_cannot_fit_whatever_goes_is_written_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All weights are on each device in the fastest plan, and no weight may go."""

    def step(weights: Any, momenta: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            h = x
            for weight in weights:
                h = jnp.tanh(h @ weight)
            return jnp.mean(h.astype(jnp.float32) ** 2)

        gradients = jax.grad(loss)(weights)
        momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
        return [w - m.astype(w.dtype) for w, m in zip(weights, momenta, strict=True)], momenta

    def arrays(dtype: Any) -> list[Any]:
        return [jax.ShapeDtypeStruct((2048, 2048), dtype)] * 8

    x = jax.ShapeDtypeStruct((16_384, 2048), jnp.bfloat16)
    arguments = (arrays(jnp.bfloat16), arrays(jnp.float32), x)
    options: dict[str, Any] = {"cluster": "v5e:2x4", "donate_argnums": (0, 1)}
    free = autoshard.plan(step, *arguments, **options).peak_bytes
    peaks: list[float] = []
    fit = recompute._fit

    def told(given: fitting.Trial, *rest: Any) -> fitting.Trial:
        peaks.append(given.peak_bytes)
        return fit(given, *rest)

    monkeypatch.setattr(planning, "with_switches", lambda error, *_: error)
    monkeypatch.setattr(recompute, "_fit", told)
    limit = int(0.6 * free)
    with pytest.raises(DoesNotFitError):
        autoshard.plan(step, *arguments, recompute="auto", memory_limit=limit, **options)
    assert peaks[0] < free


def test_bytes_are_asked_for_between_those_that_fit_and_those_that_do_not() -> None:
    def choice(seconds: float) -> Any:
        return SimpleNamespace(effect=SimpleNamespace(answer=Answer(0.0, seconds)))

    tried = Bracket()
    tried.add(100.0, choice(1.0), -20.0)
    assert (tried.inside(80.0), tried.gain) == (80.0, inf)
    tried.add(60.0, choice(3.0), 20.0)
    assert [tried.inside(wanted) for wanted in (50.0, 70.0, 110.0)] == [80.0, 70.0, 80.0]
    tried.add(50.0, choice(4.0), 19.0)  # hardly closer
    assert tried.inside(70.0) == 80.0
    assert tried.gain == 2.0


@pytest.mark.parametrize("share", [0.45, 0.5, 0.75])
def test_a_step_with_the_host_is_no_slower_than_without(share: float) -> None:
    """Within half of the memory values at hand relieve most a second on the host at first."""
    step, options = _gated(6, 512, 32_768), {"cluster": "v5e:2x2", "donate_argnums": 0}
    options |= {"recompute": "auto"}
    limit = int(share * autoshard.plan(*step, **options).peak_bytes) + 1
    with_host = autoshard.plan(*step, host_offload="auto", memory_limit=limit, **options)
    try:
        alone = autoshard.plan(*step, memory_limit=limit, **options).step_seconds
    except DoesNotFitError:
        alone = inf
    assert with_host.step_seconds <= alone


def test_a_larger_limit_gives_no_slower_step_where_what_is_written_tells() -> None:
    step, options = _gated(6, 512, 32_768), {"cluster": "h100:4", "donate_argnums": 0}
    free = autoshard.plan(*step, **options).peak_bytes
    steps = [
        autoshard.plan(
            *step,
            recompute="auto",
            host_offload="auto",
            memory_limit=int(share * free) + 1,
            **options,
        ).step_seconds
        for share in (0.8, 0.7, 0.6, 0.5, 0.4)
    ]
    assert steps == sorted(steps)


def test_a_larger_limit_gives_no_slower_step_where_copies_share_kernels() -> None:
    step, options = attention_layers.step_of(6), {"cluster": "h100:1"}
    free = autoshard.plan(*step, **options).peak_bytes
    steps = [
        autoshard.plan(
            *step, recompute="auto", memory_limit=int(share * free) + 1, **options
        ).step_seconds
        for share in (1.1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    ]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("other", "is_better"),
    [((960.0, 0.9), True), ((960.0, 0.97), False), ((1010.0, 0.5), False), ((800.0, 1.0), False)],
)
def test_the_margin_of_a_limit_costs_no_more_than_it_is(
    other: tuple[float, float], is_better: bool
) -> None:
    """80 of 1,000 bytes are left free; 4% more than that are worth less than 10% of a step."""

    def rank(peak: float, seconds: float) -> tuple[bool, float]:
        costed: Any = SimpleNamespace(peak_bytes=peak, step_seconds=seconds)
        return fitting.Trial(module=costed, costed=costed).rank(920.0, 1000.0)

    assert (rank(*other) < rank(900.0, 1.0)) is is_better


def test_what_needs_too_much_and_is_too_slow_is_rewritten_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing that needs less is faster."""
    step, options = _gated(6, 512, 32_768), {"cluster": "h100:4", "donate_argnums": 0}
    free = autoshard.plan(*step, **options)
    written: list[float] = []
    add = fitting.Fitting.add

    def told(self: fitting.Fitting, trial: fitting.Trial) -> None:
        written.append(trial.peak_bytes)
        add(self, trial)

    def planned_within(most_seconds: float) -> None:
        fit = recompute.FittedPlans.within

        def within(self: recompute.FittedPlans, limit: float, *_: float) -> Any:
            return fit(self, limit, most_seconds)

        with monkeypatch.context() as patch:
            patch.setattr(recompute.FittedPlans, "within", within)
            autoshard.plan(
                *step, recompute="auto", memory_limit=int(0.2 * free.peak_bytes), **options
            )

    monkeypatch.setattr(planning, "with_switches", lambda error, *_: error)
    monkeypatch.setattr(fitting.Fitting, "add", told)
    with pytest.raises(DoesNotFitError):
        planned_within(inf)
    before = len(written)
    with pytest.raises(SlowerPlanError):
        planned_within(free.step_seconds)
    assert len(written) - before < before
