"""The thin runtime: reads an artifact, maps its weights and kernels, and runs it. Needs numpy and the standard library.

from tilestitch.runtime import load

module = load("model.tsm")
outputs = module.run({"x": x})
"""

from __future__ import annotations

from .errors import TilestitchRuntimeError
from .feeds import ValueInfo
from .session import LaunchTime, Module, load

__all__ = ["LaunchTime", "Module", "TilestitchRuntimeError", "ValueInfo", "load"]
