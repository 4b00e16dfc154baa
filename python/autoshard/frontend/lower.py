"""From a Python function to a module to plan: fresh, unannotated, for all devices of the mesh."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES
from autoshard.cluster.stages import cluster_of_a_stage
from autoshard.errors import PlanError
from autoshard.frontend.arguments import Arguments, StaticArguments
from autoshard.frontend.committed import CommittedShardings, committed_shardings
from autoshard.frontend.mesh import (
    Machine,
    as_laid,
    cluster_of,
    machine_of,
    machine_of_cluster,
    mesh_of_marks,
    meshes_of_marks,
    read_machine,
)
from autoshard.frontend.pallas_kernels import pallas_kernel_rules
from autoshard.frontend.references import OfArrays, has_references
from autoshard.frontend.request import Mode, Request, check_mesh_of_a_stage
from autoshard.frontend.shard import padding_allowed
from autoshard.frontend.written import Written
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.ir.attributes import MARK
from autoshard.ir.boundary import mark_texts
from autoshard.ir.cudnn import cudnn_described
from autoshard.ir.garbage import no_collection
from autoshard.ir.lowering import (
    LoweredProgram,
    NotLoweredError,
    Rules,
    context_mesh,
    lower,
    meshes_of_bodies,
)
from autoshard.ir.module import has_large_mesh, operations_of
from autoshard.kernels.ragged_dot import ragged_dot_rules
from autoshard.passes.pipeline import run_passes
from autoshard.passes.undo_checkpoints import UndoCheckpoints
from autoshard.rewrites.one_device_collectives import drop_collectives_of_one
from autoshard.sharding import Axis, Mesh, Sharding

_OTHER_MESH = (
    "use_abstract_mesh cannot change the size of the mesh",
    "should match the mesh passed to shard_map",
    "is not found in mesh",
    "Received incompatible devices",
    "axis marked as manual",
    "should match the aval mesh",
    "names that are of type Auto or Manual",
)
"""In JAX's messages where a program has another mesh than the one it is traced under."""


@dataclass(frozen=True)
class Source:
    """One function, lowered for one mesh and one set of argument types."""

    name: str
    program: LoweredProgram
    machine: Machine
    argument_names: tuple[str, ...]
    mode: Mode
    cluster: Cluster | None
    """What it is planned for; None: by the bytes that are sent alone."""
    has_mesh: bool
    """False: the axes of ``machine.mesh`` mean nothing, the plan makes its own."""
    is_mesh_given: bool = False
    """Was it given by name, by ``mesh=`` or ``jax.set_mesh``, and not made of marks or pins?"""
    committed: CommittedShardings = ()
    """Shardings of arguments that lie on the mesh that is given; they are pins."""
    result_pins: tuple[tuple[int, Sharding], ...] = ()
    """Shardings of results, where ``out_shardings`` says nothing."""
    batch_cuts: tuple[tuple[int, int], ...] = ()
    """Numbers of arguments with the pieces that dim 0 of each shall have."""
    keeps_order: bool = False
    """Are devices numbered as the cluster does, whatever order would be faster?"""

    @cached_property
    def without_checkpoints(self) -> bytes:
        """The program whose own ``jax.checkpoint`` is undone, as bytecode."""
        module = parse_bytes(self.program.bytecode, new_context(), self.name)
        run_passes(module, [UndoCheckpoints()])
        return print_module(module, "bytecode")


@dataclass(frozen=True)
class Target:
    """For what a function is lowered."""

    machine: Machine
    mode: Mode
    cluster: Cluster | None
    has_mesh: bool = True
    is_mesh_given: bool = False


