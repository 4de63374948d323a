"""What a failure on a GPU leaves to those who mend it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.device import bundle, failed, s0_smoke
from benchmarks.device.bundle import bundle_case
from benchmarks.device.case import Case, Setup, WrongResult
from benchmarks.device.differences import differences
from benchmarks.device.journal import Journal
from benchmarks.device.processes import Outcome


def said(ours: np.ndarray, reference: np.ndarray, limit: float = 1e-3) -> list[str]:
    return list(differences("y", ours, reference, limit))


def test_rows_and_columns_that_are_wrong_are_named() -> None:
    reference = np.ones((40, 64), np.float32)
    ours = reference.copy()
    ours[8:16, ::2] = 3
    ours[8, 0] = np.nan
    found = said(ours, reference)
    assert found[0] == "y [40, 64]: 256 of 2560 elements are wrong, 1 of them NaN"
    assert found[1] == "  the first at [8, 0]: nan in place of 1.0"
    assert found[2] == "  along axis 0: 8-15"
    assert found[3] == "  along axis 1: 0, 2, 4, 6, 8, 10, 12, 14, ... (32 ranges)"


@pytest.mark.parametrize("same", [np.nan, np.inf, -np.inf, 1.0])
def test_what_is_as_it_should_be_is_not_said(same: float) -> None:
    assert said(np.array([same, 1.0]), np.array([same, 1.0005])) == []


def test_integers_must_be_the_same() -> None:
    assert said(np.array([1, 2]), np.array([1, 3]), 0.0)[0] == "y [2]: 1 of 2 elements are wrong, 0 of them NaN"


def test_a_wrong_smoke_case_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "with_one_image", lambda contents, image: contents)
    entry = {"name": "softmax_small.float32", **bundle_case("softmax_small", "float32", tmp_path)}
    path = tmp_path / "softmax_small.float32.recorded.npz"
    arrays = dict(np.load(path))
    arrays["out.y"].view(np.float32)[1000:2000] += 1
    np.savez(path, **arrays)
    with pytest.raises(WrongResult):
        s0_smoke.smoke(Setup(tmp_path), entry, device="emulator")
    log = capfd.readouterr().out
    assert "run 1: y [9, 1000]: 1000 of 9000 elements are wrong, 0 of them NaN" in log
    assert "along axis 0: 1\n  along axis 1: all" in log


def test_text_and_machine_code_of_a_failed_case_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nvidia")
    journal = Journal(tmp_path / "h100", "sources")
    case = Case("S0", {"name": "softmax_small.float32"}, dict)
    journal.start(case)
    journal.end(Outcome(case, "failed", 1.0, {}, "WrongResult: relative error 1 exceeds 2e-05"))
    assert failed.main([str(tmp_path / "h100"), "--out", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out" / "softmax_small.float32"
    assert "__global__" in next(folder.glob("*.cu")).read_text()
    assert "EXIT" in next(folder.glob("*.sass")).read_text()
    assert (folder / "model.onnx").exists()
    assert "--only S0 --match softmax_small.float32" in capsys.readouterr().out
