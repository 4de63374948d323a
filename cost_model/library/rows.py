"""Latency of kernels that are bound by memory: element-wise ones, and softmax and layer normalisation of rows.

    us   = max(host, gap + body)
    body = DRAM bytes / bandwidth + sum over terms (coefficient * amount of work / rate of the chip)

The terms count what such kernels do besides: instructions of threads, blocks or warps to start, and second readings of
rows that the L2 cache no longer has. What the law leaves is corrected by boosted trees (trees.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.laws import memory
from tilestitch.cost_model.library.hierarchy import ALONE, Family, alone_us
from tilestitch.cost_model.library.sheet import Chips

Kind = Literal["elementwise", "softmax", "layernorm"]

OPERANDS = {
    "add": 2, "mul": 2, "div": 2, "pow": 2,
    "addu": 1, "mulu": 1, "divu": 1, "powu": 1, "gelu": 1, "relu": 1, "tanh": 1,
}  # fmt: skip
"""Tensors that an element-wise operator reads; a final u says that the other operand is a scalar."""
POWERS = frozenset({"pow", "powu"})
COSTLY = frozenset({"tanh", "gelu", "div", "divu"})
LONGEST_WARP_ROW = 1024
"""Softmax of PyTorch: a warp computes a row up to this length, a block a longer one."""
RESIDENT_ROWS = 16
"""Blocks of 128 threads, each with a row, that an SM holds."""


def _term(name: str) -> tuple[str, float, float, float]:
    return f"log_{name}", 1.5, -5.0, 8.0


TERMS: dict[Kind, tuple[str, ...]] = {
    "elementwise": ("element", "power", "costly"),
    "softmax": ("warp_element", "block_element", "warp_row", "block_row", "second_reading"),
    "layernorm": ("element", "row", "unaligned_element", "second_reading"),
}


def _family(kind: Kind) -> Family:
    traits = (
        *ALONE,
        ("log_dram", 0.0, 0.10, -1.0, 1.5),
        ("log_work", 0.0, 0.15, -1.5, 1.5),
    )
    return Family(tuple(map(_term, TERMS[kind])), traits)


FAMILIES: dict[Kind, Family] = {kind: _family(kind) for kind in TERMS}


@dataclass(frozen=True)
class RowKernels:
    """Kernels over (rows, width) tensors of float32. operands: tensors read; power, costly: whether the operator is one
    that takes many instructions an element.
    """

    kind: Kind
    rows: np.ndarray
    width: np.ndarray
    operands: np.ndarray
    power: np.ndarray
    costly: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, at: np.ndarray) -> RowKernels:
        return RowKernels(self.kind, self.rows[at], self.width[at], self.operands[at], self.power[at], self.costly[at])

    @property
    def elements(self) -> np.ndarray:
        return self.rows * self.width

    @property
    def nbytes(self) -> np.ndarray:
        """Of the tensors read and the one written, each counted once."""
        return 4.0 * (self.operands + 1.0) * self.elements


def row_kernels(kind: Kind, ops: np.ndarray, rows: np.ndarray, width: np.ndarray) -> RowKernels:
    """Kernels of the operators named. Raises MeasurementError for element-wise ones that nothing is known of."""
    names = np.asarray(ops)
    distinct, at = np.unique(names, return_inverse=True)
    unknown = [str(name) for name in distinct if kind == "elementwise" and str(name) not in OPERANDS]
    if unknown:
        raise MeasurementError(f"unknown element-wise operators {', '.join(unknown)}; known: {', '.join(OPERANDS)}")
    operands = np.array([OPERANDS.get(str(name), 1) for name in distinct], float)[at]
    power, costly = (np.array([str(name) in group for name in distinct], float)[at] for group in (POWERS, COSTLY))
    return RowKernels(kind, rows.astype(float), width.astype(float), operands, power, costly)


def least_us(kernels: RowKernels, chip: Chips) -> np.ndarray:
    """What no kernel can beat: the bytes that no L2 cache holds, at the nominal bandwidth less what check bits take."""
    return memory.least_dram_us(kernels.nbytes, chip.l2_bytes, chip.dram_bytes_per_us / 1e3)


def dram_us(kernels: RowKernels, chip: Chips) -> np.ndarray:
    return kernels.nbytes / chip.dram_bytes_per_us


def terms(kernels: RowKernels, chip: Chips) -> np.ndarray:
    """Amounts of work over rates, in microseconds, in the order of TERMS: shape (terms, kernels)."""
    issue, cycles = chip.issued_per_us, chip.sm_count * chip.clock_mhz
    elements, rows, width = kernels.elements, kernels.rows, kernels.width
    if kernels.kind == "elementwise":
        return np.stack([elements / issue, elements * kernels.power / issue, elements * kernels.costly / issue])
    resident = np.minimum(1.0, chip.sm_count * RESIDENT_ROWS * width * 4.0 / chip.l2_bytes)
    again = resident * elements * 4.0 / chip.dram_bytes_per_us
    if kernels.kind == "layernorm":
        odd = (width % 4 != 0).astype(float)
        return np.stack([elements / issue, rows / cycles, odd * elements / issue, again])
    warp = (width <= LONGEST_WARP_ROW).astype(float)
    padded = np.maximum(32.0, 2.0 ** np.ceil(np.log2(np.maximum(1.0, width))))
    return np.stack([
        warp * rows * padded / issue, (1 - warp) * elements / issue,
        warp * rows / cycles, (1 - warp) * rows / cycles, (1 - warp) * again,
    ])  # fmt: skip


def body_us(kernels: RowKernels, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Microseconds by the law, without the launch. shared: logarithms of the terms' coefficients; traits: (traits,) or
    (traits, rows).
    """
    log_dram, log_work = traits[len(ALONE) :]
    moved_us, other_us = dram_us(kernels, chip), np.exp(shared) @ terms(kernels, chip)
    return np.maximum(np.exp(log_dram) * moved_us + np.exp(log_work) * other_us, least_us(kernels, chip))


def latency_us(kernels: RowKernels, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Microseconds by the law of each kernel launched alone."""
    return alone_us(body_us(kernels, chip, shared, traits), traits)


def features(kernels: RowKernels, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Ratios that the correction is predicted from: shape (kernels, features)."""
    gap, log_dram, log_work = traits[1:]
    moved_us = np.exp(log_dram) * dram_us(kernels, chip)
    other_us = np.exp(log_work) * (np.exp(shared) @ terms(kernels, chip))
    width = np.maximum(1.0, kernels.width)
    return np.stack([
        np.log2(moved_us + 1e-3) - gap / np.log(2.0),
        np.log2(width),
        np.log2(np.maximum(1.0, kernels.rows) / chip.sm_count),
        (kernels.width % 4 == 0).astype(float),
        np.ceil(np.log2(width)) - np.log2(width),
        np.log2((other_us + 1e-6) / (moved_us + 1e-6)),
        kernels.operands, kernels.power, kernels.costly,
    ], axis=1)  # fmt: skip
