"""Forms that experts write: which arguments are cut, and how."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.cluster.corrections import Corrections
from autoshard.errors import DoesNotFitError
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.search.forms import pinned_form
from autoshard.search.plan_pass import RefineProgram
from autoshard.search.ways import Way, ways_on

STEP = """module {
  func.func public @main(
      %w: tensor<64x256xf32> {tf.aliasing_output = 0 : i32},
      %b: tensor<3xf32> {tf.aliasing_output = 1 : i32},
      %x: tensor<ROWSx64xf32>) -> (tensor<64x256xf32>, tensor<3xf32>) {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<ROWSx64xf32>, tensor<64x256xf32>) -> tensor<ROWSx256xf32>
    %t = stablehlo.tanh %y : tensor<ROWSx256xf32>
    %g = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0]
      : (tensor<ROWSx64xf32>, tensor<ROWSx256xf32>) -> tensor<64x256xf32>
    %n = stablehlo.subtract %w, %g : tensor<64x256xf32>
    %m = stablehlo.add %b, %b : tensor<3xf32>
    return %n, %m : tensor<64x256xf32>, tensor<3xf32>
  }
}"""


def step(rows: int = 128) -> mlir.Module:
    return parse_bytes(STEP.replace("ROWS", str(rows)).encode(), new_context(), "step")


def test_fsdp_cuts_the_batch_and_the_largest_dim_of_what_is_replaced():
    found = pinned_form(step(), "fsdp", 8)
    assert found is not None
    assert {number: str(one) for number, one in found.arguments.items()} == {
        0: "[{}, {data}]",
        1: "[{}]",
        2: "[{data}, {}]",
    }
    assert {number: str(one) for number, one in found.results.items()} == {
        0: "[{}, {data}]",
        1: "[{}]",
    }


def test_data_leaves_what_is_replaced_whole():
    found = pinned_form(step(), "data", 8)
    assert found is not None
    cuts = {number: str(one) for number, one in found.arguments.items()}
    assert cuts == {0: "[{}, {}]", 1: "[{}]", 2: "[{data}, {}]"}


def test_a_batch_that_does_not_divide_has_no_forms():
    assert pinned_form(step(100), "fsdp", 8) is None
    refining = RefineProgram(cluster="h100:8")
    job = refining.job_for(step(100))
    with pytest.raises(DoesNotFitError, match="no plan of form data"):
        Way(form="data").job(job)


def test_a_form_is_planned_as_it_is_pinned():
    refining = RefineProgram(cluster="h100:8")
    planned = Way(form="fsdp").job(refining.job_for(step())).plan()
    assert planned.summary is not None
    assert planned.summary.mesh == "data=8"
    assert 'mhlo.sharding = "{devices=[1,8]<=[8]}"' in str(planned.module)


def test_corrected_costs_stand_in_the_plan():
    refining = RefineProgram(cluster="h100:8")
    job = refining.job_for(step())
    plain = job.plan().summary
    corrections = Corrections(products=3.0, others=3.0)
    made = refining._in_way(job, Way(), corrections).summary  # pyright: ignore[reportPrivateUsage]
    assert plain is not None
    assert made is not None
    assert made.compute_seconds == pytest.approx(3 * plain.compute_seconds)
    assert made.read_cluster().corrections == corrections
    assert made.read_cluster().uncorrected == Cluster.parse("h100:8")


def test_one_device_has_no_other_ways():
    assert ways_on(Cluster.parse("h100:1")) == ()
    assert [way.name for way in ways_on(Cluster.parse("h100:8"))] == [
        "",
        "",
        "",
        "",
        "fsdp",
        "data",
    ]
