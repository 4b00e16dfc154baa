"""Step times read from compiled HLO; seconds worked out by hand."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.errors import ClusterError, ParseError
from autoshard.ir.xla_cost import xla_cost
from autoshard.sharding.mesh import Mesh
from autoshard.verify.step_time import StepEstimate, estimate_step

V5P = Cluster.parse("v5p:2x2x2")
CPU = Cluster.parse("cpu:8")
MESH = Mesh.parse("dp=2,tp=4")


def cycles(count: int) -> str:
    """What XLA:TPU writes behind a fusion."""
    return f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}'


FUSED = """%fused (p: bf16[64,128], q: bf16[128,128]) -> bf16[64,128] {
  %p = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %q = bf16[128,128]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %d = bf16[64,128]{1,0:T(8,128)(2,1)} dot(%p, %q), DIMS
}

""".replace("DIMS", "lhs_contracting_dims={1}, rhs_contracting_dims={0}")

LOOP = """%cond (t: (s32[], bf16[64,128])) -> pred[] {
  %t = (s32[], bf16[64,128]{1,0}) parameter(0)
  %end = s32[] constant(5)
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %lt = pred[] compare(%i, %end), direction=LT
}

%body (t: (s32[], bf16[64,128])) -> (s32[], bf16[64,128]) {
  %t = (s32[], bf16[64,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = bf16[64,128]{1,0} get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one), CYCLES20
  %w = bf16[128,128]{1,0} constant({...})
  %y = bf16[64,128]{1,0} fusion(%x, %w), kind=kOutput, calls=%fused, CYCLES1000
  %r = bf16[64,128]{1,0} all-reduce(%y), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %out = (s32[], bf16[64,128]{1,0}) tuple(%next, %r)
}

"""


def estimate(
    *lines: str,
    before: str = "",
    cluster: Cluster = CPU,
    mesh: Mesh = MESH,
    partitions: int = 8,
    overlap: float = 0.0,
) -> StepEstimate:
    body = "\n".join(f"  {line}" for line in lines)
    entry = f"ENTRY %main (p: f32[8,8]) -> f32[8,8] {{\n{body}\n}}\n"
    head = f"HloModule m, num_partitions={partitions}\n\n"
    return estimate_step(f"{head}{before}\n{entry}", mesh, cluster, overlap=overlap)


def looped() -> StepEstimate:
    before = FUSED + LOOP.replace("CYCLES20", cycles(20)).replace("CYCLES1000", cycles(1000))
    return estimate(
        "%p = bf16[64,128]{1,0} parameter(0)",
        "%zero = s32[] constant(0)",
        "%t = (s32[], bf16[64,128]{1,0}) tuple(%zero, %p)",
        "%w = (s32[], bf16[64,128]{1,0}) while(%t), condition=%cond, body=%body",
        f"ROOT %c = bf16[64,128]{{0,1}} copy(%p), {cycles(700)}",
        before=before,
        cluster=V5P,
    )


def test_cycles_count_once_a_trip_at_the_clock() -> None:
    found = looped()
    compares = 6 * 9 / (2765e9 * 0.72)  # no cycles for these: they read 8 bytes and write one
    assert found.cycle_seconds == pytest.approx((5 * 1020 + 700) / 1.75e9)
    assert found.compute_seconds == pytest.approx(found.cycle_seconds + compares)


def test_operations_are_those_of_all_trips() -> None:
    found = looped()
    # Of the product, the counter and the test of the loop.
    assert found.flops == 5 * 2 * 64 * 128 * 128 + 5 + 6


def test_collectives_in_loops_take_their_time_every_trip() -> None:
    found = looped()
    (one,) = found.collectives
    # 16 KiB over the dims y and z of 2 chips each, lines of one link: twice 3/4 of V over two
    # links of 90 GB/s is less than twice the latency of a hop in each.
    assert one.seconds == pytest.approx(2 * (1e-6 + 1e-6))
    assert found.communication_seconds == pytest.approx(5 * one.seconds)
    assert found.step_seconds == found.compute_seconds + found.communication_seconds


def test_cycles_that_the_compiler_does_not_know_are_a_roofline() -> None:
    lines = ("%p = f32[1000]{0} parameter(0)", "ROOT %n = f32[1000]{0} negate(%p), ")
    found = estimate(lines[0], lines[1] + cycles(2**63 - 1), cluster=V5P)
    assert found.cycle_seconds == 0
    assert found.compute_seconds == pytest.approx(8000 / (2765e9 * 0.72))


def test_cycles_of_an_unknown_clock_are_refused() -> None:
    with pytest.raises(ClusterError, match="clock of chip cpu is not known"):
        estimate(
            "%p = f32[8]{0} parameter(0)",
            f"ROOT %c = f32[8]{{0}} copy(%p), {cycles(7)}",
        )


def test_a_product_without_cycles_takes_its_operations_with_tiles() -> None:
    found = estimate(
        "%p = f32[64,100]{1,0} parameter(0)",
        "%q = f32[100,36]{1,0} parameter(1)",
        "ROOT %d = f32[64,36]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    # Columns and the contracted dim fill tiles of 8: 40 x 104. 2 us to start.
    assert found.compute_seconds == pytest.approx(2 * 64 * 40 * 104 / (40e9 * 0.7) + 2e-6)
    assert found.flops == 2 * 64 * 36 * 100
    assert found.bytes_accessed == 4 * (64 * 100 + 100 * 36 + 64 * 36)


def test_an_elementwise_op_takes_its_bytes() -> None:
    found = estimate("%p = f32[1000]{0} parameter(0)", "ROOT %n = f32[1000]{0} negate(%p)")
    assert found.compute_seconds == pytest.approx(8000 / (10e9 * 0.9) + 2e-6)


def test_a_transform_of_two_dims_takes_the_logarithm_of_its_points() -> None:
    found = estimate(
        "%p = c64[4,64,32]{2,1,0} parameter(0)",
        "ROOT %f = c64[4,64,32]{2,1,0} fft(%p), fft_type=FFT, fft_length={64,32}",
    )
    assert found.flops == 5 * 4 * 64 * 32 * (6 + 5)


def test_the_gradient_of_a_maximum_over_windows_is_read() -> None:
    """It reads 16 pixels, 4 windows and the initial value, and writes the pixels."""
    before = "".join(
        f"%{name} (a: f32[], b: f32[]) -> {result} {{\n  %a = f32[] parameter(0)\n"
        f"  %b = f32[] parameter(1)\n  ROOT %r = {result} {op}\n}}\n\n"
        for name, result, op in (
            ("larger", "pred[]", "compare(%a, %b), direction=GE"),
            ("sum", "f32[]", "add(%a, %b)"),
        )
    )
    found = estimate(
        "%p = f32[4,4]{1,0} parameter(0)",
        "%g = f32[2,2]{1,0} parameter(1)",
        "%zero = f32[] constant(0)",
        "ROOT %s = f32[4,4]{1,0} select-and-scatter(%p, %g, %zero), "
        "window={size=2x2 stride=2x2}, select=%larger, scatter=%sum",
        before=before,
        cluster=V5P,
    )
    assert found.bytes_accessed == 4 * (16 + 4 + 1 + 16)


def test_an_update_in_place_touches_only_the_update() -> None:
    found = estimate(
        "%p = f32[1000,8]{1,0} parameter(0)",
        "%u = f32[1,8]{1,0} parameter(1)",
        "%i = s32[] parameter(2)",
        "ROOT %d = f32[1000,8]{1,0} dynamic-update-slice(%p, %u, %i, %i)",
    )
    # XLA counts the update twice and one of the two indices.
    assert found.bytes_accessed == 2 * 32 + 4


@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_fusion_that_scatters_over_its_operand_touches_what_it_writes(is_in_place: bool) -> None:
    written = "%view" if is_in_place else "%negated"
    fused = f"""%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

%put (c: f32[1000,64], d: s32[8], e: f32[8,64]) -> f32[1000,64] {{
  %c = f32[1000,64]{{1,0}} parameter(0)
  %d = s32[8]{{0}} parameter(1)
  %e = f32[8,64]{{1,0}} parameter(2)
  %view = f32[1000,64]{{1,0}} bitcast(%c)
  %negated = f32[1000,64]{{1,0}} negate(%view)
  %rows = s32[8,1]{{1,0}} bitcast(%d)
  %new = f32[8,1,64]{{2,1,0}} bitcast(%e)
  ROOT %s = f32[1000,64]{{1,0}} scatter({written}, %rows, %new), update_window_dims={{1,2}}, \
inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%add
}}
"""
    found = estimate(
        "%p = f32[1000,64]{1,0} parameter(0)",
        "%i = s32[8]{0} parameter(1)",
        "%u = f32[8,64]{1,0} parameter(2)",
        "ROOT %f = f32[1000,64]{1,0} fusion(%p, %i, %u), kind=kInput, calls=%put",
        before=fused,
    )
    whole, update = 4 * 1000 * 64, 4 * 8 * 64
    assert found.bytes_accessed == 32 + update + (2 * update if is_in_place else 2 * whole)


def test_a_slice_of_an_operand_in_another_layout_touches_only_the_slice() -> None:
    # Of layers that lie side by side in memory one is read, and one is written.
    fused = """%one_layer (a: f32[40,512,64], b: s32[]) -> bf16[64,1,512] {
  %a = f32[40,512,64]{1,0,2} parameter(0)
  %b = s32[] parameter(1)
  %zero = s32[] constant(0)
  %view = f32[64,40,512]{2,1,0} bitcast(%a)
  %cut = f32[64,1,512]{2,1,0} dynamic-slice(%view, %zero, %b, %zero), dynamic_slice_sizes={64,1,512}
  ROOT %convert = bf16[64,1,512]{2,1,0} convert(%cut)
}

%write_one (c: f32[40,512,64], d: f32[64,1,512], e: s32[]) -> f32[64,40,512] {
  %c = f32[40,512,64]{1,0,2} parameter(0)
  %d = f32[64,1,512]{2,1,0} parameter(1)
  %e = s32[] parameter(2)
  %none = s32[] constant(0)
  %seen = f32[64,40,512]{2,1,0} bitcast(%c)
  ROOT %new = f32[64,40,512]{2,1,0} dynamic-update-slice(%seen, %d, %none, %e, %none)
}
"""
    layers = "%p = f32[40,512,64]{1,0,2} parameter(0)"
    index = "%i = s32[] parameter(1)"
    one = 64 * 512
    read = "ROOT %f = bf16[64,1,512]{2,1,0} fusion(%p, %i), kind=kLoop, calls=%one_layer"
    found = estimate(layers, index, read, before=fused)
    assert found.bytes_accessed == pytest.approx((4 + 2) * one, abs=16)
    update = "%u = f32[64,1,512]{2,1,0} parameter(2)"
    write = "ROOT %f = f32[64,40,512]{2,1,0} fusion(%p, %u, %i), kind=kLoop, calls=%write_one"
    found = estimate(layers, index, update, write, before=fused)
    assert found.bytes_accessed == pytest.approx(2 * 4 * one, abs=16)


def test_products_in_gpu_libraries_are_products() -> None:
    found = estimate(
        "%p = bf16[4,64,128]{2,1,0} parameter(0)",
        "%q = bf16[4,128,32]{2,1,0} parameter(1)",
        "%g = (bf16[4,64,32]{2,1,0}, s8[4194304]{0}) custom-call(%p, %q),"
        ' custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
        '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],'
        '"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"],'
        '"rhs_batch_dimensions":["0"]},"alpha_real":1}}',
        "ROOT %r = bf16[4,64,32]{2,1,0} get-tuple-element(%g), index=0",
        cluster=Cluster.parse("h100:8"),
    )
    assert found.flops == 2 * 4 * 64 * 128 * 32
    assert not found.unknown


H100 = Cluster.parse("h100:8")


def product_into(columns: int) -> float:
    found = estimate(
        "%p = bf16[4096,4096]{1,0} parameter(0)",
        f"%q = bf16[4096,{columns}]{{1,0}} parameter(1)",
        f"ROOT %d = bf16[4096,{columns}]{{1,0}} dot(%p, %q), lhs_contracting_dims={{1}},"
        " rhs_contracting_dims={0}",
        cluster=H100,
    )
    return found.compute_seconds - H100.chip.launch_seconds.value


def test_products_of_odd_rows_are_slow_on_gpus() -> None:
    share = float(H100.compiler.answers["fusion.unaligned_rows"])
    assert product_into(4097) == pytest.approx(product_into(4112) / share, rel=0.01)
    assert product_into(4104) == pytest.approx(product_into(4112), rel=0.01)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        ("Filter", ("bf16[64,28,28,128]", "bf16[64,28,28,256]", "bf16[256,3,3,128]")),
        ("Input", ("bf16[64,28,28,256]", "bf16[256,3,3,128]", "bf16[64,28,28,128]")),
    ],
)
def test_gradients_of_convolutions_in_gpu_libraries_are_products(call, shapes) -> None:
    first, second, made = (f"{shape}{{3,2,1,0}}" for shape in shapes)
    found = estimate(
        f"%x = {first} parameter(0)",
        f"%y = {second} parameter(1)",
        f"%g = ({made}, u8[0]{{0}}) custom-call(%x, %y), window={{size=3x3 pad=1_1x1_1}},"
        f' dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackward{call}"',
        f"ROOT %r = {made} get-tuple-element(%g), index=0",
        cluster=H100,
    )
    assert found.flops == 2 * 64 * 28 * 28 * 256 * 128 * 9
    rate = H100.chip.matmul_f16.value * H100.chip.matmul_efficiency.value
    assert found.compute_seconds > found.flops / rate


SOFTMAX_GRADIENT = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%rows (x: f32[1024,2048], dy: f32[1024,2048]) -> f32[1024,2048] {
  %x = f32[1024,2048]{1,0} parameter(0)
  %dy = f32[1024,2048]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %m = f32[1024]{0} reduce(%x, %zero), dimensions={1}, to_apply=%add
  %mb = f32[1024,2048]{1,0} broadcast(%m), dimensions={0}
  %e = f32[1024,2048]{1,0} subtract(%x, %mb)
  %p = f32[1024,2048]{1,0} multiply(%dy, %e)
  %s = f32[1024]{0} reduce(FROM, %zero), dimensions={1}, to_apply=%add
  %sb = f32[1024,2048]{1,0} broadcast(%s), dimensions={0}
  %d = f32[1024,2048]{1,0} subtract(%dy, %sb)
  ROOT %r = f32[1024,2048]{1,0} multiply(%d, %e)
}
"""


def test_kernels_of_nested_reductions_read_rows_again_on_gpus() -> None:
    def seconds(summed: str) -> float:
        found = estimate(
            "%x = f32[1024,2048]{1,0} parameter(0)",
            "%dy = f32[1024,2048]{1,0} parameter(1)",
            "ROOT %f = f32[1024,2048]{1,0} fusion(%x, %dy), kind=kCustom, calls=%rows",
            before=SOFTMAX_GRADIENT.replace("FROM", summed),
            cluster=H100,
        )
        assert found.bytes_accessed == 3 * 4 * 1024 * 2048
        return found.compute_seconds - H100.chip.launch_seconds.value

    # The second sum is of what the first one is subtracted from, or of an operand.
    times = int(H100.compiler.answers["fusion.nested_reductions"])
    assert seconds("%p") == pytest.approx(seconds("%dy") * (2 * times + 1) / 3, rel=1e-6)


def test_unknown_custom_calls_are_named_and_charged_with_their_bytes() -> None:
    found = estimate(
        "%p = f32[1000]{0} parameter(0)",
        'ROOT %k = f32[1000]{0} custom-call(%p), custom_call_target="my_kernel"',
    )
    assert [op.name for op in found.unknown] == ["k"]
    assert found.compute_seconds == pytest.approx(8000 / (10e9 * 0.9) + 2e-6)


def test_asynchronous_copies_are_hidden_and_counted() -> None:
    found = estimate(
        "%p = f32[1000]{0} parameter(0)",
        "%s = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]{:S(2)}) copy-start(%p)",
        "ROOT %d = f32[1000]{0:S(1)} copy-done(%s)",
    )
    assert found.hidden_copy_bytes == 4000
    assert found.compute_seconds == 0


def test_copies_to_and_from_the_host_take_the_time_of_its_link() -> None:
    # 4,000 bytes come, a slice of 40 comes, 400 are written into an array there, 4,000 go; copies
    # within the device and within the host do not count. A chip of v5p has 15 GB/s.
    found = estimate(
        "%p = f32[1000]{0:T(1024)S(5)} parameter(0)",
        "%i = s32[] parameter(1)",
        "%u = f32[100]{0:T(128)} parameter(2)",
        "%s = (f32[1000]{0:T(1024)}, f32[1000]{0:T(1024)S(5)}, u32[]{:S(2)}) copy-start(%p)",
        "%d = f32[1000]{0:T(1024)} copy-done(%s)",
        "%within = f32[1000]{0:T(1024)S(1)} copy(%d)",
        "%there = f32[1000]{0:T(1024)S(5)} copy(%p)",
        "%part = f32[10]{0:T(128)S(1)} dynamic-slice(%there, %i), dynamic_slice_sizes={10}",
        "%put = f32[1000]{0:T(1024)S(5)} dynamic-update-slice(%there, %u, %i)",
        "%b = (f32[1000]{0:T(1024)S(5)}, f32[1000]{0:T(1024)}, u32[]{:S(2)}) copy-start(%d)",
        "ROOT %e = f32[1000]{0:T(1024)S(5)} copy-done(%b)",
        cluster=V5P,
    )
    assert found.host_transfer_bytes == 4000 + 40 + 400 + 4000
    assert found.host_transfer_seconds == pytest.approx(8440 / 15e9)
    assert found.hidden_copy_bytes == 0
    assert found.step_seconds == found.compute_seconds + found.host_transfer_seconds


def stack_on_host(copies: str) -> StepEstimate:
    """Four trips of a loop that copies 4,000 bytes to the host beside a microsecond of work."""
    host, device = "f32[1000]{0:T(1024)S(5)}", "f32[1000]{0:T(1024)}"
    before = f"""%cond (t: (s32[], f32[1000], f32[1000])) -> pred[] {{
  %t = (s32[], {device}, {host}) parameter(0)
  %end = s32[] constant(4)
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %lt = pred[] compare(%i, %end), direction=LT
}}

%body (t: (s32[], f32[1000], f32[1000])) -> (s32[], f32[1000], f32[1000]) {{
  %t = (s32[], {device}, {host}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = {device} get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one), {cycles(1750)}
  {copies}
  ROOT %r = (s32[], {device}, {host}) tuple(%next, %x, %d)
}}
"""
    return estimate(
        f"%p = {device} parameter(0)",
        f"%h = {host} parameter(1)",
        "%zero = s32[] constant(0)",
        f"%t = (s32[], {device}, {host}) tuple(%zero, %p, %h)",
        f"ROOT %w = (s32[], {device}, {host}) while(%t), condition=%cond, body=%body",
        before=before,
        cluster=V5P,
    )


def test_what_a_loop_copies_to_the_host_without_waiting_goes_beside_its_other_ops() -> None:
    host, device = "f32[1000]{0:T(1024)S(5)}", "f32[1000]{0:T(1024)}"
    found = stack_on_host(
        f"%s = ({host}, {device}, u32[]{{:S(2)}}) copy-start(%x)\n  %d = {host} copy-done(%s)"
    )
    assert found.host_transfer_seconds == pytest.approx(4 * 4000 / 15e9)
    assert found.host_exposed_seconds == pytest.approx(0, abs=1e-9)
    waiting = stack_on_host(f"%d = {host} copy(%x)")
    assert waiting.host_transfer_seconds == found.host_transfer_seconds
    assert waiting.host_exposed_seconds == waiting.host_transfer_seconds
    assert waiting.step_seconds == waiting.compute_seconds + waiting.host_transfer_seconds


def test_overlap_hides_a_share_of_communication() -> None:
    lines = (
        "%p = f32[1000000]{0} parameter(0)",
        "%n = f32[1000000]{0} negate(%p)",
        "ROOT %r = f32[1000000]{0} all-reduce(%n), replica_groups=[1,8]<=[8], to_apply=%add",
    )
    plain, hidden = estimate(*lines), estimate(*lines, overlap=0.25)
    assert hidden.communication_seconds == plain.communication_seconds > 0
    assert plain.step_seconds - hidden.step_seconds == pytest.approx(
        min(0.25 * plain.communication_seconds, plain.compute_seconds)
    )


def test_groups_that_are_no_part_of_the_machine_are_charged_as_the_part_around_them() -> None:
    def seconds(groups: str, mesh: str = "dp=8") -> float:
        found = estimate(
            "%p = f32[1024]{0} parameter(0)",
            f"ROOT %r = f32[1024]{{0}} all-reduce(%p), replica_groups={groups}, to_apply=%add",
            cluster=V5P,
            mesh=Mesh.parse(mesh),
        )
        (one,) = found.collectives
        return one.seconds

    assert seconds("{{0,1,2},{3,4,5},{6,7}}") == seconds("[1,8]<=[8]")
    # Devices 0 and 3 differ in y and z: charged as all four of that plane.
    assert seconds("{{0,3},{1,2},{4,7},{5,6}}") == seconds("[2,4]<=[8]")


def test_the_mesh_must_have_the_devices_of_the_cluster_and_of_the_program() -> None:
    with pytest.raises(ClusterError, match="has 4 devices, but cluster cpu:8 has 8"):
        estimate("ROOT %p = f32[8]{0} parameter(0)", mesh=Mesh.parse("dp=4"))
    with pytest.raises(ParseError, match="is one for 3 devices"):
        estimate("ROOT %p = f32[8]{0} parameter(0)", partitions=3)


SLICES = Cluster.parse("v5e:4x4*2")


def test_transfers_between_slices_are_collectives_over_the_network() -> None:
    attributes = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale'
        '_runtime",_xla_host_transfer_rendezvous="all-reduce.1_0",_xla_megascale_target="TARGET",'
        '_xla_megascale_transfer_type="KIND"}'
    )
    lines = [
        "%p = f32[1024,1024]{1,0} parameter(0)",
        "%token = token[] after-all()",
        "%s = (f32[1024,1024]{1,0}, u32[], token[]) send(%p, %token), channel_id=1, " + attributes,
        "%r = (f32[1024,1024]{1,0}, u32[], token[]) recv(%token), channel_id=2, " + attributes,
        "%sd = token[] send-done(%s), channel_id=1",
        "%rd = (f32[1024,1024]{1,0}, token[]) recv-done(%r), channel_id=2",
        "ROOT %o = f32[1024,1024]{1,0} get-tuple-element(%rd), index=0",
    ]
    text = "\n".join(lines).replace("TARGET", "{1,2}x{0:15}").replace("KIND", "ALL_REDUCE")
    found = estimate(
        *text.split("\n"), cluster=SLICES, mesh=Mesh.parse("slice=2,x=4,y=4"), partitions=16
    )
    (one,) = found.collectives
    assert str(one.collective) == "all-reduce over slice: 4,194,304 bytes"
    assert one.seconds == pytest.approx(2 * (20e-6 + 2**21 / 3.125e9))


