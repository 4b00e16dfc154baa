"""System tests run on 8 virtual CPU devices; the number must be set before JAX starts."""

from __future__ import annotations

import jax

jax.config.update("jax_num_cpu_devices", 8)
