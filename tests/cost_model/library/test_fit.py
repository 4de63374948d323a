"""Robust fits, trees as arrays, data sheets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cost_model.library.folders import SHEETS, write_devices
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.hierarchy import ALONE, Family, adapted_traits, alone_us, expected_traits, robust_fit
from tilestitch.cost_model.library.sheet import FIELDS, read_sheet
from tilestitch.cost_model.library.trees import Forest, forest_from_json
from tilestitch.cost_model.training.forests import forest_from_dump
from tilestitch.cost_model.training.scoring import read_sheets

FAMILY = Family((), (("gap", 3.0, 0.3, 0.0, 6.0), ("slope", 0.0, 0.1, -2.0, 2.0)))


def test_a_fit_finds_a_line_though_a_fifth_of_the_points_are_wrong() -> None:
    x = np.linspace(0, 1, 50)
    y = 2.0 + 3.0 * x + np.where(np.arange(50) % 5 == 0, 10.0, 0.0)
    found = robust_fit(lambda p: p[0] + p[1] * x - y, np.zeros(2), np.full(2, -50.0), np.full(2, 50.0))
    assert found == pytest.approx([2.0, 3.0], abs=0.1)


def test_a_fit_stays_within_its_limits() -> None:
    found = robust_fit(lambda p: p - np.array([9.0, 1.0]), np.zeros(2), np.full(2, -2.0), np.full(2, 2.0))
    assert found == pytest.approx([2.0, 1.0])


def test_what_is_usual_is_the_mean_but_of_launches_and_rare_traits_the_median() -> None:
    family = Family((), (*ALONE, FAMILY.traits[1], ("far_apart", 0.0, 0.1, 0.0, 1.0)))
    traits = {
        "a": np.array([1.0, 0.5, 0.0, 0.01]),
        "b": np.array([2.0, 0.4, 0.4, 0.02]),
        "c": np.array([9.0, 0.1, 0.0, 0.60]),
    }
    found = expected_traits(family, traits, {"a": 1.0, "b": 2.0, "c": 1.0})
    assert found == pytest.approx([2.0, 0.4, 0.2, 0.02])
    assert expected_traits(family, {}, {}) == pytest.approx(family.usual)


def test_the_host_hides_short_kernels() -> None:
    traits = np.log(np.array([30.0, 20.0]))
    assert alone_us(np.array([0.0, 9.0, 11.0, 500.0]), traits) == pytest.approx([30.0, 30.0, 31.0, 520.0])


def test_measurements_move_traits_and_one_outlier_does_not() -> None:
    truth, x = np.array([3.5, 0.3]), np.linspace(0, 4, 20)
    wrong = np.where(np.arange(20) == 7, 1.5, 0.0)

    def log_ratios(traits: np.ndarray) -> np.ndarray:
        return (traits - truth) @ np.stack([np.ones(20), x]) + wrong

    assert adapted_traits(FAMILY, FAMILY.usual, log_ratios, 1.0) == pytest.approx(truth, abs=0.05)
    assert adapted_traits(FAMILY, FAMILY.usual, log_ratios, 1e6) == pytest.approx(FAMILY.usual, abs=0.01)


# -- trees -------------------------------------------------------------------------------------------------------------


def test_a_row_goes_left_where_its_feature_is_less_than_the_threshold() -> None:
    dump = [{"nodeid": 0, "split": "f1", "split_condition": 2.0, "yes": 1, "no": 2, "children": [
        {"nodeid": 1, "leaf": -1.0}, {"nodeid": 2, "leaf": 5.0},
    ]}]  # fmt: skip
    forest = forest_from_dump(dump, depth=3, outputs=1)
    assert forest(np.array([[9.0, 1.9], [9.0, 2.0], [9.0, 7.0]])).tolist() == [-1.0, 5.0, 5.0]
    assert forest_from_json(json.loads(json.dumps(forest.to_json())))(np.array([[0.0, 2.0]])).tolist() == [5.0]


def test_trees_of_several_scores_take_turns() -> None:
    leaf = np.array([[1.0, 1.0], [10.0, 10.0], [2.0, 2.0], [20.0, 20.0]])
    forest = Forest(np.zeros((4, 1), int), np.zeros((4, 1)), leaf, outputs=2)
    assert forest(np.zeros((3, 1))).tolist() == [[3.0, 30.0]] * 3


def test_trees_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(MeasurementError, match="train the model again"):
        forest_from_json({"outputs": 1, "feature": [[0]], "threshold": [[0.0]], "leaf": [[1.0]]})


def test_arrays_predict_what_xgboost_predicts() -> None:
    xgboost = pytest.importorskip("xgboost")
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 4)).astype(np.float32)
    y = x[:, 0] * np.where(x[:, 1] > 0, 1, -2) + x[:, 2]
    data = xgboost.DMatrix(x, y, feature_names=["f0", "f1", "f2", "f3"])
    booster = xgboost.train({"max_depth": 4, "base_score": 0.0, "nthread": 1}, data, 30)
    forest = forest_from_dump([json.loads(tree) for tree in booster.get_dump(dump_format="json")], 4, 1)
    assert forest(x) == pytest.approx(booster.predict(data), abs=1e-4)


# -- data sheets -------------------------------------------------------------------------------------------------------


def test_data_sheets_are_read_back(tmp_path: Path) -> None:
    write_devices(tmp_path)
    assert read_sheets(tmp_path / "devices.csv") == {sheet.gpu: sheet for sheet in SHEETS}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tdp_w": None}, "lacks tdp_w"),
        ({"tdp_w": "much"}, "tdp_w of X is 'much'; give a positive number"),
        ({"l2_mb": 0}, "l2_mb of X is 0"),
        ({"l2_mb": float("nan")}, "l2_mb of X is nan"),
        ({"sm_count": True}, "sm_count of X is True"),
    ],
)
def test_a_data_sheet_with_faults_is_refused(tmp_path: Path, change: dict[str, object], told: str) -> None:
    found: dict[str, object] = dict.fromkeys(FIELDS, 1.0) | {"gpu": "X"} | change
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    with pytest.raises(MeasurementError, match=told):
        read_sheet(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_a_file_that_is_no_data_sheet_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(text)
    with pytest.raises(MeasurementError, match=r"gpu\.json"):
        read_sheet(path)
