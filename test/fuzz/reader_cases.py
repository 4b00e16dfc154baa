"""Every reader of a file or a text, with inputs that it reads."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError

_BEFORE = b"what was there before"


@dataclass(frozen=True)
class Reader:
    """What is read, and how."""

    name: str
    read: Callable[[bytes], Any]
    inputs: tuple[bytes, ...]


class Refused(AutoshardError):
    """What a command printed before it ended with an error."""


def readers() -> list[Reader]:
    """All readers, each with inputs that it reads. Makes a plan, whose files are inputs."""
    return [*_of_modules_and_plans(), *_of_machines(), *_of_shardings(), *_of_problems()]


def _of_modules_and_plans() -> list[Reader]:
    import jax

    import autoshard
    from autoshard.cli import main as main_command
    from autoshard.cli import opt
    from autoshard.cli.record_file import read_record
    from autoshard.explain.record import Record
    from autoshard.frontend.plan_file import text_of_plan
    from autoshard.ir import new_context, parse_bytes, parse_given, print_module
    from autoshard.passes.pipeline import run_passes
    from autoshard.planned.summary import PlanSummary
    from autoshard.sharding import Mesh
    from autoshard.verify.hlo_collectives import hlo_collectives

    def step(w: Any, x: Any) -> Any:
        def body(h: Any, _: Any) -> Any:
            return jax.numpy.tanh(h @ w), None

        return jax.lax.scan(body, x, None, 3)[0]

    types = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((32, 64), "float32")
    plan = _without_seconds(autoshard.plan(step, *types, cluster="cpu:8"))
    module = plan.exported("autoshard-export-shardy")
    compiled = jax.jit(step, in_shardings=plan.in_shardings).lower(*types).compile().as_text() or ""
    assert plan.summary is not None
    text, bytecode = print_module(module), print_module(module, "bytecode")
    saved, record = text_of_plan(plan).encode(), plan.record.to_json().encode()

    def run_opt(data: bytes) -> Any:
        """As ``autoshard-opt`` does: read, then import what could be read."""
        found = parse_given(data, new_context(), "input")
        return run_passes(found, ["autoshard-import-strategies"])

    def is_module(data: bytes) -> Any:
        return parse_bytes(data, new_context(), "output")

    def is_record(data: bytes) -> Any:
        return Record.from_json(data.decode(), "output")

    mesh = Mesh.parse("dp=2,tp=4")
    explain = ["explain", "IN", "--format", "json", "-o", "OUT"]
    return [
        Reader("MLIR", run_opt, (text, plan.to_mlir().encode())),
        Reader("MLIR bytecode", run_opt, (bytecode, plan.bytecode)),
        Reader("plan", _of_file(autoshard.Plan.load, ".json"), (saved,)),
        Reader("record", _of_file(lambda path: read_record(str(path)), ".json"), (record, saved)),
        Reader("summary", _of_text(PlanSummary.from_json), (plan.summary.to_json().encode(),)),
        Reader("HLO", _of_text(lambda found: hlo_collectives(found, mesh)), (compiled.encode(),)),
        _command("autoshard-opt", opt.main, ["IN", "-o", "OUT"], is_module, (text, bytecode)),
        _command("autoshard explain", main_command.main, explain, is_record, (record, saved)),
    ]


def _without_seconds(plan: Any) -> Any:
    """The plan, equal in every process: how long it took is not."""
    from autoshard.ir import mlir, new_context, parse_bytes, print_module
    from autoshard.ir.attributes import PLAN

    summary = replace(plan.summary, planning_seconds={})
    module = parse_bytes(plan.bytecode, new_context())
    with module.context:
        module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
    return replace(plan, summary=summary, bytecode=print_module(module, "bytecode"))


def _of_machines() -> list[Reader]:
    import autoshard
    from autoshard.cluster.toml_file import read_toml, write_toml
    from autoshard.sharding import Mesh

    clusters = tuple(
        write_toml(autoshard.Cluster.of(name)).encode() for name in ("v5e:4x4", "h100:8")
    )
    return [
        Reader("cluster", _of_file(read_toml, ".toml"), (*clusters, _UNLIKE)),
        Reader("cluster name", _of_text(autoshard.Cluster.parse), (b"v5p:4x4x4*2", b"h100:4x8")),
        Reader("mesh", _of_text(Mesh.parse), (b"dp=2,tp=4", b"a=2,b=2 device_ids=3,2,1,0")),
    ]


_UNLIKE = b"""base = "h100:4x8"
order = ["gpu=4", "node=4", "gpu=2"]
[[slower]]
dim = "node"
numbers = [0, 3]
compute = 0.8
bandwidth = { node = 0.5, gpu = 1 }
"""
"""A cluster with an order of its own, and nodes of unlike speed."""


def _of_shardings() -> list[Reader]:
    from autoshard.sharding import Mesh, from_hlo, parse_sharding
    from autoshard.sharding.sdy_text import from_sdy, mesh_from_sdy
    from autoshard.sharding.strategy import parse_mark

    mesh = Mesh.parse("dp=2,tp=4")
    return [
        Reader("sharding", _of_text(lambda text: parse_sharding(text, mesh)), _SHARDINGS),
        Reader("mark", _of_text(parse_mark), (b"mesh[dp=2,tp=4] [{dp}, {tp, ?}]", b"(4, 1, ?)")),
        Reader("sdy", _of_text(lambda text: from_sdy(text, mesh)), _SDY),
        Reader("sdy mesh", _of_text(mesh_from_sdy), (b'#sdy.mesh<["dp"=2, "tp"=4]>',)),
        Reader("HLO sharding", _of_text(lambda text: from_hlo(text, mesh, 2)), _HLO_SHARDINGS),
    ]


def _of_problems() -> list[Reader]:
    from autoshard.cli import solve
    from autoshard.solver.iopddl import read_iopddl

    words = ["IN", "--seconds", "2", "--threads", "1", "--output", "OUT"]
    return [
        Reader("problem", _of_file(read_iopddl, ".json"), (_PROBLEM,)),
        _command("autoshard-solve", solve.main, words, json.loads, (_PROBLEM,)),
    ]


def _of_text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _of_file(read: Callable[[Path], Any], suffix: str) -> Callable[[bytes], Any]:
    def from_file(data: bytes) -> Any:
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(data)
            file.flush()
            return read(Path(file.name))

    return from_file


def _command(
    name: str,
    main: Callable[[Sequence[str]], int],
    words: Sequence[str],
    is_whole: Callable[[bytes], Any],
    inputs: tuple[bytes, ...],
) -> Reader:
    """A command that reads ``IN`` and writes ``OUT``, which was there before.

    Args:
        name: Of the reader.
        main: The command, in this process.
        words: What it is given.
        is_whole: Reads what it wrote, and raises where that is not whole.
        inputs: Files that it reads.
    """

    def run(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            given, written = Path(folder, "given"), Path(folder, "written")
            given.write_bytes(data)
            written.write_bytes(_BEFORE)
            said = io.StringIO()
            paths = {"IN": str(given), "OUT": str(written)}
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                code = main([paths.get(word, word) for word in words])
            for wrong in ("Traceback", "internal error"):
                assert wrong not in said.getvalue(), said.getvalue()
            left = sorted(path.name for path in Path(folder).iterdir())
            assert left == ["given", "written"], f"left behind: {left}"
            after = written.read_bytes()
            if after != _BEFORE:
                is_whole(after)
            if code != 0:
                assert after == _BEFORE, "an error, and what was there before is gone"
                raise Refused(said.getvalue())
            assert after != _BEFORE, "no error, and nothing was written"

    return Reader(name, run, inputs)


_SHARDINGS = (b"[{dp}, {tp, ?}]", b"[{dp, tp:(1)2}p1, {}]", b"[{}, {?}]")
_SDY = (
    b'#sdy.sharding<@mesh, [{"dp"}, {"tp", ?}], replicated={}>',
    b'#sdy.sharding<@mesh, [{"tp":(1)2}p0, {}]>',
)
_HLO_SHARDINGS = (
    b"{devices=[2,4]<=[8]}",
    b"{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
    b"{replicated}",
    b"{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dims={manual}}",
)
_PROBLEM = (
    b'{"problem": {"name": "x", "nodes": {"intervals": [[0, 2], [0, 2]], "costs": [[1, 2], [3, 4]],'
    b' "usages": [[1, 1], [2, 2]]}, "edges": {"nodes": [[0, 1]], "costs": [[1, 2, 3, 4]]},'
    b' "usage_limit": 10}}'
)
