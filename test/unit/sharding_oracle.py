"""jaxlib's own HloSharding parser and JAX's NamedSharding, asked in a process of their own.

Some accessors of HloSharding abort the process, and the tests need 8 CPU devices. One line of
JSON is a question, one line the answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


class Oracle:
    """Starts on the first question, and again after a question that killed it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **question: Any) -> dict[str, Any]:
        if self._process is None:
            flags = "--xla_force_host_platform_device_count=24"
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self.close()
            return {"aborted": True}
        return json.loads(answer)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _hlo(text: str, tiles: bool) -> dict[str, Any]:
    from jaxlib import xla_client

    try:
        sharding = xla_client.HloSharding.from_string(text)
    except Exception as error:
        return {"error": str(error)}
    answer: dict[str, Any] = {"text": str(sharding)}
    if tiles and sharding.is_tiled():
        answer["tile"] = list(sharding.tile_assignment_dimensions())
        answer["devices"] = list(sharding.tile_assignment_devices())
        answer["types"] = [str(kind).split(".")[-1].lower() for kind in sharding.subgroup_types()]
        answer["partial"] = sharding.replicate_on_last_tile_dim()
    return answer


def _v3_to_v2(text: str) -> dict[str, Any]:
    from jaxlib import xla_client

    sharding = xla_client.HloSharding.from_string(text)
    return {"text": str(xla_client.HloSharding.v3_to_v2_sharding(sharding))}


def _named(
    sizes: list[int], names: list[str], ids: list[int], spec: list[Any], shape: list[int]
) -> dict[str, Any]:
    import jax
    import numpy as np

    grid = np.array(jax.devices())[np.array(ids, dtype=int)].reshape(sizes)
    entries = [tuple(entry) if isinstance(entry, list) else entry for entry in spec]
    sharding = jax.sharding.NamedSharding(
        jax.sharding.Mesh(grid, names), jax.sharding.PartitionSpec(*entries)
    )
    slices = {
        device.id: [index.indices(size)[:2] for index, size in zip(place, shape, strict=True)]
        for device, place in sharding.devices_indices_map(tuple(shape)).items()
    }
    return {"slices": slices}


def main() -> None:
    answers = {"hlo": _hlo, "v3_to_v2": _v3_to_v2, "named": _named}
    for line in sys.stdin:
        question = json.loads(line)
        answer = answers[question.pop("kind")](**question)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
