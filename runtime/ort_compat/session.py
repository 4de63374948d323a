"""InferenceSession: a loaded artifact with the methods of ONNX Runtime's session, and its execution providers."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.errors import DeviceError, TilestitchRuntimeError
from tilestitch.runtime.outputs import in_order
from tilestitch.runtime.session import open_module
from tilestitch.runtime.value_info import ValueInfo

from .binding import IOBinding
from .options import RunOptions, SessionOptions
from .values import OrtValue, type_name

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_ON_GPUS = (CUDA, "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")

Provider = str | tuple[str, Mapping[str, Any]]


def get_all_providers() -> list[str]:
    return [CUDA, CPU]


def get_available_providers() -> list[str]:
    """Return the providers with a device in this machine."""
    return get_all_providers() if _has_gpu() else [CPU]


def get_device() -> str:
    return "GPU" if _has_gpu() else "CPU"


def providers_of(kind: str) -> list[str]:
    """Return the providers that run an artifact for a target of this kind; the CPU runs host steps."""
    return [CUDA, CPU] if kind == "cuda" else [CPU]


def device_of(
    kind: str, providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> str:
    """Return the device on which to load an artifact of `kind`, as `providers` name it: the one it was compiled for,
    whatever their order.

    Raises DeviceError when the artifact is for a GPU and no provider is; warns where it is for the CPU, as ONNX Runtime
    does when it falls back to that.
    """
    if not providers:
        return kind
    named = [(p, {}) if isinstance(p, str) else (p[0], dict(p[1])) for p in providers]
    for (_, options), more in zip(named, provider_options or ()):
        options.update(more)
    if kind == "cuda":
        ordinals = [options.get("device_id", 0) for name, options in named if name in _ON_GPUS]
        if not ordinals:
            raise DeviceError(
                f"the artifact was compiled for a GPU, but the providers are {', '.join(name for name, _ in named)}; "
                f"add {CUDA}, or compile the model with --target cpu"
            )
        return f"cuda:{int(ordinals[0])}"
    if CPU not in [name for name, _ in named]:
        warnings.warn(f"the artifact was compiled for the CPU and runs there, not by {named[0][0]}", stacklevel=4)
    return kind


def _has_gpu() -> bool:
    """Return whether there is a CUDA driver that finds a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `type` is for instance `tensor(float)`; `shape` a list of sizes and names, empty if the rank
    is unknown.
    """

    name: str
    type: str
    shape: list[int | str]


@dataclass(frozen=True)
class ModelMetadata:
    """The artifact's metadata."""

    graph_name: str
    producer_name: str = "tilestitch"
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class InferenceSession:
    """A loaded artifact, for the CPU or a GPU as it was compiled. Raises what `load` and `Module.run` raise.

    `module` is the artifact with tilestitch's own interface.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> None:
        self._options = sess_options or SessionOptions()
        self._options.warn_of_what_does_not_happen()
        artifact = read_artifact(path_or_bytes)
        self._kind = artifact.manifest.target.kind
        device = device_of(self._kind, providers, provider_options)
        self.module = open_module(artifact, device, self._options.intra_op_num_threads or None)

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(info) for info in self.module.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(info) for info in self.module.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: constants are compiled in."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(self.module.artifact.programs[0].name)

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return providers_of(self._kind)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in self.get_providers()}

    def set_providers(
        self, providers: Sequence[Provider] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Check the providers; the device stays. Raises DeviceError where they exclude it."""
        device_of(self._kind, providers, provider_options)

    def disable_fallback(self) -> None:
        """Do nothing: there is no fallback."""

    def enable_fallback(self) -> None:
        """Do nothing: there is no fallback."""

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """Return the outputs of these names in order; all of them for None or no names."""
        feeds = {name: v.value if isinstance(v, OrtValue) else v for name, v in input_feed.items()}
        return in_order(self.module.run(feeds), output_names)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        return [OrtValue(result) for result in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Start a run and return at once; a thread calls `callback(results, user_data, error)`, `error` empty on
        success.
        """

        def call() -> None:
            try:
                results, problem = self.run(output_names, input_feed, run_options), ""
            except TilestitchRuntimeError as error:
                results, problem = [], str(error)
            callback(results, user_data, problem)

        threading.Thread(target=call, daemon=True).start()

    def io_binding(self) -> IOBinding:
        return IOBinding(self.module)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        iobinding.run()


def _node_arg(info: ValueInfo) -> NodeArg:
    return NodeArg(info.name, type_name(info.type), list(info.shape or ()))
