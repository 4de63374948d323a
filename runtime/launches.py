"""Steps of kernels: launches on a CPU, and graphs of launches on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .cases import Cases, cases_from_json
from .errors import ArtifactSchemaError
from .jsonfields import Fields, integer, sequence, size, string
from .sizes import Size, known
from .slices import Slices
from .tensor_map import TensorMap

MAX_TASKS = 2**31 - 1
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_CLUSTER = 16
MAX_PRIORITY = 5
EDGE_KINDS = ("full", "programmatic", "launch_order")

RecordTime = Callable[[str, tuple[str, ...], float, int], None]
"""Callback for a launch: the kernel's name, the ONNX nodes it computes, its time in microseconds, and its branch."""


@dataclass(frozen=True)
class Arg:
    """A kernel argument: the address of value number `value`, plus `offset_bytes`.

    With a `tensor_map`, which launches on devices may have, the kernel gets that map for the address in its place, as a
    `const __grid_constant__ CUtensorMap`. A kernel's `KernelSignature` says what its arguments may be.
    """

    value: int
    offset_bytes: Size = 0
    tensor_map: TensorMap | None = None

    def to_json(self) -> list[Any]:
        return [self.value, self.offset_bytes, *([self.tensor_map.to_json()] if self.tensor_map else [])]

    @staticmethod
    def from_json(data: Any, where: str) -> Arg:
        if not isinstance(data, list) or len(data) not in (2, 3):
            raise ArtifactSchemaError(f"{where} is no value number, offset in bytes and maybe tensor map")
        tensor_map = TensorMap.from_json(data[2], f"{where}[2]") if len(data) == 3 else None
        return Arg(integer(data[0], where), size(data[1], where), tensor_map)


@dataclass(frozen=True)
class Launch:
    """One kernel launch: `void symbol(const Arg *args, int64_t task, void *scratch)` for task = 0 .. tasks - 1.

    Each thread gets its own `scratch` of at least `scratch_bytes`, 64-byte aligned. `packed`: it is independent of the
    previous launch and those packed with that; they share one task list. `origins` are the names of the ONNX nodes that
    the kernel computes. `faults` are the messages of the faults that it may store in its status word. `cases`: kernels
    that replace it for some sizes, with the same arguments.
    """

    symbol: str
    tasks: Size
    args: tuple[Arg, ...]
    origins: tuple[str, ...] = ()
    scratch_bytes: Size = 0
    faults: tuple[str, ...] = ()
    packed: bool = False
    cases: Cases[Launch] | None = None

    @property
    def extent(self) -> dict[str, Any]:
        """Extent with which the kernel must be launched, whatever its arguments; JSON data."""
        return {"tasks": self.tasks, "scratch_bytes": self.scratch_bytes}

    @property
    def kernels(self) -> tuple[Launch, ...]:
        """All kernels that may be launched: the launch itself, and its cases."""
        return (self,) if self.cases is None else (self, *self.cases.launches)

    def at(self, of: Callable[[Size], int]) -> Launch:
        """Return the launch for the sizes that `of` gives."""
        return self if self.cases is None else self.cases.at(self, of)

    def to_json(self) -> dict[str, Any]:
        return {
            "symbol": self.symbol, **self.extent, "args": [arg.to_json() for arg in self.args],
            "origins": list(self.origins), "faults": list(self.faults), "packed": self.packed, **_cases(self.cases),
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str = "launch") -> Launch:
        fields = Fields(data, where)
        launch = Launch(
            symbol=fields.string("symbol"), tasks=fields.size("tasks", 0, MAX_TASKS), args=fields.sequence("args",
            Arg.from_json),
            origins=fields.strings("origins"), scratch_bytes=fields.size("scratch_bytes"),
            faults=fields.strings("faults"), packed=fields.boolean("packed"),
        )  # fmt: skip

        def other(kernel: Fields) -> Launch:
            tasks, scratch_bytes = kernel.size("tasks", 0, MAX_TASKS), kernel.size("scratch_bytes")
            return replace(launch, symbol=kernel.string("symbol"), tasks=tasks, scratch_bytes=scratch_bytes)

        cases = fields.optional("cases", lambda entry, at: cases_from_json(entry, at, other))
        fields.done()
        return launch if cases is None else replace(launch, cases=cases)


