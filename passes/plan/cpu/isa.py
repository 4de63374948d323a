"""What schedules need to know of a CPU: vector width, number of vector registers, cache sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.errors import PlanError

WORD_BYTES = 4


@dataclass(frozen=True)
class Dot:
    """An instruction that multiplies 8-bit integers, those of the left operand by signed ones of the right, and adds up
    those of each `group` of neighbours in 32 bits, without saturation.

    left, right: the dtypes that it multiplies; operands that are narrower are widened before. sums: the dtype of sums;
    lanes: how many it adds to. Of half floats, one that adds up in float32.
    """

    name: str
    group: int
    left: str
    right: str
    sums: str = "int32"
    lanes: tuple[int, ...] = (4, 8, 16)

    @property
    def packs_at_run_time(self) -> bool:
        """Whether a right operand known at run time is packed for it: where a group is a word. What is made wider as it
        is read is stored as bytes.
        """
        return self.group * storage_bytes(self.operands[1]) == WORD_BYTES

    @property
    def operands(self) -> tuple[str, str]:
        """The dtypes of what it computes a contraction of, as they lie in memory."""
        if self.sums != "int32":
            return self.left, self.right
        return ("int8" if self.left == "int8" else "uint8"), "int8"


class Multiplied(Protocol):
    """The shape of a contraction, as these instructions see it."""

    def multiplied_by(self, dot: Dot) -> bool: ...


DOTS = {
    "vpdpbusd": Dot("vpdpbusd", 4, "uint8", "int8"),
    "vpmaddwd": Dot("vpmaddwd", 2, "int16", "int16"),
    "usdot": Dot("usdot", 4, "uint8", "int8", lanes=(4,)),
    "sdot": Dot("sdot", 4, "int8", "int8", lanes=(4,)),
}
"""Of x86-64, and of aarch64 with FEAT_I8MM and FEAT_DotProd."""
HALF_DOTS = {
    "vdpbf16ps": Dot("vdpbf16ps", 2, "bfloat16", "bfloat16", "float32", (16,)),
    "bfdot": Dot("bfdot", 2, "bfloat16", "bfloat16", "float32", (4,)),
}
"""Of x86-64, and of aarch64 with FEAT_BF16."""
TILE_DOTS = {
    "tdpbusd": Dot("tdpbusd", 4, "uint8", "int8", "int32", (16,)),
    "tdpbf16ps": Dot("tdpbf16ps", 2, "bfloat16", "bfloat16", "float32", (16,)),
}
"""Those of AMX, for tiles of up to 16 rows by 64 bytes."""
ALL_DOTS = {**DOTS, **HALF_DOTS, **TILE_DOTS}
TILE_ROWS, TILE_BYTES = 16, 64
"""Most rows of a tile, and bytes of each."""
TILE_CYCLES, TILE_LOAD_CYCLES, TILE_STORE_CYCLES = 16, 8, 16
"""From one multiplication of tiles, load or store of one to the next (Intel's optimisation manual, 248966, chapter on
AMX).
"""
TILE_LATENCY = 52
"""Cycles from one multiplication of tiles to the next that adds to the same sums (the same)."""
TILE_BYTES_A_CYCLE = TILE_ROWS * TILE_ROWS * TILE_BYTES // TILE_CYCLES
"""Multiply-adds of bytes."""


@dataclass(frozen=True)
class Isa:
    """Vector unit and caches of one core.

    `fma_ports` and `load_ports` are vector operations started per cycle, `fma_latency` is in cycles. They steer the
    choice of schedules only; a wrong figure costs speed, never correctness. dot: what multiplies groups of 8-bit
    integers, if anything does.
    """

    name: str
    vector_bytes: int
    vector_registers: int
    fma_ports: int = 2
    load_ports: int = 2
    fma_latency: int = 4
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    dot: Dot | None = None
    half_dot: Dot | None = None
    """What multiplies groups of half floats, if anything does."""
    tile_dots: tuple[Dot, ...] = ()
    """What multiplies tiles of either."""
    looks_up: bool = False
    """Whether an instruction looks up 16 floats at once."""
    shares_ports: bool = False
    """Whether the ports that multiply also convert and add: epilogues gain nothing from running beside products."""
    winograd: bool = True
    """Whether convolutions may be computed by Winograd's algorithm."""

    def dot_of(self, shape: Multiplied) -> Dot | None:
        """Return the instruction for groups that computes a contraction of that shape, if there is one."""
        return next((dot for dot in (self.dot, self.half_dot) if dot is not None and shape.multiplied_by(dot)), None)

    def lanes(self, dtype: str) -> int:
        """Return the elements of `dtype` in one vector register."""
        return max(1, self.vector_bytes // storage_bytes(dtype))


AVX512 = Isa("avx512", 64, 32, l1_bytes=48 * 1024, l2_bytes=2 * 1024 * 1024, looks_up=True)
AVX2 = Isa("avx2", 32, 16)
SSE = Isa("sse", 16, 16)
NEON = Isa("neon", 16, 32, l1_bytes=64 * 1024)
SCALAR = Isa("generic", 16, 16)

ISAS = {isa.name: isa for isa in (AVX512, AVX2, SSE, NEON, SCALAR)}
USUAL = AVX2
"""The vector unit that kernels are scheduled for where a target names none."""


def isa_named(name: str, dot: str = "", half_dot: str = "", tile_dots: Collection[str] = ()) -> Isa:
    """Return the vector unit of that name, the usual one for "", with those instructions; PlanError if there is none
    such.
    """
    if name and name not in ISAS:
        raise PlanError(f"no CPU has the vector unit {name!r}; known are {', '.join(ISAS)}")
    if dot and dot not in DOTS:
        raise PlanError(f"no CPU multiplies integers by {dot!r}; known are {', '.join(DOTS)}")
    if half_dot and half_dot not in HALF_DOTS:
        raise PlanError(f"no CPU multiplies half floats by {half_dot!r}; known are {', '.join(HALF_DOTS)}")
    odd = sorted(set(tile_dots) - set(TILE_DOTS))
    if odd:
        raise PlanError(f"no CPU multiplies tiles by {odd[0]!r}; known are {', '.join(TILE_DOTS)}")
    isa = ISAS[name] if name else USUAL
    tiles = tuple(TILE_DOTS[each] for each in TILE_DOTS if each in tile_dots)
    return replace(isa, dot=DOTS.get(dot), half_dot=HALF_DOTS.get(half_dot), tile_dots=tiles)
