"""Runs a module of Shardy's MPMD dialect op by op, as its text says, on virtual CPU devices."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np

from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import ALIASING_OUTPUT, NUM_PARTITIONS, NUM_REPLICAS
from autoshard.ir.boundary import attributes_at
from autoshard.ir.lowering import lower_module
from autoshard.ir.module import functions_of
from autoshard.ir.symbols import functions_reached
from autoshard.ir.types import numpy_type
from autoshard.sharding import Mesh, to_named_sharding
from autoshard.sharding.sdy_text import from_sdy, mesh_from_sdy

_TYPE = re.compile(r'!mpmd\.mesh_tensor<"(.*?)", (tensor<.*?>), sharding=(<.*>)>')


class MpmdRun:
    """Calls functions, as compiled for the devices of a mesh, and copies what is transferred.

    A function that takes an argument's memory deletes that argument, so that a later reader fails.
    """

    def __init__(self, text: str) -> None:
        self.module = parse_bytes(text.encode(), new_context(), "mpmd")
        self.functions = functions_of(self.module)
        self.main = self.functions["main"]
        topology = str(self.main.attributes["topology"])
        named = re.findall(r'<"(\w+)" : (<.*?>)>', topology)
        devices, self.meshes = jax.devices(), dict[str, tuple[Mesh, Any]]()
        for name, shape in named:
            mesh = mesh_from_sdy(f"#sdy.mesh{shape}")
            own, devices = devices[: mesh.size], devices[mesh.size :]
            shaped = np.array(own).reshape([axis.size for axis in mesh.axes])
            self.meshes[name] = mesh, jax.sharding.Mesh(shaped, mesh.axis_names)
        self.compiled: dict[tuple[str, str], Any] = {}

    def __call__(self, *arguments: Any) -> list[jax.Array]:
        """The results of ``main``, its arguments put where it wants them."""
        block = self.main.regions[0].blocks[0]
        values = {
            value: jax.device_put(array, self._type(value.type).sharding)
            for value, array in zip(block.arguments, arguments, strict=True)
        }
        for view in block.operations:
            op = view.operation
            given = [values[value] for value in op.operands]
            if op.name == "func.return":
                return given
            if op.name == "mpmd.transfer":
                made = [jax.device_put(given[0], self._type(op.results[0].type).sharding)]
            else:
                assert op.name == "mpmd.fragment_call"
                made = self._program(op)(*given)
            values.update(zip(op.results, made, strict=True))
        raise AssertionError("main returns nothing")

    def _type(self, type_: mlir.Type) -> jax.ShapeDtypeStruct:
        name, tensor, sharding = _TYPE.fullmatch(str(type_)).groups()
        mesh, jax_mesh = self.meshes[name]
        with self.module.context:
            tensor = mlir.RankedTensorType(mlir.Type.parse(tensor))
        placed = to_named_sharding(from_sdy(f"#sdy.sharding{sharding}", mesh), jax_mesh)
        return jax.ShapeDtypeStruct(
            tuple(tensor.shape), numpy_type(tensor.element_type), sharding=placed
        )

    def _program(self, call: mlir.Operation) -> Any:
        name = mlir.FlatSymbolRefAttr(call.attributes["callee"]).value
        mesh_name = mlir.StringAttr(call.attributes["mesh_name"]).value
        key = name, mesh_name
        if key not in self.compiled:
            entries = attributes_at(self.functions[name], "arg_attrs")
            donated = [at for at, entry in enumerate(entries) if ALIASING_OUTPUT in entry]
            types = [
                [self._type(value.type) for value in side] for side in (call.operands, call.results)
            ]
            module = self._module(name, self.meshes[mesh_name][0])
            self.compiled[key] = lower_module(name, module, *types, donated, {}).compile()
        return self.compiled[key]

    def _module(self, name: str, mesh: Mesh) -> bytes:
        """A function as the ``main`` of a module."""
        with self.module.context, mlir.Location.unknown():
            made = mlir.Module.create()
            attributes, integer = made.operation.attributes, mlir.IntegerType.get_signless(32)
            attributes["sym_name"] = mlir.StringAttr.get(name)
            attributes[NUM_PARTITIONS] = mlir.IntegerAttr.get(integer, mesh.size)
            attributes[NUM_REPLICAS] = mlir.IntegerAttr.get(integer, 1)
            for op in self.module.body.operations:
                if op.operation.name == "sdy.mesh":
                    made.body.append(op.operation.clone(ip=False))
            for called in functions_reached(self.functions, name):
                function = self.functions[called].clone(ip=False).operation
                made.body.append(function)
                for attribute in ("mesh_shape", "reserved_hbm_bytes"):
                    if attribute in function.attributes:
                        del function.attributes[attribute]
                if called == name:
                    function.attributes["sym_name"] = mlir.StringAttr.get("main")
                    function.attributes["sym_visibility"] = mlir.StringAttr.get("public")
            return print_module(made, "bytecode")
