"""C1: does the GPU do what the emulated device did? Kernels of the tests of Hopper's asynchronous units, bytewise."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.device.gpu import Gpu
from benchmarks.device.record import Recorder, run_part
from tilestitch.runtime.cuda.graph import LaunchGraph, Parameters
from tilestitch.runtime.program import Arg, DeviceLaunch
from tilestitch.runtime.tensor_map import TensorMap

FILE = Path(__file__).parent / "bundle" / "emulator.npz"


def launch_of(case: dict[str, Any]) -> DeviceLaunch:
    args = tuple(
        Arg(place, 0, TensorMap.from_json(fields, "map") if fields else None)
        for place, fields in zip(case["arguments"], case["maps"], strict=True)
    )
    x, y, z = case["cluster"]
    return DeviceLaunch(
        "kernel", (case["grid"], 1, 1), (case["block"], 1, 1), case["shared_bytes"], args, cluster=(x, y, z)
    )


def compare(case: dict[str, Any], before: dict[int, np.ndarray], after: dict[int, np.ndarray]) -> dict[str, Any]:
    """How many bytes differ, and the first of them."""
    gpu = Gpu(case["test"], case["text"])
    addresses = {place: gpu.upload(array) for place, array in before.items()}
    launch = launch_of(case)
    parameters = Parameters.of(launch)
    for position, arg in enumerate(launch.args):
        parameters.point(gpu.device, position, addresses[arg.value])
    graph = LaunchGraph(gpu.device, [launch], [], [gpu.function("kernel")], [parameters])
    graph.launch(gpu.stream)
    gpu.synchronize()
    graph.close()
    found = {place: gpu.read(address, "uint8", before[place].size) for place, address in addresses.items()}
    gpu.free()
    wrong = {place: np.flatnonzero(found[place] != after[place]) for place in sorted(found)}
    first = next((f"byte {places[0]} of argument {place}" for place, places in wrong.items() if places.size), None)
    return {"bytes_different": sum(places.size for places in wrong.values()), "first": first}


def measure(recorder: Recorder) -> None:
    with np.load(FILE) as bundle:
        cases = json.loads(bundle["cases"].tobytes())
        for number, case in enumerate(cases):
            places = sorted(set(case["arguments"]))
            before, after = ({p: bundle[f"{number}.{p}.{when}"] for p in places} for when in ("before", "after"))
            recorder.measure({"case": number, "test": case["test"]}, partial(compare, case, before, after))


if __name__ == "__main__":
    run_part("C1", measure)
