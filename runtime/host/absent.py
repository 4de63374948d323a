"""The value of an absent optional operand, output or ONNX optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .common import Attrs, HostFn


def _none(inputs: Sequence[Any], attrs: Attrs) -> list[None]:
    return [None]


TABLE: Mapping[str, HostFn] = {"none": _none}
