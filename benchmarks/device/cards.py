"""The GPUs that the queue is made for, and what the results of each are called."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilestitch.cost_model.devices import DeviceError, find_device

CARDS = ("h100", "h200")
"""Times are predicted for each. They run the same machine code: that for sm_90a, cut for 132 multiprocessors."""

MEMORY_BYTES = 78 << 30
"""What the smallest of them leaves to a case."""


def card_of(gpu: str) -> str:
    """The folder of results on the GPU that the driver calls so: `h100` for `NVIDIA H100 80GB HBM3`.

    The shortest name in the table of devices, so that each product has a folder of its own; for a GPU that is not in
    the table the driver's name. Of lower-case letters, digits, `_`, `.` and `-`.
    """
    try:
        device = find_device(gpu)
    except DeviceError:
        return _plain(gpu) or "unnamed"
    return _plain(min((device.name, *device.aliases), key=len))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "_", name.lower()).strip("_.-")


def told_for(gpu: str, times: Mapping[str, float]) -> float | None:
    """Of predicted times by card, the one for this GPU; None for a GPU that nothing was predicted for."""
    return times.get(card_of(gpu))
