"""Files of plans: JSON, with the planned module inside.

The module is there twice: as bytecode, which is read fast, but only by the jaxlib that wrote it,
and as text, which others read.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from autoshard.cluster import Cluster
from autoshard.cluster.toml_file import parse_toml
from autoshard.errors import AutoshardError, ParseError, PlanError
from autoshard.frontend.fingerprint import Fingerprint
from autoshard.frontend.mesh import Machine, machine_of, machine_of_cluster, machine_of_ids
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.planned_lockstep import LockstepPipeline, lockstep_pipeline
from autoshard.frontend.planned_pipeline import PlannedPipeline, Staging, planned_pipeline
from autoshard.frontend.saved_tree import SavedTree, leaf_count, tree_to_json
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.pipeline.options import Pipeline
from autoshard.planned.summary import BatchSplit, PlanSummary
from autoshard.rewrites.layer_loops.parts import ArrayParts, ProgramParts
from autoshard.sharding import Mesh, parse_sharding
from autoshard.writing import write_file


def save_plan(plan: Plan, path: str | Path) -> None:
    """See ``Plan.save``."""
    write_file(str(path), text_of_plan(plan).encode())


def load_plan(path: str | Path) -> Plan:
    """See ``Plan.load``."""
    try:
        text = Path(path).read_text()
    except (OSError, ValueError) as error:
        raise ParseError(
            f"no plan can be read: {error}. Give a file that plan.save wrote.", str(path)
        ) from error
    return plan_of_text(text, str(path))


def text_of_plan(plan: Plan) -> str:
    """JSON of a plan, the whole file."""
    return json.dumps(_to_json(plan), indent=1) + "\n"


def plan_of_text(text: str, path: str = "a plan") -> Plan:
    """What ``text_of_plan`` made.

    Args:
        text: The whole file.
        path: Its name, for errors.

    Raises:
        ParseError: The text is no plan, or one of another version.
    """
    try:
        read = json.loads(text)
        version = read["autoshard_plan"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ParseError(
            f"no plan can be read: {error}. Give a file that plan.save wrote.", path
        ) from error
    if version != Plan.FORMAT:
        raise ParseError(_other_version(version, read.get("written_by")), path)
    try:
        return _from_json(read)
    except (
        AutoshardError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        OSError,
        EOFError,
        RecursionError,
        zlib.error,
    ) as error:
        raise ParseError(
            f"the plan is damaged: {error}. Plan again, and save it again.", path
        ) from error


def _other_version(version: Any, release: Any) -> str:
    said = f"the plan has version {version}, this autoshard reads version {Plan.FORMAT}"
    if isinstance(version, int) and version < Plan.FORMAT:
        return f"{said}: {_OLDER.get(version, 'it lacks what is needed now')}. Plan again."
    by = f" It was written by autoshard {release}." if isinstance(release, str) else ""
    return f"{said}, which does not know what newer ones mean.{by} Use that release, or plan again."


_OLDER = {
    1: "it does not say how much of a batch a device has",
    2: "it does not say for which program it was made",
}
"""What files of older versions lack."""


def _to_json(plan: Plan) -> dict[str, Any]:
    return {
        "autoshard_plan": Plan.FORMAT,
        "written_by": metadata.version("autoshard"),
        "name": plan.name,
        "mode": plan.mode,
        "mesh": str(plan.mesh),
        "device_order": plan.machine.numbers,
        "device_ids": plan.machine.chosen_ids,
        "is_on_cluster": plan.machine.cluster is not None,
        "explicit_axes": sorted(plan.machine.explicit),
        "summary": None if plan.summary is None else json.loads(plan.summary.to_json()),
        "batch": None if plan.batch is None else asdict(plan.batch),
        "compiler_options": dict(plan.compiler_options),
        "arguments": [_value_to_json(value) for value in plan.arguments],
        "results": [_value_to_json(value) for value in plan.results],
        "in_tree": tree_to_json(plan.in_tree),
        "out_tree": tree_to_json(plan.out_tree),
        "fingerprint": None if plan.fingerprint is None else plan.fingerprint.to_json(),
        "pipeline": None if plan.pipeline is None else _pipeline_to_json(plan.pipeline),
        "jaxlib": metadata.version("jaxlib"),
        "module": _packed(plan.bytecode),
        "module_text": _packed(
            print_module(parse_bytes(plan.bytecode, new_context(), plan.name), debug_info=True)
        ),
    }


def _packed(module: bytes) -> str:
    return base64.b64encode(gzip.compress(module, mtime=0)).decode()


def _bytecode(read: Mapping[str, Any]) -> bytes:
    """The module as this jaxlib reads it."""
    is_readable = read.get("jaxlib") == metadata.version("jaxlib") or "module_text" not in read
    module = gzip.decompress(base64.b64decode(read["module" if is_readable else "module_text"]))
    if is_readable:
        return module
    return print_module(parse_bytes(module, new_context(), read["name"]), "bytecode")


def _from_json(read: Mapping[str, Any]) -> Plan:
    mesh = Mesh.parse(read["mesh"])
    summary = None
    if read["summary"] is not None:
        summary = PlanSummary.from_json(json.dumps(read["summary"]))
    machine = replace(
        _machine_from_json(read, mesh, summary), explicit=frozenset(read.get("explicit_axes", ()))
    )
    plan = Plan(
        name=read["name"],
        mesh=mesh,
        mode=read["mode"],
        arguments=tuple(_value_from_json(value, mesh) for value in read["arguments"]),
        results=tuple(_value_from_json(value, mesh) for value in read["results"]),
        bytecode=_bytecode(read),
        in_tree=_tree_from_json(read["in_tree"], len(read["arguments"]), read["name"]),
        out_tree=_tree_from_json(read["out_tree"], len(read["results"]), read["name"]),
        machine=machine,
        summary=summary,
        batch=None if read["batch"] is None else BatchSplit(**read["batch"]),
        compiler_options=read["compiler_options"],
        made_for=None
        if read["fingerprint"] is None
        else Fingerprint.from_json(read["fingerprint"]),
    )
    return replace(plan, pipeline=_pipeline_from_json(read, plan))


def _pipeline_to_json(pipeline: PlannedPipeline | LockstepPipeline) -> dict[str, Any]:
    """What it is made from, with the schedule that it has."""
    if isinstance(pipeline, LockstepPipeline):
        cluster = pipeline.cluster
        return {
            "execution": "lockstep",
            "stages": pipeline.asked.stages,
            "micro_batches": pipeline.asked.micro_batches,
            "cluster": cluster.name,
            "cluster_toml": None if cluster.is_named else cluster.to_toml(),
            "overlap": pipeline.overlap,
        }
    staging, cluster = pipeline.staging, pipeline.cluster
    return {
        "stages": staging.asked.stages,
        "micro_batches": staging.asked.micro_batches,
        "chunks": staging.asked.chunks,
        "schedule": pipeline.schedule,
        "cluster": cluster.name,
        "cluster_toml": None if cluster.is_named else cluster.to_toml(),
        "places": staging.places,
        "donated": staging.donated,
        "arrays": asdict(staging.arrays),
        "overlap": staging.overlap,
    }


def _pipeline_from_json(
    file: Mapping[str, Any], plan: Plan
) -> PlannedPipeline | LockstepPipeline | None:
    read = file.get("pipeline")
    if read is None:
        return None
    toml = read["cluster_toml"]
    cluster = Cluster.parse(read["cluster"]) if toml is None else parse_toml(toml, read["cluster"])
    if read.get("execution") == "lockstep":
        asked = Pipeline(read["stages"], read["micro_batches"], execution="lockstep")
        return lockstep_pipeline(plan, asked, cluster, read["overlap"])
    staging = Staging(
        Pipeline(
            read["stages"], read["micro_batches"], read["schedule"], chunks=read.get("chunks", 1)
        ),
        cluster,
        tuple(read["places"]),
        tuple(read["donated"]),
        _parts_from_json(file),
        read["overlap"],
        file["compiler_options"],
    )
    return planned_pipeline(parse_bytes(plan.bytecode, new_context()), staging, plan.machine)


def _parts_from_json(plan: Mapping[str, Any]) -> ProgramParts:
    arrays = plan["pipeline"].get("arrays")
    if arrays is None:  # written before loops over layers were cut
        return ProgramParts.of_whole(len(plan["arguments"]), len(plan["results"]))
    return ProgramParts(
        *(
            tuple(
                ArrayParts(tuple(parts["numbers"]), parts["dim"], tuple(parts["stages"]))
                for parts in arrays[side]
            )
            for side in ("arguments", "results")
        )
    )


def _value_to_json(value: PlannedValue) -> dict[str, Any]:
    return {
        "name": value.name,
        "shape": list(value.shape),
        "dtype": value.dtype,
        "sharding": str(value.sharding),
        "is_used": value.is_used,
        "is_on_host": value.is_on_host,
        "stage_cut": value.stage_cut,
    }


def _value_from_json(read: dict[str, Any], mesh: Mesh) -> PlannedValue:
    return PlannedValue(
        name=read["name"],
        shape=tuple(read["shape"]),
        dtype=read["dtype"],
        sharding=parse_sharding(read["sharding"], mesh),
        is_used=read["is_used"],
        is_on_host=read.get("is_on_host", False),
        stage_cut=tuple(read["stage_cut"]) if read.get("stage_cut") else None,
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


def _tree_from_json(read: Any, count: int, name: str) -> Any:
    """The structure; as it is in the file where its types are not imported yet."""
    if leaf_count(read) != count:
        raise ParseError(f"a structure of {leaf_count(read)} arrays has {count} of them")
    saved = SavedTree(read)
    try:
        return saved.resolved(name)
    except PlanError:
        return saved
