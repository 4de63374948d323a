"""What is recorded for machines with AMX is replayed as it should be, and told where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.amx.record import Model, models, record
from tests.amx.replay import replayed


def test_what_the_unit_computed_is_recorded_and_replayed(permitted: None, unit: Any, tmp_path: Path) -> None:
    model = models()["two_layers"]
    case = record(tmp_path, Model(model.proto, model.feeds[2:3], model.dims), "two_layers", "tiles", "bf16")
    path = tmp_path / "two_layers-tiles-bf16.0.npz"
    (found,) = replayed(tmp_path, case)
    assert found["agrees"] and found["as_the_unit"] == [] and {"amx-tile", "amx-bf16"} <= set(case["features"])
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, "expected_0": arrays["expected_0"] + 9, "unit_0": arrays["expected_0"]})
    (found,) = replayed(tmp_path, case)
    assert not found["agrees"] and found["as_the_unit"] == [False]
