"""B3: our products for Hopper, every tile for every shape of the bundle, right and against cuBLAS.

Results are full of NaN bits before the run that is checked, against float64 on the device. Both engines replay a CUDA
graph; event-timed, in turns. Rows with `planned` are what the compiler would take.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.device.peers import captured
from benchmarks.device.record import Recorder, run_part
from tilestitch.runtime.cuda.driver import Device
from tilestitch.runtime.cuda.graph import LaunchGraph, Parameters
from tilestitch.runtime.program import DeviceLaunch, Edge

FOLDER = Path(__file__).parent / "bundle" / "gemm"
VALUES = ("a", "b", "y", "bias", "sums", "counters")
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}
"""Of ||ours - reference|| / ||reference||: little more than rounding each result does."""

TURNS = 30
FACTS = ("kernel", "bm", "bn", "sharing", "alternate", "cluster", "stages", "parts", "planned")


def tensors(shape: dict[str, Any], kernel: dict[str, Any]) -> dict[str, Any]:
    """Operands at random, the result as NaN bits, and room for partial sums and counters, on the GPU."""
    import torch

    kind = getattr(torch, shape["dtype"])
    lead = (shape["batch"],) if shape["batch"] > 1 else ()
    right = (shape["n"], shape["k"]) if shape["trans_b"] else (shape["k"], shape["n"])

    def normal(*size: int, scale: float = 1.0) -> Any:
        return (scale * torch.randn(*size, device="cuda")).to(kind)

    y = torch.empty(*lead, shape["m"], shape["n"], device="cuda", dtype=kind)
    y.view(torch.int16).fill_(-1)
    return {
        "a": normal(*lead, shape["m"], shape["k"]),
        "b": normal(*lead, *right, scale=shape["k"] ** -0.5),
        "y": y,
        "bias": normal(shape["n"]),
        "sums": torch.full((kernel["sums_bytes"] // 4 + 1,), float("nan"), device="cuda"),
        "counters": torch.zeros(kernel["counters_bytes"] + 1, device="cuda", dtype=torch.uint8),
    }


def product(shape: dict[str, Any], a: Any, b: Any, bias: Any) -> Any:
    import torch

    y = a @ (b.transpose(-1, -2) if shape["trans_b"] else b)
    return torch.nn.functional.gelu(y + bias) if shape["epilogue"] else y


def graph_of(device: Device, launches: list[DeviceLaunch], given: dict[str, Any]) -> LaunchGraph:
    """The launches, one after the other, on these tensors."""
    functions, parameters = [], []
    attribute = device.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for launch in launches:
        module = device.call("cuModuleLoadData", (FOLDER / f"{launch.symbol}.cubin").read_bytes())
        functions.append(device.call("cuModuleGetFunction", module, launch.symbol.encode()))
        device.call("cuFuncSetAttribute", functions[-1], attribute, launch.shared_bytes)
        parameters.append(Parameters.of(launch))
        for position, arg in enumerate(launch.args):
            address = given[VALUES[arg.value]].data_ptr() + arg.offset_bytes
            parameters[-1].point(device, position, address)
    chain = [Edge(number - 1, number) for number in range(1, len(launches))]
    return LaunchGraph(device, launches, chain, functions, parameters)


def relative_error(ours: Any, reference: Any) -> float:
    return float((ours.double() - reference).norm() / reference.norm())


def in_turns(engines: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of each engine."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(TURNS + 5):
        for name in reversed(engines) if turn % 2 else engines:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            engines[name]()
            end.record()
            end.synchronize()
            times[name].append(1000 * start.elapsed_time(end))
    return {name: statistics.median(found[5:]) for name, found in times.items()}


def one(shape: dict[str, Any], kernel: dict[str, Any]) -> dict[str, Any]:
    """Error and times of one kernel. Raises `AssertionError` for a wrong result, before it is timed."""
    import torch

    from tilestitch.runtime.cuda.backend import open_device

    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    given = tensors(shape, kernel)
    operands = [given[name] for name in ("a", "b", "bias")]
    device = open_device(0)
    with device.current():
        graph = graph_of(device, [DeviceLaunch.from_json(launch) for launch in kernel["launches"]], given)
        stream = torch.cuda.current_stream().cuda_stream
        torch.cuda.synchronize()
        graph.launch(stream)
        torch.cuda.synchronize()
        error = relative_error(given["y"], product(shape, *(x.double() for x in operands)))
        if not error <= TOLERANCE[shape["dtype"]]:
            raise AssertionError(f"relative error {error:.3g} exceeds {TOLERANCE[shape['dtype']]}")
        peer = captured(lambda: product(shape, *operands))
        times = in_turns({"ours": lambda: graph.launch(stream), "torch": peer})
    flops = 2 * shape["batch"] * shape["m"] * shape["n"] * shape["k"]
    return {
        "relative_error": error,
        **{f"{name}_us": value for name, value in times.items()},
        "TFLOP_per_s": flops / times["ours"] / 1e6,
        "torch_TFLOP_per_s": flops / times["torch"] / 1e6,
        "torch_over_ours": times["torch"] / times["ours"],
    }


def measure(recorder: Recorder) -> None:
    listed = json.loads((FOLDER / "gemm.json").read_text())
    # What the compiler would take first, for every shape; then the other tiles.
    for planned in (True, False):
        for entry in listed:
            for kernel in entry["kernels"]:
                if kernel["planned"] is planned:
                    key = {"shape": entry["shape"]["name"], **{name: kernel[name] for name in FACTS if name in kernel}}
                    recorder.measure(key, partial(one, entry["shape"], kernel))


if __name__ == "__main__":
    run_part("B3", measure)
