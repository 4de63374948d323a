"""Slices that are one range of bytes of what a group reads: kernels may be given the address where one begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tilestitch.compiler.ir import Node
from tilestitch.compiler.ir.sizes import Size, divisor_of
from tilestitch.compiler.ir.types import TensorType, storage_bytes
from tilestitch.passes.plan.group import Group, GroupKind
from tilestitch.runtime.launch_check import ARGUMENT_ALIGNMENT

TEMPLATES = (GroupKind.INJECTIVE, GroupKind.ROWWISE, GroupKind.CONTRACTION)
"""Those that read operands element by element, so that it makes no difference to the schedule what a slice is of. What
a contraction multiplies is read in other ways: slices of that are none.
"""


def byte_ranges(group: Group, nodes: Sequence[Node]) -> dict[Node, tuple[Size, Size]]:
    """Return the slices among the group's nodes that are a range of what it reads: where each begins, and how long it
    is.
    """
    if any(part.kind not in TEMPLATES for part in group.parts or (group,)):
        return {}
    made = {value for node in nodes for value in node.outputs}
    slices = [node for node in nodes if node.op == "slice" and node.inputs[0] not in made]
    multiplied = _before_anchors(group, nodes) if slices else ()
    found = {node: _range(node) for node in slices if node not in multiplied}
    return {node: place for node, place in found.items() if place is not None}


def _before_anchors(group: Group, nodes: Collection[Node]) -> set[Node]:
    """Return what the operands of a group's contractions are computed by."""
    inside, before = set(nodes), set[Node]()
    anchors = {part.anchor for part in group.parts or (group,) if part.kind is GroupKind.CONTRACTION}
    stack = [node for node in nodes if node.name in anchors]
    while stack:
        producers = {value.producer for value in stack.pop().inputs if value.producer is not None}
        found = (producers & inside) - before
        before |= found
        stack += found
    return before


def _range(node: Node) -> tuple[Size, Size] | None:
    """Return what a slice reads, if that is an aligned range of bytes in memory, and not all of a value."""
    source, result = node.inputs[0].tensor_type, node.output.tensor_type
    if not source.is_sized or node.inputs[0].is_constant or source.shape == result.shape or result.num_elements == 0:
        return None
    if not _contiguous(source, node.attrs):
        return None
    offset: Size = 0
    stride: Size = storage_bytes(source.dtype)
    for start, extent in zip(reversed(node.attrs["starts"]), reversed(source.sizes), strict=True):
        offset, stride = offset + start * stride, stride * extent
    return None if divisor_of(offset) % ARGUMENT_ALIGNMENT else (offset, result.nbytes)


def _contiguous(source: TensorType, attrs: Mapping[str, Any]) -> bool:
    """One element of the first axes, steps of 1 along the next one, and all of those after it."""
    axes = list(zip(source.sizes, attrs["sizes"], attrs["steps"], strict=True))
    while axes and axes[0][1] == 1:
        axes.pop(0)
    return not axes or (axes[0][2] == 1 and all(size == extent and step == 1 for extent, size, step in axes[1:]))
