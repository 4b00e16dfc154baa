"""Lines against streams that do one thing at a time; seconds worked out by hand."""

from __future__ import annotations

from random import Random

import pytest

from autoshard.verify.schedule.lines import Begin, Compute, Line, Repeat, Wait
from autoshard.verify.schedule.schedule import Schedule, Stream, Transfer
from autoshard.verify.schedule.simulate import simulate


def transfer(name: str, seconds: float, *streams: Stream) -> Transfer:
    return Transfer(name, f"all-gather {name}", None, "", seconds, streams or (Stream.TORUS,))


def compute(seconds: float) -> Compute:
    return Compute("fusion", seconds)


def exposed(found: Schedule) -> dict[str, float]:
    return {one.transfer.name: one.exposed_seconds for one in found.transfers}


def slack(found: Schedule) -> dict[str, float]:
    return {one.transfer.name: one.slack_seconds for one in found.transfers}


def test_a_transfer_runs_beside_compute_until_it_is_waited_for():
    a = transfer("a", 5)
    found = simulate([Begin(a), compute(3), Wait((a,)), compute(1)], 1.0)
    assert found.scheduled_seconds == 6
    assert exposed(found) == {"a": 2}
    assert (found.nothing_hidden_seconds, found.all_hidden_seconds) == (9, 5)


def test_what_ends_before_it_is_waited_for_has_slack():
    a = transfer("a", 2)
    found = simulate([Begin(a), compute(3), Wait((a,)), compute(1)], 1.0)
    assert found.scheduled_seconds == 4
    assert (exposed(found), slack(found)) == ({"a": 0}, {"a": 1})


def test_transfers_over_one_kind_of_links_run_one_after_the_other():
    a, b = transfer("a", 2), transfer("b", 2)
    lines = [Begin(a), Begin(b), compute(3), Wait((b,)), Wait((a,))]
    found = simulate(lines, 1.0)
    assert found.scheduled_seconds == 4
    assert exposed(found) == {"a": 0, "b": 1}
    # It ended at 2, and was waited for at 4.
    assert slack(found) == {"a": 2, "b": 0}


def test_transfers_over_two_kinds_of_links_run_beside_each_other():
    a, b = transfer("a", 2), transfer("b", 2, Stream.NETWORK)
    found = simulate([Begin(a), Begin(b), compute(1), Wait((a,)), Wait((b,))], 1.0)
    assert found.scheduled_seconds == 2
    assert found.busy_seconds == {Stream.COMPUTE: 1, Stream.TORUS: 2, Stream.NETWORK: 2}


def test_a_transfer_over_two_kinds_of_links_waits_for_both():
    a, both = transfer("a", 2), transfer("b", 1, Stream.TORUS, Stream.NETWORK)
    later = transfer("c", 1, Stream.NETWORK)
    lines = [Begin(a), Begin(both), Begin(later), Wait((later,)), Wait((both,)), Wait((a,))]
    assert simulate(lines, 1.0).scheduled_seconds == 4


def test_each_direction_of_the_host_link_is_a_stream():
    out, back = transfer("out", 2, Stream.TO_HOST), transfer("back", 2, Stream.FROM_HOST)
    found = simulate([Begin(out), Begin(back), Wait((out,)), Wait((back,))], 1.0)
    assert found.scheduled_seconds == 2


@pytest.mark.parametrize(
    ("seconds", "busy"),
    [
        (3, 3.75),  # all of it beside the transfer
        (10, 11),  # 4 s of work in its 5 s, and 6 s behind it
    ],
)
def test_compute_is_slower_while_a_collective_runs(seconds: float, busy: float):
    a = transfer("a", 5)
    found = simulate([Begin(a), compute(seconds), Wait((a,))], 1.25)
    assert found.busy_seconds[Stream.COMPUTE] == busy
    assert found.scheduled_seconds == max(busy, 5)
    assert found.compute_seconds == seconds


def test_copies_to_the_host_slow_nothing_down():
    out = transfer("out", 5, Stream.TO_HOST)
    assert simulate([Begin(out), compute(3), Wait((out,))], 1.25).scheduled_seconds == 5
    assert simulate([Begin(out), compute(8), Wait((out,))], 1.25).scheduled_seconds == 8


