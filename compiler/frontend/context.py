"""The interface of converters: one ONNX node, its operands as IR values, and methods that emit primitives.

A converter is a plain function `convert_x(ctx: Context) -> Value | Sequence[Value | None]`. It returns the node's
outputs in order; outputs that the node does not name may be left out at the end or be None. It raises

* `NotStatic` (through `constant_of`, `shape`, ...) when it needs at compile time a value that is known only at run
  time: the dispatcher then takes the operator's entry in `converters.dynamic`, and undoes what was emitted so far;
* `ConversionError` (through `fail`) when the node itself is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from tilestitch.compiler.ir import Graph, OptionalType, Type, Value
from tilestitch.compiler.ir.sizes import as_size

from .builder import Builder
from .errors import ConversionError, NotStatic
from .found_sizes import entries_of, sizes_of
from .onnx_types import dtype_of, from_type_proto
from .scope import Scope
from .sizes import contents_of
from .tensors import to_array

Converted: TypeAlias = "Value | Sequence[Value | None]"
Converter: TypeAlias = "Callable[[Context], Converted]"
Versioned: TypeAlias = "tuple[int, Converter]"
"""A converter, and the opset version from which on it is correct."""

_REQUIRED: Any = object()


class Context(Builder):
    """One node under conversion; the emitting methods are those of `Builder`."""

    def __init__(self, scope: Scope, node: NodeProto, name: str, inputs: Sequence[Value | None], opset: int) -> None:
        super().__init__(scope.graph, scope.origins or (name,))
        self.scope = scope
        self.node = node
        self.name = name
        self.inputs = tuple(inputs)
        """Operands in order; None where one is omitted. Trailing operands may be missing altogether."""
        self.opset = opset
        """Version of the node's operator set that is in force."""
        self._attributes = {a.name: a for a in node.attribute}

    # -- operands ------------------------------------------------------------------------------------------

    def optional(self, index: int) -> Value | None:
        """Return the operand, or None if it is omitted, missing, or the absent optional."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is not None and value.type == OptionalType(None):
            return None
        return value

    def input(self, index: int) -> Value:
        """Return a required operand; ConversionError if it is omitted."""
        value = self.optional(index)
        if value is None:
            raise self.fail(f"operand {index} is required")
        return value

    def constant_of(self, index: int) -> np.ndarray:
        """Return the data of a required operand; NotStatic if it is not a constant."""
        value = self.input(index)
        if value.data is None:
            raise NotStatic(
                f"operand {index} ({self.node.input[index]!r}) must be a constant, but is computed at run time"
            )
        return value.data

    def ints_of(self, index: int) -> tuple[int, ...]:
        """Return a required operand of sizes, flattened; NotStatic if they are known only at run time."""
        known = contents_of(self.input(index))
        if known is not None:
            return tuple(as_size(v) for v in known.reshape(-1))
        return tuple(int(v) for v in self.constant_of(index).reshape(-1))

    def sizes_of(self, index: int) -> tuple[int, ...]:
        """Return a required operand of sizes, flattened; sizes that only a run can tell become symbols, or
        NotStatic.
        """
        entries = entries_of(self.input(index))
        return self.ints_of(index) if entries is None else sizes_of(self, entries)

    def optional_ints(self, index: int) -> tuple[int, ...] | None:
        return None if self.optional(index) is None else self.ints_of(index)

    # -- outputs -------------------------------------------------------------------------------------------

    @property
    def num_outputs(self) -> int:
        return len(self.node.output)

    def has_output(self, index: int) -> bool:
        """Return whether the node names this output."""
        return index < len(self.node.output) and bool(self.node.output[index])

    def reads_output(self, index: int) -> bool:
        """Return whether the node names this output, and the model uses it: optimisers name outputs without need."""
        return self.has_output(index) and self.node.output[index] in self.scope.module.read

    # -- attributes ----------------------------------------------------------------------------------------

    def has_attr(self, name: str) -> bool:
        return name in self._attributes

    def attr(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute as int, float, str (bytes if it is no UTF-8), tuple of these, ndarray, GraphProto or IR
        Type.

        Without `default` the attribute is required: ConversionError if it is missing.
        """
        if name not in self._attributes:
            if default is _REQUIRED:
                raise self.fail(f"attribute {name!r} is required")
            return default
        attribute = self._attributes[name]
        if attribute.type not in _VALUES:
            raise self.fail(f"attribute {name!r} has kind {attribute.type}, which is not supported")
        return _VALUES[attribute.type](attribute, self.scope.module.folder)

    def dtype_attr(self, name: str, default: str | None = None) -> str:
        """Return an attribute that holds an ONNX element type, as an IR dtype."""
        if default is not None and name not in self._attributes:
            return default
        return dtype_of(self.attr(name))

    # -- bodies of control flow ----------------------------------------------------------------------------

    def convert_subgraph(self, proto: GraphProto, input_types: Iterable[Type]) -> tuple[Graph, list[Value]]:
        """Convert a body to a graph of its own; its inputs are the formal ones, then one for each captured value
        returned.
        """
        return self.scope.convert_subgraph(proto, input_types, self.name)

    def convert_branches(self, protos: Sequence[GraphProto]) -> tuple[list[Graph], list[Value]]:
        """Convert bodies without formal inputs (If), with the same captures in the same order for all."""
        converted = [self.convert_subgraph(p, ()) for p in protos]
        captures = list(dict.fromkeys(v for _, taken in converted for v in taken))
        for graph, taken in converted:
            by_outer = dict(zip(taken, graph.inputs, strict=True))
            graph.inputs[:] = []
            for outer in captures:
                if outer in by_outer:
                    graph.inputs.append(by_outer[outer])
                else:
                    graph.add_input(outer.name, outer.type)
        return [graph for graph, _ in converted], captures

    def inline_subgraph(self, proto: GraphProto, inputs: Iterable[Value]) -> list[Value]:
        """Convert a body in place, with these values as its formal inputs (constant If, unrolled Loop)."""
        return self.scope.inline_subgraph(proto, inputs, self.name)

    # -- errors --------------------------------------------------------------------------------------------

    def fail(self, message: str) -> ConversionError:
        """Return the error to raise when the node is wrong; the dispatcher adds nothing to it."""
        return ConversionError(f"node {self.name!r} ({self.node.op_type}, opset {self.opset}): {message}")


