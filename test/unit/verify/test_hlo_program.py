"""HLO text as releases of libtpu write it, shortened by hand; none of them needs to be installed.

Compiled ahead of time by libtpu 0.0.42.1 (jax 0.10.2) and 0.0.52 (jax 0.12.0.1) for v5e:4x4 and
v5p:2x2x2: a scan of layers whose weights are gathered, a Pallas kernel in such a scan, and the
embedding of a Llama.
"""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.planned.collective import CollectiveKind
from autoshard.sharding.mesh import Mesh
from autoshard.verify.hlo_program import HloProgram
from autoshard.verify.step_time import StepEstimate, estimate_step

V5E = Cluster.parse("v5e:4x4")
V5P = Cluster.parse("v5p:2x2x2")
CLOCK = 1.5e9
"""Clock of v5e, in Hz."""


def cycles(count: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}'


GROUPS = {
    "0.0.42.1": "replica_groups=mesh['axis_0'=16,'axis_1'=1] {'axis_0'}",
    "0.0.52": "replica_groups=mesh['axis_0'=16] {'axis_0'}",
}
"""How each release writes the sixteen devices of a gather."""

# Twelve trips of: start a gather, multiply while it goes on, end it, run a Pallas kernel, whose
# attributes stand on three lines in both releases, and multiply with what was gathered.
SCANNED = """HloModule jit_step, is_scheduled=true, num_partitions=16

%begin (p: bf16[512,2048]) -> (bf16[512,2048], bf16[8192,2048], u32[]) {
  %p = bf16[512,2048]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %g.1 = bf16[8192,2048]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=8, GROUPS, dimensions={0}, \
use_global_device_ids=true, frontend_attributes={chain_id="0"}
  ROOT %c = (bf16[512,2048]{1,0}, bf16[8192,2048]{1,0}, u32[]{:S(2)}) custom-call(%g.1), \
custom_call_target="AsyncCollectiveStart"
}

%goes_on (p: bf16[512,2048], r: bf16[8192,2048], x: bf16[256,2048], \
w: bf16[2048,8192]) -> (bf16[256,8192], bf16[8192,2048]) {
  %x = bf16[256,2048]{1,0} parameter(2)
  %w = bf16[2048,8192]{1,0} parameter(3)
  %y = bf16[256,8192]{1,0} convolution(%x, %w), dim_labels=bf_io->bf
  %p = bf16[512,2048]{1,0} parameter(0)
  %r = bf16[8192,2048]{1,0} parameter(1)
  %g.2 = bf16[8192,2048]{1,0} all-gather(%p), channel_id=8, GROUPS, dimensions={0}, \
use_global_device_ids=true, frontend_attributes={chain_id="0"}
  ROOT %t = (bf16[256,8192]{1,0}, bf16[8192,2048]{1,0}) tuple(%y, %g.2)
}

%end (p: bf16[512,2048], r: bf16[8192,2048]) -> bf16[8192,2048] {
  %p = bf16[512,2048]{1,0} parameter(0)
  %r = bf16[8192,2048]{1,0} parameter(1)
  %g.3 = bf16[8192,2048]{1,0} all-gather(%p), channel_id=8, GROUPS, dimensions={0}, \
use_global_device_ids=true, frontend_attributes={chain_id="0"}
  ROOT %c = bf16[8192,2048]{1,0} custom-call(%p, %r, %g.3), custom_call_target="AsyncCollectiveDone"
}

%product (y: bf16[256,8192], v: bf16[8192,2048]) -> bf16[256,2048] {
  %y = bf16[256,8192]{1,0} parameter(0)
  %v = bf16[8192,2048]{1,0} parameter(1)
  ROOT %z = bf16[256,2048]{1,0} convolution(%y, %v), dim_labels=bf_io->bf
}

%body (t: (s32[], bf16[256,2048], bf16[512,2048], bf16[2048,8192], s32[])) -> (s32[], \
bf16[256,2048], bf16[512,2048], bf16[2048,8192], s32[]) {
  %one = s32[]{:T(128)} constant(1)
  %t = (s32[]{:T(128)}, bf16[256,2048]{1,0}, bf16[512,2048]{1,0}, bf16[2048,8192]{1,0}, s32[]) \
parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %i.copy = s32[]{:T(128)S(6)} copy(%i)
  %x = bf16[256,2048]{1,0} get-tuple-element(%t), index=1
  %p = bf16[512,2048]{1,0} get-tuple-element(%t), index=2
  %w = bf16[2048,8192]{1,0} get-tuple-element(%t), index=3
  %last = s32[] get-tuple-element(%t), index=4
  %double.1 = bf16[256,2048]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 512}"
}}, metadata={op_name="jit(step)/while/body/double/pallas_call"}
  %begin.1 = (bf16[512,2048]{1,0}, bf16[8192,2048]{1,0}, u32[]{:S(2)}) fusion(%p), kind=kCustom, \
calls=%begin
  %r = bf16[8192,2048]{1,0} get-tuple-element(%begin.1), index=1
  %goes_on.1 = (bf16[256,8192]{1,0}, bf16[8192,2048]{1,0}) fusion(%p, %r, %double.1, %w), \
kind=kOutput, calls=%goes_on, CYCLES
  %y = bf16[256,8192]{1,0} get-tuple-element(%goes_on.1), index=0
  %v = bf16[8192,2048]{1,0} fusion(%p, %r), kind=kCustom, calls=%end
  %z = bf16[256,2048]{1,0} fusion(%y, %v), kind=kOutput, calls=%product, CYCLES
  %next = s32[]{:T(128)} STEP
  ROOT %out = (s32[]{:T(128)}, bf16[256,2048]{1,0}, bf16[512,2048]{1,0}, bf16[2048,8192]{1,0}, \
s32[]) tuple(%next, %z, %p, %w, %last)
}

%cond (t: (s32[], bf16[256,2048], bf16[512,2048], bf16[2048,8192], s32[])) -> pred[] {
  %t = (s32[]{:T(128)}, bf16[256,2048]{1,0}, bf16[512,2048]{1,0}, bf16[2048,8192]{1,0}, s32[]) \
parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %n = s32[]{:T(128)} get-tuple-element(%t), index=4
  %twelve = s32[]{:T(128)} constant(12)
  ROOT %lt = pred[]{:T(512)} COMPARISON
}

ENTRY %main (x: bf16[256,2048], p: bf16[512,2048], w: bf16[2048,8192]) -> bf16[256,2048] {
  %x = bf16[256,2048]{1,0} parameter(0)
  %p = bf16[512,2048]{1,0} parameter(1)
  %w = bf16[2048,8192]{1,0} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  %seven = s32[]{:T(128)} constant(7)
  %t = (s32[]{:T(128)}, bf16[256,2048]{1,0}, bf16[512,2048]{1,0}, bf16[2048,8192]{1,0}, s32[]) \
tuple(%zero, %x, %p, %w, %seven)
  %while.1 = (s32[]{:T(128)}, bf16[256,2048]{1,0}, bf16[512,2048]{1,0}, bf16[2048,8192]{1,0}, \
s32[]) while(%t), condition=%cond, body=%body
  ROOT %r = bf16[256,2048]{1,0} get-tuple-element(%while.1), index=1
}
"""


