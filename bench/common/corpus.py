"""The corpus of real programs, and pins that give every one of them something to propagate."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoshard.ir import mlir, new_context, parse_file
from autoshard.ir.native import run_native
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sdy_text import mesh_from_sdy, per_value_from_sdy, to_sdy_per_value

MESH = "dp=2,tp=4"
"""Mesh of all modules but the ``.expert`` ones, which bring their own."""

_DP, _TP = 2, 4
_SHARE_OF_LARGEST = 8
"""A weight is pinned if it has at least the bytes of the largest one over this."""

_ELEMENT_REGIONS = ("reduce", "sort", "scatter", "select_and_scatter", "reduce_window", "map")
"""Ops whose regions compute single elements."""


@dataclass(frozen=True)
class Entry:
    """One module of the corpus."""

    name: str
    path: Path
    info: dict[str, Any]
    """Its JSON file: arguments with role, shape and dtype."""

    @property
    def is_expert(self) -> bool:
        """Its arguments are already sharded by hand, on a mesh of 64 devices."""
        return self.name.endswith(".expert")


def corpus_folder() -> Path | None:
    """``$AUTOSHARD_CORPUS``, by default ``../shared/corpus`` beside the checkout, or None."""
    default = Path(__file__).resolve().parents[3] / "shared" / "corpus"
    folder = Path(os.environ.get("AUTOSHARD_CORPUS", default))
    return folder if folder.is_dir() else None


def entries(names: list[str]) -> list[Entry]:
    """The modules called ``names`` (all if empty), smallest file first.

    Ends the program, with the reason, if there is no corpus. Text is read where there is text:
    bytecode is bound to the jaxlib that wrote it.
    """
    folder = corpus_folder()
    if folder is None:
        print("Skipped: no corpus. Set AUTOSHARD_CORPUS to a folder of NAME.mlirbc, NAME.json.gz.")
        sys.exit(0)
    found: list[Entry] = []
    for path in sorted(folder.glob("*.mlirbc"), key=lambda path: path.stat().st_size):
        if names and path.stem not in names:
            continue
        text = path.with_name(f"{path.stem}.mlir.gz")
        info = json.loads(gzip.decompress(path.with_name(f"{path.stem}.json.gz").read_bytes()))
        found.append(Entry(path.stem, text if text.exists() else path, info))
    missing = set(names) - {entry.name for entry in found}
    if missing:
        sys.exit(f"{folder} has no module {', '.join(sorted(missing))}.")
    return found


def load(entry: Entry) -> mlir.Module:
    """The module in a context of its own."""
    return parse_file(entry.path, new_context())


def ops_with_results(operation: mlir.Operation) -> Iterator[mlir.Operation]:
    """Ops at any depth, but for those that compute single elements."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                if len(op.operation.results):
                    yield op.operation
                if op.operation.name.removeprefix("stablehlo.") not in _ELEMENT_REGIONS:
                    yield from ops_with_results(op.operation)


def count_ops(module: mlir.Module) -> int:
    """Ops inside functions, those of nested regions included."""
    count = 0

    def visit(_: mlir.Operation) -> mlir.WalkResult:
        nonlocal count
        count += 1
        return mlir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return count


def pin(module: mlir.Module, entry: Entry) -> None:
    """Shard batch arguments on ``dp`` and the largest weights on ``tp``, as ``sdy.sharding``.

    Constraints over one-device meshes, which JAX leaves in a program traced on one device, go
    away: they say nothing, and Shardy does not propagate through them. An ``.expert`` module
    stays as it is.
    """
    if entry.is_expert:
        return
    attach(module, f'"dp"={_DP}, "tp"={_TP}', _wanted(entry))


def attach(
    module: mlir.Module, axes: str, wanted: dict[int, str], results: dict[int, str] | None = None
) -> None:
    """Write ``sdy.sharding`` on arguments and results of ``@main``, over a mesh of its own.

    Args:
        module: A program without shardings on them. Constraints over one-device meshes are taken
            away.
        axes: As Shardy writes them: ``"data"=16, "model"=4``.
        wanted: For each argument to pin, by index, its dims as Shardy writes them.
        results: The same for results.
    """
    with module.context, mlir.Location.unknown(module.context):
        _drop_one_device_constraints(module)
        mesh = _mesh_called(module, f"<[{axes}]>")
        main = next(
            op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
            and mlir.StringAttr(op.operation.attributes["sym_name"]).value == "main"
        )
        function = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value)
        for name, types, dims in (
            ("arg_attrs", function.inputs, wanted),
            ("res_attrs", function.results, results or {}),
        ):
            old = main.attributes.get(name)
            attributes = [{}] * len(types) if old is None else mlir.ArrayAttr(old)
            new: list[mlir.DictAttr] = []
            for index, given in enumerate(attributes):
                items = {item.name: item.attr for item in given}
                if index in dims:
                    text = f"#sdy.sharding<@{mesh}, [{dims[index]}]>"
                    items["sdy.sharding"] = mlir.Attribute.parse(text)
                new.append(mlir.DictAttr.get(items))
            main.attributes[name] = mlir.ArrayAttr.get(new)


