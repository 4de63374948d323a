"""Loading an artifact and running it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import feeds as feeds_
from .artifact import Artifact, read_artifact
from .cpu.threads import thread_count
from .device import Backend, DeviceName, OnDevice, RecordTime, Worker, check_target, open_backend
from .dtypes import dtype_name, numpy_dtype
from .errors import ExecutionError, InputError
from .execution import Execution, Loaded
from .feeds import ValueInfo
from .program import Heap, Program
from .types import TensorType

if TYPE_CHECKING:
    from .emulator import EmulatorOptions


class LaunchTime(NamedTuple):
    """The time of one launch or host step. `origins` are the names of the ONNX nodes that it computes."""

    symbol: str
    origins: tuple[str, ...]
    microseconds: float


def load(
    source: str | os.PathLike[str] | bytes,
    device: str | EmulatorOptions = "cpu",
    num_threads: int | None = None,
    weights: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    verify: bool = True,
) -> Module:
    """Load an artifact from a file or from its bytes.

    `device`: `cpu`, `cuda` (the first GPU), `cuda:N`, or `emulator`, which executes CUDA kernels on the CPU;
    an `EmulatorOptions` of `tilestitch.runtime.emulator` says how.
    `num_threads`: else the environment variable `TILESTITCH_NUM_THREADS`, else the physical cores that the process may
    use.
    `weights`: a safetensors file or arrays by name, for artifacts whose weights were stripped. `verify=False` skips the
    hash of the weights, also of those that are given, which takes about a second per gigabyte.

    Raises a subclass of `ArtifactError` for a file that cannot be used, `DeviceError` when this machine cannot run it,
    `WeightsError` for missing or wrong weights, `UnsupportedError` for operators or data types that are not there. An
    artifact holds machine code: load only those that you trust.
    """
    name = DeviceName.parse(device)
    threads = thread_count(num_threads)
    artifact = read_artifact(source, verify=verify)
    check_target(artifact, name)
    loaded = Loaded(artifact, artifact.weights(weights, verify=verify))
    return Module(artifact, loaded, open_backend(artifact, loaded, name, threads), threads)


class Module:
    """A loaded model. Safe to use from several threads at once; each concurrent run gets memory and threads of its
    own.
    """

    def __init__(self, artifact: Artifact, loaded: Loaded, backend: Backend, num_threads: int) -> None:
        self._artifact = artifact
        self._programs = artifact.programs
        self._backend = backend
        self.num_threads = num_threads
        first = self._programs[0]
        self.inputs = tuple(
            feeds_.merged_info(first.values[number].name, [p.values[p.inputs[i]].type for p in self._programs])
            for i, number in enumerate(first.inputs)
        )
        self.outputs = tuple(
            feeds_.merged_info(name, [program.values[program.outputs[i]].type for program in self._programs])
            for i, name in enumerate(first.result_names)
        )
        self._pool = _Pool(loaded, self._programs, backend)

    @property
    def artifact(self) -> Artifact:
        """The artifact, with its manifest and plan."""
        return self._artifact

    @property
    def specialisations(self) -> tuple[tuple[ValueInfo, ...], ...]:
        """The inputs of each specialisation."""
        return tuple(tuple(ValueInfo(p.values[n].name, p.values[n].type) for n in p.inputs) for p in self._programs)

    def get_inputs(self) -> tuple[ValueInfo, ...]:
        return self.inputs

    def get_outputs(self) -> tuple[ValueInfo, ...]:
        return self.outputs

    def run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        *,
        stream: Any = None,
        on_device: bool = False,
    ) -> dict[str, Any]:
        """Compute the outputs by name from the inputs by name.

        Inputs are arrays of numpy, or anything with `__dlpack__`, `__cuda_array_interface__` or `__array__`; lists for
        sequences; None for empty optionals. They are not changed. `out` gives C-contiguous arrays that named outputs
        are written to.

        On a GPU, inputs and `out` may lie in its memory and are then used in place. `on_device=True` leaves all tensor
        outputs there: arrays with `__dlpack__` and `__cuda_array_interface__`. `stream` (an integer, or an object with
        `__cuda_stream__` or `cuda_stream`) is the CUDA stream that the work is queued in; `run` then returns when
        everything is queued, unless results come to the host.

        Raises `InputError` that lists what is expected when inputs do not fit, `ExecutionError` when the model fails on
        them.
        """
        return self._run(feeds, out or {}, None, stream, on_device)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Like `run`, with inputs by position or name; one dict is taken as all inputs by name."""
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
            return self.run(args[0])
        if len(args) > len(self.inputs):
            raise InputError(f"{len(args)} inputs were given; expected {feeds_.expected_inputs(self._programs)}")
        return self.run({**{info.name: value for info, value in zip(self.inputs, args)}, **kwargs})

    def profile(self, feeds: Mapping[str, Any]) -> list[LaunchTime]:
        """Run once and return the time of every launch and host step in order."""
        times: list[LaunchTime] = []
        self._run(feeds, {}, lambda symbol, origins, us: times.append(LaunchTime(symbol, origins, us)))
        return times

    def close(self) -> None:
        """Free threads and memory. Runs under way end first; later ones raise `ExecutionError`."""
        self._pool.close()

    def __enter__(self) -> Module:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Any],
        record: RecordTime | None,
        stream: Any = None,
        on_device: bool = False,
    ) -> dict[str, Any]:
        inputs = feeds_.convert_feeds(feeds, self._programs, lambda value: self._backend.adopt(value, stream))
        index = feeds_.select(inputs, self._programs)
        program = self._programs[index]
        targets = _targets(program, out, lambda value: self._backend.adopt(value, stream))
        preset = _preset(program, inputs, targets, self._backend.writes_host_memory)
        with self._pool.context() as context:
            context.worker.begin(stream)
            try:
                if on_device:
                    preset = {**_fresh(program, targets, context.worker), **preset}
                results = context.execution(index).run(inputs, record, preset)
                return _delivered(program, results, targets, out, preset if on_device else None, context.worker)
            finally:
                context.worker.end()


