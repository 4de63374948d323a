"""Loading an artifact and running it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from . import feeds as feeds_
from .artifact import Artifact, read_artifact
from .caches import Caches
from .cpu.threads import thread_count
from .device import Backend, DeviceName, check_target, open_backend
from .errors import ArtifactIntegrityError, InputError
from .feeds import Inputs
from .host_runs import HOST_PREFIX
from .launches import RecordTime
from .like import converted
from .loaded import Loaded
from .members import MANIFEST
from .outputs import Results, Wanted, in_order, on_host, targets_by_name
from .pool import Pool
from .value_info import ValueInfo, in_one_line, infos, inputs_of

if TYPE_CHECKING:
    from .cuda.partition import Partition
    from .emulator import EmulatorOptions


@dataclass(frozen=True)
class Recipe:
    """The arguments of `load`, so that pickle and copy can load a model again: threads and a GPU's memory cannot be
    copied. Files are absolute paths. `digest`: of the manifest at the time.

    `multiprocessors`: a copy gets as many of its own, also of a model on a partition.
    """

    arguments: Mapping[str, Any]
    digest: str

    @staticmethod
    def of(
        artifact: Artifact, source: Any, weights: Any, multiprocessors: int | Partition | None, **others: Any
    ) -> Recipe | None:
        """Return the recipe; None for what was not loaded from files."""
        if isinstance(source, bytes | bytearray | memoryview) or isinstance(weights, Mapping):
            return None
        others["source"], others["weights"] = (path and os.path.abspath(path) for path in (source, weights))
        others["multiprocessors"] = getattr(multiprocessors, "multiprocessors", multiprocessors)
        return Recipe(others, manifest_digest(artifact))


def manifest_digest(artifact: Artifact) -> str:
    return hashlib.sha256(artifact.member(MANIFEST)).hexdigest()


class LaunchTime(NamedTuple):
    """The time of one launch or host step (then the symbol is `host.` and its operator). `origins` are the names of the
    ONNX nodes that it computes. Launches of one `branch` of a device step run one after the other; different branches
    can run concurrently.
    """

    symbol: str
    origins: tuple[str, ...]
    microseconds: float
    branch: int = 0

    @property
    def on_host(self) -> bool:
        return self.symbol.startswith(HOST_PREFIX)


def load(
    source: str | os.PathLike[str] | bytes,
    device: str | EmulatorOptions = "cpu",
    num_threads: int | None = None,
    weights: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    verify: bool = True,
    sync: bool = True,
    donate: Sequence[str] = (),
    multiprocessors: int | Partition | None = None,
) -> Module:
    """Load an artifact from a file or from its bytes.

    `device`: `cpu`, `cuda` (the first GPU), `cuda:N`, or `emulator`, which executes CUDA kernels on the CPU; (see
    `EmulatorOptions` of `tilestitch.runtime.emulator`).
    `num_threads`: by default the environment variable `TILESTITCH_NUM_THREADS`, or else the number of physical cores
    that the process may use.
    `weights`: a safetensors file or arrays by name, for artifacts whose weights were stripped. `verify=False` skips the
    hash of the weights, also of supplied ones, which takes about a second per gigabyte.
    `sync=False`: kernels wait for whole kernels, as if the model had been compiled with `--sync off`.
    `donate`: patterns of the names of caches whose memory runs may write to, for artifacts compiled with that option:
    where an array is the first rows of a buffer, as results are, the rows after them are overwritten.
    `multiprocessors`: how many of a GPU's the kernels run on, rounded up to what the GPU allows; no other model or
    partition gets the same. Or a partition (see `tilestitch.runtime.cuda.partition`). By default the whole GPU, which
    models share.

    Raises `InputError` for options of the wrong type, a subclass of `ArtifactError` for a file that cannot be used,
    `DeviceError` when this machine cannot run it, `WeightsError` for missing or wrong weights, `UnsupportedError` for
    operators or data types that this runtime lacks. An artifact holds machine code: load only those that you trust.
    """
    name = DeviceName.parse(device)
    if multiprocessors is not None:
        name = name.on(multiprocessors)
    threads = thread_count(num_threads)
    for option, value in (("verify", verify), ("sync", sync)):
        if not isinstance(value, bool):
            raise InputError(f"{option} is {value!r}; give True or False")
    if not isinstance(donate, list | tuple):
        raise InputError(f"donate is {donate!r}; give a list of names of caches, or of patterns such as 'past_*'")
    artifact = read_artifact(source, verify=verify)
    module = _module(artifact if sync else artifact.plain(), name, threads, weights, verify, donate)
    module._recipe = Recipe.of(
        artifact, source, weights, multiprocessors, device=device, num_threads=num_threads, verify=verify, sync=sync,
        donate=tuple(donate),
    )  # fmt: skip
    return module


def open_module(artifact: Artifact, device: str = "cpu", num_threads: int | None = None) -> Module:
    """Load an artifact that was already read, as `load` does."""
    return _module(artifact, DeviceName.parse(device), thread_count(num_threads), None, True)


def _module(
    artifact: Artifact,
    name: DeviceName,
    threads: int,
    weights: str | os.PathLike[str] | Mapping[str, Any] | None,
    verify: bool,
    donate: Sequence[str] = (),
) -> Module:
    check_target(artifact, name)
    loaded = Loaded(artifact, artifact.weights(weights, verify=verify))
    return Module(artifact, loaded, open_backend(artifact, loaded, name, threads), threads, donate)


class Module:
    """A loaded model. Safe to use from several threads at once; each concurrent run gets memory and threads of its
    own.
    """

    def __init__(
        self, artifact: Artifact, loaded: Loaded, backend: Backend, num_threads: int, donate: Sequence[str] = ()
    ) -> None:
        self._artifact = artifact
        self._programs = artifact.programs
        self._backend = backend
        self.num_threads = num_threads
        self.inputs, self.outputs = infos(self._programs)
        self._names = tuple(info.name for info in self.inputs)
        self._reader = Inputs(self._programs, [loaded.sizing(program) for program in self._programs], backend)
        self._results = [Results(program, program.values.__getitem__) for program in self._programs]
        self._pool = Pool(loaded, self._programs, backend)
        self._caches = Caches(self._programs, self._names, donate, backend.cache_memory)
        self._recipe: Recipe | None = None

    @property
    def multiprocessors(self) -> int | None:
        """How many of a GPU's multiprocessors its kernels run on; None on other devices."""
        return self._backend.multiprocessors

    @property
    def artifact(self) -> Artifact:
        """The artifact, with its manifest and plan."""
        return self._artifact

    @property
    def specialisations(self) -> tuple[tuple[ValueInfo, ...], ...]:
        """The inputs of each specialisation."""
        return tuple(inputs_of(program) for program in self._programs)

    def specialisation_for(self, feeds: Mapping[str, Any]) -> int:
        """Return the number of the specialisation that a run with these inputs uses. Raises `InputError` where none
        fits.
        """
        if self._caches:
            feeds = self._caches.lent(feeds, None).feeds
        return self._reader.read(feeds, None)[0].number

    def get_inputs(self) -> tuple[ValueInfo, ...]:
        return self.inputs

    def get_outputs(self) -> tuple[ValueInfo, ...]:
        return self.outputs

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy a model by loading it again from its file. Raises TypeError for one that came from memory."""
        if self._recipe is None:
            raise TypeError(
                "a Module can be pickled and copied only when its artifact, and weights that were given, came from "
                "files; pickle the bytes or arrays instead, and call tilestitch.runtime.load where the copy is needed"
            )
        return load_again, (self._recipe,)

    def __repr__(self) -> str:
        inputs, outputs = in_one_line(self.inputs), in_one_line(self.outputs)
        name, target = os.path.basename(self._artifact.name), self._artifact.manifest.target.kind
        return f"<Module {name} for {target}, {self.num_threads} threads: ({inputs}) -> ({outputs})>"

    @overload
    def run(
        self,
        feeds: Mapping[str, Any] | Sequence[Any],
        out: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        stream: Any = None,
        on_device: bool = False,
        like: Any = None,
    ) -> dict[str, Any]: ...

    @overload
    def run(
        self, feeds: None, out: Mapping[str, Any], *, stream: Any = None, on_device: bool = False, like: Any = None
    ) -> list[Any]: ...

    def run(
        self,
        feeds: Mapping[str, Any] | Sequence[Any] | None,
        out: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        stream: Any = None,
        on_device: bool = False,
        like: Any = None,
    ) -> dict[str, Any] | list[Any]:
        """Run the model on inputs by name, or on a list or tuple of them in order, and return the outputs by name.

        Inputs are arrays of numpy, or anything with `__dlpack__`, `__cuda_array_interface__` or `__array__`, torch
        tensors for instance; lists for sequences; dicts for maps; None for empty optionals. They are not changed.
        `out`: C-contiguous arrays or tensors to write outputs to: some by name, or all in a list in order. `like`, the
        name of a library of arrays (`"torch"`) or one of its arrays, returns the other outputs as arrays of that
        library.

        ONNX Runtime's call signature works, too: `run(None, inputs)` and `run(output_names, inputs)` return a list.

        On a GPU, inputs and `out` may lie in its memory and are then used in place. `on_device=True` leaves all tensor
        outputs there: arrays with `__dlpack__` and `__cuda_array_interface__`. `stream` (an integer, or an object with
        `__cuda_stream__` or `cuda_stream`) is the CUDA stream in which the work is queued; `run` then returns when
        everything is queued, unless results come to the host.

        Raises `InputError` that lists what is expected when inputs do not fit, `ExecutionError` when the model fails on
        them.
        """
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            if feeds_.are_output_names(feeds, out, self._names):
                return in_order(self.run(out or {}, None, stream=stream, on_device=on_device, like=like), feeds)
            feeds = feeds_.by_position(feeds, self._programs)
        if out is not None and type(out) is not dict:
            out = targets_by_name(out, self._programs[0].result_names)
        results = self._run(feeds, out, None, stream, on_device)
        return results if like is None else converted(results, like, out or {})

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run with inputs by position or name; one dict is taken as all inputs by name."""
        if len(args) == 1 and not kwargs and not isinstance(args[0], np.ndarray) and isinstance(args[0], Mapping):
            return self.run(args[0])
        if len(args) > len(self.inputs):
            feeds_.by_position(args, self._programs)  # raises with the expected inputs
        return self.run({**dict(zip(self._names, args)), **kwargs})

    def profile(self, feeds: Mapping[str, Any] | Sequence[Any]) -> list[LaunchTime]:
        """Run once and return the time of every launch and host step in order."""
        times: list[LaunchTime] = []
        feeds = feeds if isinstance(feeds, Mapping) else feeds_.by_position(feeds, self._programs)
        self._run(feeds, None, lambda *launch: times.append(LaunchTime(*launch)))
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
        out: Mapping[str, Any] | None,
        record: RecordTime | None,
        stream: Any = None,
        on_device: bool = False,
    ) -> dict[str, Any]:
        lent, grown = None, None
        if self._caches:
            lent = self._caches.lent(feeds, out, stream)
            feeds = lent.feeds
            if out:
                out = {name: target for name, target in out.items() if name not in lent.kept}
        (index, bound), inputs = self._reader.read(feeds, stream)
        program, backend = self._programs[index], self._backend
        if lent is not None and bound is not None:  # a program with caches has symbols
            lent.check(program.results, bound)
        context = self._pool.acquire()
        try:
            worker = context.worker
            worker.begin(stream)
            try:
                if lent is not None:
                    grown = lent.placed(program.results, worker)
                    inputs = lent.apart(inputs, worker)
                execution = context.execution(index, bound)
                if out or on_device or (grown and not backend.writes_host_memory):
                    results = self._results[index] if bound is None else Results(program, bound.value)
                    wanted = Wanted(results, inputs, out or {}, on_device, backend, stream, grown)
                    if lent is not None:
                        lent.check_apart(wanted.targets)
                    named = wanted.run(execution, worker, inputs, record)
                else:
                    made = execution.run(inputs, record, grown)
                    if not backend.writes_host_memory:
                        made = [on_host(result, worker) for result in made]
                    named = dict(zip(program.result_names, made))
                if lent is not None:
                    lent.end(named, worker, on_device)
                return named
            finally:
                worker.end()
        finally:
            self._pool.release(context)


def load_again(recipe: Recipe) -> Module:
    """Load a model again. Raises the errors of `load`, and `ArtifactIntegrityError` when the file has changed since."""
    module = load(**recipe.arguments)
    if manifest_digest(module.artifact) == recipe.digest:
        return module
    module.close()
    raise ArtifactIntegrityError(
        "this is another artifact than the pickled or copied model was loaded from",
        file=recipe.arguments["source"],
        remedy="load it anew with tilestitch.runtime.load",
    )
