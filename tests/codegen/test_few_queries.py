"""Attention of open sizes on CPUs: few queries read keys and values where they lie, more queries pack them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tests.codegen.open_attention import check, expected, feeds_of, model
from tilestitch.compiler import compile_model
from tilestitch.passes.plan.cpu.attention import FEW_QUERIES
from tilestitch.runtime import load


@pytest.mark.parametrize("rows", [1, 2, FEW_QUERIES, FEW_QUERIES + 1, 19])
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 97])
@pytest.mark.parametrize(("width", "columns"), [(64, 64), (5, 7), (33, 145)])
def test_any_number_of_keys(rows: int, keys: int, width: int, columns: int) -> None:
    module = model(width, columns)
    check(module, feeds_of(module, rows, keys))


@pytest.mark.parametrize("width", [33, 64])
def test_any_number_of_queries(width: int) -> None:
    """Also where the last blocks of a task overlap, or it has a single one."""
    module = model(width, width, mask="bool")
    for rows in (*range(1, 46), 61, 64, 67, 127, 131):
        check(module, feeds_of(module, rows, 50))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["bool", "float"])
def test_masks(mask: str, rows: int) -> None:
    module = model(24, 16, mask=mask)
    for keys in (3, 16, 70):
        feeds = feeds_of(module, rows, keys)
        feeds["mask"][0, :, 0] = False if mask == "bool" else -np.inf
        check(module, feeds)


def test_half_floats() -> None:
    module = model(40, 24, "float16", "bool")
    for rows in (1, 2):
        check(module, feeds_of(module, rows, 37), 2e-3)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("hidden", [slice(0, 48), slice(16, 64), slice(32, 80), slice(None)])
def test_keys_that_a_mask_hides_are_not_read(rows: int, hidden: slice) -> None:
    """NaN among the values does no harm, though a weight of zero times NaN would."""
    module = model(24, 16, mask="bool")
    feeds = feeds_of(module, rows, 83)
    feeds["mask"][:, :, :, hidden] = False
    feeds["mask"][:, :, :, 80:] = True
    wanted = expected(**feeds)
    feeds["v"][:, :, hidden][:, :, : 80 - (hidden.start or 0)] = np.nan
    np.testing.assert_allclose(module.run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_that_sees_no_key_is_nan_where_the_model_does_not_say_otherwise(rows: int) -> None:
    text = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g '
        "(float[b, h, q, 24] x, float[b, h, k, 24] keys, float[b, h, k, 16] values, float[q, k] mask) => "
        "(float[b, h, q, 16] y) { t = Transpose<perm=[0, 1, 3, 2]>(keys) s = MatMul(x, t) m = Add(s, mask) "
        "w = Softmax<axis=-1>(m) y = MatMul(w, values) }"
    )
    random = np.random.default_rng(0)
    with load(compile_model(text, cache=False).to_bytes()) as module:
        for keys in (16, 64, 83):
            shapes = {"x": (1, 2, rows, 24), "keys": (1, 2, keys, 24), "values": (1, 2, keys, 16), "mask": (rows, keys)}
            feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            seen = module.run(feeds)["y"]
            feeds["mask"][0] = -np.inf
            found = module.run(feeds)["y"]
            assert np.isnan(found[:, :, 0]).all()
            np.testing.assert_array_equal(found[:, :, 1:], seen[:, :, 1:])
