"""Programs that an artifact executes: native launches, device launches, host steps and control steps.

A `Program` is one specialisation of a model, or the body of a control step. Its values are numbered; steps name them by
number. Steps run in order. The number -1 stands for an absent optional input or output.

`to_json` and `from_json` are inverse to each other; `from_json` checks every field and raises `ArtifactSchemaError`.
`program_check.programs_from_json` reads a whole `program.json` and checks its consistency.
`docs/artifact.md` describes the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from .cases import Cases
from .errors import ArtifactSchemaError
from .jsonfields import Fields, finite_json, from_finite_json
from .kernel_signature import KernelSignature
from .launches import Arg, DeviceLaunch, DeviceStep, Edge, Launch, NativeStep
from .sizes import Size
from .slices import Slices
from .symbols import SizeCheck, Symbol, size_reference
from .types import MapType, OptionalType, SequenceType, TensorType, ValueType
from .values import Arena, Cache, Constant, Counters, Heap, Input, Literal, Location, Sizes, Status, ValueSpec

__all__ = [
    "ABSENT", "Arena", "Arg", "Body", "Cache", "CallStep", "Cases", "Constant", "Counters", "DeviceLaunch",
    "DeviceStep", "Edge", "Heap", "HostStep", "IfStep", "Input", "Launch", "Literal", "Location", "LoopStep",
    "MapType", "NativeStep", "OptionalType", "Program", "ScanStep", "SequenceMapStep", "SequenceType", "Status", "Step",
    "Size", "SizeCheck", "Sizes", "Slices", "Symbol", "TensorType", "ValueSpec", "ValueType", "constant_reference",
    "programs_to_json", "size_reference",
]  # fmt: skip

ABSENT = -1
MAX_DEPTH = 50


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

    @cached_property
    def leading_shapes(self) -> Sequence[tuple[int, ...]]:
        """Shapes of a loop's iteration number and condition: scalars, or tensors of one element."""
        types = [self.program.values[number].type for number in self.program.inputs[:2]]
        return [(type_.static_shape if isinstance(type_, TensorType) else None) or () for type_ in types]

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
    """Runs a body that has no formal inputs. Its symbols are solved from the shapes of what it captures, which may be
    known only at run time.
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
    symbols; `checks` must hold of them. A dimension with a name that is not a symbol is a size that is known only once
    the value is computed, as in a program without symbols.

    `plain`: it is the counterpart of another program, without tile synchronisation: its kernels wait for whole kernels;
    `load(..., sync=False)` uses these.
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

    @cached_property
    def grown(self) -> frozenset[int]:
        """The numbers of the outputs that are caches, which stay in the caller's memory: rows are there already."""
        return frozenset(self.results[cache.output] for cache in self.caches)

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
    """Return the member `program.json`: the signatures of all kernels by symbol, and one program per specialisation,
    all with the same input and output names.
    """
    return {
        "kernels": {symbol: signature.to_json() for symbol, signature in signatures.items()},
        "specialisations": [program.to_json() for program in programs],
    }


def constant_reference(tensor: str) -> dict[str, str]:
    """Return the reference to a weight in a host step's attributes."""
    return {"$constant": tensor}


def _step_from_json(data: Any, where: str) -> Step:
    fields = Fields(data, where)
    kind = fields.one_of("kind", frozenset(_STEP_READERS))
    step = _STEP_READERS[kind](fields)
    fields.done()
    return step
