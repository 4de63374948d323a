"""Times of functions that take turns, for what lasts microseconds, and files with the results."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from onnx import ModelProto

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_TELEMETRY_DISABLED", "1")

from tilestitch.compiler.cli.doctor import examine

RESULTS = Path(__file__).parent / "results"


def microseconds(ways: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """The least and the median time of one call, over `rounds` turns of `calls` calls each, after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, function in ways.items():
            function()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    return {
        name: {"least_us": round(min(values), 2), "median_us": round(median(values), 2)}
        for name, values in times.items()
    }


def cpu_microseconds(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The CPU time of one call in this thread: the least eighth of `rounds` turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, function in ways.items():
            start = time.thread_time()
            function()
            times[name].append((time.thread_time() - start) * 1e6)
    return {name: sorted(found)[len(found) // 8] for name, found in times.items()}


def onnxruntime_session(model: ModelProto | Path, threads: int, optimised: bool = True) -> Any:
    """ONNX Runtime's session itself, without anything around its `run`, of a model or a file."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def markdown(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table of a Markdown page."""
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (header, ["---"] * len(header), *rows))


def write_results(name: str, results: Sequence[Mapping[str, Any]], path: Path | None = None) -> Path:
    """Write rows with the machine and the versions beside them; to benchmarks/results/NAME.json by default."""
    now = datetime.datetime.now(datetime.timezone.utc)
    packages = ["tilestitch", "numpy", "onnx", "onnxruntime", "apache-tvm"]
    packages += [rival for rival in ("openvino", "torch") if rival in sys.modules]
    content = {
        "date": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "cpu": examine()["cpu"],
        "load_average": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
        "results": list(results),
    }
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _module() -> str:
    """The module that Python was started with by -m."""
    started = sys.modules["__main__"].__spec__
    return started.name if started else Path(sys.argv[0]).stem
