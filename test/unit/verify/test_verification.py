"""A plan beside its compiled program: what is compared, what counts, and the command."""

import json
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cli import opt
from autoshard.cli import verify as cli
from autoshard.cluster import Cluster
from autoshard.errors import ClusterError, CompileError, PlanError
from autoshard.ir import new_context, parse_bytes
from autoshard.planned.collective import CollectiveKind
from autoshard.verify import ahead_of_time
from autoshard.verify.ahead_of_time import CompiledProgram
from autoshard.verify.matching import Matching, Verdict
from autoshard.verify.rematerialization import Rematerialization
from autoshard.verify.verification import Verification, verify_module

_CPU8 = Cluster.parse("cpu:8")


def _step(weights, x):
    """Rows of the batch against weights that stay cut: gradients are reduced over the batch."""

    def loss(weights):
        return jnp.sum((jnp.tanh(x @ weights["w"]) @ weights["v"]) ** 2)

    return jax.tree_util.tree_map(lambda a, g: a - g, weights, jax.grad(loss)(weights))


_SHAPES = (
    {
        "w": jax.ShapeDtypeStruct((64, 128), "float32"),
        "v": jax.ShapeDtypeStruct((128, 64), "float32"),
    },
    jax.ShapeDtypeStruct((256, 64), "float32"),
)


@pytest.fixture(scope="module")
def plan():
    return autoshard.plan(_step, *_SHAPES, cluster="cpu:8", mode="data_parallel")


@pytest.fixture(scope="module")
def verified(plan) -> Verification:
    return plan.verify(form="shardy")


def test_a_data_parallel_step_is_compiled_as_planned(verified: Verification):
    assert verified.ok
    assert verified.fits
    assert verified.differences == ()
    assert verified.collectives is not None
    # Both gradients, 64 x 128 floats each, all-reduced over 8 devices: 2 x 7/8 of their bytes.
    assert verified.collectives.compiled_bytes == pytest.approx(2 * 7 / 8 * 2 * 64 * 128 * 4)
    kinds = {row.compiled.kind for row in verified.collectives.rows if row.compiled}
    assert kinds == {CollectiveKind.ALL_REDUCE}


def test_arguments_are_counted_on_one_device(verified: Verification):
    # Weights are whole on each device, rows of the batch are not.
    assert verified.program.argument_bytes == 2 * 64 * 128 * 4 + 256 // 8 * 64 * 4
    assert verified.estimate is not None
    assert verified.estimate.flops > 0


def test_the_numbers_are_in_the_table_and_in_json(verified: Verification):
    text = str(verified)
    assert "compiled as planned" in text
    assert "test_verification.py" in text
    read = json.loads(json.dumps(verified.to_json()))
    assert read["ok"] is True
    assert read["program"]["argument_bytes"] == verified.program.argument_bytes
    assert read["compiled"]["sent_bytes"] == verified.collectives.compiled_bytes
    assert read["collectives"][0]["verdict"] == "as planned"


def test_the_three_numbers_of_the_schedule_are_in_the_table_and_in_json(verified: Verification):
    assert verified.schedule is not None
    assert verified.estimate is not None
    # XLA:CPU begins no collective before it waits for it: nothing is hidden.
    assert verified.schedule.scheduled_seconds == pytest.approx(verified.estimate.step_seconds)
    said = verified.to_json()["schedule"]
    (waited,) = said["transfers"]
    assert waited["exposed_seconds"] == pytest.approx(verified.estimate.communication_seconds)
    assert said["scheduled_seconds"] == said["nothing_hidden_seconds"]
    text = str(verified)
    assert all(name in text for name in ("nothing hidden", "as scheduled", "all hidden"))
    assert waited["name"] in text


def test_transfers_to_the_host_are_shown_where_there_are_any(verified: Verification):
    assert "host" not in str(verified)
    assert verified.estimate is not None
    with_host = replace(
        verified,
        predicted=replace(verified.predicted, host_transfer_bytes=2**20),
        estimate=replace(
            verified.estimate,
            host_transfer_bytes=3 * 2**20,
            host_transfer_seconds=0.25,
            host_exposed_seconds=0.125,
        ),
    )
    table = [line.split() for line in str(with_host).splitlines()]
    row = "bytes to and from the host 1 MiB 3 MiB (+200.0%)"
    assert row.split() in table
    assert ["host", "transfers", "0", "ns", "250", "ms"] in table
    assert ["of", "these", "not", "hidden", "0", "ns", "125", "ms"] in table
    numbers = with_host.to_json()["compiled"]
    assert (numbers["host_transfer_bytes"], numbers["host_transfer_seconds"]) == (3 * 2**20, 0.25)
    assert numbers["step_seconds"] == verified.estimate.step_seconds + 0.125


