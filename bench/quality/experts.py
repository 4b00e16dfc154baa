"""autoshard's plans beside those of experts, both as the real compilers build them.

    python bench/quality/experts.py seeds [--models PART ...] [--clusters NAME ...]
    python bench/quality/experts.py corpus [--models PART ...] [--clusters NAME ...]

seeds: the seven models that MindSpore's automatic mode is measured on, and its LoRA and PanGu
variants. The other plan is MindFormers' semi-automatic configuration, "dp=2 mp=4" and so on, with
its parallel optimizer. On more devices than it was written for, mp stays and dp grows.

corpus: every train step of the corpus; the others are the kinds of bench/common/hand_plans.py, and
what Shardy makes of a program whose batch alone is cut.

Hand plans are written as people write them: ``sdy.sharding`` on arguments and results, the batch at
priority 0 and parameters at 1, constraints inside where the model has a place for them; Shardy and
XLA complete them. What lies between is also completed by autoshard's own search, the best that
could happen to the plan. Of all hand plans the cost model picks the most promising ones
(``--compile-best``); these and ours are compiled, and the step of all is simulated as the compiler
ordered it, by the same code; what it takes with nothing and with all hidden stands beside it.
Nothing is tuned for a row.

Two other planners take part where they are installed, in environments of their own:
``--parallax PYTHON`` (google-parallax's AUTO, models of seeds only) and ``--xla-auto PYTHON``
(XLA's auto-sharding, jax 0.6.2 with its libtpu; TPUs only). See bench/peers.

Compiled programs are kept (bench/common/compile_cache.py): a table that was stopped goes on where
it was, ``--cached`` prints what is there. Each row runs in a process of its own, and stays with its
reason where it failed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.ir import mlir, new_context
from bench.common import results
from bench.common.corpus import Entry, attach, entries, in_a_process, load, machine, propagate
from bench.common.hand_plans import HandPlan, hand_plans, semi_automatic
from bench.common.points import step_fields
from bench.quality.plan_quality import expert_sibling, published, searched

MOST = 1.02
"""Ours over the best other plan that fits: what is allowed."""
PEERS = Path(__file__).resolve().parents[1] / "peers"
SEARCHED = " (inside: search)"
SEQUENCE = ", sequence parallel"
FROM_BATCH = "Shardy from the batch"
AS_LOWERED = "published, with its constraints"


@dataclass(frozen=True)
class SeedModel:
    """A row of MindSpore's table."""

    name: str
    """In bench/programs/transformer.py."""
    data: int
    tensor: int
    devices: int
    """Those of the configuration; what data, tensor and pipeline stages make."""
    published: float | None
    """Tokens/s of the automatic plan over the semi-automatic one, %; None: not published."""
    note: str = ""


SEEDS = (
    SeedModel("baichuan2-7b", 8, 1, 8, 97.4),
    SeedModel("baichuan2-13b", 8, 1, 8, 98.0),
    SeedModel("qwen-7b", 2, 4, 8, 96.2),
    SeedModel("qwen-14b", 1, 8, 8, 111.3),
    SeedModel("llama2-7b", 8, 1, 8, 101.2),
    SeedModel("llama2-13b", 8, 1, 8, 99.8),
    SeedModel("llama2-70b", 2, 4, 64, 93.5, "its 8 pipeline stages are FSDP here"),
    SeedModel("pangu-alpha-2.6b", 8, 1, 8, None),
    SeedModel("pangu-alpha-13b", 8, 1, 8, None),
    SeedModel("baichuan2-7b-lora", 8, 1, 8, None),
    SeedModel("baichuan2-13b-lora", 8, 1, 8, None),
    SeedModel("qwen-7b-lora", 2, 4, 8, None),
    SeedModel("qwen-14b-lora", 1, 8, 8, None),
    SeedModel("llama2-7b-lora", 8, 1, 8, None),
    SeedModel("llama2-13b-lora", 8, 1, 8, None),
    SeedModel("llama2-70b-lora", 2, 4, 64, None, "its 8 pipeline stages are FSDP here"),
)
"""Source: MindFormers 1.2, docs on automatic parallelism, table "Performance benchmarks"; MindSpore
2.3, 8 Ascend devices, 64 for the 70B model. LoRA and PanGu: named there, configured here as their
full-parameter models and as run_pangualpha_2_6b.yaml."""

SEED_CLUSTERS = ("v5p:2x2x2", "v5p:4x4x4", "h100:8")
CORPUS_CLUSTERS = ("v5p:4x4x4", "v5e:4x4", "h100:8")


# Programs


