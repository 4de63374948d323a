"""The text form of a graph: prints and parses back to the same graph.

    graph @main[n=1..64](%x: float32[2,n]) -> (%y) {
      %c = constant [1.5] : float32[1]
      %y = add(%x, %c) : float32[2,n]  from "Add_0"
      %v, %i = top_k(%y) {k=1, axis=1, largest=true} : float32[2,1], int64[2,1]
    }

Dimensions are numbers, expressions over the symbols whose ranges stand after the name (`sizes`), or other names: sizes
that only a run can tell. Constants of at most `INLINE_LIMIT` elements print as JSON; larger ones as `#sha256:...`,
whose data `parse_graph` takes from `constants`, or in full (base64) with `print_graph(..., full=True)`. A node whose
name differs from its first output's prints it as `node "name"`. Attribute values are JSON, an expression in them
`{"size": "n + 1"}`; a nested graph is written inside its attribute, over the same symbols.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .errors import IRError, TextError
from .graph import Graph, Value
from .printing import INLINE_LIMIT, constants_of, digest, fingerprint, print_graph
from .sizes import FAR, Size, Symbol, parse_size, size_of
from .types import AnyRankTensor, Dim, MapType, OptionalType, SequenceType, TensorType, Type, to_numpy_dtype

__all__ = ["INLINE_LIMIT", "constants_of", "digest", "fingerprint", "parse_graph", "print_graph"]


# -- parsing -----------------------------------------------------------------------------------------------------


def parse_graph(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Parse a graph. Raises TextError with line and column where it does not parse."""
    parser = _Parser(text, constants or {})
    graph = parser.graph({})
    parser.skip()
    if parser.at < len(text):
        parser.fail("text goes on after the graph")
    return graph


_TOKEN = re.compile(
    r'\s*(?://[^\n]*\s*)*(->|"(?:[^"\\]|\\.)*"|#sha256:[0-9a-f]+|base64:[A-Za-z0-9+/=]*|[%@]?[\w.\-]+|[%@]|.)', re.S
)
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")