def test_a_plan_for_a_cluster_from_a_file_knows_it(tmp_path, capsys):
    file = tmp_path / "ours.toml"
    file.write_text('base = "cpu:8"\n[chip]\nmemory_bytes = 1e9\n')
    made = autoshard.plan(_step, *_SHAPES, cluster=str(file), mode="data_parallel")
    file.unlink()
    made.save(tmp_path / "plan.json")
    read = autoshard.Plan.load(tmp_path / "plan.json")
    assert read.summary is not None
    assert read.summary.read_cluster().usable_memory_bytes == 1e9
    found = read.verify()
    assert (found.program.target, found.program.usable_bytes) == ("ours", 1e9)
    assert found.predicted == read.summary
    module = tmp_path / "planned.mlir"
    module.write_text(made.to_mlir())
    assert opt.main([str(module), "--autoshard-print-costs", "-o", os.devnull]) == 0
    assert "8 devices of ours" in capsys.readouterr().err


def test_gspmd_compiles_the_same_plan(plan):
    found = plan.verify(form="gspmd")
    assert found.ok
    assert found.program.partitioner == "gspmd"


def test_automatic_and_propagated_plans_are_verified_too():
    automatic = autoshard.plan(_step, *_SHAPES, cluster="cpu:8")
    assert automatic.verify().fits
    split = jax.sharding.PartitionSpec("dp", None)
    propagated = autoshard.plan(
        _step, *_SHAPES, mesh="dp=8", mode="semi_auto", in_shardings=(None, split)
    )
    found = propagated.verify(target="cpu:8")
    assert found.fits
    assert found.predicted.cluster == "cpu:8"


def test_a_plan_without_a_cluster_needs_a_target():
    split = jax.sharding.PartitionSpec("dp", None)
    plan = autoshard.plan(
        _step, *_SHAPES, mesh="dp=64", mode="semi_auto", in_shardings=(None, split)
    )
    with pytest.raises(PlanError, match="Give cluster="):
        plan.verify()


def test_another_number_of_devices_is_refused(plan):
    with pytest.raises(ClusterError, match=r"is for 8 devices.*cpu:4 has 4"):
        plan.verify(target="cpu:4")


def test_an_unplanned_module_says_how_to_plan_it():
    module = parse_bytes(b"func.func @main() { return }", new_context(), "step.mlir")
    with pytest.raises(PlanError, match=r"has not been planned.*autoshard-recursive-programming"):
        verify_module(module, _CPU8)


# What counts as a difference --------------------------------------------------------------------


def _with_program(plan, **changes) -> Verification:
    """The plan verified with what a compiler could have made of it."""
    real = plan.verify(form="shardy").program

    def compiler(module, cluster, **options) -> CompiledProgram:
        return replace(real, **changes)

    module = parse_bytes(plan.bytecode, new_context(), "plan")
    return verify_module(module, _CPU8, compiler=compiler)


def test_an_argument_that_is_split_otherwise_is_a_difference(plan):
    whole = ("{replicated}",) * 3
    found = _with_program(plan, argument_shardings=whole)
    assert [one.name for one in found.moved] == ["x"]
    assert not found.ok
    assert found.differences[0].startswith("x is planned as [{data}, {}]")


def test_collectives_that_are_not_planned_are_a_difference(plan):
    planned = plan.summary
    silent = replace(plan, summary=None)
    module = parse_bytes(silent.bytecode, new_context(), "plan")
    text = replace(planned, collectives=(), communication_seconds=0.0).to_json()
    with module.context:
        import jaxlib.mlir.ir as ir

        module.operation.attributes["autoshard.plan"] = ir.StringAttr.get(text)
    found = verify_module(module, _CPU8)
    assert found.fits
    assert found.as_planned is False
    assert "longer than planned" in found.differences[0]
    assert "all-reduce over data" in found.differences[0]


def test_other_collectives_that_take_no_longer_are_none(verified: Verification):
    matching = verified.collectives
    (row,) = matching.rows
    absent = replace(row, verdict=Verdict.ABSENT, compiled=None)
    instead = replace(row, verdict=Verdict.NOT_PLANNED, planned=None)
    found = replace(verified, collectives=Matching((absent, instead)))
    assert found.unplanned == (instead,)
    assert found.as_planned
    twice = replace(verified, collectives=Matching((absent, instead, instead, instead)))
    assert twice.as_planned is False


