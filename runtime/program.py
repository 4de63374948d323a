"""What an artifact executes: programs of native launches, device launches, host steps and control steps.

A `Program` is one specialisation of a model, or the body of a control step. Its values are numbered; steps name them by
number. Steps run in order. A number of -1 is an optional input or output that is not there.

`to_json` and `from_json` are inverse to each other; `from_json` checks every field and raises `ArtifactSchemaError`.
`program_check.programs_from_json` reads a whole `program.json` and checks it further.
`docs/artifact.md` describes the same for readers of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from .cases import Cases, cases_from_json
from .errors import ArtifactSchemaError
from .jsonfields import Fields, finite_json, from_finite_json, integer, sequence, size, string
from .kernel_signature import KernelSignature
from .sizes import Size, known
from .slices import Slices
from .symbols import SizeCheck, Symbol, size_reference
from .tensor_map import TensorMap
from .types import OptionalType, SequenceType, Shape, TensorType, ValueType, type_from_json

__all__ = [
    "ABSENT", "Arena", "Arg", "Body", "Cache", "CallStep", "Cases", "Constant", "Counters", "DeviceLaunch",
    "DeviceStep", "Edge", "Heap", "HostStep", "IfStep", "Input", "Launch", "Literal", "Location", "LoopStep",
    "NativeStep", "OptionalType", "Program", "ScanStep", "SequenceMapStep", "SequenceType", "Status", "Step", "Size",
    "SizeCheck", "Sizes", "Slices", "Symbol", "TensorType", "ValueSpec", "ValueType", "constant_reference",
    "programs_to_json", "size_reference",
]  # fmt: skip

ABSENT = -1
MAX_DEPTH = 50
MAX_TASKS = 2**31 - 1
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_CLUSTER = 16
MAX_PRIORITY = 5
EDGE_KINDS = ("full", "programmatic", "launch_order")


# --- where a value lives ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """The program's input number `index`."""

    index: int


@dataclass(frozen=True)
class Constant:
    """The weight of this name; `offset_bytes` into it, for a part of a packed tensor."""

    tensor: str
    offset_bytes: int = 0


