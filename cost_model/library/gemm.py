"""Latency of one float32 GEMM of a library, given the tile and split that it computes with.

    us     = max(host, gap + body)
    body   = smooth_max(compute, memory) [+ the second kernel of split-K]
    compute = k-steps of the fullest SM * time of a step * (efficiency of the tile, power, alignment)

The fullest SM computes ceil(blocks / SMs) blocks in sequence, and never fewer than keep its lanes busy. Each block
costs `fill` additional k-steps, for its first operands and its results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilestitch.cost_model.laws import compute, memory
from tilestitch.cost_model.library.hierarchy import ALONE, Family, alone_us
from tilestitch.cost_model.library.sheet import Chips

TILES = ((128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (64, 32), (32, 32))
"""Columns and rows of the result that a block computes, in the order of cuBLAS's names (sgemm_128x64)."""
SPLITS = (1, 2, 3, 4, 6, 8, 13)
LEAST_SPLIT_DEPTH = 64
"""Least depth of the parts into which libraries split a contraction."""
REFERENCE_EDGE = 64.0
FAR = 8192.0
"""Row length of operands from which the rows of a tile span more pages of memory than some GPUs' TLBs cover."""
CORNER = 8.0
"""Sharpness of the transition from full clock to power limit."""

_WIDTH = np.array([tile[0] for tile in TILES], float)
_HEIGHT = np.array([tile[1] for tile in TILES], float)
_LOADS = 1.25 * 0.5 / np.array([8, 8, 8, 4, 4, 4, 4], float)
"""Loads per multiply-add: a thread with 8 x 8 results reads 16 operands for 64 of them, four at a time, and a quarter
as many go from memory to shared memory before.
"""
_OTHERS = 0.03
"""Loop instructions per multiply-add."""
_EDGES = REFERENCE_EDGE / _WIDTH + REFERENCE_EDGE / _HEIGHT
"""Operand bytes per operation relative to a 128 x 128 tile."""

_EFFICIENCY = (1.06, 1.08, 1.12, 1.16, 1.16, 1.25, 1.40)
_RESIDENT = (1.0, 1.3, 3.0, 1.3, 1.3, 2.0, 3.0)

SHARED = (
    ("fill", 12.0, 0.0, 60.0),
    ("sharpness", 2.5, 1.2, 6.0),
    ("operand_energy", 0.3, 0.0, 1.0),
    ("log_reaction_us", 5.0, 2.0, 6.5),
    ("second_kernel_us", 2.0, 0.0, 20.0),
    *((f"steps_{w}x{h}", value, 0.95, 2.0) for (w, h), value in zip(TILES, _EFFICIENCY)),
    *((f"resident_{w}x{h}", value, 0.5, 8.0) for (w, h), value in zip(TILES, _RESIDENT)),
)
TRAITS = (
    *ALONE,
    ("log_steps", 0.0, 0.08, -0.4, 0.6),
    ("log_dram", 0.3, 0.12, -0.6, 1.3),
    ("unaligned", 0.05, 0.06, -0.1, 0.4),
    ("log_picojoules", 2.6, 0.15, 1.5, 4.0),
    ("far_apart", 0.05, 0.08, 0.0, 0.8),
)
FAMILY = Family(SHARED, TRAITS)
_FIRST_TILE = 5


@dataclass(frozen=True)
class Gemms:
    """Batches of (m x n) @ (n x k): n is contracted. shared: one right operand for the whole batch, as in layers."""

    batch: np.ndarray
    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    shared: bool

    def __len__(self) -> int:
        return len(self.m)

    def take(self, rows: np.ndarray) -> Gemms:
        return replace(self, batch=self.batch[rows], m=self.m[rows], n=self.n[rows], k=self.k[rows])

    @property
    def flops(self) -> np.ndarray:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def nbytes(self) -> np.ndarray:
        """Bytes of operands and result, each counted once."""
        right = np.where(self.shared, 1.0, self.batch) * self.n * self.k
        return 4.0 * (self.batch * self.m * (self.n + self.k) + right)

    @property
    def unaligned(self) -> np.ndarray:
        """Whether rows of operands begin at positions unaligned for vector loads of four."""
        odd = self.n % 4 != 0
        return (odd if self.shared else odd | (self.k % 4 != 0)).astype(float)


