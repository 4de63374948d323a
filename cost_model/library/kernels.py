"""A kernel of a model, as tables of measurements describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KernelClass = Literal["bmm", "linear", "elementwise", "softmax", "layernorm", "conv", "copy"]


@dataclass(frozen=True)
class Kernel:
    """A kernel of a model. sizes: as in tables of measurements; for copies, the bytes read and written. times: number
    of launches by the model.
    """

    kernel_class: KernelClass
    op: str
    sizes: tuple[int, ...]
    times: int = 1
