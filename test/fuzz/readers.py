"""Every reader of a file or a text, given inputs that are nearly right.

    python test/fuzz/readers.py --inputs 20000 --seed 0

An input is one of a reader's own with a few bytes changed. A reader gives a value or an
AutoshardError; another exception, the end of the process, and 30 seconds without an answer are
findings, which are printed with the reader's name, the number of the input and its text.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 30.0

_PIECE = re.compile(rb"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]")
_NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"7",
    b"4294967296",
    b"99999999999999999999",
    b"1e999",
    b"nan",
    b"0.5",
)


@dataclass(frozen=True)
class Reader:
    """What is read, and how."""

    name: str
    read: Callable[[bytes], Any]
    inputs: tuple[bytes, ...]


def readers() -> list[Reader]:
    """All readers, each with inputs that it reads. Makes a plan, whose files are inputs."""
    import jax

    import autoshard
    from autoshard.cluster.toml_file import parse_toml, write_toml
    from autoshard.frontend.plan_file import plan_of_text, text_of_plan
    from autoshard.ir import new_context, parse_bytes, print_module
    from autoshard.planned.summary import PlanSummary
    from autoshard.sharding import Mesh, from_hlo, parse_sharding
    from autoshard.sharding.sdy_text import from_sdy, mesh_from_sdy
    from autoshard.sharding.strategy import parse_mark
    from autoshard.solver.iopddl import read_iopddl
    from autoshard.verify.hlo_collectives import hlo_collectives

    mesh = Mesh.parse("dp=2,tp=4")

    def step(w: Any, x: Any) -> Any:
        def body(h: Any, _: Any) -> Any:
            return jax.numpy.tanh(h @ w), None

        return jax.lax.scan(body, x, None, 3)[0]

    types = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((32, 64), "float32")
    plan = autoshard.plan(step, *types, cluster="cpu:8")
    module = plan.exported("autoshard-export-shardy")
    compiled = jax.jit(step, in_shardings=plan.in_shardings).lower(*types).compile().as_text() or ""
    assert plan.summary is not None
    plan_text = text_of_plan(plan).encode()

    def run_opt(data: bytes) -> Any:
        """As ``autoshard-opt`` does: read, then import and plan what could be read."""
        from autoshard.passes.pipeline import run_passes

        found = parse_bytes(data, new_context(), "input")
        return run_passes(found, ["autoshard-import-strategies"])

    def of_text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
        return lambda data: read(data.decode("utf-8", "replace"))

    def of_file(read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
        def from_file(data: bytes) -> Any:
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                file.write(data)
                file.flush()
                return read(Path(file.name))

        return from_file

    return [
        Reader("MLIR", run_opt, (print_module(module), plan.to_mlir().encode())),
        Reader(
            "MLIR bytecode",
            lambda data: parse_bytes(data, new_context(), "input"),
            (print_module(module, "bytecode"), plan.bytecode),
        ),
        Reader("plan", of_text(plan_of_text), (plan_text,)),
        Reader("summary", of_text(PlanSummary.from_json), (plan.summary.to_json().encode(),)),
        Reader(
            "cluster",
            of_text(lambda text: parse_toml(text, "c.toml")),
            (write_toml(autoshard.Cluster.of("v5e:4x4")).encode(),),
        ),
        Reader("cluster name", of_text(autoshard.Cluster.parse), (b"v5p:4x4x4*2", b"h100:4x8")),
        Reader("mesh", of_text(Mesh.parse), (b"dp=2,tp=4", b"a=2,b=2 device_ids=3,2,1,0")),
        Reader("sharding", of_text(lambda text: parse_sharding(text, mesh)), _SHARDINGS),
        Reader("mark", of_text(parse_mark), (b"mesh[dp=2,tp=4] [{dp}, {tp, ?}]", b"(4, 1, ?)")),
        Reader("sdy", of_text(lambda text: from_sdy(text, mesh)), _SDY),
        Reader("sdy mesh", of_text(mesh_from_sdy), (b'#sdy.mesh<["dp"=2, "tp"=4]>',)),
        Reader("HLO sharding", of_text(lambda text: from_hlo(text, mesh, 2)), _HLO_SHARDINGS),
        Reader("HLO", of_text(lambda text: hlo_collectives(text, mesh)), (compiled.encode(),)),
        Reader("problem", of_file(read_iopddl), (_PROBLEM,)),
    ]


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


def mutated(data: bytes, chance: random.Random) -> bytes:
    """``data`` with one to three changes: of bytes, words, numbers, or whole parts."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        if not found:
            return bytes(found)
        at = chance.randrange(len(found))
        end = min(len(found), at + chance.choice((1, 2, 8, 64, 1024)))
        kind = chance.randrange(6)
        if kind == 0:
            found[at] = chance.randrange(256)
        elif kind == 1:
            del found[at:end]
        elif kind == 2:
            found[at:at] = found[at:end] * chance.choice((1, 1, 3))
        elif kind == 3:
            del found[at:]
        else:
            pieces = list(_PIECE.finditer(bytes(found), at, min(len(found), at + 400)))
            if not pieces:
                continue
            piece = chance.choice(pieces)
            other = chance.choice(pieces).group()
            new = chance.choice(_NUMBERS) if piece.group().isdigit() else other
            found[piece.start() : piece.end()] = new
    return bytes(found)