@dataclass(frozen=True)
class Program:
    """A train step to plan."""

    name: str
    load: Callable[[], mlir.Module]
    """Without shardings, each time anew."""
    arguments: list[dict[str, Any]]
    """As in the corpus."""
    constrained: Callable[[HandPlan, bool], mlir.Module] | None = None
    """With the constraints that people write inside, over the plan's mesh; with sequence
    parallelism or without. None where the program has no place for them."""


def seed_program(model: SeedModel, num_devices: int, scan: bool) -> Program:
    """The train step of a model, with as many sequences a device on any cluster."""
    from bench.programs.transformer import check_parameters, mesh_for_constraints, named, train_step

    config = named(model.name, scan=scan, remat=True)
    # llama2-70b is configured for 64 devices, all others for 8.
    batch = config.batch * num_devices // model.devices
    config = dataclasses.replace(config, batch=batch)
    step = train_step(config)
    check_parameters(config, step.num_parameters)
    bytecode, arguments = _lowered(config)

    def constrained(plan: HandPlan, sequence: bool) -> mlir.Module:
        import jax

        sizes = dict(plan.axes)
        data = tuple(axis for axis, _ in plan.axes if axis != "model")
        model_axis = "model" if "model" in sizes else None
        mesh = mesh_for_constraints(sizes)
        inside = dataclasses.replace(
            config,
            constraints=(
                ("residual", (data, model_axis if sequence else None, None)),
                ("heads", (data, None, model_axis, None)),
                ("mixed", (data, None, model_axis, None, None)),
                ("hidden", (data, None, model_axis)),
                ("logits", (data, None, model_axis)),
            ),
        )
        with jax.sharding.use_abstract_mesh(mesh):
            text, _ = _lowered(inside)
        return _parsed(text)

    return Program(model.name, lambda: _parsed(bytecode), arguments, constrained)


def _lowered(config: Any) -> tuple[bytes, list[dict[str, Any]]]:
    from bench.programs.lowered import lower
    from bench.programs.transformer import train_step

    step = train_step(config)
    made = lower(step.function, step.roles, *step.arguments)
    roles = {"frozen": "params"}  # Hand plans cut them as parameters.
    arguments = [{**a, "role": roles.get(a["role"], a["role"])} for a in made.arguments]
    return made.bytecode, arguments


def _parsed(bytecode: bytes) -> mlir.Module:
    return mlir.Module.parse(bytecode, new_context())


def corpus_program(entry: Entry) -> Program:
    """A module of the corpus."""
    return Program(entry.name, lambda: load(entry), entry.info["args"])


# Plans


@dataclass(frozen=True)
class Candidate:
    """A plan, as it goes to the compiler."""

    name: str
    mesh: str
    modelled: dict[str, Any]
    """Seconds and bytes of the cost model, or ``failed``."""
    module: Callable[[], mlir.Module]
    """With all its shardings, for Shardy."""
    planning_seconds: float = 0.0


def our_plan(program: Program, cluster: Any) -> Candidate:
    """What the search finds, with nothing given."""
    module = program.load()
    start = time.perf_counter()
    found = searched(module, cluster, "")
    seconds = time.perf_counter() - start
    return Candidate("autoshard", found.get("mesh", ""), found, lambda: _exported(module), seconds)


def _exported(module: mlir.Module) -> mlir.Module:
    from autoshard.passes.pipeline import run_passes

    run_passes(module, ["autoshard-export-shardy"])
    return module


def completed(program: Program, cluster: Any, plan: HandPlan) -> Candidate:
    """A hand plan whose inside autoshard's search decides."""
    module = program.load()
    attach(module, plan.sdy_axes, plan.sdy_cuts())
    return searched_inside(plan.name, plan.mesh, module, cluster)


def searched_inside(name: str, mesh: str, module: mlir.Module, cluster: Any) -> Candidate:
    """A module whose arguments are cut; the search decides the rest."""
    start = time.perf_counter()
    found = searched(module, cluster, mesh, memory_limit=cluster.usable_memory_bytes)
    seconds = time.perf_counter() - start
    return Candidate(name + SEARCHED, mesh, found, lambda: _exported(module), seconds)


