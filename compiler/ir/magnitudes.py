"""What the elements of a value do not exceed in magnitude, where that follows from the integers that they stem from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .graph import Value

LARGEST = 1e37
"""Of float32, with room for a few sums."""
DEEPEST = 32
"""Operators through which magnitudes are followed."""
MOST_READ = 1 << 20
"""Elements of a constant that are looked at."""
COUNTED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def magnitude(value: Value) -> float:
    """What no element exceeds in magnitude; infinity if that, or whether there is a NaN, is not known."""
    return _magnitude(value, DEEPEST, {})


def _magnitude(value: Value, depth: int, known: dict[Value, float]) -> float:
    found = known.get(value)
    if found is None:
        found = known[value] = _computed(value, depth, known)
    return found


def _computed(value: Value, depth: int, known: dict[Value, float]) -> float:
    if value.dtype not in (*COUNTED, "float32"):
        return float("inf")
    if value.data is not None:
        if value.data.size > MOST_READ:
            return _most(value.dtype)
        wide = np.abs(value.data.astype(np.float64))
        return float(wide.max()) if wide.size and np.isfinite(wide).all() else float("inf")
    node, most = value.producer, _most(value.dtype)
    if node is None or depth == 0 or node.op not in _MAGNITUDES or value.dtype.startswith("uint"):
        return most  # what is below 0 wraps to a large unsigned number
    found = _MAGNITUDES[node.op](*(_magnitude(x, depth - 1, known) for x in node.inputs))
    return found if found < min(LARGEST, most) else most


def _most(dtype: str) -> float:
    """What a dtype holds, whatever its numbers stem from."""
    if dtype not in COUNTED:
        return float("inf")
    info = np.iinfo(dtype)
    return float(max(-int(info.min), int(info.max)))


_MAGNITUDES: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a + b, "maximum": max, "minimum": max,
    "mul": lambda a, b: a * b if max(a, b) < float("inf") else float("inf"),
    "round": lambda a: a + 1, "neg": float, "abs": float, "cast": float,
    "reshape": float, "transpose": float, "broadcast_to": float,
}  # fmt: skip
