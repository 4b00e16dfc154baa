"""The timeline of a step has all seconds of the plan, in the order of the program."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from explained_plans import LAYERS, layers_plan
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import PlanError
from autoshard.explain import timeline_build
from autoshard.explain.timeline import (
    PARTS,
    Timeline,
    TimelineBar,
    as_one,
    short_together,
    timeline_of_schedule,
)
from autoshard.explain.timeline_trace import timeline_trace
from autoshard.verify.schedule.lines import Begin, Compute, Repeat, Wait
from autoshard.verify.schedule.schedule import Stream, Transfer
from autoshard.verify.schedule.simulate import simulate

COMPUTE, TORUS = Stream.COMPUTE.value, Stream.TORUS.value


def scanned_loss(layers, x):
    def layer(x, w):
        return jax.nn.gelu(x @ w["up"]) @ w["down"], None

    return jnp.mean(jax.lax.scan(layer, x, layers)[0] ** 2)


def scanned_step(layers, x):
    value, gradients = jax.value_and_grad(scanned_loss)(layers, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, gradients), value


@functools.cache
def scanned(**options) -> autoshard.Plan:
    """A scan over 8 layers, of which each device has a part of every weight."""
    array = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    layers = {"up": array((8, 1024, 4096)), "down": array((8, 4096, 1024))}
    return autoshard.plan(scanned_step, layers, array((4096, 1024)), cluster="v5e:4x4", **options)


def scanned_with_host() -> autoshard.Plan:
    """The same within less memory, so that values wait on the host between the halves."""
    limit = int(0.4 * scanned(mesh="dp=16").peak_bytes)
    return scanned(mesh="dp=16", memory_limit=limit, host_offload="auto")


def taken(timeline: Timeline) -> dict[str, float]:
    """Seconds of each lane."""
    found: defaultdict[str, float] = defaultdict(float)
    for bar in timeline.bars:
        for lane in bar.lanes:
            found[lane] += bar.seconds
    return found


def bar(start: float, seconds: float, name: str = "dot", lane: str = COMPUTE) -> TimelineBar:
    return TimelineBar((lane,), name, None, "", start, seconds, 0.0, 1, 1, -1)


@pytest.mark.parametrize("plan", [layers_plan, scanned], ids=["unrolled", "scanned"])
def test_lanes_have_the_seconds_of_the_plan(plan):
    found = taken(plan().record.timeline)
    assert found[COMPUTE] == pytest.approx(sum(op.seconds for op in plan().record.ops))
    assert found[TORUS] == pytest.approx(plan().communication_seconds)
    assert plan().record.timeline.seconds == pytest.approx(plan().step_seconds, rel=0.02)


@pytest.mark.parametrize("plan", [layers_plan, scanned], ids=["unrolled", "scanned"])
def test_one_thing_runs_at_a_time(plan):
    short = plan().step_seconds / PARTS
    for one, two in pairwise(plan().record.timeline.bars):
        assert one.start <= two.start
        assert one.start + one.seconds <= two.start + 2 * short


def test_layers_that_are_alike_are_there_once():
    """The plan cuts the first of six layers otherwise; of the others there is a bar for all."""
    timeline = layers_plan().record.timeline
    assert timeline.repeats
    assert all(not one.is_loop and one.times >= 3 for one in timeline.repeats)
    products = [one for one in timeline.bars if one.name.startswith("dot_general")]
    assert sum(one.runs for one in products if one.count == 1) <= LAYERS * 2 * 3
    inside = [one for one in products if one.repeat >= 0]
    assert inside
    for one in inside:
        assert one.runs % timeline.repeats[one.repeat].times == 0


def test_a_loop_is_there_once_with_its_trips():
    timeline = scanned().record.timeline
    loops = [one for one in timeline.repeats if one.is_loop]
    assert [one.times for one in loops] == [8, 8]
    assert loops[0].start + loops[0].seconds <= loops[1].start
    assert {one.repeat for one in timeline.bars} == {-1, 0, 1}
    assert all(one.runs % 8 == 0 for one in timeline.bars if one.repeat >= 0)


def test_what_a_loop_keeps_elsewhere_is_moved_before_it():
    """Each device has a part of ``w``; all trips read it whole, and it is gathered once."""

    def step(w, xs):
        first = jnp.tanh(xs) * 2

        def add(total, x):
            return total + jnp.sum(x @ w), None

        return jax.lax.scan(add, 0.0, first)[0]

    array = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    plan = autoshard.plan(
        step,
        array((2048, 2048)),
        array((4, 4096, 2048)),
        cluster="v5e:4x4",
        mesh="dp=16",
        in_shardings=(P("dp"), P(None, "dp")),
    )
    timeline = plan.record.timeline
    (loop,) = timeline.repeats
    (gather,) = [one for one in timeline.bars if one.name.startswith("all-gather of w")]
    before = [one for one in timeline.bars if one.start < gather.start]
    assert (gather.runs, gather.repeat) == (1, -1)
    assert loop.start == pytest.approx(gather.start + gather.seconds)
    assert [one.name.partition("@")[0] for one in before] == ["tanh", "multiply"]


def test_what_is_hidden_is_said_and_not_drawn():
    plan = layers_plan(overlap=0.5)
    bars = [one for one in plan.record.timeline.bars if one.lanes == (TORUS,)]
    drawn, hidden = sum(one.seconds for one in bars), sum(one.hidden_seconds for one in bars)
    assert drawn + hidden == pytest.approx(plan.communication_seconds)
    assert hidden > 0
    assert hidden == pytest.approx(
        plan.compute_seconds + plan.communication_seconds - plan.step_seconds
    )
    assert plan.record.timeline.seconds == pytest.approx(plan.step_seconds, rel=0.02)


def test_transfers_to_the_host_run_beside_the_rest():
    plan = scanned_with_host()
    host = Stream.TO_HOST.value, Stream.FROM_HOST.value
    timeline = plan.record.timeline
    assert timeline.lanes[-2:] == list(host)
    found = taken(timeline)
    sent = plan.summary.host_transfer_seconds
    assert found[host[0]] + found[host[1]] == pytest.approx(sent)
    assert found[COMPUTE] == pytest.approx(sum(op.seconds for op in plan.record.ops))
    out, back = (next(one for one in timeline.bars if one.lanes == (stream,)) for stream in host)
    assert out.start < back.start


def test_a_collective_over_several_kinds_of_links_is_on_all_of_their_lanes():
    plan = layers_plan(cluster="h100:2x8")
    lanes = {one.lanes for one in plan.record.timeline.bars}
    assert lanes <= {
        (COMPUTE,),
        (Stream.SWITCH.value,),
        (Stream.NETWORK.value,),
        (Stream.NETWORK.value, Stream.SWITCH.value),
    }
    assert len(lanes) > 1


def test_a_plan_without_a_cluster_has_no_timeline():
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    plan = autoshard.plan(jnp.tanh, x, mode="semi_auto", mesh="a=2", in_shardings=P("a"))
    assert plan.record.timeline == Timeline((), ())
    assert plan.record.timeline.seconds == 0


def test_text_draws_no_timeline_and_a_page_draws_it_once(monkeypatch):
    drawn: list[int] = []
    place = timeline_build._Drawing.place

    def counted(drawing, nodes, repeat, depth):
        drawn.append(depth)
        place(drawing, nodes, repeat, depth)

    monkeypatch.setattr(timeline_build._Drawing, "place", counted)
    explained = scanned(memory_limit="14GiB").explain()
    assert "bottleneck" in str(explained)
    assert not drawn
    assert explained.to_html() == explained.to_html()
    assert drawn.count(0) == 1


def test_a_trace_has_an_event_a_bar_and_lane():
    explained = scanned().explain()
    bars = explained.record.timeline.bars
    events = [one for one in json.loads(explained.to_trace())["traceEvents"] if one["ph"] == "X"]
    assert len(events) == sum(len(bar.lanes) for bar in bars)
    longest = max(bars, key=lambda bar: bar.seconds)
    event = max(events, key=lambda one: one["dur"])
    assert event["name"] == longest.name
    assert event["dur"] == pytest.approx(1e6 * longest.seconds)
    assert event["args"]["rounds"] == 8


def test_what_has_no_timeline_has_no_trace():
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    plan = autoshard.plan(jnp.tanh, x, mode="semi_auto", mesh="a=2", in_shardings=P("a"))
    with pytest.raises(PlanError, match="no timeline to trace: planned without a cluster"):
        timeline_trace(plan.record)


def test_short_bars_are_one_with_their_neighbours_of_the_same_lane():
    bars = [
        bar(0.0, 0.2),
        bar(0.2, 0.1, "all-reduce", TORUS),
        bar(0.3, 0.4, "tanh"),
        bar(0.7, 5.0, "dot"),
        bar(5.7, 0.1, "add"),
    ]
    groups = short_together(bars, lambda one: (one.lanes, one.start, one.seconds), 1.0 * PARTS)
    found = [as_one(group) for group in groups]
    assert [(one.name, one.start, one.count) for one in found] == [
        ("tanh", 0.0, 2),
        ("all-reduce", 0.2, 1),
        ("dot", 0.7, 1),
        ("add", 5.7, 1),
    ]
    assert found[0].seconds == pytest.approx(0.6)


def test_there_are_no_more_bars_than_parts_on_a_lane():
    bars = [bar(at * 1e-5, 1e-5) for at in range(60_000)]
    place = [(one.lanes, one.start, one.seconds) for one in bars]
    assert len(short_together(range(60_000), place.__getitem__, 0.6)) <= PARTS + 1


def test_a_simulated_step_has_links_beside_compute():
    a = Transfer("all-gather.1", "all-gather over x", "/a/mlp.py:3", "", 5.0, (Stream.TORUS,))
    lines = [Begin(a), Compute("fusion.1", 3.0, "/a/mlp.py:4", "jit(f)/mlp/dot"), Wait((a,))]
    timeline = timeline_of_schedule(simulate([*lines, Compute("fusion.2", 1.0)], 1.0))
    assert timeline.lanes == [COMPUTE, TORUS]
    assert [(one.name, one.start, one.seconds) for one in timeline.bars] == [
        ("all-gather over x (all-gather.1)", 0, 5),
        ("fusion.1: mlp/dot", 0, 3),
        ("fusion.2", 5, 1),
    ]
    assert timeline.seconds == 6


def test_of_a_simulated_loop_one_bar_is_all_trips_that_repeat():
    lines = [Repeat("while.1", 10, (Compute("fusion.1", 1.0),))]
    timeline = timeline_of_schedule(simulate(lines, 1.0))
    assert [(one.name, one.seconds) for one in timeline.bars] == [
        ("fusion.1", 1),
        ("while.1: 9 trips more", 9),
    ]
