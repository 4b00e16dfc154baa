"""Every test sees eight CPU devices, so that sharded programs run anywhere."""

import os

import jaxlib

# How the loops of each device become machine code is two fifths of a compile here, and changes
# neither HLO nor collectives: LLVM's own optimisations, and the newer of two emitters, which alone
# is there from jaxlib 0.11 on.
_FLAGS = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if jaxlib.__version__.startswith("0.10."):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")

os.environ["XLA_FLAGS"] = " ".join(
    [*_FLAGS, os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