def lower_source(
    fn: Callable[..., Any],
    arguments: Arguments,
    request: Request,
    jit_options: Mapping[str, Any],
    program: LoweredProgram | None = None,
) -> Source:
    """Lower ``fn`` under a name of its own, so that ``jax.jit(fn)`` never sees the result.

    Args:
        fn: The user's function, also one that is jitted already.
        arguments: Types or arrays.
        request: Without a mesh, layouts in the program say which it is, and ``fn`` is traced twice.
        jit_options: Static and donated arguments and the like, for ``jax.jit``.
        program: What it was lowered to for other devices, and is taken to be for these.

    Raises:
        PlanError: Mode ``semi_auto`` without a mesh, and no layout names one. Ordered effects, or a
            ``jax.shard_map`` over another mesh.
        ShardingError: The mesh is none, or the layouts have no common one.
        ClusterError: The cluster is none, or the devices are none that autoshard knows.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    lowered = _Lowering(name, fn, arguments, request.indivisible == "pad", jit_options, program)
    try:
        return lowered.source(_target(request, lowered.marks, name, arguments.explicit_mesh))
    except PlanError:
        is_given = request.mesh is not None or _mesh_around(request) is not None
        own = lowered.own_mesh() if lowered.is_for_another_mesh and not is_given else None
        if own is None:
            raise
        asked = replace(request, mesh=own, mode=request.mode or "auto")
    return lowered.source(_target(asked, lowered.marks, name))


@dataclass(frozen=True)
class Traced:
    """A function and the types of its arguments, to be lowered for another request."""

    fn: Callable[..., Any]
    arguments: Arguments
    """Without arrays."""
    jit_options: Mapping[str, Any]

    @property
    def leaves(self) -> list[Any]:
        """Types of all arguments that are not static, in the order of the flattened pytree."""
        return self.arguments.leaves

    def source(self, request: Request, program: LoweredProgram | None = None) -> Source:
        """The function lowered; see ``lower_source``."""
        return lower_source(self.fn, self.arguments, request, self.jit_options, program)


def traced_for(
    fn: Callable[..., Any],
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    *,
    static: tuple[Any, Any],
    donate: tuple[Any, Any],
) -> Traced:
    """``fn`` with the types of its arguments, or of the arrays of those that are references.

    Args:
        fn: The user's function.
        arguments: Positional ones, and those by name.
        static: Numbers and names, as in ``jax.jit``.
        donate: Likewise.
    """
    fixed = StaticArguments.of(fn, *static)
    called = Arguments.of(fixed, *arguments)
    if has_references(called.leaves):
        of_arrays = OfArrays.of(fn, called, fixed, donate)
        fn, called, donate = of_arrays.fn, of_arrays.arguments, of_arrays.donate
    options = {
        "static_argnums": fixed.numbers,
        "static_argnames": fixed.names,
        "donate_argnums": donate[0],
        "donate_argnames": donate[1],
    }
    return Traced(fn, called.as_types(), options)


def lower_again(
    fn: Callable[..., Any],
    arguments: Arguments,
    target: Target,
    jit_options: Mapping[str, Any],
    *,
    may_pad: bool,
) -> Source:
    """Lower ``fn`` for what it was lowered for before.

    Args:
        fn: As ``lower_source`` takes it.
        arguments: Likewise.
        target: What a plan says of itself.
        jit_options: As ``lower_source`` takes them.
        may_pad: Marks may cut dims that do not fall into equal parts.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    return _Lowering(name, fn, arguments, may_pad, jit_options).source(target)