def test_groups_of_one_slice_hold_in_all_slices() -> None:
    found = estimate(
        "%p = f32[1024]{0} parameter(0)",
        "ROOT %r = f32[1024]{0} all-reduce(%p), replica_groups={{0,4,8,12},{1,5,9,13},{2,6,10,14},"
        "{3,7,11,15}}, to_apply=%add",
        cluster=SLICES,
        mesh=Mesh.parse("slice=2,x=4,y=4"),
        partitions=16,
    )
    (one,) = found.collectives
    assert str(one.collective) == "all-reduce over x: 6,144 bytes"


SCATTER = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter (p: f32[8,8], i: s32[]) -> f32[2,8] {
  %p = f32[8,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %r = f32[8,8]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %d = f32[2,8]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={2,8}
}

"""


@pytest.mark.parametrize(("attributes", "compute"), [("", 0.0), (", " + cycles(1750), 1e-6)])
def test_a_fusion_with_a_collective_is_compute_only_by_its_cycles(
    attributes: str, compute: float
) -> None:
    found = estimate(
        "%p = f32[8,8]{1,0} parameter(0)",
        "%i = s32[] parameter(1)",
        f"ROOT %f = f32[2,8]{{1,0}} fusion(%p, %i), kind=kCustom, calls=%all-reduce-scatter"
        f"{attributes}",
        before=SCATTER,
        cluster=V5P,
    )
    assert found.compute_seconds == pytest.approx(compute)
    assert [str(one.collective) for one in found.collectives] == [
        "reduce-scatter over tp: 192 bytes"
    ]


def test_an_asynchronous_fusion_is_compute() -> None:
    found = estimate(
        "%p = f32[1000]{0} parameter(0)",
        "%s = ((f32[1000]{0}), f32[1000]{0}, u32[]) fusion-start(%p), kind=kLoop, calls=%negated",
        "ROOT %d = f32[1000]{0} fusion-done(%s)",
        before="""%negated (p: f32[1000]) -> f32[1000] {
  %q = f32[1000]{0} parameter(0)
  ROOT %n = f32[1000]{0} negate(%q)
}

""",
    )
    assert found.compute_seconds == pytest.approx(8000 / (10e9 * 0.9) + 2e-6)
    assert found.hidden_copy_bytes == 0


def test_a_program_of_one_device_communicates_nothing() -> None:
    one = Cluster.parse("v5p:1x1x1")
    text = (
        "HloModule m\n\nENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        f"  ROOT %n = f32[8]{{0}} negate(%p), {cycles(1750)}\n}}\n"
    )
    found = estimate_step(text, one.level_mesh(), one)
    assert (found.compute_seconds, found.communication_seconds) == (pytest.approx(1e-6), 0.0)


def test_ops_are_named_with_their_lines_slowest_first() -> None:
    metadata = 'metadata={op_name="jit(f)/neg" source_file="model.py" source_line=7}'
    found = estimate(
        "%p = f32[1000]{0} parameter(0)",
        "%a = f32[1000]{0} negate(%p)",
        f"%b = f32[2000]{{0}} concatenate(%p, %a), dimensions={{0}}, {metadata}",
        "ROOT %t = (f32[2000]{0}) tuple(%b)",
    )
    assert [(op.name, op.place, op.op_name) for op in found.slowest_ops] == [
        ("b", "model.py:7", "jit(f)/neg"),
        ("a", None, ""),
    ]


def test_a_loop_without_trip_count_runs_as_often_as_the_caller_says() -> None:
    before = FUSED + LOOP.replace("CYCLES20", cycles(20)).replace("CYCLES1000", cycles(1000))
    before = before.replace("direction=LT", "direction=EQ")
    text = (
        f"HloModule m, num_partitions=8\n\n{before}\nENTRY %main (p: f32[8]) -> f32[8] {{\n"
        "  %p = bf16[64,128]{1,0} parameter(0)\n  %zero = s32[] constant(0)\n"
        "  %t = (s32[], bf16[64,128]{1,0}) tuple(%zero, %p)\n"
        "  ROOT %w = (s32[], bf16[64,128]{1,0}) while(%t), condition=%cond, body=%body\n}\n"
    )
    found = estimate_step(text, MESH, V5P, unknown_trip_count=3)
    assert found.uncounted_loops == ("w",)
    assert found.cycle_seconds == pytest.approx(3 * 1020 / 1.75e9)
    assert found.collectives[0].total_seconds == 3 * found.collectives[0].seconds


def test_what_the_host_executes_is_read_and_costs_nothing_that_is_known() -> None:
    text = """HloModule m

ENTRY %e (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %c = f32[4]{0} custom-call(%p), custom_call_target="HostExecute", \
async_execution_thread="tpu_host_thread"
}
"""
    assert xla_cost(text) is None