@dataclass(frozen=True)
class Literal:
    """A constant string tensor, its elements in row-major order (the tensor file has no strings)."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Arena:
    """`nbytes` at `offset_bytes` of the program's arena, which lies in the device's memory. Written by launches only;
    anything may read it.
    """

    offset_bytes: Size
    nbytes: Size


@dataclass(frozen=True)
class Heap:
    """An array of its own. The runtime allocates it when a native step is the first to use it; else a host step makes
    it.
    """


@dataclass(frozen=True)
class Status:
    """As a launch argument: the launch's own int32 fault word, 0 at the start of a run.

    A kernel that finds fault number `i` stores `i + 1`; the run then fails with `Launch.faults[i]` as its message.
    """


@dataclass(frozen=True)
class Counters:
    """As an argument of a device launch: `nbytes` of the launch's own memory, 0 when the model is loaded. What a run
    leaves there, the next run finds: a kernel that synchronises its grid counts in it.
    """

    nbytes: int


@dataclass(frozen=True)
class Sizes:
    """As a launch argument: the values of the program's symbols in their order, an int64 array. A run does not change
    it. `values` are there once they are known.
    """

    values: tuple[int, ...] = ()


Location: TypeAlias = Input | Constant | Literal | Arena | Heap | Status | Counters | Sizes


@dataclass(frozen=True)
class ValueSpec:
    """One value of a program: its name in the graph, its type and where it lives."""

    name: str
    type: ValueType
    location: Location = Heap()

    @property
    def dtype(self) -> str:
        """The data type's name; `sequence` or `optional` for values that are no tensors."""
        if isinstance(self.type, TensorType):
            return self.type.dtype
        return "sequence" if isinstance(self.type, SequenceType) else "optional"

    @property
    def shape(self) -> Shape | None:
        """The shape of a tensor; None for other values and tensors of unknown rank."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "type": self.type.to_json(), "location": _location_to_json(self.location)}

    @staticmethod
    def from_json(data: Any, where: str = "value") -> ValueSpec:
        fields = Fields(data, where)
        name = fields.string("name")
        where = f"{where} ({name!r})"
        spec = ValueSpec(
            name, type_from_json(fields.take("type"), f"{where}.type"),
            _location_from_json(fields.take("location"), f"{where}.location"),
        )  # fmt: skip
        fields.done()
        return spec


@dataclass(frozen=True)
class Cache:
    """An input of the model that grows where it lies. The program has the input `sizes` of shape [length, capacity, 0]
    in its place, and stores `new` rows along `axis` into the memory that the result `output` is given, after those that
    are there. `position`: among the inputs of the model; `type`: of the input.
    """

    input: str
    output: str
    position: int
    type: TensorType
    axis: int
    new: Size
    sizes: str

    def to_json(self) -> dict[str, Any]:
        return {
            "input": self.input, "output": self.output, "position": self.position, "type": self.type.to_json(),
            "axis": self.axis, "new": self.new, "sizes": self.sizes,
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str) -> Cache:
        fields = Fields(data, where)
        type_ = type_from_json(fields.take("type"), f"{where}.type")
        if not isinstance(type_, TensorType):
            raise ArtifactSchemaError(f"{where} is no tensor")
        cache = Cache(
            fields.string("input"), fields.string("output"), fields.integer("position"), type_,
            fields.integer("axis"), fields.size("new"), fields.string("sizes"),
        )  # fmt: skip
        fields.done()
        return cache


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arg:
    """A kernel argument: the address of value number `value`, plus `offset_bytes`.

    With a `tensor_map`, which launches on devices may have, the kernel gets that map over the address in its place, as
    a `const __grid_constant__ CUtensorMap`. What a kernel's arguments may be is in its `KernelSignature`.
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
    launch before it, and of those that this one is packed with; their tasks are one list. `origins` are the names of
    the ONNX nodes that the kernel computes. `faults` are the messages of the faults that it may store in its status
    word. `cases`: kernels that are run in its place for some sizes, on the same arguments.
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
        """What the kernel must be launched with, whatever its arguments are; JSON data."""
        return {"tasks": self.tasks, "scratch_bytes": self.scratch_bytes}

    @property
    def kernels(self) -> tuple[Launch, ...]:
        """What may be launched: itself, and its cases."""
        return (self,) if self.cases is None else (self, *self.cases.launches)

    def at(self, of: Callable[[Size], int]) -> Launch:
        """What is launched for the sizes that `of` gives."""
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
    """A segment: launches that one native call executes, each after all tasks of the one before are done, but for those
    that are packed with it. With `slices`, it takes more calls where there are many images.
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
    """One launch of a CUDA kernel `__global__ void symbol(T0 *p0, T1 *p1, …)`, one pointer, or one tensor
    map, for each of `args`.

    `grid` is in blocks, `block` in threads, `cluster` in blocks, each (x, y, z). `shared_bytes` is the dynamic shared
    memory of a block. A grid without blocks, which open sizes may give, is not launched. `cooperative`: all blocks are
    resident together, so that the kernel may synchronise its grid; `elastic`: it computes the same with any smaller
    `grid` along x, so that a GPU that holds fewer blocks can run it. `branch`: launches of one number follow each
    other; for profiles, the edges are what orders them. `priority`: of launches that are ready, blocks of those with
    the highest start first. `origins`, `faults` and `cases` as in `Launch`.
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
        """What may be launched: itself, and its cases."""
        return (self,) if self.cases is None else (self, *self.cases.launches)

    def at(self, of: Callable[[Size], int]) -> DeviceLaunch:
        """What is launched for the sizes that `of` gives."""
        return self if self.cases is None else self.cases.at(self, of)

    @property
    def blocks(self) -> tuple[int, int, int]:
        """The grid. Raises `ValueError` where it depends on symbols."""
        x, y, z = self.grid
        return known(x), known(y), known(z)

    @property
    def has_blocks(self) -> bool:
        """Whether there is anything to launch; where sizes are open, there may be nothing to compute."""
        return 0 not in self.grid

    @property
    def extent(self) -> dict[str, Any]:
        """What the kernel must be launched with, whatever its arguments are; JSON data."""
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

    `edges` order them; None stands for a chain, each launch after the one before.
    """

    launches: tuple[DeviceLaunch, ...]
    edges: tuple[Edge, ...] | None = None

    @property
    def dependences(self) -> tuple[Edge, ...]:
        """The edges, those of a chain written out."""
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


@dataclass(frozen=True)
class HostStep:
    """`runtime.host.TABLE[op](inputs, attrs)` in numpy. `attrs` is JSON data; `constant_reference` stands for an array
    in it.
    """

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "host", "op": self.op, "inputs": list(self.inputs), "outputs": list(self.outputs),
            "attrs": finite_json(dict(self.attrs)), "origins": list(self.origins),
        }  # fmt: skip

    @staticmethod
    def read(fields: Fields) -> HostStep:
        return HostStep(
            op=fields.string("op"), inputs=fields.integers("inputs", ABSENT), outputs=fields.integers("outputs",
            ABSENT),
            attrs=from_finite_json(fields.mapping("attrs"), f"{fields.where}.attrs"), origins=fields.strings("origins"),
        )  # fmt: skip


@dataclass(frozen=True)
class Body:
    """A nested program. Its inputs are the step's formal inputs, then the outer values `captures`."""

    program: Program
    captures: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"program": self.program.to_json(), "captures": list(self.captures)}

    @staticmethod
    def read(fields: Fields, name: str) -> Body:
        inner = Fields(fields.take(name), f"{fields.where}.{name}")
        body = Body(Program.from_json(inner.take("program"), f"{inner.where}.program"), inner.integers("captures"))
        inner.done()
        return body


