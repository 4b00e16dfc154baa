"""Files of plans: JSON, with the planned module inside."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from autoshard.errors import AutoshardError, ParseError
from autoshard.frontend.mesh import Machine, machine_of, machine_of_cluster, machine_of_ids
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.planned.summary import BatchSplit, PlanSummary
from autoshard.sharding import Mesh, parse_sharding

_tree: Any = jax.tree_util


def save_plan(plan: Plan, path: str | Path) -> None:
    """See ``Plan.save``."""
    Path(path).write_text(json.dumps(_to_json(plan), indent=1) + "\n")


def load_plan(path: str | Path) -> Plan:
    """See ``Plan.load``."""
    try:
        read = json.loads(Path(path).read_text())
        version = read["autoshard_plan"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParseError(
            f"no plan can be read: {error}. Give a file that plan.save wrote.", str(path)
        ) from error
    if version != Plan.FORMAT:
        raise ParseError(
            f"the plan has version {version}, this autoshard reads version {Plan.FORMAT}."
            " Plan again, or use the autoshard that wrote it.",
            str(path),
        )
    try:
        return _from_json(read)
    except (AutoshardError, KeyError, TypeError, ValueError, OSError, EOFError) as error:
        raise ParseError(
            f"the plan is damaged: {error}. Plan again, and save it again.", str(path)
        ) from error


def _to_json(plan: Plan) -> dict[str, Any]:
    return {
        "autoshard_plan": Plan.FORMAT,
        "name": plan.name,
        "mode": plan.mode,
        "mesh": str(plan.mesh),
        "device_order": plan.machine.numbers,
        "device_ids": plan.machine.chosen_ids,
        "is_on_cluster": plan.machine.cluster is not None,
        "summary": None if plan.summary is None else json.loads(plan.summary.to_json()),
        "batch": None if plan.batch is None else asdict(plan.batch),
        "compiler_options": dict(plan.compiler_options),
        "arguments": [_value_to_json(value) for value in plan.arguments],
        "results": [_value_to_json(value) for value in plan.results],
        "in_tree": _tree_to_json(plan.in_tree),
        "out_tree": _tree_to_json(plan.out_tree),
        "module": base64.b64encode(gzip.compress(plan.bytecode, mtime=0)).decode(),
    }


def _from_json(read: Mapping[str, Any]) -> Plan:
    mesh = Mesh.parse(read["mesh"])
    summary = None
    if read["summary"] is not None:
        summary = PlanSummary.from_json(json.dumps(read["summary"]))
    return Plan(
        name=read["name"],
        mesh=mesh,
        mode=read["mode"],
        arguments=tuple(_value_from_json(value, mesh) for value in read["arguments"]),
        results=tuple(_value_from_json(value, mesh) for value in read["results"]),
        bytecode=gzip.decompress(base64.b64decode(read["module"])),
        in_tree=_tree_from_json(read["in_tree"]),
        out_tree=_tree_from_json(read["out_tree"]),
        machine=_machine_from_json(read, mesh, summary),
        summary=summary,
        batch=None if read["batch"] is None else BatchSplit(**read["batch"]),
        compiler_options=read.get("compiler_options", {}),
    )


def _value_to_json(value: PlannedValue) -> dict[str, Any]:
    return {
        "name": value.name,
        "shape": list(value.shape),
        "dtype": value.dtype,
        "sharding": str(value.sharding),
        "is_used": value.is_used,
        "is_on_host": value.is_on_host,
    }


def _value_from_json(read: dict[str, Any], mesh: Mesh) -> PlannedValue:
    return PlannedValue(
        name=read["name"],
        shape=tuple(read["shape"]),
        dtype=read["dtype"],
        sharding=parse_sharding(read["sharding"], mesh),
        is_used=read["is_used"],
        is_on_host=read.get("is_on_host", False),
    )


def _machine_from_json(read: Mapping[str, Any], mesh: Mesh, summary: PlanSummary | None) -> Machine:
    order = read["device_order"]
    numbered = Mesh(mesh.axes, None if order is None else tuple(order))
    if read["device_ids"] is not None:
        return machine_of_ids(numbered, read["device_ids"])
    if read["is_on_cluster"]:
        if summary is None:
            raise ParseError("it is for a cluster, but says nothing of it")
        return machine_of_cluster(summary.read_cluster(), numbered)
    return machine_of(numbered)


def _tree_to_json(tree: Any) -> str | None:
    """None for a structure with types of the user's own, or none at all."""
    if tree is None:
        return None
    try:
        return base64.b64encode(tree.serialize_using_proto()).decode()
    except ValueError:
        return None


def _tree_from_json(text: str | None) -> Any:
    if text is None:
        return None
    return _tree.PyTreeDef.deserialize_using_proto(_tree.default_registry, base64.b64decode(text))