class _Parser:
    def __init__(self, text: str, constants: Mapping[str, np.ndarray]) -> None:
        self.text, self.constants, self.at = text, constants, 0
        self.symbols: dict[str, Size] = {}

    def fail(self, message: str) -> Any:
        before = self.text[: self.at]
        raise TextError(message, before.count("\n") + 1, self.at - (before.rfind("\n") + 1) + 1)

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match.group(1) if match else ""

    def take(self, expected: str | None = None) -> str:
        match = _TOKEN.match(self.text, self.at)
        token = match.group(1) if match else ""
        if not match or (expected is not None and token != expected):
            self.skip()
            self.fail(f"expected {expected or 'more text'!r}, found {token or 'the end'!r}")
        assert match is not None
        self.at = match.end()
        return token

    def json(self) -> Any:
        self.skip()
        try:
            value, end = json.JSONDecoder().raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.fail(f"not a JSON value: {error.msg}")
        self.at = end
        return self.plain(value)

    def ref(self) -> str:
        token = self.take()
        if token == "%" and self.peek().startswith('"'):
            return str(json.loads(self.take()))
        if not token.startswith("%"):
            self.fail(f"expected a value such as %x, found {token!r}")
        return token[1:]

    def list_of(self, item: Any, end: str) -> list[Any]:
        items: list[Any] = []
        while self.peek() != end:
            items.append(item())
            if self.peek() != ",":
                break
            self.take(",")
        self.take(end)
        return items

    def type(self) -> Type:
        head = self.take()
        if head in ("seq", "optional"):
            self.take("<")
            inner = None if self.peek() == ">" else self.type()
            self.take(">")
            if head == "seq":
                return SequenceType(inner) if inner is not None else self.fail("a sequence needs an element type")
            return OptionalType(inner)
        if head == "map":
            self.take("<")
            key = self.take()
            self.take(",")
            value = self.take()
            self.take(">")
            return MapType(key, value)
        self.take("[")
        if self.peek() == "*":
            self.take("*")
            self.take("]")
            return AnyRankTensor(head)
        dims = self.list_of(self.dimension, "]")
        try:
            return TensorType(head, tuple(self.size(d) for d in dims))
        except IRError as error:
            return self.fail(str(error))

    def dimension(self) -> str:
        """Consume and return a dimension, up to the comma or bracket after it."""
        self.skip()
        start, depth = self.at, 0
        while self.at < len(self.text) and (depth or self.text[self.at] not in ",]\n"):
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.at += 1
        return self.text[start : self.at].strip()

    def size(self, text: str) -> Dim:
        if text.isdigit():
            return int(text)
        names = re.findall(r"[^\W\d]\w*", text)
        known = [name for name in names if name in self.symbols or name in ("max", "min")]
        return parse_size(text, self.symbols, as_written=True) if known and len(known) == len(names) else text

    def plain(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self.plain(v) for v in value)
        if isinstance(value, dict) and value.keys() == {"size"}:
            return parse_size(value["size"], self.symbols, as_written=True)
        return value

    def ranges(self) -> Iterator[Symbol]:
        """Parse the symbols in brackets."""
        self.take("[")
        while self.peek() != "]":
            name = self.take()
            self.take("=")
            text = self.take()
            range_ = text.removeprefix("any.")
            low, _, high = range_.removeprefix("0.or.").partition("..")
            if not low.isdigit() or not (high.isdigit() or not high):
                self.fail(f"symbol {name} has no range such as 1..64")
            last = int(high) if high else FAR
            yield Symbol(name, int(low), last, range_.startswith("0.or."), not text.startswith("any."))
            if self.peek() == ",":
                self.take(",")
        self.take("]")

    def graph(self, _: dict[str, Value]) -> Graph:
        self.take("graph")
        name = self.take()
        if not name.startswith("@"):
            self.fail("expected @name")
        graph = Graph(name[1:])
        if self.peek() == "[":
            graph.symbols = tuple(self.ranges())
            self.symbols.update((s.name, size_of(s)) for s in graph.symbols)
        values: dict[str, Value] = {}
        self.take("(")

        def parameter() -> None:
            ref = self.ref()
            self.take(":")
            values[ref] = graph.add_input(ref, self.type())

        self.list_of(parameter, ")")
        self.take("->")
        self.take("(")
        outputs = self.list_of(self.ref, ")")
        self.take("{")
        while self.peek() != "}":
            self.statement(graph, values)
        self.take("}")
        graph.outputs = [self.lookup(values, o) for o in outputs]
        return graph

    def lookup(self, values: Mapping[str, Value], ref: str) -> Value:
        if ref not in values:
            self.fail(f"%{ref} is not defined")
        return values[ref]

    def statement(self, graph: Graph, values: dict[str, Value]) -> None:
        names = [self.ref()]
        while self.peek() == ",":
            self.take(",")
            names.append(self.ref())
        self.take("=")
        op = self.take()
        if op == "constant":
            values[names[0]] = self.constant(graph, names[0])
            return
        self.take("(")
        operands = [self.lookup(values, r) for r in self.list_of(self.ref, ")")]
        attrs = self.attributes() if self.peek() == "{" else {}
        self.take(":")
        types = [self.type()]
        while self.peek() == ",":
            self.take(",")
            types.append(self.type())
        name, origins = self.trailer()
        self.add(graph, values, names, op, operands, attrs, types, name, origins)

    def add(
        self,
        graph: Graph,
        values: dict[str, Value],
        names: list[str],
        op: str,
        operands: list[Value],
        attrs: dict[str, Any],
        types: list[Type],
        name: str | None,
        origins: list[str],
    ) -> None:
        from .ops import Kind, kind_of
        from .types import types_compatible

        taken = [n for n in names if n in values]
        if taken:
            self.fail(f"%{taken[0]} is defined twice")
        try:
            stated = types if kind_of(op) in (Kind.HOST, Kind.CONTROL) else None
            node = graph.add(
                op, operands, attrs, origins=origins, types=stated, name=name or names[0], output_names=names
            )
        except IRError as error:
            self.fail(str(error))
        for out, type_ in zip(node.outputs, types, strict=True):
            if not types_compatible(out.type, type_):
                self.fail(f"%{out.name} is written as {type_}, its type rule gives {out.type}")
            out.type = type_
        values.update(zip(names, node.outputs, strict=True))

    def trailer(self) -> tuple[str | None, list[str]]:
        name, origins = None, []
        if self.peek() == "node":
            self.take()
            name = str(self.json())
        if self.peek() == "from":
            self.take()
            origins.append(str(self.json()))
            while self.peek() == ",":
                self.take(",")
                origins.append(str(self.json()))
        return name, origins

    def attributes(self) -> dict[str, Any]:
        self.take("{")
        attrs: dict[str, Any] = {}

        def item() -> None:
            key = self.take()
            self.take("=")
            attrs[key] = self.attribute()

        self.list_of(item, "}")
        return attrs

    def attribute(self) -> Any:
        if self.peek() == "graph":
            return self.graph({})
        if self.peek() == "array":
            self.take()
            self.take("(")
            data = self.json()
            self.take(":")
            array = self.array(data, self.type())
            self.take(")")
            return array
        return self.json()

    def constant(self, graph: Graph, name: str) -> Value:
        token = self.peek()
        data: Any
        if token.startswith("#sha256:"):
            self.take()
            if token[8:] not in self.constants:
                self.fail(f"the data of constant %{name} ({token}) was not given")
            data = self.constants[token[8:]]
        elif token.startswith("base64:"):
            self.take()
            data = base64.b64decode(token[7:])
        else:
            data = self.json()
        self.take(":")
        return graph.constant(self.array(data, self.type()), name=name)

    def array(self, data: Any, type_: Type) -> np.ndarray:
        if not isinstance(type_, TensorType):
            return self.fail("a constant needs a tensor type")
        dtype = to_numpy_dtype(type_.dtype)
        try:
            if isinstance(data, np.ndarray):
                return data
            if isinstance(data, bytes):
                return np.frombuffer(data, dtype).reshape(type_.static_shape)
            if dtype.kind in "biuO":
                flat = np.array(list(data), dtype)
            else:
                flat = np.array([float(x) for x in data], np.float64).astype(dtype)
            return flat.reshape(type_.static_shape)
        except (ValueError, TypeError, IRError) as error:
            return self.fail(f"data does not fit {type_}: {error}")
