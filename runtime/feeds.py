"""Conversion of what users pass to `run` into arrays that fit one of the specialisations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .device import Backend, OnDevice
from .dtypes import dtype_name, numpy_dtype
from .errors import InputError
from .maps_and_texts import are_texts, as_map, as_texts
from .program import Program, ValueSpec
from .sizing import Bound, Sizing
from .types import MapType, OptionalType, SequenceType, TensorType, ValueType
from .value_info import expected_inputs, inputs_of, some_of

MOST_SHAPES = 64
"""Number of input shapes for which the specialisation and its sizes are remembered."""

Adopt = Callable[[Any], "OnDevice | None"]
"""Function that returns a device's view of an array in its memory; None for an array elsewhere."""


Shapes = tuple[tuple[int, ...] | None, ...]
"""Shapes of all inputs; None for one that is absent."""


class Selection(NamedTuple):
    """The number of a specialisation, and its sizes if it has symbols."""

    number: int
    bound: Bound | None = None


class Inputs:
    """Reader of a model's inputs, which finds the specialisation that they fit.

    Arrays of numpy and of the device that need no conversion, in shapes seen before, are only checked. `sizings` are
    those of the programs, None for one without symbols.
    """

    def __init__(self, programs: Sequence[Program], sizings: Sequence[Sizing | None], backend: Backend) -> None:
        self._programs, self._sizings, self._backend = programs, sizings, backend
        self._dtypes: tuple[tuple[str, np.dtype, bool], ...] = ()  # and whether the input is optional
        self._selections: dict[Shapes, Selection] = {}

    def read(self, feeds: Mapping[str, Any], stream: Any) -> tuple[Selection, list[Any]]:
        """Return the specialisation, and the inputs as from `convert_feeds`, for work in the user's `stream`.

        Raises `InputError`.
        """
        plain = self._plain_arrays(feeds, stream)
        if plain is None:
            inputs = convert_feeds(feeds, self._programs, lambda value: self._backend.adopt(value, stream))
            if not self._dtypes:
                selection = select(inputs, self._programs, self._sizings)
                self._remember(selection, inputs)
                return selection, inputs
            plain = inputs, _shapes_of(inputs)
        inputs, shapes = plain
        known = self._selections.get(shapes)
        if known is None:
            known = select(inputs, self._programs, self._sizings)
            self._keep(shapes, known)
        return known, inputs

    def _plain_arrays(self, feeds: Mapping[str, Any], stream: Any) -> tuple[list[Any], Shapes] | None:
        """Return the inputs and their shapes if all can be used as they are (arrays, or numpy strings) and the model
        takes only arrays, or nothing for some.
        """
        if type(feeds) is not dict or not self._dtypes or len(feeds) != len(self._dtypes):
            return None
        arrays: list[Any] = []
        shapes: list[tuple[int, ...] | None] = []
        for name, dtype, optional in self._dtypes:
            array = feeds.get(name)
            if type(array) is np.ndarray:
                if dtype.kind == "O" and array.dtype.kind == "U":
                    array = array.astype(object, order="C")  # of nothing but `str`
                flags = array.flags
                if not flags.c_contiguous or not flags.aligned or (dtype.kind == "O" and not are_texts(array)):
                    return None
            elif array is None and optional and name in feeds:
                arrays.append(None)
                shapes.append(None)
                continue
            elif not isinstance(array, OnDevice) or (array := self._backend.adopt(array, stream)) is None:
                return None
            if array.dtype != dtype:
                return None
            arrays.append(array)
            shapes.append(array.shape)
        return arrays, tuple(shapes)

    def _remember(self, selection: Selection, inputs: Sequence[Any]) -> None:
        """Remember the data types of the inputs, and the specialisation for their shapes, if these determine
        everything.
        """
        program, sizing = self._programs[selection.number], self._sizings[selection.number]
        values = [program.values[number] for number in program.inputs]
        if all(_is_determined(value, sizing) for value in values):
            self._dtypes = tuple(
                (value.name, numpy_dtype(_tensor(value.type).dtype), isinstance(value.type, OptionalType))
                for value in values
            )
            self._keep(_shapes_of(inputs), selection)

    def _keep(self, shapes: Shapes, selection: Selection) -> None:
        if len(self._selections) >= MOST_SHAPES:
            self._selections = dict(list(self._selections.items())[MOST_SHAPES // 2 :])
        self._selections[shapes] = selection


def _is_determined(value: ValueSpec, sizing: Sizing | None) -> bool:
    """Return whether an input is a tensor whose shape is static or known from the symbols, or an optional tensor:
    nothing but whether it fits depends on its shape.
    """
    if isinstance(value.type, OptionalType):
        return isinstance(value.type.element, TensorType)
    if not isinstance(value.type, TensorType):
        return False
    return value.type.static_shape is not None or (sizing is not None and sizing.knows(value.type))


def _tensor(type_: ValueType) -> TensorType:
    """Return the type of the tensor that an input is, or may have."""
    inner = type_.element if isinstance(type_, OptionalType) else type_
    assert isinstance(inner, TensorType)
    return inner


def _shapes_of(inputs: Sequence[Any]) -> Shapes:
    return tuple(None if array is None else array.shape for array in inputs)


def convert_feeds(
    feeds: Mapping[str, Any], programs: Sequence[Program], adopt: Adopt = lambda value: None
) -> list[Any]:
    """Return the inputs in the program's order: C-contiguous arrays of the right data type, lists of such, or None.
    Tensors that `adopt` knows stay on the device.

    Raises `InputError` that lists what is expected when a name is missing or unknown, or a data type is wrong. Shapes
    are not checked.
    """
    if not isinstance(feeds, Mapping):
        raise _no_inputs(feeds, programs)
    inputs = [programs[0].values[number] for number in programs[0].inputs]
    names = [value.name for value in inputs]
    optional = {value.name for value in inputs if isinstance(value.type, OptionalType)}
    missing = [name for name in names if name not in feeds and name not in optional]
    unexpected = [str(name) for name in feeds if name not in names]
    if missing or unexpected:
        problems = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unexpected {', '.join(unexpected)}"] * bool(
            unexpected
        )
        raise InputError(f"inputs: {'; '.join(problems)}; expected {expected_inputs(programs)}")
    return [_convert(feeds.get(value.name), value.type, value.name, programs, adopt) for value in inputs]


def select(inputs: Sequence[Any], programs: Sequence[Program], sizings: Sequence[Sizing | None]) -> Selection:
    """Return the first specialisation that the inputs' shapes fit. Raises `InputError` that lists some, with the reason
    for those with symbols.
    """
    problems: list[str] = []
    for index, (program, sizing) in enumerate(zip(programs, sizings)):
        names: dict[str, int] = {}
        types = [program.values[number].type for number in program.inputs]
        if sizing is None:
            if all(_fits(value, type_, names) for value, type_ in zip(inputs, types)):
                return Selection(index)
            continue
        try:
            bound = sizing.bind(inputs)
        except InputError as error:
            problems.append(str(error))
            continue
        if sizing.determines_inputs:
            return Selection(index, bound)
        types = [bound.value(number).type for number in program.inputs]
        if all(_fits(value, type_, names) for value, type_ in zip(inputs, types)):
            return Selection(index, bound)
    if (apart := _select_apart(inputs, programs, sizings)) is not None:
        return apart
    if problems:
        raise InputError(
            f"{some_of(problems, '; or ')}; expected {expected_inputs(programs)}; compile with --dim or "
            "--shape for others"
        )
    given = ", ".join(
        f"{programs[0].values[number].name}: {list(value.shape)}"
        for number, value in zip(programs[0].inputs, inputs)
        if isinstance(value, (np.ndarray, OnDevice))
    )
    raise InputError(
        f"no specialisation fits inputs of shapes ({given}); expected {expected_inputs(programs)}; compile with "
        "--shape for others"
    )


def _select_apart(
    inputs: Sequence[Any], programs: Sequence[Program], sizings: Sequence[Sizing | None]
) -> Selection | None:
    """Return the first specialisation that the inputs fit, ignoring sizes of those that only branches read."""
    for index, sizing in enumerate(sizings):
        if sizing is None or not sizing.apart.positions:
            continue
        try:
            bound = sizing.bind_any(inputs, is_body=False)
        except InputError:
            continue
        types = [bound.value(number).type for number in programs[index].inputs]
        others = [(v, t) for at, (v, t) in enumerate(zip(inputs, types)) if at not in sizing.apart.positions]
        names: dict[str, int] = {}
        if all(_fits(value, type_, names) for value, type_ in others):
            return Selection(index, bound)
    return None


def _fits(value: Any, type_: ValueType, symbols: dict[str, int]) -> bool:
    if isinstance(type_, SequenceType):
        return all(_fits(item, type_.element, {}) for item in value)
    if isinstance(type_, OptionalType):
        return value is None or _fits(value, type_.element, symbols)
    if isinstance(type_, MapType) or type_.shape is None:
        return True
    if value.ndim != len(type_.shape):
        return False
    return all(
        actual == (symbols.setdefault(size, actual) if isinstance(size, str) else size)
        for actual, size in zip(value.shape, type_.shape)
    )


def _convert(value: Any, type_: ValueType, name: str, programs: Sequence[Program], adopt: Adopt) -> Any:
    if isinstance(type_, OptionalType):
        return None if value is None else _convert(value, type_.element, name, programs, adopt)
    if isinstance(type_, SequenceType):
        if not isinstance(value, (list, tuple)):
            raise InputError(f"input {name!r} is a {type(value).__name__}; it needs a list, as its type is {type_}")
        return [_convert(item, type_.element, name, programs, adopt) for item in value]
    if isinstance(type_, MapType):
        return as_map(value, type_, name)
    value = without_gradient(value)
    on_device = None if isinstance(value, np.ndarray) else adopt(value)
    array = on_device if on_device is not None else as_array(value, type_.dtype, name)
    if dtype_name(array.dtype) != type_.dtype:
        raise InputError(
            f"input {name!r} has the data type {dtype_name(array.dtype)}, not {type_.dtype}; expected "
            f"{expected_inputs(programs)}; "
            f"convert it, for instance with .astype({type_.dtype!r})"
        )
    if isinstance(array, OnDevice):
        return array
    if type_.dtype == "string":
        return as_texts(array, name)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")


def are_output_names(first: Any, second: Any, input_names: Sequence[str]) -> bool:
    """Return whether `run(first, second)` follows ONNX Runtime's signature: names of outputs or None, then inputs by
    name.
    """
    if not isinstance(second, Mapping):
        return False
    if first is None:
        return True
    named = isinstance(first, (list, tuple)) and all(isinstance(name, str) for name in first)
    return named and bool(second) and all(name in input_names for name in second)


def by_position(arrays: Any, programs: Sequence[Program]) -> dict[str, Any]:
    """Return the inputs by name from a list or tuple in the model's order; optional ones at the end may be left out.

    Raises `InputError` for anything else, and where their number differs.
    """
    if not isinstance(arrays, (list, tuple)):
        raise _no_inputs(arrays, programs)
    inputs = inputs_of(programs[0])
    left_out = inputs[len(arrays) :]
    if len(arrays) > len(inputs) or not all(isinstance(value.type, OptionalType) for value in left_out):
        count = "1 input was" if len(arrays) == 1 else f"{len(arrays)} inputs were"
        raise InputError(f"{count} given; expected {expected_inputs(programs)}")
    return {value.name: array for value, array in zip(inputs, arrays)}


def _no_inputs(given: Any, programs: Sequence[Program]) -> InputError:
    return InputError(
        f"inputs are given as a dict of name to array, or as a list of arrays in order, not {type(given).__name__}; "
        f"expected {expected_inputs(programs)}"
    )


def without_gradient(value: Any) -> Any:
    """Return a tensor detached from autograd, without which torch exports no memory; other values as they are."""
    return value.detach() if getattr(value, "requires_grad", False) is True else value


def as_array(value: Any, dtype: str, name: str) -> np.ndarray:
    """Return numpy's view of any library's array; numbers and lists, which have no data type, get the expected one."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if value is None:
        raise InputError(f"input {name!r} is None; give an array of {dtype}")
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
            return _from_dlpack(value, dtype)
        if hasattr(value, "__array__"):
            return np.asarray(value)
        return _from_numbers(value, numpy_dtype(dtype))
    except (ValueError, TypeError, RuntimeError, BufferError, OverflowError) as error:
        raise InputError(
            f"input {name!r} of {type(value).__name__} cannot be read as an array of {dtype} ({error})"
        ) from error


def _from_numbers(value: Any, dtype: np.dtype) -> np.ndarray:
    """Return numbers or lists in DTYPE; TypeError where that would change them: 1.5 is no integer, 2 is no truth
    value.
    """
    kind = dtype.name.rstrip("0123456789")
    plain = np.asarray(value)
    if kind == "uint" and plain.dtype.kind == "f":  # so numpy takes integers of which only some exceed 2**63
        exact = np.asarray(value, object)
        plain = plain if any(isinstance(item, (float, np.floating)) for item in exact.flat) else exact
    if plain.size and plain.dtype.kind in _LOSSY.get(kind, ""):
        raise TypeError(f"it holds values of {plain.dtype}")
    array = np.asarray(value, dtype)
    if kind in _WRAPPING and plain.size and ((array if dtype.kind in "iu" else array.astype(np.int64)) != plain).any():
        raise OverflowError(f"it holds numbers that {dtype} has not")
    return array


_LOSSY = {"bool": "iufcOSU", "int": "fc", "uint": "fc"}
"""By kind of data type, the kinds of values that it cannot represent."""
_WRAPPING = ("int", "uint")
"""Kinds of data types in which numbers that are too large wrap: integers under numpy 1, those of 4 bits always."""


def dlpack_view(value: Any, dtype: str) -> np.ndarray:
    """Return the memory of VALUE, which has `__dlpack__`, as an array. Raises the library's own error where it exports
    none.
    """
    try:
        return np.asarray(np.from_dlpack(value))
    except (BufferError, RuntimeError, TypeError):
        if dtype != "bfloat16":
            raise
        from .bfloat_dlpack import bfloat16_array

        return bfloat16_array(value)


def _from_dlpack(value: Any, dtype: str) -> np.ndarray:
    try:
        return dlpack_view(value, dtype)
    except (BufferError, RuntimeError, TypeError):
        if dtype == "bfloat16" or not hasattr(value, "__array__"):
            raise
        return np.asarray(value)