def as_written(
    program: Program,
    cluster: Any,
    plan: HandPlan,
    *,
    sequence: bool = False,
    inside: bool = True,
) -> Candidate:
    """A hand plan as people write it, completed by Shardy.

    Args:
        program: With the constraints that people write inside, where it has places for them.
        cluster: The plan may use all the memory of its devices.
        plan: Shardings of the arguments.
        sequence: The constraints inside cut tokens, too.
        inside: Without it there are no constraints inside.
    """

    def module() -> mlir.Module:
        constrained = program.constrained if inside else None
        made = constrained(plan, sequence) if constrained else program.load()
        write_by_hand(made, plan, program.arguments)
        return made

    spread = module()
    propagate(spread)
    found = searched(spread, cluster, plan.mesh, memory_limit=cluster.usable_memory_bytes)
    name = plan.name + (SEQUENCE if sequence else "")
    return Candidate(name, plan.mesh, found, module)


def from_batch(program: Program, cluster: Any) -> Candidate:
    """Shardy's propagation where the batch alone is cut, over as many devices as divide it."""
    (data,) = (
        p for p in hand_plans(program.arguments, cluster.num_devices) if p.name[:4] == "data"
    )
    roles = {a["index"]: a["role"] for a in program.arguments}
    cuts = {i: cut for i, cut in data.cuts.items() if roles[i] not in ("params", "opt_state")}
    plan = dataclasses.replace(data, name=FROM_BATCH, cuts=cuts)
    return as_written(program, cluster, plan)


def as_lowered(entry: Entry, cluster: Any) -> list[Candidate]:
    """The module that the model's own framework lowers for as many devices, if the corpus has it.

    Its specs, and the constraints inside that come with them; nothing is added.
    """
    sibling = expert_sibling(entry, cluster)
    if sibling is None:
        return []
    spread = load(sibling)
    propagate(spread)
    mesh = ",".join(f"{axis}={size}" for axis, size in sibling.info["mesh"].items())
    found = searched(spread, cluster, mesh, memory_limit=cluster.usable_memory_bytes)
    return [Candidate(AS_LOWERED, mesh, found, lambda: load(sibling))]


def write_by_hand(module: mlir.Module, plan: HandPlan, arguments: list[dict[str, Any]]) -> None:
    """Arguments and the results that replace them, the batch first, then parameters."""
    roles = {a["index"]: a["role"] for a in arguments}
    cuts = {
        index: text if roles[index] == "batch" else text.replace('"}', '"}p1')
        for index, text in plan.sdy_cuts().items()
    }
    results = {
        a["aliases_result"]: plan.sdy_cuts()[a["index"]]
        for a in arguments
        if a.get("aliases_result") is not None and a["index"] in plan.cuts
    }
    attach(module, plan.sdy_axes, cuts, results)
    set_partitions(module, math.prod(size for _, size in plan.axes))


def set_partitions(module: mlir.Module, devices: int) -> None:
    """Say for how many devices the module is."""
    with module.context:
        number = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(32), devices)
        module.operation.attributes["mhlo.num_partitions"] = number


