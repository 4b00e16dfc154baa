"""A case as a file of Python that needs nothing of this folder."""

from __future__ import annotations

from typing import Any

from fuzz.cases import Case
from fuzz.programs import KEY, Argument, helper_sources, source
from fuzz.styles import Roles, styled_text

_HEAD = """\
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import autoshard
"""
_MESH_OF = """\
def mesh_of(axes, order):
    devices = np.array(jax.devices())[order].reshape(tuple(axes.values()))
    return jax.sharding.Mesh(devices, tuple(axes))
"""


def printed(case: Case, answer: dict[str, Any], blame: str) -> str:
    """What goes wrong, whose fault it is, and a program that shows it."""
    first = f"{answer['result']}: {answer['detail']}"
    comments = [f"# {line}" for line in f"{first}\n{blame}".split("\n")]
    return "\n".join([*comments, standalone(case)])


def standalone(case: Case) -> str:
    program, configuration = case.program, case.configuration
    text = source(program, configuration.marks)
    style = styled_text(program)
    options = configuration.texts(program)
    call = "".join(f", {key}={value}" for key, value in options.items())
    parts = [_HEAD]
    if program.x64:
        parts.append('jax.config.update("jax_enable_x64", True)')
    if not configuration.is_shardy:
        parts.append('jax.config.update("jax_use_shardy_partitioner", False)')
    for name in ("SLOW_CHIPS", "SLOW_LINKS"):
        if name in call:
            parts.append(f'{name} = "test/fuzz/{name.lower()}.toml"')
    if "mesh_of(" in call:
        parts.append(_MESH_OF)
    parts += [f"\n{it}\n" for it in (*helper_sources(f"{text}\n{style}"), text)]
    parts += [style, f"random = np.random.default_rng([{case.seed}, 77])"]
    parts += [_argument_text(it) for it in program.arguments]
    parts += _call_text(case, call)
    return "\n".join(parts)


def _argument_text(argument: Argument) -> str:
    kind = argument.kind
    if kind.dtype == KEY:
        return f"{argument.name} = jax.random.key(int(random.integers(1000)))"
    low = max(argument.low, 0) if kind.dtype.startswith("u") else argument.low
    drawn = f"random.integers({low}, {argument.high + 1}, {kind.shape})"
    if kind.dtype == "bool":
        return f"{argument.name} = jnp.asarray({drawn} % 2 == 1)"
    if kind.is_complex:
        return f"{argument.name} = jnp.asarray({drawn} + 1j * {drawn}, {kind.dtype!r})"
    return f"{argument.name} = jnp.asarray({drawn}, {kind.dtype!r})"


def _call_text(case: Case, call: str) -> list[str]:
    names = ", ".join(it.name for it in case.program.arguments)
    lines = [f"arguments = ({names},)"]
    if case.program.style == "train_step":
        roles = Roles.of(case.program)
        trained = ", ".join(case.program.arguments[it].name for it in roles.trained)
        data = "".join(f"{case.program.arguments[it].name}, " for it in roles.data)
        lines = [
            f"parameters = [{trained}]",
            "momenta = [jnp.zeros_like(it) for it in parameters]",
            'state = {"parameters": parameters, "momenta": momenta, "count": jnp.float32(0)}',
            f"arguments = (state, {data})",
        ]
    limit = ""
    if case.configuration.limit_share is not None:
        lines.append(f"plain = autoshard.plan(step, *arguments{_without_memory(case)})")
        limit = f", memory_limit=int(plain.peak_bytes * {case.configuration.limit_share})"
    lines += [
        "expected = jax.device_get(jax.jit(step)(*arguments))",
        f"planned = autoshard.jit(step{call}{limit})",
        "print([str(it.sharding) for it in planned.plan(*arguments).arguments])",
        "found = jax.device_get(planned(*arguments))",
        "for want, got in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):",
        '    print("equal" if np.array_equal(want, got, equal_nan=True) else f"{want}\\n{got}")',
    ]
    return lines


def _without_memory(case: Case) -> str:
    options = case.configuration.texts(case.program)
    left = {"recompute", "host_offload", "donate_argnums"}
    return "".join(f", {key}={value}" for key, value in options.items() if key not in left)