class _Lowering:
    """One function with one set of arguments, lowered once for each mesh and platform."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        arguments: Arguments,
        may_pad: bool,
        jit_options: Mapping[str, Any],
        program: LoweredProgram | None = None,
    ) -> None:
        self.name = name
        self.fn = fn
        self.arguments = arguments
        self.may_pad = may_pad
        self.jit_options = jit_options
        self.program = program
        """What it is taken to be lowered to, whatever for."""
        self.known: dict[tuple[Any, str | None], LoweredProgram] = {}
        self.written = Written(name)
        self.is_for_another_mesh = False
        """Did it name another mesh than one that it was to be lowered under?"""

    def source(self, target: Target) -> Source:
        return Source(
            name=self.name,
            program=self.lowered(*_devices(target.machine, target.cluster)),
            machine=target.machine,
            argument_names=tuple(self.arguments.names(self.fn)),
            mode=target.mode,
            cluster=target.cluster,
            has_mesh=target.has_mesh,
            is_mesh_given=target.is_mesh_given,
            committed=self._committed(target),
        )

    def _committed(self, target: Target) -> CommittedShardings:
        """Pins of arguments; mode ``data_parallel`` has pins of its own."""
        if not target.is_mesh_given or target.mode == "data_parallel":
            return ()
        return committed_shardings(self.arguments.leaves, target.machine)

    def marks(self, mesh: Any, platform: str | None) -> list[str]:
        """What the program's marks say."""
        return list(_texts_of_marks(self.lowered(mesh, platform).bytecode, self.name))

    def own_mesh(self) -> jax.sharding.Mesh | None:
        """The one mesh, with more than one device, that bodies of ``jax.shard_map`` are for."""
        args, kwargs = self.arguments.types()
        jitted = jax.jit(_fresh(self.fn, self.written), **self.jit_options)
        try:
            with padding_allowed(self.may_pad):
                found = meshes_of_bodies(jitted, args, kwargs)
        except (ValueError, RuntimeError):  # it needs a mesh around it
            return None
        meshes = [mesh for mesh in found if mesh.size > 1]
        return meshes[0] if len(meshes) == 1 else None

    def lowered(self, mesh: Any, platform: str | None) -> LoweredProgram:
        """Lowered under a mesh of JAX for a platform; None: that of the devices here."""
        if self.program is not None:
            return self.program
        key = mesh, platform
        if key not in self.known:
            self.known[key] = self._lower(mesh, platform)
        return self.known[key]

    @no_collection()
    def _lower(self, mesh: Any, platform: str | None) -> LoweredProgram:
        name = self.name
        args, kwargs = self.arguments.types(mesh)
        jitted = jax.jit(_fresh(self.fn, self.written), **self.jit_options)
        with padding_allowed(self.may_pad), _libraries_of(mesh, platform):
            try:
                program = lower(jitted, args, kwargs, mesh, platform, rules=_own_rules)
            except NotLoweredError as error:
                raise _not_lowered(name, platform, error.__cause__) from error.__cause__
            except ValueError as error:
                if not any(text in str(error) for text in _OTHER_MESH):
                    raise
                found = _of_one_device(jitted, args, kwargs, mesh, platform)
                if found is None:
                    self.is_for_another_mesh = True
                    raise _for_another_mesh(name, str(error).rstrip(".")) from error
                program = found
        if program.ordered_effects:
            raise PlanError(
                f"{name}: {', '.join(program.ordered_effects)}: effects in an order, as those of"
                " io_callback(.., ordered=True), run on one device only. That is JAX's rule. Use"
                " ordered=False, or take them out of the function."
            )
        return program


@functools.lru_cache(maxsize=2)
def _texts_of_marks(bytecode: bytes, name: str) -> tuple[str, ...]:
    """What marks in a program say, which is asked for each number of stages."""
    return tuple(mark_texts(parse_bytes(bytecode, new_context(), name), MARK))


def _for_another_mesh(name: str, said: str) -> PlanError:
    return PlanError(
        f"{name}: a shard_map or a sharding constraint in it is for another mesh than the plan:"
        f" {said}. Give that mesh: mesh=."
    )


def _own_rules() -> Rules:
    return (*pallas_kernel_rules(), *ragged_dot_rules())


def _of_one_device(
    jitted: Any, args: Any, kwargs: Any, mesh: Any, platform: str | None
) -> LoweredProgram | None:
    """A program that has meshes of one device, of which nothing is left; None if there are more."""
    try:
        program = lower(jitted, args, kwargs, mesh, platform, has_own_meshes=True, rules=_own_rules)
    except (ValueError, RuntimeError, NotLoweredError):
        return None
    module = parse_bytes(program.bytecode, new_context())
    # JAX may lower a shard_map for one device and leave it the mesh of an earlier trace.
    if has_large_mesh(module):
        return None
    with module.context:
        drop_collectives_of_one(operations_of(module.operation))
    return replace(program, bytecode=print_module(module, "bytecode"))


def _not_lowered(name: str, platform: str | None, error: BaseException | None) -> PlanError:
    said = f"{type(error).__name__}: {error}".rstrip(".")
    return PlanError(
        f"{name} cannot be lowered for {platform} here, where no such device is: {said}. Write"
        f" jax.jit({name}).lower(..).as_text(debug_info=True) to a file where one is, and plan the"
        " file: autoshard-opt FILE --autoshard-import-strategies"
        " --autoshard-recursive-programming=cluster=.."
    )


def _devices(machine: Machine, cluster: Cluster | None) -> tuple[Any, str | None]:
    """The mesh to trace under and the platform to lower for; None: that of the devices here."""
    mesh: Any = machine.jax_mesh()
    if cluster is None or machine.devices is not None:
        return mesh, None
    family = FAMILIES.get(cluster.chip.name)
    platform = cluster.platform
    if platform in (None, "cpu") or family is None or not family.device_kinds:
        return mesh, platform
    # Libraries ask which device a program is traced for.
    name = "gpu" if platform == "cuda" else platform
    device = jax.sharding.AbstractDevice(family.device_kinds[0], family.num_cores, name)
    return mesh.update(abstract_device=device), platform


