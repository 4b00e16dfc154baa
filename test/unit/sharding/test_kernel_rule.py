"""Rules of kernels: texts, sizes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.errors import StrategyError
from autoshard.sharding.kernel_rule import read_kernel_rule

ATTENTION = [(8, 8, 128, 64), (8, 2, 256, 64), (8, 2, 256, 64), (8, 8, 128, 64)]


@pytest.mark.parametrize(
    "text",
    [
        "b h q d, b k s d, b k s d -> b h q d; h = k * g",
        "b (k g) q d, b k s d, b k s d -> b (k g) q d",
    ],
)
def test_a_dim_of_two_factors(text: str) -> None:
    rule = read_kernel_rule(text, whole=("s", "d"))
    sizes = rule.sizes(ATTENTION[:3])
    assert sizes == {"b": 8, "k": 2, "g": 4, "q": 128, "s": 256, "d": 64}
    assert rule.cuttable == ("b", "k", "g", "q")
    assert rule.shape(0, {**sizes, "k": 1}) == (8, 4, 128, 64)
    assert rule.shape(1, {**sizes, "k": 1}) == (8, 1, 256, 64)


def test_shardys_notation() -> None:
    rule = read_kernel_rule("b (k g) _, k _, *, () -> b (k g)", whole="b")
    assert rule.to_sdy([(4, 6, 5), (2, 7), (3, 3), (), (4, 6)]) == (
        "([i, km, j], [k, l], [n, o], [])->([i, km])"
        " {i=4, j=5, k=2, l=7, m=3, n=3, o=3} need_replication={i, j, l, n, o}"
    )


def test_an_array_in_which_a_dim_is_added() -> None:
    rule = read_kernel_rule("b d, d -> b d", whole="d").with_batch((True, False))
    assert rule.shape(0, {"v0": 3, "b": 4, "d": 5}) == (3, 4, 5)
    assert rule.shape(1, {"v0": 3, "b": 4, "d": 5}) == (5,)
    assert rule.cuttable == ("v0", "b")
    assert rule.with_batch((True, True)).cuttable == ("v1", "v0", "b")


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("b d", {}, 'needs one "->"'),
        ("b d -> b d -> b d", {}, 'needs one "->"'),
        ("b d, -> b d", {}, r"array without dims: write \(\)"),
        ("b 3 -> b", {}, 'has "3" where the name of a factor'),
        ("b d -> b d; d = 2", {}, 'has "d = 2" where an equation'),
        ("b b -> b", {}, "has b twice in one array"),
        ("b s -> b", {}, "has s in operands only: name it in sums="),
        ("b -> b s", {}, "has s in results only"),
        ("b s -> b, b s", {}, "has s in some results only"),
        ("b s -> b s", {"sums": "s"}, "has s, which sums= names, in a result"),
        ("b (k s) -> b k", {"sums": "s"}, "in a dim of two factors"),
        ("b s -> b", {"sums": "s", "whole": "s"}, "cannot have s in sums= and in whole="),
        ("b s -> b s", {"whole": "x"}, "has no factor x, which whole= names"),
    ],
)
def test_texts_that_are_refused(text: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(StrategyError, match=said):
        read_kernel_rule(text, **options)


@pytest.mark.parametrize(
    ("text", "shapes", "said"),
    [
        ("b d -> b d", [(4,)], "has 2 dims for operand 0, whose shape is"),
        ("b d, d -> b d", [(4, 5), (6,)], "dim of size 6 where d=5"),
        ("b (k g), k -> b (k g)", [(4, 6), (4,)], "how a dim of size 6 falls into k \\* g"),
        ("b (k g) -> b (k g)", [(4, 6)], "how a dim of size 6 falls into"),
        ("b -> b", [(4,), (4,), (4,)], "is for 2 arrays, the kernel has 3"),
    ],
)
def test_shapes_that_a_rule_is_not_for(text: str, shapes: list[Any], said: str) -> None:
    rule = read_kernel_rule(text)
    with pytest.raises(StrategyError, match=said):
        rule.sizes(shapes)
