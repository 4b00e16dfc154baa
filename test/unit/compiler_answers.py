"""Answers of compilers, for tests that build clusters of the core themselves."""

from autoshard.compilers.compiler import compiler_for

TPU = compiler_for("xla-tpu-0.0.42", "", "v5p").to_core()
GPU = compiler_for("xla-gpu-0.10.2", "", "h100").to_core()
