"""Calls that C++ makes: what ``jax.jit`` does between Python's call and the devices.

JAX's C++ knows a call by the types and shardings of its arrays, by its static arguments and by what
is set and traced around it. Of a call it has not seen it asks Python, which runs it and may say how
such calls are run without Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import core, dtypes, sharding_impls, tree_util
from jax._src.interpreters import pxla
from jax._src.lib import _jax  # pyright: ignore
from jax._src.lib import version as _jaxlib_version

Slow = Callable[..., tuple[Any, Any]]
"""Runs a call: its result, and the ``FastCall`` for calls like it, or None."""


def dispatched(
    fn: Callable[..., Any],
    slow: Slow,
    static_numbers: Sequence[int],
    static_names: Sequence[str],
) -> Callable[..., Any]:
    """A function that C++ calls as soon as it knows how.

    Args:
        fn: Called in its place under ``jax.disable_jit``; nobody else's, calls are kept by it.
        slow: For all calls that are not known.
        static_numbers: Places of static arguments.
        static_names: Names of those.
    """

    def unknown(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        result, fast = slow(*args, **kwargs)
        return result, fast, False

    made: Any = _jax.pjit(
        getattr(fn, "__name__", "planned"),
        fn,
        unknown,
        list(static_numbers),
        list(static_names),
        pxla.JitGlobalCppCacheKeys(),
        tree_util.dispatch_registry,
        pxla.cc_shard_arg,
    )
    return made


def ends_on_deleted_arrays(platform: str, num_devices: int) -> bool:
    """Does a call with a deleted array, or one donated twice, end the process in place of an error?

    Seen with jaxlib 0.10.2 on several CPU devices, also of ``jax.jit``; jaxlib 0.12.0.1 raises.
    """
    return platform == "cpu" and num_devices > 1 and _jaxlib_version < (0, 12)


def any_deleted(leaves: Sequence[Any]) -> bool:
    """Is one of these an array that is deleted?"""
    try:
        return any(map(_jax.ArrayImpl.is_deleted, leaves))
    except TypeError:  # not all of them are plain arrays
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        return any(not isinstance(a, core.Tracer) and a.is_deleted() for a in arrays)


def fast_call(
    compiled: jax.stages.Compiled, num_arguments: int, results: Sequence[Any], tree: Any
) -> Any:
    """How C++ calls a program by itself; None if it cannot.

    Args:
        compiled: The program; its arguments lie as it wants them, or on no device in particular.
        num_arguments: Flat ones, those that it does not read included.
        results: Of a call, flat.
        tree: Their structure.
    """
    executable: Any = compiled._executable  # pyright: ignore[reportPrivateUsage]
    execute = executable.unsafe_call
    if (
        not isinstance(execute, pxla.ExecuteReplicated)
        or execute.ordered_effects
        or execute.has_unordered_effects
        or execute.has_host_callbacks
        or executable._mut
    ):
        return None
    layouts = executable._dispatch_in_layouts
    if any(getattr(layout, "sub_byte_element_size_in_bits", 0) for layout in layouts):
        return None
    found, tree = pxla.reflatten_outputs_for_dispatch(tree, list(results))
    if not all(isinstance(result, _jax.ArrayImpl) for result in found):
        return None
    constants = compiled._params.const_args  # pyright: ignore[reportPrivateUsage]
    count = len(constants) + num_arguments
    return pxla.MeshExecutableFastpathData(
        executable.xla_executable,
        tree,
        _physical(executable._in_shardings, executable.in_avals),
        _physical(executable._out_shardings, executable.out_avals),
        [result.aval for result in found],
        [result._committed for result in found],
        [number in executable._kept_var_idx for number in range(count)],
        layouts,
        executable.shard_const_args(constants),
    )


def _physical(shardings: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """Shardings of the words of typed PRNG keys, of other arrays as they are."""
    return [
        sharding_impls.physical_sharding(aval, sharding)
        if aval is not core.abstract_token and dtypes.issubdtype(aval.dtype, dtypes.extended)
        else sharding
        for sharding, aval in zip(shardings, avals, strict=True)
    ]