_VALUES: dict[int, Callable[[AttributeProto, Path | None], Any]] = {
    AttributeProto.INT: lambda attribute, _: int(attribute.i),
    AttributeProto.FLOAT: lambda attribute, _: float(attribute.f),
    AttributeProto.STRING: lambda attribute, _: _text(attribute.s),
    AttributeProto.TENSOR: lambda attribute, folder: to_array(attribute.t, folder),
    AttributeProto.GRAPH: lambda attribute, _: attribute.g,
    AttributeProto.TYPE_PROTO: lambda attribute, _: from_type_proto(attribute.tp),
    AttributeProto.SPARSE_TENSOR: lambda attribute, _: attribute.sparse_tensor,
    AttributeProto.INTS: lambda attribute, _: tuple(int(v) for v in attribute.ints),
    AttributeProto.FLOATS: lambda attribute, _: tuple(float(v) for v in attribute.floats),
    AttributeProto.STRINGS: lambda attribute, _: tuple(_text(s) for s in attribute.strings),
    AttributeProto.TENSORS: lambda attribute, folder: tuple(to_array(t, folder) for t in attribute.tensors),
    AttributeProto.GRAPHS: lambda attribute, _: tuple(attribute.graphs),
}
"""Values of the supported kinds of attributes, given the folder of external tensors."""


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


AT_LEAST: Mapping[str, int] = {
    "blocksize": 1, "dilations": 1, "group": 1, "hidden_size": 1, "kernel_shape": 1, "num_groups": 1, "num_outputs": 1,
    "output_height": 1, "output_width": 1, "p": 1, "pooled_shape": 1, "size": 1, "strides": 1,
    "block_size": 0, "clip": 0, "kv_num_heads": 0, "num_heads": 0, "output_padding": 0, "q_num_heads": 0,
    "sampling_ratio": 0,
}  # fmt: skip
"""The least value, or least entry, of an attribute: ONNX gives one name one meaning in all operators, and its checker
tests none of these.
"""

_PADDED_BY_OPERAND = frozenset({"Pad"})
"""Operators whose pads may be negative: they remove elements."""


def check_limits(ctx: Context) -> None:
    """Raise ConversionError if an attribute of the node is below the least value that its operator supports."""
    for attribute in ctx.node.attribute:
        least = 0 if attribute.name == "pads" and ctx.node.op_type not in _PADDED_BY_OPERAND else None
        least = AT_LEAST.get(attribute.name, least)
        if least is None:
            continue
        value = ctx.attr(attribute.name)
        entries = value if isinstance(value, (tuple, list)) else (value,)
        if any(isinstance(entry, (int, float)) and not entry >= least for entry in entries):
            raise ctx.fail(f"{attribute.name} is {value}, but must not be below {least}; correct the model")
