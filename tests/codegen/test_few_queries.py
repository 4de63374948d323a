"""Attention of open sizes on CPUs: few queries read keys and values where they lie, more queries pack them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.open_attention import check, expected, feeds_of, model
from tilestitch.passes.plan.cpu.attention import FEW_QUERIES


@pytest.mark.parametrize("rows", [1, 2, FEW_QUERIES, FEW_QUERIES + 1, 19])
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 97])
@pytest.mark.parametrize(("width", "columns"), [(64, 64), (5, 7), (33, 145)])
def test_any_number_of_keys(rows: int, keys: int, width: int, columns: int) -> None:
    module = model(width, columns)
    check(module, feeds_of(module, rows, keys))


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