def _delivered(
    program: Program,
    results: list[Any],
    targets: Mapping[str, Any],
    out: Mapping[str, Any],
    fresh: Mapping[int, Any] | None,
    worker: Worker,
) -> dict[str, Any]:
    """The outputs where the caller wants them. `fresh`: arrays made for this run on the device, or None."""
    named: dict[str, Any] = {}
    given: list[Any] = []
    for name, number, result in zip(program.result_names, program.outputs, results):
        if name in targets:
            _copy_to(targets[name], result, worker)
            named[name] = out[name]
        elif fresh is None or not isinstance(result, (np.ndarray, OnDevice)) or result.dtype.kind == "O":
            named[name] = _on_host(result, worker)
        elif result is fresh.get(number) and all(result is not other for other in given):
            given.append(result)
            named[name] = result
        else:
            named[name] = worker.empty(result.dtype, result.shape)
            worker.write(named[name], result)
    return named


def _copy_to(target: np.ndarray | OnDevice, result: Any, worker: Worker) -> None:
    if result is target:
        return
    if isinstance(target, OnDevice):
        worker.write(target, result)
    elif isinstance(result, OnDevice):
        worker.read(result, target)
    else:
        np.copyto(target, result)


def _on_host(result: Any, worker: Worker) -> Any:
    if not isinstance(result, OnDevice):
        return result
    array = np.empty(result.shape, result.dtype)
    worker.read(result, array)
    return array


def _targets(program: Program, out: Mapping[str, Any], adopt: feeds_.Adopt) -> dict[str, np.ndarray | OnDevice]:
    """Check `out`; what lies on the device as `adopt` sees it."""
    numbers = dict(zip(program.result_names, program.outputs))
    targets: dict[str, np.ndarray | OnDevice] = {}
    for name, target in out.items():
        if name not in numbers:
            raise InputError(f"out: there is no output {name!r}; outputs are {', '.join(numbers)}")
        value = program.values[numbers[name]]
        array = target if isinstance(target, np.ndarray) else adopt(target)
        fits = isinstance(array, OnDevice) or (
            isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.writeable
        )
        shape = value.shape
        if array is None or not fits or dtype_name(array.dtype) != value.dtype or not _same(array, shape):
            raise InputError(f"out: {name!r} needs a writable, C-contiguous array of {value.type}")
        targets[name] = array
    return targets


