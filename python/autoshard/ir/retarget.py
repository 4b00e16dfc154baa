"""A compiled program on other devices than those that it was compiled for.

JAX binds programs to devices, and XLA's code knows nothing of them but their number: what XLA makes
of a program is written out and read again for the others, which takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
from jax._src import compiler  # pyright: ignore[reportPrivateUsage]

_PLATFORMS = ("cpu", "gpu")
"""Where JAX's own cache of programs, or a test here, reads a program for other devices."""


def can_be_retargeted(mesh: jax.sharding.Mesh) -> bool:
    """Whether programs for the devices of a mesh can be put on others like them."""
    return mesh.devices.flat[0].client.platform in _PLATFORMS


def retargeted(
    compiled: jax.stages.Compiled,
    options: Mapping[str, Any],
    mesh: jax.sharding.Mesh,
    arguments: Sequence[jax.ShapeDtypeStruct],
    results: Sequence[jax.ShapeDtypeStruct],
) -> jax.stages.Compiled:
    """The program on the devices of another mesh of the same shape.

    Args:
        compiled: Reads all of its arguments; its devices are of the platform of ``mesh``.
        options: Of the compiler, that it was compiled with.
        mesh: As ``can_be_retargeted`` takes it.
        arguments: As those of ``compiled``, with shardings over ``mesh``.
        results: Likewise.
    """
    program: Any = compiled
    unloaded = program._executable._unloaded_executable
    devices = cast(Any, mesh)._internal_device_list
    loading = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=mesh.size,
        device_assignment=np.array([[device.id for device in mesh.devices.flat]]),
        env_options_overrides=dict(options),
        backend=unloaded.backend,
    )
    code = unloaded.xla_executable.serialize()
    loaded = replace(
        unloaded,
        xla_executable=unloaded.backend.deserialize_executable(code, devices, loading),
        device_list=devices,
        input_shardings=tuple(value.sharding for value in arguments),
        output_shardings=tuple(value.sharding for value in results),
    ).load()
    return jax.stages.Compiled(
        loaded, [], program.args_info, program.out_tree, no_kwargs=program._no_kwargs
    )
