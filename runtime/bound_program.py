"""Binding a program with symbols to given values: the same program with numbers in place of expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from .program import (
    Arena,
    Arg,
    DeviceLaunch,
    DeviceStep,
    HostStep,
    Launch,
    NativeStep,
    Program,
    Sizes,
    Step,
    Symbol,
    ValueSpec,
)
from .requirements import is_expression
from .sizes import Size
from .types import MapType, OptionalType, SequenceType, TensorType, ValueType

Evaluate = Callable[[Size], int]


def bound_program(program: Program, evaluate: Evaluate) -> Program:
    """Return the program with the values that `evaluate` gives its sizes, without symbols; of a launch's cases only the
    one that is run.
    """
    return replace(
        program,
        values=tuple(bound_value(value, program.symbols, evaluate) for value in program.values),
        steps=tuple(_bound_step(step, evaluate) for step in program.steps),
        arena_bytes=evaluate(program.arena_bytes),
        symbols=(),
        checks=(),
    )


def bound_value(value: ValueSpec, symbols: Sequence[Symbol], evaluate: Evaluate) -> ValueSpec:
    """Return the value with numbers for the expressions over `symbols` in its type and location."""
    names = frozenset(symbol.name for symbol in symbols)
    type_, location = _bound_type(value.type, names, evaluate), value.location
    if isinstance(location, Arena):
        location = Arena(evaluate(location.offset_bytes), evaluate(location.nbytes))
    elif isinstance(location, Sizes):
        location = Sizes(tuple(evaluate(symbol.name) for symbol in symbols))
    return value if type_ is value.type and location is value.location else ValueSpec(value.name, type_, location)


def bound_attributes(attrs: Any, evaluate: Evaluate) -> Any:
    """Return a host step's attributes with numbers for their sizes."""
    if isinstance(attrs, (list, tuple)):
        return [bound_attributes(item, evaluate) for item in attrs]
    if not isinstance(attrs, dict):
        return attrs
    if set(attrs) == {"$size"}:
        return evaluate(attrs["$size"])
    return {name: bound_attributes(item, evaluate) for name, item in attrs.items()}


def program_sizes(program: Program) -> Iterator[Size]:
    """Yield all sizes of a program with symbols, except those of nested programs, which have symbols of their own."""
    yield from (symbol.name for symbol in program.symbols)
    yield from sizes_in_use(program)


def sizes_in_use(program: Program) -> Iterator[Size]:
    """Yield sizes as `program_sizes` does, but without symbols on which nothing depends."""
    symbols = frozenset(symbol.name for symbol in program.symbols)
    yield program.arena_bytes
    for value in program.values:
        yield from _type_sizes(value.type, symbols)
        if isinstance(value.location, Arena):
            yield from (value.location.offset_bytes, value.location.nbytes)
    for step in program.steps:
        if isinstance(step, (NativeStep, DeviceStep)):
            for launch in step.launches:
                for each in launch.kernels:
                    yield from each.grid if isinstance(each, DeviceLaunch) else (each.tasks, each.scratch_bytes)
                yield from (arg.offset_bytes for arg in launch.args)
                if launch.cases is not None:
                    yield launch.cases.size
            if isinstance(step, NativeStep) and step.slices is not None:
                yield from (most for _, most in step.slices.runs)
        elif isinstance(step, HostStep):
            yield from attribute_sizes(step.attrs)


def _type_sizes(type_: ValueType, symbols: frozenset[str]) -> Iterator[Size]:
    if isinstance(type_, MapType):
        return
    if not isinstance(type_, TensorType):
        yield from _type_sizes(type_.element, symbols)
        return
    for size in type_.shape or ():
        if isinstance(size, int) or is_expression(size, symbols):
            yield size


def attribute_sizes(attrs: Any) -> Iterator[Size]:
    """Yield the sizes in a host step's attributes."""
    if isinstance(attrs, (list, tuple)):
        for item in attrs:
            yield from attribute_sizes(item)
    elif isinstance(attrs, dict):
        if set(attrs) == {"$size"}:
            yield attrs["$size"]
        else:
            yield from attribute_sizes(list(attrs.values()))


def _bound_type(type_: ValueType, symbols: frozenset[str], evaluate: Evaluate) -> ValueType:
    match type_:
        case TensorType(dtype, shape):
            if shape is None or type_.static_shape is not None:
                return type_
            sizes = [evaluate(s) if isinstance(s, int) or is_expression(s, symbols) else s for s in shape]
            return TensorType(dtype, tuple(sizes))
        case SequenceType(element):
            return SequenceType(_bound_type(element, symbols, evaluate))
        case OptionalType(element):
            return OptionalType(_bound_type(element, symbols, evaluate))
        case MapType():
            return type_


def _bound_step(step: Step, evaluate: Evaluate) -> Step:
    match step:
        case NativeStep(launches):
            return NativeStep(tuple(_bound_launch(launch, evaluate) for launch in launches))
        case DeviceStep(device_launches):
            return replace(step, launches=tuple(_bound_device_launch(launch, evaluate) for launch in device_launches))
        case HostStep():
            return replace(step, attrs=bound_attributes(dict(step.attrs), evaluate))
    return step


def _bound_launch(launch: Launch, evaluate: Evaluate) -> Launch:
    one, args = launch.at(evaluate), _bound_args(launch.args, evaluate)
    tasks, scratch_bytes = evaluate(one.tasks), evaluate(one.scratch_bytes)
    return replace(one, tasks=tasks, scratch_bytes=scratch_bytes, args=args, cases=None)


def _bound_device_launch(launch: DeviceLaunch, evaluate: Evaluate) -> DeviceLaunch:
    one = launch.at(evaluate)
    x, y, z = one.grid
    grid = evaluate(x), evaluate(y), evaluate(z)
    return replace(one, grid=grid, args=_bound_args(launch.args, evaluate), cases=None)


def _bound_args(args: tuple[Arg, ...], evaluate: Evaluate) -> tuple[Arg, ...]:
    return tuple(replace(arg, offset_bytes=evaluate(arg.offset_bytes)) for arg in args)
