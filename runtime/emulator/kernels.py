"""Kernels on the emulated device: `Kernels({"name": cuda_text}).launch("name", grid, block, arrays)`."""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.runtime.launches import EDGE_KINDS
from tilestitch.runtime.tensor_map import ITEM_BYTES, SWIZZLES, TensorMap

from .build import build_device, build_kernels, locate, locate_all
from .errors import EmulatorBuildError, KernelFaultError
from .options import ORDERS, EmulatorOptions, Multiprocessors
from .traffic import RequestRecord, Requests, requests_of, traffic_of, traffic_records

Dim3 = tuple[int, int, int]
KernelEdge = tuple[int, int] | tuple[int, int, str]

_LOCK = threading.Lock()  # the device has one global state: one launch at a time per process


@dataclass(frozen=True)
class Argument:
    """Memory that a kernel's parameter points to: `nbytes` at `address`; `item_bytes` is the size of an element, the
    granularity at which accesses are checked. `read_only`: a kernel that writes it is at fault. `unordered`: threads
    may write it in any order, as they do with the word that reports faults. `name`: its name in `Traffic`.
    """

    address: int
    nbytes: int
    item_bytes: int = 1
    read_only: bool = False
    unordered: bool = False
    name: str = ""

    @staticmethod
    def of(array: np.ndarray) -> Argument:
        """Return the argument for a C-contiguous array; read-only if it is not writeable."""
        if not array.flags.c_contiguous:
            raise ValueError(f"an array of shape {array.shape} is not C-contiguous; pass np.ascontiguousarray(array)")
        return Argument(array.ctypes.data, array.nbytes, array.dtype.itemsize, not array.flags.writeable)


@dataclass(frozen=True)
class TensorArgument:
    """Argument of a parameter `const __grid_constant__ CUtensorMap`: a tensor map and the memory it describes.

    Raises ValueError if the map does not fit the memory, by its size or the alignment of its address.
    """

    tensor_map: TensorMap
    memory: Argument

    def __post_init__(self) -> None:
        self.tensor_map.check_memory(self.memory.address, self.memory.nbytes)

    @staticmethod
    def of(tensor_map: TensorMap, array: np.ndarray) -> TensorArgument:
        """Return a map over a C-contiguous array, from its first element on."""
        return TensorArgument(tensor_map, Argument.of(array))

    def encoded(self) -> bytes:
        """Return the bytes of `CUtensorMap` of include/emulator/tensor_map.h."""
        given = self.tensor_map
        padding = [0] * (5 - given.rank)
        return struct.pack(
            "<QQ5Q4Q5H5B5B20x", _TENSOR_MAP_MARK, self.memory.address, *given.dims, *padding, *given.strides_bytes,
            *padding[: 5 - given.rank], *given.box, *padding, *given.element_strides, *padding,
            list(ITEM_BYTES).index(given.dtype), given.item_bytes, given.rank, list(SWIZZLES).index(given.swizzle),
            0xFF if given.oob_fill == "nan" else 0,
        )  # fmt: skip


