"""Every reader of a file or a text, and commands that read one, given inputs that are nearly right.

    python test/fuzz/readers.py --inputs 20000 --seed 0 --keep findings
    python test/fuzz/readers.py --again findings/MLIR-0-2801

An input is one that a reader reads with a few bytes changed; its number and the seed tell which. A
reader gives a value or an AutoshardError, and a command leaves its output whole or as it was.
Everything else is a finding: another exception, the end of the process, 30 seconds without an
answer. Readers run in a process of their own, which is started again behind such an input. Findings
are printed and kept as files, each of which can be read again alone.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.mutations import mutated
from fuzz.reader_cases import Reader, readers

FINE = ("read", "refused")
LIMIT_SECONDS = 30.0
START = "spawn"
"""How processes begin: without what this one has loaded."""
_START_SECONDS = 300.0
"""A process makes a plan before it reads its first input."""


def _with_devices() -> None:
    """Before JAX is loaded: the plan whose files are inputs is one for eight devices."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")


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
    except SystemExit as error:
        return f"SystemExit: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def _work(first: int, last: int, seed: int, file: Path, found: Any) -> None:
    """In a process of its own: read inputs, and send what came out, each before the next.

    ``file`` has the input that is read.
    """
    _with_devices()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    all_readers = readers()
    found.send((first, "ready"))
    for number in range(first, last):
        reader = all_readers[number % len(all_readers)]
        data = input_of(reader, seed, number)
        file.write_bytes(data)
        said = outcome(reader, data)
        if said not in FINE:
            _keep(file, reader.name, seed, number)
        found.send((number, said))


def _keep(file: Path, name: str, seed: int, number: int) -> Path:
    """Keep an input under the name of its reader, the seed and its number."""
    kept = file.with_name(f"{name.replace(' ', '_')}-{seed}-{number}")
    kept.write_bytes(file.read_bytes())
    return kept


def run(
    names: Sequence[str], inputs: int, seed: int, folder: Path, limit: float = LIMIT_SECONDS
) -> Iterator[tuple[int, str]]:
    """Number and outcome of each input.

    Args:
        names: Of all readers, which take turns.
        inputs: How many, from number 0.
        seed: Of the changes.
        folder: Where findings are kept.
        limit: Seconds that an input may take.
    """
    context = multiprocessing.get_context(START)
    file = folder / "input"
    first = 0
    while first < inputs:
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(first, inputs, seed, file, sender))
        worker.start()
        sender.close()
        waiting, is_ready = first, False
        with contextlib.suppress(EOFError):
            while waiting < inputs and receiver.poll(limit if is_ready else _START_SECONDS):
                number, said = receiver.recv()
                if is_ready:
                    waiting = number + 1
                    yield number, said
                is_ready = True
        if waiting < inputs:
            said = _how_it_ended(worker)
            if not is_ready:
                raise RuntimeError(f"readers: the process did not get ready: it {said}")
            _keep(file, names[waiting % len(names)], seed, waiting)
            yield waiting, said
        worker.kill()
        worker.join()
        first = waiting + 1


def _how_it_ended(worker: Any) -> str:
    worker.join(timeout=1)
    if worker.exitcode is not None:
        return f"ended the process ({worker.exitcode})"
    os.kill(worker.pid, signal.SIGUSR1)  # it prints where it is
    time.sleep(1)
    return "hangs"


def main() -> int:
    """Run, print findings and counts; 1 if there are findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds an input")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of findings; else a new one")
    parser.add_argument("--again", type=Path, metavar="FILE", help="read a finding again, here")
    asked = parser.parse_args()
    _with_devices()
    all_readers = readers()
    if asked.again is not None:
        name = asked.again.name.rsplit("-", 2)[0].replace("_", " ")
        reader = next(reader for reader in all_readers if reader.name == name)
        print(reader.read(asked.again.read_bytes()))
        return 0
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="findings-"))
    folder.mkdir(parents=True, exist_ok=True)
    names = [reader.name for reader in all_readers]
    counts: Counter[tuple[str, str]] = Counter()
    start = time.monotonic()
    for number, said in run(names, asked.inputs, asked.seed, folder, asked.limit):
        name = names[number % len(names)]
        counts[name, said if said in FINE else "FINDING"] += 1
        if said not in FINE:
            print(f"{name}, input {number}: {said[:300]}", flush=True)
    print(f"{'reader':<18} {'read':>7} {'refused':>8} {'findings':>9}")
    for name in names:
        row = [counts[name, kind] for kind in (*FINE, "FINDING")]
        print(f"{name:<18} {row[0]:>7} {row[1]:>8} {row[2]:>9}")
    found = sum(count for (_, kind), count in counts.items() if kind == "FINDING")
    print(f"{sum(counts.values())} inputs in {time.monotonic() - start:.0f} s, seed {asked.seed}")
    if found:
        print(f"{found} findings, kept in {folder}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
