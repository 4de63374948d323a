"""Signatures for kernels and programs that are written by hand."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilestitch.runtime.dtypes import ITEM_BYTES
from tilestitch.runtime.kernel_signature import DIGEST_LENGTH, KernelSignature, Parameter
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Body,
    Counters,
    DeviceLaunch,
    DeviceStep,
    Launch,
    NativeStep,
    Program,
    Sizes,
    Status,
    Step,
    Symbol,
    TensorType,
    ValueSpec,
)
from tilestitch.runtime.sizes import Size, multiplied

Signatures = dict[str, KernelSignature]
_SIGNED = re.compile(rf"_[0-9a-f]{{{DIGEST_LENGTH}}}$")


def signed(*programs: Program) -> tuple[tuple[Program, ...], Signatures]:
    """The programs with the symbols of their launches signed: `increment` becomes `increment_0123456789abcdef`.

    The kernels are taken to have been compiled for just what they are launched with, and to write their last tensor.
    """
    signatures: Signatures = {}
    return tuple(_signed_program(program, signatures) for program in programs), signatures


def plain(symbol: str) -> str:
    """A signed symbol as it was before; another name as it is."""
    return _SIGNED.sub("", symbol)


def symbols_of(signatures: Mapping[str, Any], name: str) -> list[str]:
    """The signed symbols of a kernel."""
    return [symbol for symbol in signatures if plain(symbol) == name]


def signature_of(
    launch: Launch | DeviceLaunch, values: Sequence[ValueSpec], symbols: tuple[Symbol, ...] = ()
) -> KernelSignature:
    """What a kernel was compiled for if this launch of it is right."""
    words = Status | Counters | Sizes
    tensors = [i for i, arg in enumerate(launch.args) if not isinstance(values[arg.value].location, words)]
    parameters = []
    for number, arg in enumerate(launch.args):
        value = values[arg.value]
        if isinstance(value.location, Status):
            parameters.append(Parameter("status", "int32", 4, True))
        elif isinstance(value.location, Counters):
            parameters.append(Parameter("counters", "uint8", value.location.nbytes, True))
        elif isinstance(value.location, Sizes):
            parameters.append(Parameter("sizes", "int64", 8 * len(symbols), False))
        else:
            assert isinstance(value.type, TensorType)
            left = arg.tensor_map.nbytes if arg.tensor_map else _bytes_left(value, arg)
            parameters.append(Parameter("tensor", value.type.dtype, left, number == tensors[-1], arg.tensor_map))
    return KernelSignature(tuple(parameters), launch.extent, symbols)


def _bytes_left(value: ValueSpec, arg: Arg) -> Size:
    """From the argument's address to the end of its value."""
    assert isinstance(value.type, TensorType)
    shape = value.type.shape or ()
    nbytes = value.location.nbytes if isinstance(value.location, Arena) else None
    nbytes = multiplied((ITEM_BYTES[value.type.dtype], *shape)) if nbytes is None else nbytes
    if isinstance(nbytes, int) and isinstance(arg.offset_bytes, int):
        return nbytes - arg.offset_bytes
    return f"{nbytes} - ({arg.offset_bytes})" if arg.offset_bytes else nbytes


def _signed_program(program: Program, signatures: Signatures) -> Program:
    steps = tuple(_signed_step(step, program, signatures) for step in program.steps)
    return dataclasses.replace(program, steps=steps)


def _signed_step(step: Step, program: Program, signatures: Signatures) -> Any:
    if isinstance(step, NativeStep | DeviceStep):
        return dataclasses.replace(step, launches=tuple(_signed(one, program, signatures) for one in step.launches))
    parts = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
    bodies = {name: part for name, part in parts.items() if isinstance(part, Body)}
    return dataclasses.replace(
        step,
        **{name: dataclasses.replace(b, program=_signed_program(b.program, signatures)) for name, b in bodies.items()},
    )


def _signed(launch: Any, program: Program, signatures: Signatures) -> Any:
    signature = signature_of(launch, program.values, program.symbols)
    symbol = f"{launch.symbol}_{signature.digest}"
    signatures[symbol] = signature
    cases = launch.cases
    if cases is not None:
        others = tuple(_signed(one, program, signatures) for one in cases.launches)
        cases = dataclasses.replace(cases, launches=others)
    return dataclasses.replace(launch, symbol=symbol, cases=cases)
