"""Lines of HLO texts: where a transfer begins, and where it is waited for."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.sharding.mesh import Mesh
from autoshard.verify.hlo_program import HloProgram
from autoshard.verify.instruction_work import InstructionWork
from autoshard.verify.schedule.lines import Begin, Compute, Line, Repeat, Wait, program_lines
from autoshard.verify.schedule.schedule import Stream

V5P = Cluster.parse("v5p:2x2x2")
H100 = Cluster.parse("h100:2x4")

CYCLES = '{"window_config":{"estimated_cycles":"1750"}}'
WORK = f"backend_config={CYCLES}"
"""One microsecond on v5p."""

ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

"""


def read(*lines: str, before: str = "", cluster: Cluster = V5P, partitions: int = 8) -> list[Line]:
    body = "\n".join(f"  {line}" for line in lines)
    head = f"HloModule m, num_partitions={partitions}\n\n"
    program = HloProgram.parse(f"{head}{ADD}{before}ENTRY %main () -> () {{\n{body}\n}}\n")
    mesh = Mesh.parse(f"d={cluster.num_devices}")
    work = InstructionWork(program, cluster, {})
    return list(program_lines(program, mesh, cluster, work, 1))


def words(lines: list[Line] | tuple[Line, ...]) -> list[str]:
    """Each line as a few words; compute without cycles, such as a counter, is left out."""
    found: list[str] = []
    for line in lines:
        match line:
            case Compute(name, seconds):
                if seconds > 1e-8:
                    found.append(name)
            case Begin(transfer):
                found.append(f"begin {transfer.name}")
            case Wait(transfers):
                found.append(f"wait {' or '.join(one.name for one in transfers)}")
            case Repeat(name, times, inner):
                found.append(f"{times} times {name}: {', '.join(words(inner))}")
    return found


def begun(lines: list[Line]) -> Begin:
    return next(line for line in lines if isinstance(line, Begin))


GATHER = "(f32[8], f32[64]) all-gather-start(%p), replica_groups=[1,8]<=[8], dimensions={0}"
P = "%p = f32[8]{0} parameter(0)"
N = f"%n = f32[8]{{0}} negate(%p), {WORK}"


def test_a_collective_begins_at_its_start_and_is_waited_for_at_its_done():
    found = read(P, f"%s = {GATHER}", N, "ROOT %d = f32[64]{0} all-gather-done(%s)")
    assert words(found) == ["begin s", "n", "wait s"]
    transfer = begun(found).transfer
    assert (transfer.what, transfer.streams) == ("all-gather over d", (Stream.TORUS,))


def test_a_collective_without_a_start_is_waited_for_at_once():
    gather = "all-gather(%p), replica_groups=[1,8]<=[8], dimensions={0}"
    assert words(read(P, f"%g = f32[64]{{0}} {gather}", N)) == ["begin g", "wait g", "n"]


def test_a_collective_that_nobody_waits_for_is_waited_for_at_once():
    assert words(read(P, f"%s = {GATHER}", N)) == ["begin s", "wait s", "n"]


def test_what_an_asynchronous_call_runs_goes_on_until_its_done():
    inner = """%swap (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %all = f32[8]{0} all-to-all(%q), replica_groups=[1,8]<=[8], dimensions={0}
}

"""
    found = read(
        P,
        "%s = ((f32[8]), f32[8], u32[]) async-start(%p), calls=%swap",
        N,
        "ROOT %d = f32[8]{0} async-done(%s)",
        before=inner,
    )
    assert words(found) == ["begin all", "n", "wait all"]


def test_a_collective_spread_over_fusions_goes_from_the_first_to_the_last():
    gather = "all-gather(%q), replica_groups=[1,8]<=[8], dimensions={0}, frontend_attributes={CHAIN"
    gather = gather.replace("CHAIN", 'chain_id="7"}')
    fused = "".join(
        f"""%{name} (q: f32[8]) -> f32[64] {{
  %q = f32[8]{{0}} parameter(0)
  %g = f32[64]{{0}} {gather}
  ROOT %r = f32[64]{{0}} {root}
}}

"""
        for name, root in (
            ("first", 'custom-call(%g), custom_call_target="AsyncCollectiveStart"'),
            ("middle", "negate(%g)"),
            ("last", 'custom-call(%g), custom_call_target="AsyncCollectiveDone"'),
        )
    )
    found = read(
        P,
        "%a = f32[64]{0} fusion(%p), kind=kCustom, calls=%first",
        f"%b = f32[64]{{0}} fusion(%p), kind=kOutput, calls=%middle, {WORK}",
        N,
        "ROOT %c = f32[64]{0} fusion(%b), kind=kCustom, calls=%last",
        before=fused,
    )
    assert words(found) == ["begin a", "b", "n", "wait a"]


SCATTER = """%fused (q: f32[64,64]) -> f32[8,64] {
  %q = f32[64,64]{1,0} parameter(0)
  %i = s32[] constant(0)
  %m = MADE
  %r = f32[64,64]{1,0} all-reduce(%m), replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %d = f32[8,64]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={8,64}
}

"""
DOT = "f32[64,64]{1,0} dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}"


@pytest.mark.parametrize(
    ("made", "attributes", "expected"),
    [
        ("f32[64,64]{1,0} bitcast(%q)", "", ["begin f", "wait f"]),
        ("f32[64,64]{1,0} negate(%q)", f", {WORK}", ["f", "begin f", "wait f"]),
        (DOT, f", {WORK}", ["begin f", "f", "wait f"]),
    ],
)
def test_a_fusion_of_a_collective_hides_it_behind_a_product_alone(
    made: str, attributes: str, expected: list[str]
):
    found = read(
        "%p = f32[64,64]{1,0} parameter(0)",
        f"ROOT %f = f32[8,64]{{1,0}} fusion(%p), kind=kCustom, calls=%fused{attributes}",
        before=SCATTER.replace("MADE", made),
    )
    assert words(found) == expected
    assert begun(found).transfer.what == "reduce-scatter over d"


