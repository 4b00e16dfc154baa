"""JAX's side of the door: what is tracing, who called, and which lowering is ours.

Imports jax; ``autoshard.ir`` itself does not, so that ``autoshard-opt`` starts without it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, cast

import jax
import jax.extend.core
from jax._src import (  # pyright: ignore[reportPrivateUsage]
    api_util,
    callback,
    config,
    core,
    debugging,
    source_info_util,
)
from jax._src import mesh as mesh_lib  # pyright: ignore[reportPrivateUsage]
from jax._src.interpreters import mlir

from autoshard.ir.checkpoint_names import NAMES, settle_names
from autoshard.ir.equal_ops import join_equal_ops
from autoshard.ir.module import new_context, parse_bytes, print_module
from autoshard.ir.native import run_native

_PACKAGES = {str(path.parent.parent) for path in (Path(__file__), Path(__file__).resolve())}
"""Where the package is, and where links to it lead."""
_SITE_PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))

# Frames of this package are never "the user's line", neither in MLIR locations nor in errors.
for _package in _PACKAGES:
    source_info_util.register_exclusion(_package)

_marks_are_lowered: Any = jax.make_user_context(False)
"""Part of every key of JAX's tracing, lowering and compilation caches, so that what is lowered
with marks is never found by an ordinary ``jax.jit`` and the other way round."""


@contextlib.contextmanager
def lower_marks() -> Generator[None]:
    """Within the block ``autoshard.shard`` leaves custom calls in the modules JAX lowers."""
    with _marks_are_lowered(True):
        yield


def marks_are_lowered() -> bool:
    """Is autoshard itself lowering on this thread?"""
    return bool(_marks_are_lowered.value)


class Tracing(enum.Enum):
    """What surrounds the current call."""

    NONE = enum.auto()
    """Nothing: values are arrays, the call runs now."""
    STAGED = enum.auto()
    """A jit, scan or the like: the call becomes part of a larger program."""
    EAGER = enum.auto()
    """grad, vmap or the like without a jit around it: the call runs op by op."""


def tracing() -> Tracing:
    """Which transformations of JAX are at work on this thread."""
    if core.trace_ctx.is_top_level():
        return Tracing.NONE
    return Tracing.STAGED if core.unsafe_am_i_under_a_jit() else Tracing.EAGER


def is_traced(value: object) -> bool:
    """Does a value stand for one of a program that is being traced?"""
    return isinstance(value, core.Tracer)


def is_ref(value: object) -> bool:
    """Is it a ``jax.new_ref``, an array that can be written into?"""
    return isinstance(value, core.Ref)


def array_of_ref(ref: Any) -> jax.Array:
    """What a reference holds, without a copy: the next one that is set takes its place."""
    return ref._refs._buf


def set_ref(ref: Any, value: jax.Array) -> None:
    """Let a reference hold an array of its type, wherever that lies.

    ``ref[...] = value`` brings it to where the reference was.
    """
    ref._refs._buf = value


InvalidValueError: Any = api_util.InternalFloatingPointError
"""What a compiled program raises where ``jax_debug_nans`` or ``jax_debug_infs`` finds one."""


def raise_where_invalid(
    error: Exception, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> NoReturn:
    """Run ``fn`` op by op, as ``jax.jit`` does, to name the op that makes a NaN or infinity.

    Raises:
        FloatingPointError: Always.
    """
    api_util.maybe_recursive_nan_check(error, fn, args, kwargs)


def user_line() -> str | None:
    """``file:line`` of the user's code that led here, or None.

    The innermost frame outside JAX and this package; a frame outside site-packages is preferred,
    so that a call made by a library's layer names the line that uses the layer.
    """
    frames = list(source_info_util.user_frames(source_info_util.current().traceback))
    own = [f for f in frames if not f.file_name.startswith(_SITE_PACKAGES)]
    for frame in own or frames:
        return f"{frame.file_name}:{frame.start_line}"
    return None


def line_of_error(error: BaseException) -> str | None:
    """``file:line`` of the user's code where an error was raised, or that led there, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    others = (*_SITE_PACKAGES, *_PACKAGES)
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


