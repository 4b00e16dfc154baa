"""The table of what XLA partitions right: its words, its loader, and whether it is still true."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.compilers import partitioner
from autoshard.compilers.partitioner import Bad, PartitionerTable, Row, Verdict, releases
from autoshard.errors import AutoshardWarning
from autoshard.importer import factor_roles, rules
from autoshard.importer.factors import FactorKind
from autoshard.importer.faults import BY_THE_EXPORTER
from bench.truth import cases, programs

RUNNER = Path(__file__).resolve().parents[3] / "bench" / "truth" / "runner.py"


def roles_of(function, *shapes) -> list[tuple[str, list[str], set[str]]]:
    """Name, roles and traits of the ops of a function that have factors."""
    program = programs.of("", function, *shapes)
    return [
        (i.op.name.removeprefix("stablehlo."), i.roles, set(i.traits))
        for i in cases.instances([program])
    ]


def of_op(name, function, *shapes) -> tuple[set[str], set[str]]:
    """Roles and traits of the one op of this name."""
    ((_, found, traits),) = (each for each in roles_of(function, *shapes) if each[0] == name)
    return set(found), traits


def convolution(**arguments):
    arguments = {"window_strides": (1, 1), "padding": "SAME", **arguments}
    numbers = ("NHWC", "HWIO", "NHWC")
    return lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=numbers, **arguments)


def test_every_kind_has_a_word():
    assert set(factor_roles.KINDS) == set(FactorKind)


def test_roles_of_a_convolution():
    found, traits = of_op("convolution", convolution(), (8, 16, 16, 8), (3, 3, 8, 16))
    assert {"batch", "image", "contracted", "features"} <= found
    assert traits == {"padded"}


def test_a_weight_gradient_contracts_the_image():
    def gradient(x, w):
        return jax.grad(lambda w: convolution()(x, w).sum())(w)

    found, traits = of_op("convolution", gradient, (8, 16, 16, 8), (3, 3, 8, 16))
    assert {"image_contracted", "contracted", "features"} <= found
    assert "large_window" in traits


def test_traits_of_a_convolution_with_everything():
    function = convolution(
        padding=((-1, 2), (1, 1)), lhs_dilation=(2, 2), rhs_dilation=(2, 2), feature_group_count=2
    )
    _, traits = of_op("convolution", function, (8, 16, 16, 8), (3, 3, 4, 16))
    assert traits == {
        *("base_dilated", "window_dilated", "negative_pad", "padded", "uneven_pad", "grouped"),
    }


def test_roles_of_indices():
    table, rows = (64, 16, 8), ((8,), jnp.int32)
    found, traits = of_op("gather", lambda x, i: x.at[i].get(mode="clip"), table, rows)
    assert found == {"indexed", "indices", "slice", "index_vector"}
    assert traits == set()
    found, traits = of_op("scatter", lambda x, i, u: x.at[i].add(u), (8,), ((1,), jnp.int32), (1,))
    assert "indexed" in found
    assert traits == {"add", "one_index"}


def test_roles_of_slices_say_what_is_moved():
    x = (16, 32)
    assert of_op("slice", lambda a: a[:, 1:31:2], x) == (
        {"pass", "touched"},
        {"low", "high", "strided"},
    )
    found, _ = of_op(
        "dynamic_slice", lambda a, i: lax.dynamic_slice(a, (i, i), (16, 8)), x, ((), jnp.int32)
    )
    assert found == {"pass", "sliced"}
    found, _ = of_op(
        "dynamic_update_slice",
        lambda a, u, i: lax.dynamic_update_slice(a, u, (i, i)),
        x,
        (16, 8),
        ((), jnp.int32),
    )
    # Shardy's rules of newer releases have no factor for the update's own dim.
    assert found - {"update"} == {"pass", "updated"}


def test_windows_are_cut_as_the_partitioner_may_be_told_to():
    """Also where autoshard leaves them whole: a cumulative sum reads the whole dim."""
    (instance,) = cases.instances([programs.of("", lambda x: lax.cumsum(x, axis=1), (8, 16))])
    (window,) = (
        f for r, f in zip(instance.roles, instance.rule.factors, strict=True) if r != "pass"
    )
    assert window.kind == FactorKind.PERMUTATION
    ours = rules.rule_of(instance.op, instance.op.attributes[cases.RULE])
    assert FactorKind.NEED_REPLICATION in {factor.kind for factor in ours.factors}


def test_types_of_numbers_are_traits_but_for_float32():
    found = {dtype for program in (BOOL_OR, FLOAT_NEG) for dtype in dtypes_of(program)}
    assert found == {"bool", ""}


BOOL_OR = programs.of("", lax.bitwise_or, ((8,), jnp.bool_), ((8,), jnp.bool_))
FLOAT_NEG = programs.of("", lax.neg, (8,))


def dtypes_of(program) -> list[str]:
    return [instance.dtype for instance in cases.instances([program])]


# The loader -------------------------------------------------------------------------------------


def table_of(*rows: Row) -> PartitionerTable:
    return PartitionerTable("1.0", {(row.op, row.roles): row for row in rows})


def row(roles, right, *bad: set[str]) -> Row:
    faults = tuple(
        Bad(frozenset(traits), Verdict.WRONG, "", 1, 1, ("shardy",), "", "", "") for traits in bad
    )
    return Row("op", tuple(roles), tuple(map(frozenset, right)), faults, 1)


def test_a_fault_is_one_of_all_ops_with_its_traits():
    table = table_of(row(["a"], [["x"], ["y", "z"]], {"x", "y"}))
    assert table.verdict("op", ["x"], ["a"]) is Verdict.RIGHT
    assert table.verdict("op", ["x", "y", "z"], ["a"]) is Verdict.WRONG


def test_traits_that_were_never_run_together_prove_nothing():
    table = table_of(row(["a"], [["x", "y"], ["y", "z"], ["v", "x"]]))
    assert table.verdict("op", ["x", "y"], ["a"]) is Verdict.RIGHT
    assert table.verdict("op", ["x", "y", "z"], ["a"]) is Verdict.UNPROVEN
    assert table.verdict("op", ["unseen"], ["a"]) is Verdict.UNPROVEN


def test_of_three_roles_every_pair_must_be_right():
    pairs = [row(pair, [[]]) for pair in (["a", "b"], ["a", "c"], ["b", "c"])]
    assert table_of(*pairs).verdict("op", [], ["a", "b", "c"]) is Verdict.RIGHT
    assert table_of(*pairs[:2]).verdict("op", [], ["a", "b", "c"]) is Verdict.UNPROVEN
    wrong = table_of(*pairs[:2], row(["b", "c"], [], set()))
    assert wrong.verdict("op", [], ["c", "a", "b"]) is Verdict.WRONG


def test_what_one_role_breaks_no_other_one_heals():
    table = table_of(row(["a"], [], set()), row(["a", "b"], [[]]))
    assert table.verdict("op", [], ["a", "b"]) is Verdict.WRONG


@pytest.fixture
def nothing_warned() -> Iterator[None]:
    """Warnings come once in a process: here as in a new one."""
    partitioner._known_releases.cache_clear()
    yield
    partitioner._known_releases.cache_clear()


def test_a_newer_release_takes_the_newest_table_and_says_so_once(nothing_warned, monkeypatch):
    newest = max(releases(), key=lambda each: [int(part) for part in each.split(".")])
    monkeypatch.setattr(partitioner.version, "__version__", "999.0.1")
    with pytest.warns(AutoshardWarning, match=rf"not known of jaxlib 999\.0\.1: .* by {newest}\."):
        assert PartitionerTable.of_installed().release == newest
    assert PartitionerTable.of_installed().release == newest


@pytest.mark.parametrize("release", releases())
def test_a_known_release_has_its_own_table(release, nothing_warned):
    *first, _ = release.split(".")
    for same in (release, f"{release}.1", ".".join(first) if len(first) == 3 else release):
        assert PartitionerTable.of_release(same).release == release


def test_an_older_release_than_all_takes_the_oldest_table(nothing_warned):
    oldest = min(releases(), key=lambda each: [int(part) for part in each.split(".")])
    with pytest.warns(AutoshardWarning, match="not known"):
        assert PartitionerTable.of_release("0.0.1").release == oldest


def test_between_two_tables_what_either_does_wrong_is_wrong(nothing_warned):
    with pytest.warns(AutoshardWarning, match=r"jaxlib 0\.11\.2: .* by 0\.10\.2 and 0\.12\.0\.1\."):
        between = PartitionerTable.of_release("0.11.2")
    older, newer = (PartitionerTable.of_release(each) for each in ("0.10.2", "0.12.0.1"))
    scatter = ("stablehlo.scatter", ["add", "one_index"], ["indexed"])
    assert older.verdict(*scatter) is between.verdict(*scatter) is Verdict.WRONG
    assert between.verdict("stablehlo.dot_general", [], ["batch", "contracted"]) is Verdict.RIGHT
    for table in (older, newer):
        for (op, roles), row in table.rows.items():
            for bad in row.bad:
                assert between.fault(op, bad.traits, roles) is not None
            for traits in row.right:
                is_right = all(
                    each.verdict(op, traits, roles) is Verdict.RIGHT for each in (older, newer)
                )
                if between.verdict(op, traits, roles) is Verdict.RIGHT:
                    assert is_right


# The truth --------------------------------------------------------------------------------------

KNOWN = PartitionerTable.of_installed()


@pytest.mark.parametrize("release", releases())
@pytest.mark.parametrize(
    ("op", "traits", "roles", "verdict"),
    [
        ("stablehlo.dot_general", [], ["batch", "contracted"], Verdict.RIGHT),
        ("stablehlo.convolution", ["padded"], ["batch", "features"], Verdict.RIGHT),
        ("stablehlo.convolution", ["padded"], ["features", "image"], Verdict.WRONG),
        ("stablehlo.pad", ["interior", "negative_low"], ["touched"], Verdict.ABORTS),
        ("stablehlo.reduce", ["add"], ["reduction"], Verdict.RIGHT),
        ("stablehlo.reduce", ["bool", "or"], ["reduction"], Verdict.RIGHT),
        ("stablehlo.reduce", ["integer", "or"], ["reduction"], Verdict.ABORTS),
        ("stablehlo.reduce", ["other"], ["reduction"], Verdict.ABORTS),
        ("stablehlo.reduce", ["variadic"], ["reduction"], Verdict.RIGHT),
        ("stablehlo.nothing", [], ["pass"], Verdict.UNPROVEN),
    ],
)
def test_the_tables(release, op, traits, roles, verdict):
    assert PartitionerTable.of_release(release).verdict(op, traits, roles) is verdict


@pytest.mark.parametrize(("release", "verdict"), [("0.10.2", "wrong"), ("0.12.0.1", "right")])
def test_what_was_mended_is_right_in_the_newer_table(release, verdict):
    table = PartitionerTable.of_release(release)
    found = table.verdict("stablehlo.scatter", ["add", "one_index"], ["indexed"])
    assert found is Verdict(verdict)


@pytest.mark.parametrize("release", releases())
def test_what_plans_look_up_is_in_the_table(release):
    """Roles of the factors that the planner may cut, of ops that are left to the partitioner."""
    table = PartitionerTable.of_release(release)
    some = [*programs.reductions(), *list(programs.windows())[::4]]
    for instance in cases.instances(some):
        if instance.op.name not in BY_THE_EXPORTER:
            rule = rules.rule_of(instance.op, instance.op.attributes.get(cases.RULE))
            for number, factor in enumerate(rule.factors):
                if factor.size > 1 and factor.kind != FactorKind.NEED_REPLICATION:
                    role = factor_roles.role_of(instance.op, rule, number)
                    assert (instance.op.name, (role,)) in table.rows


def test_a_sample_of_the_table_is_still_true(tmp_path):
    """Some faults of many kinds, and programs that the table calls right."""
    expected: dict[str, str] = {}
    jobs = []
    for bad in sample_of_faults():
        job = cases.written(bad.program)
        expected[job.id] = bad.verdict.value
        jobs.append(job)
    for job in sample_of_right():
        expected[job.id] = "right"
        jobs.append(job)
    found = run(jobs, tmp_path)
    wrong = {
        job.id: (job.op, job.cut, found[job.id], job.text)
        for job in jobs
        if found[job.id]["verdict"] not in (expected[job.id], *OF_ABORTS.get(expected[job.id], ()))
    }
    assert len(jobs) >= 12
    assert not wrong


OF_ABORTS = {"aborts": ("hangs", "refused")}


def sample_of_faults() -> list[Bad]:
    """Four that are wrong, of as many ops, and one that ends the process."""
    first: dict[tuple[str, Verdict], Bad] = {}
    for row in KNOWN.rows.values():
        for bad in row.bad:
            first.setdefault((row.op, bad.verdict), bad)
    faults = [bad for (_, verdict), bad in first.items() if verdict is Verdict.WRONG][:4]
    return faults + [bad for (_, verdict), bad in first.items() if verdict is Verdict.ABORTS][:1]


def sample_of_right() -> list[cases.Job]:
    """Ten cuts of five ops that the table calls right."""
    index = ((8,), jnp.int32)
    some = (
        programs.of("", convolution(), (8, 8, 8, 8), (3, 3, 8, 8)),
        programs.of("", lambda x: lax.pad(x, 0.0, ((1, 7, 0), (0, 0, 0))), (16, 8)),
        programs.of("", lambda x, i: x.at[i].get(mode="clip"), (16, 8), index),
        programs.of("", lambda x, i, u: x.at[i].add(u), (16, 8), index, (8, 8)),
        programs.of("", lambda x, y: x @ y, (8, 16), (16, 8)),
    )
    jobs = []
    for instance in cases.instances(some):
        if instance.op.name not in ("stablehlo.broadcast_in_dim", "stablehlo.compare"):
            right = [
                candidate
                for candidate in cases.candidates(instance)
                if candidate.pins.mesh == "a=2,b=4"
                and KNOWN.verdict(
                    instance.op.name, instance.traits, candidate.pins.roles(instance.roles)
                )
                is Verdict.RIGHT
            ]
            jobs += [
                candidate.job() for candidate in sorted(right, key=lambda each: each.order)[:2]
            ]
    return jobs


def run(jobs: list[cases.Job], folder: Path) -> dict[str, dict[str, str]]:
    lines = [json.dumps(asdict(job)) for job in jobs]
    (folder / "jobs").write_text("\n".join(lines))
    command = [sys.executable, str(RUNNER), str(folder / "jobs")]
    subprocess.run([*command, str(folder / "results")], check=True, timeout=120)
    answers = map(json.loads, (folder / "results").read_text().splitlines())
    return {answer["id"]: answer for answer in answers}
