from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.errors import ParseError, ShardingError, StrategyError
from autoshard.frontend.layout import Layout
from autoshard.sharding import (
    Cuts,
    Sharding,
    check_device_count,
    format_sharding,
    parse_mark,
    to_v2,
)

CUBE = Layout((2, 2, 2), ("dp", "sp", "mp"))


def test_the_seed_documents_example() -> None:
    sharding = CUBE("mp", ("sp", "dp"))
    assert format_sharding(sharding, with_mesh=True) == "mesh[dp=2,sp=2,mp=2] [{mp}, {sp, dp}]"
    assert sharding.tile == (2, 4)
    assert to_v2(sharding) == "{devices=[2,4]<=[2,2,2]T(2,1,0)}"


def tensor_map(sharding: Sharding) -> tuple[int | tuple[int, ...], ...]:
    """MindSpore's notation: axes counted from the right, -1 for a dim that is not cut."""
    last = len(sharding.mesh.axes) - 1
    places = [[last - sharding.mesh.axis_index(r.name) for r in refs] for refs in sharding.dims]
    return tuple(-1 if not p else p[0] if len(p) == 1 else tuple(p) for p in places)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (("dp", "mp"), (2, 0)),
        (("None", "None"), (-1, -1)),
        ((("dp", "sp"), "mp"), ((2, 1), 0)),
        ((("dp", "None"), None), (2, -1)),
        ((), ()),
    ],
)
def test_tensor_map_counts_axes_from_the_right(axes: tuple[Any, ...], expected: object) -> None:
    assert tensor_map(CUBE(*axes)) == expected


def test_slices_of_the_advanced_matmul_example() -> None:
    """1024x1024 weight on (dp, sp, mp, vp), all 2: rows by sp and mp, columns by vp."""
    layout = Layout((2, 2, 2, 2), ("dp", "sp", "mp", "vp"))
    assert layout(("sp", "mp"), "vp").local_shape((1024, 1024)) == (256, 512)
    assert CUBE("sp", "mp").local_shape((1024, 1024)) == (512, 512)


def test_numbers_of_numpy_are_numbers() -> None:
    matrix, ranks = tuple(np.array([2, 2])), tuple(np.array([0, 2, 1, 3]))
    layout = Layout(matrix, ("dp", "tp"), ranks)
    assert repr(layout) == repr(Layout((2, 2), ("dp", "tp"), (0, 2, 1, 3)))


def test_one_alias_may_be_used_for_many_values() -> None:
    assert CUBE("dp", "sp").mesh == CUBE("sp", "mp").mesh


def test_rank_list_orders_the_devices() -> None:
    layout = Layout((2, 2), ("dp", "tp"), rank_list=[0, 2, 1, 3])  # pyright: ignore[reportArgumentType]
    sharding = layout("dp", "tp")
    assert format_sharding(sharding, with_mesh=True) == "mesh[dp=2,tp=2; 0,2,1,3] [{dp}, {tp}]"
    assert sharding.device_slices((2, 2))[2] == (slice(0, 1), slice(1, 2))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (("xp",), r"The axis 'xp' is not found in \('dp', 'sp', 'mp'\)"),
        (("dp", "dp"), r"The axis 'dp' has been set more than once in \('dp', 'dp'\)"),
        ((("sp", "mp"), "mp"), "The axis 'mp' has been set more than once"),
        ((3,), "The entry 3 holds 3; an entry is an alias, a tuple of aliases, or 'None'"),
    ],
)
def test_wrong_axes_are_errors_with_the_users_line(axes: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ShardingError, match=message) as caught:
        CUBE(*axes)
    assert caught.value.location is not None
    assert Path(caught.value.location.rsplit(":", 1)[0]).name == "test_layout.py"


