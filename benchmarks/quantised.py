"""Quantised models on the CPU, against ONNX Runtime and against our own float32 of the same model.

    python -m benchmarks.quantised [NAME ...] [--forms qdq dynamic ...] [--threads 1 2] [--rounds N] [--openvino]
                                   [--target TARGET] [--reduce-range] [--before FOLDER] [--output FILE]

All take turns. With one thread CPU time counts, which a busy machine does not lengthen; with more, wall clock.
onnxruntime.quantization quantises what `python -m benchmarks.models` has made, a small MLP and the networks of
`quantised_nets`: weights int8 by channel (but `uint8`), activations uint8, ranges from two random inputs. Errors are
the largest ones against unoptimised ONNX Runtime, over its largest result: ours, and those of the others.
Results go to benchmarks/results/.

`--target cpu:haswell` compiles for a CPU without the instructions of this one. ONNX Runtime uses these all the same;
OpenVINO does not if the environment variable ONEDNN_MAX_CPU_ISA is AVX2.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.quantised_nets import efficientnet_like, yolo_like
from benchmarks.turns import onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.bench import SETTLE_S
from tilestitch.compiler.cli.errors import UsageError
from tilestitch.compiler.cli.output import table
from tilestitch.compiler.cli.rivals import openvino_request
from tilestitch.runtime import load

MADE = Path(__file__).parent / "models"
CASES = {
    "resnet50": ("qdq", "qoperator"), "mobilenetv2": ("qdq", "qoperator"), "bert_base": ("qdq", "dynamic"),
    "mlp": ("qdq", "qoperator", "dynamic"), "efficientnet_like": ("qdq", "qoperator"),
    "yolo_like": ("qdq", "uint8", "qoperator_uint8"),
}  # fmt: skip
"""Models, and the forms that they are quantised to."""
MLP = (784, 512, 256, 10)
"""Widths, of 16 rows."""
MEBIBYTE = 1 << 20
WAYS = ("ours", "before", "onnxruntime", "openvino", "float32")
"""That take turns; the last one is ours, of the model in float32."""
NETS = {"efficientnet_like": efficientnet_like, "yolo_like": yolo_like}
FORMS = ("qdq", "qoperator", "dynamic", "uint8", "qoperator_uint8")
"""The last two: QDQ and operators of integers, with weights in uint8 and one zero point for all of a layer's."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAME", help="only these models")
    parser.add_argument("--forms", nargs="+", choices=FORMS, help="only these forms")
    parser.add_argument("--threads", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--rounds", type=int, default=25, metavar="N")
    parser.add_argument("--openvino", action="store_true", help="race OpenVINO too, with the forms that it takes")
    parser.add_argument("--target", default="cpu", help="compile for this CPU, whose features the one at hand has")
    parser.add_argument("--reduce-range", action="store_true", help="quantise weights to 7 bits")
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="race what the tilestitch in FOLDER compiles, too"
    )
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.names:
        for form in options.forms or CASES[name]:
            with tempfile.TemporaryDirectory() as folder:
                for row in _measured(name, form, Path(folder), options):
                    rows.append(row)
                    print(row, flush=True)
    print(table([list(row.values()) for row in rows], list(rows[0])))
    every = options.names == list(CASES)
    print(write_results("quantised" if every else f"quantised_{'_'.join(options.names)}", rows, options.output))
    return 0


def _measured(name: str, form: str, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    plain, quantised = MADE / f"{name}.onnx", folder / "quantised.onnx"
    if name == "mlp":
        plain = folder / "mlp.onnx"
        onnx.save(_mlp(), plain)
    elif name in NETS:
        plain = folder / f"{name}.onnx"
        onnx.save(NETS[name](), plain)
    inputs = random_inputs(onnx.load(plain))
    _quantise(plain, quantised, form, inputs, options.reduce_range)
    feeds = next(inputs())
    expected = onnxruntime_session(quantised, 1, optimised=False).run(None, feeds)[0]
    for count in options.threads:
        artifact, wide_artifact = folder / "quantised.tsm", folder / "plain.tsm"
        compiled = compile_model(quantised, options.target, num_threads=count)
        compiled.save(artifact)
        compile_model(plain, options.target, num_threads=count).save(wide_artifact)
        rival = onnxruntime_session(quantised, count)
        with load(artifact, num_threads=count) as ours, load(wide_artifact, num_threads=count) as wide:
            ways: dict[str, Callable[[], object]] = {
                "ours": partial(ours.run, feeds),
                "onnxruntime": partial(rival.run, None, feeds),
                "float32": partial(wide.run, feeds),
            }
            if options.before is not None:
                ways["before"] = partial(_compiled_by(options.before, quantised, options.target, count).run, feeds)
            if options.openvino and (request := _openvino(quantised, count)):
                ways["openvino"] = partial(request.infer, feeds, share_inputs=True)
            least = (least_ms if count == 1 else least_wall_ms)(ways, options.rounds)
            result = first(ours.run(feeds))
        sizes = artifact.stat().st_size, quantised.stat().st_size
        yield {
            "model": name, "form": form, "threads": count, "target": options.target,
            "openvino_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"), "weight_bits": 7 if options.reduce_range else 8,
            "instructions": sorted({each for one in compiled.explain()["kernels"] for each in one["instructions"]}),
            **{f"{way}_ms": round(least[way], 3) if way in least else None for way in WAYS},
            **{f"against_{way}": round(least[way] / least["ours"], 2) if way in least else None for way in WAYS[1:]},
            "error": relative_error(result, expected),
            "error_of_onnxruntime": relative_error(rival.run(None, feeds)[0], expected),
            "error_of_openvino": relative_error(first(ways["openvino"]()), expected) if "openvino" in ways else None,
            "artifact_mb": round(sizes[0] / 1e6, 3), "model_mb": round(sizes[1] / 1e6, 3),
        }  # fmt: skip