UNTIL_TWELVE, COUNTS_UP = "compare(%i, %twelve), direction=LT", "add(%i.copy, %one)"


def scanned(
    release: str,
    behind_fusions: str,
    comparison: str = UNTIL_TWELVE,
    step: str = COUNTS_UP,
) -> str:
    """The text, with how the condition compares the counter, and how the body changes it."""
    text = SCANNED.replace("GROUPS", GROUPS[release]).replace("CYCLES", behind_fusions)
    return text.replace("COMPARISON", comparison).replace("STEP", step)


def estimated(text: str, **options: int) -> StepEstimate:
    return estimate_step(text, Mesh.parse("fsdp=16"), V5E, **options)


@pytest.mark.parametrize("release", GROUPS)
def test_a_gather_between_start_and_done_counts_once_a_trip(release: str) -> None:
    found = estimated(scanned(release, cycles(70000)))
    (one,) = (timed.collective for timed in found.collectives)
    assert (one.kind, one.times, one.times_known) == (CollectiveKind.ALL_GATHER, 12, True)
    assert one.local_bytes == 512 * 2048 * 2


@pytest.mark.parametrize("release", GROUPS)
def test_what_stands_behind_a_kernel_with_attributes_on_several_lines_is_read(release: str) -> None:
    body = HloProgram.parse(scanned(release, cycles(70000))).computations["body"]
    kernel = body.by_name["double.1"]
    assert kernel.op_name == "jit(step)/while/body/double/pallas_call"
    assert body.root.opcode == "tuple"
    assert body.instructions[-1] is body.root


@pytest.mark.parametrize("release", GROUPS)
def test_products_in_fusions_beside_a_gather_count_by_cycles(release: str) -> None:
    found = estimated(scanned(release, cycles(70000)))
    assert found.cycle_seconds == pytest.approx(12 * 2 * 70000 / CLOCK)
    assert found.flops == pytest.approx(12 * 2 * 2 * 256 * 2048 * 8192, rel=1e-4)


def test_products_in_fusions_beside_a_gather_count_without_cycles_as_well() -> None:
    found = estimated(scanned("0.0.52", "backend_config={}"))
    assert found.cycle_seconds == 0
    assert found.flops == pytest.approx(12 * 2 * 2 * 256 * 2048 * 8192, rel=1e-4)


