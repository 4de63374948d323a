"""Steps as one table of launches: sizes that kernels find are set by `ts_resize` between the launches.

What is stored between the steps, and results of sizes that are found, lie in memory that stays, with room for so many
bytes. Where sizes need more, a group's steps are run one by one, and the table is made anew with more room for the next
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import address_of, aligned_bytes
from tilestitch.runtime.cases import Cases
from tilestitch.runtime.dtypes import ITEM_BYTES, memory_dtype
from tilestitch.runtime.groups import Group, NoRoom, NotJoined, Present
from tilestitch.runtime.hostmemory import empty_tensor, is_small
from tilestitch.runtime.launches import RecordTime
from tilestitch.runtime.loaded import Loaded
from tilestitch.runtime.moves import Move
from tilestitch.runtime.program import (
    ABSENT,
    Arena,
    CallStep,
    Constant,
    Heap,
    HostStep,
    Launch,
    NativeStep,
    Program,
    Sizes,
    Status,
    Step,
    ValueSpec,
)
from tilestitch.runtime.requirements import is_expression
from tilestitch.runtime.sizes import Size, multiplied
from tilestitch.runtime.types import TensorType

from .faults import Faults
from .library import Library
from .resizing import Resizing, Word
from .segment import Repeated
from .team import Team

MOST_ROOM = 1 << 18
"""Bytes of memory that stays for one value. Copying more takes longer than what is saved."""

Dim = int | Word
Key = tuple[Any, ...]
"""What there is room for: numbers of calls and a value, or a word."""


@dataclass
class Place:
    """Where a value lies, from a fixed address on; `array` is the memory. `outer`: the number of a value of the program
    whose address each run looks up.
    """

    dtype: str
    dims: tuple[Dim, ...]
    array: np.ndarray | None = None
    outer: int | None = None

    @property
    def address(self) -> int:
        assert self.array is not None
        return address_of(self.array)


@dataclass(frozen=True)
class Surroundings:
    """What a table is made in."""

    loaded: Loaded
    library: Library
    team: Team
    present: Present


@dataclass
class Frame:
    """A program in the table: the outer one, or the body of a call. `path`: the numbers of the calls; `header`: the
    argument of its `ts_resize`.
    """

    program: Program
    path: tuple[int, ...]
    resizing: Resizing | None
    symbols: np.ndarray
    places: dict[int, Place] = field(default_factory=dict)
    arena: np.ndarray | None = None
    header: int = 0


class Table:
    """The launches of programs that native code runs one after the other. `room`: bytes that are reserved for values of
    sizes that are found, where it is not the least.
    """

    least_room, most_room = 1 << 10, MOST_ROOM

    def __init__(self, around: Surroundings, room: Mapping[Key, int], launches: int, arguments: int) -> None:
        self.around, self.room, self.team = around, dict(room), around.team
        self._failed = np.zeros(1, np.int32)
        self.launches: list[Launch | None] = []
        self._faults = Faults(launches)
        self.table = np.zeros((launches, 4), np.int64)
        self.args = np.zeros((arguments, 2), np.int64)
        self._resizings: list[Resizing] = []
        self._kept: list[Any] = []
        self.addressed: dict[int, list[tuple[int, int]]] = {}
        self._scratch_bytes = 0
        self._calls = self._row = self._arg = 0

    def _finish(self) -> None:
        """Make what is put ready to run."""
        self.team.reserve(self._scratch_bytes)
        self._faults.have(self.launches)

    def check_faults(self) -> None:
        """Raise `ExecutionError` where a kernel has reported a fault, `NoRoom` where sizes did not fit."""
        self._faults.check()
        if self._failed[0]:
            self._failed[0] = 0
            self.full()
            raise NoRoom

    def full(self) -> None:
        """Note that there was too little room."""

    def record(self, record: RecordTime, times_ns: np.ndarray) -> None:
        raise ValueError("launches between which sizes are set have no times")

    def more_room(self) -> dict[Key, int]:
        """Return the room that the last sizes need."""
        room = dict(self.room)
        for resizing in self._resizings:
            for key, (place, most) in resizing.rooms.items():
                needed = int(resizing.values[place])
                if needed > most:
                    room[key] = -(-3 * needed // 128) * 64  # whole elements of all data types
        return room

    def address(self, values: list[Any], number: int) -> int:
        array = values[number]
        if array is None:
            values[number] = array = empty_tensor(self.around.present.spec(number))
        elif not array.flags.c_contiguous or not array.flags.aligned:
            values[number] = array = np.array(array, order="C")
        return address_of(array)

    # --- making it ----------------------------------------------------------------------------------------------------

    def _put(self, frame: Frame, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case NativeStep():
                    self._put_launches(frame, step)
                case HostStep():
                    self._put_extent(frame, step)
                case CallStep():
                    self._put_call(frame, step)

    def _put_launches(self, frame: Frame, step: NativeStep) -> None:
        first = self._row
        for launch in map(partial(self._chosen, frame), step.launches):
            row = self._next_row(launch, self.around.library.address(launch.symbol))
            if launch.packed:
                self.table[first, 3] += 1
            else:
                first = row
            self._put_tasks(frame, row, launch.tasks)
            self._put_scratch(frame, launch.scratch_bytes)
            for arg in launch.args:
                self._put_argument(frame, row, arg.value, arg.offset_bytes)

    def _chosen(self, frame: Frame, launch: Launch) -> Launch:
        """Return the one of a launch's cases that is put."""
        return launch

    def _next_row(self, launch: Launch | None, function: int) -> int:
        row = self._row
        self.table[row] = (function, self.args.ctypes.data + 16 * self._arg, 1, 1)
        self.launches.append(launch)
        self._row += 1
        return row

    def _put_tasks(self, frame: Frame, row: int, tasks: Size) -> None:
        if frame.resizing is None or isinstance(tasks, int):
            self.table[row, 2] = self._size(frame, tasks)
            if frame.resizing is None:
                return
        frame.resizing.tasks(self.table.ctypes.data + 32 * row + 16, tasks)

    def _put_scratch(self, frame: Frame, nbytes: Size) -> None:
        if frame.resizing is None or isinstance(nbytes, int):
            self._scratch_bytes = max(self._scratch_bytes, self._size(frame, nbytes))
            return
        most = self._room(frame.resizing, (*frame.path, "scratch", nbytes), nbytes)
        self._scratch_bytes = max(self._scratch_bytes, most)

    def _put_argument(self, frame: Frame, row: int, number: int, offset_bytes: Size) -> None:
        index = self._arg
        self._arg += 1
        location = frame.program.values[number].location
        base, place = 0, None
        begin: Size = 0
        match location:
            case Status():
                self.args[index, 1] = self._faults.address(row)
                return
            case Sizes():
                known = frame.symbols if frame.resizing is None else frame.resizing.known
                base = address_of(known)
            case Arena(begin_bytes, _) if frame.resizing is not None:
                base, begin = self._arena(frame), begin_bytes
            case _:
                place = self._place(frame, number)
        if place is not None and place.outer is not None:
            self.addressed.setdefault(place.outer, []).append((index, self._known(frame, offset_bytes)))
            return
        if place is not None:
            base = place.address
        if frame.resizing is None:
            self.args[index, 1] = base + self._size(frame, begin) + self._size(frame, offset_bytes)
        else:
            frame.resizing.pointer(self.args.ctypes.data + 16 * index + 8, base, begin, offset_bytes)

    def _put_extent(self, frame: Frame, step: HostStep) -> None:
        source, (made,) = self._place(frame, step.inputs[0]), step.outputs
        type_ = frame.program.values[made].type
        if source.array is None or source.dtype != "int64" or not isinstance(type_, TensorType) or type_.shape is None:
            raise NotJoined
        if source.dims != (len(type_.shape),):
            raise NotJoined
        words = source.array.reshape(-1).view(np.int64)
        frame.places[made] = Place("bool", tuple(Word(words, index) for index in range(len(type_.shape))))

    def _put_call(self, frame: Frame, step: CallStep) -> None:
        self._calls += 1
        captured = [self._place(frame, number) for number in step.body.captures if number != ABSENT]
        shared = {} if frame.path else self._shared(frame, step)
        inner = self._begun(step.body.program, (*frame.path, self._calls), captured, shared)
        self._put(inner, step.body.program.steps)
        outputs = [self._place(inner, number) for number in step.body.program.outputs]
        for number, place in zip(step.outputs, outputs):
            self._check_type(frame, number, place, inner.resizing)
            if frame.places.setdefault(number, place) is not place:
                raise NotJoined  # the call would have to store it elsewhere
        self._end(inner)

    def _begun(
        self, body: Program, path: tuple[int, ...], given: Sequence[Place], stored: Mapping[int, Place]
    ) -> Frame:
        """Return the frame of a program with these inputs, whose sizes are set before the launches that are put next.
        `stored`: where some of its results lie.
        """
        if len(given) != len(body.inputs):
            raise NotJoined
        frame = Frame(body, path, self._resizing(body, given), np.zeros(1, np.int64))
        self._kept.append(frame.symbols)
        frame.places.update(zip(body.inputs, given))
        for number, place in stored.items():
            if not isinstance(body.values[number].location, Heap) or number in frame.places:
                raise NotJoined
            frame.places[number] = place
        if frame.resizing is not None:
            resize = self.around.library.resize
            assert resize is not None
            self._next_row(None, resize)
            frame.header = self._arg
            self._arg += 1
        return frame

    def _end(self, frame: Frame) -> None:
        """Set what `ts_resize` reads, when all launches are put."""
        if frame.resizing is not None:
            self._resizings.append(frame.resizing)
            self.args[frame.header, 1] = frame.resizing.finish()

    def _shared(self, frame: Frame, step: CallStep) -> Mapping[int, Place]:
        """Return places outside of a call in which it stores its results."""
        return {}

    def _resizing(self, body: Program, captured: Sequence[Place]) -> Resizing | None:
        """Return the sizes of a body with symbols, each of which is a dimension of something that it captures."""
        sizing = self.around.loaded.sizing(body)
        if sizing is None:
            return None
        names = {symbol.name for symbol in body.symbols}
        sources: dict[str, Word] = {}
        pairs: list[tuple[Size, Dim]] = []
        for number, place in zip(body.inputs, captured):
            type_ = body.values[number].type
            if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) != len(place.dims):
                raise NotJoined
            for size, dim in zip(type_.shape, place.dims):
                if isinstance(size, str) and size in names and size not in sources:
                    sources[size] = self._word(dim)
                elif isinstance(size, int) or sizing.knows(TensorType("bool", (size,))):
                    pairs.append((size, dim))
        if len(sources) < len(names):
            raise NotJoined
        extra = [size for size, _ in pairs]
        extra += [size for cases in cases_of(body) for start in cases.starts for size in (start - 1, start)]
        extra += [nbytes for value in body.values if (nbytes := nbytes_of(body, value)) is not None]
        resizing = Resizing(sizing, sources, extra, self._failed)
        for size, dim in pairs:
            if not (isinstance(size, int) and isinstance(dim, int) and size == dim):
                resizing.equal(resizing.word(size), self._word(dim))
        return resizing

    def _word(self, dim: Dim) -> Word:
        return dim if isinstance(dim, Word) else Word(np.array([dim], np.int64), 0)

    def _check_type(self, frame: Frame, number: int, place: Place, resizing: Resizing | None) -> None:
        """Require that a call's result has the type that the outer program states."""
        type_ = self._spec(frame, number).type
        if not isinstance(type_, TensorType) or type_.dtype != place.dtype:
            raise NotJoined
        if type_.shape is None:
            return
        if len(type_.shape) != len(place.dims):
            raise NotJoined
        for size, dim in zip(type_.shape, place.dims):
            known = self._known_dim(frame, size)
            if known is None or known == dim:
                continue
            if resizing is None or isinstance(dim, int) or dim.array is not resizing.values:
                raise NotJoined
            resizing.equal(dim, self._word(known))

    def _known_dim(self, frame: Frame, size: Any) -> Dim | None:
        if isinstance(size, int):
            return size
        if frame.resizing is None or not is_expression(size, names_of(frame.program)):
            return None
        return frame.resizing.word(size)

    # --- where values lie ---------------------------------------------------------------------------------------------

    def _place(self, frame: Frame, number: int) -> Place:
        place = frame.places.get(number)
        if place is None:
            place = frame.places[number] = self._made(frame, number)
            self._kept.append(place)
        return place

    def _made(self, frame: Frame, number: int) -> Place:
        """Return a new place for a value."""
        value = frame.program.values[number]
        if isinstance(value.location, Constant):
            array = self.around.loaded.constant(value)
            return Place(value.dtype, array.shape, array)
        if not isinstance(value.location, Heap) or not isinstance(value.type, TensorType) or value.type.shape is None:
            raise NotJoined
        dims = tuple(self._known_dim(frame, size) for size in value.type.shape)
        nbytes = nbytes_of(frame.program, value)
        if nbytes is None or None in dims:
            raise NotJoined
        memory = aligned_bytes(self._reserved(frame, number, nbytes))
        return Place(value.dtype, tuple(dim for dim in dims if dim is not None), memory)

    def _arena(self, frame: Frame) -> int:
        if frame.arena is None:
            frame.arena = aligned_bytes(self._reserved(frame, "arena", frame.program.arena_bytes))
            self._kept.append(frame.arena)
        return address_of(frame.arena)

    def _reserved(self, frame: Frame, key: Any, nbytes: Size) -> int:
        """Return the bytes to reserve for something; a run finds out whether that is enough."""
        if isinstance(nbytes, int):
            if nbytes > self.most_room:
                raise NotJoined
            return nbytes
        assert frame.resizing is not None
        return self._room(frame.resizing, (*frame.path, key), nbytes)

    def _room(self, resizing: Resizing, key: Key, nbytes: Size) -> int:
        """Return how many bytes there are for something; a run requires that they are enough."""
        most = self.room.get(key, self.least_room)
        resizing.room(key, nbytes, most)
        return most

    def _spec(self, frame: Frame, number: int) -> ValueSpec:
        return frame.program.values[number] if frame.path else self.around.present.spec(number)

    def _size(self, frame: Frame, size: Size) -> int:
        if isinstance(size, int):
            return size
        if frame.path:
            raise NotJoined
        return self.around.present.size(size)

    def _known(self, frame: Frame, size: Size) -> int:
        if isinstance(size, str) and frame.path:
            raise NotJoined
        return self._size(frame, size)


