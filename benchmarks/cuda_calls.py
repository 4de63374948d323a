"""What a call costs on a GPU besides the GPU: a tiny model whose arrays are there, beside one graph launch alone.

    python -m tests.runtime.cuda.standin --idle -- python -m benchmarks.cuda_calls    # without a GPU: our own code
    python -m benchmarks.cuda_calls                                                   # with one: and the driver

All take turns, 100 calls at a time; the least and the median of many rounds count. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calls import MODELS
from benchmarks.turns import microseconds, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import Module, load

CALLS = 100
NAMES = ("add_16", "mlp_256_512_512_10", "inputs_27x16")


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
    print(f"written to {write_results('cuda_calls', results, options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
