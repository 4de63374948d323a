"""B1: our artifacts from a bundle: every case against a float64 reference made on the device, then speed against JAX.

Each run gets fresh random inputs and outputs full of NaN bits. Both engines are timed the same way: the wall clock of
runs queued back to back, a run, in turns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.device.interpreters import Torch, graph_constants, graph_function, namespace, unsupported
from benchmarks.device.record import Recorder, run_part
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import digest, parse_graph
from tilestitch.runtime import Module, load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.dtypes import numpy_dtype

FOLDER = Path(__file__).parent / "bundle"
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Of ||ours - reference|| / ||reference||."""

CALLS, TURNS = 20, 9


class Exact(Torch):
    """PyTorch with every float a float64."""

    def dtype(self, name: str) -> Any:
        return self.xp.float64 if name in ("float32", "float16", "bfloat16") else super().dtype(name)

    def array(self, data: np.ndarray) -> Any:
        made = super().array(data)
        return made.double() if made.is_floating_point() else made


def random_like(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Normal floats; whole numbers that are fit to be positions or masks."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        return rng.integers(0, 2, shape).astype(dtype)
    return (scale * rng.standard_normal(shape, np.float32)).astype(numpy_dtype(dtype))


def feeds_of(module: Module, rng: np.random.Generator) -> dict[str, np.ndarray]:
    feeds = {}
    for info in module.inputs:
        shape = tuple(size for size in info.shape or () if isinstance(size, int))
        feeds[info.name] = random_like(rng, info.dtype, shape)
    return feeds


def poisoned(module: Module) -> dict[str, np.ndarray]:
    """Output arrays of 0xFF bytes: NaN in every float type, -1 in integers."""
    made = {}
    for info in module.outputs:
        array = np.empty(tuple(size for size in info.shape or () if isinstance(size, int)), numpy_dtype(info.dtype))
        array.view(np.uint8).fill(0xFF) if array.ndim else array.reshape(1).view(np.uint8).fill(0xFF)
        made[info.name] = array
    return made


def check(entry: dict[str, Any], device: str, torch_device: str, draws: int = 3) -> dict[str, Any]:
    """The largest relative error over several draws. Raises `AssertionError` beyond the tolerance, or for NaN."""
    graph = case_graph(entry)
    n = Exact(torch_device)
    weights = {name: n.array(data) for name, data in graph_constants(graph).items()}
    reference = graph_function(graph, n)
    worst = 0.0
    rng = np.random.default_rng(time.time_ns() % 2**32)
    with load(FOLDER / f"{entry['name']}.tsm", device=device) as module:
        for _ in range(draws):
            feeds = feeds_of(module, rng)
            ours = list(module.run(feeds, out=poisoned(module)).values())
            expected = reference([n.array(feeds[value.name]) for value in graph.inputs], weights)
            worst = max(worst, *(error(a, b.cpu().numpy()) for a, b in zip(ours, expected, strict=True)))
    if not worst <= TOLERANCE[entry["dtype"]]:
        raise AssertionError(f"relative error {worst:.3g} exceeds {TOLERANCE[entry['dtype']]}")
    return {"relative_error": worst, "right": True}


def error(ours: np.ndarray, reference: np.ndarray) -> float:
    """Relative error in the Euclidean norm; NaN when there is a NaN that the reference has not."""
    wide = np.asarray(ours, np.float64)
    norm = float(np.linalg.norm(reference))
    return float(np.linalg.norm(wide - reference)) / (norm or 1.0)


def seeded_weights(module_path: Path) -> dict[str, np.ndarray]:
    """Packed weights of a stripped artifact, at random: small, so that activations stay finite."""
    rng = np.random.default_rng(1)
    infos = read_artifact(module_path).manifest.weights
    return {name: random_like(rng, info.dtype, info.shape, 0.02) for name, info in infos.items()}


def case_graph(entry: dict[str, Any]) -> Graph:
    """The graph of a case, with its constants."""
    artifact = read_artifact(FOLDER / f"{entry['name']}.tsm")
    infos = artifact.manifest.weights
    arrays = [
        raw.view(numpy_dtype(infos[name].dtype)).reshape(infos[name].shape) for name, raw in artifact.weights().items()
    ]
    constants = {digest(array): array for array in arrays}
    with np.load(FOLDER / f"{entry['name']}.npz") as rest:
        constants.update(rest)
    return parse_graph((FOLDER / f"{entry['name']}.graph").read_text(), constants)


def seeded_graph(entry: dict[str, Any]) -> Graph:
    rng = np.random.default_rng(1)
    constants = {
        digest: random_like(rng, dtype, tuple(shape), 0.02) for digest, (dtype, shape) in entry["constants"].items()
    }
    return parse_graph((FOLDER / f"{entry['name']}.graph").read_text(), constants)


def speed(entry: dict[str, Any]) -> dict[str, Any]:
    """Ours and XLA's time of the same graph."""
    import jax

    graph = seeded_graph(entry) if entry["kind"] == "model" else case_graph(entry)
    path = FOLDER / f"{entry['name']}.tsm"
    weights = seeded_weights(path) if entry["kind"] == "model" else None
    with load(path, device="cuda", weights=weights, verify=weights is None) as module:
        feeds = feeds_of(module, np.random.default_rng(2))
        stream = new_stream()
        on_gpu = {name: jax.device_put(value) for name, value in feeds.items()}
        given = {name: jax.block_until_ready(array) for name, array in on_gpu.items()}
        outputs = module.run(given, on_device=True)

        def ours() -> None:
            for _ in range(CALLS):
                module.run(given, out=outputs, stream=stream)
            next(iter(outputs.values())).device.synchronize()

        engines: dict[str, Callable[[], None]] = {"ours": ours}
        if not unsupported(graph):
            engines["jax"] = _jax_engine(graph, [given[value.name] for value in graph.inputs])
        times = in_turns(engines)
        launches = len(module.profile(feeds))
    row: dict[str, Any] = {f"{name}_us": value for name, value in times.items()}
    if "jax" in times:
        row["jax_over_ours"] = times["jax"] / times["ours"]
    return {**row, "our_launches": launches}


def new_stream() -> int:
    """A stream that is not ordered with the default one."""
    from tilestitch.runtime.cuda.backend import open_device

    device = open_device(0)
    with device.current():
        return int(device.call("cuStreamCreate", 1))  # CU_STREAM_NON_BLOCKING


def _jax_engine(graph: Graph, inputs: list[Any]) -> Callable[[], None]:
    import jax

    n = namespace("jax")
    weights = {name: jax.device_put(data) for name, data in graph_constants(graph).items()}
    function = jax.jit(graph_function(graph, n))
    jax.block_until_ready(function(inputs, weights))

    def run() -> None:
        for _ in range(CALLS):
            result = function(inputs, weights)
        jax.block_until_ready(result)

    return run


def in_turns(engines: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The median time of a run in microseconds; engines take turns, in changing order."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    order = list(engines)
    for name in order:
        engines[name]()
    for _ in range(TURNS):
        for name in order:
            start = time.perf_counter_ns()
            engines[name]()
            times[name].append((time.perf_counter_ns() - start) / 1e3 / CALLS)
        order.reverse()
    return {name: statistics.median(values) for name, values in times.items()}


def measure(recorder: Recorder) -> None:
    listed = json.loads((FOLDER / "bundle.json").read_text())
    for entry in listed:
        if entry["kind"] == "case":
            key = {"what": "right", "name": entry["name"]}
            recorder.measure(key, partial(check, entry, "cuda", "cuda"))
    for entry in listed:
        recorder.measure({"what": "speed", "name": entry["name"]}, partial(speed, entry))


if __name__ == "__main__":
    run_part("B1", measure)
