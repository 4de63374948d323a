"""Structural equality of groups: layers of a model are often the same kernel on other values. They get the same
schedules, and have the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.access.byte_ranges import byte_ranges
from tilestitch.passes.plan.cpu.dots import small_pairs
from tilestitch.passes.plan.index_checks import pending_checks
from tilestitch.passes.plan.target import TargetInfo

MOST_KNOWN = 4096
MOST_CONSTANT_BYTES = 1024
"""Most bytes of constants whose elements are compared: integers, such as indices, and uniform constants, such as a
factor, or a mask that hides nothing. No schedule depends on other float or byte constants. Larger ones are not
compared; larger integer constants make a group unique.
"""
PLAIN = (str, int, float, bool, type(None))

T = TypeVar("T")


@dataclass(frozen=True)
class Structure:
    """key: equal for groups whose facts are equal except for names. names: of values and parts, in the order of the
    key.

    parts: the number of trailing names that are those of parts, which prefix the names of their temporaries.
    """

    key: Hashable
    names: tuple[str, ...]
    parts: int

    def renaming(self, other: Structure) -> Callable[[str], str]:
        """Return a mapping from the names of this structure to those of `other`, which has the same key."""
        same = dict(zip(self.names, other.names, strict=True))
        prefixes = [(f"{name}.", f"{same[name]}.") for name in self.names[-self.parts :]]

        def renamed(name: str) -> str:
            if name in same:
                return same[name]
            for old, new in prefixes:
                if name.startswith(old):
                    return new + name.removeprefix(old)
            return name

        return renamed


class Known(Generic[T]):
    """A cache of results for recently seen structures; it keeps no graph alive."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[Structure, T, LatencyModel | None]] = {}

    def of(self, structure: Structure, model: LatencyModel | None, compute: Callable[[], T]) -> tuple[Structure, T]:
        """Return the structure and result of `compute()`, possibly cached from an equal structure with other names.

        model: the model that `compute` uses. Models need not be hashable: an entry keeps its model alive, so that its
        identity stays unique.
        """
        key = structure.key, id(model)
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= MOST_KNOWN:
                self._found.clear()
            found = self._found[key] = structure, compute(), model
        return found[0], found[1]


def structure_of(nodes: Mapping[str, Node], group: Group, target: TargetInfo) -> Structure | None:
    """Return the structure of a group; None if something in it cannot be compared."""
    numbers: dict[Value, int] = {}
    parts = group.parts if group.stages else (group,)
    members = [[nodes[name] for name in part.nodes] for part in parts]
    shifts = _shifts(group, list(chain.from_iterable(members)))
    try:
        keys = [_part(*part, numbers, shifts) for part in zip(parts, members, strict=True)]
    except _Incomparable:
        return None
    by_name = {value.name: number for value, number in numbers.items()}
    names = (*by_name, *(part.name for part in parts))
    if len(by_name) < len(numbers) or len(set(names)) < len(names):
        return None
    shape = (group.tie, group.schedule, tuple(map(len, group.stages)), _numbered(group.outputs, by_name))
    return Structure((target, shape, tuple(keys)), names, len(parts))


class _Incomparable(Exception):
    """Raised for a node or constant that cannot be compared."""


def _shifts(group: Group, nodes: Sequence[Node]) -> dict[Node, Size]:
    """Return the offsets of slices that are byte ranges of one value, relative to the first of them: the absolute
    position is irrelevant, as for the steps of an unrolled recurrence.
    """
    first: dict[Value, Size] = {}
    places = {node: begin for node, (begin, _) in byte_ranges(group, nodes).items()}
    return {node: begin - first.setdefault(node.inputs[0], begin) for node, begin in places.items()}


def _part(part: Group, nodes: Sequence[Node], numbers: dict[Value, int], shifts: Mapping[Node, Size]) -> Hashable:
    described = tuple(_node(node, numbers, shifts.get(node)) for node in nodes)
    # The producer of indices outside the group may prove that they are in range: then no launch checks them.
    looked_at = tuple((nodes.index(node), len(checks)) for node, checks in pending_checks(nodes).items())
    anchor = part.nodes.index(part.anchor) if part.anchor is not None else None
    by_name = {value.name: number for value, number in numbers.items()}
    operands = tuple(_numbered(names, by_name) for names in (part.inputs, part.constants, part.outputs))
    return part.kind, part.schedule, anchor, operands, described, looked_at


def _numbered(names: Sequence[str], by_name: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(by_name[name] for name in names if name in by_name)


def _node(node: Node, numbers: dict[Value, int], shift: Size | None) -> Hashable:
    operands = tuple(_value(value, numbers) for value in (*node.inputs, *node.outputs))
    if small_pairs(node):
        operands += ("small pairs",)
    attrs = {**node.attrs, "starts": (shift,)} if shift is not None else node.attrs
    return node.op, len(node.inputs), tuple(sorted((k, _plain(v)) for k, v in attrs.items())), operands


def _plain(value: object) -> Hashable:
    if isinstance(value, PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, (tuple, list)) and all(isinstance(v, PLAIN) or is_open(v) for v in value):
        return type(value).__name__, *(v if is_open(v) else repr(v) for v in value)
    if is_open(value):
        return "size", value
    raise _Incomparable


def _value(value: Value, numbers: dict[Value, int]) -> Hashable:
    if value in numbers:
        return numbers[value]
    numbers[value] = len(numbers)
    return value.dtype, tuple(value.shape), *_constant(value)


def _constant(value: Value) -> Iterator[Hashable]:
    data = value.data
    yield value.is_constant
    if data is None:
        return
    whole_numbers = data.dtype.kind in "iub" and data.itemsize > 1
    if data.nbytes > MOST_CONSTANT_BYTES:
        if whole_numbers:
            raise _Incomparable
    elif whole_numbers or len(set(data.ravel().tolist())) == 1:
        yield data.tobytes()
