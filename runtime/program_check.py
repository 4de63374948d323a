"""Consistency checks of programs beyond their fields' types: numbers in range, sizes that fit, values set before they
are used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NoReturn

from .errors import ArtifactSchemaError
from .jsonfields import MAX_INT, Fields
from .kernel_signature import KernelSignature, signatures_from_json
from .launch_check import LaunchChecker
from .launches import MAX_BLOCK, MAX_CLUSTER, MAX_GRID, MAX_TASKS
from .program import (
    ABSENT,
    Arena,
    Body,
    Cache,
    CallStep,
    Cases,
    Constant,
    Counters,
    DeviceLaunch,
    DeviceStep,
    Heap,
    HostStep,
    IfStep,
    Input,
    Launch,
    Literal,
    LoopStep,
    NativeStep,
    Program,
    ScanStep,
    SequenceMapStep,
    Sizes,
    Step,
    ValueSpec,
)  # fmt: skip
from .requirements import Requirement, Requirements, Sum, is_expression
from .sizes import Size
from .slices import Slices
from .solver import Solver
from .types import TensorType

Signatures = Mapping[str, KernelSignature]


def programs_from_json(data: Any) -> tuple[Program, ...]:
    """Read and check `program.json`. Raises `ArtifactSchemaError`."""
    fields = Fields(data, "program.json")
    signatures = signatures_from_json(fields.take("kernels"), "program.json.kernels")
    programs = fields.sequence("specialisations", Program.from_json)
    fields.done()
    check_programs(programs, signatures)
    return programs


def check_programs(programs: tuple[Program, ...], signatures: Signatures) -> None:
    """Check every program against the signatures of the kernels that it launches, and that all specialisations have the
    same interface. Raises `ArtifactSchemaError`.
    """
    if not programs:
        raise ArtifactSchemaError("program.json holds no specialisation")
    for program in programs:
        check_program(program, signatures)
        inputs = [program.values[number].name for number in program.inputs]
        for names in (inputs, program.result_names):
            if len(set(names)) != len(names):
                raise ArtifactSchemaError(f"program {program.name!r} has two inputs or outputs of the same name")
        if _interface(program) != _interface(programs[0]):
            raise ArtifactSchemaError(f"program {program.name!r} has other inputs or outputs than {programs[0].name!r}")


def check_program(program: Program, signatures: Signatures) -> tuple[Requirement, ...]:
    """Check one program and all nested in it. Returns its requirements on the values of its symbols at run time. Raises
    `ArtifactSchemaError`.
    """
    return _Checker(program, signatures).run()


def _interface(program: Program) -> list[tuple[str, str]]:
    names = [*(program.values[number].name for number in program.inputs), *program.result_names]
    dtypes = [program.values[number].dtype for number in (*program.inputs, *program.outputs)]
    caches = [(cache.input, f"{cache.output}, {cache.position}, {cache.axis}") for cache in program.caches]
    return [*zip(names, dtypes), *caches]


class _Checker:
    """Walks the steps of a program in order and tracks which values are set, and which of them by the host."""

    def __init__(self, program: Program, signatures: Signatures) -> None:
        self.program, self.signatures = program, signatures
        self.require = Requirements(program.symbols, self._fail)
        self.launches = LaunchChecker(program, signatures, self.require, self._fail)
        self.set_values: set[int] = set()
        self.made_on_host: set[int] = set()

    def run(self) -> tuple[Requirement, ...]:
        program = self.program
        self._check_inputs()
        self._check_caches()
        self._check_symbols()
        self.require.within(program.arena_bytes, 0, MAX_INT, "the size of the arena")
        for number, value in enumerate(program.values):
            self._check_location(value)
            if isinstance(value.location, (Input, Constant, Literal)) or _is_empty(value.location):
                self.set_values.add(number)
        for index, step in enumerate(program.steps):
            self._check_step(step, f"step {index}")
        self._read(program.outputs, "the outputs")
        if program.output_names and len(program.output_names) != len(program.outputs):
            self._fail(f"there are {len(program.outputs)} outputs and {len(program.output_names)} names for them")
        return tuple(self.require.kept)

    def _fail(self, problem: str) -> NoReturn:
        raise ArtifactSchemaError(f"program {self.program.name!r}: {problem}")

    def _value(self, number: int, user: str) -> ValueSpec:
        if not 0 <= number < len(self.program.values):
            self._fail(f"{user} names value {number}, but there are {len(self.program.values)}")
        return self.program.values[number]

    def _check_inputs(self) -> None:
        for index, number in enumerate(self.program.inputs):
            if self._value(number, "the inputs").location != Input(index):
                self._fail(f"value {number} is input {index}, but its location says otherwise")
        located = sum(isinstance(value.location, Input) for value in self.program.values)
        if located != len(self.program.inputs):
            self._fail(f"{located} values are located in inputs, but there are {len(self.program.inputs)} inputs")

    def _check_caches(self) -> None:
        """Check that a growing cache is an output that is longer along one axis, and that an input tells its sizes."""
        program = self.program
        inputs = {program.values[number].name: program.values[number] for number in program.inputs}
        for cache in program.caches:
            told, number = inputs.get(cache.sizes), program.results.get(cache.output)
            shape, grown = cache.type.shape or (), () if number is None else program.values[number].shape or ()
            if cache.axis >= len(shape) or len(grown) != len(shape) or told is None or len(told.shape or ()) != 3:
                self._fail(
                    f"cache {cache.input!r} does not fit its output {cache.output!r}, or nothing tells its sizes"
                )
            if program.values[number or 0].dtype != cache.type.dtype:
                self._fail(f"cache {cache.input!r} is of {cache.type.dtype}, but its output {cache.output!r} is not")
            is_empty = 0 in grown  # zero images: nothing is stored
            if not is_empty and not isinstance(program.values[number or 0].location, Heap):
                self._fail(f"cache {cache.input!r}: the memory of {cache.output!r} cannot be the caller's")
            self._check_added(cache)

    def _check_added(self, cache: Cache) -> None:
        if isinstance(cache.new, str):
            self.require.known(cache.new, f"cache {cache.input!r}")

    def _check_symbols(self) -> None:
        program = self.program
        names = [symbol.name for symbol in program.symbols]
        if len(set(names)) != len(names):
            self._fail("two symbols have one name")
        if program.checks and not names:
            self._fail("there are checks of sizes, but no symbols")
        if not names:
            return
        unsolved = Solver(program).unsolved
        if unsolved:
            self._fail(f"the shapes of the inputs do not determine the symbol {unsolved[0]!r}")
        for index, check in enumerate(program.checks):
            for size in (check.left, check.right):
                if isinstance(size, str):
                    self.require.known(size, f"check {index}")
        symbols = frozenset(names)
        types = [value.type for value in program.values if isinstance(value.type, TensorType)]
        for size in dict.fromkeys(size for type_ in types for size in type_.shape or ()):
            if isinstance(size, str) and is_expression(size, symbols):
                self.require.within(size, 0, MAX_INT, "a dimension")

    def _check_location(self, value: ValueSpec) -> None:
        size = self.require.nbytes(value.type)
        match value.location:
            case Arena(offset_bytes, nbytes):
                self._check_arena(value, offset_bytes, nbytes)
            case Constant():
                if not isinstance(size, int):
                    self._fail(f"constant {value.name!r} has the type {value.type}, which is of no fixed size")
            case Sizes():
                if value.type != TensorType("int64", (len(self.program.symbols),)):
                    self._fail(f"value {value.name!r} of type {value.type} is no list of the program's symbols")
            case Literal(items):
                shape = value.type.static_shape if isinstance(value.type, TensorType) else None
                if value.dtype != "string" or shape is None or _product(shape) != len(items):
                    self._fail(f"literal {value.name!r} of type {value.type} has {len(items)} strings")
            case _:
                pass

    def _check_arena(self, value: ValueSpec, offset_bytes: Size, nbytes: Size) -> None:
        size, arena_bytes = self.require.nbytes(value.type), self.program.arena_bytes

        def misfit() -> str:
            return f"value {value.name!r} of type {value.type} does not fit its {nbytes} bytes of the arena"

        if size is None:
            self._fail(misfit())
        self.require.at_most((size,), (nbytes,), misfit)
        self.require.at_most((0,), (offset_bytes,), lambda: f"value {value.name!r} begins before the arena")
        self.require.at_most(
            (offset_bytes, nbytes),
            (arena_bytes,),
            lambda: f"value {value.name!r} ends beyond the arena of {arena_bytes} bytes",
        )

    def _check_step(self, step: Step, where: str) -> None:
        match step:
            case NativeStep():
                self._check_native_step(step, where)
            case DeviceStep():
                self._check_device_step(step, where)
            case HostStep():
                self._check_attrs(step.attrs, where)
                self._read(step.inputs, where)
                self._write(step.outputs, where)
            case IfStep():
                self._read((step.cond,), where)
                for body in (step.then_body, step.else_body):
                    self._check_body(body, 0, len(step.outputs), where)
                self._write(step.outputs, where)
            case CallStep():
                self._check_body(step.body, 0, len(step.outputs), where)
                self._write(step.outputs, where)
            case LoopStep():
                self._check_loop(step, where)
            case ScanStep():
                self._check_scan(step, where)
            case SequenceMapStep():
                self._read((step.sequence, *step.others), where)
                self._check_body(step.body, 1 + len(step.others), len(step.outputs), where)
                self._write(step.outputs, where)

    def _check_loop(self, step: LoopStep, where: str) -> None:
        self._read((step.max_trip, step.cond, *step.carried), where)
        if len(step.outputs) < len(step.carried):
            self._fail(f"{where}: a loop of {len(step.carried)} carried values has {len(step.outputs)} outputs")
        self._check_body(step.body, 2 + len(step.carried), 1 + len(step.outputs), where)
        self._write(step.outputs, where)

    def _check_scan(self, step: ScanStep, where: str) -> None:
        self._read((*step.states, *step.scans), where)
        scans_out = len(step.outputs) - len(step.states)
        if scans_out < 0 or not step.scans:
            self._fail(f"{where}: a scan needs a scan input and an output for each state")
        if {len(step.input_axes), len(step.input_directions)} != {len(step.scans)}:
            self._fail(f"{where}: axes and directions do not match the {len(step.scans)} scan inputs")
        if {len(step.output_axes), len(step.output_directions)} != {scans_out}:
            self._fail(f"{where}: axes and directions do not match the {scans_out} scan outputs")
        self._check_body(step.body, len(step.states) + len(step.scans), len(step.outputs), where)
        self._write(step.outputs, where)

    def _check_body(self, body: Body, formal: int, outputs: int, where: str) -> None:
        self._read(body.captures, where)
        if len(body.program.inputs) != formal + len(body.captures):
            self._fail(f"{where}: the body has {len(body.program.inputs)} inputs, not {formal} + {len(body.captures)}")
        if len(body.program.outputs) != outputs:
            self._fail(f"{where}: the body has {len(body.program.outputs)} outputs, not {outputs}")
        check_program(body.program, self.signatures)

    def _check_native_step(self, step: NativeStep, where: str) -> None:
        self._check_packed(step.launches, where)
        self._check_slices(step.launches, step.slices, where)
        for launch in step.launches:
            for one in launch.kernels:
                self._check_tasks(one, where)
            self._check_launch(launch, where)
            self._check_for_cpu(launch, where)

    def _check_device_step(self, step: DeviceStep, where: str) -> None:
        for number, launch in enumerate(step.launches):
            for one in launch.kernels:
                self._check_extents(one, where)
                if (one.cluster, one.cooperative) != (launch.cluster, launch.cooperative):
                    self._fail(
                        f"{where}: kernel {launch.symbol!r} and its case {one.symbol!r} differ in their clusters, or "
                        "in whether their blocks are resident together, which a graph cannot change"
                    )
            edges = [edge for edge in step.dependences if edge.after == number and edge.kind != "full"]
            overlapped = [step.launches[edge.before] for edge in edges if 0 <= edge.before < number]
            shared = {arg.value for other in overlapped for arg in other.args}
            self._check_launch(launch, where, shared)
        for edge in step.dependences:
            if not 0 <= edge.before < edge.after < len(step.launches):
                self._fail(f"{where}: the edge from launch {edge.before} to {edge.after} leads nowhere")
        if len({(edge.before, edge.after) for edge in step.dependences}) != len(step.dependences):
            self._fail(f"{where}: two edges lead from one launch to another")

    def _check_extents(self, launch: DeviceLaunch, where: str) -> None:
        """Check the limits that every CUDA device has."""
        named = f"{where}: kernel {launch.symbol!r}"

        def too_many() -> str:
            return f"{named} has a grid of {launch.grid} blocks; at most {MAX_GRID}"

        for size, most in zip(launch.grid, MAX_GRID):
            self.require.at_most((size,), (most,), too_many)
            least = 1 if isinstance(size, int) else 0  # a grid of open size that has no blocks is not launched
            self.require.at_most((least,), (size,), lambda: f"{named} has a grid of {launch.grid} blocks; at least 1")
        if any(size > most for size, most in zip(launch.block, MAX_BLOCK)) or _product(launch.block) > MAX_BLOCK[0]:
            self._fail(f"{named} has blocks of {launch.block} threads; at most {MAX_BLOCK}, {MAX_BLOCK[0]} in all")

        def misfit() -> str:
            return f"{named} has clusters of {launch.cluster} blocks, which do not fit its grid {launch.grid}"

        if _product(launch.cluster) > MAX_CLUSTER:
            self._fail(misfit())
        for blocks, size in zip(launch.grid, launch.cluster):
            self.require.multiple((blocks,), size, misfit)
        # The loader asks the driver how many blocks are resident, not how many clusters.
        if launch.cooperative and _product(launch.cluster) > 1:
            self._fail(f"{named} is cooperative and has clusters of {launch.cluster} blocks; it may be one of the two")

    def _check_launch(self, launch: Launch | DeviceLaunch, where: str, shared: Collection[int] = ()) -> None:
        """Check a launch. `shared`: counters of launches that it overlaps."""
        written = self.launches.check(launch, where, self.set_values, self.made_on_host, shared)
        if launch.cases is not None:
            waits = bool(shared) or (isinstance(launch, DeviceLaunch) and launch.cooperative)
            self._check_cases(launch, launch.cases, written, where, waits)
        self.set_values |= written

    def _check_cases(
        self, launch: Launch | DeviceLaunch, cases: Cases[Launch] | Cases[DeviceLaunch], written: Collection[int],
        where: str, waits: bool,
    ) -> None:  # fmt: skip
        """Check that each case may replace the launch, and that the program's symbols decide which one does. `waits`:
        for other blocks.
        """
        named = f"{where}: the cases of kernel {launch.symbol!r}"
        symbols = frozenset(symbol.name for symbol in self.program.symbols)
        if not isinstance(cases.size, str) or not is_expression(cases.size, symbols):
            self._fail(f"{named} depend on {cases.size!r}, which is no expression over the program's symbols")
        counters = {arg.value for arg in launch.args if isinstance(self._value(arg.value, named).location, Counters)}
        if waits and counters:
            self._fail(f"{named} share counters, of which each kernel that waits for others has its own")
        for one in cases.launches:
            if self.launches.check(one, where, self.set_values, self.made_on_host, counters) != written:
                self._fail(f"{named} write other values than it does")

    def _check_packed(self, launches: Sequence[Launch], where: str) -> None:
        """Check that packed launches have a task list no longer than a launch's may be."""
        packs: list[list[Size]] = []
        for launch, following in zip_longest(launches, launches[1:]):
            if launch.cases is not None and (launch.packed or (following is not None and following.packed)):
                self._fail(f"{where}: kernel {launch.symbol!r} has cases, and is packed with others")
            if not launch.packed:
                packs.append([launch.tasks])
            elif packs:
                packs[-1].append(launch.tasks)
            else:
                self._fail(f"{where}: its first launch is packed with none")
        for tasks in packs:
            if len(tasks) > 1:
                self._check_together(tuple(tasks), where)

    def _check_slices(self, launches: Sequence[Launch], slices: Slices | None, where: str) -> None:
        """Check that the runs cover all launches, keep packed ones together, and have sizes that symbols give."""
        if slices is None:
            return
        if slices.symbol not in {symbol.name for symbol in self.program.symbols}:
            self._fail(f"{where}: its slices are of {slices.symbol!r}, which is no symbol")
        begin = 0
        for count, most in slices.runs:
            if begin < len(launches) and launches[begin].packed:
                self._fail(f"{where}: launch {begin} begins a run of slices, but is packed with the one before")
            self.require.within(most, 0, MAX_INT, f"{where}: a slice")
            begin += count
        if begin != len(launches):
            self._fail(f"{where}: the runs of its slices have {begin} launches, but there are {len(launches)}")

    def _check_together(self, tasks: Sum, where: str) -> None:
        self.require.at_most(
            tasks,
            (MAX_TASKS,),
            lambda: f"{where}: {' + '.join(map(str, tasks))} tasks are packed together; at most {MAX_TASKS}",
        )

    def _check_tasks(self, launch: Launch, where: str) -> None:
        kernel = f"{where}: kernel {launch.symbol!r}"
        self.require.within(launch.tasks, 0, MAX_TASKS, f"{kernel}: the number of tasks")
        self.require.within(launch.scratch_bytes, 0, MAX_INT, f"{kernel}: the scratch memory")

    def _check_attrs(self, attrs: Any, where: str) -> None:
        """Check that the expressions in a host step's attributes are over the program's symbols."""
        if isinstance(attrs, Mapping):
            if set(attrs) == {"$size"}:
                text = attrs["$size"]
                if not isinstance(text, str):
                    self._fail(f"{where}: the size {text!r} in the attributes is no expression")
                self.require.known(text, f"{where}: a size in the attributes")
            for item in attrs.values():
                self._check_attrs(item, where)
        elif isinstance(attrs, (list, tuple)):
            for item in attrs:
                self._check_attrs(item, where)

    def _check_for_cpu(self, launch: Launch, where: str) -> None:
        if any(isinstance(self.program.values[arg.value].location, Counters) for arg in launch.args):
            self._fail(f"{where}: kernel {launch.symbol!r} of the CPU takes counters, which only devices have")
        if any(arg.tensor_map is not None for arg in launch.args):
            self._fail(f"{where}: kernel {launch.symbol!r} of the CPU takes a tensor map, which only devices have")

    def _read(self, numbers: Iterable[int], where: str) -> None:
        for number in numbers:
            if number == ABSENT:
                continue
            value = self._value(number, where)
            if number not in self.set_values:
                self._fail(f"{where}: value {value.name!r} is read before anything computes it")

    def _write(self, numbers: Iterable[int], where: str) -> None:
        for number in numbers:
            if number == ABSENT:
                continue
            value = self._value(number, where)
            if not isinstance(value.location, Heap):
                self._fail(f"{where}: value {value.name!r} is made by a host step, but is not located on the heap")
            self.set_values.add(number)
            self.made_on_host.add(number)


def _is_empty(location: object) -> bool:
    """Return whether a location is an empty place in the arena, where there is nothing to compute."""
    return isinstance(location, Arena) and location.nbytes == 0


def _product(sizes: Iterable[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result