@pytest.mark.parametrize(
    ("matrix", "names", "ranks", "message"),
    [
        (8, ("dp",), None, "device_matrix must be a tuple, but is 8"),
        ((2,), "dp", None, "alias_name must be a tuple, but is 'dp'"),
        ((2, 4), ("dp",), None, r"length of device_matrix \(2, 4\) \(2\) must be equal"),
        ((2, 0), ("dp", "tp"), None, "holds 0; the size of a device axis"),
        ((2, 2.0), ("dp", "tp"), None, r"holds 2\.0; the size of a device axis"),
        ((2, 4), ("dp", "dp"), None, "Each element of alias_name .* should be different"),
        ((2, 4), ("dp", ""), None, "an alias is a string that is not empty"),
        ((2, 4), ("dp", 4), None, "holds 4; an alias is a string"),
        ((2, 4), ("dp", "None"), None, "can not set 'None', because 'None' means no sharding"),
        ((2, 2), ("dp", "interleaved_parallel"), None, "micro-slices on one device"),
        ((2, 2), ("dp", "tp"), (0, 1), r"length of rank_list \(2\) must be equal to the product"),
        ((2, 2), ("dp", "tp"), (0, 1, 2, 2), r"each of the devices 0\.\.3 exactly once"),
        ((2, 2), ("dp", "tp"), 4, "rank_list must be a tuple"),
    ],
)
def test_a_wrong_layout_is_an_error_with_the_users_line(
    matrix: Any, names: Any, ranks: Any, message: str
) -> None:
    with pytest.raises(ShardingError, match=message) as caught:
        Layout(matrix, names, ranks)
    assert caught.value.location is not None
    assert Path(caught.value.location.rsplit(":", 1)[0]).name == "test_layout.py"


# --- tuple strategies ---


@pytest.mark.parametrize("count", [0, -2])
def test_a_number_of_pieces_is_positive(count: int) -> None:
    message = rf"strategy \(4, {count}\): dim 1 is cut into {count} .* must be larger than 0"
    with pytest.raises(StrategyError, match=message):
        Cuts((4, count))


@pytest.mark.parametrize(
    ("shape", "devices", "message"),
    [
        ((8, 8, 8), 8, r"mm: strategy \(4, 1\) has 2 numbers, .* \(8, 8, 8\) has 3 dims"),
        ((6, 8), 8, r"mm: dim 0 \(size 6\) cannot be cut into 4 .*: 6 % 4 = 2"),
        ((8, 8), 2, r"mm: strategy \(4, 1\) needs 4 devices, but there are 2"),
        ((8, 8), 6, r"does not divide the 6 devices there are: 6 % 4 = 2"),
    ],
)
def test_cuts_that_do_not_fit_are_an_error(
    shape: tuple[int, ...], devices: int, message: str
) -> None:
    cuts = Cuts((4, 1))
    cuts.check((8, 8), 8, "mm", None)
    cuts.check((8, 8), None, "mm", None)
    with pytest.raises(StrategyError, match=message) as caught:
        cuts.check(shape, devices, "mm", "model.py:42")
    assert caught.value.location == "model.py:42"


def test_fewer_devices_than_there_are_repeat_the_work() -> None:
    check_device_count(4, 8, "matmul")


@pytest.mark.parametrize("text", ["(4, 1)", "(4, ?, 1)", "()", "(4)"])
def test_cuts_are_read_as_they_are_printed(text: str) -> None:
    assert str(Cuts.parse(text)) == text


def test_vmap_inserts_an_open_dim_into_cuts() -> None:
    assert str(Cuts((4, 1)).with_dim_inserted(0)) == "(?, 4, 1)"
    Cuts((None, 4, 1)).check((3, 8, 8), 8, "x", None)


def test_marks_are_cuts_or_layouts() -> None:
    assert parse_mark("(4, ?, 1)") == Cuts((4, None, 1))
    assert parse_mark("mesh[dp=2,sp=2,mp=2] [{mp}, {sp, dp}]") == CUBE("mp", ("sp", "dp"))
    assert parse_mark("mesh[dp=2] [{?}, {dp}]") == Sharding.parse("mesh[dp=2] [{?}, {dp}]")
    with pytest.raises(ParseError, match=r"expected ',' or '\)' at column 4"):
        parse_mark("(4 1)")
