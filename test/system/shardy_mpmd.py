"""What Shardy's partitioner for pipelines makes of a module; prints it as JSON.

python shardy_mpmd.py FILE calls|fragments

jaxlib carries the partitioner, which looks for jaxlib under the name that it had inside of jax. So
it is loaded in a process of its own, which may also end where it finds something that cannot be.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: F401
import jaxlib
import jaxlib.mlir.ir
from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd

sys.modules["jax.jaxlib"] = jaxlib
for _name, _module in list(sys.modules.items()):
    if _name.startswith("jaxlib."):
        sys.modules[f"jax.{_name}"] = _module

import jaxlib._sdy_mpmd as shardy  # noqa: E402


def main(path: str, form: str) -> dict[str, Any]:
    """The dialect's verifier, fragments as they are read, what the passes leave, IFRT."""
    context = make_ir_context()
    mpmd.register_dialect(context)
    with context, ir.Location.unknown():
        module = ir.Module.parseFile(path)
        module.operation.verify()
        given = _ops(module)
        if form == "calls":
            shardy.lower_to_ifrt(module)
            return {"given": given, "ifrt": _ifrt(module)}
        read = [_info(fragment) for fragment in shardy.get_fragment_info(module)]
        found = shardy.apply_mpmd_partitioning(
            module,
            func_name="main",
            named_meshes=_meshes(module),
            assignment={},
            input_meshes=[],
            output_meshes=[],
            donate_argnums=_donated(module),
            fragment_merge_rules=[],
            fragment_schedule_rules=[],
            phases=shardy.PartitioningPhase.PARTITION,
        ).mpmd_module
        left = _ops(found)
        shardy.lower_to_ifrt(found)
        return {"given": given, "read": read, "left": left, "ifrt": _ifrt(found)}


def _main_of(module: ir.Module) -> ir.Operation:
    (found,) = (
        op.operation for op in module.body.operations if "topology" in op.operation.attributes
    )
    return found


def _ops(module: ir.Module) -> list[Any]:
    """Name, mesh and origin, types of operands and results, of each op of ``main`` but its end."""
    block = _main_of(module).regions[0].blocks[0]
    return [
        [
            op.operation.name.replace("fragment_call", "fragment"),
            *(
                str(op.operation.attributes[name])
                for name in ("mesh_name", "origin")
                if name in op.operation.attributes
            ),
            [str(value.type) for value in op.operation.operands],
            [str(value.type) for value in op.operation.results],
        ]
        for op in list(block.operations)[:-1]
    ]


def _info(fragment: Any) -> dict[str, Any]:
    half = fragment.split_type
    return {
        "mesh": fragment.mesh_name,
        "part": fragment.stage_id,
        "micro_batch": -1 if fragment.call_counter is None else fragment.call_counter,
        "half": None if half is None else half.name,
        "task": fragment.origins[0].computation_name,
        "passes": [origin.transpose_count for origin in fragment.origins],
    }


def _meshes(module: ir.Module) -> list[tuple[str, list[tuple[str, int]]]]:
    topology = str(_main_of(module).attributes["topology"])
    return [
        (name, [(axis, int(size)) for axis, size in re.findall(r'"(\w+)"=(\d+)', axes)])
        for name, axes in re.findall(r'<"(\w+)" : <\[(.*?)\]>>', topology)
    ]


def _donated(module: ir.Module) -> list[int]:
    entries = list(ir.ArrayAttr(_main_of(module).attributes["arg_attrs"]))
    return [
        number for number, entry in enumerate(entries) if "tf.aliasing_output" in ir.DictAttr(entry)
    ]


def _ifrt(module: ir.Module) -> list[list[Any]]:
    """The calls and copies of the program, with its devices and how many arrays each has."""
    (main,) = (
        op.operation for op in module.body.operations if "ifrt.function" in op.operation.attributes
    )
    return [
        [
            op.operation.name,
            str(op.operation.attributes["devices"]) if "devices" in op.operation.attributes else "",
            len(op.operation.results) - 1,
        ]
        for op in list(main.regions[0].blocks[0].operations)[:-1]
    ]


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
