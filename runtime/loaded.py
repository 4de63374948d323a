"""Data shared by all executions of an artifact, on any device: weights and host operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .artifact import Artifact
from .dtypes import numpy_dtype
from .errors import ArtifactSchemaError, UnsupportedError
from .program import (
    ABSENT,
    Constant,
    DeviceStep,
    HostStep,
    Literal,
    NativeStep,
    Program,
    ValueSpec,
)
from .program_check import check_program
from .reads import bodies
from .sizing import Sizing
from .types import MapType, TensorType, ValueType
from .weights import typed_weight

HostFunction = Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]]


def host_table() -> Mapping[str, HostFunction]:
    """Return the numpy operators by name; imported only when a program has host steps."""
    from .host import TABLE

    return TABLE


def prepared(op: str, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a host step's attributes, with what its operator precomputes once for all runs."""
    from .host import PREPARE

    return PREPARE[op](attrs) if op in PREPARE else attrs


def walk_programs(program: Program) -> list[Program]:
    """Return the program and all programs nested in it."""
    found = [program]
    for step in program.steps:
        for body in bodies(step):
            found += walk_programs(body.program)
    return found


def _need_host_dtypes(program: Program) -> None:
    """Raise `UnsupportedError` when host steps compute on a type that needs `ml_dtypes`, and it is absent."""
    for step in program.steps:
        if not isinstance(step, HostStep):
            continue  # kernels work on raw bytes
        for number in (*step.inputs, *step.outputs):
            if number == ABSENT:
                continue
            try:
                numpy_dtype(_tensor_dtype(program.values[number].type))
            except UnsupportedError as error:
                raise UnsupportedError(f"ONNX node {', '.join(step.origins) or '?'} ({step.op}): {error}") from error


def _tensor_dtype(type_: ValueType) -> str:
    """Return the data type of the tensors in a value, or of the values of a map."""
    while not isinstance(type_, (TensorType, MapType)):
        type_ = type_.element
    return type_.value if isinstance(type_, MapType) else type_.dtype


class Loaded:
    """Data shared by all executions of an artifact on any device: weights, host operators. Immutable."""

    def __init__(self, artifact: Artifact, weights: Mapping[str, np.ndarray]) -> None:
        self.file = artifact.name
        self.weights = weights
        self._infos = artifact.manifest.weights
        programs = [nested for program in artifact.programs for nested in walk_programs(program)]
        self.programs = tuple(programs)
        sized = [program for program in programs if program.symbols]
        signatures = artifact.signatures if sized else {}
        self._sizings = {id(one): Sizing(one, check_program(one, signatures), artifact.name) for one in sized}
        launches = [launch for p in programs for s in p.steps if isinstance(s, NativeStep) for launch in s.launches]
        sizes = [launch.scratch_bytes for launch in launches]
        self.scratch_bytes = max((size for size in sizes if isinstance(size, int)), default=0)
        host_steps = [step for program in programs for step in program.steps if isinstance(step, HostStep)]
        self.host: Mapping[str, HostFunction] = host_table() if host_steps else {}
        unknown = sorted({step.op for step in host_steps} - set(self.host))
        if unknown:
            raise UnsupportedError(
                f"{self.file}: this runtime has no operator {', '.join(unknown)}; upgrade tilestitch to the version "
                "that compiled it"
            )
        for program in programs:
            _need_host_dtypes(program)

        for program in programs:
            for value in program.values:
                if isinstance(value.location, Constant):
                    self.constant(value)  # report missing weights at load, not at the first run

    def sizing(self, program: Program) -> Sizing | None:
        """Return the binder of a program's symbols; None for a program without symbols."""
        return self._sizings.get(id(program))

    def symbols(self, kind: type[NativeStep] | type[DeviceStep]) -> frozenset[str]:
        """Return the symbols of the kernels that steps of this kind launch."""
        steps = [step for program in self.programs for step in program.steps if isinstance(step, kind)]
        return frozenset(one.symbol for step in steps for launch in step.launches for one in launch.kernels)

    def constant(self, value: ValueSpec) -> np.ndarray:
        """Return the read-only array of a constant or literal."""
        location = value.location
        if isinstance(location, Literal) and isinstance(value.type, TensorType):
            array = np.array(location.items, object).reshape(value.type.static_shape or ())
            array.flags.writeable = False
            return array
        if not isinstance(location, Constant) or not isinstance(value.type, TensorType):
            raise ValueError(f"value {value.name!r} is no constant")
        shape = value.type.static_shape or ()
        return typed_weight(self._weight(location.tensor), value.type.dtype, shape, location.offset_bytes)

    def attributes(self, attrs: Any) -> Any:
        """Return a host step's attributes with references to constants replaced by arrays."""
        if isinstance(attrs, list):
            return [self.attributes(item) for item in attrs]
        if not isinstance(attrs, dict):
            return attrs
        if set(attrs) == {"$constant"}:
            raw, info = self._weight(attrs["$constant"]), self._infos[attrs["$constant"]]
            numpy_dtype(info.dtype)  # host steps compute on it
            return typed_weight(raw, info.dtype, info.shape)
        return {name: self.attributes(item) for name, item in attrs.items()}

    def _weight(self, name: Any) -> np.ndarray:
        if not isinstance(name, str) or name not in self.weights:
            raise ArtifactSchemaError(f"the program uses a weight {name!r} that is not there", file=self.file)
        return self.weights[name]
