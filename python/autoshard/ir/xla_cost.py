"""XLA's own cost analysis of HLO text: operations and bytes, without a device.

Checked on jaxlib 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from jax._src.lib import xla_client  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
from jaxlib import _hlo, _jax  # pyright: ignore[reportMissingModuleSource, reportAttributeAccessIssue]

from autoshard.errors import ParseError

_THREAD = re.compile(r'(= .* custom-call\(.*), async_execution_thread="[^"]*"')
"""Written behind what the host executes; XLA's parser does not know it there."""
_READ = re.compile(r"bytes accessed(\d+)\{\}")

_hlo_any: Any = _hlo
_jax_any: Any = _jax


@dataclass(frozen=True, slots=True)
class XlaCost:
    """What one run of an HLO module does on its device, as ``HloCostAnalysis`` counts."""

    flops: float
    """2 for each multiply-add, 1 for each element of most other ops; without transcendentals."""
    transcendentals: float
    """Elements of exponentials, logarithms, roots, tanh and the like."""
    bytes: float
    """Read and written, of slices and updates in place what they touch."""
    operand_bytes: tuple[float, ...] = ()
    """What of them is read of each operand of a module of one instruction; tuples count as 0."""


def xla_cost(hlo_text: str) -> XlaCost | None:
    """The cost of a module's entry; a loop inside counts one trip.

    Returns:
        None where XLA does not know it: custom calls.

    Raises:
        ParseError: The text is no HLO module.
    """
    try:
        module = _hlo_any.hlo_module_from_text(_THREAD.sub(r"\1", hlo_text))
    except Exception as error:
        raise ParseError(f"XLA cannot read the HLO text: {str(error)[:500]}") from error
    found: dict[str, float] = _jax_any.hlo_module_cost_analysis(_client(), module)
    flops, size = found.get("flops", 0.0), found.get("bytes accessed", 0.0)
    if flops < 0 or size < 0:
        return None
    read = {int(key[1]): value for name, value in found.items() if (key := _READ.fullmatch(name))}
    operands = tuple(read.get(number, 0.0) for number in range(1 + max(read, default=-1)))
    return XlaCost(flops, found.get("transcendentals", 0.0), size, operands)


@cache
def _client() -> Any:
    """A client of its own: JAX's would fix the number of devices and need the platform."""
    return xla_client.make_cpu_client()
