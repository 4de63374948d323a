"""Register tiles on a CPU: speed estimates, and the fastest tile for a result."""

from tilestitch.compiler.ir.types import compute_dtype
from tilestitch.passes.plan.cpu.isa import Dot, Isa
from tilestitch.passes.plan.cpu.tiling import RegisterTile, Split, split_at_most

MAX_VECTORS = 8
MAX_ROWS = 14
"""More rows are more memory streams than the first-level cache handles well (measured)."""
PACK_CYCLES, NEAR_CYCLES, FAR_CYCLES = 0.5, 0.03, 0.12
"""Cycles to pack an element of the right operand, and to read a packed one from the second-level cache, and from
beyond.
"""
AGAIN_CYCLES, MEMORY_CYCLES = 0.35, 0.58
"""Cycles to read an element again from a shared cache, and from memory."""
WIDE_BYTES = 64
"""Bytes of vector registers that some CPUs multiply in two halves."""
LAST_CACHE_BYTES = 16 << 20
"""Bytes of the shared last-level cache that a core may count on."""


def lanes_of(columns: int, dtype: str, isa: Isa, dot: Dot | None = None) -> int:
    """Return the elements of `dtype` in a tile's vector for `columns` columns: half of a 64-byte register where they
    fit it and `dot`, the instruction that multiplies them, supports it.

    Of these CPUs some multiply a register in two halves, and take half to three quarters of the time for one (Zen 4);
    none takes longer.
    """
    lanes = isa.lanes(dtype)
    if isa.vector_bytes < WIDE_BYTES or columns > lanes // 2:
        return lanes
    return lanes // 2 if dot is None or lanes // 2 in dot.lanes else lanes


def step_cycles(rows: int, vectors: int, isa: Isa) -> float:
    """Return the cycles of one reduction step of a register tile.

    The right operand is streamed from the second-level cache at about 48 bytes per cycle, partly hidden; the factor was
    measured on AVX-512.
    """
    multiply = rows * vectors / isa.fma_ports
    load = (rows + vectors) / isa.load_ports
    return max(multiply, load, float(isa.fma_latency)) + 0.25 + 0.45 * vectors * isa.vector_bytes / 64


def tile_limits(n: int, lanes: int, isa: Isa, taken: int = 0) -> list[tuple[int, int]]:
    """Return candidate tiles for `n` columns: (vectors, most rows that fit the registers except `taken` ones).

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

    Padding of the last panel and uneven last rows are included. wide: the number of vectors, if fixed.
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
    """Return the cycles per element of a panel that a task packs or reads from further away."""
    if not packed:
        return PACK_CYCLES
    return NEAR_CYCLES if right_bytes <= isa.l2_bytes // 4 else FAR_CYCLES


def again_cycles(read_bytes: int, isa: Isa) -> float:
    """Return the additional cycles, beyond `right_cycles`, to read an element again after `read_bytes` of other data:
    none where all of it stays in the second-level cache.
    """
    if read_bytes <= isa.l2_bytes // 2:
        return 0.0
    return (AGAIN_CYCLES if read_bytes <= LAST_CACHE_BYTES else MEMORY_CYCLES) - FAR_CYCLES


def widens(dtype: str, tiles: int) -> bool:
    """Return whether a task should convert a packed panel of `dtype` that `tiles` register tiles read."""
    return compute_dtype(dtype) != dtype and tiles > 1