@dataclass(frozen=True)
class LoweredProgram:
    """What ``jax.jit`` made of one function for one set of argument types."""

    stage: jax.stages.Lowered
    """JAX's own record. Belongs to us alone, because the function was wrapped afresh."""
    bytecode: bytes
    """The module with locations."""
    kept: tuple[int, ...]
    """For each argument of ``main`` behind the constants: its number among the flat arguments."""
    constant_count: int
    """How many arguments of ``main`` are hoisted constants; they come first."""
    ordered_effects: tuple[str, ...]
    """Kinds of effects that must run in the order of the program."""
    mesh: jax.sharding.Mesh | None = None
    """The devices to compile for, where it was lowered for one of them, or in another order."""

    @cached_property
    def argument_types(self) -> Any:
        """Types of arguments, positional ones and by name; JAX makes them anew each time."""
        return cast(Any, self.stage).args_info

    @cached_property
    def result_types(self) -> Any:
        """Types of results, in the tree that the function returns."""
        return cast(Any, self.stage).out_info

    def is_same(self, other: LoweredProgram) -> bool:
        """Does it do the same, maybe for other devices, or called from another line?"""
        own = self.kept, self.constant_count, self.ordered_effects
        if own != (other.kept, other.constant_count, other.ordered_effects):
            return False
        if self.bytecode == other.bytecode:
            return True
        modules = [_without_locations(one.bytecode) for one in (self, other)]
        if modules[0][1] == modules[1][1]:
            return True
        # Bytecode also says in which order ops read a value.
        texts = [str(one.operation.get_asm(large_elements_limit=None)) for one, _ in modules]
        return texts[0] == texts[1]


def _without_locations(bytecode: bytes) -> tuple[Any, bytes]:
    """The module without locations, and its bytecode."""
    module = parse_bytes(bytecode, new_context(), "step")
    run_native(module, "builtin.module(strip-debuginfo)", verify=False)
    return module, print_module(module, "bytecode")


def lower(
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None,
    platform: str | None = None,
    *,
    has_own_meshes: bool = False,
    rules: Callable[[], Rules] = tuple,
) -> LoweredProgram:
    """Lower for the devices of ``mesh`` without any annotation but the user's marks.

    Args:
        jitted: ``jax.jit`` of a function that nobody else has. JAX keeps what it lowers for each
            function and hands the same object to everybody, so it must not be the user's.
        args: Positional arguments, types in place of arrays: an array would bring its sharding.
        kwargs: Arguments by name, likewise.
        mesh: Its flat order is the device assignment. Abstract: there are no devices, the module
            has one partition. None: likewise.
        platform: That of devices which are not here, ``tpu``; None: that of the mesh's devices.
        has_own_meshes: It uses meshes of one device, and is lowered for one; compiled for ``mesh``.
        rules: Asked after tracing: primitives, and how they are lowered in place of JAX's rules.

    Raises:
        NotLoweredError: The program cannot be lowered for ``platform`` here.
        ClosesOverTracedError: It is no program of its own.
    """
    devices = mesh if has_own_meshes and isinstance(mesh, jax.sharding.Mesh) else None
    try:
        stage = _stage(jitted, args, kwargs, None if has_own_meshes else mesh, platform, rules)
    except NotImplementedError as error:
        if _NO_PARTITIONER not in str(error) or not isinstance(mesh, jax.sharding.Mesh):
            raise
        abstract: Any = mesh.abstract_mesh
        stage = _stage(jitted, args, kwargs, abstract, abstract.abstract_device.platform, rules)
        devices = mesh
    lowering: Any = stage._lowering
    constant_count = len(lowering.const_args)
    kept = sorted(lowering.compile_args["kept_var_idx"])
    return LoweredProgram(
        stage,
        _bytecode_of(stage),
        tuple(number - constant_count for number in kept if number >= constant_count),
        sum(number < constant_count for number in kept),
        tuple(str(effect) for effect in lowering.compile_args["ordered_effects"]),
        devices,
    )


def _bytecode_of(stage: Any) -> bytes:
    module = stage.compiler_ir("stablehlo")  # JAX keeps it, as it is
    own = parse_bytes(print_module(module, "bytecode"), new_context(), "step")
    join_equal_ops(own)
    return print_module(own, "bytecode")


Rules = tuple[tuple[core.Primitive, Callable[..., Any]], ...]
"""Primitives of JAX, and how they are lowered in place of its own rules."""

