"""What a call costs on a GPU besides the GPU: a tiny model whose arrays are there, beside one graph launch alone.

    python -m tests.runtime.cuda.standin --idle -- python -m benchmarks.cuda_calls    # without a GPU: our own code
    python -m benchmarks.cuda_calls                                                   # with one: and the driver

The same models with an open number of rows are run at one shape, at eight in turn, which all have a graph, and at more
in turn than have one, so that each call gives a graph other grids and pointers.

All take turns, 100 calls at a time; the least and the median of many rounds count. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.calls import MODELS
from benchmarks.turns import microseconds, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import Module, load
from tilestitch.runtime.cuda.backend import MOST_KEPT

CALLS = 100
NAMES = ("add_16", "mlp_256_512_512_10", "inputs_27x16")
OPEN_NAMES = ("add_16", "mlp_256_512_512_10")


def ways_of(model: Module, rng: np.random.Generator, stream: int) -> dict[str, Callable[[], object]]:
    """Ways to run a model, and the launch of its graph by itself."""
    shapes = {info.name: tuple(map(int, info.shape or ())) for info in model.inputs}
    host = {name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()}
    feeds = {name: on_device(array) for name, array in host.items()}
    out = model.run(feeds, on_device=True)
    return {
        "graph": _launch(model, stream),  # the context is current
        "out, stream": lambda: model.run(feeds, out, stream=stream),
        "on_device, stream": lambda: model.run(feeds, stream=stream, on_device=True),
        "out": lambda: model.run(feeds, out),
        "on_device": lambda: model.run(feeds, on_device=True),
        "host arrays": lambda: model.run(host),
    }


def _device() -> Any:
    """GPU 0."""
    from tilestitch.runtime.cuda.backend import open_device

    return open_device(0)


def on_device(array: np.ndarray) -> Any:
    """The array on GPU 0."""
    from tilestitch.runtime.cuda.array import DeviceArray
    from tilestitch.runtime.cuda.driver import Allocation, host_address

    device = _device()
    memory = Allocation(device, array.nbytes, "an input")
    with device.current():
        device.call("cuMemcpyHtoD", memory.address, host_address(array), array.nbytes)
    return DeviceArray(device, memory.address, array.dtype, array.shape, memory)


@contextmanager
def _stream() -> Iterator[int]:
    """A stream of GPU 0, whose context is current as long."""
    device = _device()
    with device.current():
        handle = int(device.call("cuStreamCreate", 1))  # CU_STREAM_NON_BLOCKING
        try:
            yield handle
        finally:
            device.call("cuStreamDestroy", handle)


def _launch(model: Module, stream: int) -> Callable[[], object]:
    """cuGraphLaunch alone, as the module calls it."""
    worker: Any = model._pool._idle[0].worker
    graph = worker._memories[0].segments[0].graph
    function, executable = graph._device.api.cuGraphLaunch, graph._exec
    return lambda: function(executable, stream)


def with_open_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same for any size of the first dimension of its inputs and results."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    for info in (*opened.graph.input, *opened.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "rows"
    return opened


def in_turn(model: Module, runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Callable[[], object]:
    """A call with the next inputs and results each time."""
    following = cycle(runs)

    def call() -> object:
        feeds, out = next(following)
        return model.run(feeds, out)

    return call


def measure_open(name: str, rounds: int) -> dict[str, Any]:
    """Beside the model for one row. Each way has a module of its own, and so graphs of its own."""
    model = MODELS[name]()
    rng, opened = np.random.default_rng(0), compile_model(with_open_rows(model), "cuda:sm_90a").to_bytes()
    with ExitStack() as stack:
        static = stack.enter_context(load(compile_model(model, "cuda:sm_90a").to_bytes(), device="cuda"))
        ways = {"static": in_turn(static, [run_of(static, 1, rng)])}
        for label, count in (("one shape", 1), (f"{MOST_KEPT} shapes", MOST_KEPT), ("a new shape", 2 * MOST_KEPT)):
            loaded = stack.enter_context(load(opened, device="cuda"))
            ways[label] = in_turn(loaded, [run_of(loaded, 1 + rows, rng) for rows in range(count)])
        return {"model": f"{name}, rows open", "latency": microseconds(ways, rounds, CALLS)}


def run_of(model: Module, rows: int, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of so many rows, and arrays for the results."""
    shapes = {info.name: (rows, *(int(size) for size in (info.shape or ())[1:])) for info in model.inputs}
    feeds = {name: on_device(rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}
    return feeds, model.run(feeds, on_device=True)


def measure(name: str, rounds: int) -> dict[str, Any]:
    artifact = compile_model(MODELS[name](), "cuda:sm_90a").to_bytes()
    with load(artifact, device="cuda") as model, _stream() as stream:
        ways = ways_of(model, np.random.default_rng(0), stream)
        return {"model": name, "latency": microseconds(ways, rounds, CALLS)}


def main() -> int:
    """Prints a table of the least times and writes a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_calls", description="What a call on a GPU costs.")
    parser.add_argument("--rounds", type=int, default=200, metavar="N")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    options = parser.parse_args()
    results = [measure(name, options.rounds) for name in NAMES]
    header = ("model", *(f"{way} us" for way in results[0]["latency"]))
    print(table([(r["model"], *(f"{t['least_us']:.1f}" for t in r["latency"].values())) for r in results], header))
    opened = [measure_open(name, options.rounds) for name in OPEN_NAMES]
    header = ("model", *(f"{way} us" for way in opened[0]["latency"]))
    print(table([(r["model"], *(f"{t['least_us']:.1f}" for t in r["latency"].values())) for r in opened], header))
    results += opened
    print(f"written to {write_results('cuda_calls', results, options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
