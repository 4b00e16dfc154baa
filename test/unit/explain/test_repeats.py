"""What follows itself several times is found, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.explain.repeats import Stretch, repeated


def found(text: str, least: float = 0.0) -> list[Stretch]:
    return repeated([ord(letter) for letter in text], [1.0] * len(text), least)


@pytest.mark.parametrize(
    ("text", "stretches"),
    [
        ("", []),
        ("a", []),
        ("abcd", []),
        ("xabababy", [Stretch(1, 2, 3)]),
        ("aaaa", [Stretch(0, 1, 4)]),
        ("abcabcabcdeffeffeff", [Stretch(0, 3, 3), Stretch(10, 3, 3)]),
    ],
)
def test_stretches_of_words(text, stretches):
    assert found(text) == stretches


def test_what_is_there_twice_is_left_as_it_is():
    assert found("abcabc") == []


def test_a_round_is_as_short_as_it_can_be():
    assert found("ab" * 12) == [Stretch(0, 2, 12)]


def test_a_layer_that_has_something_twice_is_one_round():
    assert found("znanabnanabnanaby") == [Stretch(1, 5, 3)]


def test_what_weighs_little_is_left_as_it_is():
    assert found("aaabcdbcdbcd", least=4) == [Stretch(3, 3, 3)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40))
def test_rounds_are_equal_and_stretches_do_not_overlap(keys):
    end = 0
    for one in repeated(keys, [1.0] * len(keys), 0.0):
        assert one.first >= end
        end = one.end
        rounds = {
            tuple(keys[first : first + one.length])
            for first in range(one.first, one.end, one.length)
        }
        assert len(rounds) == 1
        assert one.times >= 3


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=6),
    st.lists(st.integers(10, 19), min_size=1, max_size=8, unique=True),
    st.integers(3, 12),
    st.lists(st.integers(0, 9), max_size=6),
)
def test_layers_between_other_ops_are_found(before, layer, times, behind):
    keys = [*before, *layer * times, *behind]
    assert Stretch(len(before), len(layer), times) in repeated(keys, [1.0] * len(keys), 0.0)
