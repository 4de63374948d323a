"""Latency of one float32 convolution of a library: the fastest of three algorithms, all of them GEMMs.

    implicit  one GEMM: pixels of the result x (taps * channels in) x channels out
    fused     Winograd's F(2x2, 3x3) in one kernel: 16 GEMMs over a quarter of the pixels
    split     Winograd's F(4x4, 3x3): transforms that go through memory around 36 GEMMs over a sixteenth of the pixels

Both Winograd algorithms exist for 3 x 3 taps, neither strided nor dilated, and transform the filter before (Lavin and
Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016). What a library's choice and its kernels add to
that is corrected by boosted trees.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from tilestitch.cost_model.laws import memory
from tilestitch.cost_model.library.gemm import Gemms
from tilestitch.cost_model.library.hierarchy import ALONE, Family, alone_us
from tilestitch.cost_model.library.sheet import Chips

SHARED = (
    ("log_implicit", 0.2, -1.0, 1.5),
    ("log_fused", 0.3, -1.0, 1.5),
    ("log_split", 0.1, -1.0, 1.5),
    ("log_transform", 0.2, -3.0, 2.0),
    ("log_filter", 0.2, -3.0, 2.0),
)
TRAITS = (
    # Several launches: filter, convolution, bias. Kept near the initial value, or they absorb effects of small kernels.
    ("log_host_us", np.log(60.0), 0.01, 1.0, 5.5),
    ("log_gap_us", np.log(30.0), 0.01, 1.0, np.log(100.0)),
    ("log_scale", 0.0, 0.15, -1.0, 1.0),
)
FAMILY = Family(SHARED, TRAITS)
SHARPNESS = 8.0
"""Sharpness of the smooth minimum over algorithms."""
FUSED, SPLIT = 16.0, 36.0
"""Multiplications of a Winograd tile: of 2 x 2 pixels, and of 4 x 4."""
LEAST_WORK = 4.0
"""Largest reduction of direct arithmetic by Winograd's F(4x4, 3x3): 144 multiplications become 36."""
FARTHEST = 6.0
"""Cap for features: an algorithm that takes 2**6 times as long as the best is as good as none."""


