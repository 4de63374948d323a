"""`--precision bf16` on the CPU against OpenVINO with its bf16 hint, OpenVINO in float32, and our own float32.

    python -m benchmarks.bfloat16 [NAME ...] [--threads N ...] [--seconds S]

All four take turns. OpenVINO's own record of the model that it runs says how many of its GEMMs and convolutions are in
bfloat16. Errors are the largest ones, over the largest number of OpenVINO's float32 result. Memory is the most that a
process of its own holds, which loads the artifact and runs it three times, over what it held before. Models are those
of `python -m benchmarks.models`; results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from benchmarks.models import export
from benchmarks.turns import write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

NAMES = (
    "minilm", "bert_base", "gpt2_small", "vit_b16", "convnext_t", "swin_t", "whisper_encoder", "resnet50",
    "mobilenetv2",
)  # fmt: skip
OURS, OPENVINO = {"bf16": "bf16", "float32": "fp32"}, {"bf16": "bf16", "float32": "f32"}
"""Our precisions and OpenVINO's hints."""
Clock = Callable[[], float]
CLOCKS: dict[bool, Clock] = {False: time.perf_counter, True: time.process_time}
MULTIPLIES = ("Convolution", "MatMul", "FullyConnected", "ScaledDotProductAttentionWithKVCache", "ScaledDotProduct")
MEMORY = """
import json, sys
import ml_dtypes, numpy as np
from tilestitch.runtime import load
feeds = dict(np.load(sys.argv[2]))
def kibibytes(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
before = kibibytes("VmRSS")
with load(sys.argv[1], num_threads=1) as model:
    for _ in range(3):
        model.run(feeds)
print(json.dumps((kibibytes("VmHWM") - before) / 1024))
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bfloat16", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME", help="only these models")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="of turns, for each number of threads")
    parser.add_argument("--cpu-time", action="store_true", help="not of the clock: for one thread on a busy machine")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.names:
        rows += [_measured(name, threads, options.seconds, CLOCKS[options.cpu_time]) for threads in options.threads]
        print(rows[-1], flush=True)
    print(table([[_cell(value) for value in row.values()] for row in rows], list(rows[0])))
    for threads in options.threads:
        ratios = [row["openvino_bf16/ours"] for row in rows if row["threads"] == threads]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{threads} threads: geometric mean of OpenVINO's time in bf16 over ours {mean:.3f}")
    print(write_results("bfloat16", rows, options.output))
    return 0


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _measured(name: str, threads: int, seconds: float, clock: Clock) -> dict[str, Any]:
    path = export(name)
    feeds = inputs_of(onnx.load(path, load_external_data=False))
    artifacts = {key: compile_model(path, num_threads=threads, precision=how).to_bytes() for key, how in OURS.items()}
    memory = {key: _peak_mib(artifact, feeds) for key, artifact in artifacts.items()}
    requests = {key: rivals.openvino_request(path, threads, hint) for key, hint in OPENVINO.items()}
    models = {key: load(artifact, num_threads=threads) for key, artifact in artifacts.items()}
    ways: dict[str, Callable[[], Any]] = {}
    for key in OURS:
        ways[f"ours_{key}"] = partial(models[key].run, feeds)
        ways[f"openvino_{key}"] = partial(requests[key].infer, feeds, share_inputs=True)
    results = {way: _first(function()).copy() for way, function in ways.items()}
    times = in_turns(ways, seconds, clock)
    for model in models.values():
        model.close()
    exact = results["openvino_float32"]

    def ratio(way: str) -> float:
        return round(median(a / b for a, b in zip(times[way], times["ours_bf16"])), 3)

    return {
        "model": name, "threads": threads, **{f"{way}_ms": round(min(each), 2) for way, each in times.items()},
        "openvino_bf16/ours": ratio("openvino_bf16"), "openvino_float32/ours": ratio("openvino_float32"),
        "our_float32/ours": ratio("ours_float32"), **{f"error_{way}": _error(results[way], exact) for way in ways},
        **{f"peak_mib_{key}": round(mib, 1) for key, mib in memory.items()},
        "openvino_in_bf16": _share(requests["bf16"]), "turns": len(times["ours_bf16"]),
    }  # fmt: skip


def _first(result: Any) -> np.ndarray:
    return np.asarray(next(iter(result.values())))


def _error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.abs(found.astype(np.float64) - exact).max() / np.abs(exact).max())


def in_turns(ways: Mapping[str, Callable[[], object]], seconds: float, clock: Clock) -> dict[str, list[float]]:
    """Milliseconds of each call, over turns for so long, at least five, after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for function in ways.values():
        function()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, function in ways.items():
            start = clock()
            function()
            times[name].append((clock() - start) * 1e3)
    return times


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random ones. Integers are 0 and 1, as good for tokens as for masks."""
    random = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        whole = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        feeds[value.name] = random.integers(0, 2, shape) if whole else random.standard_normal(shape).astype(np.float32)
        if value.name.endswith("mask"):
            feeds[value.name] = np.ones(shape, np.int64)
    return feeds


def _share(request: Any) -> str:
    """How many of OpenVINO's GEMMs and convolutions it runs in bfloat16."""
    kinds = [node.get_rt_info() for node in request.get_compiled_model().get_runtime_model().get_ops()]
    heavy = [info for info in kinds if any(name in str(info["layerType"].value) for name in MULTIPLIES)]
    return f"{sum('bf16' in str(info['runtimePrecision'].value).lower() for info in heavy)}/{len(heavy)}"


def _peak_mib(artifact: bytes, feeds: Mapping[str, np.ndarray]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        model, arrays = Path(folder, "model.tsm"), Path(folder, "feeds.npz")
        model.write_bytes(artifact)
        np.savez(arrays, allow_pickle=True, **feeds)
        done = subprocess.run([sys.executable, "-c", MEMORY, model, arrays], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
