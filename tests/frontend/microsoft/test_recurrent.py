"""The LSTM of dynamic quantisation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import floats, ints
from tests.frontend.microsoft.checks import computed, node_model, run_ort

STEPS, BATCH, WIDTH, HIDDEN = 4, 2, 6, 5


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_weights_of_integers(direction: str, columns: bool, dtype: str) -> None:
    """As near to ONNX Runtime's kernel as 8-bit inputs and states let it be, and as near to floats as floats are."""
    count = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(0)
    low, high = (-128, 128) if dtype == "int8" else (0, 256)
    w, r = (rng.integers(low, high, (count, rows, 4 * HIDDEN)).astype(dtype) for rows in (WIDTH, HIDDEN))
    shape = (count, 4 * HIDDEN) if columns else (count,)
    scales = [rng.uniform(0.003, 0.006, shape).astype(np.float32) for _ in range(2)]
    zeros = [np.full(shape, 0 if dtype == "int8" else 128, dtype) for _ in range(2)]
    bias, initial = floats(count, 8 * HIDDEN, seed=1), floats(count, BATCH, HIDDEN, seed=2)
    x = floats(STEPS, BATCH, WIDTH)
    given = [x, w, r, bias, ints(4, 2, dtype="int32"), initial, initial, None, scales[0], zeros[0], scales[1], zeros[1]]
    attrs = {"hidden_size": HIDDEN, "direction": direction}
    constants = (1, 2, 8, 9, 10, 11)
    ours, theirs, _ = computed("DynamicQuantizeLSTM", given, attrs, outputs=3, constants=constants)
    for got, wanted in zip(ours, theirs, strict=True):
        assert np.abs(got - wanted).max() <= 0.02

    def spread(parameter: np.ndarray) -> np.ndarray:
        return parameter.reshape(count, 1, -1).astype(np.float32)

    triples = zip((w, r), scales, zeros, strict=True)
    wide = [((q - spread(z)) * spread(s)).transpose(0, 2, 1).copy() for q, s, z in triples]
    plain = [x, *wide, *given[3:7]]
    feeds = {f"x{i}": value for i, value in enumerate(plain) if value is not None}
    exact = run_ort(node_model("LSTM", plain, attrs, outputs=3, domain="", opset=14), feeds)
    for got, wanted in zip(ours, exact, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
