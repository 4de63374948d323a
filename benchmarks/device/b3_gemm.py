"""B3: our products for Hopper, every tile for every shape of the bundle, right and against cuBLAS
and cuDNN.

Results are full of NaN bits before the run that is checked, against float64 on the device. Both engines replay a CUDA
graph; event-timed, in turns. Rows with `planned` are what the compiler would take.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
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


@dataclass(frozen=True)
class Work:
    """Shapes of the operands and the result, what PyTorch does with them, and how many operations it is."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    y: tuple[int, ...]
    reduction: int
    function: Callable[[Any, Any], Any]

    @property
    def flops(self) -> int:
        return 2 * prod(self.y) * self.reduction


def matrices(shape: dict[str, Any]) -> Work:
    lead = (shape["batch"],) if shape["batch"] > 1 else ()
    m, n, k = shape["m"], shape["n"], shape["k"]
    right = (n, k) if shape["trans_b"] else (k, n)

    def function(a: Any, b: Any) -> Any:
        return a @ (b.transpose(-1, -2) if shape["trans_b"] else b)

    return Work((*lead, m, k), (*lead, *right), (*lead, m, n), k, function)


def images(shape: dict[str, Any]) -> Work:
    count, size, channels, filters = (shape[name] for name in ("images", "size", "channels", "filters"))
    kernel, stride = shape["kernel"], shape["stride"]
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1

    def function(a: Any, b: Any) -> Any:
        import torch

        # Views of channels-last memory, which is what cuDNN wants, too.
        x, w = a.permute(0, 3, 1, 2), b.permute(3, 2, 0, 1)
        return torch.nn.functional.conv2d(x, w, stride=stride, padding=kernel // 2).permute(0, 2, 3, 1)

    return Work(
        (count, size, size, channels), (kernel, kernel, channels, filters), (count, out, out, filters),
        kernel * kernel * channels, function,
    )  # fmt: skip


WORK = {"shape": matrices, "convolution": images}


def tensors(work: Work, dtype: str, kernel: dict[str, Any]) -> dict[str, Any]:
    """Operands at random, the result as NaN bits, and room for partial sums and counters, on the GPU."""
    import torch

    kind = getattr(torch, dtype)
    y = torch.empty(work.y, device="cuda", dtype=kind)
    y.view(torch.int16).fill_(-1)
    return {
        "a": torch.randn(work.a, device="cuda").to(kind),
        "b": (torch.randn(work.b, device="cuda") * work.reduction**-0.5).to(kind),
        "y": y,
        "bias": torch.randn(work.y[-1], device="cuda").to(kind),
        "sums": torch.full((kernel["sums_bytes"] // 4 + 1,), float("nan"), device="cuda"),
        "counters": torch.zeros(kernel["counters_bytes"] + 1, device="cuda", dtype=torch.uint8),
    }


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


def one(entry: dict[str, Any], kernel: dict[str, Any]) -> dict[str, Any]:
    """Error and times of one kernel. Raises `AssertionError` for a wrong result, before it is timed."""
    import torch

    from tilestitch.runtime.cuda.backend import open_device

    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = True
    shape = entry["shape"]
    work = WORK[entry["operation"]](shape)
    given = tensors(work, shape["dtype"], kernel)

    def product(a: Any, b: Any, bias: Any) -> Any:
        y = work.function(a, b)
        return torch.nn.functional.gelu(y + bias) if shape["epilogue"] else y

    operands = [given[name] for name in ("a", "b", "bias")]
    if entry["operation"] == "convolution":  # cuDNN gets its filters as it likes them
        operands[1] = operands[1].permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    device = open_device(0)
    with device.current():
        graph = graph_of(device, [DeviceLaunch.from_json(launch) for launch in kernel["launches"]], given)
        stream = torch.cuda.current_stream().cuda_stream
        torch.cuda.synchronize()
        graph.launch(stream)
        torch.cuda.synchronize()
        error = relative_error(given["y"], product(*(x.double() for x in operands)))
        if not error <= TOLERANCE[shape["dtype"]]:
            raise AssertionError(f"relative error {error:.3g} exceeds {TOLERANCE[shape['dtype']]}")
        peer = captured(lambda: product(*operands))
        times = in_turns({"ours": lambda: graph.launch(stream), "torch": peer})
    return {
        "relative_error": error,
        **{f"{name}_us": value for name, value in times.items()},
        "TFLOP_per_s": work.flops / times["ours"] / 1e6,
        "torch_TFLOP_per_s": work.flops / times["torch"] / 1e6,
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
                    recorder.measure(key, partial(one, entry, kernel))


if __name__ == "__main__":
    run_part("B3", measure)