def input_of(reader: Reader, seed: int, number: int) -> bytes:
    """The input of a number, the same in every run."""
    chance = random.Random(f"{seed} {number}")
    return mutated(chance.choice(reader.inputs), chance)


def outcome(reader: Reader, data: bytes) -> str:
    """``read``, ``refused``, or what else came out."""
    from autoshard.errors import AutoshardError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(data)
    except AutoshardError as error:
        return "refused" if str(error).strip() else "an error without a message"
    except RecursionError:
        return "RecursionError"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def _work(first: int, last: int, seed: int, at: Any, found: Any) -> None:
    """In a process of its own: read inputs, note which, and send findings."""
    all_readers = readers()
    at.value = first
    for number in range(first, last):
        at.value = number
        reader = all_readers[number % len(all_readers)]
        found.send((number, outcome(reader, input_of(reader, seed, number))))
    at.value = last


def run(inputs: int, seed: int, limit: float = LIMIT_SECONDS) -> Iterator[tuple[int, str]]:
    """Number and outcome of each input; a process that ends or hangs is started anew behind it."""
    context = multiprocessing.get_context("spawn")
    first = 0
    while first < inputs:
        receiver, sender = context.Pipe(duplex=False)
        at = context.Value("q", -1)
        worker = context.Process(target=_work, args=(first, inputs, seed, at, sender))
        worker.start()
        sender.close()
        done = first
        with contextlib.suppress(EOFError):
            # The first answer waits for the process to start and to make its plan.
            while done < inputs and receiver.poll(limit if done > first else 10 * limit):
                number, said = receiver.recv()
                done = number + 1
                yield number, said
        if done < inputs:
            worker.join(timeout=1)
            ended = worker.exitcode is not None
            yield done, f"ended the process ({worker.exitcode})" if ended else "hangs"
            done += 1
        worker.kill()
        worker.join()
        first = done


def main() -> int:
    """Run, print findings and counts; 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds an input")
    asked = parser.parse_args()
    all_readers = readers()
    counts: Counter[tuple[str, str]] = Counter()
    for number, said in run(asked.inputs, asked.seed, asked.limit):
        reader = all_readers[number % len(all_readers)]
        kind = said if said in ("read", "refused") else "FINDING"
        counts[reader.name, kind] += 1
        if kind == "FINDING":
            data = input_of(reader, asked.seed, number)
            print(f"{reader.name}, input {number}: {said[:300]}\n    {data[:300]!r}", flush=True)
    print(f"{'reader':<15} {'read':>7} {'refused':>8} {'findings':>9}")
    for reader in all_readers:
        row = [counts[reader.name, kind] for kind in ("read", "refused", "FINDING")]
        print(f"{reader.name:<15} {row[0]:>7} {row[1]:>8} {row[2]:>9}")
    return int(any(kind == "FINDING" for _, kind in counts))


if __name__ == "__main__":
    sys.exit(main())
