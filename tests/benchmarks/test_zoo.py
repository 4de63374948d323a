"""What the zoo tells of its results."""

from pathlib import Path

from benchmarks.zoo.checking import markdown, newest, record

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
