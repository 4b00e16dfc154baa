"""Sizes that hang together, and the smaller ones that are chosen for them."""

from autoshard.verify.check.sizes import Least, Size, Sizes, number


def _chosen(sizes: Sizes, *wanted: Size) -> list[int]:
    atoms = sizes.chosen(wanted, Least())
    return [sizes.resolved(size).value(atoms) for size in wanted]


def test_equal_sizes_become_one():
    sizes = Sizes()
    batch, rows = sizes.fresh(4096), sizes.fresh(4096)
    sizes.make_equal(batch, rows)
    sizes.keep_cut(rows, 16)
    small = _chosen(sizes, batch, rows)
    assert small == [32, 32]  # two elements on each of 16 devices


def test_a_dim_that_a_reshape_splits_is_the_product_of_its_parts():
    sizes = Sizes()
    features = sizes.fresh(4096)
    heads, head = sizes.parts(features, [32, 128])
    sizes.keep_cut(heads, 8)
    whole, *parts = _chosen(sizes, features, heads, head)
    assert parts == [16, 4]
    assert whole == 64


def test_two_ways_to_split_a_dim_agree():
    sizes = Sizes()
    features = sizes.fresh(4096)
    coarse = sizes.parts(features, [32, 128])
    fine = sizes.parts(features, [128, 32])
    whole, a, b, c, d = _chosen(sizes, features, *coarse, *fine)
    assert whole == a * b == c * d < 4096


def test_a_border_stays_a_border():
    sizes = Sizes()
    tokens, targets = sizes.fresh(2048), sizes.fresh(2047)
    sizes.make_equal(targets, tokens + -1)
    small = _chosen(sizes, tokens, targets)
    assert small[0] == small[1] + 1 < 2048


def test_a_size_that_is_a_multiple_is_divided():
    sizes = Sizes()
    once = sizes.fresh(4096)
    both = once + once
    left, right = sizes.parts(both, [4096, 2])
    small = _chosen(sizes, once, left, right)
    assert small[1] * small[2] == 2 * small[0] < 8192


def test_an_uneven_cut_stays_uneven():
    sizes = Sizes()
    words = sizes.fresh(50257)
    sizes.keep_cut(words, 8)
    (small,) = _chosen(sizes, words)
    assert small == 17
    assert small % 8 == 50257 % 8


def test_a_part_stays_smaller_than_the_whole():
    sizes = Sizes()
    table, row = sizes.fresh(1000), sizes.fresh(64)
    sizes.keep_cut(row, 8)
    sizes.keep_above(table, row)
    small = _chosen(sizes, table, row)
    assert small == [17, 16]


def test_what_does_not_work_out_stays():
    sizes = Sizes()
    left, right = sizes.fresh(6), sizes.fresh(35)
    other = sizes.fresh(10) * sizes.fresh(21)
    sizes.make_equal(left * right, other)
    small = _chosen(sizes, left, right, other)
    assert small[0] * small[1] == small[2]


def test_sizes_of_one_and_none_mean_something():
    sizes = Sizes()
    assert sizes.fresh(1) == number(1)
    assert sizes.fresh(0) == number(0)