@dataclass(frozen=True)
class IfStep:
    """ONNX If: runs one of two bodies, which have no formal inputs and as many outputs as the step."""

    cond: int
    then_body: Body
    else_body: Body
    outputs: tuple[int, ...]
    origins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "if", "cond": self.cond, "then": self.then_body.to_json(), "else": self.else_body.to_json(),
            "outputs": list(self.outputs), "origins": list(self.origins),
        }  # fmt: skip

    @staticmethod
    def read(fields: Fields) -> IfStep:
        return IfStep(
            cond=fields.integer("cond"), then_body=Body.read(fields, "then"), else_body=Body.read(fields, "else"),
            outputs=fields.integers("outputs", ABSENT), origins=fields.strings("origins"),
        )  # fmt: skip


@dataclass(frozen=True)
class CallStep:
    """Runs a body, which has no formal inputs. Its symbols are found in the shapes of what it captures, which may only
    be known when these are there.
    """

    body: Body
    outputs: tuple[int, ...]
    origins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "call", "body": self.body.to_json(), "outputs": list(self.outputs), "origins": list(self.origins),
        }  # fmt: skip

    @staticmethod
    def read(fields: Fields) -> CallStep:
        return CallStep(
            body=Body.read(fields, "body"), outputs=fields.integers("outputs", ABSENT),
            origins=fields.strings("origins"),
        )  # fmt: skip


@dataclass(frozen=True)
class LoopStep:
    """ONNX Loop. Body inputs: trip number (int64 scalar), condition (bool scalar), carried values; outputs: condition,
    carried values, one value per scan. The step's outputs: final carried values, then the scans' values stacked along a
    new first axis.
    """

    max_trip: int
    cond: int
    carried: tuple[int, ...]
    body: Body
    outputs: tuple[int, ...]
    origins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "loop", "max_trip": self.max_trip, "cond": self.cond, "carried": list(self.carried),
            "body": self.body.to_json(), "outputs": list(self.outputs), "origins": list(self.origins),
        }  # fmt: skip

    @staticmethod
    def read(fields: Fields) -> LoopStep:
        return LoopStep(
            max_trip=fields.integer("max_trip", ABSENT), cond=fields.integer("cond", ABSENT),
            carried=fields.integers("carried"), body=Body.read(fields, "body"),
            outputs=fields.integers("outputs", ABSENT), origins=fields.strings("origins"),
        )  # fmt: skip


