"""An artifact of ours on the GPU with inputs and outputs that lie there, to be timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.device.feeds import feeds_of, seeded_weights
from benchmarks.device.gpu import Gpu
from tilestitch.runtime import Module, load
from tilestitch.runtime.cuda.array import DeviceArray


def stripped(path: Path) -> Module:
    """The artifact, with weights made from a seed."""
    return load(path, device="cuda", weights=seeded_weights(path), verify=False)


def uploaded(gpu: Gpu, array: np.ndarray) -> DeviceArray:
    return DeviceArray(gpu.device, gpu.upload(array), array.dtype, array.shape, gpu)


def queued(
    gpu: Gpu, module: Module, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[dict[str, DeviceArray], Callable[[], Any]]:
    """Random inputs on the GPU, of these shapes where they are open, and a function that queues one run on them in the
    GPU's stream.
    """
    feeds = feeds_of(module, np.random.default_rng(2), shapes)
    given = {name: uploaded(gpu, array) for name, array in feeds.items()}
    outputs = module.run(given, on_device=True)
    return given, lambda: module.run(given, out=outputs, stream=gpu.stream)
