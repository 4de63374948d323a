"""What the zoo tells of its results."""

from pathlib import Path

from benchmarks.zoo.checking import markdown, newest, record
from benchmarks.zoo.peers import tabulated

CPU = {"ok": True, "error": 3e-07, "ratio": 1.5, "compile_s": 2.0, "kernels": 4}


def test_the_newest_result_of_a_model_and_a_stage_counts(tmp_path: Path) -> None:
    record(tmp_path, "a", "cpu", {"failure": "Traceback\nUnsupportedOperatorsError: the model uses…"})
    record(tmp_path, "a", "cpu", CPU)
    assert newest(tmp_path)["a"]["cpu"]["kernels"] == 4


def test_the_table_tells_wrong_results_refusals_and_failures(tmp_path: Path) -> None:
    record(tmp_path, "right", "cpu", CPU)
    record(tmp_path, "wrong", "cpu", {**CPU, "ok": False, "error": 0.5})
    record(tmp_path, "foreign", "cpu", {"failure": "UnsupportedOperatorsError: the model uses…"})
    record(tmp_path, "broken", "cuda", {"failure": "not done after 600 s"})
    lines = {line.split(" | ")[0][2:]: line for line in markdown(tmp_path).splitlines()[2:]}
    assert "| 3e-07 |" in lines["right"]
    assert "| 5e-01 OFF |" in lines["wrong"]
    assert "| refused |" in lines["foreign"]
    assert "| fails |" in lines["broken"]


def test_the_table_of_peers_begins_with_the_model_that_is_slowest_against_its_best_peer(tmp_path: Path) -> None:
    record(tmp_path, "fast", "peers", {"ours_ms": 2.0, "onnxruntime_ms": 8.0, "openvino_ms": 4.0})
    record(tmp_path, "slow", "peers", {"ours_ms": 2.0, "onnxruntime_ms": 8.0, "openvino_failure": "no such operator"})
    record(tmp_path, "slow", "inductor", {"ours_ms": 3.0, "inductor_ms": 1.5})
    record(tmp_path, "broken", "peers", {"failure": "Traceback"})
    lines = tabulated(tmp_path).splitlines()[2:]
    assert lines == ["| slow | 2 | 4.00 | fails | 0.50 |", "| fast | 2 | 4.00 | 2.00 |  |",
                     "| geometric mean |  | 4.00 | 2.00 | 0.50 |"]  # fmt: skip
