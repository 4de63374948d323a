"""Whether an instruction for groups of 8-bit integers or half floats computes a contraction as scheduled, and which
weights `vpmaddubsw` may multiply: those of which two neighbours, times any bytes, sum to what 16 bits hold.
"""

import math
import weakref
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from tilestitch.compiler.ir import Node

from .isa import ALL_DOTS, TILE_DOTS, Dot, Multiplied
from .schedules import CpuTileConvSchedule, CpuTileGemmSchedule, DotSchedule

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


class Grouped(Multiplied, Protocol):
    """The shape of a contraction whose left operand may be read in place."""

    def reads_in_place(self, dot: Dot) -> bool: ...


def dot_reasons(shape: Grouped, schedule: DotSchedule, staged: bool) -> Iterator[str]:
    """Yield why there is no such kernel. staged: the left operand is copied first."""
    tiles = isinstance(schedule, CpuTileGemmSchedule | CpuTileConvSchedule)
    known = [name for name in ALL_DOTS if (name in TILE_DOTS) == tiles]
    dot = ALL_DOTS.get(schedule.dot)
    if dot is None or dot.name not in known:
        yield f"no instruction {schedule.dot!r} multiplies so; known are {', '.join(known)}"
        return
    if not shape.multiplied_by(dot):
        halves = f"{dot.left} by {dot.right}, which is constant where it convolves,"
        operands = "uint8 by constant int8" if dot.sums == "int32" else halves
        pairs = (
            f", of which pairs along the reduction sum to at most {MOST_OF_A_PAIR} of either sign," if dot.pairs else ""
        )
        yield f"{dot.name} multiplies {operands}{pairs} into {dot.sums}"
    if schedule.lanes not in dot.lanes:
        yield f"{dot.name} has {', '.join(map(str, dot.lanes))} sums, not {schedule.lanes}"
    if not staged and not shape.reads_in_place(dot):
        yield f"{dot.name} reads whole groups of {dot.group}; rows without them are copied first"
    if schedule.widen_right:
        yield f"{dot.name} reads panels as they are packed: there are none to widen"
