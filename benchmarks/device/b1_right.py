"""B1: every case of the bundle against a float64 reference made on the device, with fresh random inputs.

The reference is the case's own graph, interpreted by PyTorch with every float a float64. Outputs are full of NaN bits
before each run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup
from benchmarks.device.differences import differences
from benchmarks.device.feeds import feeds_of, poisoned, random_like, relative_error
from benchmarks.device.interpreters import Torch, graph_constants, graph_function
from benchmarks.device.limits import tolerance
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import digest, parse_graph
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.dtypes import numpy_dtype

DRAWS = 2


class Exact(Torch):
    """PyTorch with every float a float64."""

    def dtype(self, name: str) -> Any:
        return self.xp.float64 if name in ("float32", "float16", "bfloat16") else super().dtype(name)

    def array(self, data: np.ndarray) -> Any:
        made = super().array(data)
        return made.double() if made.is_floating_point() else made


def check(
    setup: Setup, entry: dict[str, Any], device: str = "cuda", reference_on: str = "cuda", draws: int = DRAWS
) -> dict[str, Any]:
    """The largest relative error over several draws. Raises `WrongResult` beyond the tolerance, or for NaN.

    Where kernels do not execute, they are only run.
    """
    rng = np.random.default_rng(time.time_ns() % 2**32)
    worst, limit = 0.0, tolerance(entry)
    with load(setup.bundle / f"{entry['name']}.tsm", device=device) as module:
        reference = _reference(setup, entry, reference_on) if setup.executes else None
        for _ in range(draws):
            feeds = feeds_of(module, rng)
            ours = list(module.run(feeds, out=poisoned(module)).values())
            if reference is not None:
                exact = reference(feeds)
                found = relative_error(zip(ours, exact, strict=True))
                worst = found if np.isnan(found) else max(worst, found)
                if not found <= limit:
                    for info, result, wanted in zip(module.outputs, ours, exact):
                        print(*differences(info.name, result, wanted, limit), sep="\n", flush=True)
    return setup.judged(worst, limit)


def _reference(setup: Setup, entry: dict[str, Any], device: str) -> Any:
    graph, n = case_graph(setup, entry), Exact(device)
    weights = {name: n.array(data) for name, data in graph_constants(graph).items()}
    function = graph_function(graph, n)

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [y.cpu().numpy() for y in function([n.array(feeds[value.name]) for value in graph.inputs], weights)]

    return run


def case_graph(setup: Setup, entry: dict[str, Any]) -> Graph:
    """The graph of a case, with its constants."""
    artifact = read_artifact(setup.bundle / f"{entry['name']}.tsm")
    infos = artifact.manifest.weights
    arrays = [
        raw.view(numpy_dtype(infos[name].dtype)).reshape(infos[name].shape) for name, raw in artifact.weights().items()
    ]
    constants = {digest(array): array for array in arrays}
    with np.load(setup.bundle / f"{entry['name']}.npz") as rest:
        constants.update({name: _typed(data) for name, data in rest.items()})
    return parse_graph((setup.bundle / f"{entry['name']}.graph").read_text(), constants)


def _typed(data: np.ndarray) -> np.ndarray:
    """The types of small floats that numpy's files lack come back as bytes; one of each size is among the cases."""
    return data.view(numpy_dtype(_SMALL[data.dtype.itemsize])) if data.dtype.kind == "V" else data


_SMALL = {1: "float8_e4m3fn", 2: "bfloat16"}


def seeded_graph(setup: Setup, entry: dict[str, Any]) -> Graph:
    """The graph of an entry without constants, with random ones."""
    rng = np.random.default_rng(1)
    constants = {
        digest: random_like(rng, dtype, tuple(shape), 0.02) for digest, (dtype, shape) in entry["constants"].items()
    }
    return parse_graph((setup.bundle / f"{entry['name']}.graph").read_text(), constants)


def cases(part: str, setup: Setup) -> Iterator[Case]:
    """All that have a reference; on a stand-in for the driver they run without one, and need no PyTorch."""
    for entry in setup.listing("cases"):
        if entry["reference"]:
            needs = ("torch",) if setup.executes else ()
            yield Case(part, {"name": entry["name"]}, partial(check, setup, entry), needs=needs,
                       fingerprint=entry["digest"])  # fmt: skip
