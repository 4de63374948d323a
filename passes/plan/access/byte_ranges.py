"""Slices that are one range of bytes of a group's input: kernels may be given the address where the range begins."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tilestitch.compiler.ir import Node
from tilestitch.compiler.ir.sizes import Size, divisor_of
from tilestitch.compiler.ir.types import TensorType, storage_bytes
from tilestitch.passes.plan.group import Group, GroupKind
from tilestitch.runtime.launch_check import ARGUMENT_ALIGNMENT

TEMPLATES = (GroupKind.INJECTIVE, GroupKind.ROWWISE, GroupKind.CONTRACTION)
"""Kinds of groups that read operands element by element, so that the schedule does not depend on what a slice is taken
of. The operands of a contraction itself are read in other ways: slices on the way to them do not count.
"""


def byte_ranges(group: Group, nodes: Sequence[Node]) -> dict[Node, tuple[Size, Size]]:
    """Return the slices among the group's nodes that are a byte range of an input: the offset and length of each."""
    if any(part.kind not in TEMPLATES for part in group.parts or (group,)):
        return {}
    made = {value for node in nodes for value in node.outputs}
    slices = [node for node in nodes if node.op == "slice" and node.inputs[0] not in made]
    multiplied = _before_anchors(group, nodes) if slices else ()
    found = {node: _range(node) for node in slices if node not in multiplied}
    return {node: place for node, place in found.items() if place is not None}


def _before_anchors(group: Group, nodes: Collection[Node]) -> set[Node]:
    """Return the nodes that the operands of a group's contractions depend on."""
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
    """Return the byte range that a slice reads; None unless it is aligned, contiguous and less than the whole value."""
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
    """Return whether a slice is contiguous: one element of the first axes, steps of 1 along the next, all of the
    others.
    """
    axes = list(zip(source.sizes, attrs["sizes"], attrs["steps"], strict=True))
    while axes and axes[0][1] == 1:
        axes.pop(0)
    return not axes or (axes[0][2] == 1 and all(size == extent and step == 1 for extent, size, step in axes[1:]))
