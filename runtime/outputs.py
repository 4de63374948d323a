"""Results where the caller wants them: in the caller's arrays, or in the device's memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .device import Backend, OnDevice, Worker
from .dtypes import dtype_name, numpy_dtype
from .errors import InputError
from .execution import Execution
from .feeds import Adopt, dlpack_view
from .hostmemory import is_small
from .launches import RecordTime
from .program import Heap, Program, ValueSpec
from .types import Shape, TensorType


class Results:
    """A program's results as far as they are known before a run. `value` gives its values with their sizes."""

    def __init__(self, program: Program, value: Callable[[int], ValueSpec]) -> None:
        self.program, self.value = program, value
        self.by_name = {name: _Result(number, value(number)) for name, number in program.results.items()}


class _Result:
    """A result's value and number."""

    def __init__(self, number: int, value: ValueSpec) -> None:
        self.number, self.value = number, value
        self.is_static = isinstance(value.type, TensorType) and value.type.is_static and value.dtype != "string"
        self.shape = value.shape
        self.is_written = isinstance(value.location, Heap)  # by kernels, which get its address
        self.is_copied = is_small(value)

    @cached_property
    def dtype(self) -> np.dtype:
        return numpy_dtype(self.value.dtype)

    def takes(self, array: np.ndarray | OnDevice) -> bool:
        """Return whether the result can be written to the array."""
        if isinstance(array, np.ndarray) and not (array.flags.c_contiguous and array.flags.writeable):
            return False
        if self.is_static:
            return array.dtype == self.dtype and array.shape == self.shape
        shape = self.shape
        return dtype_name(array.dtype) == self.value.dtype and (shape is None or _fits(array.shape, shape))


class Wanted:
    """One run's results: some in the arrays `out`, the others on the device if `on_device`, else new numpy arrays.
    `grown`: the buffers of caches by the numbers of the results in them.

    Raises `InputError` when `out` does not fit.
    """

    def __init__(
        self,
        results: Results,
        inputs: Sequence[Any],
        out: Mapping[str, Any],
        on_device: bool,
        backend: Backend,
        stream: Any,
        grown: Mapping[int, Any] | None = None,
    ) -> None:
        self._program, self._out, self._on_device = results.program, out, on_device
        self._value = results.value
        self.targets = _targets(results, out, lambda value: backend.adopt(value, stream))
        self._grown = grown or {}
        self._preset = {**_preset(results, inputs, self.targets, backend.writes_host_memory), **self._grown}

    def run(
        self, execution: Execution, worker: Worker, inputs: Sequence[Any], record: RecordTime | None
    ) -> dict[str, Any]:
        """Execute, and return the outputs by name."""
        preset = self._preset
        if self._on_device:
            preset = {**self._fresh(worker), **preset}
        results = execution.run(inputs, record, preset)
        named: dict[str, Any] = {}
        given: list[Any] = []
        for name, number, result in zip(self._program.result_names, self._program.outputs, results):
            target = self.targets.get(name)
            if number in self._grown:
                named[name] = result
            elif target is not None:
                _copy_to(target, result, worker)
                named[name] = self._out[name]
            elif not self._on_device or not isinstance(result, (np.ndarray, OnDevice)) or result.dtype.kind == "O":
                named[name] = on_host(result, worker)
            elif result is preset.get(number) and all(result is not other for other in given):
                given.append(result)
                named[name] = result
            else:
                named[name] = worker.empty(result.dtype, result.shape)
                worker.write(named[name], result)
        return named

    def _fresh(self, worker: Worker) -> dict[int, OnDevice]:
        """Return new arrays on the device for the outputs that kernels make there, except those with memory already."""
        made: dict[int, OnDevice] = {}
        for name, number in zip(self._program.result_names, self._program.outputs):
            value = self._value(number)
            shape = value.type.static_shape if isinstance(value.type, TensorType) else None
            if name in self.targets or number in self._preset or number in made or not isinstance(value.location, Heap):
                continue
            if shape is not None and value.dtype != "string":
                made[number] = worker.empty(numpy_dtype(value.dtype), shape)
        return made