@dataclass(frozen=True)
class ScanStep:
    """ONNX Scan (opset 9 and later; an opset 8 batch is a loop around it). Body inputs: states, then one slice of each
    scan input; outputs: states, then one slice of each scan output. Axes are non-negative; a direction of 1 runs
    backwards. The step's outputs: final states, then the scan outputs.
    """

    states: tuple[int, ...]
    scans: tuple[int, ...]
    input_axes: tuple[int, ...]
    input_directions: tuple[int, ...]
    output_axes: tuple[int, ...]
    output_directions: tuple[int, ...]
    body: Body
    outputs: tuple[int, ...]
    origins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "scan", "states": list(self.states), "scans": list(self.scans), "input_axes": list(self.input_axes),
            "input_directions": list(self.input_directions), "output_axes": list(self.output_axes),
            "output_directions": list(self.output_directions), "body": self.body.to_json(),
            "outputs": list(self.outputs),
            "origins": list(self.origins),
        }  # fmt: skip

    @staticmethod
    def read(fields: Fields) -> ScanStep:
        return ScanStep(
            states=fields.integers("states"), scans=fields.integers("scans"), input_axes=fields.integers("input_axes"),
            input_directions=fields.integers("input_directions", 0, 1), output_axes=fields.integers("output_axes"),
            output_directions=fields.integers("output_directions", 0, 1), body=Body.read(fields, "body"),
            outputs=fields.integers("outputs", ABSENT), origins=fields.strings("origins"),
        )  # fmt: skip


@dataclass(frozen=True)
class SequenceMapStep:
    """ONNX SequenceMap: the body once per item of `sequence`. Of `others`, sequences give their item, tensors are
    passed whole. The step's outputs are sequences.
    """

    sequence: int
    others: tuple[int, ...]
    body: Body
    outputs: tuple[int, ...]
    origins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "sequence_map", "sequence": self.sequence, "others": list(self.others), "body": self.body.to_json(),
            "outputs": list(self.outputs), "origins": list(self.origins),
        }  # fmt: skip

    @staticmethod
    def read(fields: Fields) -> SequenceMapStep:
        return SequenceMapStep(
            sequence=fields.integer("sequence"), others=fields.integers("others"), body=Body.read(fields, "body"),
            outputs=fields.integers("outputs", ABSENT), origins=fields.strings("origins"),
        )  # fmt: skip


ControlStep: TypeAlias = IfStep | CallStep | LoopStep | ScanStep | SequenceMapStep
Step: TypeAlias = NativeStep | DeviceStep | HostStep | ControlStep

_STEP_READERS: dict[str, Callable[[Fields], Step]] = {
    "native": NativeStep.read, "device": DeviceStep.read, "host": HostStep.read, "if": IfStep.read,
    "call": CallStep.read, "loop": LoopStep.read, "scan": ScanStep.read, "sequence_map": SequenceMapStep.read,
}  # fmt: skip


# --- programs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """Values and the steps that compute them. `inputs` and `outputs` are value numbers; a value may be several outputs,
    and an output may be an input or a constant. `output_names` are the outputs' names for the user; empty when they are
    the values' names. `arena_bytes` is what the `Arena` locations need; the arena is 64-byte aligned.

    With `symbols`, the text of an expression over them (`sizes`) may stand for a number wherever the type is `Size`, in
    dimensions of tensor maps, and, as a dimension of a `TensorType`, for a size. The shapes of the inputs determine the
    symbols; `checks` must hold of them. A dimension of which a name is no symbol is a size that is known only when the
    value is there, as it is in a program without symbols.

    plain: it is another's counterpart whose kernels wait for whole kernels; `load(..., sync=False)` takes these.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    values: tuple[ValueSpec, ...]
    steps: tuple[Step, ...]
    arena_bytes: Size = 0
    output_names: tuple[str, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    checks: tuple[SizeCheck, ...] = ()
    plain: bool = False
    caches: tuple[Cache, ...] = ()

    @cached_property
    def result_names(self) -> tuple[str, ...]:
        """The outputs' names."""
        return self.output_names or tuple(self.values[number].name for number in self.outputs)

    @cached_property
    def results(self) -> Mapping[str, int]:
        """The numbers of the outputs' values by the outputs' names."""
        return dict(zip(self.result_names, self.outputs))

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "name": self.name, "inputs": list(self.inputs), "outputs": list(self.outputs),
            "values": [value.to_json() for value in self.values], "steps": [step.to_json() for step in self.steps],
            "arena_bytes": self.arena_bytes,
            "output_names": list(self.output_names),
        }  # fmt: skip
        if self.symbols:
            data["symbols"] = [symbol.to_json() for symbol in self.symbols]
        if self.checks:
            data["checks"] = [check.to_json() for check in self.checks]
        if self.plain:
            data["plain"] = True
        if self.caches:
            data["caches"] = [cache.to_json() for cache in self.caches]
        return data

    @staticmethod
    def from_json(data: Any, where: str = "program") -> Program:
        if where.count(".program") > MAX_DEPTH:
            raise ArtifactSchemaError(f"programs are nested more than {MAX_DEPTH} deep")
        fields = Fields(data, where)
        program = Program(
            name=fields.string("name"), inputs=fields.integers("inputs"), outputs=fields.integers("outputs"),
            values=fields.sequence("values", ValueSpec.from_json), steps=fields.sequence("steps", _step_from_json),
            arena_bytes=fields.size("arena_bytes"),
            output_names=fields.strings("output_names"),
            symbols=fields.optional_sequence("symbols", Symbol.from_json),
            checks=fields.optional_sequence("checks", SizeCheck.from_json),
            plain=fields.optional_boolean("plain"),
            caches=fields.optional_sequence("caches", Cache.from_json),
        )  # fmt: skip
        fields.done()
        return program


