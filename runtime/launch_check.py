"""Whether launches give their kernels what these were compiled for, by the kernels' signatures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import NoReturn

from .kernel_signature import KernelSignature, Parameter
from .program import Arena, Arg, Constant, Counters, DeviceLaunch, Heap, Launch, Location, Program, Status, ValueSpec
from .types import TensorType

ARGUMENT_ALIGNMENT = 16
"""Kernels may take for granted that their arguments begin at multiples of this many bytes, but for inputs."""


class LaunchChecker:
    """Checks the launches of one program. `fail` raises with what it is told."""

    def __init__(
        self, program: Program, signatures: Mapping[str, KernelSignature], fail: Callable[[str], NoReturn]
    ) -> None:
        self._values = program.values
        self._signatures = signatures
        self._fail = fail
        self._counters: set[int] = set()

    def check(
        self, launch: Launch | DeviceLaunch, where: str, known: Collection[int], made_on_host: Collection[int]
    ) -> frozenset[int]:
        """The numbers of the values that the launch writes.

        `known`: the values that are computed before it; `made_on_host`: those that host steps made, whose arrays may be
        others' or read-only.
        """
        kernel = f"{where}: kernel {launch.symbol!r}"
        signature = self._signatures.get(launch.symbol)
        if signature is None:
            self._fail(f"{kernel} has no signature")
        if launch.extent != signature.extent:
            self._fail(f"{kernel} is launched with {launch.extent}, but was compiled for {dict(signature.extent)}")
        if len(launch.args) != len(signature.parameters):
            self._fail(f"{kernel} has {len(signature.parameters)} parameters, but gets {len(launch.args)} arguments")
        arguments = list(zip(launch.args, signature.parameters))
        for number, (arg, parameter) in enumerate(arguments):
            self._check_argument(arg, parameter, f"{kernel}, argument {number},")
            self._check_access(arg, parameter, f"{kernel}, argument {number},", known, made_on_host)
        self._check_apart(arguments, kernel)
        return frozenset(arg.value for arg, parameter in arguments if parameter.writes)

    def _check_argument(self, arg: Arg, parameter: Parameter, user: str) -> None:
        """That the argument is of the parameter's kind, and large enough."""
        value = self._value(arg.value, user)
        if _kind(value.location) != parameter.kind:
            self._fail(f"{user} is {value.name!r}, of the kind {_kind(value.location)}, and not {parameter.kind}")
        if arg.tensor_map != parameter.tensor_map:
            self._fail(f"{user} has another tensor map than the kernel was compiled for")
        if isinstance(value.location, Status):
            nbytes = 4
        elif isinstance(value.location, Counters):
            nbytes = value.location.nbytes
        else:
            nbytes = self._tensor_bytes(value, parameter, user)
        if arg.offset_bytes + parameter.nbytes > nbytes:
            self._fail(
                f"{user} is {value.name!r} from byte {arg.offset_bytes} on, which has {nbytes} bytes; the kernel needs "
                f"{parameter.nbytes}"
            )

    def _tensor_bytes(self, value: ValueSpec, parameter: Parameter, user: str) -> int:
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            self._fail(f"{user} is {value.name!r} of type {value.type}, which is of no fixed size")
        if value.type.dtype != parameter.dtype:
            self._fail(f"{user} is {value.name!r} of type {value.type}, the kernel needs {parameter.dtype}")
        return value.location.nbytes if isinstance(value.location, Arena) else value.type.nbytes

    def _check_access(
        self, arg: Arg, parameter: Parameter, user: str, known: Collection[int], made_on_host: Collection[int]
    ) -> None:
        """That the argument lies where the kernel may do what it does."""
        value = self._value(arg.value, user)
        location = value.location
        start = arg.offset_bytes + (location.offset_bytes if isinstance(location, (Arena, Constant)) else 0)
        if start % ARGUMENT_ALIGNMENT:
            self._fail(f"{user} is {value.name!r}, which does not begin at a multiple of {ARGUMENT_ALIGNMENT} bytes")
        if isinstance(location, Counters):
            if arg.value in self._counters:
                self._fail(f"{user} is the counters {arg.value}, which another launch has")
            self._counters.add(arg.value)
        if parameter.kind != "tensor":
            return
        if parameter.writes and (not isinstance(location, (Arena, Heap)) or arg.value in made_on_host):
            self._fail(f"{user} is {value.name!r}, which the kernel would write, but it is no memory of its own")
        if not parameter.writes and isinstance(location, Heap) and arg.value not in known:
            self._fail(f"{user} is {value.name!r}, which is read before anything computes it")

    def _check_apart(self, arguments: Iterable[tuple[Arg, Parameter]], kernel: str) -> None:
        """What a kernel writes may be no other argument's memory: it is compiled for that."""
        regions = [(*self._place(arg), arg, p) for arg, p in arguments if p.kind == "tensor" and p.nbytes]
        in_order = sorted(regions, key=lambda region: region[:2])
        for _, group in groupby(in_order, key=lambda region: region[0]):
            farthest: dict[bool, tuple[int, Arg]] = {}  # by whether the kernel writes: the largest end so far
            for _, start, arg, parameter in group:
                for writes, (end, other) in farthest.items():
                    if start < end and (writes or parameter.writes):
                        names = f"{self._values[other.value].name!r} and {self._values[arg.value].name!r}"
                        self._fail(f"{kernel} gets {names}, which share memory that it writes")
                end = start + parameter.nbytes
                if end > farthest.get(parameter.writes, (0, arg))[0]:
                    farthest[parameter.writes] = end, arg

    def _place(self, arg: Arg) -> tuple[int, int]:
        """Which memory an argument lies in, and at which byte of it; the arena is number -1."""
        location = self._values[arg.value].location
        if isinstance(location, Arena):
            return -1, location.offset_bytes + arg.offset_bytes
        return arg.value, arg.offset_bytes

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
    return "tensor"
