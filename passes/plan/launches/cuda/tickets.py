"""The launch of stages whose blocks draw tiles from a counter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilestitch.compiler.ir import Value
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES, Emitted, shared_array
from tilestitch.passes.plan.launches.cuda.stitched import apart, private
from tilestitch.passes.plan.schedules import TicketSchedule
from tilestitch.passes.plan.sync.edges import semaphores_at

OWN_WORDS = 2
"""Words before the semaphores: tickets drawn, and completed runs."""
TICKET_BYTES = shared_array(1, 4)
"""Static shared memory for the ticket that a block holds."""
NO_TILES = frozenset({"gemm_wgmma"})
"""Templates whose blocks iterate over tiles themselves."""


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
