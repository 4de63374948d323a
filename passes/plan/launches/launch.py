"""Kernel launches and their ordering: the graph that the runtime builds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tilestitch.compiler.ir.sizes import Size, Symbol, if_any, is_empty_without, symbols_of
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan.open_sizes import open_size
from tilestitch.passes.plan.own_kernels import Dim3, Temporary
from tilestitch.passes.plan.view import GroupView
from tilestitch.runtime.jsonfields import Fields, integer, sequence, string

ONE: Dim3 = (1, 1, 1)


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a group: `grid` thread blocks of `block` threads; on a CPU, grid[0] tasks.

    kind: the template, with which the kernel's name begins. reads, writes: the graph's values that it accesses, except
    constants; values that it may write are only in `writes`. temporaries: memory that lives from one launch of the
    group to the next, or through which blocks communicate. counter_bytes: of the launch's own memory, which persists
    between runs. cluster: blocks of a thread block cluster. shared_bytes: dynamic shared memory of a block;
    static_shared_bytes: what its kernel declares, each array rounded up to `SHARED_ALIGNMENT`. cooperative: all blocks
    must be resident together. elastic: it computes the same in fewer blocks. scratch_bytes: on a CPU, workspace per
    thread. beside: on a CPU, its tasks and those of the preceding launch form one list. overlaps: distances back,
    within its group, to the launches whose tiles its blocks wait for themselves, so that it begins when their blocks
    have begun; its last block waits until they have ended. group: the group that it belongs to; "" where that is known.
    """

    kind: str
    grid: Dim3
    block: Dim3 = ONE
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    temporaries: tuple[Temporary, ...] = ()
    counter_bytes: int = 0
    cluster: Dim3 = ONE
    shared_bytes: int = 0
    static_shared_bytes: int = 0
    cooperative: bool = False
    elastic: bool = False
    scratch_bytes: int = 0
    beside: bool = False
    overlaps: tuple[int, ...] = ()
    group: str = ""

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return prod(self.block)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, and always the group, the kind and the grid."""
        data: dict[str, Any] = {"group": self.group, "kind": self.kind, "grid": list(self.grid)}
        for name in ("block", "cluster"):
            if getattr(self, name) != ONE:
                data[name] = list(getattr(self, name))
        for name in ("reads", "writes"):
            data[name] = list(getattr(self, name))
        data.update({name: getattr(self, name) for name in (*_COUNTS, *_FLAGS) if getattr(self, name)})
        if self.overlaps:
            data["overlaps"] = list(self.overlaps)
        if self.temporaries:
            data["temporaries"] = [[each.name, each.nbytes] for each in self.temporaries]
        return data

    @staticmethod
    def from_json(data: Any, where: str = "launch") -> Launch:
        given: dict[str, Any] = {"block": [1, 1, 1], "cluster": [1, 1, 1], "temporaries": [], "overlaps": []}
        given.update(dict.fromkeys(_COUNTS, 0))
        fields = Fields({**given, **dict.fromkeys(_FLAGS, False), **data} if isinstance(data, dict) else data, where)
        launch = Launch(
            kind=fields.string("kind"),
            grid=_extents(fields.take("grid"), f"{where}.grid", open_size),
            block=_extents(fields.take("block"), f"{where}.block"),
            reads=fields.strings("reads"),
            writes=fields.strings("writes"),
            temporaries=fields.sequence("temporaries", _temporary),
            cluster=_extents(fields.take("cluster"), f"{where}.cluster"),
            counter_bytes=fields.integer("counter_bytes"),
            shared_bytes=fields.integer("shared_bytes"),
            static_shared_bytes=fields.integer("static_shared_bytes"),
            cooperative=fields.boolean("cooperative"),
            elastic=fields.boolean("elastic"),
            scratch_bytes=open_size(fields.take("scratch_bytes"), f"{where}.scratch_bytes"),
            beside=fields.boolean("beside"),
            overlaps=sequence(fields.take("overlaps"), f"{where}.overlaps", lambda entry, at: integer(entry, at, 1)),
            group=fields.string("group"),
        )
        fields.done()
        return launch


_COUNTS = ("counter_bytes", "shared_bytes", "static_shared_bytes", "scratch_bytes")
_FLAGS = ("cooperative", "elastic", "beside")


def _extents(data: Any, where: str, size: Callable[[Any, str, int], int] = integer) -> Dim3:
    found = sequence(data, where, lambda entry, at: size(entry, at, 1))
    if len(found) != 3:
        raise PlanError(f"{where} has {len(found)} extents, not 3; write the plan again")
    return found[0], found[1], found[2]


def _temporary(data: Any, where: str) -> Temporary:
    if not (isinstance(data, list) and len(data) == 2 and type(data[1]) is int and data[1] > 0):
        raise PlanError(f"{where} is not [name, nbytes]; write the plan again")
    try:
        return Temporary(string(data[0], where), data[1])
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from None


EDGE_KINDS = ("full", "programmatic")
"""full: the later launch begins when the earlier one has ended, and sees all its writes. programmatic: it begins when
all blocks of the earlier launch have begun, and its blocks wait for the tiles that they read.
"""


@dataclass(frozen=True)
class Edge:
    """The launch number `after` waits for the launch number `before`, both of one segment, as specified by `kind`.

    reason: the value or temporary that causes the edge, and whether it is read after being written ("data") or its
    memory is reused ("memory").
    """

    before: int
    after: int
    kind: str = "full"
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind not in EDGE_KINDS:
            raise PlanError(f"an edge of kind {self.kind!r}, not {', '.join(EDGE_KINDS)}; write the plan again")
        if not 0 <= self.before < self.after:
            raise PlanError(f"an edge from launch {self.before} to {self.after}: edges lead to later launches")

    def to_json(self) -> list[Any]:
        return [self.before, self.after, self.kind, self.reason]

    @staticmethod
    def from_json(data: Any, where: str = "edge") -> Edge:
        if not (isinstance(data, list) and len(data) == 4 and all(type(n) is int for n in data[:2])):
            raise PlanError(f"{where} is not [before, after, kind, reason]; write the plan again")
        return Edge(data[0], data[1], string(data[2], where), string(data[3], where))


HIGHEST_PRIORITY = 5
"""NVIDIA GPUs have six priorities (`cuCtxGetStreamPriorityRange`)."""


@dataclass(frozen=True)
class Lane:
    """The branch and priority of a launch. branch: launches with the same number run in order, within each segment;
    priority: among ready launches, blocks of those with the highest priority start first.
    """

    branch: int
    priority: int = 0

    def __post_init__(self) -> None:
        if self.branch < 0 or not 0 <= self.priority <= HIGHEST_PRIORITY:
            raise PlanError(
                f"a launch in branch {self.branch} with priority {self.priority}: branches are numbered from 0, "
                f"priorities are 0 to {HIGHEST_PRIORITY}; put null in the place of lanes"
            )

    def to_json(self) -> list[int]:
        return [self.branch, self.priority]

    @staticmethod
    def from_json(data: Any, where: str = "lane") -> Lane:
        if not (isinstance(data, list) and len(data) == 2 and all(type(n) is int for n in data)):
            raise PlanError(f"{where} is not [branch, priority]; put null in the place of lanes")
        return Lane(data[0], data[1])


FIRST_LANE = Lane(0)


def if_any_result(view: GroupView) -> Size:
    """Return an expression that is 0 where the group's stored values have no elements, so that nothing is launched, and
    else 1.
    """
    return prod(map(if_any, sorted(needed_for_any(view), key=lambda symbol: symbol.name)))


def needed_for_any(view: GroupView) -> frozenset[Symbol]:
    """Return the symbols that may be 0 and that make the group's stored values empty where they are."""
    stored = [v.tensor_type.num_elements for v in view.stored]
    empty = (s for s in symbols_of(stored) if s.or_empty)
    return frozenset(s for s in empty if all(is_empty_without(count, s.name) for count in stored))