def _compiled_by(folder: Path, model: Path, target: str, threads: int) -> Any:
    """The model as the code in a folder compiles it, loaded by ours."""
    artifact = model.with_name("before.tsm")
    command = [sys.executable, "-m", "tilestitch.compiler.cli", "compile", str(model), "-o", str(artifact)]
    command += ["--target", target, "--threads", str(threads)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True)
    return load(artifact, num_threads=threads)


def _openvino(model: Path, threads: int) -> Any:
    """A request of OpenVINO's, or none where it does not know an operator (QGemm, QLinearConv), which is told."""
    try:
        return openvino_request(model, threads)
    except UsageError as refusal:
        print(refusal, file=sys.stderr)
        return None


def _mlp() -> onnx.ModelProto:
    random, rows, nodes, stored = np.random.default_rng(0), 16, [], []
    for number, (depth, width) in enumerate(pairwise(MLP)):
        weights = (random.standard_normal((depth, width)) / np.sqrt(depth)).astype(np.float32)
        stored.append(numpy_helper.from_array(weights, f"w{number}"))
        stored.append(numpy_helper.from_array(random.standard_normal(width).astype(np.float32), f"b{number}"))
        nodes.append(helper.make_node("Gemm", [f"x{number}", f"w{number}", f"b{number}"], [f"y{number}"]))
        nodes.append(helper.make_node("Relu", [f"y{number}"], [f"x{number + 1}"]))
    nodes[-2].output[0] = "y"
    told = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (rows, width))]
        for name, width in (("x0", MLP[0]), ("y", MLP[-1]))
    ]
    graph = helper.make_graph(nodes[:-1], "mlp", *told, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def first(results: Any) -> np.ndarray:
    """The first of results by name, or by OpenVINO's outputs."""
    return np.asarray(next(iter(results.values())))


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference over the largest of `theirs`."""
    return float(f"{np.abs(ours - theirs).max() / np.abs(theirs).max():.1e}")


def least_ms(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Of CPU time, over turns. Each run follows one of the same engine, which finds in caches what others left."""
    return _least_ms(ways, rounds, time.process_time, 0.0)


def least_wall_ms(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The same of wall clock, once the threads of the engine before have let go of their cores (ONNX Runtime's spin
    for about 50 ms after a run).
    """
    return _least_ms(ways, rounds, time.perf_counter, SETTLE_S)


def _least_ms(
    ways: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float], settle_s: float
) -> dict[str, float]:
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, function in ways.items():
            settled = time.perf_counter() + settle_s
            function()
            while time.perf_counter() < settled:
                function()
            start = clock()
            function()
            least[name] = min(least[name], (clock() - start) * 1e3)
    return least


def random_inputs(model: onnx.ModelProto) -> Callable[[], Iterator[dict[str, np.ndarray]]]:
    """Two random inputs, the same ones each time. Integers are 0 and 1: tokens, masks and types alike."""

    def each() -> Iterator[dict[str, np.ndarray]]:
        random = np.random.default_rng(0)
        for _ in range(2):
            feeds = {}
            for value in model.graph.input:
                shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
                whole = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
                feeds[value.name] = (
                    random.integers(0, 2, shape) if whole else random.standard_normal(shape).astype(np.float32)
                )
            yield feeds

    return each


def _quantise(
    plain: Path, quantised: Path, form: str, inputs: Callable[[], Iterator[dict[str, np.ndarray]]], reduced: bool
) -> None:
    """reduced: weights are of 7 bits."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = quantised.with_name("prepared.onnx")
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    if form == "dynamic":
        quantize_dynamic(prepared, quantised, weight_type=QuantType.QInt8, per_channel=True, reduce_range=reduced)
        return

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.inputs = inputs()

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.inputs, None)

    asymmetric = form.endswith("uint8")
    quantize_static(
        prepared, quantised, Reader(),
        quant_format=QuantFormat.QOperator if form.startswith("qoperator") else QuantFormat.QDQ,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QUInt8 if asymmetric else QuantType.QInt8,
        per_channel=not asymmetric, reduce_range=reduced,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
