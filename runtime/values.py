"""The values of a program: their types, where they are stored, and which of them are the caller's caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from .errors import ArtifactSchemaError
from .jsonfields import Fields, string
from .sizes import Size
from .types import MapType, SequenceType, Shape, TensorType, ValueType, type_from_json


@dataclass(frozen=True)
class Input:
    """The program's input number `index`."""

    index: int


@dataclass(frozen=True)
class Constant:
    """The weight of this name, from `offset_bytes` on, for a part of a packed tensor."""

    tensor: str
    offset_bytes: int = 0


@dataclass(frozen=True)
class Literal:
    """A constant string tensor, its elements in row-major order (the tensor file has no strings)."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Arena:
    """`nbytes` at `offset_bytes` of the program's arena, which lies in the device's memory. Only launches write it; any
    step may read it.
    """

    offset_bytes: Size
    nbytes: Size


@dataclass(frozen=True)
class Heap:
    """An array of its own. The runtime allocates it when a native step uses it first; otherwise a host step makes
    it.
    """


@dataclass(frozen=True)
class Status:
    """The int32 fault word of a launch, as its argument; 0 at the start of a run.

    A kernel that finds fault number `i` stores `i + 1`; the run then fails with `Launch.faults[i]` as its message.
    """


@dataclass(frozen=True)
class Counters:
    """`nbytes` of a device launch's own memory, as its argument, 0 when the model is loaded. Its contents persist from
    run to run: a kernel that synchronises its grid counts in it.
    """

    nbytes: int


@dataclass(frozen=True)
class Sizes:
    """The values of the program's symbols in their order, an int64 array, as a launch argument. A run does not change
    it. `values` is empty until they are known.
    """

    values: tuple[int, ...] = ()


Location: TypeAlias = Input | Constant | Literal | Arena | Heap | Status | Counters | Sizes


@dataclass(frozen=True)
class ValueSpec:
    """One value of a program: its name in the graph, its type and its location."""

    name: str
    type: ValueType
    location: Location = Heap()

    @property
    def dtype(self) -> str:
        """The data type's name; `sequence`, `optional` or `map` for other values than tensors."""
        if isinstance(self.type, TensorType):
            return self.type.dtype
        if isinstance(self.type, MapType):
            return "map"
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
    """An input of the model that grows in place. The program has the input `sizes` of shape [length, capacity, 0]
    instead, and stores `new` rows along `axis`, after the existing ones, into the memory given for the result `output`.
    `position`: among the inputs of the model; `type`: of the input.
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
