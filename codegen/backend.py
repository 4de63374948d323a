"""Interface of a target for the assembler: lower groups, compile launches, and write a run of them as one step."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.sizes import Size
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.launches.launch import FIRST_LANE, Edge, Lane
from tilestitch.passes.plan.launches.own import kind_of_plugin
from tilestitch.passes.plan.own_kernels import KernelTarget, OwnKernel, Temporary
from tilestitch.passes.plan.target import TargetInfo as PassTarget
from tilestitch.runtime import program as rt
from tilestitch.runtime.manifest import TargetInfo

from .launch import KernelArg, PackedArg, TemporaryArg, ValueArg

Progress = Callable[[str, int, int], None]
"""Callback for progress: stage, number of finished parts, number of parts."""


class AnyLaunch(Protocol):
    """The parts of a backend's launches that the assembler reads."""

    @property
    def args(self) -> tuple[KernelArg, ...]: ...


@dataclass(frozen=True)
class PlacedCases:
    """Launches that replace a launch from each start on: symbols of kernels and their launches."""

    size: rt.Size
    starts: tuple[int, ...]
    launches: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class PlacedLaunch:
    """A launch with the symbol of its compiled kernel, its arguments as values of the program, and its lane."""

    symbol: str
    launch: Any
    args: tuple[rt.Arg, ...]
    lane: Lane = FIRST_LANE
    cases: PlacedCases | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of all kernels that may be launched."""
        others = () if self.cases is None else self.cases.launches
        return (self.launch.kind, *(launch.kind for _, launch in others))


@dataclass(frozen=True)
class OwnedKernel:
    """A plug-in's kernel. `kind` begins the symbol's name, `owner` is the plug-in's name for messages, `origins` are
    the ONNX nodes that it computes, and `types` has the types of its group's values by name.
    """

    kernel: OwnKernel
    kind: str
    owner: str
    origins: tuple[str, ...]
    types: Mapping[str, TensorType]

    @property
    def symbol_kind(self) -> str:
        return kind_of_plugin(self.kind)

    @property
    def args(self) -> tuple[KernelArg, ...]:
        return tuple(
            TemporaryArg(a.name, a.nbytes) if isinstance(a, Temporary) else ValueArg(a) for a in self.kernel.args
        )


@dataclass(frozen=True)
class Compiled:
    """Machine code: `symbols` of the launches in order, `kernels` and `extra` members of the artifact by name.

    `facts`: resources of the machine code by symbol, in the backend's own form, for `Backend.describe`.
    """

    symbols: tuple[str, ...]
    kernels: Mapping[str, bytes]
    extra: Mapping[str, bytes] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """One target. Methods raise KernelError, with ONNX nodes, for a group that cannot be emitted or compiled."""

    @property
    def concurrent(self) -> bool:
        """Whether independent launches may run concurrently."""
        ...

    @property
    def scalars_as_arguments(self) -> bool:
        """Whether kernels may read one-element constants from memory, so that groups can share them."""
        ...

    @property
    def target_of_schedules(self) -> KernelTarget:
        """The machine, as the schedules of plug-ins see it."""
        ...

    def planned_for(self, threads: int) -> PassTarget:
        """Return the passes' description of the target."""
        ...

    def info(self, instructions: Collection[str]) -> TargetInfo:
        """Return the manifest's description of the target. `instructions`: those for narrow data types that its kernels
        need.
        """
        ...

    def lower(self, graph: Graph, group: Group, packed: Mapping[str, PackedArg] | None = None) -> tuple[Any, ...]:
        """Return the launches of a group, in order; none if its outputs are empty. `packed`: layouts of constants
        packed for other kernels, by name; kernels that can, read these.
        """
        ...

    def own_launch(self, owned: OwnedKernel) -> Any:
        """Return the launch of a kernel that a plug-in brings."""
        ...

    def limited(self, launch: Any) -> tuple[Size, ...]:
        """Return the sizes that must be less than `INT32_ELEMENTS` for a launch to run."""
        ...

    def compile(
        self, launches: Sequence[Any], digests: Sequence[str], *, keep_source: bool, progress: Progress
    ) -> Compiled:
        """Compile the kernels of all launches; `digests` of their signatures end their symbols."""
        ...

    def describe(self, symbol: str, launch: Any, compiled: Compiled) -> dict[str, Any]:
        """Return a description of a launch as JSON data: its extent, and the resources of its machine code."""
        ...

    def placed(self, symbol: str, launch: Any, args: tuple[rt.Arg, ...]) -> rt.Launch | rt.DeviceLaunch:
        """Return a launch in the program's form."""
        ...

    def step(self, launches: Sequence[PlacedLaunch], edges: Sequence[Edge]) -> rt.Step:
        """Return the program's step for launches without host steps between them. `edges`: numbers of launches, of
        which the second waits for the first.
        """
        ...
