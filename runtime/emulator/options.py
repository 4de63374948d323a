"""Options of the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .traffic import Requests, Traffic

ORDERS = ("in_order", "reversed", "random", "adversarial")


@dataclass(frozen=True)
class Multiprocessors:
    """Number of multiprocessors, and what each holds at a time: threads, registers, bytes of shared memory, blocks."""

    count: int
    threads: int
    registers: int
    shared_bytes: int
    blocks: int


@dataclass(frozen=True)
class EmulatorOptions:
    """`block_order`: in which order blocks start: `in_order`, `reversed`, `random`, or `adversarial`, which also
    switches at random between the threads of all resident blocks. `thread_order`: in which order the threads of a block
    run: `in_order`, `reversed` or `random`. `resident_blocks`: how many blocks are under way at a time; another starts
    when one ends, as on a GPU. `cooperative_blocks`: how many blocks of a cooperative launch the device holds together
    (None: all); a launch of more is refused, or made smaller where its kernel allows. `seed` decides what is random.

    `side_by_side`: launches that no edge orders run at the same time, in one pool of resident blocks; else each ends
    before the next begins. `multiprocessors`: what limits resident blocks besides their number (None: nothing).

    `checked`: watch every access to memory and every barrier, and report faults; else kernels run several times as fast
    and wrong ones crash the process or give wrong results. `fused`: products and sums become fused multiply-adds where
    the C++ compiler sees them, as CUDA's compiler makes them (x86-64: on processors that have them). `compiler`: the
    C++ compiler; None for the first of g++ and clang++ on PATH. `cache`: where compiled kernels are kept; None for the
    user's cache folder.

    `on_launch`: told of every launch when it has ended: the kernel's name, and what it read and wrote of each argument.
    `on_requests`: told of every launch, too: the kernel's name, and how the warps of each line access memory.
    """

    block_order: str = "in_order"
    thread_order: str = "in_order"
    resident_blocks: int = 4
    cooperative_blocks: int | None = None
    seed: int = 0
    side_by_side: bool = False
    multiprocessors: Multiprocessors | None = None
    checked: bool = True
    fused: bool = False
    compiler: str | None = None
    cache: Path | None = None
    on_launch: Callable[[str, Sequence[Traffic]], None] | None = None
    on_requests: Callable[[str, Sequence[Requests]], None] | None = None

    def __post_init__(self) -> None:
        if self.block_order not in ORDERS:
            raise ValueError(f"block_order {self.block_order!r} is unknown; give one of {', '.join(ORDERS)}")
        if self.thread_order not in ORDERS[:3]:
            raise ValueError(f"thread_order {self.thread_order!r} is unknown; give one of {', '.join(ORDERS[:3])}")
        if self.resident_blocks < 1:
            raise ValueError(f"resident_blocks is {self.resident_blocks}; give at least 1")
        if self.cooperative_blocks is not None and self.cooperative_blocks < 1:
            raise ValueError(f"cooperative_blocks is {self.cooperative_blocks}; give at least 1, or None for all")
        for name in ("on_launch", "on_requests"):
            if getattr(self, name) is not None and not self.checked:
                raise ValueError(
                    f"{name} counts accesses to memory, which checked=False does not see; leave checked on"
                )
