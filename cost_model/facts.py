"""A kernel as numbers that do not depend on the speed of a machine.

A kernel is one launch or several, a launch consists of stages separated by grid barriers (or tied by bands), and a
stage of parallel parts, each with its own tasks, threads and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, get_args

Role = Literal["weight", "activation", "temporary"]
"""weight: a constant of the model, evicted from caches by other kernels since its last use. activation: just written,
or soon read, by another kernel or the caller; temporary: private to the kernel.
"""

Unit = Literal["fma", "mma", "wgmma", "alu", "special", "scalar"]
"""The unit that does arithmetic. fma, mma, wgmma: multiply-adds of contractions, on ordinary units, by tensor-core
instructions of a warp, and of a Hopper warpgroup. alu: additions, comparisons, selects (a division counts as four);
special: calls of exp, tanh, erf, sine and the like; scalar: on CPUs steps evaluated element by element, since
neighbours of a vector are not contiguous (gathers, concats, padding along rows), on GPUs prologue evaluations on a
contraction's operands.
"""

UNITS: tuple[Unit, ...] = get_args(Unit)
CONTRACTING: tuple[Unit, ...] = ("fma", "mma", "wgmma")


@dataclass(frozen=True, slots=True)
class Traffic:
    """A kernel's accesses to one tensor in memory.

    bytes_requested: all loads or stores of all threads; footprint_bytes: distinct bytes among them. Caches serve the
    difference.
    """

    value: str
    bytes_requested: int
    footprint_bytes: int
    role: Role = "activation"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The operations on a unit; a multiply-add is one. dtype: that of the operands (`tfloat32` for float32 on tensor
    cores). share: fraction of the unit's rate that this code reaches without other limits; above 1 where other units
    are busy meanwhile.
    """

    unit: Unit
    dtype: str
    operations: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Tail:
    """The work of the last blocks of a launch after everything else: handing over, and `rows` rows in sequence, each
    with `barriers`, moving `nbytes` bytes; `blocks` of them.
    """

    rows: int
    nbytes: int
    blocks: int
    barriers: int = 0


class Choices(NamedTuple):
    """Named numbers. Kernels of one template mostly have the same names."""

    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


NO_CHOICES = Choices()


@dataclass(frozen=True)
class Part:
    """Work that runs in parallel with the other parts of a stage.

    kind: the template of code generation (injective, rowwise, contraction, attention, opaque). dtype: computed with.
    elements: of the largest value that is computed or reduced. tasks: independent parts of the work, on a GPU the
    blocks of `threads` threads. shared_bytes: the workspace of a task on a CPU; on a GPU dynamic shared memory, in
    addition to static_shared_bytes. registers: per thread. barriers: block-wide; grid_barriers: grid-wide. steps:
    sequential round trips to memory of a block, of which `ahead` are in flight at a time; 0: as many as its bytes take.
    tail: the work left at the end. lanes: elements per instruction on a CPU; 0: as many as a register has. template: of
    its schedule; choices: named numbers of the schedule and its shape, as features for learned models; both are
    optional.
    """

    kind: str
    dtype: str
    reads: tuple[Traffic, ...] = ()
    writes: tuple[Traffic, ...] = ()
    arithmetic: tuple[Arithmetic, ...] = ()
    elements: int = 0
    tasks: int = 1
    threads: int = 1
    registers: int = 0
    shared_bytes: int = 0
    static_shared_bytes: int = 0
    barriers: int = 0
    grid_barriers: int = 0
    steps: int = 0
    ahead: int = 1
    tail: Tail | None = None
    lanes: int = 0
    template: str = ""
    choices: Choices = NO_CHOICES

    @cached_property
    def traffic(self) -> tuple[Traffic, ...]:
        """One entry per tensor."""
        return merged((*self.reads, *self.writes))

    @cached_property
    def bytes_requested(self) -> int:
        return sum(t.bytes_requested for t in (*self.reads, *self.writes))

    @cached_property
    def footprint_bytes(self) -> int:
        return sum(t.footprint_bytes for t in self.traffic)

    def operations(self, *units: Unit) -> int:
        return sum(a.operations for a in self.arithmetic if a.unit in units)


