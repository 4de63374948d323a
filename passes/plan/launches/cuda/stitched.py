"""The launches of a stitched group: those of its parts fused into one, or into one whose blocks draw tiles from a
counter; or one for each part, whose blocks wait for tiles of other launches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilestitch.compiler.ir import Value
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES, Argument, Emitted, shared_array
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.schedules import LaunchesSchedule, TicketSchedule
from tilestitch.passes.plan.sync.edges import semaphores_at

MOST_STATIC_SHARED_BYTES = 48 * 1024
RESIDENT_THREADS = 1024
"""Threads per multiprocessor of a cooperative launch: 64 registers remain for each."""
OWN_WORDS = 2
"""Words before the semaphores: tickets drawn, and completed runs."""
TICKET_BYTES = shared_array(1, 4)
"""Static shared memory for the ticket that a block holds."""
NO_TILES = frozenset({"gemm_wgmma"})
"""Templates whose blocks iterate over tiles themselves."""
PART_WORDS = 2
"""Words per part before the semaphores: blocks that have ended in this run, and completed runs."""
LEAST_CAPABILITY = 90
"""The oldest compute capability (times ten) with programmatic edges."""


@dataclass(frozen=True)
class Stitching:
    """`stages` holds the launches of each part of each stage. inner: values that only the parts need."""

    stages: Sequence[Sequence[Sequence[Emitted]]]
    inner: frozenset[Value]
    multiprocessors: int

    def why_not(self) -> str | None:
        """Return why it is no single launch; None if it is one."""
        for part in (part for stage in self.stages for part in stage):
            if len(part) != 1:
                return f"a part takes {len(part)} launches"
            odd = part[0]
            if not odd.part or odd.shared_bytes or odd.cooperative or odd.cluster != (1, 1, 1) or odd.block[2] != 1:
                return f"a part is a kernel of template {odd.kind} that takes a launch of its own"
        nbytes = sum(launch.static_shared_bytes for stage in self.stages for (launch,) in stage)
        if nbytes > MOST_STATIC_SHARED_BYTES:
            return f"its parts take {nbytes} bytes of static shared memory, more than {MOST_STATIC_SHARED_BYTES}"
        return None

    def launch(self) -> Emitted:
        """Return the single launch of all parts."""
        own = [[apart(part[0], f"{i}.{j}") for j, part in enumerate(stage)] for i, stage in enumerate(self.stages)]
        flat = [launch for stage in own for launch in stage]
        synchronises = len(own) > 1
        threads = max(launch.threads for launch in flat)
        blocks = max(sum(launch.grid[0] for launch in stage) for stage in own)
        if synchronises:
            blocks = min(blocks, self.multiprocessors * blocks_per_sm(threads))
        arguments = dict.fromkeys(private(arg, self.inner) for launch in flat for arg in launch.arguments)
        launch = Emitted.of("stages" if synchronises else "packed", blocks, threads, arguments)
        return replace(
            launch, counter_bytes=sum(x.counter_bytes for x in flat) + (COUNTER_BYTES if synchronises else 0),
            static_shared_bytes=sum(x.static_shared_bytes for x in flat), cooperative=synchronises,
            elastic=synchronises,
        )  # fmt: skip


def blocks_per_sm(threads: int) -> int:
    """Return how many blocks of `threads` threads a multiprocessor is certain to hold at once."""
    return max(1, RESIDENT_THREADS // threads)


def private(argument: Argument, inner: frozenset[Value]) -> Argument:
    """Return the argument, as a temporary if only the parts need the value."""
    if isinstance(argument, Value) and argument in inner:
        return Temporary(argument.name, argument.tensor_type.nbytes)
    return argument


def apart(launch: Emitted, part: str) -> Emitted:
    """Return the launch with temporaries renamed so that no other part shares them."""
    arguments = tuple(
        replace(arg, name=f"{arg.name} of {part}") if isinstance(arg, Temporary) else arg for arg in launch.arguments
    )
    return replace(launch, arguments=arguments)


def shared_of(dynamic_bytes: int, static_bytes: int) -> int:
    """Return the dynamic shared memory of a part whose own launch would have this much."""
    return shared_array(dynamic_bytes, 1) + static_bytes


@dataclass(frozen=True)
class Ticketing:
    """`parts` holds the launches of each part, stage by stage, and `checks` its preceding index checks. inner: values
    that only the parts need.

    Launches of one part run one after the other: the tiles of the second wait for all tiles of the first. Index checks
    have no tickets of their own: the block of a part's first tile runs them.
    """

    parts: Sequence[Sequence[Emitted]]
    checks: Sequence[Sequence[Emitted]]
    inner: frozenset[Value]

    def why_not(self, most_shared_bytes: int) -> str | None:
        """Return why it is no single launch on a GPU with this much shared memory per block; None if it is one."""
        if not all(self.parts):
            return "a part stores nothing"
        for odd in self.steps:
            along_axes = odd.grid[1:] != (1, 1) or odd.cluster != (1, 1, 1) or odd.block[2] != 1
            if not odd.part or odd.kind in NO_TILES or odd.cooperative or along_axes:
                return f"a part is a kernel of template {odd.kind}, whose blocks cannot draw tiles"
        nbytes = self.shared_bytes + TICKET_BYTES
        if nbytes > most_shared_bytes:
            return f"a part takes {nbytes} bytes of shared memory, more than {most_shared_bytes}"
        return None

    @property
    def steps(self) -> list[Emitted]:
        """The launches of all parts, whose tiles are drawn launch by launch: edges refer to them by number."""
        return [launch for part in self.parts for launch in part]

    @property
    def tiles(self) -> int:
        return sum(launch.grid[0] for launch in self.steps)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the maximum over all parts, which share it, since a block computes one at a time."""
        return max(shared_of(launch.shared_bytes, launch.static_shared_bytes) for launch in self.steps)

    @property
    def threads(self) -> int:
        return max(launch.threads for part in (*self.parts, *self.checks) for launch in part)

    def launch(self, schedule: TicketSchedule) -> Emitted:
        own = [apart(launch, str(number)) for number, part in enumerate(self.parts) for launch in part]
        arguments = dict.fromkeys(private(arg, self.inner) for launch in own for arg in launch.arguments)
        _, semaphores = semaphores_at(schedule.edges)
        launch = Emitted.of("tickets", schedule.blocks, self.threads, arguments)
        return replace(
            launch, counter_bytes=sum(x.counter_bytes for x in own) + COUNTER_BYTES * (OWN_WORDS + semaphores),
            static_shared_bytes=TICKET_BYTES, shared_bytes=self.shared_bytes, cooperative=schedule.queues,
            elastic=schedule.queues,
        )  # fmt: skip