def test_a_transfer_between_slices_is_waited_for_where_it_is_received():
    attributes = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="sum.1",'
        '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    found = read(
        P,
        "%token = token[] after-all()",
        f"%s = (f32[8], u32[], token[]) send(%p, %token), channel_id=1, {attributes}",
        f"%r = (f32[8], u32[], token[]) recv(%token), channel_id=2, {attributes}",
        "%sd = token[] send-done(%s), channel_id=1",
        N,
        "%rd = (f32[8], token[]) recv-done(%r), channel_id=2",
        cluster=Cluster.parse("v5p:2x2x1*2"),
        partitions=4,
    )
    assert words(found) == ["begin s", "n", "wait s"]
    assert begun(found).transfer.streams == (Stream.NETWORK,)


def test_a_collective_over_nodes_and_their_devices_takes_both_kinds_of_links():
    reduce = "f32[8]{0} all-reduce(%p), replica_groups=GROUPS, to_apply=%add"
    for groups, streams in (
        ("[1,8]<=[8]", (Stream.NETWORK, Stream.SWITCH)),
        ("[2,4]<=[8]", (Stream.SWITCH,)),
        ("[4,2]<=[2,4]T(1,0)", (Stream.NETWORK,)),
    ):
        found = read(P, f"%r = {reduce.replace('GROUPS', groups)}", cluster=H100)
        assert begun(found).transfer.streams == streams


def test_copies_to_and_from_the_host_take_a_direction_of_its_link_each():
    host, device = "f32[8]{0:S(5)}", "f32[8]{0}"
    found = read(
        P,
        f"%out = ({host}, {device}, u32[]) copy-start(%p)",
        N,
        f"%there = {host} copy-done(%out)",
        f"%back = {device} copy(%there)",
    )
    assert words(found) == ["begin out", "n", "wait out", "begin back", "wait back"]
    transfers = [line.transfer for line in found if isinstance(line, Begin)]
    assert [one.streams for one in transfers] == [(Stream.TO_HOST,), (Stream.FROM_HOST,)]
    # A chip of v5p has 15 GB/s.
    assert [one.seconds for one in transfers] == [pytest.approx(32 / 15e9)] * 2


def test_a_copy_to_the_host_in_an_asynchronous_fusion_is_one():
    update = """%put (h: f32[4,8], u: f32[1,8], i: s32[]) -> f32[4,8] {
  %h = f32[4,8]{1,0:S(5)} parameter(0)
  %u = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %w = f32[4,8]{1,0:S(5)} dynamic-update-slice(%h, %u, %i, %i)
}

"""
    host = "f32[4,8]{1,0:S(5)}"
    found = read(
        P,
        f"%h = {host} parameter(1)",
        "%i = s32[] parameter(2)",
        "%u = f32[1,8]{1,0} bitcast(%p)",
        f"%s = (({host}, f32[1,8], s32[]), {host}, u32[]) fusion-start(%h, %u, %i), kind=kCustom,"
        " calls=%put",
        "%n = f32[8]{0} negate(%p)",
        f"ROOT %d = {host} fusion-done(%s)",
        before=update,
        cluster=H100,
    )
    assert words(found) == ["begin s", "n", "wait s"]
    assert begun(found).transfer.seconds == pytest.approx(32 / 49e9)


def test_copies_within_the_device_take_no_time():
    found = read(
        P,
        "%s = (f32[8]{0:S(1)}, f32[8]{0}, u32[]) copy-start(%p)",
        "ROOT %d = f32[8]{0:S(1)} copy-done(%s)",
    )
    assert words(found) == []


LOOP = f"""%test (t: ()) -> pred[] {{
  %t = (s32[], f32[8], (f32[8], f32[64])) parameter(0)
  %end = s32[] constant(5)
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %lt = pred[] compare(%i, %end), direction=LT
}}

%body (t: ()) -> () {{
  %t = (s32[], f32[8], (f32[8], f32[64])) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %p = f32[8]{{0}} get-tuple-element(%t), index=1
  %old = (f32[8], f32[64]) get-tuple-element(%t), index=2
  %inner = {GATHER}
  %work = f32[8]{{0}} negate(%p), {WORK}
  %use = f32[64]{{0}} all-gather-done(%old)
  ROOT %r = (s32[], f32[8], (f32[8], f32[64])) tuple(%next, %work, %inner)
}}

"""


def test_a_collective_that_the_next_trip_waits_for_is_found_around_the_loop():
    found = read(
        P,
        f"%outer = {GATHER}",
        "%zero = s32[] constant(0)",
        "%t = (s32[], f32[8], (f32[8], f32[64])) tuple(%zero, %p, %outer)",
        "%w = (s32[], f32[8], (f32[8], f32[64])) while(%t), condition=%test, body=%body",
        "%last = (f32[8], f32[64]) get-tuple-element(%w), index=2",
        "ROOT %d = f32[64]{0} all-gather-done(%last)",
        before=LOOP,
    )
    repeat = next(line for line in found if isinstance(line, Repeat))
    assert words(found)[0] == "begin outer"
    assert repeat.times == 5
    begin, work, wait = words(repeat.lines)
    assert (begin, work) == ("begin inner", "work")
    assert set(wait.removeprefix("wait ").split(" or ")) == {"outer", "inner"}
    assert words(found)[-1] == "wait inner"
