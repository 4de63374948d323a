"""C1: does the GPU do what the emulated device did? Kernels of the tests of Hopper's asynchronous units, bytewise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup, WrongResult
from benchmarks.device.gpu import Gpu
from tilestitch.runtime.cuda.graph import LaunchGraph, Parameters
from tilestitch.runtime.program import Arg, DeviceLaunch
from tilestitch.runtime.tensor_map import TensorMap


def launch_of(case: dict[str, Any]) -> DeviceLaunch:
    args = tuple(
        Arg(place, 0, TensorMap.from_json(fields, "map") if fields else None)
        for place, fields in zip(case["arguments"], case["maps"], strict=True)
    )
    x, y, z = case["cluster"]
    return DeviceLaunch(
        "kernel", (case["grid"], 1, 1), (case["block"], 1, 1), case["shared_bytes"], args, cluster=(x, y, z)
    )


def compare(setup: Setup, number: int, case: dict[str, Any]) -> dict[str, Any]:
    """Raises `WrongResult` with how many bytes differ, and the first of them."""
    folder = setup.bundle / "emulator"
    places = sorted(set(case["arguments"]))
    with np.load(folder / "arrays.npz") as arrays:
        before, after = ({p: arrays[f"{number}.{p}.{when}"] for p in places} for when in ("before", "after"))
    found = run(case, (folder / f"{case['image']}.cubin").read_bytes(), before)
    wrong = {place: np.flatnonzero(found[place] != after[place]) for place in places}
    count = sum(where.size for where in wrong.values())
    if count and setup.executes:
        first = next(f"byte {where[0]} of argument {place}" for place, where in wrong.items() if where.size)
        raise WrongResult(f"{count} bytes differ, the first is {first}")
    return {"right": True if setup.executes else None}


def run(case: dict[str, Any], image: bytes, before: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The arguments' bytes after the launch."""
    gpu = Gpu(image)
    addresses = {place: gpu.upload(array) for place, array in before.items()}
    launch = launch_of(case)
    parameters = Parameters.of(launch)
    for position, arg in enumerate(launch.args):
        parameters.point(gpu.device, position, addresses[arg.value])
    function = gpu.function("kernel")
    gpu.allow_shared(function, launch.shared_bytes)
    LaunchGraph(gpu.device, [launch], [], [function], [parameters]).launch(gpu.stream)
    gpu.synchronize()
    return {place: gpu.read(address, "uint8", before[place].size) for place, address in addresses.items()}


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("emulator"):
        for number, case in enumerate(entry["cases"]):
            run = partial(compare, setup, number, case)
            yield Case(part, {"case": number, "test": case["test"]}, run, fingerprint=case["image"])
