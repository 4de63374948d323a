"""The LSTM of dynamic quantisation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import floats, ints
from tests.frontend.microsoft.checks import computed

STEPS, BATCH, WIDTH, HIDDEN = 4, 2, 6, 5


NEAR = {False: 1e-6, True: 0.02}
"""Errors allowed for sequences of one length, and of several: those that have ended take another part in the range of
the states there.
"""


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_weights_of_integers(direction: str, columns: bool, dtype: str, lengths: bool) -> None:
    """Inputs and states are rounded to 8 bits as ONNX Runtime rounds them."""
    count = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(0)
    low, high = (-128, 128) if dtype == "int8" else (0, 256)
    w, r = (rng.integers(low, high, (count, rows, 4 * HIDDEN)).astype(dtype) for rows in (WIDTH, HIDDEN))
    shape = (count, 4 * HIDDEN) if columns else (count,)
    scales = [rng.uniform(0.003, 0.006, shape).astype(np.float32) for _ in range(2)]
    zeros = [np.full(shape, 0 if dtype == "int8" else 128, dtype) for _ in range(2)]
    bias, initial = floats(count, 8 * HIDDEN, seed=1), floats(count, BATCH, HIDDEN, seed=2)
    x = floats(STEPS, BATCH, WIDTH)
    ends = ints(4, 2, dtype="int32") if lengths else None
    given = [x, w, r, bias, ends, initial, initial, None, scales[0], zeros[0], scales[1], zeros[1]]
    attrs = {"hidden_size": HIDDEN, "direction": direction}
    constants = (1, 2, 8, 9, 10, 11)
    ours, theirs, _ = computed("DynamicQuantizeLSTM", given, attrs, outputs=3, constants=constants)
    for got, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, wanted, atol=NEAR[lengths])


def test_steps_beyond_the_longest_sequence_take_no_part_in_the_range_of_inputs() -> None:
    x = floats(STEPS, BATCH, WIDTH)
    x[3:] = 1e6
    given = [x, *_weights(1), None, ints(3, 2, dtype="int32"), None, None, None, *_parameters(1)]
    ours, theirs, _ = computed("DynamicQuantizeLSTM", given, {"hidden_size": HIDDEN}, outputs=3)
    for got, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_many_steps() -> None:
    """More steps than are unrolled."""
    x = floats(131, 1, WIDTH)
    given = [x, *_weights(2), *(None,) * 5, *_parameters(2)]
    attrs = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    ours, theirs, _ = computed("DynamicQuantizeLSTM", given, attrs, outputs=3, constants=(1, 2, 8, 9, 10, 11))
    for got, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


def _weights(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-128, 128, (count, rows, 4 * HIDDEN)).astype(np.int8) for rows in (WIDTH, HIDDEN)]


def _parameters(count: int) -> list[np.ndarray]:
    scale, zero = np.full(count, 0.005, np.float32), np.zeros(count, np.int8)
    return [scale, zero, scale, zero]
