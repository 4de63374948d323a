"""Printer of graphs; `text` describes the format and parses it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from .errors import IRError
from .sizes import FAR, Symbol, is_open
from .types import TensorType, from_numpy_dtype
from .values import Node, Value

INLINE_LIMIT = 64


class Printed(Protocol):
    """The parts of a `Graph` that are printed. `Graph` itself cannot be imported here, since graphs print
    themselves.
    """

    name: str
    symbols: tuple[Symbol, ...]

    @property
    def inputs(self) -> Sequence[Value]: ...

    @property
    def outputs(self) -> Sequence[Value]: ...

    @property
    def constants(self) -> Sequence[Value]: ...

    @property
    def nodes(self) -> Sequence[Node]: ...

    def subgraphs(self) -> Iterator[Printed]: ...


def print_graph(graph: Printed, *, full: bool = False, indent: str = "") -> str:
    """Return the graph as text. With `full`, large constants are written out, so that the text alone parses back."""
    inputs = ", ".join(f"{_ref(v)}: {v.type}" for v in graph.inputs)
    ranges = ", ".join(f"{s.name}={_range(s)}" for s in graph.symbols)
    name = f"{graph.name}[{ranges}]" if ranges else graph.name
    lines = [f"graph @{name}({inputs}) -> ({', '.join(_ref(v) for v in graph.outputs)}) {{"]
    lines += [f"{indent}  {_print_constant(v, full)}" for v in graph.constants]
    lines += [f"{indent}  {_print_node(n, full, indent + '  ')}" for n in graph.nodes]
    return "\n".join([*lines, indent + "}"])


def _range(symbol: Symbol) -> str:
    known = f"{'' if symbol.given else 'any.'}{'0.or.' if symbol.or_empty else ''}"
    return f"{known}{symbol.low}..{symbol.high if symbol.high < FAR else ''}"


def constants_of(graph: Printed) -> dict[str, np.ndarray]:
    """Return the data of all constants, nested graphs included, by their keys in the text form."""
    table = {digest(v.data): v.data for v in graph.constants if v.data is not None}
    for inner in graph.subgraphs():
        table.update(constants_of(inner))
    return table


def fingerprint(graph: Printed) -> str:
    """Return the SHA-256 of the text form: equal graphs, constants included, have equal fingerprints."""
    return hashlib.sha256(print_graph(graph).encode()).hexdigest()


_DIGESTS: dict[int, tuple[weakref.ref[np.ndarray], str]] = {}
"""Digests of read-only arrays by identity, as long as they live, since those of large weights are needed repeatedly."""


def digest(data: np.ndarray) -> str:
    """Return the SHA-256 of a constant: its dtype, shape and elements."""
    if data.flags.writeable:
        return _digest(data)
    key = id(data)
    known = _DIGESTS.get(key)
    if known is not None and known[0]() is data:
        return known[1]
    found = _digest(data)
    _DIGESTS[key] = weakref.ref(data, lambda _: _DIGESTS.pop(key, None)), found
    return found


def _digest(data: np.ndarray) -> str:
    sha = hashlib.sha256(f"{data.dtype.name}{data.shape}".encode())
    if data.dtype == object:
        sha.update(json.dumps(data.tolist()).encode())
    else:
        sha.update(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def _ref(value: Value) -> str:
    return "%" + (value.name if re.fullmatch(r"[\w.\-]+", value.name) else json.dumps(value.name))


def _print_constant(value: Value, full: bool) -> str:
    data = value.data
    assert data is not None
    if data.size <= INLINE_LIMIT and data.dtype.kind not in "c":
        text = json.dumps(_plain(data))
    elif full:
        text = "base64:" + base64.b64encode(np.ascontiguousarray(data).tobytes()).decode()
    else:
        text = "#sha256:" + digest(data)
    return f"{_ref(value)} = constant {text} : {value.type}"


def _plain(data: np.ndarray) -> Any:
    """Return the elements as JSON scalars that convert back exactly; non-finite floats by name (JSON has none)."""
    if data.dtype == object or data.dtype.kind in "biu":
        return data.reshape(-1).tolist()
    if data.dtype.name in ("int4", "uint4", "int2", "uint2"):
        return data.reshape(-1).astype(np.int64).tolist()
    floats = data.reshape(-1).astype(np.float64).tolist()
    return [f if np.isfinite(f) else repr(f) for f in floats]


def _print_node(node: Node, full: bool, indent: str) -> str:
    outputs = ", ".join(_ref(v) for v in node.outputs)
    text = f"{outputs} = {node.op}({', '.join(_ref(v) for v in node.inputs)})"
    if node.attrs:
        attrs = ", ".join(f"{k}={_print_attr(node.attrs[k], full, indent)}" for k in sorted(node.attrs))
        text += f" {{{attrs}}}"
    text += " : " + ", ".join(str(v.type) for v in node.outputs)
    if not node.outputs or node.name != node.outputs[0].name:
        text += f"  node {json.dumps(node.name)}"
    if node.origins:
        text += "  from " + ", ".join(json.dumps(o) for o in node.origins)
    return text


def _print_attr(value: Any, full: bool, indent: str) -> str:
    if hasattr(value, "subgraphs"):
        return print_graph(value, full=full, indent=indent)
    if isinstance(value, np.ndarray):
        return f"array({json.dumps(_plain(value))} : {TensorType(from_numpy_dtype(value.dtype), value.shape)})"
    if isinstance(value, np.generic):
        value = value.item()
    return json.dumps(value, default=_jsonable)


def _jsonable(value: Any) -> Any:
    if is_open(value):
        return {"size": str(value)}
    if isinstance(value, np.generic):
        return value.item()
    raise IRError(f"attribute value {value!r} has no text form; use numbers, strings, tuples, arrays or graphs")
