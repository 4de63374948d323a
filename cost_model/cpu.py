"""A CPU as the latency models see it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuDevice:
    """Cores that share one memory. The defaults describe no product: they are low for a server core of the last years.

    vector_bytes: width of a register; vectors_per_cycle: vector multiply-adds, or additions, that a core starts per
    cycle; tile_bytes_per_cycle: multiply-adds of bytes that its tile unit performs per cycle, half as many of two bytes
    each; 0: it has none. Bandwidths are bytes per second of one core (for the second-level cache 48 bytes per cycle,
    for the last one 16), except dram_bytes_per_second, which all cores share. l1_bytes and l2_bytes are of one core,
    llc_bytes is shared. launch_us: from the end of one launch to the start of the next; hand_over_us: until other
    threads take part in it. transcendental_cycles: per vector of float32 results.
    """

    name: str = "generic CPU"
    cores: int = 1
    clock_hz: int = 2_500_000_000
    vector_bytes: int = 32
    vectors_per_cycle: int = 2
    tile_bytes_per_cycle: int = 0
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    llc_bytes: int = 32 << 20
    l2_bytes_per_second: int = 120_000_000_000
    llc_bytes_per_second: int = 40_000_000_000
    dram_bytes_per_second: int = 20_000_000_000
    launch_us: float = 0.3
    hand_over_us: float = 2.0
    transcendental_cycles: int = 16

    def __post_init__(self) -> None:
        if min(self.cores, self.clock_hz, self.vector_bytes, self.vectors_per_cycle) < 1:
            raise ValueError(f"{self.name}: a CPU has at least one core, lane, cycle and multiply-add; check its row")

    def lanes(self, itemsize: int) -> int:
        """Return the elements of `itemsize` bytes in a register."""
        return max(1, self.vector_bytes // itemsize)