def parallax_plans(program: Program, cluster: Any, python: str) -> list[Candidate]:
    """google-parallax's AUTO on every mesh of two axes: what it cuts, and the batch over the rest.

    Its jit hands these shardings of the arguments to JAX, whose partitioner completes them. It cuts
    two dims of the batch, batch and tokens, over axes that its meshes cannot have; here the batch
    is cut over "data". Optimizer state is cut as its parameters.
    """
    environment = {**os.environ, "PYTHONPATH": str(PEERS.parents[1]), "JAX_PLATFORMS": "cpu"}
    command = [python, str(PEERS / "parallax_auto.py"), program.name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        why = {"failed": f"parallax: {done.stderr.strip().splitlines()[-1][:160]}"}
        return [Candidate("parallax AUTO", "", why, program.load)]
    specs: dict[str, list[str | None]] = json.loads(done.stdout.splitlines()[-1])
    found: list[Candidate] = []
    for tensor in (d for d in range(2, cluster.num_devices + 1) if cluster.num_devices % d == 0):
        plan = _parallax_plan(program, specs, cluster.num_devices // tensor, tensor)
        if plan is not None:
            found.append(as_written(program, cluster, plan, inside=False))
    return found


def _parallax_plan(
    program: Program, specs: dict[str, list[str | None]], data: int, tensor: int
) -> HandPlan | None:
    """The plan over data x tensor devices; None where the sizes of dims do not divide."""
    layered = re.compile(r"\['layers'\](?!\[0\])")
    axes = tuple((a, size) for a, size in (("data", data), ("model", tensor)) if size > 1)
    cuts: dict[int, Any] = {}
    for argument in program.arguments:
        shape = argument["shape"]
        if argument["role"] in ("params", "opt_state"):
            # The optimizer's state holds trees like that of the parameters.
            path = layered.sub("['layers'][0]", argument["path"])
            spec = next((spec for name, spec in specs.items() if path.endswith(name)), [])
            spec = [None] * (len(shape) - len(spec)) + spec  # Stacked layers have a dim in front.
            cut = tuple((name,) if name else () for name in spec)
        else:
            cut = (("data",) if data > 1 else (), *[()] * (len(shape) - 1))
        sizes = dict(axes)
        if any(size % math.prod(sizes[a] for a in c) for size, c in zip(shape, cut, strict=True)):
            return None
        cuts[argument["index"]] = cut
    return HandPlan(f"parallax AUTO {data}x{tensor}", axes, cuts)


def xla_auto_rows(
    program: Program, cluster: Any, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """What XLA's auto-sharding makes of a program: two rows.

    As compiled by its own libtpu; and its shardings of the arguments, which is what JAX's AUTO gave
    back, by the compiler of today. Shardy loses what lies between, so the search decides that.
    """
    from autoshard.errors import CompileError
    from autoshard.sharding import Mesh
    from autoshard.verify.step_time import estimate_step

    sizes = options.xla_auto_mesh or _most_square(cluster.num_devices)
    row: dict[str, Any] = {
        "name": "XLA auto-sharding",
        "mesh": sizes,
        "planning": math.nan,
        "modelled": {"failed": "has its own cost model"},
    }
    try:
        made, text = _auto_sharded(program, cluster, sizes, options)
    except CompileError as error:
        return [{**row, "compiled": {"failed": error.message}}]
    # Its axes have no names; device numbers are those of the cluster.
    named = (f"axis{i}={size}" for i, size in enumerate(sizes.split("x")) if size != "1")
    mesh = Mesh.parse(",".join(named))
    itself = {
        "fits": made["peak"] <= cluster.usable_memory_bytes,
        "peak": made["peak"],
        "compiler": "jax 0.6.2 with libtpu 0.0.17.1 (XLA auto-sharding only)",
        **_estimate_fields(estimate_step(text, mesh, cluster)),
    }
    again = _with_arguments_of(text, mesh, program, cluster)
    return [
        {**row, "planning": made["seconds"], "compiled": itself},
        {
            "name": again.name,
            "mesh": again.mesh,
            "planning": made["seconds"],
            "modelled": again.modelled,
            "compiled": compiled(again, cluster, options),
        },
    ]


def _auto_sharded(
    program: Program, cluster: Any, sizes: str, options: argparse.Namespace
) -> tuple[dict[str, Any], str]:
    """Seconds and bytes, and the compiled program; kept as those of today's compiler are.

    Raises:
        CompileError: It was refused, or not ready in time.
    """
    from autoshard.errors import CompileError
    from bench.common.compile_cache import cache_folder

    text = _plain_text(program.load(), cluster.num_devices)
    key = hashlib.sha256(f"xla-auto 0.6.2 {cluster.name} {sizes} {text}".encode()).hexdigest()
    folder = cache_folder() / key
    if not (folder / "result.json").exists():
        if options.cached:
            raise CompileError("not compiled yet", reason="not kept")
        folder.mkdir(exist_ok=True)
        (folder / "module.mlir").write_text(text)
        command = [options.xla_auto, str(PEERS / "xla_auto.py")]
        command += [str(folder / "module.mlir"), cluster.name, sizes, str(folder)]
        quiet = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        environment = {**os.environ, **quiet, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=environment,
                timeout=options.compile_timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            why = f"not done after {options.compile_timeout:.0f} s"
            raise CompileError(why, reason="time limit") from None
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
            raise CompileError(said[-1][:200], reason="refused")
    return json.loads((folder / "result.json").read_text()), (folder / "hlo.txt").read_text()


def _with_arguments_of(hlo: str, mesh: Any, program: Program, cluster: Any) -> Candidate:
    """A program whose arguments are cut as in a compiled one; the search decides the rest.

    Left out are counters and keys, and what has no equal parts.
    """
    from autoshard.sharding import from_hlo, to_sdy

    entry = hlo[hlo.index("\nENTRY") :]
    found = re.findall(r"\bparameter\((\d+)\), sharding=(\{[^{}]*\})", entry)
    texts = {int(number): text for number, text in found}
    cuts: dict[int, str] = {}
    for argument in program.arguments:
        if argument["role"] not in ("params", "opt_state", "batch"):
            continue
        shape = argument["shape"]
        sharding = from_hlo(texts[argument["index"]], mesh, len(shape))
        if all(size % pieces == 0 for size, pieces in zip(shape, sharding.tile, strict=True)):
            cuts[argument["index"]] = to_sdy(sharding).split("[", 1)[1].rsplit("]", 1)[0]
    axes = ", ".join(f'"{axis.name}"={axis.size}' for axis in mesh.axes)
    module = program.load()
    attach(module, axes, cuts)
    return searched_inside("XLA auto-sharding's arguments", str(mesh), module, cluster)


def _most_square(devices: int) -> str:
    second = max(d for d in range(1, math.isqrt(devices) + 1) if devices % d == 0)
    return f"{devices // second}x{second}"


def _plain_text(module: mlir.Module, devices: int) -> str:
    """Without Shardy's dialect, which releases write differently."""
    attach(module, '"one"=1', {})  # Takes away constraints over one device.
    set_partitions(module, devices)
    with module.context:
        for op in list(module.body.operations):
            if op.operation.name == "sdy.mesh":
                op.operation.erase()
    text = module.operation.get_asm(enable_debug_info=False)
    return re.sub(r"sdy\.sharding = #sdy\.sharding<[^>]*>(, )?", "", text)


def seed_hand_plans(model: SeedModel, program: Program, cluster: Any) -> list[Candidate]:
    """The configuration of MindFormers, each way to read its parallel optimizer."""
    devices = cluster.num_devices
    tensor = model.tensor
    data = model.data if devices == model.devices else devices // tensor
    fsdp = devices // tensor // data
    found: list[Candidate] = []
    for level in (1, 3):
        plan = semi_automatic(program.arguments, data, fsdp, tensor, optimizer_level=level)
        found.append(as_written(program, cluster, plan))
        if tensor > 1:
            found.append(as_written(program, cluster, plan, sequence=True))
    return found


def corpus_hand_plans(
    entry: Entry, program: Program, cluster: Any, deadline: float
) -> list[Candidate]:
    """Every kind of hand plan, completed in both ways, until the deadline (``perf_counter``)."""
    found: list[Candidate] = [from_batch(program, cluster), *as_lowered(entry, cluster)]
    plans = hand_plans(program.arguments, cluster.num_devices, published(entry, cluster))
    for plan in plans:
        if time.perf_counter() > deadline:
            missing = {"failed": "not tried: out of time"}
            found.append(Candidate(plan.name, plan.mesh, missing, program.load))
            continue
        found.append(as_written(program, cluster, plan))
        found.append(completed(program, cluster, plan))
    return found


# In a process of its own


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Plan, compile and estimate one program on one cluster."""
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardWarning

    warnings.simplefilter("ignore", AutoshardWarning)
    cluster = Cluster.of(options.cluster)
    start = time.perf_counter()
    if options.table == "seeds":
        model = next(model for model in SEEDS if model.name == name)
        program = seed_program(model, cluster.num_devices, not options.unrolled)
        others = seed_hand_plans(model, program, cluster)
    else:
        (entry,) = entries([name])
        program = corpus_program(entry)
        others = corpus_hand_plans(entry, program, cluster, start + 0.5 * options.timeout)
    if options.parallax and options.table == "seeds":
        others += parallax_plans(program, cluster, options.parallax)
    ours = our_plan(program, cluster)
    chosen = [ours, *promising(others, options.compile_best)]
    if options.no_compile:
        chosen = []
    rows = []
    for candidate in (ours, *others):
        row = {
            "name": candidate.name,
            "mesh": candidate.mesh,
            "planning": candidate.planning_seconds,
            "modelled": candidate.modelled,
        }
        if candidate in chosen:
            row["compiled"] = compiled(candidate, cluster, options)
        rows.append(row)
    if options.xla_auto and cluster.chip.name.startswith(("v", "tpu")) and not options.no_compile:
        rows += xla_auto_rows(program, cluster, options)
    return {"ours": rows[0], "others": rows[1:]}


def promising(candidates: Sequence[Candidate], number: int) -> list[Candidate]:
    """What to compile, the fastest by the cost model.

    Of hand plans as written ``number`` with sequence parallelism and ``number`` without, of those
    that the search completed one less (the best of them is often our own plan), of parallax one,
    and always Shardy from the batch and what the model's own framework lowers.
    """
    fitting = sorted(
        (c for c in candidates if "failed" not in c.modelled), key=lambda c: c.modelled["step"]
    )
    parallax = [c for c in fitting if c.name.startswith("parallax")]
    searched = [c for c in fitting if c.name.endswith(SEARCHED)]
    always = [c for c in candidates if c.name in (FROM_BATCH, AS_LOWERED)]
    written = [c for c in fitting if c not in parallax + searched + always]
    sequence = [c for c in written if SEQUENCE in c.name]
    whole = [c for c in written if SEQUENCE not in c.name]
    chosen = [*sequence[:number], *whole[:number], *searched[: number - 1]]
    return [*chosen, *parallax[:1], *always]


def compiled(candidate: Candidate, cluster: Any, options: argparse.Namespace) -> dict[str, Any]:
    """What the compiler makes of a plan, and the step time of that."""
    from autoshard.errors import AutoshardError, CompileError
    from autoshard.sharding import Mesh
    from autoshard.verify.step_time import estimate_step
    from bench.common.compile_cache import cached_compile

    if "failed" in candidate.modelled and candidate.name == "autoshard":
        return {"failed": candidate.modelled["failed"]}
    try:
        made = cached_compile(
            candidate.module(), cluster, timeout=options.compile_timeout, only_kept=options.cached
        )
    except CompileError as error:
        return {"failed": error.message}
    found: dict[str, Any] = {
        "fits": made.fits,
        "peak": made.needed_bytes,
        "usable": made.usable_bytes,
        "compile": made.compile_seconds,
        "compiler": made.compiler,
        "rematerialized": sum("nvoluntary full rematerialization" in m for m in made.messages),
    }
    if made.hlo_text is None:
        return {**found, "note": made.no_hlo_text}
    try:
        step = estimate_step(made.hlo_text, Mesh.parse(candidate.mesh), cluster)
    except AutoshardError as error:
        return {**found, "note": f"no estimate: {error.message}"}
    return {**found, **_estimate_fields(step)}


def _estimate_fields(step: Any) -> dict[str, Any]:
    return {
        "step": step.step_seconds,
        **step_fields(step),
        "compute": step.compute_seconds,
        "communication": step.communication_seconds,
        "sent": sum(one.collective.total_bytes for one in step.collectives),
        "collectives": largest(step.collectives),
        "ops": [f"{one.total_seconds * 1e3:.1f} ms {one.op_name}" for one in step.slowest_ops[:6]],
    }


def largest(collectives: Sequence[Any]) -> list[str]:
    """The collectives that take most of the time."""
    slowest = sorted(collectives, key=lambda one: one.total_seconds, reverse=True)[:6]
    return [
        f"{one.collective.kind}({','.join(map(str, one.collective.axes or ('?',)))}) "
        f"{one.collective.local_bytes / 1e6:.3g} MB x {one.collective.times:g} = "
        f"{one.total_seconds * 1e3:.3g} ms {one.collective.place or ''}"
        for one in slowest
    ]


# The tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=("seeds", "corpus"))
    parser.add_argument("--models", nargs="*", default=[], metavar="PART", help="names, or parts")
    parser.add_argument("--clusters", nargs="*", default=None, metavar="NAME")
    parser.add_argument("--unrolled", action="store_true", help="seeds: layers are not a loop")
    parser.add_argument("--compile-best", type=int, default=2, metavar="N", help="hand plans (2)")
    parser.add_argument("--no-compile", action="store_true", help="the cost model's seconds only")
    parser.add_argument("--cached", action="store_true", help="compile nothing that is not kept")
    parser.add_argument("--parallax", metavar="PYTHON", help="of an environment that has it")
    parser.add_argument("--xla-auto", metavar="PYTHON", help="of an environment with jax 0.6.2")
    parser.add_argument("--xla-auto-mesh", metavar="AxB", help="(the most square one)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a row (3600)")
    parser.add_argument("--compile-timeout", type=float, default=600, help="each compile (600)")
    parser.add_argument("--save", type=Path, help="one JSON object a row, as they are measured")
    parser.add_argument("--show", type=Path, help="print the tables of a saved file")
    parser.add_argument("--details", action="store_true", help="every plan of every row")
    results.add_option(parser, "experts-TABLE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        # The last line of standard output is the row: compilers and importers write there, too.
        with contextlib.redirect_stdout(sys.stderr):
            found = measure(options.one, options)
        print(json.dumps(found))
        return
    console = Console(width=None if sys.stdout.isatty() else 190)
    rows = saved(options.show) if options.show else collect(console, options)
    tables = [(seeds_table if options.table == "seeds" else corpus_table)(rows)]
    tables += [details_table(row) for row in rows] if options.details else []
    for table in tables:
        console.print(table)
    if options.csv:
        stem = options.csv.stem.replace("TABLE", options.table)
        results.write(options.csv.with_stem(stem), tables[0])
    console.print(f"{date.today()}, planned and compiled on {machine()}; {compilers(rows)}.")


def saved(path: Path) -> list[dict[str, Any]]:
    """Rows of an earlier run; of two for one module and cluster the later one."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return list({(row["module"], row["cluster"]): row for row in rows}.values())


def collect(console: Console, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every program on every cluster."""
    if options.table == "seeds":
        names = [model.name for model in SEEDS]
        clusters = options.clusters or SEED_CLUSTERS
    else:
        steps = [e.name for e in entries([]) if e.name.endswith((".train", ".step"))]
        # Loops over layers first: they compile in the time of one layer.
        names = sorted(steps, key=lambda name: "_scan_" not in name)
        clusters = options.clusters or CORPUS_CLUSTERS
    more = [options.table, "--timeout", str(options.timeout)]
    more += ["--compile-timeout", str(options.compile_timeout)]
    more += ["--compile-best", str(options.compile_best)]
    for flag in ("unrolled", "no_compile", "cached"):
        more += [f"--{flag.replace('_', '-')}"] if getattr(options, flag) else []
    for value in ("parallax", "xla_auto", "xla_auto_mesh"):
        given = getattr(options, value)
        more += [f"--{value.replace('_', '-')}", given] if given else []
    rows: list[dict[str, Any]] = []
    for cluster in clusters:
        for name in names:
            parts = options.models or [name]
            if not any(part == name or (part not in names and part in name) for part in parts):
                continue
            if options.table == "seeds" and too_large(name, cluster):
                continue
            made = in_a_process(__file__, name, options.timeout, "--cluster", cluster, *more)
            row = {"module": name, "cluster": cluster, **made}
            rows.append(row)
            if options.save:
                with options.save.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            console.print(f"[dim]{name} {cluster}: {' | '.join(cells(row))}")
    return rows


def too_large(name: str, cluster: str) -> bool:
    """A seed model that is for more devices than the cluster has."""
    from autoshard.cluster import Cluster

    devices = next(model.devices for model in SEEDS if model.name == name)
    return Cluster.of(cluster).num_devices < devices


def compilers(rows: list[dict[str, Any]]) -> str:
    """Their releases."""
    found = {
        plan["compiled"]["compiler"]
        for row in rows
        for plan in (row.get("ours", {}), *row.get("others", ()))
        if "compiler" in plan.get("compiled", {})
    }
    return "; ".join(sorted(found)) or "nothing compiled: seconds and bytes are modelled"


def is_compiled(row: dict[str, Any]) -> bool:
    """Ours was compiled and has an estimate, as at least one other."""
    others = [plan.get("compiled", {}) for plan in row.get("others", ())]
    return "step" in row.get("ours", {}).get("compiled", {}) and any("step" in o for o in others)


def compared_by(row: dict[str, Any]) -> str:
    """The seconds that decide: as scheduled, but in rows that were saved before that was known."""
    plans = (row.get("ours", {}), *row.get("others", ()))
    found = [each for plan in plans if (each := outcome(plan, True)) is not None]
    simulated = is_compiled(row) and all("as scheduled" in each for each in found)
    return "as scheduled" if simulated else "step"


def source(row: dict[str, Any]) -> str:
    """Where the seconds that decide come from: one word."""
    if not is_compiled(row):
        return "modelled"
    return "simulated" if compared_by(row) == "as scheduled" else "compiled"


def outcome(plan: dict[str, Any], compiled: bool) -> dict[str, Any] | None:
    """Seconds and bytes of a plan that fits, compiled or modelled; else None."""
    found = plan.get("compiled" if compiled else "modelled", {})
    return found if "step" in found and found.get("fits", True) else None


def best_other(row: dict[str, Any]) -> dict[str, Any] | None:
    """The fastest other plan that fits: as compiled, where ours is, else as modelled."""
    how, by = is_compiled(row), compared_by(row)
    fitting = [plan for plan in row.get("others", ()) if outcome(plan, how)]
    return min(fitting, key=lambda plan: outcome(plan, how)[by], default=None)  # type: ignore[index]


def ratio(row: dict[str, Any]) -> float:
    """Ours over the best other; infinite if only another fits, 0 if none does."""
    ours, other = outcome(row.get("ours", {}), is_compiled(row)), best_other(row)
    if ours is None:
        return math.inf if other or "ours" not in row else 0.0
    by = compared_by(row)
    return ours[by] / outcome(other, is_compiled(row))[by] if other else 0.0  # type: ignore[index]


def cells(row: dict[str, Any]) -> list[str]:
    """Ours, the best other, and their ratio; what failed stays with its reason."""
    if "failed" in row:
        return [row["failed"], *[""] * (2 * len(PLAN_HEADS) + 2)]
    how = is_compiled(row)
    other = best_other(row)
    return [
        *plan_cells(row["ours"], how),
        *(
            ["none fits", *[""] * len(PLAN_HEADS)]
            if other is None
            else [other["name"], *plan_cells(other, how)]
        ),
        f"{row['ours']['planning']:.1f}",
        f"{ratio(row):.3f}" if other else "-",
    ]


PLAN_HEADS = ("ms", "scheduled", "hidden", "compute", "moving", "GB sent", "peak GB")


def plan_cells(plan: dict[str, Any], compiled: bool) -> list[str]:
    """ms a step with nothing hidden, as scheduled, with all hidden, computing and moving; GB."""
    found = outcome(plan, compiled)
    if found is None:
        said = plan.get("compiled", {}) if compiled else {}
        said = said or plan["modelled"]
        why = said.get("failed") or said.get("note") or f"{said['peak'] / 1e9:.1f} GB do not fit"
        return [why, *[""] * (len(PLAN_HEADS) - 1)]
    sent = f"{found['sent'] / 1e9:.1f}" if "sent" in found else ""
    keys = ("step", "as scheduled", "all hidden", "compute", "communication")
    times = (f"{found[key] * 1e3:,.1f}" if key in found else "" for key in keys)
    return [*times, sent, f"{found['peak'] / 1e9:.1f}"]


def seeds_table(rows: list[dict[str, Any]]) -> Table:
    """Rows in the order of the document, cluster by cluster."""
    table = Table(title="autoshard against MindFormers' semi-automatic configurations")
    for heading in ("model", "cluster", "by"):
        table.add_column(heading, overflow="fold")
    add_plan_columns(table, "ours")
    table.add_column("configuration", overflow="fold")
    add_plan_columns(table, "")
    for heading in ("planning s", "speed-up %", "MindSpore %"):
        table.add_column(heading, justify="right")
    known = {model.name: model for model in SEEDS}
    for row in rows:
        model = known[row["module"]]
        over = ratio(row)
        speedup = f"{100 / over:.1f}" if 0 < over < math.inf else "-"
        style = "bold red" if over > 1.0 else ""
        name = row["module"] + (f" ({model.note})" if model.note else "")
        table.add_row(
            name,
            row["cluster"],
            source(row),
            *cells(row)[:-1],
            speedup,
            "" if model.published is None else f"{model.published:.1f}",
            style=style,
        )
    lost = sum(ratio(row) > 1.0 for row in rows)
    table.caption = f"{lost} of {len(rows)} rows below 100 %."
    return table


def corpus_table(rows: list[dict[str, Any]]) -> Table:
    """All rows, worst first."""
    table = Table(title="autoshard against everyone else")
    for heading in ("module", "cluster", "by"):
        table.add_column(heading, overflow="fold")
    add_plan_columns(table, "ours")
    table.add_column("best other", overflow="fold")
    add_plan_columns(table, "")
    for heading in ("planning s", "ratio"):
        table.add_column(heading, justify="right")
    for row in sorted(rows, key=ratio, reverse=True):
        by = source(row)
        style = "bold red" if ratio(row) > MOST else ""
        table.add_row(row["module"], row["cluster"], by, *cells(row), style=style)
    compared = [ratio(row) for row in rows if 0 < ratio(row) < math.inf]
    mean = math.exp(sum(map(math.log, compared)) / len(compared)) if compared else math.nan
    lost = sum(ratio(row) > MOST for row in rows)
    table.caption = (
        f"Geometric mean {mean:.3f} over {len(compared)} rows; {lost} of {len(rows)} rows above "
        f"{MOST} of the best other plan that fits."
    )
    return table


def add_plan_columns(table: Table, whose: str) -> None:
    """Those of ``plan_cells``."""
    for heading in PLAN_HEADS:
        table.add_column(f"{whose} {heading}".strip(), justify="right")


def details_table(row: dict[str, Any]) -> Table:
    """Every plan of one row, modelled and compiled."""
    table = Table(title=f"{row['module']} on {row['cluster']}")
    for heading in ("plan", "mesh"):
        table.add_column(heading, overflow="fold")
    for whose in ("modelled", "compiled"):
        add_plan_columns(table, whose)
    for plan in (row.get("ours", {"modelled": row}), *row.get("others", ())):
        built = plan_cells(plan, True) if "compiled" in plan else [""] * len(PLAN_HEADS)
        table.add_row(plan.get("name", ""), plan.get("mesh", ""), *plan_cells(plan, False), *built)
    return table


if __name__ == "__main__":
    main()
