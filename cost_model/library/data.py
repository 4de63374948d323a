"""Kernels of models, and tables of measured ones, a class each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilestitch.cost_model.library.convolution import Convs
from tilestitch.cost_model.library.gemm import Gemms
from tilestitch.cost_model.library.rows import Kind, RowKernels, row_kernels

GEMM_CLASSES = ("bmm", "linear")
CONV = "conv"
GRAPH_CLASSES = (*GEMM_CLASSES, "elementwise", "softmax", "layernorm")
"""The classes that measured whole models consist of."""
CLASSES = (*GRAPH_CLASSES, CONV)
KINDS: dict[str, Kind] = {"elementwise": "elementwise", "softmax": "softmax", "layernorm": "layernorm"}


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


@dataclass(frozen=True)
class KernelTable:
    """Measured kernels of a class. large: from the file of large shapes; tile: index into TILES of a GEMM kernel's
    tile, or -1; split: parts of its contraction. op: operator of an element-wise kernel.
    """

    name: str
    gpu: np.ndarray
    op: np.ndarray
    us: np.ndarray
    large: np.ndarray
    sizes: np.ndarray
    tile: np.ndarray
    split: np.ndarray

    def __len__(self) -> int:
        return len(self.us)

    def take(self, at: np.ndarray) -> KernelTable:
        arrays = (self.gpu, self.op, self.us, self.large, self.sizes, self.tile, self.split)
        return KernelTable(self.name, *(array[at] for array in arrays))

    @property
    def is_gemm(self) -> bool:
        return self.name in GEMM_CLASSES

    def gemms(self) -> Gemms:
        batch, m, n, k = self.sizes.T.astype(float)
        return Gemms(batch, m, n, k, self.name == "linear")

    def convs(self) -> Convs:
        batch, inputs, outputs, kernel, edge, stride, padding = self.sizes.T.astype(float)
        result = np.floor((edge + 2 * padding - kernel) / stride) + 1
        return Convs(batch, inputs, outputs, kernel, kernel, result, result, (stride == 1).astype(float))

    def rows(self) -> RowKernels:
        return row_kernels(KINDS[self.name], self.op, self.sizes[:, 0], self.sizes[:, 1])