_TENSOR_MAP_MARK = 0x70616D726F736E74


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a kernel, one of several that may run concurrently. `arguments`: one for each parameter: C-contiguous
    arrays, written in place, and tensor maps. `shared_bytes`: dynamic shared memory of each block. `priority`: of those
    that are ready, blocks of a higher one start first. `registers`: of a thread, for `EmulatorOptions.multiprocessors`.
    """

    symbol: str
    grid: Dim3
    block: Dim3
    arguments: Sequence[np.ndarray | Argument | TensorArgument]
    shared_bytes: int = 0
    cooperative: bool = False
    cluster: Dim3 = (1, 1, 1)
    priority: int = 0
    registers: int = 0


@dataclass(frozen=True)
class Ran:
    """Times of a launch: `started` and `ended` are rounds of waiting threads before its first block started and its
    last one had ended, `us` the microseconds between.
    """

    started: int
    ended: int
    us: float


class Kernels:
    """Kernels compiled for the emulated device.

    `sources`: CUDA texts by name; each has one `extern "C" __global__` function or several, whose parameters are
    pointers and tensor maps. Raises EmulatorBuildError, EmulatorUnsupportedError.
    """

    def __init__(self, sources: Mapping[str, str], options: EmulatorOptions | None = None) -> None:
        self.options = options or EmulatorOptions()
        self._sources = dict(sources)
        device = build_device(self.options)
        self._path = build_kernels(sources, self.options)
        try:
            self._device = _device(device)
            self._run = self._device.emu_run
            self._library = ctypes.CDLL(str(self._path))
        except OSError as error:
            raise EmulatorBuildError(f"{error}; delete the folder {self._path.parent}, and load again") from error
        self._run.restype = ctypes.c_char_p
        self._begin = self._address("emu_module_begin")
        self._end = self._address("emu_module_end")

    def launch(
        self,
        symbol: str,
        grid: Dim3,
        block: Dim3,
        arguments: Sequence[np.ndarray | Argument | TensorArgument],
        shared_bytes: int = 0,
        cooperative: bool = False,
        cluster: Dim3 = (1, 1, 1),
        options: EmulatorOptions | None = None,
    ) -> None:
        """Run a kernel to its end on `arguments`, one for each parameter: C-contiguous arrays, written in place, and
        tensor maps.

        `shared_bytes` of dynamic shared memory for each block. `options` may differ from the kernels' own only in the
        orders, `resident_blocks`, `seed` and `on_launch`. Raises KernelFaultError.
        """
        self.run([KernelLaunch(symbol, grid, block, arguments, shared_bytes, cooperative, cluster)], (), options)

    def run(
        self,
        launches: Sequence[KernelLaunch],
        edges: Sequence[KernelEdge] = (),
        options: EmulatorOptions | None = None,
    ) -> list[Ran]:
        """Run launches concurrently to their ends, each after those that `edges` (before, after) say; `after` must come
        later in `launches`. A third entry of an edge lets its launch begin earlier (`EDGE_KINDS`).

        Blocks start as on a GPU: see `native/launches.cc`; with a random or adversarial order those of all ready
        launches are mixed. Raises KernelFaultError, also where two launches that may be concurrent access the same
        memory and one of them writes it.
        """
        if not launches:
            return []
        options = options or self.options
        _check_graph(launches, edges, options)
        counts = [traffic_records(len(one.arguments)) if options.on_launch else None for one in launches]
        kept = [self._record(one, options, count) for one, count in zip(launches, counts)]
        requests = (_LaunchRecord * len(launches))(*(record for record, _ in kept))
        pairs = (_EdgeRecord * max(1, len(edges)))(*map(_edge_record, edges))
        place, line, number = ctypes.c_void_p(), ctypes.c_uint32(), ctypes.c_uint32()
        with _LOCK:
            fault = self._run(
                ctypes.byref(requests), len(launches), ctypes.byref(pairs), len(edges),
                ctypes.byref(_limits_record(options.multiprocessors)), ctypes.byref(place), ctypes.byref(line),
                ctypes.byref(number),
            )  # fmt: skip
            counted = [self._requests(i) for i in range(len(launches))] if options.on_requests and fault is None else []
        if fault is not None:
            symbol = launches[number.value].symbol
            raise self._fault(symbol, fault.decode(errors="replace"), place.value, line.value, number.value)
        for one, count in zip(launches, counts):
            if options.on_launch is not None and count is not None:
                options.on_launch(one.symbol, traffic_of(map(_name, one.arguments), count))
        for one, found in zip(launches, counted):
            if options.on_requests is not None:
                options.on_requests(one.symbol, found)
        return [Ran(one.started, one.ended, (one.ended_ns - one.started_ns) / 1000) for one in requests]

    def _record(self, one: KernelLaunch, options: EmulatorOptions, counts: Any) -> tuple[_LaunchRecord, Any]:
        """Return the record of a launch and that of its arguments, to which it points."""
        entry = self._entry(one.symbol, "".join("pm"[isinstance(arg, TensorArgument)] for arg in one.arguments))
        _check_extents(one.symbol, one.grid, one.block, one.cluster)
        arguments = (_ArgumentRecord * max(1, len(one.arguments)))(*map(_record, one.arguments))
        record = _LaunchRecord(
            one.symbol.encode(), entry, one.grid, one.block, one.cluster, one.shared_bytes,
            ctypes.addressof(arguments), len(one.arguments), one.cooperative, self.options.checked,
            ORDERS.index(options.block_order), ORDERS.index(options.thread_order), options.resident_blocks,
            options.seed % 2**64, self._begin, self._end, ctypes.addressof(counts) if counts is not None else None,
            options.on_requests is not None, one.priority,
            (prod(one.block), prod(one.block) * one.registers, one.shared_bytes, 1),
        )  # fmt: skip
        return record, arguments

    def _requests(self, number: int) -> tuple[Requests, ...]:
        """Return the memory requests counted for a launch of the last run."""
        records = ctypes.POINTER(RequestRecord)()
        self._device.emu_requests.restype = ctypes.c_uint64
        count = self._device.emu_requests(ctypes.c_uint32(number), ctypes.byref(records))

        def lines(places: Sequence[int]) -> list[tuple[str, int]]:
            return [found or ("", 0) for found in locate_all(self._path, [place - self._begin - 1 for place in places])]

        return requests_of(records[:count], lines)

    def _entry(self, symbol: str, given: str) -> int:
        try:
            signature = getattr(self._library, f"emu_signature_{symbol}")
        except AttributeError:
            raise EmulatorBuildError(
                f"there is no kernel {symbol!r} in the artifact; compile the model again"
            ) from None
        signature.restype = ctypes.c_char_p
        wanted = signature().decode()
        if len(wanted) != len(given):
            raise ValueError(f"kernel {symbol} has {len(wanted)} parameters, {len(given)} arguments were given")
        for number, (kind, wanted_kind) in enumerate(zip(given, wanted)):
            if kind != wanted_kind:
                names = {"p": "a pointer: give an array or an Argument", "m": "a tensor map: give a TensorArgument"}
                raise ValueError(f"parameter {number} of kernel {symbol} is {names[wanted_kind]}")
        return ctypes.cast(getattr(self._library, f"emu_kernel_{symbol}"), ctypes.c_void_p).value or 0

    def _address(self, function: str) -> int:
        call = getattr(self._library, function)
        call.restype = ctypes.c_void_p
        return int(call())

    def _fault(self, symbol: str, problem: str, place: int | None, line: int, launch: int) -> KernelFaultError:
        problem = _PLACE.sub(self._line, problem)
        source = symbol if symbol in self._sources else next(iter(self._sources), "")
        if place and self._begin <= place < self._end and (found := locate(self._path, place - self._begin - 1)):
            source, line = found
        lines = self._sources.get(source, "").splitlines()
        quoted = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return KernelFaultError(symbol, problem, line or None, quoted, launch)

    def _line(self, match: re.Match[str]) -> str:
        """Return the line of the kernel as text; `match` has the line of the inlined function that the kernel calls
        there, and an address.
        """
        place = int(match[2], 16)
        found = locate(self._path, place - self._begin - 1) if self._begin <= place < self._end else None
        return f"line {found[1] if found else match[1]}"


_PLACE = re.compile(r"line (\d+)@0x([0-9a-f]+)")
_DEVICES: dict[str, ctypes.CDLL] = {}


def _device(path: Path) -> ctypes.CDLL:
    """Return the device's library, loaded once per file name, since kernels find it by its name rather than its
    path.
    """
    with _LOCK:
        if path.name not in _DEVICES:
            _DEVICES[path.name] = ctypes.CDLL(str(path))
        return _DEVICES[path.name]


class _ArgumentRecord(ctypes.Structure):
    """`Argument` of native/device.h."""

    _fields_ = (
        ("data", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("item_bytes", ctypes.c_uint32),
        ("kind", ctypes.c_uint32), ("tensor_map", ctypes.c_char_p),
    )  # fmt: skip


def _record(argument: np.ndarray | Argument | TensorArgument) -> _ArgumentRecord:
    tensor_map = argument.encoded() if isinstance(argument, TensorArgument) else None
    if isinstance(argument, TensorArgument):
        argument = argument.memory
    given = argument if isinstance(argument, Argument) else Argument.of(argument)
    kind = given.read_only + 2 * given.unordered
    return _ArgumentRecord(given.address, given.nbytes, given.item_bytes, kind, tensor_map)


_Extent = ctypes.c_uint32 * 3


def _name(argument: np.ndarray | Argument | TensorArgument) -> str:
    memory = argument.memory if isinstance(argument, TensorArgument) else argument
    return memory.name if isinstance(memory, Argument) else ""


class _LaunchRecord(ctypes.Structure):
    """`Launch` of native/device.h."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("entry", ctypes.c_void_p), ("grid", _Extent), ("block", _Extent),
        ("cluster", _Extent), ("shared_bytes", ctypes.c_uint64), ("arguments", ctypes.c_void_p),
        ("argument_count", ctypes.c_uint32), ("cooperative", ctypes.c_int), ("checked", ctypes.c_int),
        ("order", ctypes.c_int), ("thread_order", ctypes.c_int), ("resident", ctypes.c_uint32),
        ("seed", ctypes.c_uint64), ("module_begin", ctypes.c_void_p), ("module_end", ctypes.c_void_p),
        ("traffic", ctypes.c_void_p), ("count_requests", ctypes.c_int), ("priority", ctypes.c_int),
        ("needs", ctypes.c_uint32 * 4),
        ("started", ctypes.c_uint64), ("ended", ctypes.c_uint64), ("started_ns", ctypes.c_uint64),
        ("ended_ns", ctypes.c_uint64),
    )  # fmt: skip


