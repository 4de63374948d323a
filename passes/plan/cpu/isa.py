"""What schedules need to know of a CPU: vector width, number of vector registers, cache sizes."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.errors import PlanError

WORD_BYTES = 4


@dataclass(frozen=True)
class Dot:
    """An instruction that multiplies 8-bit integers, those of the left operand by signed ones of the right, and
    accumulates each `group` of neighbours in 32 bits without saturation.

    left, right: the dtypes that it multiplies; narrower operands are widened first. sums: the accumulator dtype; lanes:
    the vector lengths of accumulators. For half floats, it accumulates in float32. pairs: pairs of products are added
    in 16 bits before, which saturates unless pairs of weights are small (`cpu.dots`).
    """

    name: str
    group: int
    left: str
    right: str
    sums: str = "int32"
    lanes: tuple[int, ...] = (4, 8, 16)
    pairs: bool = False

    @property
    def packs_at_run_time(self) -> bool:
        """Whether a right operand known only at run time is packed for it: if a group is a word. An operand that is
        widened on reading is stored as bytes.
        """
        return self.group * storage_bytes(self.operands[1]) == WORD_BYTES

    @property
    def operands(self) -> tuple[str, str]:
        """The dtypes in memory of the contractions that it computes."""
        if self.sums != "int32":
            return self.left, self.right
        return ("int8" if self.left == "int8" else "uint8"), "int8"


class Multiplied(Protocol):
    """The shape of a contraction, as far as these instructions are concerned."""

    def multiplied_by(self, dot: Dot) -> bool: ...


DOTS = {
    "vpdpbusd": Dot("vpdpbusd", 4, "uint8", "int8"),
    "vpmaddwd": Dot("vpmaddwd", 2, "int16", "int16"),
    "usdot": Dot("usdot", 4, "uint8", "int8", lanes=(4,)),
    "sdot": Dot("sdot", 4, "int8", "int8", lanes=(4,)),
}
"""Integer instructions of x86-64, and of aarch64 with FEAT_I8MM and FEAT_DotProd."""
HALF_DOTS = {
    "vdpbf16ps": Dot("vdpbf16ps", 2, "bfloat16", "bfloat16", "float32", (16,)),
    "bfdot": Dot("bfdot", 2, "bfloat16", "bfloat16", "float32", (4,)),
}
"""Half-float instructions of x86-64, and of aarch64 with FEAT_BF16."""
TILE_DOTS = {
    "tdpbusd": Dot("tdpbusd", 4, "uint8", "int8", "int32", (16,)),
    "tdpbf16ps": Dot("tdpbf16ps", 2, "bfloat16", "bfloat16", "float32", (16,)),
}
"""Tile instructions of AMX, for tiles of up to 16 rows by 64 bytes."""
OF_PAIRS = Dot("vpmaddubsw", 4, "uint8", "int8", pairs=True)
"""What CPUs with `vpmaddwd` have for small weights: a third to a half faster."""
ALL_DOTS = {**DOTS, **HALF_DOTS, **TILE_DOTS, OF_PAIRS.name: OF_PAIRS}
TILE_ROWS, TILE_BYTES = 16, 64
"""Most rows of a tile, and bytes of each row."""
TILE_CYCLES, TILE_LOAD_CYCLES, TILE_STORE_CYCLES = 16, 8, 16
"""Reciprocal throughput in cycles of a tile multiplication, load and store (Intel's optimisation manual, 248966,
chapter on AMX).
"""
TILE_LATENCY = 52
"""Latency in cycles between tile multiplications that accumulate into the same tile (same source)."""
TILE_BYTES_A_CYCLE = TILE_ROWS * TILE_ROWS * TILE_BYTES // TILE_CYCLES
"""Multiply-adds of bytes per cycle."""


@dataclass(frozen=True)
class Isa:
    """Vector unit and caches of one core.

    `fma_ports` and `load_ports` are vector operations started per cycle, `fma_latency` is in cycles. They only guide
    the choice of schedules; a wrong figure costs speed, never correctness. dot: the instruction that multiplies groups
    of 8-bit integers, if any.
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
    """The instruction that multiplies groups of half floats, if any."""
    tile_dots: tuple[Dot, ...] = ()
    """The instructions that multiply tiles of either."""
    looks_up: bool = False
    """Whether an instruction looks up 16 floats at once."""
    shares_ports: bool = False
    """Whether the multiply ports also convert and add, so that epilogues gain nothing from overlapping with
    products.
    """
    winograd: bool = True
    """Whether convolutions may be computed by Winograd's algorithm."""

    def dot_of(self, shape: Multiplied) -> Dot | None:
        """Return the group instruction that computes a contraction of this shape, if there is one."""
        return next((dot for dot in self.dots if shape.multiplied_by(dot)), None)

    @property
    def dots(self) -> tuple[Dot, ...]:
        """The instructions for groups of integers and of half floats, the fastest first."""
        pairs = OF_PAIRS if self.dot is DOTS["vpmaddwd"] else None
        return tuple(dot for dot in (pairs, self.dot, self.half_dot) if dot is not None)

    def lanes(self, dtype: str) -> int:
        """Return the elements of `dtype` per vector register."""
        return max(1, self.vector_bytes // storage_bytes(dtype))


AVX512 = Isa("avx512", 64, 32, l1_bytes=48 * 1024, l2_bytes=2 * 1024 * 1024, looks_up=True)
AVX2 = Isa("avx2", 32, 16)
SSE = Isa("sse", 16, 16)
NEON = Isa("neon", 16, 32, l1_bytes=64 * 1024)
SCALAR = Isa("generic", 16, 16)

ISAS = {isa.name: isa for isa in (AVX512, AVX2, SSE, NEON, SCALAR)}
USUAL = AVX2
"""The default vector unit, for targets that name none."""


def isa_named(name: str, dot: str = "", half_dot: str = "", tile_dots: Collection[str] = ()) -> Isa:
    """Return the vector unit called `name` (the default for "") with the given instructions. Raises PlanError if there
    is none.
    """
    if name and name not in ISAS:
        raise PlanError(f"no CPU has the vector unit {name!r}; known are {', '.join(ISAS)}")
    named = ("integers", {dot}, DOTS), ("half floats", {half_dot}, HALF_DOTS), ("tiles", set(tile_dots), TILE_DOTS)
    for what, names, known in named:
        odd = sorted(names - {*known, ""})
        if odd:
            raise PlanError(f"no CPU multiplies {what} by {odd[0]!r}; known are {', '.join(known)}")
    isa = ISAS[name] if name else USUAL
    tiles = tuple(TILE_DOTS[each] for each in TILE_DOTS if each in tile_dots)
    return replace(isa, dot=DOTS.get(dot), half_dot=HALF_DOTS.get(half_dot), tile_dots=tiles)
