"""Schedules of what compilers made of a scan of two matmuls, and the file of a step.

``hlo/*.txt`` are from libtpu 0.0.42.1 (v5e, v5p) and the CUDA plugin of jax 0.10.2 (h100), without
metadata, layouts and configurations that no number depends on.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from autoshard.cluster import Cluster
from autoshard.sharding.mesh import Mesh
from autoshard.verify.schedule.schedule import ScheduledTransfer, Stream
from autoshard.verify.schedule.trace import trace_json, write_trace
from autoshard.verify.step_time import StepEstimate, estimate_step

FOLDER = Path(__file__).parent / "hlo"

PROGRAMS = {
    "tpu_chain": "v5e:2x2",
    "tpu_collective_matmul": "v5p:2x2x2",
    "tpu_host": "v5e:2x2",
    "tpu_slices": "v5e:2x2*2",
    "gpu_pipelined": "h100:8",
    "gpu_host": "h100:8",
}


def estimate(program: str) -> StepEstimate:
    cluster = Cluster.parse(PROGRAMS[program])
    text = (FOLDER / f"{program}.txt").read_text()
    return estimate_step(text, Mesh.parse(f"d={cluster.num_devices}"), cluster)


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_hidden_is_the_sum_of_the_step(program: str):
    found = estimate(program)
    parts = found.compute_seconds + found.communication_seconds + found.host_transfer_seconds
    assert found.schedule.nothing_hidden_seconds == pytest.approx(parts)
    assert found.schedule.compute_seconds == pytest.approx(found.compute_seconds)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_three_numbers_are_in_order_and_the_exposed_seconds_add_up(program: str):
    found = estimate(program).schedule
    assert found.all_hidden_seconds < found.scheduled_seconds < found.nothing_hidden_seconds
    busy = found.busy_seconds[Stream.COMPUTE]
    assert found.scheduled_seconds == pytest.approx(busy + found.exposed_seconds)
    for one in found.transfers:
        assert one.slack_seconds == 0 or one.exposed_seconds == pytest.approx(0)


def by_name(found: StepEstimate) -> dict[str, ScheduledTransfer]:
    return {one.transfer.name: one for one in found.schedule.transfers}


def test_a_gather_that_fusions_carry_is_hidden_and_one_beside_it_is_not():
    found = estimate("tpu_chain")
    of = by_name(found)
    carried, alone = of["async-collective-start"], of["all-gather.24"]
    # A quarter of 2048 x 8192 bf16 is on each of four v5e, whose rings are of 2: 279.6 us.
    assert carried.transfer.seconds == alone.transfer.seconds == pytest.approx(279.6e-6, rel=1e-3)
    assert (carried.exposed_seconds, alone.times) == (0, 6)
    assert alone.exposed_seconds == pytest.approx(6 * alone.transfer.seconds)
    # Beside it is a product of 1,073,156 cycles at 1.5 GHz.
    assert carried.slack_seconds == pytest.approx(1073156 / 1.5e9 - carried.transfer.seconds)
    rest = of["all-reduce"].transfer.seconds
    expected = found.compute_seconds + alone.exposed_seconds + rest
    assert found.schedule.scheduled_seconds == pytest.approx(expected)


def test_a_matmul_in_turns_hides_the_turns_behind_its_products():
    found = estimate("tpu_collective_matmul")
    turns = [one for one in found.schedule.transfers if "permute" in one.transfer.what]
    assert {one.times for one in turns} == {6, 12}
    sent = sum(one.total_seconds for one in turns)
    exposed = sum(one.exposed_seconds for one in turns)
    assert 0 < exposed < sent / 2


def test_gathers_of_the_next_layer_run_beside_the_products_of_this_one():
    found = estimate("gpu_pipelined")
    of = by_name(found)
    inside = [of["all-gather-start"], of["all-gather-start.1"]]
    assert [one.times for one in inside] == [5, 5]
    assert sum(one.exposed_seconds for one in inside) == pytest.approx(0)
    # What is hidden slows the products down, and those before the loop have none beside them.
    first = [of["all-gather-start.2"], of["all-gather-start.3"], of["all-reduce-start"]]
    exposed = sum(one.exposed_seconds for one in first)
    assert found.schedule.exposed_seconds == pytest.approx(exposed)
    hidden = sum(one.total_seconds for one in inside)
    slower = hidden * (1 - 1 / 1.189)
    assert found.schedule.busy_seconds[Stream.COMPUTE] == pytest.approx(
        found.compute_seconds + slower, rel=2e-3
    )


def test_activations_go_to_the_host_beside_compute():
    for program in ("tpu_host", "gpu_host"):
        found = estimate(program)
        copies = [one for one in found.schedule.transfers if "host" in one.transfer.what]
        assert {stream for one in copies for stream in one.transfer.streams} == {
            Stream.TO_HOST,
            Stream.FROM_HOST,
        }
        assert sum(one.exposed_seconds for one in copies) < found.host_transfer_seconds / 2


def test_sums_between_slices_go_over_the_network():
    found = estimate("tpu_slices")
    sums = [one for one in found.schedule.transfers if Stream.NETWORK in one.transfer.streams]
    assert len(sums) == 2
    assert all(one.transfer.name.startswith("send") for one in sums)


def test_the_file_of_a_step_has_a_row_a_stream_on_which_nothing_overlaps(tmp_path: Path):
    found = estimate("tpu_host").schedule
    write_trace(found, tmp_path / "step.json")
    read = json.loads((tmp_path / "step.json").read_text())
    assert read == json.loads(json.dumps(trace_json(found)))
    rows = {one["tid"]: one["args"]["name"] for one in read["traceEvents"] if one["ph"] == "M"}
    assert set(rows.values()) == {"compute", "torus links", "to the host", "from the host"}
    events = [one for one in read["traceEvents"] if one["ph"] == "X"]
    assert {one["tid"] for one in events} == set(rows)
    for row in rows:
        on_row = sorted((one["ts"], one["dur"]) for one in events if one["tid"] == row)
        for (start, taken), (later, _) in pairwise(on_row):
            assert start + taken <= later + 1e-6
    last = max(one["ts"] + one["dur"] for one in events)
    assert last == pytest.approx(found.scheduled_seconds * 1e6)
