"""Register tiles on a CPU: estimates of their speed, and the one that is fastest for a result."""

from __future__ import annotations

from tilestitch.compiler.ir.types import compute_dtype
from tilestitch.passes.plan.cpu.isa import Dot, Isa
from tilestitch.passes.plan.cpu.tiling import RegisterTile, Split, split_at_most

MAX_VECTORS = 8
MAX_ROWS = 14
"""More rows than this are more memory streams than the first-level cache follows well (measured)."""
PACK_CYCLES, NEAR_CYCLES, FAR_CYCLES = 0.5, 0.03, 0.12
"""To pack an element of the right operand, and to read a packed one from the second-level cache, and from beyond."""
AGAIN_CYCLES, MEMORY_CYCLES = 0.35, 0.58
"""To read one again from a cache that cores share, and from memory (Emerald Rapids: 28 GB/s of 8 MB, 18 of 16; 64 rows
by 4096 x 1024 took twice as long with a tile of 13 rows a task as with three of them, busy. Zen 4: 1000x12544x1024 made
165 GFLOP/s with 51 MB between two uses of a panel, and 250 with 13 MB).
"""
WIDE_BYTES = 64
"""Of vector registers that some CPUs multiply in two halves."""
LAST_CACHE_BYTES = 16 << 20
"""That a core may expect to find again in the last cache, which it shares."""


def lanes_of(columns: int, dtype: str, isa: Isa, dot: Dot | None = None) -> int:
    """Return the elements of `dtype` in a vector of a tile for so many columns: half of a register of 64 bytes where
    they fit it, and `dot`, by which they are multiplied.

    Of these CPUs some multiply a register in two halves, and take half to three quarters of the time for one (Zen 4);
    none takes longer.
    """
    lanes = isa.lanes(dtype)
    if isa.vector_bytes < WIDE_BYTES or columns > lanes // 2:
        return lanes
    return lanes // 2 if dot is None or lanes // 2 in dot.lanes else lanes


def step_cycles(rows: int, vectors: int, isa: Isa) -> float:
    """Return the cycles of one reduction step of a register tile.

    The right operand streams from the second-level cache at about 48 bytes a cycle, partly hidden; the factor is
    measured on AVX-512.
    """
    multiply = rows * vectors / isa.fma_ports
    load = (rows + vectors) / isa.load_ports
    return max(multiply, load, float(isa.fma_latency)) + 0.25 + 0.45 * vectors * isa.vector_bytes / 64


def tile_limits(n: int, lanes: int, isa: Isa, taken: int = 0) -> list[tuple[int, int]]:
    """Candidate tiles for `n` columns: (vectors, most rows that fit into the registers but `taken` ones).

    One register is kept for the broadcast scalar and `vectors` for the right operand.
    """
    most = max(1, min(MAX_VECTORS, -(-n // lanes)))
    limits = [(vectors, (isa.vector_registers - taken - 1) // vectors - 1) for vectors in range(1, most + 1)]
    return [(vectors, min(MAX_ROWS, rows)) for vectors, rows in limits if rows >= 1]


def panel_cycles(rows: int, n: int, vectors: int, lanes: int, isa: Isa) -> float:
    """Return the cycles of one reduction step of `rows` rows by all panels of `n` columns; the last may be partial."""
    full, tail = divmod(n, vectors * lanes)
    narrow = step_cycles(rows, -(-tail // lanes), isa) if tail else 0.0
    return full * step_cycles(rows, vectors, isa) + narrow


def choose_tile(m: int, n: int, lanes: int, isa: Isa, wide: int | None = None) -> tuple[RegisterTile, Split]:
    """Return the register tile with the fewest estimated cycles for an `m` x `n` result, and the split of the rows.

    Padding of the last panel and the uneven last rows are part of the estimate. wide: how many vectors it has.
    """
    best: tuple[float, int, int] | None = None
    limits = tile_limits(n, lanes, isa)
    for vectors, limit in [each for each in limits if wide in (None, each[0])] or limits:
        for most in range(1, limit + 1):
            sizes = split_at_most(m, most).sizes()
            cycles = sum(count * panel_cycles(rows, n, vectors, lanes, isa) for rows, count in sizes)
            candidate = (cycles, vectors, most)
            if best is None or candidate < best:
                best = candidate
    assert best is not None
    rows = split_at_most(m, best[2])
    return RegisterTile(rows.largest, best[1], lanes), rows


def right_cycles(packed: bool, right_bytes: int, isa: Isa) -> float:
    """Return the cycles for each element of a panel that a task packs, or reads from further away."""
    if not packed:
        return PACK_CYCLES
    return NEAR_CYCLES if right_bytes <= isa.l2_bytes // 4 else FAR_CYCLES


def again_cycles(read_bytes: int, isa: Isa) -> float:
    """Return the cycles to read an element again after so much else, besides what `right_cycles` says: none where all
    of it stays in the second-level cache.
    """
    if read_bytes <= isa.l2_bytes // 2:
        return 0.0
    return (AGAIN_CYCLES if read_bytes <= LAST_CACHE_BYTES else MEMORY_CYCLES) - FAR_CYCLES


def widens(dtype: str, tiles: int) -> bool:
    """Return whether a task should convert a packed panel of `dtype` that `tiles` register tiles read."""
    return compute_dtype(dtype) != dtype and tiles > 1