@dataclass(frozen=True)
class Launch:
    """Sequential stages, each of parallel parts.

    tie: how stages are separated: by a grid `barrier`; or `band`: the blocks of the first stage do the work of the
    second, for the rows that they have stored, and its tail is the work of the last of them; or `tickets`: blocks draw
    tasks stage by stage, and wait for those they need; or `beside`: a single stage, which begins while the previous
    launch is running. blocks: that process the tasks of every stage; 0: one per task. pace: where tasks wait for tasks,
    the time of the stages (of all launches) together, relative to their sequential time. resident: most blocks per
    multiprocessor; 0: as many as there is room for.
    """

    stages: tuple[tuple[Part, ...], ...]
    tie: Literal["barrier", "band", "tickets", "beside"] = "barrier"
    blocks: int = 0
    pace: float = 1.0
    resident: int = 0

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for stage in self.stages for part in stage)

    @property
    def own(self) -> tuple[tuple[Part, ...], ...]:
        """The stages with their own blocks."""
        return self.stages[:1] if self.tie == "band" else self.stages

    @cached_property
    def tasks(self) -> int:
        return max(sum(part.tasks for part in stage) for stage in self.own)

    @property
    def grid(self) -> int:
        """Blocks of the launch."""
        return self.blocks or self.tasks

    @cached_property
    def threads(self) -> int:
        return max(part.threads for stage in self.own for part in stage)

    @cached_property
    def registers(self) -> int:
        return max(part.registers for part in self.parts)

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory. With tickets, a block holds that of one task at a time."""
        static = self.tie == "tickets"
        return max(part.shared_bytes + static * part.static_shared_bytes for stage in self.own for part in stage)

    @cached_property
    def static_shared_bytes(self) -> int:
        """Static shared memory of all parts, each with its own; with tickets, it is dynamic."""
        return 0 if self.tie == "tickets" else sum(part.static_shared_bytes for part in self.parts)

    @cached_property
    def barriers(self) -> int:
        return sum(max(part.barriers for part in stage) for stage in self.stages)

    @cached_property
    def grid_barriers(self) -> int:
        within = sum(max(part.grid_barriers for part in stage) for stage in self.stages)
        return within + (len(self.own) - 1 if self.tie == "barrier" else 0)


@dataclass(frozen=True)
class KernelFacts:
    """One kernel of a plan: the complete input of a latency model. It has at least one launch.

    The properties summarise its launches, for models that do not distinguish them.
    """

    sequence: tuple[Launch, ...]

    @property
    def launches(self) -> int:
        return len(self.sequence)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for launch in self.sequence for part in launch.parts)

    @property
    def kind(self) -> str:
        """The template, or `stitched`."""
        several = len(self.sequence[0].parts) > 1
        return "stitched" if several else self.parts[0].kind

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    @cached_property
    def reads(self) -> tuple[Traffic, ...]:
        return merged(t for part in self.parts for t in part.reads)

    @cached_property
    def writes(self) -> tuple[Traffic, ...]:
        return merged(t for part in self.parts for t in part.writes)

    @property
    def fma(self) -> int:
        """Multiply-adds of contractions."""
        return self.operations(*CONTRACTING)

    @property
    def cheap(self) -> int:
        return self.operations("alu")

    @property
    def transcendental(self) -> int:
        return self.operations("special")

    def operations(self, *units: Unit) -> int:
        return sum(part.operations(*units) for part in self.parts)

    @property
    def elements(self) -> int:
        return max(part.elements for part in self.parts)

    @property
    def tasks(self) -> int:
        return max(launch.tasks for launch in self.sequence)

    @property
    def threads(self) -> int:
        return max(launch.threads for launch in self.sequence)

    @property
    def registers(self) -> int:
        return max(launch.registers for launch in self.sequence)

    @property
    def shared_bytes(self) -> int:
        return max(launch.shared_bytes for launch in self.sequence)

    @property
    def barriers(self) -> int:
        return sum(launch.barriers for launch in self.sequence)

    @property
    def grid_barriers(self) -> int:
        return sum(launch.grid_barriers for launch in self.sequence)

    @cached_property
    def footprint_bytes(self) -> int:
        """Distinct bytes read and written: the traffic if every tensor is accessed once."""
        return sum(t.footprint_bytes for t in (*self.reads, *self.writes))

    @cached_property
    def bytes_requested(self) -> int:
        return sum(part.bytes_requested for part in self.parts)

    def renamed(self, name: Callable[[str], str]) -> KernelFacts:
        """Return the facts with renamed tensors."""

        def named(traffic: Iterable[Traffic]) -> tuple[Traffic, ...]:
            return tuple(replace(t, value=name(t.value)) for t in traffic)

        def part_named(part: Part) -> Part:
            return replace(part, reads=named(part.reads), writes=named(part.writes))

        return KernelFacts(tuple(
            replace(launch, stages=tuple(tuple(map(part_named, stage)) for stage in launch.stages))
            for launch in self.sequence
        ))  # fmt: skip


def kernel_of(*parts: Part) -> KernelFacts:
    """Return a kernel with one launch per part."""
    return KernelFacts(tuple(Launch(((part,),)) for part in parts))


def merged(traffic: Iterable[Traffic]) -> tuple[Traffic, ...]:
    """Return the total accesses of each tensor: its bytes are in memory once."""
    traffic = tuple(traffic)
    if len({t.value for t in traffic}) == len(traffic):
        return traffic
    found: dict[str, Traffic] = {}
    for t in traffic:
        other = found.get(t.value)
        if other is not None:
            most = max(t.footprint_bytes, other.footprint_bytes)
            t = replace(other, bytes_requested=t.bytes_requested + other.bytes_requested, footprint_bytes=most)
        found[t.value] = t
    return tuple(found.values())
