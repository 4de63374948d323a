"""ScatterND whose indices have a last dimension of open size: the ranks of the operands tell what it is."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError


@pytest.mark.parametrize(("width", "rest"), [(1, (3,)), (2, ())])
def test_the_width_of_indices_follows_from_the_ranks(width: int, rest: tuple[int, ...]) -> None:
    sizes = ", ".join(["n", *map(str, rest)])
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g '
        f"(float[4, 3] x, int64[n, w] i, float[{sizes}] u) => (float[4, 3] y) {{ y = ScatterND(x, i, u) }}"
    )
    ours = load(compile_model(model, cache=False).to_bytes())
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for count in (1, 2, 3):
        places = np.stack([np.arange(count)] * width, 1)
        updates = -np.ones((count, *rest), np.float32)
        wanted = x.copy()
        wanted[tuple(places.T)] = updates
        (found,) = ours.run({"x": x, "i": places, "u": updates}).values()
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(InputError, match="i"):
        ours.run({"x": x, "i": np.zeros((1, 3 - width), np.int64), "u": updates[:1]})
