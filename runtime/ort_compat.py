"""The part of `onnxruntime.InferenceSession`'s interface that most programs use, so that they can try an artifact in
its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InputError
from .feeds import ValueInfo
from .session import load

_ORT_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it: `type` is for instance `tensor(float)`, `shape` a list."""

    name: str
    type: str
    shape: list[int | str] | None


class InferenceSession:
    """A loaded artifact with the methods of ONNX Runtime's session. Raises what `load` and `Module.run` raise."""

    def __init__(self, source: str | os.PathLike[str] | bytes, num_threads: int | None = None) -> None:
        self.module = load(source, num_threads=num_threads)

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(info) for info in self.module.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(info) for info in self.module.outputs]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The outputs of these names in order, or all of them for None. Run options are not looked at."""
        outputs = self.module.run(input_feed)
        for name in output_names or ():
            if name not in outputs:
                raise InputError(f"there is no output {name!r}; outputs are {', '.join(outputs)}")
        return [outputs[name] for name in output_names or outputs]


def _node_arg(info: ValueInfo) -> NodeArg:
    kind = f"tensor({_ORT_NAMES.get(info.dtype, info.dtype)})" if info.shape is not None else str(info.type)
    return NodeArg(info.name, kind, None if info.shape is None else list(info.shape))
