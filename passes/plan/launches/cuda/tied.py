"""The launches of parts whose blocks wait for tiles of other launches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilestitch.compiler.ir import Value
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES, Emitted
from tilestitch.passes.plan.launches.cuda.stitched import apart, private
from tilestitch.passes.plan.schedules import LaunchesSchedule
from tilestitch.passes.plan.sync.edges import semaphores_at

PART_WORDS = 2
"""Words per part before the semaphores: blocks that have ended in this run, and completed runs."""
LEAST_CAPABILITY = 90
"""The oldest compute capability (times ten) with programmatic edges."""


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
