"""Tensor maps refuse what the CUDA driver refuses, and know what a copy moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilestitch.runtime.tensor_map import TensorMap

GOOD = TensorMap("float16", (100, 30, 7), (256, 256 * 30), (64, 8, 2), swizzle="128B")


def test_a_copy_moves_the_whole_box_every_element_stride() -> None:
    assert GOOD.tile == (64, 8, 2)
    assert GOOD.tile_bytes == 64 * 8 * 2 * 2
    strided = replace(GOOD, element_strides=(2, 3, 1))
    assert strided.tile == (64, 3, 2)


def test_extent_in_memory_ends_with_the_last_element() -> None:
    assert GOOD.nbytes == 100 * 2 + 29 * 256 + 6 * 256 * 30
    GOOD.check_memory(1 << 12, GOOD.nbytes)
    with pytest.raises(ValueError, match="the memory has"):
        GOOD.check_memory(1 << 12, GOOD.nbytes - 1)
    with pytest.raises(ValueError, match="multiple of 16"):
        GOOD.check_memory(8, GOOD.nbytes)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"dtype": "int4"}, "dtype is 'int4'; give one of uint8"),
        ({"swizzle": "256B"}, "swizzle is '256B'"),
        ({"oob_fill": "one"}, "oob_fill is 'one'"),
        ({"dtype": "uint16", "oob_fill": "nan"}, "needs a floating-point dtype, not uint16"),
        ({"dims": ()}, "have rank 0"),
        ({"dims": (8,) * 6}, "have rank 6"),
        ({"strides_bytes": (256,)}, "has 1 entries; dims of rank 3 need 2"),
        ({"box": (64, 8)}, "box .* has 2 entries"),
        ({"element_strides": (1,)}, "element_strides .* has 1 entries"),
        ({"dims": (100, 0, 7)}, "must be 1 to 2"),
        ({"box": (64, 257, 2)}, "must be 1 to 256"),
        ({"element_strides": (1, 9, 1)}, "must be 1 to 8"),
        ({"strides_bytes": (200, 6000)}, "200 must be a multiple of 16"),
        ({"strides_bytes": (256, 2**40)}, "below 2.40"),
        ({"box": (12, 8, 2)}, "24 bytes; it must be a multiple of 16"),
        ({"box": (72, 8, 2)}, "144 bytes; with swizzle '128B' it may have 128"),
    ],
)
def test_each_violation_is_one_clear_error(change: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(GOOD, **change)  # type: ignore[arg-type]