def _mesh_called(module: mlir.Module, text: str) -> str:
    """Symbol of a mesh, of one that is there if it is the same: shardings over two do not mix."""
    wanted = mlir.Attribute.parse(f"#sdy.mesh{text}")
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh" and op.operation.attributes["mesh"] == wanted:
            return mlir.StringAttr(op.operation.attributes["sym_name"]).value
    made = mlir.Operation.parse(f"sdy.mesh @bench_mesh = {text}")
    mlir.InsertionPoint.at_block_begin(module.body).insert(made)
    return "bench_mesh"


_AGAIN = {
    "sdy.constant": ("stablehlo.constant", "value"),
    "sdy.reshard": ("sdy.sharding_constraint", "sharding"),
}
"""What Shardy's propagation makes of ops, what they were, and the attribute that says all."""


def propagate(module: mlir.Module) -> None:
    """Shardy's propagation, as importers read it.

    Constants and constraints are what they were. Dims that their axes do not divide are whole:
    Shardy cuts the one row of a slice as the rows it is taken from, and XLA pads it.
    """
    run_native(module, "builtin.module(sdy-propagation-pipeline)")
    found: list[mlir.Operation] = []
    meshes = _meshes(module)

    def visit(op: mlir.Operation) -> mlir.WalkResult:
        if "sdy.sharding" in op.attributes:
            _leave_whole_what_pads(op, meshes)
        if op.name in _AGAIN:
            found.append(op)
        return mlir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        name, attribute = _AGAIN[op.name]
        made = mlir.Operation.create(
            name,
            results=[result.type for result in op.results],
            operands=list(op.operands),
            attributes={attribute: op.attributes[attribute]},
            loc=op.location,
            ip=mlir.InsertionPoint(op),
        )
        op.results[0].replace_all_uses_with(made.results[0])
        op.erase()


def _meshes(module: mlir.Module) -> dict[str, Mesh]:
    return {
        mlir.StringAttr(op.operation.attributes["sym_name"]).value: mesh_from_sdy(
            str(op.operation.attributes["mesh"])
        )
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    }


def _leave_whole_what_pads(op: mlir.Operation, meshes: dict[str, Mesh]) -> None:
    text = str(op.attributes["sdy.sharding"])
    whole = [
        replace(
            sharding,
            dims=tuple(
                () if size % pieces else axes
                for size, pieces, axes in zip(
                    mlir.ShapedType(result.type).shape, sharding.tile, sharding.dims, strict=True
                )
            ),
        )
        for result, sharding in zip(op.results, per_value_from_sdy(text, meshes), strict=True)
    ]
    name = re.search(r"@([\w.$-]+)", text)
    if name:
        op.attributes["sdy.sharding"] = mlir.Attribute.parse(
            to_sdy_per_value(whole, name[1]), op.context
        )


def _wanted(entry: Entry) -> dict[int, str]:
    """For each argument to pin, by index in ``@main``, its dims as Shardy writes them."""
    arguments = entry.info["args"]
    batch_role = "batch" if any(a["role"] == "batch" for a in arguments) else "state"
    largest = max(a["bytes"] for a in arguments if a["role"] == "params")
    wanted: dict[int, str] = {}
    for argument in arguments:
        shape = argument["shape"]
        dims = ["{}"] * len(shape)
        if argument["role"] == batch_role and _holds_a_batch(argument):
            dims[0] = '{"dp"}'
        elif argument["role"] == "params" and argument["bytes"] * _SHARE_OF_LARGEST >= largest:
            divisible = [d for d in range(len(shape)) if shape[d] % _TP == 0]
            if divisible:
                dims[max(divisible, key=lambda d: shape[d])] = '{"tp"}'
        if any(dim != "{}" for dim in dims):
            wanted[argument["index"]] = ", ".join(dims)
    return wanted


def _holds_a_batch(argument: dict[str, Any]) -> bool:
    shape = argument["shape"]
    is_random_key = argument["dtype"] == "uint32" and shape == [2]
    return bool(shape) and shape[0] % _DP == 0 and not is_random_key


def _drop_one_device_constraints(module: mlir.Module) -> None:
    sizes = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            name = mlir.StringAttr(op.operation.attributes["sym_name"]).value
            text = str(op.operation.attributes["mesh"])
            sizes[name] = "=" not in text or all(
                part.split("=")[1].strip(" ]>") == "1" for part in text.split(", ") if "=" in part
            )
    constraints: list[mlir.Operation] = []

    def visit(op: mlir.Operation) -> mlir.WalkResult:
        if op.name == "sdy.sharding_constraint":
            constraints.append(op)
        return mlir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in constraints:
        mesh = str(op.attributes["sharding"]).split("@")[1].split(",")[0].split(">")[0]
        if sizes.get(mesh.strip()):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def in_a_process(script: str, name: str, timeout: float, *more: str) -> dict[str, Any]:
    """Run ``script --one name more...`` and read the JSON object on the last line it prints.

    A crash or a timeout is a result as well: ``{"failed": why}``.
    """
    command = [sys.executable, script, "--one", name, *more]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {timeout:.0f} s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return {"failed": f"exit {done.returncode}: {lines[-1][:160]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine() -> str:
    """The processor and the versions that a measurement depends on."""
    import jaxlib

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = named[0].split(":")[1].strip() if named else model
    return (
        f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"jaxlib {jaxlib.__version__}"
    )
