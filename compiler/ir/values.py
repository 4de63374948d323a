"""SSA values, and the nodes that define and use them; `graph` keeps them in order."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import IRError
from .types import AnyRankTensor, TensorType, Type


class Value:
    """One SSA value. A constant carries `data`; everything else has a producer or is a graph input."""

    __slots__ = ("_uses", "data", "index", "name", "producer", "type")

    def __init__(self, name: str, type_: Type, data: np.ndarray | None = None) -> None:
        self.name = name
        self.type = type_
        self.data = data
        self.producer: Node | None = None
        self.index = 0
        self._uses: dict[tuple[Node, int], None] = {}

    @property
    def uses(self) -> KeysView[tuple[Node, int]]:
        """The uses of this value, (node, operand position), in order of first use."""
        return self._uses.keys()

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def tensor_type(self) -> TensorType:
        if not isinstance(self.type, TensorType):
            raise IRError(f"value %{self.name} has type {self.type}, where a tensor of known rank is needed")
        return self.type

    @property
    def dtype(self) -> str:
        """The data type, also of a tensor of unknown rank; IRError for other values than tensors."""
        return self.type.dtype if isinstance(self.type, AnyRankTensor) else self.tensor_type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; IRError if a dimension is neither a number nor an expression over symbols."""
        return self.tensor_type.sizes

    @property
    def users(self) -> list[Node]:
        """Distinct nodes that read this value, in order of first use."""
        return list(dict.fromkeys(node for node, _ in self._uses))

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One operation. `origins` names the ONNX nodes from which it stems; every rewrite preserves them."""

    __slots__ = ("attrs", "inputs", "name", "op", "origins", "outputs")

    def __init__(
        self,
        op: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        attrs: Mapping[str, Any],
        name: str,
        origins: Iterable[str],
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.attrs = dict(attrs)
        self.name = name
        self.origins = tuple(dict.fromkeys(origins))

    @property
    def output(self) -> Value:
        if len(self.outputs) != 1:
            raise IRError(f"node {self.name} ({self.op}) has {len(self.outputs)} outputs, not one")
        return self.outputs[0]

    def __repr__(self) -> str:
        outputs, inputs = (", ".join("%" + v.name for v in values) for values in (self.outputs, self.inputs))
        return f"{outputs} = {self.op}({inputs})"
