"""ONNX Runtime's interface to artifacts, so that a program can try them by changing one import.

    import tilestitch.runtime.ort_compat as onnxruntime

    session = onnxruntime.InferenceSession("model.tsm", providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"x": x})

Behaviour follows ONNX Runtime; errors are those of `tilestitch.runtime`. Options without meaning for a compiled model
are accepted and ignored; options that request something that does not happen give a warning.
"""

from __future__ import annotations

from tilestitch import __version__
from tilestitch.runtime.ort_compat.session import get_all_providers, get_available_providers, get_device

from .binding import IOBinding
from .options import ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions
from .session import InferenceSession, ModelMetadata, NodeArg
from .values import OrtValue

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
]


def set_default_logger_severity(severity: int) -> None:
    """Do nothing: the runtime does not log."""
