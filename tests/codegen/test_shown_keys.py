"""Attention of open sizes on CPUs leaves out the panels of keys that a mask hides from a block of queries."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.open_attention import check, expected, feeds_of, model

LEAST = float(np.finfo(np.float32).min)


def banded(rows: int, keys: int, first: int, last: int) -> np.ndarray:
    """Whether query m sees key n: from m + first to m + last."""
    query, key = np.ogrid[:rows, :keys]
    return (key >= query + first) & (key <= query + last)


BANDS = [(-400, 301), (-20, 0), (100, 130), (0, 500), (-500, 500), (388, 500), (350, 360)]


@pytest.mark.parametrize(("first", "last"), BANDS)
@pytest.mark.parametrize("rows", [5, 37])
def test_bands(rows: int, first: int, last: int) -> None:
    for mask in ("bool", "float"):
        module = model(24, 16, mask=mask)
        feeds = feeds_of(module, rows, 389)
        seen = banded(rows, 389, first, last)
        hidden = -np.inf if mask == "float" else False
        feeds["mask"][:] = np.where(seen, feeds["mask"] if mask == "float" else True, hidden)
        check(module, feeds)


@pytest.mark.parametrize("dead", [[], [0], [6], [3, 12], range(13)])
@pytest.mark.parametrize("low", [LEAST, -np.inf])
def test_rows_that_see_no_key(dead: list[int], low: float) -> None:
    """They weigh all keys alike where the mask adds the least number, and are 0 for -inf."""
    module = model(24, 16, mask="float")
    feeds = feeds_of(module, 13, 389)
    seen = banded(13, 389, 100, 120)
    seen[list(dead)] = False
    feeds["mask"][:] = np.where(seen, 0, low).astype(np.float32)
    check(module, feeds)


@pytest.mark.parametrize("low", [LEAST, -np.inf])
def test_values_beyond_the_panels_that_are_seen_are_not_read(low: float) -> None:
    """NaN there does no harm, though a weight of zero times NaN would."""
    module = model(24, 16, mask="float")
    feeds = feeds_of(module, 9, 512)
    feeds["mask"][:] = np.where(banded(9, 512, 192, 220), 0, low).astype(np.float32)
    wanted = expected(**feeds)
    feeds["v"][:, :, :100] = np.nan
    feeds["v"][:, :, 320:] = np.nan
    np.testing.assert_allclose(module.run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)


def test_scores_that_a_bias_moves_far_are_not_hidden() -> None:
    """All scores of a row are about -1e31: they differ as dot products do."""
    module = model(24, 16, mask="float")
    feeds = feeds_of(module, 7, 389)
    feeds["mask"][:] = np.where(banded(7, 389, 100, 300), -1e31, -2e31).astype(np.float32)
    feeds["mask"][:, :, 1:] = 0
    got, wanted = module.run(feeds)["y"], expected(**feeds)
    np.testing.assert_allclose(got[:, :, 1:], wanted[:, :, 1:], rtol=1e-5, atol=1e-5)
    # A dot product does not count beside 1e31 in float32: the row's mean over the keys with the larger bias.
    values = np.repeat(feeds["v"].astype(np.float64), 2, axis=1)[:, :, 100:301].mean(2)
    np.testing.assert_allclose(got[:, :, 0], values, rtol=1e-4, atol=1e-4)
