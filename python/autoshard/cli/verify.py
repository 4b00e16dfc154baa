"""The command ``autoshard-verify``: compile a planned module, or run it small, and compare."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.cli.output import printing
from autoshard.errors import AutoshardError, PassOptionError
from autoshard.writing import write_file

if TYPE_CHECKING:
    from autoshard.cluster import Cluster
    from autoshard.ir import mlir
    from autoshard.pipeline.staged_verification import StagedVerification
    from autoshard.verify.check.check import Check
    from autoshard.verify.verification import Verification

    Found = Verification | StagedVerification | Check

PROGRAM = "autoshard-verify"

_TIME_LIMIT_SECONDS = 600.0

OK, FAILED, DOES_NOT_FIT, DIFFERS = 0, 1, 2, 3
"""Exit codes."""

_EPILOG = """\
exit codes:
  0  it fits, and is compiled as planned
  1  it could not be verified: a message says why
  2  it does not fit the memory that the compiler allows
  3  it fits, but is compiled otherwise than planned, or the compiler left nothing to compare

exit codes with --check:
  0  it computes what one device does
  1  it computes something wrong, or could not be checked: a message says which
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Compile a planned module for devices that need not be here, in a process of"
        " its own, and put what came out beside the plan: memory, collectives, seconds. With"
        " --check, run it instead, made small, and say whether what it computes is right.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "module",
        metavar="FILE",
        help="planned module, as autoshard-opt writes it: MLIR text or bytecode, plain or .gz; -"
        " is standard input",
    )
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="what to compile for: v5e:4x4, v5p:4x4x4*2, h100:8, cpu:8, or a TOML file; without"
        " it, what the plan is for. Of a module with stages that of all of them, which must be"
        " given",
    )
    parser.add_argument(
        "--schedule",
        choices=("gpipe", "1f1b", "zero_bubble"),
        default="1f1b",
        help="of a module with stages: in which order they take micro-batches (1f1b)",
    )
    parser.add_argument(
        "--form", choices=("shardy", "gspmd"), default="shardy", help="partitioner (shardy)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIME_LIMIT_SECONDS,
        metavar="S",
        help=f"seconds that the compiler, or all of a check, may take ({_TIME_LIMIT_SECONDS:g})",
    )
    parser.add_argument(
        "--trip-count",
        type=int,
        default=100,
        metavar="N",
        help="assumed trips of loops whose count is not known (100)",
    )
    parser.add_argument(
        "--compiler-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of XLA, xla_gpu_autotune_level=0, or a published set, maxtext-v6e; may be repeated,"
        " later ones count",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="instead: run the program, made small, on virtual CPU devices, and compare what it"
        " computes when it is split as planned with what one device computes",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - is stdout")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the step as the compiler ordered it, simulated, for https://ui.perfetto.dev",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; errors go to standard error without a traceback."""
    given = _parser().parse_args(arguments)
    # Before JAX is loaded: this process needs no device, and must not take one from its users.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    try:
        found = _check(given) if given.check else _verified(given)
        if given.json not in (None, "-"):
            _write(Path(given.json), found)
    except AutoshardError as error:
        where = f"{error.location}: " if error.location else f"{PROGRAM}: "
        print(f"{where}error: {error.message}", file=sys.stderr)
        return FAILED
    with printing():
        if given.json == "-":
            print(_json(found))
        else:
            _print(found)
    return _code(found)


def _code(found: Found) -> int:
    from autoshard.verify.check.check import Check

    if isinstance(found, Check):
        return OK if found.is_right else FAILED
    if not found.fits:
        return DOES_NOT_FIT
    return OK if found.ok else DIFFERS


def _check(given: argparse.Namespace) -> Check:
    from autoshard.ir import new_context, parse_file
    from autoshard.verify.check.check import check_module

    if given.trace is not None:
        raise PassOptionError("--check runs nothing that has a schedule: leave out --trace.")
    _need_time(given)
    return check_module(
        parse_file(given.module, new_context()),
        use_shardy=given.form == "shardy",
        timeout=given.timeout,
    )


def _need_time(given: argparse.Namespace) -> None:
    if given.timeout <= 0 or given.trip_count < 0:
        raise PassOptionError(
            f"--timeout={given.timeout:g} --trip-count={given.trip_count}: give more than 0 seconds"
            " and 0 or more trips."
        )


def _verified(given: argparse.Namespace) -> Verification | StagedVerification:
    """The comparison; its trace is written where one is asked for."""
    from autoshard.ir import new_context, parse_file
    from autoshard.ir.attributes import PIPELINE_STAGES

    _need_time(given)
    module = parse_file(given.module, new_context())
    if PIPELINE_STAGES in module.operation.attributes:
        return _verified_stages(module, given)
    found = _verify(module, given)
    if given.trace is None:
        return found
    if found.schedule is None:
        print(f"{PROGRAM}: no trace is written: there is no program to simulate", file=sys.stderr)
        return found
    found.write_trace(given.trace)
    return found


def _verify(module: mlir.Module, given: argparse.Namespace) -> Verification:
    from autoshard.cluster import Cluster
    from autoshard.verify.verification import verify_module

    return verify_module(
        module,
        Cluster.of(given.cluster) if given.cluster else _planned_cluster(module, given.module),
        use_shardy=given.form == "shardy",
        timeout=given.timeout,
        trip_count=given.trip_count,
        compiler_options=_compiler_options(given.compiler_option),
    )


def _verified_stages(module: mlir.Module, given: argparse.Namespace) -> StagedVerification:
    """The tasks of a pipeline, each for the devices of a stage."""
    from autoshard.cluster import Cluster
    from autoshard.cluster.stages import cluster_of_a_stage
    from autoshard.ir import mlir
    from autoshard.ir.attributes import PIPELINE_STAGES
    from autoshard.ir.boundary import tied_arguments
    from autoshard.pipeline.order import step_by_rule
    from autoshard.pipeline.staged_verification import verify_staged_step
    from autoshard.pipeline.task_prices import Machinery

    stages = mlir.IntegerAttr(module.operation.attributes[PIPELINE_STAGES]).value
    if given.trace is not None:
        raise PassOptionError(
            f"--trace is for one program, and a pipeline of {stages} stages is several: leave it"
            " out."
        )
    if not given.cluster:
        raise PassOptionError(
            f"the module is a pipeline of {stages} stages. Give --cluster, that of all of them.",
            given.module,
        )
    whole = Cluster.of(given.cluster)
    stage = cluster_of_a_stage(whole, stages)
    donated = {argument: result for result, argument in tied_arguments(module).items()}
    machinery = Machinery(stage, whole, trip_count=given.trip_count)
    return verify_staged_step(
        step_by_rule(module, given.schedule, machinery, donated),
        stage,
        use_shardy=given.form == "shardy",
        timeout=given.timeout,
        device_order=None,
        compiler_options=_compiler_options(given.compiler_option),
        trip_count=given.trip_count,
    )


def _planned_cluster(module: mlir.Module, file: str) -> Cluster:
    from autoshard.planned.given_plan import summary_on
    from autoshard.rewrites.lockstep.step import lockstep_of

    summary = summary_on(module)
    if summary is None:
        raise PassOptionError(
            "the module does not say what it is planned for. Give --cluster=v5e:4x4 or the like; if"
            " it is not planned at all, plan it first: autoshard-opt"
            " --autoshard-recursive-programming='cluster=v5e:4x4'.",
            file,
        )
    shape = lockstep_of(module)
    if shape is not None:
        raise PassOptionError(
            f"the module is that of one of {shape.stages} stages in lockstep. Give --cluster, that"
            " of all of them.",
            file,
        )
    return summary.read_cluster()


def _compiler_options(texts: Sequence[str]) -> dict[str, Any]:
    from autoshard.compilers.options import read_compiler_options

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise PassOptionError(
                f"--compiler-option={text} has no name. Write it as"
                " --compiler-option=xla_gpu_autotune_level=0."
            )
        found |= {name: value} if equals else read_compiler_options(name)
    return found


def _print(found: Found) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(found)


def _json(found: Found) -> str:
    return json.dumps(found.to_json(), indent=1)


def _write(path: Path, found: Found) -> None:
    write_file(str(path), f"{_json(found)}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