@pytest.mark.parametrize(
    ("comparison", "step", "trips"),
    [
        ("compare(%twelve, %i), direction=GT", COUNTS_UP, 12),
        ("compare(%i, %twelve), direction=LE", COUNTS_UP, 13),
        ("compare(%i, %twelve), direction=NE", COUNTS_UP, 12),
        ("compare(%i, %n), direction=LT", COUNTS_UP, 7),
        ("compare(%n, %i), direction=GE", COUNTS_UP, 8),
        ("compare(%i, %twelve), direction=GE", COUNTS_UP, 0),
        ("compare(%i, %twelve), direction=EQ", COUNTS_UP, None),
        ("compare(%i, %twelve), direction=NE", "subtract(%i.copy, %one)", None),
        (UNTIL_TWELVE, "subtract(%i.copy, %one)", None),
        (UNTIL_TWELVE, "add(%last, %one)", None),
        (UNTIL_TWELVE, "multiply(%i.copy, %one)", None),
    ],
)
def test_the_counter_says_how_often_a_loop_runs(
    comparison: str, step: str, trips: int | None
) -> None:
    program = HloProgram.parse(scanned("0.0.52", cycles(70000), comparison, step))
    assert program.trips(program.entry, program.entry.by_name["while.1"]) == trips


def test_a_loop_whose_trips_are_not_found_is_named() -> None:
    text = scanned("0.0.52", cycles(70000), step="multiply(%i.copy, %one)")
    found = estimated(text, unknown_trip_count=5)
    assert found.uncounted_loops == ("while.1",)
    assert not found.trips_known
    assert found.collectives[0].collective.times == 5
    assert not found.collectives[0].collective.times_known


# Only libtpu 0.0.52: a lookup on the sparse cores is started before its operands are there.
ON_SPARSE_CORES = """HloModule jit_step, is_scheduled=true, num_partitions=8

%rows (p: bf16[32000,512], i: s32[131072]) -> bf16[131072,512] {
  %p = bf16[32000,512]{1,0} parameter(0)
  %i = s32[131072]{0} parameter(1)
  ROOT %g = bf16[131072,512]{1,0} gather(%p, %i), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,512}
}

%on_cores (p: bf16[32000,512], i: s32[131072]) -> bf16[131072,512] {
  %p = bf16[32000,512]{1,0} parameter(0)
  %i = s32[131072]{0} parameter(1)
  ROOT %f = bf16[131072,512]{1,0} fusion(%p, %i), kind=kCustom, calls=%rows, CYCLES
}, execution_thread="sparsecore"

%called (p: bf16[32000,512], i: s32[131072]) -> bf16[131072,512] {
  %p = bf16[32000,512]{1,0} parameter(0)
  %i = s32[131072]{0} parameter(1)
  %s = ((bf16[32000,512]{1,0}, s32[131072]{0}), bf16[131072,512]{1,0}, u32[]{:S(8)}) \
call-start(%p, %i), async_execution_thread="sparsecore", to_apply=%on_cores
  ROOT %d = bf16[131072,512]{1,0} call-done(%s)
}, execution_thread="sparsecore"

ENTRY %main (p: bf16[32000,512], i: s32[131072]) -> bf16[131072,512] {
  %p = bf16[32000,512]{1,0} parameter(0)
  %i = s32[131072]{0} parameter(1)
  %start = ((), (), (s32[32768]{0})) custom-call-start(), async_execution_thread="sparsecore", \
custom_call_target="TODO(b/522284627)", called_computations={%called}
  %update = ((bf16[32000,512]{1,0}, s32[131072]{0}), bf16[131072,512]{1,0}, (s32[32768]{0})) \
custom-call-update(%start, %p, %i), output_to_operand_aliasing={{2,0}: (0, {2,0})}
  ROOT %done = bf16[131072,512]{1,0} custom-call-done(%update)
}
"""


def test_a_lookup_on_sparse_cores_counts_once_with_the_work_that_it_calls() -> None:
    text = ON_SPARSE_CORES.replace("CYCLES", cycles(2**63 - 1))
    found = estimate_step(text, Mesh.parse("fsdp=8"), V5P)
    (op,) = found.slowest_ops
    assert (op.name, op.times) == ("f", 1)
    rows = 131072 * 512 * 2
    assert op.bytes == pytest.approx(2 * rows + 131072 * 4)
    assert found.unknown == ()


def test_the_end_of_what_was_updated_is_found() -> None:
    entry = HloProgram.parse(ON_SPARSE_CORES.replace("CYCLES", cycles(1))).entry
    assert entry.end_of(entry.by_name["start"]) is entry.by_name["done"]
