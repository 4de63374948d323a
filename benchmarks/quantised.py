"""Quantised models on the CPU, against ONNX Runtime and against our own float32 of the same model.

    python -m benchmarks.quantised [NAME ...] [--forms qdq dynamic ...] [--rounds N]

One thread; all take turns, and CPU time counts, which a busy machine does not lengthen. onnxruntime.quantization
quantises what `python -m benchmarks.models` has made: weights int8 by channel, activations uint8, ranges from two
random inputs. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.turns import onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

MADE = Path(__file__).parent / "models"
CASES = {"resnet50": ("qdq", "qoperator"), "mobilenetv2": ("qdq", "qoperator"), "bert_base": ("qdq", "dynamic")}
"""Models, and the forms that they are quantised to."""
MEBIBYTE = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAME", help="only these models")
    parser.add_argument("--forms", nargs="+", choices=("qdq", "qoperator", "dynamic"), help="only these forms")
    parser.add_argument("--rounds", type=int, default=25, metavar="N")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.names:
        for form in options.forms or CASES[name]:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(_measured(name, form, Path(folder), options.rounds))
            print(rows[-1], flush=True)
    print(table([list(row.values()) for row in rows], list(rows[0])))
    print(write_results("quantised", rows))
    return 0


def _measured(name: str, form: str, folder: Path, rounds: int) -> dict[str, Any]:
    plain, quantised = MADE / f"{name}.onnx", folder / "quantised.onnx"
    inputs = random_inputs(onnx.load(plain))
    _quantise(plain, quantised, form, inputs)
    artifact = compile_model(quantised, num_threads=1).to_bytes()
    rival = onnxruntime_session(onnx.load(quantised), 1)
    feeds = next(inputs())
    with (
        load(artifact, num_threads=1) as ours,
        load(compile_model(plain, num_threads=1).to_bytes(), num_threads=1) as wide,
    ):
        ways = {
            "ours": lambda: ours.run(feeds),
            "onnxruntime": lambda: rival.run(None, feeds),
            "float32": lambda: wide.run(feeds),
        }
        least = least_ms(ways, rounds)
    return {
        "model": name, "form": form, **{f"{way}_ms": round(ms, 2) for way, ms in least.items()},
        "against_onnxruntime": round(least["onnxruntime"] / least["ours"], 2),
        "artifact_mib": round(len(artifact) / MEBIBYTE, 1), "model_mib": round(quantised.stat().st_size / MEBIBYTE, 1),
    }  # fmt: skip


def least_ms(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Of CPU time, over turns after one that warms up."""
    least = dict.fromkeys(ways, float("inf"))
    for turn in range(rounds + 1):
        for name, function in ways.items():
            start = time.process_time()
            function()
            if turn:
                least[name] = min(least[name], (time.process_time() - start) * 1e3)
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


def _quantise(plain: Path, quantised: Path, form: str, inputs: Callable[[], Iterator[dict[str, np.ndarray]]]) -> None:
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
        quantize_dynamic(prepared, quantised, weight_type=QuantType.QInt8, per_channel=True)
        return

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.inputs = inputs()

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.inputs, None)

    quantize_static(
        prepared, quantised, Reader(), quant_format=QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