def joined(group: Group, around: Surroundings) -> JoinedGroup | None:
    """Return a group as one table; None where that cannot be."""
    if around.library.resize is None:
        return None
    try:
        return JoinedGroup(group, around)
    except NotJoined:
        return None


class JoinedGroup:
    """A group whose table is made anew where there is too little room."""

    def __init__(self, group: Group, around: Surroundings) -> None:
        self._group, self._around = group, around
        self._room: Mapping[Key, int] = {}
        self._table: _GroupTable | None = _GroupTable(group, around, self._room)
        self.exhausted = False

    def run(self, values: list[Any]) -> bool:
        if self._table is None:
            self._table = _GroupTable(self._group, self._around, self._room)
        if self._table.run(values):
            return True
        self._grow(self._table)
        self._table = None
        return False

    def repeated(self, moves: Sequence[Move], condition: int | None, count: np.ndarray | None) -> Repeated:
        moving = {number for move in moves for number in (move.number, move.source)}
        moving |= self._group.given if condition is None else {*self._group.given, condition}
        table = _GroupTable(self._group, self._around, self._room, frozenset(moving), self._grow)
        return Repeated(table, moves, condition, count, table.args, table.table)

    def _grow(self, table: Table) -> None:
        """Reserve the room that the last sizes need."""
        room = table.more_room()
        if max(room.values(), default=0) > MOST_ROOM:
            self.exhausted = True
        else:
            self._room = room


