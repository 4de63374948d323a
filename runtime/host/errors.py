"""The error of the host functions."""

from __future__ import annotations

from tilestitch.runtime.errors import ExecutionError


class HostError(ExecutionError):
    """A numpy operator got operands for which it has no result: an index out of range, shapes that do not fit.

    The message says which value; the caller adds the name of the ONNX node.
    """