@dataclass(frozen=True)
class Tying:
    """`parts` holds the launches of each part, stage by stage. inner: values that only the parts need."""

    parts: Sequence[Sequence[Emitted]]
    inner: frozenset[Value]

    def why_not(self, capability: int) -> str | None:
        """Return why their blocks cannot wait for each other on GPUs of this capability, times 10; None if they can."""
        if capability < LEAST_CAPABILITY:
            return f"launches that overlap need sm_{LEAST_CAPABILITY}, and sm_{capability} is among the architectures"
        for part in self.parts:
            if len(part) != 1:
                return f"a part takes {len(part)} launches"
            odd = part[0]
            if not odd.part or odd.cooperative or odd.grid[1:] != (1, 1):
                return f"a part is a kernel of template {odd.kind}, whose blocks cannot wait for tiles"
        return None

    @property
    def tiles(self) -> int:
        return sum(launch.grid[0] for (launch,) in self.parts)

    def launches(self, schedule: LaunchesSchedule) -> tuple[Emitted, ...]:
        """Return a launch for each part. All share the memory of the semaphores."""
        counter_bytes = COUNTER_BYTES * words_of(schedule, len(self.parts))
        found = []
        for number, (launch,) in enumerate(self.parts):
            own = apart(launch, str(number))
            arguments = tuple(dict.fromkeys(private(arg, self.inner) for arg in own.arguments))
            found.append(
                replace(
                    own, arguments=arguments, counter_bytes=own.counter_bytes + counter_bytes,
                    overlaps=overlaps_of(schedule, number), part=False,
                )
            )  # fmt: skip
        return tuple(found)


def words_of(schedule: LaunchesSchedule, parts: int) -> int:
    """Return the words of the memory that the launches of `parts` parts share."""
    return PART_WORDS * parts + semaphores_at(schedule.edges)[1]


def overlaps_of(schedule: LaunchesSchedule, number: int) -> tuple[int, ...]:
    """Return the distances back from part `number` to the parts whose tiles it waits for."""
    return tuple(sorted({number - edge.producer for edge in schedule.edges if edge.consumer == number}))
