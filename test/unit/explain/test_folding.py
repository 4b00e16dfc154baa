"""Names of equal layers are one name with stars, and what differs in more than a number stays."""

from __future__ import annotations

from autoshard.explain.folding import common_name, folded, of_any_layer


def test_numbers_that_stand_alone_are_those_of_layers():
    assert of_any_layer("params['layers'][3]['w']") == "params['layers'][*]['w']"
    assert of_any_layer("transformer_layer_12/mlp") == "transformer_layer_*/mlp"
    assert of_any_layer("blocks.3.attention") == "blocks.*.attention"


def test_numbers_inside_of_words_belong_to_the_word():
    assert of_any_layer("conv2d/w2") == "conv2d/w2"
    assert of_any_layer("params['w1']") == "params['w1']"


def test_a_number_that_all_share_stays():
    assert common_name(["a[0]['b'][1]", "a[2]['b'][1]"]) == "a[*]['b'][1]"
    assert common_name(["a[0]", "a[0]"]) == "a[0]"


def test_what_is_equal_is_folded_in_the_order_of_the_first():
    rows = [("layer_0", "cut"), ("head", "cut"), ("layer_1", "cut"), ("layer_2", "whole")]
    folds = folded(rows, lambda row: row[0], lambda row: row[1])
    assert [(fold.name, fold.count) for fold in folds] == [
        ("layer_*", 2),
        ("head", 1),
        ("layer_2", 1),
    ]
    assert folds[0].members == [rows[0], rows[2]]