def _preset(
    program: Program, inputs: list[Any], targets: Mapping[str, np.ndarray | OnDevice], writes_host_memory: bool
) -> dict[int, np.ndarray | OnDevice]:
    """Choose the arrays that kernels can write to directly: those that share no memory with an input or each other."""
    numbers = dict(zip(program.result_names, program.outputs))
    preset: dict[int, np.ndarray | OnDevice] = {}
    for name, target in targets.items():
        number = numbers[name]
        others = [array for other, array in targets.items() if other != name]
        shared = any(_may_share(target, array) for array in (*inputs, *others))
        reachable = isinstance(target, OnDevice) or (writes_host_memory and target.flags.aligned)
        if isinstance(program.values[number].location, Heap) and number not in preset and reachable and not shared:
            preset[number] = target
    return preset


def _fresh(program: Program, targets: Mapping[str, Any], worker: Worker) -> dict[int, OnDevice]:
    """New arrays on the device for the outputs that kernels make there."""
    made: dict[int, OnDevice] = {}
    for name, number in zip(program.result_names, program.outputs):
        value = program.values[number]
        static = isinstance(value.type, TensorType) and value.type.static_shape is not None
        if name in targets or not static or not isinstance(value.location, Heap) or value.dtype == "string":
            continue
        if number not in made and isinstance(value.type, TensorType):
            made[number] = worker.empty(numpy_dtype(value.dtype), value.type.static_shape or ())
    return made


def _may_share(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    if isinstance(a, OnDevice) and isinstance(b, OnDevice):
        return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
    return False


def _same(array: np.ndarray | OnDevice, shape: tuple[int | str, ...] | None) -> bool:
    if shape is None:
        return True
    return array.ndim == len(shape) and all(isinstance(b, str) or a == b for a, b in zip(array.shape, shape))


class _Context:
    """A worker and memory for one run at a time. Specialisations are bound when first used."""

    def __init__(self, loaded: Loaded, programs: tuple[Program, ...], worker: Worker) -> None:
        self._loaded = loaded
        self._programs = programs
        self._executions: dict[int, Execution] = {}
        self.worker = worker

    def execution(self, index: int) -> Execution:
        if index not in self._executions:
            self._executions[index] = Execution(self._programs[index], self._loaded, self.worker)
        return self._executions[index]

    def close(self) -> None:
        self._executions.clear()
        self.worker.close()


class _Pool:
    """Contexts for concurrent runs: as many as the device has room for, made when needed; more runs wait."""

    def __init__(self, loaded: Loaded, programs: tuple[Program, ...], backend: Backend) -> None:
        self._make = lambda: _Context(loaded, programs, backend.worker())
        self._limit = backend.max_workers
        self._backend = backend
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[_Context] = []
        self._made = 0
        self._freed = False

    @contextmanager
    def context(self) -> Iterator[_Context]:
        """A context for the duration of the block. Raises `ExecutionError` when the module is closed."""
        if os.getpid() != self._pid:
            self._reset()  # a forked child: threads do not survive, and locks may be held by threads that are not there
        context = self._acquire()
        try:
            yield context
        finally:
            self._release(context)

    def _acquire(self) -> _Context:
        with self._changed:
            while not self._idle and self._made >= self._limit and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ExecutionError("the module is closed; load the artifact again")
            if self._idle:
                return self._idle.pop()
            self._made += 1
        try:
            return self._make()
        except BaseException:
            with self._changed:
                self._made -= 1
                self._changed.notify()
            raise

    def _release(self, context: _Context) -> None:
        with self._changed:
            self._idle.append(context)
            self._changed.notify()
            closed = self._closed
        if closed:
            self.close()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            contexts, self._idle = self._idle, []
            self._changed.notify_all()
        for context in contexts:
            context.close()
        with self._changed:
            self._made -= len(contexts)
            last = self._made == 0 and not self._freed
            self._freed = self._freed or last
        if last:
            self._backend.close()
