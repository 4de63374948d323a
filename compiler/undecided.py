"""Names the ONNX node and the value whose size prevents compiling a model for all sizes."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.errors import UndecidedError
from tilestitch.compiler.ir.sizes import is_open

from .errors import OpenSizeError


@contextmanager
def naming_values(graphs: Sequence[Graph]) -> Iterator[None]:
    """Turn UndecidedError about sizes of these graphs into an OpenSizeError that names a value with such a size."""
    try:
        yield
    except UndecidedError as error:
        raise OpenSizeError(_described(error, graphs)) from error


def _described(error: UndecidedError, graphs: Sequence[Graph]) -> str:
    names = dict.fromkeys(re.findall(r"[^\W\d]\w*", error.claim))
    symbols = [s.name for graph in graphs for s in graph.symbols if s.name in names]
    ranges = " ".join(f"--dim {name}=LOW..HIGH" for name in dict.fromkeys(symbols))
    remedy = f"compile for fixed sizes (--shape) or narrower ranges ({ranges or '--dim NAME=LOW..HIGH'})"
    value = _nearest(error.claim, [value for graph in graphs for value in graph.values()])
    if value is None:
        return f"{error}; {remedy}"
    nodes = ", ".join(value.producer.origins) if value.producer is not None else ""
    whose = f"ONNX node {nodes}" if nodes else "the model"
    return f"{error}; %{value.name} ({value.type}) of {whose} has sizes like that; {remedy}"


def _nearest(claim: str, values: Sequence[Value]) -> Value | None:
    """Return the first value with the longest size that occurs in a claim."""
    longest, nearest = 0, None
    for value in values:
        for size in value.type.shape if isinstance(value.type, TensorType) else ():
            text = str(size)
            if is_open(size) and len(text) > longest and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", claim):
                longest, nearest = len(text), value
    return nearest
