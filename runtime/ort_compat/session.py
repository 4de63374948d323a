"""InferenceSession: a loaded artifact with the methods of ONNX Runtime's session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.errors import TilestitchRuntimeError
from tilestitch.runtime.outputs import in_order
from tilestitch.runtime.session import open_module
from tilestitch.runtime.value_info import ValueInfo

from .binding import IOBinding
from .options import RunOptions, SessionOptions
from .providers import Provider, device_of, providers_of
from .values import OrtValue, type_name


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
