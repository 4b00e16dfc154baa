"""Every test sees eight CPU devices, so that sharded programs run anywhere."""

import os

# LLVM's own optimisations are two fifths of a compile here, and change neither HLO nor collectives.
# The older emitters of loops (xla_cpu_use_fusion_emitters=false) would save as much again, but
# compute a reverse wrongly (jaxlib 0.10.2).
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
    ]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
