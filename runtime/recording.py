"""The callback that measures launches."""

from __future__ import annotations

from collections.abc import Callable

RecordTime = Callable[[str, tuple[str, ...], float, int], None]
"""Callback for a launch: the kernel's name, the ONNX nodes it computes, its time in microseconds, and its branch."""
