"""Windows of an operand that is cut: what each device reads is what the op would have read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoshard.sharding.window import Window, window_of


def positions(window: Window, device: int) -> list[int | None]:
    """The element at each position that the op reads on a device; None for padding."""
    found: list[int | None] = []
    for place in range(window.offsets[device], window.offsets[device] + window.extent):
        number, between = divmod(place, window.dilation)
        element = window.starts[device] + number
        is_element = between == 0 and 0 <= number < window.length and 0 <= element < window.size
        found.append(element if is_element else None)
    return found


def expected(size: int, dilation: int, first: int, extent: int) -> list[int | None]:
    """The same, from the whole operand with its dilation."""
    return [
        place // dilation if place % dilation == 0 and 0 <= place < size * dilation else None
        for place in range(first, first + extent)
    ]


@given(
    size=st.integers(1, 24),
    count=st.integers(1, 5),
    step=st.integers(1, 9),
    low=st.integers(-6, 6),
    extent=st.integers(1, 12),
    dilation=st.integers(1, 4),
)
def test_every_device_reads_the_positions_of_its_results(
    size: int, count: int, step: int, low: int, extent: int, dilation: int
) -> None:
    window = window_of(size=size, count=count, step=step, low=low, extent=extent, dilation=dilation)
    for device in range(count):
        first = device * step - low
        assert positions(window, device) == expected(size, dilation, first, extent)


@given(
    size=st.integers(1, 24),
    count=st.integers(1, 5),
    step=st.integers(1, 9),
    low=st.integers(-6, 6),
    extent=st.integers(1, 12),
)
def test_own_block_and_halo_hold_every_window(
    size: int, count: int, step: int, low: int, extent: int
) -> None:
    window = window_of(size=size, count=count, step=step, low=low, extent=extent)
    own = -(-size // count)
    before, behind = window.halo(own)
    for device, start in enumerate(window.starts):
        assert device * own - before <= start
        assert start + window.length <= (device + 1) * own + behind


def test_a_convolution_of_three_reads_one_element_of_each_neighbour() -> None:
    window = window_of(size=16, count=4, step=4, low=1, extent=6)
    assert window.starts == (-1, 3, 7, 11)
    assert (window.length, window.halo(4), window.reaches_outside) == (6, (1, 1), True)


def test_a_dilated_image_is_padded_alike_where_blocks_are_whole_periods() -> None:
    window = window_of(size=8, count=2, step=8, low=1, extent=10, dilation=2)
    assert window.has_one_offset
    assert (window.low, window.high) == (1, 0)


def test_blocks_of_part_of_a_period_start_at_different_offsets() -> None:
    window = window_of(size=8, count=2, step=3, low=0, extent=5, dilation=2)
    assert not window.has_one_offset
