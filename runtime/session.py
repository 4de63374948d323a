"""Loading an artifact and running it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import feeds as feeds_
from .artifact import CPU_LIBRARY, Artifact, read_artifact
from .cpu.threads import available_cores, thread_count
from .dtypes import dtype_name
from .errors import DeviceError, ExecutionError, InputError, TilestitchRuntimeError
from .execution import Execution, Loaded
from .feeds import ValueInfo
from .program import Heap, Program

if TYPE_CHECKING:
    from .cpu.team import Team


class LaunchTime(NamedTuple):
    """The time of one launch or host step. `origins` are the names of the ONNX nodes that it computes."""

    symbol: str
    origins: tuple[str, ...]
    microseconds: float


def load(
    source: str | os.PathLike[str] | bytes,
    device: str = "cpu",
    num_threads: int | None = None,
    weights: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    verify: bool = True,
) -> Module:
    """Load an artifact from a file or from its bytes.

    `num_threads`: else the environment variable `TILESTITCH_NUM_THREADS`, else the physical cores that the process may
    use.
    `weights`: a safetensors file or arrays by name, for artifacts whose weights were stripped. `verify=False` skips the
    hash of the weights, which takes about a second per gigabyte.

    Raises a subclass of `ArtifactError` for a file that cannot be used, `DeviceError` when this machine cannot run it,
    `WeightsError` for missing or wrong weights, `UnsupportedError` for operators or data types that are not there. An
    artifact holds machine code: load only those that you trust.
    """
    if device != "cpu":
        raise _no_device(device)
    threads = thread_count(num_threads)
    artifact = read_artifact(source, verify=verify)
    if artifact.manifest.target.kind != "cpu":
        raise DeviceError(
            f"{artifact.name}: compiled for {artifact.manifest.target.kind}, not for the CPU; compile again with "
            "--target cpu"
        )
    return Module(artifact, artifact.weights(weights), threads)


def _no_device(device: str) -> TilestitchRuntimeError:
    if re.fullmatch(r"cuda(:\d+)?|emulator", device):
        return DeviceError(f"device {device!r}: artifacts hold kernels for the CPU only; load with device='cpu'")
    return DeviceError(f"device {device!r} is unknown; load with device='cpu'")


class Module:
    """A loaded model. Safe to use from several threads at once; each concurrent run gets memory and threads of its
    own.
    """

    def __init__(self, artifact: Artifact, weights: Mapping[str, np.ndarray], num_threads: int) -> None:
        self._artifact = artifact
        self._programs = artifact.programs
        self._loaded = _load_native(artifact, weights)
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
        self._pool = _Pool(self._loaded, self._programs, num_threads)

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

    def run(self, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
        """Compute the outputs by name from the inputs by name.

        Inputs are arrays of numpy, or anything with `__dlpack__` or `__array__`; lists for sequences; None for empty
        optionals. They are not changed. `out` gives C-contiguous arrays that named outputs are written to.

        Raises `InputError` that lists what is expected when inputs do not fit, `ExecutionError` when the model fails on
        them.
        """
        return self._run(feeds, out, None)

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
        self._run(feeds, None, lambda symbol, origins, us: times.append(LaunchTime(symbol, origins, us)))
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

    def _run(self, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray] | None, record: Any) -> dict[str, Any]:
        inputs = feeds_.convert_feeds(feeds, self._programs)
        index = feeds_.select(inputs, self._programs)
        program = self._programs[index]
        preset = _preset(program, inputs, out or {})
        with self._pool.context() as context:
            results = context.execution(index).run(inputs, record, preset)
        named = dict(zip(program.result_names, results))
        for name, target in (out or {}).items():
            if named[name] is not target:
                np.copyto(target, named[name])
                named[name] = target
        return named


def _load_native(artifact: Artifact, weights: Mapping[str, np.ndarray]) -> Loaded:
    if CPU_LIBRARY not in artifact.member_names:
        loaded = Loaded(artifact, weights, None)
        if loaded.has_native:
            artifact.member(CPU_LIBRARY)
        return loaded
    from .cpu.features import check_cpu
    from .cpu.library import Library

    check_cpu(artifact.manifest.target, artifact.name)
    return Loaded(artifact, weights, Library(artifact.member(CPU_LIBRARY), artifact.name))


def _preset(program: Program, inputs: list[Any], out: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """Check `out`, and choose the arrays that kernels can write to directly: those that share no memory with an
    input.
    """
    numbers = dict(zip(program.result_names, program.outputs))
    preset: dict[int, np.ndarray] = {}
    for name, target in out.items():
        if name not in numbers:
            raise InputError(f"out: there is no output {name!r}; outputs are {', '.join(numbers)}")
        value = program.values[numbers[name]]
        shape = value.shape
        fits = isinstance(target, np.ndarray) and target.flags.c_contiguous and target.flags.writeable
        if not fits or dtype_name(target.dtype) != value.dtype or (shape is not None and not _same(target, shape)):
            raise InputError(f"out: {name!r} needs a writable, C-contiguous array of {value.type}")
        shared = any(
            np.may_share_memory(target, array) for array in (*inputs, *preset.values()) if isinstance(array, np.ndarray)
        )
        taken = numbers[name] in preset
        if isinstance(value.location, Heap) and not taken and target.flags.aligned and not shared:
            preset[numbers[name]] = target
    return preset


def _same(array: np.ndarray, shape: tuple[int | str, ...]) -> bool:
    return array.ndim == len(shape) and all(isinstance(b, str) or a == b for a, b in zip(array.shape, shape))


class _Context:
    """Memory and threads for one run at a time. Specialisations are bound when first used."""

    def __init__(self, loaded: Loaded, programs: tuple[Program, ...], num_threads: int) -> None:
        self._loaded = loaded
        self._programs = programs
        self._executions: dict[int, Execution] = {}
        self._team: Team | None = None
        if loaded.library is not None and loaded.has_native:
            from .cpu.team import Team

            self._team = Team(loaded.library, num_threads, loaded.scratch_bytes)

    def execution(self, index: int) -> Execution:
        if index not in self._executions:
            program = self._programs[index]
            try:
                self._executions[index] = Execution(program, self._loaded, self._team)
            except (MemoryError, ValueError) as error:
                need = f"{program.arena_bytes} bytes for intermediate values"
                raise DeviceError(f"{self._loaded.file}: there is no memory for {need}; free some") from error
        return self._executions[index]

    def close(self) -> None:
        if self._team is not None:
            self._team.close()


class _Pool:
    """Contexts for concurrent runs: as many as the cores have room for, made when needed; more runs wait."""

    def __init__(self, loaded: Loaded, programs: tuple[Program, ...], num_threads: int) -> None:
        self._make = lambda: _Context(loaded, programs, num_threads)
        self._limit = max(1, available_cores() // num_threads)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[_Context] = []
        self._made = 0

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
