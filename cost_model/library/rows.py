"""Latency of memory-bound kernels: element-wise ones, and softmax and layer normalisation of rows.

    us   = max(host, gap + body)
    body = p-norm of (DRAM bytes / bandwidth) and (sum over terms: coefficient * amount of work / rate of the chip)

DRAM bytes include repeated reads, to the extent that the rows in flight exceed the L2 cache. The terms count the other
work of such kernels: instructions of threads, and blocks or warps to start. Boosted trees correct the residuals
(trees.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.laws import memory
from tilestitch.cost_model.laws.compute import smooth_max
from tilestitch.cost_model.library.hierarchy import ALONE, Family, alone_us
from tilestitch.cost_model.library.sheet import Chips

Kind = Literal["elementwise", "softmax", "layernorm"]

OPERANDS = {
    "add": 2, "mul": 2, "div": 2, "pow": 2,
    "addu": 1, "mulu": 1, "divu": 1, "powu": 1, "gelu": 1, "relu": 1, "tanh": 1,
}  # fmt: skip
"""Number of tensors that an element-wise operator reads; a final u means that the other operand is a scalar."""
POWERS = frozenset({"pow", "powu"})
COSTLY = frozenset({"tanh", "gelu", "div", "divu"})
LONGEST_WARP_ROW = 1024
"""Longest row that PyTorch's softmax computes with a warp; longer ones take a block."""
VECTOR = 4
"""Elements per load of a thread."""
LEAST_THREADS, MOST_THREADS, NORM_THREADS = 32, 1024, 128
"""Threads of a block that computes a row: for softmax between the first two, for layer normalisation the last."""
HELD_THREADS = 65536 / 40
"""Threads of such kernels that fit an SM's registers, with 40 each. A judgement."""
READ_AGAIN: dict[Kind, float] = {"elementwise": 0.0, "softmax": 2.0, "layernorm": 1.0}
"""How often a block reads its row again after the first time; softmax does so for the sum and for the results."""
LEAVING = 6.0
"""Exponent that controls how abruptly rows are evicted when those in flight exceed the cache."""
SHARPNESS = "log_sharpness", 0.9, 0.0, 3.0
"""Sharpness of the transition between memory and other work."""


def _term(name: str) -> tuple[str, float, float, float]:
    """Return a term's parameter; initial values are about 20 instructions per element, and 400 cycles per row: far
    below these, gradients vanish.
    """
    return f"log_{name}", 6.0 if name.endswith("row") else 3.0, -5.0, 8.0


TERMS: dict[Kind, tuple[str, ...]] = {
    "elementwise": ("element", "power", "costly"),
    "softmax": ("warp_element", "block_element", "block_edge", "warp_row", "block_row"),
    "layernorm": ("element", "row", "unaligned_element"),
}


def _family(kind: Kind) -> Family:
    traits = (
        *ALONE,
        ("log_dram", 0.0, 0.10, -1.0, 1.5),
        ("log_work", 0.0, 0.15, -1.5, 1.5),
        *((("log_cache", -0.3, 0.25, -2.0, 1.0),) if READ_AGAIN[kind] else ()),
    )
    return Family((*map(_term, TERMS[kind]), SHARPNESS), traits)


FAMILIES: dict[Kind, Family] = {kind: _family(kind) for kind in TERMS}