class _EdgeRecord(ctypes.Structure):
    """`Edge` of native/device.h."""

    _fields_ = (("before", ctypes.c_uint32), ("after", ctypes.c_uint32), ("tie", ctypes.c_uint32))


def _edge_record(edge: KernelEdge) -> _EdgeRecord:
    before, after, *kind = edge
    return _EdgeRecord(before, after, EDGE_KINDS.index(kind[0]) if kind else 0)


class _LimitsRecord(ctypes.Structure):
    """`Limits` of native/device.h."""

    _fields_ = (("multiprocessors", ctypes.c_uint32), ("each", ctypes.c_uint32 * 4))


def _limits_record(given: Multiprocessors | None) -> _LimitsRecord:
    if given is None:
        return _LimitsRecord()
    return _LimitsRecord(given.count, (given.threads, given.registers, given.shared_bytes, given.blocks))


_MOST_BLOCKS = 1 << 20
"""Limit over all launches that run together: beyond it, race checks would confuse blocks."""


def _check_graph(launches: Sequence[KernelLaunch], edges: Sequence[KernelEdge], options: EmulatorOptions) -> None:
    for before, after, *_ in edges:
        if not 0 <= before < after < len(launches):
            raise ValueError(
                f"edge ({before}, {after}) of {len(launches)} launches; it goes from an earlier to a later"
            )
    if len(launches) > 1 and options.checked and sum(prod(one.grid) for one in launches) > _MOST_BLOCKS:
        raise ValueError(f"the launches have more than {_MOST_BLOCKS} blocks together; give checked=False")


def _check_extents(symbol: str, grid: Dim3, block: Dim3, cluster: Dim3) -> None:
    if not 1 <= prod(block) <= 1024 or block[2] > 64:
        raise ValueError(f"kernel {symbol}: a block of {block} threads; it has 1 to 1024 threads, 64 along z")
    limits = (2**31 - 1, 65535, 65535)
    if any(not 1 <= size <= limit for size, limit in zip(grid, limits)):
        raise ValueError(f"kernel {symbol}: a grid of {grid} blocks; the limits are {limits}")
    if any(size % part for size, part in zip(grid, cluster)) or prod(cluster) > 16:
        raise ValueError(f"kernel {symbol}: clusters of {cluster} do not fit a grid of {grid}, or exceed 16 blocks")