_NO_PARTITIONER = "Mosaic kernels cannot be automatically partitioned"
"""What JAX says of TPU kernels where there are several devices; with none, it lowers them."""


class NotLoweredError(Exception):
    """A program that cannot be lowered where no device of the platform is; its cause says why."""


class ClosesOverTracedError(Exception):
    """A function that uses a value of another program, which is traced around it."""


def meshes_of_bodies(
    jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[jax.sharding.Mesh]:
    """The meshes, over devices, that bodies of ``jax.shard_map`` in a function are for, each once.

    Args:
        jitted: ``jax.jit`` of a function that nobody else has, traced under no mesh.
        args: Types of positional arguments.
        kwargs: Those by name.
    """
    with core.eval_context(), lower_marks():
        jaxpr: Any = jitted.trace(*args, **kwargs).jaxpr.jaxpr
    found: dict[jax.sharding.Mesh, None] = {}
    waiting = [jaxpr]
    while waiting:
        current = waiting.pop()
        for equation in current.eqns:
            mesh = equation.params.get("mesh")
            if isinstance(mesh, jax.sharding.Mesh):
                found[mesh] = None
            waiting.extend(core.jaxprs_in_params(equation.params))
    return list(found)


def _check_closed(traced: Any) -> None:
    constants = (*traced.jaxpr.consts, *traced._consts)
    if any(isinstance(constant, core.Tracer) for constant in constants):
        raise ClosesOverTracedError


def _stage(
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mesh: Any,
    platform: str | None,
    rules: Callable[[], Rules],
) -> Any:
    # Also while another program is traced: this one is a program of its own.
    with core.eval_context(), lower_marks(), _mesh_context(mesh):
        if platform is None:
            traced = jitted.trace(*args, **kwargs)
            _check_closed(traced)
            return _lowered(traced, (*rules(), *NAMES))
        try:
            traced = jitted.trace(*args, **kwargs)
            _check_closed(traced)
        except RuntimeError as error:  # how libraries say that they miss a device
            raise NotLoweredError from error
        try:
            rules_there = (*rules(), *NAMES, *_CALLS_INTO_PYTHON)
            return _lowered(traced, rules_there, lowering_platforms=(platform,))
        except Exception as error:
            raise NotLoweredError from error


def _lowered(traced: Any, rules: Rules, **options: Any) -> Any:
    stage = traced.lower(_private_parameters=_parameters(rules), **options)
    settle_names(stage.compiler_ir("stablehlo"))
    return stage


def lowering_rule(primitive: core.Primitive, platform: str) -> Callable[..., Any]:
    """What JAX lowers a primitive by."""
    everywhere: Any = mlir._lowerings  # pyright: ignore[reportPrivateUsage]
    for_platform: Any = mlir._platform_specific_lowerings  # pyright: ignore[reportPrivateUsage]
    return (for_platform[platform].get(primitive) or everywhere[primitive]).rule


def _parameters(rules: Rules) -> mlir.LoweringParameters:
    return mlir.LoweringParameters(override_lowering_rules=cast(Any, rules) or None)


def _for_the_host(primitive: core.Primitive) -> tuple[core.Primitive, Any]:
    """``primitive`` and what JAX lowers it to for the host, whatever platform is asked for."""
    known = lowering_rule(primitive, "cpu")

    def rule(ctx: Any, *args: Any, **params: Any) -> Any:
        host = jax.devices("cpu")[0].client
        module = ctx.module_context.replace(platforms=("cpu",), backend=host)
        return known(ctx.replace(module_context=module), *args, **params)

    return primitive, rule


_CALLS_INTO_PYTHON: Rules = tuple(
    _for_the_host(primitive)
    for primitive in (
        callback.pure_callback_p,
        callback.io_callback_p,
        debugging.debug_callback_p,
        debugging.debug_print_p,
    )
)
"""Lowering a call into Python makes its channel on a device, and there is none: the module says
the host's call in its place, with the same operands and results."""


def lower_at_home(
    function: Callable[..., Any], structs: Sequence[Any], platform: str, device: Any
) -> bytes:
    """A module whose ``main`` is ``function`` of arrays that one device has.

    Args:
        function: Of arrays.
        structs: Their types; all become arguments, used or not.
        platform: Of the device.
        device: The ``jax.sharding.AbstractDevice``, or None where the platform says enough.

    Raises:
        NotLoweredError: It cannot be lowered for ``platform`` here.
    """
    jitted: Any = jax.jit(lambda *arrays: function(*arrays), keep_unused=True)
    inside = dataclasses.replace(_parameters(_CALLS_INTO_PYTHON), hoist_constants_as_args=False)
    with _marks_are_lowered(False), on_device(device):
        try:
            stage = jitted.trace(*structs).lower(
                lowering_platforms=(platform,), _private_parameters=inside
            )
        except Exception as error:
            raise NotLoweredError from error
    return print_module(stage.compiler_ir("stablehlo"), "bytecode")


def traced_here(jaxpr: Any) -> Any:
    """A jaxpr as if it were traced under the mesh that is current.

    Equations keep the mesh that they were traced under, and lowering rules ask for its devices.
    """
    context: Any = jax.make_jaxpr(lambda x: -x)(0.0).eqns[0].ctx

    def changed(value: Any) -> Any:
        if isinstance(value, core.Jaxpr):  # also what is closed, from jax 0.12 on
            return value.replace(
                eqns=[
                    each.replace(
                        ctx=context, params={k: changed(it) for k, it in each.params.items()}
                    )
                    for each in value.eqns
                ]
            )
        if isinstance(value, jax.extend.core.ClosedJaxpr):
            return value.replace(jaxpr=changed(value.jaxpr))
        return tuple(map(changed, value)) if type(value) is tuple else value

    return changed(jaxpr)


@contextlib.contextmanager
def on_device(device: Any) -> Generator[None]:
    """Nothing but this device is around; libraries that ask which one is traced for are told it."""
    empty: Any = mesh_lib.empty_abstract_mesh
    auto = (jax.sharding.AxisType.Auto,)
    alone = jax.sharding.AbstractMesh((1,), ("one",), axis_types=auto, abstract_device=device)
    # jax 0.10 keeps them with its other settings, 0.12 beside the meshes.
    home: Any = mesh_lib if hasattr(mesh_lib, "device_context") else config
    meshes, devices = home.abstract_mesh_context_manager, home.device_context
    mesh_before = meshes.swap_local(empty if device is None else alone)
    devices_before = devices.swap_local(mesh_lib.empty_concrete_mesh)
    try:
        yield
    finally:
        meshes.set_local(mesh_before)
        devices.set_local(devices_before)


def context_mesh() -> jax.sharding.Mesh | jax.sharding.AbstractMesh | None:
    """The mesh of ``jax.set_mesh`` or ``with mesh:`` around the call; None if there is none."""
    concrete: Any = mesh_lib.get_concrete_mesh()
    if concrete is not None and not concrete.empty:
        return concrete
    by_name: Any = mesh_lib.thread_resources.env.physical_mesh
    return None if by_name.empty else by_name


def _mesh_context(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None) -> Any:
    if mesh is None:
        return contextlib.nullcontext()
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return jax.sharding.use_abstract_mesh(mesh)
    return jax.set_mesh(mesh)


def type_of(value: Any) -> Any:
    """Shape, dtype and weak type of an array, number or ShapeDtypeStruct; no sharding.

    Raises:
        TypeError: ``value`` is nothing that JAX computes with.
    """
    aval: Any = value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def replace_module(
    program: LoweredProgram,
    bytecode: bytes,
    in_shardings: Sequence[Any],
    out_shardings: Sequence[Any],
) -> jax.stages.Lowered:
    """``program`` with another module of the same signature, ready to compile.

    Args:
        program: What JAX lowered.
        bytecode: The other module.
        in_shardings: A ``NamedSharding`` for each flat argument. XLA may not choose others, and JAX
            checks that it did not.
        out_shardings: Likewise for each flat result.
    """
    from jax._src.interpreters import mlir  # pyright: ignore[reportPrivateUsage]

    stage: Any = program.stage
    lowering = copy.copy(stage._lowering)
    context = mlir.make_ir_context()
    lowering._hlo = parse_bytes(bytecode, context)
    lowering._executable = None
    devices: dict[str, Any] = {}
    if program.mesh is not None:
        lowering._device_list = cast(Any, program.mesh)._internal_device_list
        devices = {
            "backend": program.mesh.devices.flat[0].client,
            "num_devices": program.mesh.size,
            "committed": True,
            "context_mesh": program.mesh,
        }
    lowering.compile_args = {
        **lowering.compile_args,
        **devices,
        "in_shardings": (
            *lowering.compile_args["in_shardings"][: program.constant_count],
            *(in_shardings[number] for number in program.kept),
        ),
        "out_shardings": tuple(out_shardings),
    }
    replaced = copy.copy(stage)
    replaced._lowering = lowering
    return replaced


def lower_module(
    name: str,
    bytecode: bytes,
    arguments: Sequence[jax.ShapeDtypeStruct],
    results: Sequence[jax.ShapeDtypeStruct],
    donated: Sequence[int],
    callbacks: Mapping[str, Any],
) -> jax.stages.Lowered:
    """A module as a program of JAX, ready to compile; its result is a list.

    Args:
        name: By which profiles call it.
        bytecode: In the form that the partitioner keeps.
        arguments: Of ``main``, with the ``NamedSharding`` of each, all on one mesh.
        results: Likewise.
        donated: Numbers of the arguments that ``main`` aliases with a result.
        callbacks: ``callbacks_of`` the program that it is a part of; empty where it calls none.
    """

    def same_types(*_: jax.Array) -> list[jax.Array]:
        return [jax.numpy.zeros(result.shape, result.dtype) for result in results]

    same_types.__name__ = same_types.__qualname__ = name
    jitted = jax.jit(same_types, keep_unused=True, donate_argnums=tuple(donated))
    shardings = [value.sharding for value in arguments], [value.sharding for value in results]
    (mesh,) = {cast(Any, sharding).mesh for side in shardings for sharding in side}
    types = tuple(jax.ShapeDtypeStruct(value.shape, value.dtype) for value in arguments)
    lowered = replace_module(lower(jitted, types, {}, mesh), bytecode, *shardings)
    lowering = cast(Any, lowered)._lowering
    lowering.compile_args = {**lowering.compile_args, **callbacks}
    return lowered


def callbacks_of(program: LoweredProgram) -> dict[str, Any]:
    """The functions of Python that a program calls, and what JAX keeps for them.

    Its module names them by their numbers among all of the program.
    """
    stage: Any = program.stage
    names = ("host_callbacks", "keepalive", "unordered_effects")
    return {name: stage._lowering.compile_args[name] for name in names}


def constants_of(program: LoweredProgram) -> list[Any]:
    """The arrays that a program closes over, in the order of its first arguments."""
    stage: Any = program.stage
    return list(stage._lowering.const_args)


def accept_sub_byte_arguments(compiled: jax.stages.Compiled) -> None:
    """Let ``compiled`` be called with placed int4 arrays and the like.

    XLA names their packed layout, ``device_put`` the default one. The buffers are the same, and
    ``jax.jit`` takes them, but a compiled program compares the names and refuses.
    """
    executable = cast(Any, compiled)._executable
    executable._xla_in_layouts = [
        None if getattr(layout, "sub_byte_element_size_in_bits", 0) else layout
        for layout in executable._xla_in_layouts
    ]


def layouts_of(compiled: jax.stages.Compiled) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """In which order and tiles the dims of arguments and of results lie; XLA's texts."""
    executable = cast(Any, compiled)._executable._unloaded_executable.xla_executable
    taken, given = executable.get_parameter_layouts(), executable.get_output_layouts()
    return tuple(map(str, taken)), tuple(map(str, given))


def static_arguments(
    fn: Any, argnums: Any, argnames: Any
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Which arguments are static, by place and by name; ``jax.jit`` infers one from the other."""
    numbers, names = api_util.infer_argnums_and_argnames(signature_of(fn), argnums, argnames)
    return numbers, names


def signature_of(fn: Any) -> inspect.Signature:
    """The signature; ``(*args, **kwargs)`` where Python knows none, as of some written in C."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return inspect.signature(lambda *args, **kwargs: None)  # pyright: ignore


def trace_settings() -> Any:
    """What in ``jax.config`` and around the call changes what tracing gives; hashable."""
    return (config.trace_context(), config.use_shardy_partitioner.value)


def uses_shardy() -> bool:
    """Is Shardy the partitioner (JAX's default), or GSPMD?"""
    return bool(config.use_shardy_partitioner.value)