def test_a_step_ends_with_what_nobody_waited_for():
    a = transfer("a", 5)
    found = simulate([Begin(a), compute(3)], 1.0)
    assert (found.scheduled_seconds, exposed(found)) == (5, {"a": 2})


def prefetched(seconds: float) -> Schedule:
    """Ten trips that each begin what the next one waits for."""
    first, next_one = transfer("first", seconds), transfer("next", seconds)
    body = (Begin(next_one), compute(2), Wait((first, next_one)))
    return simulate([Begin(first), Repeat("while", 10, body), Wait((first, next_one))], 1.0)


def test_a_transfer_in_flight_over_the_end_of_a_trip_is_waited_for_in_the_next():
    found = prefetched(1.0)
    assert (found.scheduled_seconds, exposed(found)) == (20, {"first": 0, "next": 0})
    # Longer than a trip: the links are always taken, the last of eleven ends after 33 s.
    found = prefetched(3.0)
    assert found.scheduled_seconds == 33
    assert exposed(found) == {"first": 1, "next": 12}
    assert {one.transfer.name: one.times for one in found.transfers} == {"first": 1, "next": 10}


def test_a_loop_is_run_until_it_repeats_and_drawn_as_far():
    found = prefetched(3.0)
    (rest,) = [event for event in found.events if "trips more" in event.name]
    assert (rest.name, rest.start, rest.seconds) == ("while: 8 trips more", 6, 24)


def random_lines(random: Random, depth: int, pool: list[Transfer]) -> list[Line]:
    """Any lines; transfers may be waited for in another trip, or never."""
    found: list[Line] = []
    for _ in range(random.randint(1, 5)):
        kind = random.choice(["compute", "begin", "begin", "wait", "repeat"])
        if kind == "compute":
            found.append(compute(random.randint(1, 8) / 4))
        elif kind == "begin":
            found.append(Begin(random.choice(pool)))
        elif kind == "wait":
            found.append(Wait(tuple(random.sample(pool, random.randint(1, 2)))))
        elif depth:
            inner = tuple(random_lines(random, depth - 1, pool))
            # As many are waited for as are begun, so that the links are not taken ever longer.
            begun = [line.transfer for line in inner if isinstance(line, Begin)]
            waits = tuple(Wait(tuple(pool)) for _ in begun)
            found.append(Repeat("while", random.randint(0, 9), inner + waits))
    return found


def unrolled(lines: list[Line]) -> list[Line]:
    found: list[Line] = []
    for line in lines:
        if isinstance(line, Repeat):
            found += unrolled(list(line.lines)) * line.times
        else:
            found.append(line)
    return found


def check(found: Schedule) -> None:
    """What holds of every schedule."""
    nearly = 1e-9 * found.nothing_hidden_seconds + 1e-15
    assert found.all_hidden_seconds <= found.scheduled_seconds + nearly
    assert found.scheduled_seconds <= found.nothing_hidden_seconds + nearly
    busy = found.busy_seconds.get(Stream.COMPUTE, 0.0)
    assert found.scheduled_seconds == pytest.approx(busy + found.exposed_seconds)
    ends: dict[Stream, float] = {}
    for event in sorted(found.events, key=lambda event: event.start):
        assert event.start >= ends.get(event.stream, 0.0) - nearly
        ends[event.stream] = event.start + event.seconds
    assert max(ends.values(), default=0.0) <= found.scheduled_seconds + nearly


@pytest.mark.parametrize("seed", range(100))
def test_loops_that_are_skipped_take_what_they_take_trip_by_trip(seed: int):
    random = Random(seed)
    streams = [(Stream.TORUS,), (Stream.NETWORK,), (Stream.TORUS, Stream.NETWORK)]
    streams.append((Stream.TO_HOST,))
    pool = [transfer(str(n), random.randint(1, 12) / 4, *random.choice(streams)) for n in range(4)]
    slowdown = random.choice([1.0, 1.25])
    lines = random_lines(random, 2, pool)
    found, whole = simulate(lines, slowdown), simulate(unrolled(lines), slowdown)
    check(found)
    check(whole)
    assert found.scheduled_seconds == pytest.approx(whole.scheduled_seconds)
    assert found.compute_seconds == pytest.approx(whole.compute_seconds)
    assert found.busy_seconds == pytest.approx(dict(whole.busy_seconds))
    assert exposed(found) == pytest.approx(exposed(whole))
    assert slack(found) == pytest.approx(slack(whole))
