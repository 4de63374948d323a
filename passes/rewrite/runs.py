"""Integers in arithmetic sequence: offsets of rows, as shape arithmetic computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilestitch.compiler.ir import Node, TensorType, Value
from tilestitch.compiler.ir.sizes import Size


@dataclass(frozen=True)
class Run:
    """The sequence `first + slope * i`; the slope of a single integer is 0."""

    first: Size
    slope: int = 0

    def at(self, index: Run) -> Run:
        """Return the elements at positions that form an arithmetic sequence themselves."""
        return Run(self.first + self.slope * index.first, self.slope * index.slope)

    def sum(self, other: Run, sign: int = 1) -> Run:
        return Run(self.first + sign * other.first, self.slope + sign * other.slope)

    def product(self, other: Run) -> Run | None:
        """Return the product if one factor is a fixed number; else None."""
        if self.slope == other.slope == 0:
            return Run(self.first * other.first)
        line, factor = (self, other) if self.slope else (other, self)
        number = factor.first
        return Run(line.first * number, line.slope * number) if not factor.slope and isinstance(number, int) else None


def run_of(value: Value) -> Run | None:
    """Return the elements of an integer tensor with at most one dimension as a sequence; None if that is not known.

    Only values computed by the primitives of shape arithmetic are known.
    """
    if not isinstance(value.type, TensorType) or value.dtype not in ("int32", "int64") or len(value.shape) > 1:
        return None
    run = _of_numbers(value.data.reshape(-1).tolist()) if value.data is not None else _run_made_by(value.producer)
    single = all(size == 1 for size in value.shape)  # broadcasts: the step that it was taken from is irrelevant
    return Run(run.first) if run is not None and single else run


def _run_made_by(node: Node | None) -> Run | None:
    if node is None:
        return None
    match node.op:
        case "iota":
            return Run(0, 1)
        case "sizes":
            return _of_numbers(node.attrs["values"])
        case "cast" | "reshape":
            return run_of(node.inputs[0])
        case "slice":
            (start,), (step,) = node.attrs["starts"], node.attrs["steps"]
            whole = run_of(node.inputs[0])
            return None if whole is None else whole.at(Run(start, step))
        case "concat":
            return _joined(node.inputs)
    return combined(node.op, [run_of(v) for v in node.inputs])


def combined(op: str, operands: Sequence[Run | None]) -> Run | None:
    """Return the sum, difference or multiple of two sequences; None if it is none."""
    a, b = operands if len(operands) == 2 else (None, None)
    if a is None or b is None:
        return None
    if op in ("add", "sub"):
        return a.sum(b, 1 if op == "add" else -1)
    return a.product(b) if op == "mul" else None


def _of_numbers(numbers: Sequence[Size]) -> Run | None:
    if len(numbers) < 2:
        return Run(numbers[0]) if numbers else None
    slope = numbers[1] - numbers[0]
    even = all(b - a == slope for a, b in pairwise(numbers))
    return Run(numbers[0], slope) if even and isinstance(slope, int) else None


def _joined(parts: Sequence[Value]) -> Run | None:
    """Return the concatenation of parts as a sequence, if each continues the previous ones; else None."""
    whole: Run | None = None
    count: Size = 0
    for part in parts:
        run = run_of(part)
        if run is None:
            return None
        whole = run if whole is None else _continued(whole, count, run, part.shape[0])
        if whole is None:
            return None
        count = count + part.shape[0]
    return whole


def _continued(whole: Run, count: Size, run: Run, length: Size) -> Run | None:
    slope = run.first - whole.first if count == 1 else whole.slope
    fits = run.first == whole.first + slope * count and (length == 1 or run.slope == slope)
    return Run(whole.first, slope) if isinstance(slope, int) and fits else None
