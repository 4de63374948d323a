"""Execution providers, and the devices that they name."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tilestitch.runtime.errors import DeviceError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_ON_GPUS = (CUDA, "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")

Provider = str | tuple[str, Mapping[str, Any]]


def get_all_providers() -> list[str]:
    return [CUDA, CPU]


def get_available_providers() -> list[str]:
    """Return the providers with a device in this machine."""
    return get_all_providers() if _has_gpu() else [CPU]


def get_device() -> str:
    return "GPU" if _has_gpu() else "CPU"


def providers_of(kind: str) -> list[str]:
    """Return the providers that run an artifact for a target of this kind; the CPU runs host steps."""
    return [CUDA, CPU] if kind == "cuda" else [CPU]


def device_of(
    kind: str, providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> str:
    """Return the device on which to load an artifact of `kind`, as `providers` name it: the one it was compiled for,
    whatever their order.

    Raises DeviceError when the artifact is for a GPU and no provider is; warns where it is for the CPU, as ONNX Runtime
    does when it falls back to that.
    """
    if not providers:
        return kind
    named = [(p, {}) if isinstance(p, str) else (p[0], dict(p[1])) for p in providers]
    for (_, options), more in zip(named, provider_options or ()):
        options.update(more)
    if kind == "cuda":
        ordinals = [options.get("device_id", 0) for name, options in named if name in _ON_GPUS]
        if not ordinals:
            raise DeviceError(
                f"the artifact was compiled for a GPU, but the providers are {', '.join(name for name, _ in named)}; "
                f"add {CUDA}, or compile the model with --target cpu"
            )
        return f"cuda:{int(ordinals[0])}"
    if CPU not in [name for name, _ in named]:
        warnings.warn(f"the artifact was compiled for the CPU and runs there, not by {named[0][0]}", stacklevel=4)
    return kind


def _has_gpu() -> bool:
    """Return whether there is a CUDA driver that finds a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