def least_us(gemms: Gemms, chip: Chips) -> np.ndarray:
    """Return a lower bound for any kernel: arithmetic at the boost clock, bytes at the nominal bandwidth."""
    return np.maximum(
        gemms.flops / chip.flops_per_us, memory.least_dram_us(gemms.nbytes, chip.l2_bytes, chip.dram_gb_s)
    )


def body_us(
    gemms: Gemms, tile: np.ndarray, split: np.ndarray, chip: Chips, shared: np.ndarray, traits: np.ndarray
) -> np.ndarray:
    """Return the microseconds of each GEMM with TILES[tile] and its contraction in `split` parts, without its launch.

    shared: FAMILY's parameters; traits: of the GPU, an array (traits,) or (traits, rows).
    """
    fill, sharpness, operand_energy, reaction, second_us = shared[:_FIRST_TILE]
    steps = shared[_FIRST_TILE : _FIRST_TILE + len(TILES)][tile]
    resident = shared[_FIRST_TILE + len(TILES) :][tile]
    log_steps, log_dram, unaligned, picojoules, far_apart = traits[len(ALONE) :]
    width, height = _WIDTH[tile], _HEIGHT[tile]
    blocks = gemms.batch * compute.tiles(gemms.k, width) * compute.tiles(gemms.m, height) * split
    rounds = np.maximum(compute.blocks_of_fullest_sm(blocks, chip.sm_count), resident)
    depth = np.ceil(gemms.n / split)
    issue = compute.issue_slowdown(chip.capability, chip.lanes, _LOADS[tile], _OTHERS)
    step_us = issue * 2.0 * width * height * chip.sm_count / chip.flops_per_us
    nominal_us = rounds * step_us * depth
    efficiency = steps * np.exp(log_steps)
    energy = np.exp(picojoules) * (1.0 + operand_energy * (_EDGES[tile] - 1.0))
    limit = compute.slowdown(energy, chip.flops_per_us, chip.tdp_w, chip.process_nm) / (issue * efficiency)
    excess = (1.0 + limit**CORNER) ** (1.0 / CORNER) - 1.0
    slower = 1.0 + compute.throttled(nominal_us, np.exp(reaction)) * excess
    apart = np.log2(np.maximum(1.0, gemms.n / FAR))
    efficiency = efficiency * slower * np.exp(unaligned * gemms.unaligned + far_apart * apart)
    compute_us = nominal_us * efficiency + rounds * step_us * fill
    partial = np.where(split > 1, 8.0 * split * gemms.batch * gemms.m * gemms.k, 0.0)
    memory_us = np.exp(log_dram) * (gemms.nbytes + partial) / chip.dram_bytes_per_us
    either_us = compute.smooth_max(compute_us, memory_us, sharpness) + second_us * (split > 1)
    return np.maximum(either_us, least_us(gemms, chip))


def latency_us(
    gemms: Gemms, tile: np.ndarray, split: np.ndarray, chip: Chips, shared: np.ndarray, traits: np.ndarray
) -> np.ndarray:
    """Return the microseconds of each GEMM launched alone."""
    return alone_us(body_us(gemms, tile, split, chip, shared, traits), traits)


def candidates(gemms: Gemms, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Return the microseconds by tile without the launch, in the shape (TILES, rows), each with its best split."""
    found = []
    for number in range(len(TILES)):
        tile = np.array([number])
        best = body_us(gemms, tile, np.ones(1), chip, shared, traits)
        for split in SPLITS[1:] if gemms.shared else ():
            rows = np.flatnonzero((gemms.n >= split * LEAST_SPLIT_DEPTH) & _leaves_sms_idle(gemms, number, split, chip))
            if not len(rows):
                continue
            some = traits[:, rows] if traits.ndim == 2 else traits
            other = body_us(gemms.take(rows), tile, np.full(1, float(split)), chip.take(rows), shared, some)
            best[rows] = np.minimum(best[rows], other)
        found.append(best)
    return np.array(found)


def _leaves_sms_idle(gemms: Gemms, tile: int, split: int, chip: Chips) -> np.ndarray:
    """Return whether blocks are so few that splitting may pay: a dozen waves leave little to balance."""
    blocks = gemms.batch * compute.tiles(gemms.k, _WIDTH[tile]) * compute.tiles(gemms.m, _HEIGHT[tile])
    return blocks <= 12 * chip.sm_count
