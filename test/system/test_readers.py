"""Damaged files and texts are refused, in words: a small run of ``test/fuzz/readers.py``."""

from __future__ import annotations

import random

from fuzz.readers import input_of, mutated, outcome, readers


def test_readers_give_a_value_or_an_error_of_autoshard() -> None:
    all_readers = readers()
    for reader in all_readers:
        assert {outcome(reader, data) for data in reader.inputs} == {"read"}, reader.name
    for number in range(20 * len(all_readers)):
        reader = all_readers[number % len(all_readers)]
        data = input_of(reader, 0, number)
        assert outcome(reader, data) in ("read", "refused"), (reader.name, number)


def test_mutations_are_the_same_in_every_run_and_change_something() -> None:
    data = b"axis tp=4 of 16 devices"
    found = [mutated(data, random.Random(number)) for number in range(50)]
    assert found == [mutated(data, random.Random(number)) for number in range(50)]
    assert sum(one != data for one in found) > 40
