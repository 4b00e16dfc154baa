"""Compile a StableHLO module for real devices, and run it.

For modules that come from a file or from a pass rather than from a jitted function. Checked on
jax 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import compiler, sharding_impls  # pyright: ignore[reportPrivateUsage]
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
from jaxlib.mlir import ir

CompilationFailed = jax.errors.JaxRuntimeError
"""What XLA raises."""


@dataclass(frozen=True)
class CompiledModule:
    """An executable over all its devices."""

    executable: Any
    """jaxlib's ``LoadedExecutable``; ``Executable`` where it is for devices of a topology."""
    devices: tuple[jax.Device, ...]  # pyright: ignore[reportInvalidTypeForm]

    def hlo_text(self) -> str:
        """The optimised HLO of one partition."""
        (module,) = self.executable.hlo_modules()
        return module.to_string()

    def argument_shardings(self) -> tuple[str, ...]:
        """HloSharding text of every argument, as the compiler chose."""
        return tuple(map(str, self._argument_shardings()))

    def result_shardings(self) -> tuple[str, ...]:
        """HloSharding text of every result, as the compiler chose."""
        return tuple(map(str, self._result_shardings()))

    def argument_layouts(self) -> tuple[str, ...]:
        """In which order and tiles the dims of every argument lie, as the compiler chose."""
        return tuple(map(str, self.executable.get_parameter_layouts()))

    def result_layouts(self) -> tuple[str, ...]:
        """In which order and tiles the dims of every result lie, as the compiler chose."""
        return tuple(map(str, self.executable.get_output_layouts()))

    def run(self, *arguments: np.ndarray) -> list[np.ndarray]:
        """Whole arguments in, whole results out."""
        shards, shardings = self._run(arguments)
        return [_assembled(*each) for each in zip(shards, shardings, strict=True)]

    def run_pieces(
        self, *arguments: np.ndarray
    ) -> list[list[tuple[tuple[slice, ...], np.ndarray]]]:
        """Whole arguments in; of every result where each device's piece is, and the piece."""
        shards, shardings = self._run(arguments)
        return [_placed_pieces(*each) for each in zip(shards, shardings, strict=True)]

    def _run(
        self, arguments: Sequence[np.ndarray]
    ) -> tuple[list[list[jax.Array]], list[jax.sharding.Sharding]]:
        """The pieces of every result, and how it is cut."""
        cuts = self._on_devices(self._argument_shardings(), len(arguments))
        placed = [jax.device_put(*each) for each in zip(arguments, cuts, strict=True)]
        results = self.executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        return results, self._on_devices(self._result_shardings(), len(results))

    def _on_devices(self, shardings: list[Any], count: int) -> list[jax.sharding.Sharding]:
        """As JAX's; a program of one partition says nothing of them."""
        if not shardings:
            shardings = [xla_client.HloSharding.replicate()] * count
        return [sharding_impls.GSPMDSharding(self.devices, each) for each in shardings]

    def _argument_shardings(self) -> list[Any]:
        protos = self.executable.get_parameter_shardings() or ()
        return [xla_client.HloSharding.from_proto(proto) for proto in protos]

    def _result_shardings(self) -> list[Any]:
        protos = self.executable.get_output_shardings() or ()
        return [xla_client.HloSharding.from_proto(proto) for proto in protos]


def compile_module(
    module: ir.Module,
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    use_shardy: bool = True,
    options: Mapping[str, str] | None = None,
) -> CompiledModule:
    """Compile ``module`` with one partition for each device.

    Args:
        module: Has a public function ``main``.
        devices: In partition order; None: all of them.
        use_shardy: Partition with Shardy, or with GSPMD.
        options: Of XLA, ``{"xla_gpu_autotune_level": "0"}``.

    Raises:
        jax.errors.JaxRuntimeError: XLA refuses the module. Some modules (a sharding attribute on
            ``stablehlo.while``) end the process instead.
    """
    chosen = tuple(devices if devices is not None else jax.devices())
    executable = chosen[0].client.compile_and_load(
        module,
        executable_devices=xla_client.DeviceList(chosen),
        compile_options=_options(chosen, use_shardy, options),
    )
    return CompiledModule(executable, chosen)


def compile_ahead_of_time(
    module: ir.Module,
    devices: Sequence[Any],
    *,
    use_shardy: bool = True,
    options: Mapping[str, str] | None = None,
) -> CompiledModule:
    """As ``compile_module``, for devices that are not here; the result cannot run.

    Args:
        module: Has a public function ``main``.
        devices: Those of a ``jax.experimental.topologies`` description, in partition order.
        use_shardy: Partition with Shardy, or with GSPMD.
        options: Of XLA, ``{"xla_gpu_autotune_level": "0"}``.

    Raises:
        jax.errors.JaxRuntimeError: XLA refuses the module, or it needs more memory than there is.
    """
    chosen = tuple(devices)
    executable = chosen[0].client.compile(
        module, xla_client.DeviceList(chosen), _options(chosen, use_shardy, options)
    )
    return CompiledModule(executable, chosen)


def _options(devices: tuple[Any, ...], use_shardy: bool, more: Mapping[str, str] | None) -> Any:
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([devices]),
        backend=devices[0].client,
        env_options_overrides=dict(more or {}),
    )
    options.executable_build_options.use_shardy_partitioner = use_shardy
    return options


def _placed_pieces(
    parts: Sequence[jax.Array], sharding: jax.sharding.Sharding
) -> list[tuple[tuple[slice, ...], np.ndarray]]:
    """The piece of each device and its place in the whole array."""
    pieces = {piece.device: np.asarray(piece) for piece in parts}
    shape = _whole_shape(next(iter(pieces.values())).shape, sharding)
    return [
        (index, pieces[device]) for device, index in sharding.devices_indices_map(shape).items()
    ]


def _assembled(parts: Sequence[jax.Array], sharding: jax.sharding.Sharding) -> np.ndarray:
    """The whole array from one part per device."""
    pieces = {piece.device: np.asarray(piece) for piece in parts}
    shape = _whole_shape(next(iter(pieces.values())).shape, sharding)
    whole = np.empty(shape, next(iter(pieces.values())).dtype)
    for device, index in sharding.devices_indices_map(shape).items():
        whole[index] = pieces[device]
    return whole


def _whole_shape(local: tuple[int, ...], sharding: Any) -> tuple[int, ...]:
    """The shape of which ``local`` is one even piece."""
    hlo = sharding._hlo_sharding
    if hlo.is_replicated():
        return local
    tiles = hlo.tile_assignment_dimensions()[: len(local)]
    return tuple(size * pieces for size, pieces in zip(local, tiles, strict=True))
