"""Reading folders, training on them, and scoring: with measurements that a known law made."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.cost_model.library.folders import GAP_US, SHEETS, node, write_devices, write_graph, write_kernels, write_rows
from tilestitch.cost_model import evaluate as evaluation
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.data import launch_floor_us, read_kernels
from tilestitch.cost_model.library.gemm import TILES
from tilestitch.cost_model.library.graphs import Kernel, read_graph
from tilestitch.cost_model.library.model import shipped_model
from tilestitch.cost_model.library.scoring import calibration_rows, read_folder
from tilestitch.cost_model.library.sheet import DataSheet
from tilestitch.cost_model.train import fit

LAYER = (
    node("embed", "EMBEDDING", ["MEM", [[2, 8], [2, 8, 4]]]),
    node("transformer_h_0_ln_1", "VECln", ["VECln", [16, 4]]),
    node("addmm", "Linear", ["Linear", [16, 4, 12]]),
    node("getitem_5", "getitem", ["MEM", [[1], [2, 8, 4]]]),
    node("add_9", "VECadd", ["VECadd", [16, 4]]),
    node("transformer_ln_f", "VECln", ["VECln", [16, 4]]),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_devices(tmp_path)
    write_kernels(tmp_path)
    write_graph(tmp_path, "gpt2_large-inf-8-2", LAYER)
    (tmp_path / "models" / "end_to_end.csv").write_text(
        "model,mode,seq_len,batch,option,gpu,latency_ms,forward_ms,backward_ms\n"
        "gpt2_large,inf,8,2,,NEW,1.5,1.5,0\n"
        "gpt2_large,inf,8,2,tp4,NEW,1.5,1.5,0\n"
        "gpt2_large,inf,8,4,fusion,NEW,1.5,1.5,0\n"
    )
    return tmp_path


# -- tables and graphs -------------------------------------------------------------------------------------------------


def test_tiles_and_splits_are_read_off_names_and_confirmed_by_grids(tmp_path: Path) -> None:
    row = {"op": "linear", "gpu": "NEW", "latency_ms": 0.1, "kernel": "x_sgemm_128x64_tn", "grid_y": 4, "grid_z": 3,
           "B": 1, "M": 256, "N": 512, "K": 256}  # fmt: skip
    write_rows(tmp_path, "linear", [{**row, "grid_x": 2}, {**row, "grid_x": 9}, {**row, "grid_x": 2, "kernel": "gemv"}])
    table = read_kernels(tmp_path, "linear")
    assert table is not None
    assert table.tile.tolist() == [TILES.index((128, 64)), -1, -1]
    assert table.split.tolist() == [3, 1, 1]


def test_a_floor_is_that_of_an_operator_on_its_gpu(folder: Path) -> None:
    table = read_kernels(folder, "elementwise")
    assert table is not None
    floor = launch_floor_us(table)
    assert (floor >= GAP_US).all() and floor.max() < 1.2 * GAP_US


@pytest.mark.parametrize("bad", ["nan", "-1", "0", "fast", ""])
def test_a_latency_that_is_none_is_refused(tmp_path: Path, bad: str) -> None:
    write_rows(tmp_path, "softmax", [{"op": "softmax", "gpu": "NEW", "latency_ms": bad, "B": 2, "H": 3}])
    with pytest.raises(MeasurementError, match=r"softmax\.csv\.gz"):
        read_kernels(tmp_path, "softmax")


def test_a_table_without_its_columns_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, "softmax", [{"op": "softmax", "gpu": "NEW", "latency_ms": 1}])
    with pytest.raises(MeasurementError, match="lacks columns"):
        read_kernels(tmp_path, "softmax")


def test_a_layer_counts_as_often_as_the_model_has_it(tmp_path: Path) -> None:
    kernels = read_graph(write_graph(tmp_path, "g", LAYER), "gpt2_large")
    assert [(k.kernel_class, k.times) for k in kernels] == [
        ("copy", 1), ("layernorm", 36), ("linear", 36), ("elementwise", 36), ("layernorm", 1),
    ]  # fmt: skip


def test_additions_hand_gradients_on_and_dropout_moves_them(tmp_path: Path) -> None:
    moved = [["MEM", [[16, 4]]], ["MEM", [[16, 4]]]]
    graph = [
        node("add", "VECadd", ["VECadd", [16, 4]], backward=moved),
        node("drop", "dropout", ["MEM", [[16, 4], [16, 4]]], backward=moved),
    ]
    kernels = read_graph(write_graph(tmp_path, "g", graph), "any")
    assert [k.kernel_class for k in kernels] == ["elementwise", "copy", "copy"]


def test_a_fused_chain_is_one_kernel(tmp_path: Path) -> None:
    chain = node("a~b~c", "fused", ["VECdivu", [64, 8]], ["VECadd", [64, 8]], ["VECsoftmax", [64, 8]])
    assert read_graph(write_graph(tmp_path, "g", [chain]), "bert_large") == [Kernel("softmax", "softmax", (64, 8))]


def test_operators_between_gpus_are_refused(tmp_path: Path) -> None:
    path = write_graph(tmp_path, "g", [node("all", "ALLREDUCE", ["ALLREDUCE", [64, 8]])])
    with pytest.raises(MeasurementError, match="ALLREDUCE"):
        read_graph(path, "any")


# -- scores ------------------------------------------------------------------------------------------------------------


def test_an_evaluation_has_the_agreed_form(folder: Path) -> None:
    found = evaluation.evaluate(shipped_model(), read_folder(folder))
    assert list(found["kernels"]) == ["linear", "elementwise"]
    assert all(part["rows"] > 0 and part["mape"] > 0 for part in found["kernels"].values())
    assert found["models"]["points"] == 1 and found["models"]["fused_points"] == 0
    (row,) = found["models"]["rows"]
    assert {"gpu", "model", "mode", "seq_len", "batch", "option", "measured_ms", "predicted_ms"} < row.keys()
    assert row["low_ms"] < row["predicted_ms"] < row["high_ms"]
    assert found["models"]["without_graph"] == ["NEW gpt2_large-inf-8-4-fusion"]


def test_calibrating_helps_and_its_rows_are_not_scored(folder: Path) -> None:
    read = read_folder(folder)
    before, after = (evaluation.evaluate(shipped_model(), read, count)["kernels"]["elementwise"] for count in (0, 20))
    scored = (part["rows"] + part["below_twice_the_floor"]["rows"] for part in (before, after))
    assert next(scored) - next(scored) == 20 * len(SHEETS)
    assert after["mape"] < before["mape"]


def test_calibration_spreads_over_predictions_and_asks_for_no_measurement(folder: Path) -> None:
    table = read_kernels(folder, "elementwise")
    assert table is not None
    predicted = table.us.copy()
    rows = calibration_rows(table, predicted, GAP_US, 20, 1)
    table.us[:] = 1.0
    assert (calibration_rows(table, predicted, GAP_US, 20, 1) == rows).all()
    assert len(set(rows)) == 20 and (np.diff(predicted[rows]) >= 0).all()


@pytest.mark.parametrize("missing", ["kernels", "models"])
def test_parts_of_a_folder_may_be_missing(folder: Path, missing: str) -> None:
    (folder / missing).rename(folder / "elsewhere")
    found = evaluation.evaluate(shipped_model(), read_folder(folder))
    assert (not found["kernels"]) == (missing == "kernels")
    assert found["models"]["points"] == (missing == "kernels")


def test_a_gpu_without_data_sheet_is_refused(folder: Path) -> None:
    write_devices(folder, SHEETS[:2])
    with pytest.raises(MeasurementError, match="no row for NEW"):
        evaluation.evaluate(shipped_model(), read_folder(folder))


def test_the_command_says_what_is_wrong_and_writes_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out.json"
    assert evaluation.main([str(folder), "--json", str(out), "--calibrate", "5"]) == 0
    assert json.loads(out.read_text())["models"]["points"] == 1
    (folder / "kernels" / "linear.csv.gz").write_bytes(gzip.compress(b"nothing")[:8])
    assert evaluation.main([str(folder)]) == 1
    assert "linear.csv.gz" in capsys.readouterr().err
    (folder / "devices.csv").unlink()
    assert evaluation.main([str(folder)]) == 1
    assert "devices.csv" in capsys.readouterr().err


def test_training_is_reproducible_and_knows_gpus_that_it_has_not_seen(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    from tilestitch.cost_model import train

    first, again = tmp_path / "first.json", tmp_path / "again.json"
    assert train.main([str(folder), "-o", str(first), "--table", str(tmp_path / "table.md")]) == 0
    assert train.main([str(folder), "-o", str(again)]) == 0
    assert first.read_bytes() == again.read_bytes()
    errors = json.loads(first.read_text())["validation"]["calibrated"]["kernels"]
    assert errors["elementwise"]["mean"]["ordinary"] < 5 and errors["linear"]["mean"]["ordinary"] < 25
    assert "| elementwise |" in (tmp_path / "table.md").read_text()


# -- convolutions ------------------------------------------------------------------------------------------------------


def write_convs(folder: Path, sheets: Sequence[DataSheet] = SHEETS, padding: int = 1) -> None:
    """Direct convolutions at half of the peak."""
    random, rows = np.random.default_rng(3), []
    for sheet in sheets:
        for _ in range(60):
            batch, inputs, outputs, edge = (int(2 ** random.uniform(3, 7)) for _ in range(4))
            flops = 2.0 * batch * inputs * outputs * 9 * (edge + 2 * padding - 2) ** 2
            rows.append({
                "op": "conv", "gpu": sheet.gpu, "latency_ms": 0.05 + flops / (sheet.fp32_gflops * 0.5e6), "B": batch,
                "in_channels": inputs, "out_channels": outputs, "kernel_size": 3, "input_size": edge, "stride": 1,
                "padding": padding,
            })  # fmt: skip
    write_rows(folder, "conv", rows)


@pytest.mark.parametrize("padding", [0, 1])
def test_every_measured_convolution_is_predicted(tmp_path: Path, padding: int) -> None:
    write_devices(tmp_path)
    write_convs(tmp_path, padding=padding)
    zero_shot = evaluation.evaluate(shipped_model(), read_folder(tmp_path))["kernels"]["conv"]
    calibrated = evaluation.evaluate(shipped_model(), read_folder(tmp_path), 20)["kernels"]["conv"]
    counts = [found["rows"] + found["below_twice_the_floor"]["rows"] for found in (zero_shot, calibrated)]
    assert counts == [60 * len(SHEETS), 40 * len(SHEETS)]
    assert calibrated["mape"] < zero_shot["mape"]


def test_convolutions_are_not_learned_without_gemms(tmp_path: Path) -> None:
    write_devices(tmp_path)
    write_convs(tmp_path)
    with pytest.raises(MeasurementError, match=r"no GEMMs.*add bmm.csv.gz"):
        fit(read_folder(tmp_path), None, seed=0)