class _GroupTable(Table):
    """The launches of a group. `moving`: values whose addresses are put in from outside; `grow` is called where there
    is too little room then.
    """

    def __init__(
        self, group: Group, around: Surroundings, room: Mapping[Key, int], moving: frozenset[int] = frozenset(),
        grow: Callable[[Table], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(around, room, *counts_of(around.loaded, group.steps))
        self._group, self._moving, self._grow = group, moving | group.program.grown, grow
        self._copied_in: list[tuple[int, np.ndarray]] = []
        outer = Frame(group.program, (), None, np.array([*around.present.symbols, 0], np.int64))
        self._kept.append(outer.symbols)
        self._put(outer, group.steps)
        self._results = [self._result(number, self._place(outer, number)) for number in group.results]
        self._finish()
        self._execute = self.team.prepare(address_of(self.table), len(self.table))

    def run(self, values: list[Any]) -> bool:
        for number, memory in self._copied_in:
            memory[...] = values[number]
        for number, places in self.addressed.items():
            address = self.address(values, number)
            for row, offset_bytes in places:
                self.args[row, 1] = address + offset_bytes
        self._execute()
        self._faults.check()
        if self._failed[0]:
            self._failed[0] = 0
            return False
        for result in self._results:
            result(values)
        return True

    def full(self) -> None:
        assert self._grow is not None
        self._grow(self)

    def _shared(self, frame: Frame, step: CallStep) -> Mapping[int, Place]:
        pairs = zip(step.outputs, step.body.program.outputs)
        return {inside: self._place(frame, number) for number, inside in pairs if number in self._moving}

    def _made(self, frame: Frame, number: int) -> Place:
        if frame.path:
            return super()._made(frame, number)
        spec = self.around.present.spec(number)
        if not isinstance(spec.type, TensorType) or not spec.type.is_static:
            raise NotJoined
        dims = spec.type.static_shape or ()
        if isinstance(spec.location, (Constant, Arena)):
            return Place(spec.type.dtype, dims, self.around.present.fixed(number))
        given = number in self._group.given
        if number in self._moving:
            return Place(spec.type.dtype, dims, outer=number)
        if is_small(spec) or (not given and number not in self._group.results and spec.type.nbytes <= MOST_ROOM):
            memory = empty_tensor(spec)
            if given:
                self._copied_in.append((number, memory))
            return Place(spec.type.dtype, dims, memory)
        if not given and number not in self._group.results:
            raise NotJoined
        return Place(spec.type.dtype, dims, outer=number)

    def _result(self, number: int, place: Place) -> Callable[[list[Any]], None]:
        """Return what sets a value of the program after a run."""
        if place.outer is not None:
            return _same(number, place.outer)
        if place.array is None:
            return _extent(number, place.dims)
        flat = place.array.reshape(-1).view(np.uint8).view(memory_dtype(place.dtype))
        return _copied(number, flat, place.dims)


def _same(number: int, other: int) -> Callable[[list[Any]], None]:
    def set_(values: list[Any]) -> None:
        values[number] = values[other]

    return set_


def _extent(number: int, dims: Sequence[Dim]) -> Callable[[list[Any]], None]:
    def set_(values: list[Any]) -> None:
        shape = [int(dim) for dim in dims]
        values[number] = np.ndarray(shape, np.bool_, b"\0", strides=[0] * len(shape))

    return set_


def _copied(number: int, flat: np.ndarray, dims: Sequence[Dim]) -> Callable[[list[Any]], None]:
    """Return what copies a result from its memory."""
    sizes: list[tuple[Any, int]] = [
        (dim.array.data, dim.index) if isinstance(dim, Word) else ((dim,), 0) for dim in dims
    ]

    def set_(values: list[Any]) -> None:
        shape = [array[index] for array, index in sizes]
        count = 1
        for size in shape:
            count *= size
        made = flat[:count].reshape(shape)
        if values[number] is None:
            values[number] = made.copy()
        else:
            values[number][...] = made

    return set_


def counts_of(loaded: Loaded, steps: Sequence[Step]) -> tuple[int, int]:
    """Return the numbers of launches and of arguments."""
    launches = arguments = 0
    for step in steps:
        if isinstance(step, NativeStep):
            launches += len(step.launches)
            arguments += sum(len(launch.args) for launch in step.launches)
        elif isinstance(step, CallStep):
            inside = counts_of(loaded, step.body.program.steps)
            more = loaded.sizing(step.body.program) is not None
            launches, arguments = launches + inside[0] + more, arguments + inside[1] + more
    return launches, arguments


def cases_of(program: Program) -> list[Cases[Launch]]:
    native = [step for step in program.steps if isinstance(step, NativeStep)]
    return [launch.cases for step in native for launch in step.launches if launch.cases is not None]


def names_of(program: Program) -> frozenset[str]:
    return frozenset(symbol.name for symbol in program.symbols)


def nbytes_of(program: Program, value: ValueSpec) -> Size | None:
    """Return the bytes of a tensor; None where they are not known before it is computed."""
    type_, names = value.type, names_of(program)
    if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in ITEM_BYTES:
        return None
    if not all(isinstance(size, int) or is_expression(size, names) for size in type_.shape):
        return None
    return multiplied((ITEM_BYTES[type_.dtype], *type_.shape))
