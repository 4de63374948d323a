"""Check that launches pass their kernels what these were compiled for, by the kernels' signatures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import combinations, groupby
from typing import NamedTuple, NoReturn, TypeAlias

from .kernel_signature import KernelSignature, Parameter
from .program import (
    Arena,
    Arg,
    Constant,
    Counters,
    DeviceLaunch,
    Heap,
    Launch,
    Location,
    Program,
    Sizes,
    Status,
    ValueSpec,
)
from .requirements import Requirements, Sum
from .sizes import Size
from .types import TensorType

ARGUMENT_ALIGNMENT = 16
"""Alignment in bytes that kernels may assume of their arguments, except inputs."""


_Extent: TypeAlias = "tuple[int, int, _Region]"
"""First byte, end, and the region between them."""


class _Region(NamedTuple):
    """The memory that an argument may access: which memory, and from which byte on."""

    memory: int
    start: Sum
    parameter: Parameter
    arg: Arg

    @property
    def extent(self) -> _Extent | None:
        """The extent; None where it depends on symbols."""
        numbers = [size for size in (*self.start, self.parameter.nbytes) if isinstance(size, int)]
        if len(numbers) <= len(self.start):
            return None
        return sum(numbers[:-1]), sum(numbers), self


class LaunchChecker:
    """Checks the launches of one program. `fail` raises with its message; what depends on symbols becomes a
    requirement.
    """

    def __init__(
        self,
        program: Program,
        signatures: Mapping[str, KernelSignature],
        require: Requirements,
        fail: Callable[[str], NoReturn],
    ) -> None:
        self._values, self._symbols = program.values, program.symbols
        self._require = require
        self._signatures = signatures
        self._fail = fail
        self._counters: set[int] = set()

    def check(
        self,
        launch: Launch | DeviceLaunch,
        where: str,
        known: Collection[int],
        made_on_host: Collection[int],
        shared: Collection[int] = (),
    ) -> frozenset[int]:
        """Check a launch and return the numbers of the values that it writes.

        `known`: the values that are computed before it; `made_on_host`: those made by host steps, whose arrays may be
        shared or read-only. `shared`: counters of launches that it overlaps.
        """
        kernel = f"{where}: kernel {launch.symbol!r}"
        signature = self._signatures.get(launch.symbol)
        if signature is None:
            self._fail(f"{kernel} has no signature")
        if launch.extent != signature.extent:
            self._fail(f"{kernel} is launched with {launch.extent}, but was compiled for {dict(signature.extent)}")
        if len(launch.args) != len(signature.parameters):
            self._fail(f"{kernel} has {len(signature.parameters)} parameters, but gets {len(launch.args)} arguments")
        self._check_symbols(signature, kernel)
        arguments = list(zip(launch.args, signature.parameters))
        for number, (arg, parameter) in enumerate(arguments):
            self._check_argument(arg, parameter, f"{kernel}, argument {number},")
            self._check_access(arg, parameter, f"{kernel}, argument {number},", known, made_on_host)
            self._check_counters(arg, f"{kernel}, argument {number},", shared)
        self._check_apart(arguments, kernel)
        return frozenset(arg.value for arg, parameter in arguments if parameter.writes)

    def _check_argument(self, arg: Arg, parameter: Parameter, user: str) -> None:
        """Check that the argument is of the parameter's kind, and large enough."""
        value = self._value(arg.value, user)
        if _kind(value.location) != parameter.kind:
            self._fail(f"{user} is {value.name!r}, of the kind {_kind(value.location)}, and not {parameter.kind}")
        if arg.tensor_map != parameter.tensor_map:
            self._fail(f"{user} has another tensor map than the kernel was compiled for")
        nbytes = self._value_bytes(value, parameter, user)
        self._require.at_most((0,), (arg.offset_bytes,), lambda: f"{user} begins before {value.name!r}")
        self._require.at_most((0,), (parameter.nbytes,), lambda: f"{user} has {parameter.nbytes} bytes")
        self._require.at_most(
            (arg.offset_bytes, parameter.nbytes),
            (nbytes,),
            lambda: (
                f"{user} is {value.name!r} from byte {arg.offset_bytes} on, which has {nbytes} bytes; the kernel needs "
                f"{parameter.nbytes}"
            ),
        )

    def _value_bytes(self, value: ValueSpec, parameter: Parameter, user: str) -> Size:
        """Return the bytes of the value."""
        match value.location:
            case Status():
                return 4
            case Counters(counter_bytes):
                return counter_bytes
            case Sizes():
                return 8 * len(self._symbols)
        nbytes = self._require.nbytes(value.type)
        if nbytes is None or not isinstance(value.type, TensorType):
            self._fail(f"{user} is {value.name!r} of type {value.type}, which is of no fixed size")
        if value.type.dtype != parameter.dtype:
            self._fail(f"{user} is {value.name!r} of type {value.type}, the kernel needs {parameter.dtype}")
        return value.location.nbytes if isinstance(value.location, Arena) else nbytes

    def _check_symbols(self, signature: KernelSignature, kernel: str) -> None:
        """Check that the kernel gets the symbols that it was compiled for, in ranges for which it is right."""
        needed = signature.symbols
        if not needed:
            if any(parameter.kind == "sizes" for parameter in signature.parameters):
                self._fail(f"{kernel} takes sizes, but its signature has no symbols")
            return
        fits = len(needed) == len(self._symbols) and all(
            wide.name == symbol.name and wide.low <= symbol.low and symbol.high <= wide.high
            for wide, symbol in zip(needed, self._symbols)
        )
        if not fits:
            ours = ", ".join(map(str, self._symbols)) or "none"
            self._fail(f"{kernel} was compiled for the symbols {', '.join(map(str, needed))}; the program has {ours}")

    def _check_access(
        self, arg: Arg, parameter: Parameter, user: str, known: Collection[int], made_on_host: Collection[int]
    ) -> None:
        """Check that the argument lies where the kernel may read or write it as it does."""
        value = self._value(arg.value, user)
        location = value.location
        begin = location.offset_bytes if isinstance(location, (Arena, Constant)) else 0
        self._require.multiple(
            (arg.offset_bytes, begin),
            ARGUMENT_ALIGNMENT,
            lambda: f"{user} is {value.name!r}, which does not begin at a multiple of {ARGUMENT_ALIGNMENT} bytes",
        )
        if parameter.kind != "tensor":
            return
        if parameter.writes and (not isinstance(location, (Arena, Heap)) or arg.value in made_on_host):
            self._fail(f"{user} is {value.name!r}, which the kernel would write, but it is no memory of its own")
        if not parameter.writes and isinstance(location, Heap) and arg.value not in known:
            self._fail(f"{user} is {value.name!r}, which is read before anything computes it")

    def _check_counters(self, arg: Arg, user: str, shared: Collection[int]) -> None:
        if not isinstance(self._values[arg.value].location, Counters):
            return
        if arg.value in self._counters and arg.value not in shared:
            self._fail(f"{user} is the counters {arg.value}, which another launch has")
        self._counters.add(arg.value)

    def _check_apart(self, arguments: Iterable[tuple[Arg, Parameter]], kernel: str) -> None:
        """Check that what a kernel writes overlaps no other argument: it is compiled for that."""
        regions = [_Region(*self._place(arg), parameter, arg) for arg, parameter in arguments if _has_bytes(parameter)]
        for _, group in groupby(sorted(regions, key=lambda region: region.memory), key=lambda region: region.memory):
            in_memory = list(group)
            numbers = [region.extent for region in in_memory if region.extent is not None]
            if len(numbers) == len(in_memory):
                self._check_numbers_apart(sorted(numbers, key=lambda extent: extent[:2]), kernel)
                continue
            for one, other in combinations(in_memory, 2):
                if one.parameter.writes or other.parameter.writes:
                    problem = partial(self._shared, kernel, one.arg, other.arg)
                    self._require.apart(one.start, one.parameter.nbytes, other.start, other.parameter.nbytes, problem)

    def _check_numbers_apart(self, extents: list[_Extent], kernel: str) -> None:
        farthest: dict[bool, tuple[int, Arg]] = {}  # by whether the kernel writes: the greatest end so far
        for start, end, region in extents:
            for writes, (other_end, other) in farthest.items():
                if start < other_end and (writes or region.parameter.writes):
                    self._fail(self._shared(kernel, other, region.arg))
            if end > farthest.get(region.parameter.writes, (0, region.arg))[0]:
                farthest[region.parameter.writes] = end, region.arg

    def _shared(self, kernel: str, one: Arg, other: Arg) -> str:
        names = f"{self._values[one.value].name!r} and {self._values[other.value].name!r}"
        return f"{kernel} gets {names}, which share memory that it writes"

    def _place(self, arg: Arg) -> tuple[int, Sum]:
        """Return the memory in which an argument lies, and its offset there; the arena is number -1."""
        location = self._values[arg.value].location
        if isinstance(location, Arena):
            return -1, (location.offset_bytes, arg.offset_bytes)
        return arg.value, (arg.offset_bytes,)

    def _value(self, number: int, user: str) -> ValueSpec:
        if not 0 <= number < len(self._values):
            self._fail(f"{user} is value {number}, but there are {len(self._values)}")
        return self._values[number]


def _kind(location: Location) -> str:
    match location:
        case Status():
            return "status"
        case Counters():
            return "counters"
        case Sizes():
            return "sizes"
    return "tensor"


def _has_bytes(parameter: Parameter) -> bool:
    return parameter.kind == "tensor" and parameter.nbytes != 0
