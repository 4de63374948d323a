"""Minimal runtime that reads an artifact, maps its weights and kernels, and runs it. Needs only numpy and the standard
library.

    from tilestitch.runtime import load

    module = load("model.tsm")
    outputs = module.run({"x": x})

The names below are imported lazily, on first use, so that `import tilestitch.runtime` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import TilestitchRuntimeError
    from .session import LaunchTime, Module, load
    from .value_info import ValueInfo

__all__ = ["LaunchTime", "Module", "TilestitchRuntimeError", "ValueInfo", "load"]

_HOMES = {
    "LaunchTime": "session", "Module": "session", "TilestitchRuntimeError": "errors", "ValueInfo": "value_info",
    "load": "session",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
