"""What is stacked takes the fewest bytes of all choices that give what is needed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from autoshard.rewrites.checkpoints.cut import Node, cheapest_cut

Nodes = Mapping[int, Node]


def is_had(nodes: Nodes, name: int, stacked: set[int]) -> bool:
    if name in stacked:
        return True
    made_of = nodes[name].made_of
    return made_of is not None and all(is_had(nodes, one, stacked) for one in made_of)


def fewest_bytes(nodes: Nodes, needed: list[int]) -> float:
    choices = (
        set(chosen)
        for count in range(len(nodes) + 1)
        for chosen in itertools.combinations(nodes, count)
    )
    return min(
        sum(nodes[one].bytes for one in chosen)
        for chosen in choices
        if all(is_had(nodes, one, chosen) for one in needed)
    )


def test_random_programs_are_cut_as_by_exhaustive_search() -> None:
    draw = random.Random(0)
    for _ in range(60):
        nodes: dict[int, Node] = {}
        for name in range(8):
            made_of = tuple(draw.sample(range(name), min(name, draw.randint(1, 2))))
            is_cheap = made_of and draw.random() < 0.6
            nodes[name] = Node(float(draw.randint(1, 9)), made_of if is_cheap else None)
        needed = draw.sample(range(8), 3)
        chosen = cheapest_cut(nodes, needed)
        assert all(is_had(nodes, one, chosen) for one in needed)
        assert sum(nodes[one].bytes for one in chosen) == fewest_bytes(nodes, needed)


def test_of_equal_choices_the_one_that_computes_least_is_taken() -> None:
    nodes = {"x": Node(4, None), "y": Node(4, ("x",))}
    assert cheapest_cut(nodes, ["y"]) == {"y"}


def test_what_is_free_is_not_stacked() -> None:
    assert cheapest_cut({"x": Node(4, ())}, ["x"]) == set()
