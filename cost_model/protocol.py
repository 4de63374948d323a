"""The seam between planning and prediction: a kernel as numbers, and whoever turns them into a latency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .cpu import CpuDevice
from .devices import Device

AnyDevice = Device | CpuDevice


@dataclass(frozen=True)
class Traffic:
    """What a kernel does to one tensor in memory.

    bytes_requested: all loads or stores of all threads; footprint_bytes: distinct bytes among them. The difference is
    what caches serve.
    """

    value: str
    bytes_requested: int
    footprint_bytes: int


@dataclass(frozen=True)
class KernelFacts:
    """One kernel, described without knowing the machine's speed; all a latency model is told.

    kind: the template of code generation (injective, rowwise, contraction, attention, opaque). dtype: what the
    arithmetic is done in. fma: multiply-adds; cheap: additions, comparisons, selects and so on (a division counts as
    four); transcendental: calls of exp, tanh, erf, sine and the like. elements: of the largest value that is computed
    or reduced. tasks: independent parts of the work, on a GPU the blocks of `threads` threads. shared_bytes: memory
    that a task keeps its row or tile in. registers: estimate for one thread. barriers: waits of a task's threads for
    each other; grid_barriers: waits of all tasks for each other, inside a launch. launches: consecutive launches that
    the kernel takes. staged: evaluations of operators in front of a product's operands, which code generation makes one
    element at a time; 0 if these only rearrange. tail_rows: of row-wise work behind a product, rows that a team of
    threads computes one after the other when its block has done all else, each with `barriers`; tail_bytes: what the
    block moves meanwhile, which reads and writes hold, too; tail_blocks: how many blocks have a tail.
    """

    kind: str
    dtype: str
    reads: tuple[Traffic, ...]
    writes: tuple[Traffic, ...]
    fma: int
    cheap: int
    transcendental: int
    elements: int
    tasks: int
    threads: int
    shared_bytes: int
    registers: int
    barriers: int
    launches: int = 1
    staged: int = 0
    grid_barriers: int = 0
    tail_rows: int = 0
    tail_bytes: int = 0
    tail_blocks: int = 0

    @property
    def footprint_bytes(self) -> int:
        """Distinct bytes read and written: what moves if every tensor is touched once."""
        return sum(t.footprint_bytes for t in (*self.reads, *self.writes))

    @property
    def bytes_requested(self) -> int:
        return sum(t.bytes_requested for t in (*self.reads, *self.writes))


@runtime_checkable
class LatencyModel(Protocol):
    """Predicts kernels. Implementations are immutable, and give equal answers to equal questions."""

    @property
    def name(self) -> str:
        """A word that names the model in plans and reports."""
        ...

    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        """Microseconds from the launch of `kernel` until its results may be read; finite and not negative.

        The machine is otherwise idle. Raises ValueError for a kind of device that the model knows nothing of.
        """
        ...
