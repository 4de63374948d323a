"""IOBinding: binds the memory of a session's inputs and outputs once for many runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.device import to_host
from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.outputs import in_order
from tilestitch.runtime.session import Module

from .values import OrtValue, array_at


class IOBinding:
    """Inputs and outputs of one session by name. Outputs come in the order in which they were bound."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._inputs: dict[str, Any] = {}
        self._targets: dict[str, Any] = {}
        self._devices: dict[str, str] = {}
        self._results: dict[str, Any] | None = None

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        self._inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[name] = value.value

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input. The caller keeps the memory at `buffer_ptr` alive."""
        self._inputs[name] = array_at(buffer_ptr, element_type, shape, device_type)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to new memory of the device, or to `buffer_ptr`."""
        if buffer_ptr is None:
            self._bind(name, device_type, None)
        else:
            self._bind(name, device_type, array_at(buffer_ptr, element_type, shape or (), device_type))

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._bind(name, value.device_name(), value.value)

    def get_outputs(self) -> list[OrtValue]:
        """Return the bound outputs of the last run."""
        return [OrtValue(result) for result in self._of_last_run().values()]

    def copy_outputs_to_cpu(self) -> list[Any]:
        return [to_host(result) for result in self._of_last_run().values()]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._targets.clear()
        self._devices.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: a run waits for its inputs."""

    def synchronize_outputs(self) -> None:
        """Do nothing: runs are synchronous."""

    def run(self) -> None:
        """Run the session; called by `run_with_iobinding`."""
        on_device = any(device != "cpu" for device in self._devices.values())
        results = self._module.run(self._inputs, self._targets or None, on_device=on_device)
        bound = zip(self._devices.items(), in_order(results, list(self._devices))) if self._devices else ()
        self._results = {name: to_host(result) if kind == "cpu" else result for (name, kind), result in bound}

    def _bind(self, name: str, device_type: str, target: Any) -> None:
        self._devices[name] = device_type
        self._targets.pop(name, None)
        if target is not None:
            self._targets[name] = target

    def _of_last_run(self) -> dict[str, Any]:
        if self._results is None:
            raise ExecutionError("nothing was run with this binding; call session.run_with_iobinding(binding) first")
        return self._results