def _libraries_of(mesh: Any, platform: str | None) -> contextlib.AbstractContextManager[None]:
    """What libraries of a platform that is not here say of it."""
    device = None if platform != "cuda" or mesh is None else mesh.abstract_device
    for family in FAMILIES.values():
        if device is not None and device.device_kind in family.device_kinds:
            return cudnn_described(family.compute_capability)
    return contextlib.nullcontext()


def _mesh_around(request: Request) -> jax.sharding.Mesh | jax.sharding.AbstractMesh | None:
    """The mesh of ``jax.set_mesh`` around the call.

    One of a single device says nothing where a cluster is given: programs that insist on a mesh are
    lowered within such a one.
    """
    mesh = context_mesh()
    return None if mesh is not None and mesh.size == 1 and request.cluster is not None else mesh


def _target(
    request: Request,
    marks: Callable[[Any, str | None], list[str]],
    name: str,
    explicit: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
) -> Target:
    """What the request means.

    Args:
        request: What is asked of the plan.
        marks: Lowers under a mesh of JAX for a platform, and reads.
        name: Of the function.
        explicit: The mesh of arguments whose types say how they are cut.
    """
    cluster = None if request.cluster is None else Cluster.of(request.cluster, request.compiler)
    if request.stages is not None:
        cluster = cluster_of_a_stage(whole_cluster(request), request.stages.stages)
    mesh, mode = request.mesh, request.mode
    if mesh is None:
        # A cluster that is given gets a mesh of its own.
        mesh = _mesh_around(request) or (explicit if cluster is None else None)
        # Who sets a mesh for everything says nothing of how a function is planned.
        mode = mode or ("auto" if mesh is not None else None)
    is_given = mesh is not None
    if mesh is None and mode != "semi_auto":
        mesh = request.mesh_of_pins()
    if request.stages is not None:
        check_mesh_of_a_stage(mesh)
    if mesh is not None:
        machine = read_machine(mesh) if cluster is None else machine_of_cluster(cluster, mesh)
        mode = mode or ("semi_auto" if cluster is None else "auto")
        if mode == "auto" and cluster is None:
            cluster = Cluster.of(cluster_of(machine), request.compiler)
            machine = machine_of_cluster(cluster, mesh)
        if cluster is not None and request.stages is None:
            cluster = as_laid(cluster, machine)
        return Target(machine, mode, cluster, is_mesh_given=is_given)
    if cluster is None:
        texts = marks(None, None)
        if request.mode == "semi_auto" or texts:
            machine = machine_of(mesh_of_marks(texts, name))
            mode = request.mode or "semi_auto"
            if mode != "auto":
                return Target(machine, mode, None)
            return Target(machine, mode, Cluster.of(cluster_of(machine), request.compiler))
        cluster = Cluster.of(Cluster.detect(), request.compiler)
    flat = machine_of_cluster(cluster, _flat(cluster, request.mode))
    meshes = meshes_of_marks(marks(*_devices(flat, cluster)))
    mode = request.mode or "auto"
    if meshes:
        machine = machine_of_cluster(cluster, Mesh.common_refinement(meshes))
        return Target(machine, mode, cluster)
    if mode == "semi_auto":
        raise PlanError(
            f"{name}: no mesh is given, and no Layout in the program has one. Give"
            ' mesh="dp=2,tp=4", use autoshard.Layout in autoshard.shard, or mode="auto".'
        )
    return Target(flat, mode, cluster, has_mesh=mode == "data_parallel")


def whole_cluster(request: Request) -> Cluster:
    """All devices that a request is for."""
    asked = Cluster.detect() if request.cluster is None else request.cluster
    return Cluster.of(asked, request.compiler)


def _flat(cluster: Cluster, mode: Mode | None) -> Mesh:
    name = "data" if mode == "data_parallel" else "devices"
    return Mesh((Axis(name, cluster.num_devices),))


def _fresh(fn: Callable[..., Any], written: Written) -> Callable[..., Any]:
    """``fn`` as a function object that JAX has not seen."""

    @functools.wraps(fn, updated=())
    def fresh(*args: Any, **kwargs: Any) -> Any:
        return written.call(fn, args, kwargs)

    return fresh