def programs_to_json(programs: Iterable[Program], signatures: Mapping[str, KernelSignature]) -> dict[str, Any]:
    """The member `program.json`: the signatures of all kernels by symbol, and one program per specialisation, all with
    the same input and output names.
    """
    return {
        "kernels": {symbol: signature.to_json() for symbol, signature in signatures.items()},
        "specialisations": [program.to_json() for program in programs],
    }


def constant_reference(tensor: str) -> dict[str, str]:
    """What stands in a host step's attributes for the weight of this name."""
    return {"$constant": tensor}


# --- reading helpers -------------------------------------------------------------------------------------------------


def _cases(cases: Cases[Any] | None) -> dict[str, Any]:
    if cases is None:
        return {}
    return {"cases": cases.to_json(lambda launch: {"symbol": launch.symbol, **launch.extent})}


def _step_from_json(data: Any, where: str) -> Step:
    fields = Fields(data, where)
    kind = fields.one_of("kind", frozenset(_STEP_READERS))
    step = _STEP_READERS[kind](fields)
    fields.done()
    return step


def _extent(fields: Fields, name: str) -> tuple[int, int, int]:
    """Three sizes, x first."""
    sizes = fields.integers(name, 1)
    if len(sizes) != 3:
        raise ArtifactSchemaError(f"{fields.where}.{name} is no triple of sizes")
    return sizes[0], sizes[1], sizes[2]


def _grid(fields: Fields) -> tuple[Size, Size, Size]:
    """Three sizes, x first, which symbols may determine."""
    sizes = fields.sizes("grid", 1)
    if len(sizes) != 3:
        raise ArtifactSchemaError(f"{fields.where}.grid is no triple of sizes")
    return sizes[0], sizes[1], sizes[2]


def _location_to_json(location: Location) -> dict[str, Any]:
    match location:
        case Input(index):
            return {"kind": "input", "index": index}
        case Constant(tensor, offset_bytes):
            return {"kind": "constant", "tensor": tensor, "offset_bytes": offset_bytes}
        case Literal(items):
            return {"kind": "literal", "items": list(items)}
        case Arena(offset_bytes, nbytes):
            return {"kind": "arena", "offset_bytes": offset_bytes, "nbytes": nbytes}
        case Heap():
            return {"kind": "heap"}
        case Status():
            return {"kind": "status"}
        case Counters(nbytes):
            return {"kind": "counters", "nbytes": nbytes}
        case Sizes():
            return {"kind": "sizes"}


def _location_from_json(data: Any, where: str) -> Location:
    fields = Fields(data, where)
    kind = fields.string("kind")
    location: Location
    match kind:
        case "input":
            location = Input(fields.integer("index"))
        case "constant":
            location = Constant(fields.string("tensor"), fields.integer("offset_bytes"))
        case "literal":
            location = Literal(fields.sequence("items", string))
        case "arena":
            location = Arena(fields.size("offset_bytes"), fields.size("nbytes"))
        case "heap":
            location = Heap()
        case "status":
            location = Status()
        case "counters":
            location = Counters(fields.integer("nbytes", 1))
        case "sizes":
            location = Sizes()
        case _:
            raise ArtifactSchemaError(f"{where}.kind is {kind!r}, which this runtime does not know")
    fields.done()
    return location
