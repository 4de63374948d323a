"""The sizes at which models with open dimensions are tried."""

import pytest

from tests.open_models.sizes import Ranges, ladder, spread

RANGES: list[Ranges] = [
    {"batch": (1, 64)}, {"batch": (1, 8), "length": (1, 512)}, {"batch": (1, 4), "past": (0, 512), "new": (1, 64)},
    {"batch": (1, 8), "height": (64, 320), "width": (64, 320)}, dict.fromkeys("abcde", (0, 9)),
]  # fmt: skip


@pytest.mark.parametrize("ranges", RANGES, ids=lambda ranges: "-".join(ranges))
def test_twelve_different_sizes_lie_in_the_ranges_and_hold_both_ends(ranges: Ranges) -> None:
    found = spread(ranges)
    assert len({tuple(sizes.values()) for sizes in found}) == 12
    assert all(low <= sizes[name] <= high for sizes in found for name, (low, high) in ranges.items())
    assert found[0] == {name: low for name, (low, _) in ranges.items()}
    assert found[-1] == {name: high for name, (_, high) in ranges.items()}


def test_sizes_are_powers_of_two_and_primes_in_turns() -> None:
    assert ladder(1, 2048, 12) == [1, 2, 4, 7, 16, 31, 64, 127, 256, 509, 1024, 2048]


def test_a_range_of_few_sizes_gives_each_of_them() -> None:
    assert ladder(1, 4, 12) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_long_meets_short() -> None:
    """Two dimensions of the same range do not grow together."""
    found = spread({"height": (1, 512), "width": (1, 512)})
    assert any(sizes["height"] > 4 * sizes["width"] for sizes in found)
    assert any(sizes["width"] > 4 * sizes["height"] for sizes in found)
