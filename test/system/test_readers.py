"""Damaged files and texts are refused, in words: a small run of ``test/fuzz/readers.py``."""

from __future__ import annotations

import functools
import os
import random
import time
from pathlib import Path

import pytest

from fuzz import readers as fuzzing
from fuzz.mutations import mutated
from fuzz.reader_cases import Reader, readers

EACH = 6
"""Inputs of every reader."""

all_readers = functools.cache(readers)


def test_readers_read_what_is_not_changed() -> None:
    for reader in all_readers():
        assert {fuzzing.outcome(reader, data) for data in reader.inputs} == {"read"}, reader.name


def test_readers_and_commands_give_a_value_or_an_error_of_autoshard(tmp_path: Path) -> None:
    names = [reader.name for reader in all_readers()]
    found = dict(fuzzing.run(names, EACH * len(names), 7, tmp_path))
    assert list(found) == list(range(EACH * len(names)))
    wrong = {n: said for n, said in found.items() if said not in fuzzing.FINE}
    assert {names[n % len(names)]: said for n, said in wrong.items()} == {}
    assert set(found.values()) == set(fuzzing.FINE)


def failing() -> list[Reader]:
    """Readers that read their own number: 0 well, and 1 to 3 as no reader may."""

    def read(data: bytes) -> None:
        if data == b"1":
            raise KeyError("wrong")
        if data == b"2":
            os.abort()
        if data == b"3":
            time.sleep(60)

    return [Reader(f"of {number}", read, (b"%d" % number,)) for number in range(4)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_an_end_of_the_process_and_a_hang_are_findings_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzing, "START", "fork")
    monkeypatch.setattr(fuzzing, "readers", failing)
    monkeypatch.setattr(fuzzing, "mutated", lambda data, chance: data)
    names = [reader.name for reader in failing()]
    found = dict(fuzzing.run(names, 6, 5, tmp_path, limit=2.0))
    assert found == {
        0: "read",
        1: "KeyError: 'wrong'",
        2: "ended the process (-6)",
        3: "hangs",
        4: "read",
        5: "KeyError: 'wrong'",
    }
    assert (tmp_path / "of_2-5-2").read_bytes() == b"2"
    assert (tmp_path / "of_3-5-3").read_bytes() == b"3"


def test_mutations_are_the_same_in_every_run_and_change_something() -> None:
    data = b"axis tp=4 of [16] devices"
    found = [mutated(data, random.Random(number)) for number in range(50)]
    assert found == [mutated(data, random.Random(number)) for number in range(50)]
    assert sum(one != data for one in found) > 40
