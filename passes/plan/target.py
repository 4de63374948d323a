"""The machine that a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetInfo:
    """What the passes may know of the machine that will run the model. Sizes in bytes."""

    name: str = "cpu"
    threads: int = 1
    device: str = ""
    """The GPU that code is planned for, by its name in the table of devices; "" for the usual one."""
    architectures: tuple[str, ...] = ()
    """Of GPUs that machine code is made for, such as `sm_90a`; empty for the device's own."""
    multiprocessors: int | None = None
    """Of the smallest GPU that the code must run on, if that is not `device`."""
    task_buffer_bytes: int = 256 * 1024
    """Scratch that one task may use and expect to stay in its cache."""
