"""The launch of a stitched group: the launches of its parts fused into one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilestitch.compiler.ir import Value
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES, Argument, Emitted
from tilestitch.passes.plan.own_kernels import Temporary

MOST_STATIC_SHARED_BYTES = 48 * 1024
RESIDENT_THREADS = 1024
"""Threads per multiprocessor of a cooperative launch: 64 registers remain for each."""


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
        arguments = dict.fromkeys(self._private(arg) for launch in flat for arg in launch.arguments)
        launch = Emitted.of("stages" if synchronises else "packed", blocks, threads, arguments)
        return replace(
            launch, counter_bytes=sum(x.counter_bytes for x in flat) + (COUNTER_BYTES if synchronises else 0),
            static_shared_bytes=sum(x.static_shared_bytes for x in flat), cooperative=synchronises,
            elastic=synchronises,
        )  # fmt: skip

    def _private(self, argument: Argument) -> Argument:
        return private(argument, self.inner)


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