def test_a_value_that_the_partitioner_makes_whole_is_a_difference(verified: Verification):
    one = Rematerialization(
        "copy.2",
        "copy",
        "f32[12,16]",
        "{devices=[2]<=[2]}",
        "{replicated}",
        "jit(f)/dot",
        "m.py:7",
        "said",
    )
    found = replace(verified, rematerializations=(one,))
    assert not found.ok
    assert "m.py:7: the partitioner makes a value whole" in found.differences[0]


def test_without_hlo_text_nothing_is_claimed(plan):
    found = _with_program(plan, hlo_text=None, no_hlo_text="the compiler cannot print it")
    assert found.as_planned is None
    assert not found.ok
    assert found.fits
    assert "collectives are not compared: the compiler cannot print it" in str(found)
    with pytest.raises(CompileError, match="no schedule to show: the compiler cannot print it"):
        plan.explain(verified=found)


def test_a_page_has_the_step_as_it_was_compiled_where_it_was_verified(plan, verified):
    html = plan.explain(verified=verified).to_html()
    assert "<h2>Timeline (modelled)</h2>" in html
    assert "<h2>Timeline (simulated)</h2>" in html
    assert "all-reduce" in html.partition("Timeline (simulated)</h2>")[2].partition("</svg>")[0]


# The command ------------------------------------------------------------------------------------


@pytest.fixture
def planned_file(plan, tmp_path):
    path = tmp_path / "planned.mlir"
    path.write_text(plan.to_mlir())
    return path


def test_the_command_prints_the_table_and_writes_json_and_a_trace(planned_file, tmp_path, capsys):
    out, trace = tmp_path / "out.json", tmp_path / "trace.json"
    assert cli.main([str(planned_file), "--json", str(out), "--trace", str(trace)]) == cli.OK
    assert "fits: needs" in capsys.readouterr().out
    assert json.loads(out.read_text())["fits"] is True
    assert json.loads(trace.read_text())["traceEvents"]


def test_the_command_says_what_does_not_fit(planned_file, capsys, monkeypatch):
    said = "RESOURCE_EXHAUSTED: Used 18.97G of 15.75G hbm. Exceeded hbm capacity by 3.22G."
    script = (
        "import json, sys, pathlib; pathlib.Path(sys.argv[1], 'result.json').write_text("
        f"json.dumps({{'refusal': {said!r}, 'compile_seconds': 2.0, 'host_bytes': 1}}))"
    )
    monkeypatch.setattr(ahead_of_time, "_PROCESS", ("-c", script))
    assert cli.main([str(planned_file), "--cluster", "cpu:8"]) == cli.DOES_NOT_FIT
    out = capsys.readouterr().out
    assert "DOES NOT FIT: needs 18.97 GiB of the 15.75 GiB of a device, 3.22 GiB too much" in out
    assert cli.main([str(planned_file), "--trace", "trace.json"]) == cli.DOES_NOT_FIT
    assert "no trace is written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "cpu:4"], "is for 8 devices"),
        (["--cluster", "nobody:4"], 'no chip "nobody" is known'),
        (["--timeout", "0"], "more than 0 seconds"),
        (["--check", "--trace", "trace.json"], "leave out --trace"),
        (["--trace", "/nowhere/trace.json"], "/nowhere/trace.json: error: cannot write"),
        (["--compiler-option", "x"], 'no set of options is called "x"'),
    ],
)
def test_the_command_says_what_is_wrong(planned_file, capsys, arguments, said):
    assert cli.main([str(planned_file), *arguments]) == cli.FAILED
    assert said in capsys.readouterr().err


def test_the_command_wants_a_planned_module(tmp_path, capsys):
    path = tmp_path / "step.mlir"
    path.write_text("func.func @main() { return }\n")
    assert cli.main([str(path)]) == cli.FAILED
    assert "does not say what it is planned for" in capsys.readouterr().err
    assert cli.main([str(path), "--cluster", "cpu:8"]) == cli.FAILED
    assert "has not been planned" in capsys.readouterr().err


def test_errors_of_compilers_reach_the_user(plan, monkeypatch):
    monkeypatch.setattr(ahead_of_time, "_PROCESS", ("-c", "import os; os.abort()"))
    with pytest.raises(CompileError, match="SIGABRT"):
        plan.verify()
