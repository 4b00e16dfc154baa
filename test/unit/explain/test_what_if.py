"""``Plan.what_if``, ``autoshard.sweep`` and sensitivities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.cli import sweep as command
from autoshard.cli.main import main
from autoshard.cluster import Cluster
from autoshard.errors import ClusterError, PlanError
from autoshard.explain.machines import cluster_of_chips, scaled
from autoshard.frontend.lower import Traced

WEIGHTS = {f"w{n}": jax.ShapeDtypeStruct((2048, 2048), jnp.float32) for n in range(2)}
BATCH = jax.ShapeDtypeStruct((256, 2048), jnp.float32)


def loss(weights: Any, x: Any) -> Any:
    for name in sorted(weights):
        x = jax.nn.relu(x @ weights[name])
    return jnp.mean(x**2)


def step(weights: Any, x: Any) -> Any:
    gradients = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def planned(rows: int = 256, cluster: Any = "v5e:4x2", **options: Any) -> autoshard.Plan:
    x = jax.ShapeDtypeStruct((rows, 2048), jnp.float32)
    return autoshard.plan(step, WEIGHTS, x, cluster=cluster, donate_argnums=0, **options)


PLAN = planned()


def test_every_point_is_what_planning_it_gives() -> None:
    found = PLAN.what_if(cluster=["v5e:2x2", "v5e:4x4", "h100:8"], batch=[256, 1024])
    assert len(found.points) == 6
    for point in found.points:
        plan = planned(point.changed["batch"], point.changed["cluster"])
        assert point.step_seconds == plan.step_seconds
        assert point.peak_bytes == plan.peak_bytes
        assert point.mesh == str(plan.mesh)
        assert point.devices == plan.mesh.size


def test_more_of_a_machine_is_the_machine_with_that_number_changed() -> None:
    faster = scaled(Cluster.parse("v5e:4x2"), {"bandwidth": 2.0, "memory": 0.5})
    assert [dim.bandwidth.value for dim in faster.dims] == [9e10, 9e10]
    found = PLAN.what_if(bandwidth=[1, 2])
    assert found.points[0].step_seconds == pytest.approx(PLAN.step_seconds)
    twice = planned(cluster=scaled(Cluster.parse("v5e:4x2"), {"bandwidth": 2.0}))
    assert found.points[1].step_seconds == pytest.approx(twice.step_seconds)


def test_a_cluster_with_other_numbers_takes_the_program_that_was_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lowered(*_: Any) -> Any:
        raise AssertionError("lowered again")

    monkeypatch.setattr(Traced, "source", lowered)
    assert all(point.fits for point in PLAN.what_if(bandwidth=[0.5, 2]).points)
    with pytest.raises(AssertionError, match="lowered again"):
        PLAN.what_if(cluster="v5e:2x2")


def test_what_does_not_fit_is_a_row_that_says_so_and_others_go_on() -> None:
    found = PLAN.what_if(memory_limit=["1MiB", "14GiB"])
    tight, wide = found.points
    assert not tight.fits
    assert "does not fit" in tight.reason
    assert wide.step_seconds == pytest.approx(PLAN.step_seconds)
    assert "does not fit" in str(found)


def test_options_that_change_the_module_hold_at_every_point() -> None:
    spread = planned(optimizer_parallel=3)
    found = spread.what_if(batch=[256, 512])
    assert found.points[0].step_seconds == pytest.approx(spread.step_seconds)


def test_a_mesh_of_the_user_fits_its_own_number_of_devices_only() -> None:
    pinned = planned(mesh="a=8", in_shardings=({"w0": P("a"), "w1": None}, None))
    found = pinned.what_if(chips=[8, 16])
    assert found.points[0].step_seconds == pytest.approx(pinned.step_seconds)
    assert "devices" in found.points[1].reason


def test_the_fewest_devices_that_are_fast_enough_are_found() -> None:
    clusters = ["v5e:1x2", "v5e:2x2", "v5e:2x4"]
    found = autoshard.sweep(step, WEIGHTS, BATCH, clusters=clusters, donate_argnums=0)
    seconds = [point.step_seconds or 0.0 for point in found.points]
    assert seconds[0] > seconds[1]
    enough = found.fewest_devices(step_seconds=(seconds[0] + seconds[1]) / 2)
    assert enough is found.points[1]
    assert found.fewest_devices(examples_per_second=256 / seconds[0]) is found.points[0]
    assert found.fewest_devices(step_seconds=1e-9) is None
    with pytest.raises(PlanError, match="no cluster is given"):
        autoshard.sweep(step, WEIGHTS, BATCH, clusters=[])
    with pytest.raises(PlanError, match="unexpected keyword argument 'speed'"):
        autoshard.sweep(step, WEIGHTS, BATCH, clusters=clusters, speed=2)


def test_a_number_of_chips_is_the_most_compact_form_of_them() -> None:
    v5p, h100 = Cluster.parse("v5p:2x2x1"), Cluster.parse("h100:8")
    assert cluster_of_chips(v5p, 64).name == "v5p:4x4x4"
    assert cluster_of_chips(v5p, 16).name == "v5p:2x2x4"
    assert cluster_of_chips(h100, 32).name == "h100:4x8"
    with pytest.raises(ClusterError, match="is not built in"):
        cluster_of_chips(Cluster.parse("v5e:4x4"), 5_000_011)


def test_sensitivities_are_the_plan_priced_with_one_number_changed() -> None:
    found = PLAN.sensitivities()
    rows = {row.name: row.change for row in found.rows}
    links = [change for name, change in rows.items() if name.startswith("bandwidth of links")]
    assert links[0] < 0
    assert rows["matrix units"] <= 0
    assert list(map(abs, rows.values())) == sorted(map(abs, rows.values()), reverse=True)
    fixed = planned(
        cluster=scaled(Cluster.parse("v5e:4x2"), {"bandwidth": 1.1}),
        mesh=str(PLAN.mesh),
        in_shardings=PLAN.in_shardings,
    )
    assert links[0] == pytest.approx(fixed.step_seconds / PLAN.step_seconds - 1, rel=0.05)
    assert "memory, planned again" in str(found)


def attention_loss(weights: Any, ids: Any, features: Any, mask: Any) -> Any:
    x = weights["embedding"][ids] + features
    scores = jnp.einsum("bsd,btd->bst", x, x)
    x = jnp.where(mask, scores, 0.0) @ x
    return jnp.mean((x @ weights["out"]) ** 2)


def attention_step(weights: Any, ids: Any, features: Any, mask: Any) -> Any:
    gradients = jax.grad(attention_loss)(weights, ids, features, mask)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def of_sequences(length: int, width: int = 128) -> tuple[Any, ...]:
    """Features are as wide as the shorter sequences are long."""
    weights = {"embedding": (1000, width), "out": (width, width)}
    arrays = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        (weights, (16, length, width)),
        is_leaf=lambda one: isinstance(one, tuple) and isinstance(one[0], int),
    )
    ids = jax.ShapeDtypeStruct((16, length), jnp.int32)
    mask = jax.ShapeDtypeStruct((16, length, length), jnp.bool_)
    return arrays[0], ids, arrays[1], mask


def test_longer_sequences_are_what_planning_them_gives() -> None:
    options: dict[str, Any] = {"cluster": "v5e:2x2", "donate_argnums": 0}
    plan = autoshard.plan(attention_step, *of_sequences(128), **options)
    found = plan.what_if(sequence=[128, 512])
    for point, length in zip(found.points, (128, 512), strict=True):
        alone = autoshard.plan(attention_step, *of_sequences(length), **options)
        assert point.step_seconds == alone.step_seconds
        assert (point.batch, point.tokens) == (16, 16 * length)
    rate = found.points[1].tokens_per_second
    assert rate == 16 * 512 / (found.points[1].step_seconds or 0.0)
    assert found.fewest_devices(tokens_per_second=rate) is not None
    assert found.fewest_devices(tokens_per_second=1e15) is None
    assert "tokens/s" in str(found)


def test_a_program_without_sequences_has_no_longer_ones() -> None:
    assert "there are none" in PLAN.what_if(sequence=512).points[0].reason
    for size in (0, 1.5, "8"):
        with pytest.raises(PlanError, match=r"sequence=.*: give a whole number above 0"):
            PLAN.what_if(sequence=size)


def test_questions_that_say_nothing_are_refused() -> None:
    with pytest.raises(PlanError, match="nothing is said to vary"):
        PLAN.what_if()
    with pytest.raises(PlanError, match="speed is said to vary"):
        PLAN.what_if(speed=[1, 2])
    for factor in (0, "twice"):
        with pytest.raises(PlanError, match="is no factor"):
            PLAN.what_if(memory=[factor])


def test_a_file_is_swept_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, as_json = str(tmp_path / "plan.json"), str(tmp_path / "sweep.json")
    PLAN.save(path)
    arguments = [path, "--cluster", "v5e:2x2,v5e:4x2", "--bandwidth", "1,2", "--json", as_json]
    assert main(["sweep", *arguments, "--step", "1"]) == command.OK
    assert "within 1 s a step: 4 devices" in capsys.readouterr().out
    rows = json.loads(Path(as_json).read_text())
    assert len(rows) == 4
    assert rows[2]["step_seconds"] == pytest.approx(PLAN.step_seconds)
    assert main(["sweep", *arguments, "--step", "1e-9"]) == command.NONE_IS_FAST_ENOUGH
    assert main(["sweep", str(tmp_path / "none.json"), "--chips", "4"]) == 1
    with pytest.raises(PlanError, match="another batch takes the function"):
        autoshard.Plan.load(path).what_if(batch=[1])
