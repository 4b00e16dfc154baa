"""JAX's attention by cuDNN, traced where neither cuDNN nor a GPU is.

JAX asks the machine which cuDNN it has and what its GPU can do, and refuses to trace without an
answer. For a cluster that is elsewhere, the cluster answers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any

from jax._src.cudnn import fused_attention_stablehlo

CUDNN_VERSION = 90800
"""As cuDNN numbers itself: 9.8, the oldest that jax 0.10's CUDA plugin takes, and the one that
``verify/gpu_targets`` compile for."""

_module: Any = fused_attention_stablehlo
_swapping = threading.RLock()


@contextlib.contextmanager
def cudnn_described(compute_capability: str) -> Generator[None]:
    """Answer for a GPU of this compute capability, ``9.0``, what JAX asks of cuDNN and of it."""
    own = _version(compute_capability)
    answers: dict[str, Callable[..., Any]] = {
        "check_cudnn_version": lambda: CUDNN_VERSION,
        "check_compute_capability": lambda asked: own >= _version(asked),
        "is_cuda_compute_capability_equal": lambda asked: own == _version(asked),
    }
    with _swapping:
        before = {name: getattr(_module, name) for name in answers if hasattr(_module, name)}
        try:
            for name in before:
                setattr(_module, name, answers[name])
            yield
        finally:
            for name, known in before.items():
                setattr(_module, name, known)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
