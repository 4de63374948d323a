"""Weights that `vpmaddubsw` may multiply: two neighbours, times any bytes, sum to what 16 bits hold."""

import math
import weakref

import numpy as np

from tilestitch.compiler.ir import Node

MOST_OF_A_PAIR = (2**15 - 1) // 255
COLUMNS_AT_ONCE = 1024
_LARGEST: dict[tuple[int, str, bool], int] = {}


def small_pairs(node: Node) -> bool:
    """Return whether the right operand of a matmul or convolution is constant int8, and such weights."""
    return largest_pair(node) <= MOST_OF_A_PAIR


def largest_pair(node: Node) -> float:
    """Return the largest magnitude of a sum of neighbours of one sign along the reduction; infinity for other operands
    than constant int8.
    """
    data = node.inputs[1].data if node.op in ("matmul", "conv") else None
    if data is None or data.dtype != np.int8:
        return math.inf
    key = id(data), node.op, bool(node.attrs.get("trans_b") or node.attrs.get("layout") == "NCX")
    if key not in _LARGEST:
        _LARGEST[key] = _largest(node, data)
        weakref.finalize(data, _LARGEST.pop, key)
    return _LARGEST[key]


def _largest(node: Node, data: np.ndarray) -> int:
    apart, found = 2, 0
    if node.op == "conv":
        if node.attrs["layout"] == "NCX":
            data = np.moveaxis(data, (1, 0), (-2, -1))
        *outer, taps, channels, columns = data.shape
        data = data.reshape(*outer, taps * channels, columns)
        apart -= channels % 2  # groups may have channels of two taps, and begin at any
    elif node.attrs.get("trans_b"):
        data = data.swapaxes(-1, -2)
    for start in range(0, data.shape[-1], COLUMNS_AT_ONCE):
        some = data[..., start : start + COLUMNS_AT_ONCE].astype(np.int16)
        some = np.pad(some, [(0, 0)] * (some.ndim - 2) + [(0, 1), (0, 0)])
        for of_one_sign in (np.maximum(some, 0), np.minimum(some, 0)):
            sums = of_one_sign[..., :-1:apart, :] + of_one_sign[..., 1::apart, :]
            found = max(found, int(abs(sums).max(initial=0)))
    return found
