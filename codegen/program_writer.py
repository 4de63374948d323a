"""From a planned graph and its compiled kernels to the program that the runtime executes: values, launches, host and
control steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tilestitch.codegen.backend import Backend, PlacedCases, PlacedLaunch
from tilestitch.codegen.errors import CodegenError
from tilestitch.codegen.launch import (
    CountersArg,
    PackedArg,
    RangeArg,
    SizesArg,
    StatusArg,
    TemporaryArg,
    TensorMapArg,
    ValueArg,
)  # fmt: skip
from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.compiler.ir.types import from_numpy_dtype, to_numpy_dtype
from tilestitch.passes.plan import Segment, StitchPlan
from tilestitch.passes.plan.buffers import TemporaryBuffer, aligned
from tilestitch.passes.plan.launches.launch import Edge
from tilestitch.runtime import program as rt

from .device_loops import with_iterations_as_launches
from .program_types import SymbolNames, limits, runtime_checks, runtime_size, runtime_symbols, runtime_type
from .tensors import TensorTable

LOOP_BOUNDS = 2
"""Operands of a loop before its carried values: its limit and its condition."""

Named: TypeAlias = Mapping[tuple[int, str], tuple[tuple[tuple[str, Any], ...], ...]]
"""Symbols and launches of each group, by the id of its plan and its name: for each case, in order."""


class ProgramWriter:
    """Writer of one graph and its plan as a runtime program."""

    def __init__(
        self,
        graph: Graph,
        plan: StitchPlan,
        backend: Backend,
        named: Named,
        tensors: TensorTable,
    ) -> None:
        self.graph, self.plan, self.backend, self.named, self.tensors = graph, plan, backend, named, tensors
        self.symbols = SymbolNames()
        self.specs: list[rt.ValueSpec] = []
        self.numbers: dict[str, int] = {}
        self.graph_values = values_by_name(graph)
        self.input_index = {v.name: i for i, v in enumerate(graph.inputs)}
        self.native = {name for group in plan.groups for name in group.nodes}
        self.arena = {b.value: b for b in plan.buffers.buffers}
        self.temporaries = _temporaries(plan)
        self.arena_bytes = aligned(plan.buffers.arena_bytes)
        self.status: int | None = None
        self.edges_into: dict[int, list[Edge]] = {}
        for edge in plan.edges or ():
            self.edges_into.setdefault(edge.after, []).append(edge)
        self.sizes: int | None = None

    def write(self, output_names: tuple[str, ...] = (), caches: tuple[rt.Cache, ...] = ()) -> rt.Program:
        inputs = tuple(self.number(v.name) for v in self.graph.inputs)
        host = {g.name for g in self.plan.host_groups}
        steps: list[rt.Step] = []
        first = 0
        for segment in self.plan.segments:
            if segment.native:
                launches = [launch for name in segment.groups for launch in self.launches(name)]
                if launches:
                    self.check_planned(launches, first)
                    launches = self.in_lanes(launches, first)
                    step = self.backend.step(launches, self.edges(first, len(launches)))
                    if isinstance(step, rt.NativeStep):
                        step = replace(step, slices=self.slices(segment))
                    steps.append(step)
                first += len(launches)
                continue
            assert host.issuperset(segment.groups)
            steps += [step for name in segment.groups for step in self.host_steps(self.graph.node(name))]
        outputs = tuple(self.number(v.name) for v in self.graph.outputs)
        program = rt.Program(
            self.graph.name, inputs, outputs, tuple(self.specs), tuple(steps), runtime_size(self.arena_bytes),
            output_names, symbols=runtime_symbols(self.graph), checks=(*runtime_checks(self.graph), *self.limits()),
            caches=caches,
        )  # fmt: skip
        return with_iterations_as_launches(program, self.data_of, self.tensors.add)

    def data_of(self, value: rt.ValueSpec) -> np.ndarray | None:
        """Return the data of a constant that starts its tensor, else None."""
        match value.location:
            case rt.Constant(tensor, 0):
                return np.asarray(self.tensors.arrays[tensor])
        return None

    def limits(self) -> tuple[rt.SizeCheck, ...]:
        """Return the size limits on which kernels with 32-bit indices rely."""
        groups = (self.named[id(self.plan), group.name] for group in self.plan.groups)
        launches = (launch for group in groups for case in group for _, launch in case)
        return limits(size for launch in launches for size in self.backend.limited(launch))

    # -- values ------------------------------------------------------------------------------------------------

    def add_spec(self, spec: rt.ValueSpec) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1

    def number(self, name: str) -> int:
        """Return the number of a graph value, adding it at its first use."""
        if name not in self.numbers:
            value = self.graph_values[name]
            spec = rt.ValueSpec(name, runtime_type(value.type, self.symbols), self.location(value))
            self.numbers[name] = self.add_spec(spec)
        return self.numbers[name]

    def location(self, value: Value) -> rt.Location:
        if value.data is not None:
            if value.data.dtype == object:
                return rt.Literal(tuple(str(item) for item in value.data.reshape(-1)))
            return rt.Constant(self.tensors.add(value.name, value.data))
        if value.name in self.input_index:
            return rt.Input(self.input_index[value.name])
        if value.producer is not None and value.producer.name in self.native and value.tensor_type.num_elements == 0:
            # No kernel is launched for it: there is nothing to compute.
            if not value.tensor_type.is_static:
                return rt.Arena(0, 0)
            return rt.Constant(self.tensors.add(value.name, np.empty(value.shape, to_numpy_dtype(value.dtype))))
        root = self.plan.buffers.aliases.get(value.name, value.name)
        place = self.plan.buffers.places.get(root)
        if place is not None:
            start = self.arena[place.whole].offset_bytes + place.offset_bytes
            return rt.Arena(runtime_size(start), runtime_size(value.tensor_type.nbytes))
        buffer = self.arena.get(root)
        return rt.Arena(runtime_size(buffer.offset_bytes), runtime_size(buffer.nbytes)) if buffer else rt.Heap()

    def memory_of(self, name: str) -> int:
        """Return the value whose memory a kernel uses for `name`: itself, or the root of its alias."""
        return self.number(self.plan.buffers.aliases.get(name, name))

    def check_planned(self, launches: Sequence[PlacedLaunch], first: int) -> None:
        """Raise CodegenError unless launches from number `first` on match the plan, whose edges refer to their
        numbers.
        """
        planned = [launch.kind for launch in (self.plan.launches or ())[first : first + len(launches)]]
        emitted = [placed.launch.kind for placed in launches]
        if len(planned) != len(emitted) or any(p not in one.kinds for p, one in zip(planned, launches)):
            raise CodegenError(f"the plan has launches {planned}, the templates emit {emitted}; write the plan again")

    def in_lanes(self, launches: Sequence[PlacedLaunch], first: int) -> list[PlacedLaunch]:
        """Return the launches from number `first` on with their branches and priorities."""
        lanes = (self.plan.lanes or ())[first : first + len(launches)]
        if not lanes:
            return list(launches)
        return [replace(launch, lane=lane) for launch, lane in zip(launches, lanes, strict=True)]

    def slices(self, segment: Segment) -> rt.Slices | None:
        """Return how the launches of a segment iterate over the images of a batch; None if they process all at once."""
        slices = self.plan.slices
        if slices is None:
            return None
        counts = {name: len(self.named[id(self.plan), name][0]) for name in segment.groups}
        runs = [run for run in slices.runs if run.groups[0] in counts]
        if all(run.most == 0 for run in runs):
            return None
        sizes = ((sum(counts[name] for name in run.groups), runtime_size(run.most)) for run in runs)
        return rt.Slices(slices.symbol, tuple((count, most) for count, most in sizes if count))

    def edges(self, first: int, count: int) -> list[Edge]:
        """Return the edges between the launches of one segment, by their numbers in it."""
        return [
            replace(edge, before=edge.before - first, after=number)
            for number in range(count) for edge in self.edges_into.get(first + number, ())
        ]  # fmt: skip

    # -- native steps --------------------------------------------------------------------------------------------

    def launches(self, group: str) -> Iterator[PlacedLaunch]:
        temporaries: dict[str, int] = {}
        shared: dict[CountersArg, int] = {}
        cases = self.plan.group(group).cases
        for (symbol, launch), *others in zip(*self.named[id(self.plan), group], strict=True):
            args = tuple(self.argument(group, arg, temporaries, shared) for arg in launch.args)
            placed = PlacedLaunch(symbol, launch, args)
            if cases is None or all(other == symbol for other, _ in others):
                yield placed
                continue
            odd = next(
                (other for other, each in others if (each.args, each.faults) != (launch.args, launch.faults)), None
            )
            if odd is not None:
                raise CodegenError(
                    f"group {group}: kernels {symbol} and {odd} take other arguments; write the plan again"
                )
            yield replace(placed, cases=PlacedCases(runtime_size(cases.size), cases.starts, tuple(others)))

    def argument(self, group: str, arg: Any, temporaries: dict[str, int], shared: dict[CountersArg, int]) -> rt.Arg:
        """Return a kernel argument of the program. `temporaries`, `shared`: the numbers of the group's own memory so
        far.
        """
        match arg:
            case ValueArg(name):
                return rt.Arg(self.memory_of(name))
            case RangeArg(name, offset_bytes):
                return rt.Arg(self.memory_of(name), runtime_size(offset_bytes))
            case PackedArg():
                return rt.Arg(self.packed(arg))
            case TensorMapArg(over, tensor_map, offset_bytes):
                return rt.Arg(self.argument(group, over, temporaries, shared).value, offset_bytes, tensor_map)
            case TemporaryArg(name, nbytes):
                if name not in temporaries:
                    temporaries[name] = self.temporary(group, len(temporaries), name, nbytes)
                return rt.Arg(temporaries[name])
            case StatusArg():
                return rt.Arg(self.status_value())
            case SizesArg():
                return rt.Arg(self.sizes_value())
            case CountersArg(nbytes):
                if arg.shared and arg in shared:
                    return rt.Arg(shared[arg])
                spec = rt.ValueSpec("counters", rt.TensorType("uint8", (nbytes,)), rt.Counters(nbytes))
                shared[arg] = self.add_spec(spec)
                return rt.Arg(shared[arg])
        raise CodegenError(f"unknown kernel argument {arg!r}")

    def packed(self, arg: PackedArg) -> int:
        """Return the number of a constant in its kernel's layout."""
        key = f"{arg.source}:{arg.key}"
        if key not in self.numbers:
            tensor = self.tensors.packed(self.graph_values[arg.source], arg)
            array = self.tensors.arrays[tensor]
            type_ = rt.TensorType(from_numpy_dtype(array.dtype), array.shape)
            self.numbers[key] = self.add_spec(rt.ValueSpec(f"{arg.source}.packed", type_, rt.Constant(tensor)))
        return self.numbers[key]

    def temporary(self, group: str, number: int, name: str, nbytes: int) -> int:
        """Return the number of a group's temporary at its place in the plan; by number, as equal groups share launches
        and names.
        """
        place = rt.Arena(runtime_size(self.temporaries[group][number].offset_bytes), nbytes)
        return self.add_spec(rt.ValueSpec(name, rt.TensorType("uint8", (nbytes,)), place))

    def status_value(self) -> int:
        if self.status is None:
            self.status = self.add_spec(rt.ValueSpec("status", rt.TensorType("int32", ()), rt.Status()))
        return self.status

    def sizes_value(self) -> int:
        if self.sizes is None:
            type_ = rt.TensorType("int64", (len(self.graph.symbols),))
            self.sizes = self.add_spec(rt.ValueSpec("sizes", type_, rt.Sizes()))
        return self.sizes

    # -- host and control steps ------------------------------------------------------------------------------------

    def host_steps(self, node: Node) -> Iterator[rt.Step]:
        for value in node.inputs:
            root = self.plan.buffers.aliases.get(value.name)
            if root is not None and root not in self.arena and value.name not in self.numbers:
                attrs = {"shape": [self.attribute("shape", size) for size in value.shape]}
                yield rt.HostStep("reshape", (self.number(root),), (self.number(value.name),), attrs, node.origins)
        if any(map(self.is_no_limit, node.outputs)):
            return
        inputs = tuple(rt.ABSENT if self.is_no_limit(v) else self.number(v.name) for v in node.inputs)
        outputs = tuple(self.number(v.name) for v in node.outputs)
        write = _CONTROL.get(node.op, ProgramWriter.host_step)
        yield write(self, node, inputs, outputs)

    def is_no_limit(self, value: Value) -> bool:
        """Return whether a value only stands for the absent limit or condition of loops."""
        if value.producer is None or value.producer.op != "host.none" or value in self.graph.outputs:
            return False
        return all(reader.op == "loop" and index < LOOP_BOUNDS for reader, index in value.uses)

    def host_step(self, node: Node, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> rt.HostStep:
        attrs = {key: self.attribute(f"{node.name}.{key}", value) for key, value in node.attrs.items()}
        return rt.HostStep(node.op.removeprefix("host."), inputs, outputs, attrs, node.origins)

    def attribute(self, hint: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if value.dtype == object:
                return value.tolist()
            return rt.constant_reference(self.tensors.add(hint, value))
        if is_open(value):
            return rt.size_reference(str(value))
        if isinstance(value, (tuple, list)):
            return [self.attribute(hint, item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.attribute(f"{hint}.{key}", item) for key, item in value.items()}
        return value.item() if isinstance(value, np.generic) else value

    def body(self, node: Node, attribute: str, captures: tuple[int, ...]) -> rt.Body:
        graph, plan = node.attrs[attribute], self.plan.bodies[f"{node.name}.{attribute}"]
        return rt.Body(ProgramWriter(graph, plan, self.backend, self.named, self.tensors).write(), captures)

    def if_step(self, node: Node, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> rt.IfStep:
        then_body, else_body = (self.body(node, name, inputs[1:]) for name in ("then_graph", "else_graph"))
        return rt.IfStep(inputs[0], then_body, else_body, outputs, node.origins)

    def call_step(self, node: Node, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> rt.CallStep:
        return rt.CallStep(self.body(node, "body", inputs), outputs, node.origins)

    def loop_step(self, node: Node, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> rt.LoopStep:
        end = LOOP_BOUNDS + node.attrs["num_carried"]
        body = self.body(node, "body", inputs[end:])
        return rt.LoopStep(inputs[0], inputs[1], inputs[2:end], body, outputs, node.origins)

    def scan_step(self, node: Node, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> rt.ScanStep:
        attrs = node.attrs
        states, end = attrs["num_state"], attrs["num_state"] + attrs["num_scanned"]
        return rt.ScanStep(
            states=inputs[:states],
            scans=inputs[states:end],
            input_axes=tuple(attrs["input_axes"]),
            input_directions=tuple(int(r) for r in attrs["input_reverse"]),
            output_axes=tuple(attrs["output_axes"]),
            output_directions=tuple(int(r) for r in attrs["output_reverse"]),
            body=self.body(node, "body", inputs[end:]),
            outputs=outputs,
            origins=node.origins,
        )

    def sequence_map_step(self, node: Node, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> rt.SequenceMapStep:
        count = node.attrs["num_inputs"]
        body = self.body(node, "body", inputs[count:])
        return rt.SequenceMapStep(inputs[0], inputs[1:count], body, outputs, node.origins)


_CONTROL: Mapping[str, Callable[[ProgramWriter, Node, tuple[int, ...], tuple[int, ...]], rt.Step]] = {
    "if": ProgramWriter.if_step,
    "call": ProgramWriter.call_step,
    "loop": ProgramWriter.loop_step,
    "scan": ProgramWriter.scan_step,
    "sequence_map": ProgramWriter.sequence_map_step,
}


def _temporaries(plan: StitchPlan) -> dict[str, list[TemporaryBuffer]]:
    """Return the temporaries of each group, in the order in which its launches first use them."""
    placed = {(t.group, t.name): t for t in plan.buffers.temporaries}
    found: dict[str, dict[str, TemporaryBuffer]] = {}
    for launch in plan.launches or ():
        own = found.setdefault(launch.group, {})
        own.update((t.name, placed[launch.group, t.name]) for t in launch.temporaries)
    return {group: list(own.values()) for group, own in found.items()}


def values_by_name(graph: Graph) -> dict[str, Value]:
    """Return all values of a graph: inputs, constants and results."""
    values = {v.name: v for v in (*graph.inputs, *graph.constants)}
    values.update((out.name, out) for node in graph.nodes for out in node.outputs)
    return values
