"""Profiles as traces: one slice a launch, end to end, with the ONNX nodes of each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.runtime.programs import increment_program, module
from tests.runtime.signed import plain
from tilestitch.runtime import LaunchTime
from tilestitch.runtime.trace import trace_events, write_trace

LAUNCHES = [
    LaunchTime("gemm", ("MatMul_1", "Add_2"), 12.5),
    LaunchTime("softmax", tuple(f"n{i}" for i in range(5)), 2.0),
    LaunchTime("copy", (), 1.0),
]


def test_launches_follow_each_other() -> None:
    spans = [e for e in trace_events(LAUNCHES, "m")["traceEvents"] if e["ph"] == "X" and e["tid"] == 1]
    assert [(e["name"], e["ts"], e["dur"]) for e in spans] == [
        ("gemm", 0.0, 12.5),
        ("softmax", 12.5, 2.0),
        ("copy", 14.5, 1.0),
    ]


def test_a_row_of_onnx_nodes() -> None:
    spans = [e for e in trace_events(LAUNCHES, "m")["traceEvents"] if e["ph"] == "X" and e["tid"] == 2]
    assert [e["name"] for e in spans] == ["MatMul_1, Add_2", "n0, n1, n2 + 2 more", "(no ONNX node)"]
    assert spans[1]["args"]["onnx_nodes"] == ["n0", "n1", "n2", "n3", "n4"]


def test_a_profile_of_the_cpu_is_written(tmp_path: Path) -> None:
    x = np.zeros(4, np.float32)
    with module(tmp_path, increment_program(), weights={"w": x}) as loaded:
        write_trace(tmp_path / "t.json", loaded.profile({"x": x}), "increment")
    names = [event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]]
    assert [plain(name) for name in names].count("increment") == 2