@dataclass(frozen=True)
class RowKernels:
    """Kernels over float32 tensors (rows, width). operands: number of tensors read; power, costly: whether the operator
    takes many instructions per element.
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
        """Bytes of the tensors read and the one written, each counted once."""
        return 4.0 * (self.operands + 1.0) * self.elements


def row_kernels(kind: Kind, ops: np.ndarray, rows: np.ndarray, width: np.ndarray) -> RowKernels:
    """Return the kernels of the given operators. Raises MeasurementError for unknown element-wise ones."""
    names = np.asarray(ops)
    distinct, at = np.unique(names, return_inverse=True)
    unknown = [str(name) for name in distinct if kind == "elementwise" and str(name) not in OPERANDS]
    if unknown:
        raise MeasurementError(f"unknown element-wise operators {', '.join(unknown)}; known: {', '.join(OPERANDS)}")
    operands = np.array([OPERANDS.get(str(name), 1) for name in distinct], float)[at]
    power, costly = (np.array([str(name) in group for name in distinct], float)[at] for group in (POWERS, COSTLY))
    return RowKernels(kind, rows.astype(float), width.astype(float), operands, power, costly)


def least_us(kernels: RowKernels, chip: Chips) -> np.ndarray:
    """Return a lower bound for any kernel: the bytes that no L2 cache holds, at the nominal bandwidth minus that of
    check bits.
    """
    return memory.least_dram_us(kernels.nbytes, chip.l2_bytes, chip.dram_bytes_per_us / 1e3)


def dram_us(kernels: RowKernels, chip: Chips) -> np.ndarray:
    return kernels.nbytes / chip.dram_bytes_per_us


def block_threads(kernels: RowKernels) -> np.ndarray:
    """Return the threads of the block that computes a row."""
    if kernels.kind == "layernorm":
        return np.full(len(kernels), float(NORM_THREADS))
    loads = np.clip(kernels.width // VECTOR, 1, MOST_THREADS)
    return np.maximum(LEAST_THREADS, 2.0 ** np.ceil(np.log2(loads / 2)))


def moved_us(kernels: RowKernels, chip: Chips, traits: np.ndarray) -> np.ndarray:
    """Return the time of all bytes at the nominal bandwidth; repeated reads count again if the data were evicted in
    between.
    """
    once = dram_us(kernels, chip)
    often = READ_AGAIN[kernels.kind]
    if not often:
        return once
    log_cache = traits[len(ALONE) + 2]
    blocks = np.floor(np.minimum(chip.threads_per_sm, HELD_THREADS) / block_threads(kernels))
    under_way = 4.0 * kernels.width * np.minimum(kernels.rows, chip.sm_count * blocks)
    gone = 1.0 / (1.0 + (np.exp(log_cache) * chip.near_l2_bytes / np.maximum(1.0, under_way)) ** LEAVING)
    if kernels.kind == "softmax":
        gone = gone * (kernels.width > LONGEST_WARP_ROW)
    return once + often * gone * 4.0 * kernels.elements / chip.dram_bytes_per_us


def terms(kernels: RowKernels, chip: Chips) -> np.ndarray:
    """Return amounts of work over rates, in microseconds, in the order of TERMS: shape (terms, kernels)."""
    issue, cycles = chip.issued_per_us, chip.sm_count * chip.clock_mhz
    elements, rows, width = kernels.elements, kernels.rows, kernels.width
    if kernels.kind == "elementwise":
        return np.stack([elements / issue, elements * kernels.power / issue, elements * kernels.costly / issue])
    if kernels.kind == "layernorm":
        odd = (width % 4 != 0).astype(float)
        return np.stack([elements / issue, rows / cycles, odd * elements / issue])
    warp = (width <= LONGEST_WARP_ROW).astype(float)
    padded = np.maximum(32.0, 2.0 ** np.ceil(np.log2(np.maximum(1.0, width))))
    edge = np.mod(width, VECTOR * block_threads(kernels))
    return np.stack([
        warp * rows * padded / issue, (1 - warp) * elements / issue, (1 - warp) * rows * edge / issue,
        warp * rows / cycles, (1 - warp) * rows / cycles,
    ])  # fmt: skip


def body_us(kernels: RowKernels, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Return the law's microseconds without the launch. shared: logarithms of the terms' coefficients, and of p;
    traits: (traits,) or (traits, rows).
    """
    return np.maximum(
        smooth_max(*_apart_us(kernels, chip, shared, traits), np.exp(shared[-1])), least_us(kernels, chip)
    )


def _apart_us(
    kernels: RowKernels, chip: Chips, shared: np.ndarray, traits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the microseconds of memory, and of all other work."""
    log_dram, log_work = traits[len(ALONE) : len(ALONE) + 2]
    other_us = np.exp(log_work) * (np.exp(shared[:-1]) @ terms(kernels, chip))
    return np.exp(log_dram) * moved_us(kernels, chip, traits), other_us


def latency_us(kernels: RowKernels, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Return the law's microseconds of each kernel launched alone."""
    return alone_us(body_us(kernels, chip, shared, traits), traits)


def features(kernels: RowKernels, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Return the features of the correction, which are ratios: shape (kernels, features)."""
    memory_us, other_us = _apart_us(kernels, chip, shared, traits)
    width = np.maximum(1.0, kernels.width)
    return np.stack([
        np.log2(memory_us + 1e-3) - traits[1] / np.log(2.0),
        np.log2(width),
        np.log2(np.maximum(1.0, kernels.rows) / chip.sm_count),
        (kernels.width % 4 == 0).astype(float),
        np.ceil(np.log2(width)) - np.log2(width),
        np.log2((other_us + 1e-6) / (memory_us + 1e-6)),
        kernels.operands, kernels.power, kernels.costly,
    ], axis=1)  # fmt: skip
