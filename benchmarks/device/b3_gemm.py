"""B3 to B5: GEMMs and convolutions for Hopper, ours with every tile, right and how fast; and those of libraries.

Results are full of NaN bits before the run that is checked, against float64 on the device. All are timed as replays of
a CUDA graph. B3 has what the compiler takes for one of the cards, `planned` tells whether it is this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from benchmarks.device.cards import card_of
from benchmarks.device.case import Case, Setup
from benchmarks.device.feeds import random_like
from benchmarks.device.gemm_facts import FACTS
from benchmarks.device.gpu import Gpu
from benchmarks.device.limits import TOLERANCE
from benchmarks.device.peers import captured
from benchmarks.device.timing import Timer, torch_stream
from tilestitch.runtime.cuda.graph import LaunchGraph, Parameters
from tilestitch.runtime.dtypes import numpy_dtype
from tilestitch.runtime.program import DeviceLaunch, Edge
from tilestitch.runtime.sizes import known

VALUES = ("a", "b", "y", "bias", "sums", "counters")


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

    def arrays(self, dtype: str, kernel: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Operands at random, the result as NaN bits, and room for partial sums and counters."""
        rng, kind = np.random.default_rng(5), numpy_dtype(dtype)
        return {
            "a": random_like(rng, dtype, self.a),
            "b": random_like(rng, dtype, self.b, self.reduction**-0.5),
            "y": np.full(prod(self.y) * kind.itemsize, 0xFF, np.uint8),
            "bias": random_like(rng, dtype, self.y[-1:]),
            "sums": np.full(kernel["sums_bytes"] + 4, 0xFF, np.uint8),
            "counters": np.zeros(kernel["counters_bytes"] + 4, np.uint8),
        }


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


def with_epilogue(entry: dict[str, Any], work: Work, a: Any, b: Any, bias: Any) -> Any:
    """In PyTorch, what the kernels of an entry compute."""
    import torch

    y = work.function(a, b)
    return torch.nn.functional.gelu(y + bias) if entry["shape"]["epilogue"] else y


def graph_of(setup: Setup, gpu: Gpu, launches: list[DeviceLaunch], given: Mapping[str, int]) -> LaunchGraph:
    """The launches, one after the other, on memory at these addresses."""
    functions, parameters = [], []
    for launch in launches:
        module = gpu.call("cuModuleLoadData", (setup.bundle / "gemm" / f"{launch.symbol}.cubin").read_bytes())
        functions.append(gpu.call("cuModuleGetFunction", module, launch.symbol.encode()))
        gpu.allow_shared(functions[-1], launch.shared_bytes)
        parameters.append(Parameters.of(launch))
        for position, arg in enumerate(launch.args):
            parameters[-1].point(gpu.device, position, given[VALUES[arg.value]] + known(arg.offset_bytes))
    chain = [Edge(number - 1, number) for number in range(1, len(launches))]
    return LaunchGraph(gpu.device, launches, chain, functions, parameters)


def one(setup: Setup, entry: dict[str, Any], kernel: dict[str, Any]) -> dict[str, Any]:
    """Error and times of one kernel. Raises `WrongResult` before it is timed."""
    gpu = Gpu(setup.kernels("launch"))
    shape = entry["shape"]
    work = WORK[entry["operation"]](shape)
    arrays = work.arrays(shape["dtype"], kernel)
    given = {name: gpu.upload(array) for name, array in arrays.items()}
    graph = graph_of(setup, gpu, [DeviceLaunch.from_json(launch) for launch in kernel["launches"]], given)
    graph.launch(gpu.stream)
    gpu.synchronize()
    ours = gpu.read(given["y"], "uint8", arrays["y"].size).view(numpy_dtype(shape["dtype"])).reshape(work.y)
    error = _error(entry, work, arrays, ours) if setup.executes else 0.0
    judged = setup.judged(error, TOLERANCE[shape["dtype"]])
    times = Timer(gpu, setup).times(lambda: graph.launch(gpu.stream))
    is_planned = card_of(gpu.device.name) in kernel["planned"]
    return {**judged, **times, "TFLOP_per_s": work.flops / times["device_us"] / 1e6, "planned": is_planned}


def _error(entry: dict[str, Any], work: Work, arrays: Mapping[str, np.ndarray], ours: np.ndarray) -> float:
    import torch

    operands = [_tensor(arrays[name]).double() for name in ("a", "b", "bias")]
    reference = with_epilogue(entry, work, *operands)
    difference = torch.from_numpy(ours.astype(np.float32)).cuda().double() - reference
    return float(difference.norm() / reference.norm())


def _tensor(array: np.ndarray) -> Any:
    """On the GPU, as float32: exact for all that is narrower, and PyTorch takes no bfloat16 of numpy."""
    import torch

    return torch.from_numpy(array.astype(np.float32)).cuda()


def library(setup: Setup, entry: dict[str, Any]) -> dict[str, Any]:
    """The same through cuBLAS or cuDNN, which may choose its algorithm by trying."""
    import torch

    torch.backends.cudnn.benchmark = True
    gpu, shape = Gpu(setup.kernels("launch")), entry["shape"]
    work, kind = WORK[entry["operation"]](shape), getattr(torch, shape["dtype"])
    arrays = work.arrays(shape["dtype"], {"sums_bytes": 0, "counters_bytes": 0})
    a, b, bias = (_tensor(arrays[name]).to(kind) for name in ("a", "b", "bias"))
    if entry["operation"] == "convolution":  # cuDNN gets its filters as it likes them
        b = b.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    with torch.no_grad(), torch_stream(gpu):
        times = Timer(gpu, setup).times(captured(partial(with_epilogue, entry, work, a, b, bias)))
    return {**times, "TFLOP_per_s": work.flops / times["device_us"] / 1e6}


def planned(part: str, setup: Setup) -> Iterator[Case]:
    return _kernels(part, setup, True)


def others(part: str, setup: Setup) -> Iterator[Case]:
    return _kernels(part, setup, False)


def _kernels(part: str, setup: Setup, is_planned: bool) -> Iterator[Case]:
    needs = ("torch",) if setup.executes else ()
    for entry in setup.listing("gemm"):
        for kernel in entry["kernels"]:
            if bool(kernel["planned"]) is is_planned:
                key = {"shape": entry["name"], **{name: kernel[name] for name in FACTS if name in kernel}}
                yield Case(part, key, partial(one, setup, entry, kernel), needs=needs, fingerprint=kernel["digest"])


def peers(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("gemm"):
        yield Case(part, {"shape": entry["name"], "by": "torch"}, partial(library, setup, entry), needs=("torch",))