def targets_by_name(out: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Return `out` by name: unchanged, or from a list or tuple with an array for each output in the order of `names`.

    Raises `InputError` for anything else, and where their number differs.
    """
    if isinstance(out, Mapping):
        return out
    expected = f"a dict of output to array, or a list of one array for each output: {', '.join(names)}"
    if not isinstance(out, (list, tuple)):
        raise InputError(f"out: a {type(out).__name__} was given; give {expected}")
    if len(out) != len(names):
        raise InputError(f"out: {len(out)} arrays for {len(names)} outputs; give {expected}")
    return dict(zip(names, out))


def in_order(results: Mapping[str, Any], names: Sequence[str] | None) -> list[Any]:
    """Return the results of these names, all of them for None or no names. Raises `InputError` for an unknown name."""
    for name in names or ():
        if name not in results:
            raise InputError(f"there is no output {name!r}; outputs are {', '.join(results)}")
    return [results[name] for name in names or results]


def on_host(result: Any, worker: Worker) -> Any:
    """Return the result, copied to the host if it lies on the device."""
    if type(result) is np.ndarray or not isinstance(result, OnDevice):
        return result
    array = np.empty(result.shape, result.dtype)
    worker.read(result, array)
    return array


def _copy_to(target: np.ndarray | OnDevice, result: Any, worker: Worker) -> None:
    if result is target:
        return
    if type(target) is not np.ndarray and isinstance(target, OnDevice):
        worker.write(target, result)
    elif type(result) is not np.ndarray and isinstance(result, OnDevice):
        worker.read(result, target)
    else:
        target[...] = result


def _targets(results: Results, out: Mapping[str, Any], adopt: Adopt) -> dict[str, np.ndarray | OnDevice]:
    """Return `out`, checked; arrays on the device as `adopt` sees them."""
    targets: dict[str, np.ndarray | OnDevice] = {}
    for name, target in out.items():
        result = results.by_name.get(name)
        if result is None:
            raise InputError(f"out: there is no output {name!r}; outputs are {', '.join(results.by_name)}")
        array: np.ndarray | OnDevice | None
        if isinstance(target, np.ndarray):
            array = target
        else:
            array = adopt(target) if isinstance(target, OnDevice) else _lent(name, target, result.value.dtype, adopt)
        if array is None or not result.takes(array):
            raise InputError(f"out: {name!r} needs a writable, C-contiguous array of {result.value.type}")
        targets[name] = array
    return targets


def _lent(name: str, target: Any, dtype: str, adopt: Adopt) -> np.ndarray | OnDevice | None:
    """Return the memory of another library's array: the device's view of it, or numpy's; None if the library does not
    share it.
    """
    if getattr(target, "requires_grad", False) is True:
        raise InputError(f"out: {name!r} requires a gradient, which a result has not; give its .detach()")
    on_device = adopt(target)
    if on_device is not None or not hasattr(target, "__dlpack__"):
        return on_device
    try:
        array = dlpack_view(target, dtype)
        return array if array.flags.writeable else _writable(target, array)
    except (BufferError, TypeError, RuntimeError, ValueError) as error:
        raise InputError(f"out: the memory of {name!r} cannot be written to ({error})") from error


def _writable(target: Any, array: np.ndarray) -> np.ndarray:
    """Return a writable array of the same memory where torch shares it: numpy makes some DLPack arrays read-only."""
    if type(target).__module__.partition(".")[0] != "torch":
        return array
    tensor = target if array.dtype.isbuiltin == 1 else target.view(importlib.import_module("torch").int16)
    lent: np.ndarray = tensor.numpy().view(array.dtype)
    return lent


def _fits(sizes: Shape, shape: Shape) -> bool:
    return len(sizes) == len(shape) and all(isinstance(b, str) or a == b for a, b in zip(sizes, shape))


def _preset(
    results: Results, inputs: Sequence[Any], targets: Mapping[str, np.ndarray | OnDevice], writes_host_memory: bool
) -> dict[int, np.ndarray | OnDevice]:
    """Choose the arrays that kernels can write directly: those that share no memory with an input or each other, and
    for which a copy would not be as fast.
    """
    preset: dict[int, np.ndarray | OnDevice] = {}
    for name, target in targets.items():
        result = results.by_name[name]
        if not result.is_written or result.number in preset:
            continue
        if isinstance(target, np.ndarray):
            if result.is_copied or not writes_host_memory or not target.flags.aligned:
                continue
            share = _may_share_here
        else:
            share = _may_share_there
        if not share(target, [*inputs, *[array for other, array in targets.items() if other != name]]):
            preset[result.number] = target
    return preset


def _may_share_here(target: Any, others: Sequence[Any]) -> bool:
    """Return whether a numpy array may overlap one of the other values that are numpy arrays."""
    return any(isinstance(other, np.ndarray) and np.may_share_memory(target, other) for other in others)


def _may_share_there(target: Any, others: Sequence[Any]) -> bool:
    """Return whether an array on the device overlaps one of the other values there."""
    start = target.address
    end = start + target.nbytes
    return any(isinstance(o, OnDevice) and o.address < end and start < o.address + o.nbytes for o in others)