@dataclass(frozen=True)
class NativeStep:
    """A segment: launches that one native call executes, each after all tasks of the one before, except packed ones.
    With `slices` it takes several calls where there are many images.
    """

    launches: tuple[Launch, ...]
    slices: Slices | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"kind": "native", "launches": [launch.to_json() for launch in self.launches]}
        return data if self.slices is None else {**data, "slices": self.slices.to_json()}

    @staticmethod
    def read(fields: Fields) -> NativeStep:
        launches = fields.sequence("launches", Launch.from_json)
        return NativeStep(launches, fields.optional("slices", Slices.from_json))


@dataclass(frozen=True)
class DeviceLaunch:
    """One launch of a CUDA kernel `__global__ void symbol(T0 *p0, T1 *p1, …)`, with one pointer or tensor map for each
    of `args`.

    `grid` is in blocks, `block` in threads, `cluster` in blocks, each (x, y, z). `shared_bytes` is the dynamic shared
    memory of a block. A grid without blocks, which open sizes may give, is not launched. `cooperative`: all blocks are
    resident together, so that the kernel may synchronise its grid; `elastic`: any smaller `grid` along x gives the same
    result, so that a GPU that holds fewer blocks can run it. `branch`: launches of one number follow each other; only
    for profiles, since the edges order them. `priority`: among ready launches, blocks of those with the highest start
    first. `origins`, `faults` and `cases` as in `Launch`.
    """

    symbol: str
    grid: tuple[Size, Size, Size]
    block: tuple[int, int, int]
    shared_bytes: int
    args: tuple[Arg, ...]
    origins: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    cooperative: bool = False
    cluster: tuple[int, int, int] = (1, 1, 1)
    elastic: bool = False
    branch: int = 0
    priority: int = 0
    cases: Cases[DeviceLaunch] | None = None

    @property
    def kernels(self) -> tuple[DeviceLaunch, ...]:
        """All kernels that may be launched: the launch itself, and its cases."""
        return (self,) if self.cases is None else (self, *self.cases.launches)

    def at(self, of: Callable[[Size], int]) -> DeviceLaunch:
        """Return the launch for the sizes that `of` gives."""
        return self if self.cases is None else self.cases.at(self, of)

    @property
    def blocks(self) -> tuple[int, int, int]:
        """The grid. Raises `ValueError` where it depends on symbols."""
        x, y, z = self.grid
        return known(x), known(y), known(z)

    @property
    def has_blocks(self) -> bool:
        """Whether there is anything to launch; open sizes may leave nothing to compute."""
        return 0 not in self.grid

    @property
    def extent(self) -> dict[str, Any]:
        """Extent with which the kernel must be launched, whatever its arguments; JSON data."""
        return {
            "grid": list(self.grid), "block": list(self.block), "cluster": list(self.cluster),
            "shared_bytes": self.shared_bytes, "cooperative": self.cooperative, "elastic": self.elastic,
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {
            "symbol": self.symbol, **self.extent, "args": [arg.to_json() for arg in self.args],
            "origins": list(self.origins), "faults": list(self.faults), "branch": self.branch,
            "priority": self.priority, **_cases(self.cases),
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str = "launch") -> DeviceLaunch:
        fields = Fields(data, where)
        launch = DeviceLaunch(
            symbol=fields.string("symbol"), grid=_grid(fields), block=_extent(fields, "block"),
            shared_bytes=fields.integer("shared_bytes"), args=fields.sequence("args", Arg.from_json),
            origins=fields.strings("origins"), faults=fields.strings("faults"),
            cooperative=fields.boolean("cooperative"), cluster=_extent(fields, "cluster"),
            elastic=fields.boolean("elastic"), branch=fields.integer("branch"),
            priority=fields.integer("priority", 0, MAX_PRIORITY),
        )  # fmt: skip

        def other(kernel: Fields) -> DeviceLaunch:
            return replace(
                launch, symbol=kernel.string("symbol"), grid=_grid(kernel), block=_extent(kernel, "block"),
                cluster=_extent(kernel, "cluster"), shared_bytes=kernel.integer("shared_bytes"),
                cooperative=kernel.boolean("cooperative"), elastic=kernel.boolean("elastic"),
            )  # fmt: skip

        cases = fields.optional("cases", lambda entry, at: cases_from_json(entry, at, other))
        fields.done()
        return launch if cases is None else replace(launch, cases=cases)


@dataclass(frozen=True)
class Edge:
    """Launch number `after` of a device step waits for launch number `before`, which is smaller.

    `full`: until it has ended. `programmatic`: until all its blocks have ended or called
    `griddepcontrol.launch_dependents`; the waiting kernel calls `griddepcontrol.wait` before it reads what the other
    writes. `launch_order`: until all its blocks have started.
    """

    before: int
    after: int
    kind: str = "full"

    def to_json(self) -> list[Any]:
        return [self.before, self.after, self.kind]

    @staticmethod
    def from_json(data: Any, where: str = "edge") -> Edge:
        if not isinstance(data, list) or len(data) != 3:
            raise ArtifactSchemaError(f"{where} is no triple of two launch numbers and a kind")
        before, after, kind = integer(data[0], where), integer(data[1], where), string(data[2], where)
        if kind not in EDGE_KINDS:
            raise ArtifactSchemaError(f"{where} is of the kind {kind!r}; known are {', '.join(EDGE_KINDS)}")
        return Edge(before, after, kind)


@dataclass(frozen=True)
class DeviceStep:
    """Launches on a device, without host steps between them: one CUDA graph.

    `edges` order them; None means a chain, each launch after the previous one.
    """

    launches: tuple[DeviceLaunch, ...]
    edges: tuple[Edge, ...] | None = None

    @property
    def dependences(self) -> tuple[Edge, ...]:
        """The edges, with those of a chain written out."""
        if self.edges is not None:
            return self.edges
        return tuple(Edge(number - 1, number) for number in range(1, len(self.launches)))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "device", "launches": [launch.to_json() for launch in self.launches],
            "edges": None if self.edges is None else [edge.to_json() for edge in self.edges],
        }  # fmt: skip

    @staticmethod
    def read(fields: Fields) -> DeviceStep:
        launches = fields.sequence("launches", DeviceLaunch.from_json)
        edges = fields.take("edges")
        return DeviceStep(launches, None if edges is None else sequence(edges, f"{fields.where}.edges", Edge.from_json))


def _cases(cases: Cases[Any] | None) -> dict[str, Any]:
    if cases is None:
        return {}
    return {"cases": cases.to_json(lambda launch: {"symbol": launch.symbol, **launch.extent})}


def _extent(fields: Fields, name: str) -> tuple[int, int, int]:
    """Read three sizes, x first."""
    sizes = fields.integers(name, 1)
    if len(sizes) != 3:
        raise ArtifactSchemaError(f"{fields.where}.{name} is no triple of sizes")
    return sizes[0], sizes[1], sizes[2]


def _grid(fields: Fields) -> tuple[Size, Size, Size]:
    """Read three sizes, x first, which may depend on symbols."""
    sizes = fields.sizes("grid", 1)
    if len(sizes) != 3:
        raise ArtifactSchemaError(f"{fields.where}.grid is no triple of sizes")
    return sizes[0], sizes[1], sizes[2]
