"""Train steps of MaxText as people configure them, made from shapes alone.

Needs an environment with ``maxtext[tpu]`` 0.2.5 (Python 3.12, jax 0.12). A step is made twice: for
one device, so that nothing in it says how it is split, and for the mesh on which MaxText puts it,
which is FSDP over all devices unless the options say otherwise, its kernels inside ``shard_map``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import autoshard

_TOPOLOGIES = {"v5p:4x4x4": "v5p-128", "v6e:2x4": "v6e-8", "v5e:4x4": "v5e-16"}
"""MaxText's names of clusters."""
_ALL = ("remat_policy=full", "attention=flash", "use_iota_embed=true")
_DROPLESS = ("sparse_matmul=true", "megablox=true")


@dataclass(frozen=True)
class Model:
    """A configuration of MaxText."""

    name: str
    """Name of its file in ``configs/models``."""
    sequences: int
    """On each device."""
    length: int
    options: tuple[str, ...] = ()
    cluster: str = "v5p:4x4x4"


MODELS = (
    Model("llama3.1-8b", 3, 8192, cluster="v6e:2x4"),
    Model("mistral-7b", 3, 8192, cluster="v6e:2x4"),
    Model("llama2-70b", 2, 4096),
    Model("qwen3-14b", 2, 4096),
    Model("olmo3-7b", 2, 8192),
    Model("gemma2-9b", 2, 8192),
    Model("gemma3-12b", 2, 8192),
    Model("mixtral-8x7b", 4, 4096, ("sparse_matmul=false", "capacity_factor=1.25")),
    Model("mixtral-8x7b", 4, 4096, _DROPLESS),
    Model("deepseek2-16b", 2, 2048, _DROPLESS),
    Model("qwen3-30b-a3b", 2, 4096, _DROPLESS),
    Model("qwen3-next-80b-a3b", 2, 4096, _DROPLESS),
    Model("gpt-oss-20b", 2, 4096, _DROPLESS),
    Model("llama4-17b-16e", 1, 4096, _DROPLESS),
)


@dataclass(frozen=True)
class Step:
    """A train step, to be traced and lowered ``within`` its mesh."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: Any
    in_shardings: Any
    out_shardings: Any
    mesh: jax.sharding.Mesh
    rules: Any
    """Rules of MaxText's logical axes."""

    @contextlib.contextmanager
    def within(self) -> Generator[None]:
        """What the function finds around it where MaxText traces it."""
        spmd: Any = importlib.import_module("flax.core.spmd")
        with jax.set_mesh(self.mesh), spmd.logical_axis_rules(self.rules):
            yield

    def lowered(self) -> Any:
        """As MaxText itself lowers it."""
        jitted = jax.jit(
            self.function,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=self.donated,
        )
        with self.within():
            return jitted.lower(*self.arguments)


def _module(name: str) -> Any:
    return importlib.import_module(f"maxtext.{name}")


def train_step(model: Model, *, on_its_mesh: bool) -> Step:
    """The step of a model, for one device or on the mesh that MaxText makes of the cluster."""
    os.environ["DECOUPLE_GCLOUD"] = "TRUE"
    names = "configs.pyconfig", "trainers.pre_train.train", "trainers.pre_train.train_compile"
    pyconfig, train, train_compile = (_module(name) for name in names)
    utils, sharding = (_module(f"utils.{name}") for name in ("maxtext_utils", "sharding"))
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    base = Path(pyconfig.__file__).parent / "base.yml"
    config: Any = pyconfig.initialize(
        [
            *("", str(base), f"model_name={model.name}", *_ALL, *model.options),
            *("run_name=bench", "enable_checkpointing=false", "dataset_type=synthetic"),
            *("base_output_directory=", f"compile_topology={_TOPOLOGIES[model.cluster]}"),
            *("compile_topology_num_slices=1", f"per_device_batch_size={model.sequences}"),
            f"max_target_length={model.length}",
        ]
    )
    devices = autoshard.devices(model.cluster)
    if on_its_mesh:
        laid = utils.create_device_mesh(config, devices)
    else:
        laid = np.array(devices[:1]).reshape((1,) * len(config.mesh_axes))
    mesh = jax.sharding.Mesh(laid, config.mesh_axes)
    arguments, _, state, _, graph = train_compile.get_shaped_inputs(mesh, config)
    params, state = sharding.maybe_update_params_sharding_with_opt(config, state)
    given = sharding.build_zero1_input_state_mesh_shardings(config, state, params)
    function, inside, outside, _, donated = utils.get_functional_train_with_signature(
        train.train_step,
        sharding.get_input_data_sharding(config, mesh),
        given,
        graph,
        config,
        params,
    )
    rules = config.logical_axis_rules
    return Step(function, tuple(arguments), donated, inside, outside, mesh, rules)