@dataclass(frozen=True)
class Convs:
    """Convolutions of images. height, width: of the result; unit: 1 where neither strided nor dilated, else 0."""

    batch: np.ndarray
    channels_in: np.ndarray
    channels_out: np.ndarray
    kernel_height: np.ndarray
    kernel_width: np.ndarray
    height: np.ndarray
    width: np.ndarray
    unit: np.ndarray

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, rows: np.ndarray) -> Convs:
        return Convs(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def taps(self) -> np.ndarray:
        return self.kernel_height * self.kernel_width

    @property
    def flops(self) -> np.ndarray:
        return 2.0 * self.batch * self.height * self.width * self.channels_in * self.taps * self.channels_out

    @property
    def winograd(self) -> np.ndarray:
        """Whether Winograd's algorithms apply."""
        return (self.kernel_height == 3) & (self.kernel_width == 3) & (self.unit > 0)

    @property
    def pixels_nbytes(self) -> np.ndarray:
        """Bytes of images and results, each counted once."""
        return 4.0 * self.batch * self.height * self.width * (self.channels_in + self.channels_out)

    def tiles(self, side: int) -> np.ndarray:
        """Return the number of squares of `side` x `side` pixels that cover the results."""
        return self.batch * np.ceil(self.height / side) * np.ceil(self.width / side)


def implicit(convs: Convs) -> Gemms:
    pixels = convs.batch * convs.height * convs.width
    return Gemms(np.ones(len(convs)), pixels, convs.channels_in * convs.taps, convs.channels_out, True)


def fused(convs: Convs) -> Gemms:
    return Gemms(np.full(len(convs), FUSED), convs.tiles(2), convs.channels_in, convs.channels_out, False)


def split(convs: Convs) -> Gemms:
    return Gemms(np.full(len(convs), SPLIT), convs.tiles(4), convs.channels_in, convs.channels_out, False)


def transform_us(convs: Convs, chip: Chips) -> np.ndarray:
    """Return the time to write and read images and results in the transformed form that `split` multiplies, including
    the images themselves.
    """
    spread = 4.0 * SPLIT * convs.tiles(4) * (convs.channels_in + convs.channels_out)
    return (spread + convs.pixels_nbytes) / chip.dram_bytes_per_us


def filter_us(convs: Convs, multiplications: float, chip: Chips) -> np.ndarray:
    """Return the time to read a filter, and to write and read it in the transformed form of Winograd's algorithms."""
    return 4.0 * (2.0 * multiplications + 9.0) * convs.channels_in * convs.channels_out / chip.dram_bytes_per_us


def least_us(convs: Convs, chip: Chips) -> np.ndarray:
    """Return a lower bound for any kernel: bytes at nominal bandwidth, arithmetic minus Winograd's best saving."""
    arithmetic = convs.flops / np.where(convs.winograd, LEAST_WORK, 1.0) / chip.flops_per_us
    return np.maximum(arithmetic, memory.least_dram_us(convs.pixels_nbytes, chip.l2_bytes, chip.dram_gb_s))


def algorithms_us(convs: Convs, gemm_us: np.ndarray, chip: Chips, shared: np.ndarray) -> np.ndarray:
    """Return the microseconds by algorithm without launches, in the shape (3, convs). gemm_us: of the GEMMs of each."""
    implicit_cost, fused_cost, split_cost, transform_cost, filter_cost = np.exp(shared)
    by_fused = fused_cost * gemm_us[1] + filter_cost * filter_us(convs, FUSED, chip)
    by_split = split_cost * gemm_us[2] + filter_cost * filter_us(convs, SPLIT, chip)
    by_split = by_split + transform_cost * transform_us(convs, chip)
    exists = convs.winograd
    return np.stack([
        implicit_cost * gemm_us[0], np.where(exists, by_fused, np.inf), np.where(exists, by_split, np.inf)
    ])  # fmt: skip


def body_us(convs: Convs, gemm_us: np.ndarray, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Return the law's microseconds without launches. traits: of the GPU, an array (traits,) or (traits, convs)."""
    log_scale = traits[len(ALONE)]
    times = algorithms_us(convs, gemm_us, chip, shared)
    best = times.min(axis=0)
    softly = best * ((times / best) ** -SHARPNESS).sum(axis=0) ** (-1.0 / SHARPNESS)
    return np.maximum(np.exp(log_scale) * softly, least_us(convs, chip))


def latency_us(convs: Convs, gemm_us: np.ndarray, chip: Chips, shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Return the law's microseconds of each convolution launched alone."""
    return alone_us(body_us(convs, gemm_us, chip, shared, traits), traits)


def features(convs: Convs, gemm_us: np.ndarray, chip: Chips, shared: np.ndarray) -> np.ndarray:
    """Return the features of the correction, in the shape (convs, features)."""
    times = algorithms_us(convs, gemm_us, chip, shared)
    best = times.min(axis=0)
    tiles, outputs = convs.tiles(2), convs.channels_out
    edge = np.sqrt(convs.height * convs.width)
    return np.stack([
        *np.minimum(FARTHEST, np.log2(times / best)),
        np.log2(transform_us(convs, chip) / best),
        np.log2(filter_us(convs, SPLIT, chip) / best),
        np.log2(tiles / chip.sm_count),
        np.log2(convs.channels_in), np.log2(outputs), np.log2(edge), np.log2(convs.batch),
        16.0 * convs.tiles(4) / (tiles * 4.0), 4.0 * tiles / (convs.batch * edge * edge),
        *(np.ceil(outputs / width) * width / outputs for width in (128, 64, 32)),
        np.ceil(outputs / 32) * np.ceil(tiles / 32) / chip.sm_count,
        convs.channels_in % 8, outputs % 8,
    ], axis=1)  # fmt: skip
