"""Groups of nodes that become kernels or run on the host, and how values are passed inside a kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tilestitch.passes.errors import PlanError
from tilestitch.runtime.jsonfields import Fields, sequence, string

from .cases import Cases
from .cpu.schedules import CpuAttentionSchedule, CpuBlockGemmSchedule, DotSchedule
from .schedules import Schedule, schedule_from_json, schedule_to_json


class GroupKind(str, Enum):
    """The code generation template that a group needs."""

    INJECTIVE = "injective"
    ROWWISE = "rowwise"
    CONTRACTION = "contraction"
    ATTENTION = "attention"
    OPAQUE = "opaque"
    STITCHED = "stitched"


SCHEMES = ("inline", "duplicate", "row", "warp", "block", "global", "prologue", "epilogue", "online", "packing",
           "band", "tile")  # fmt: skip
"""How a value is passed from its producer to a reader in the same group.

inline: recomputed or kept in a register at the reader's index; duplicate: likewise, and the producer belongs to another
group too; row: the reader needs the whole row, which is kept in a buffer of the task; warp, block: the same on a GPU,
where the threads of a row exchange it through registers or shared memory (block: also between kernels of each of which
a block computes a slab, through global memory where shared memory does not suffice); global: it goes through global
memory, after a barrier of the whole grid; prologue: computed as the anchor loads its operand; epilogue: computed on the
anchor's result before it is stored; online: scores and weights of attention, of which a task holds one tile at a time;
packing: neither reads the other, both are computed side by side in one launch; band: through global memory, read by the
last block to store part of a band of rows; tile: through global memory, read by tiles that wait for those they depend
on.
"""

TIES = ("barrier", "band", "tickets", "launches", "block")
"""What separates the stages of a stitched group: a grid barrier; nothing, as the blocks that store a band of rows
continue with it; nothing, as blocks draw tiles, or have launches of their own, whose tiles wait for tiles of earlier
stages; or a block barrier, as each block computes a slab of all stages.
"""


@dataclass(frozen=True)
class Stitch:
    """Within a group, the node `consumer` reads the node `producer` by `scheme`, as chosen by the fusion rule `rule`.

    With packing nothing is read: the two nodes represent the parts that they belong to.
    """

    producer: str
    consumer: str
    scheme: str
    rule: str

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise PlanError(
                f"stitch {self.producer} -> {self.consumer}: unknown scheme {self.scheme!r}, not {', '.join(SCHEMES)}"
            )

    def to_json(self) -> list[str]:
        return [self.producer, self.consumer, self.scheme, self.rule]

    @staticmethod
    def from_json(data: Any, where: str = "stitch") -> Stitch:
        parts = sequence(data, where, string)
        if len(parts) != 4:
            raise PlanError(f"{where} has {len(parts)} entries, not producer, consumer, scheme, rule")
        return Stitch(*parts)


@dataclass(frozen=True)
class Group:
    """One kernel (or a few launches): `tilestitch.passes.plan` says what each kind promises.

    schedule: how it is mapped to threads; None before scheduling, and for a group without elements. cases: the
    schedules for intervals of sizes, of which `schedule` is the one at typical sizes; None: one schedule for all sizes.
    floats: values that it, or its parts, compute from the rounded floats rather than from the integers between
    (`kept_floats`), where those are not in memory.
    """

    name: str
    kind: GroupKind
    nodes: tuple[str, ...]
    anchor: str | None
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    origins: tuple[str, ...] = ()
    stitches: tuple[Stitch, ...] = ()
    stages: tuple[tuple[Group, ...], ...] = ()
    tie: str = "barrier"
    schedule: Schedule | None = None
    cases: Cases | None = None
    floats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"group {self.name}"
        if not self.nodes or not self.outputs:
            raise PlanError(f"{where} has no {'outputs' if self.nodes else 'nodes'}")
        for label in ("nodes", "inputs", "constants", "outputs", "floats"):
            names = getattr(self, label)
            if len(set(names)) != len(names):
                raise PlanError(f"{where} names one of its {label} twice: {', '.join(names)}")
        if (self.anchor is None) != (self.kind in (GroupKind.INJECTIVE, GroupKind.STITCHED)):
            raise PlanError(
                f"{where} is {self.kind.value}, and {'has no' if self.anchor is None else 'must not have an'} anchor"
            )
        if self.anchor is not None and self.anchor not in self.nodes:
            raise PlanError(f"{where}: its anchor {self.anchor} is none of its nodes")
        strangers = {n for s in self.stitches for n in (s.producer, s.consumer)} - set(self.nodes)
        if strangers:
            raise PlanError(f"{where} has stitches of foreign nodes: {', '.join(sorted(strangers))}")
        self._check_stages(where)

    def _check_stages(self, where: str) -> None:
        if (self.kind is GroupKind.STITCHED) != (len(self.parts) > 1):
            raise PlanError(f"{where} is {self.kind.value} and has {len(self.parts)} parts")
        if not all(self.stages) or any(part.stages for part in self.parts):
            raise PlanError(f"{where} has an empty stage, or a part with parts of its own")
        if self.stages and {n for part in self.parts for n in part.nodes} != set(self.nodes):
            raise PlanError(f"{where} has other nodes than its parts")
        if len({part.name for part in self.parts}) != len(self.parts):
            raise PlanError(f"{where} has two parts of one name")
        if self.tie not in TIES:
            raise PlanError(f"{where} has stages tied by {self.tie!r}, not {', '.join(TIES)}")
        if self.tie == "band" and [len(stage) for stage in self.stages] != [1, 1]:
            raise PlanError(f"{where} is tied by bands, which takes two stages of one part each")
        if self.tie == "block" and any(len(stage) != 1 for stage in self.stages):
            raise PlanError(f"{where} is tied by blocks, which takes stages of one part each")

    @property
    def parts(self) -> tuple[Group, ...]:
        """The parts of all stages, in order; empty unless it is a stitched group."""
        return tuple(part for stage in self.stages for part in stage)

    @property
    def by_case(self) -> tuple[Group, ...]:
        """The group with the schedule of each of its cases; just the group if it has none."""
        if self.cases is None:
            return (self,)
        return tuple(replace(self, schedule=case.schedule, cases=None) for case in self.cases.cases)

    @property
    def instructions(self) -> frozenset[str]:
        """The names of the integer instructions that its kernels need."""
        schedules = [part.schedule for part in (*self.by_case, *self.parts)]
        inside = [
            each for one in schedules if isinstance(one, CpuAttentionSchedule) for each in (one.scores, one.weighed)
        ]
        return frozenset(each.dot for each in (*schedules, *inside) if isinstance(each, DotSchedule))

    @property
    def looks_up(self) -> bool:
        """Whether its kernels need an instruction that looks up floats."""
        schedules = [part.schedule for part in (*self.by_case, *self.parts)]
        return any(isinstance(each, CpuBlockGemmSchedule) and each.look_up for each in schedules)

    @property
    def schemes(self) -> tuple[str, ...]:
        """The composition schemes in use, without duplicates."""
        return tuple(dict.fromkeys(s.scheme for s in self.stitches))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "kind": self.kind.value, "anchor": self.anchor, "nodes": list(self.nodes),
            "inputs": list(self.inputs), "constants": list(self.constants), "outputs": list(self.outputs),
            "origins": list(self.origins),
            "stitches": [s.to_json() for s in self.stitches],
            "stages": [[part.to_json() for part in stage] for stage in self.stages], "tie": self.tie,
            "schedule": None if self.schedule is None else schedule_to_json(self.schedule),
            **({} if self.cases is None else {"cases": self.cases.to_json()}),
            **({"floats": list(self.floats)} if self.floats else {}),
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str = "group") -> Group:
        fields = Fields({"floats": [], **data} if isinstance(data, dict) else data, where)
        anchor, schedule, name = fields.take("anchor"), fields.take("schedule"), fields.string("name")
        where = fields.where = f"{where} ({name})"
        group = Group(
            name=name,
            kind=GroupKind(fields.one_of("kind", frozenset(k.value for k in GroupKind))),
            nodes=fields.strings("nodes"),
            anchor=None if anchor is None else string(anchor, f"{where}.anchor"),
            inputs=fields.strings("inputs"),
            constants=fields.strings("constants"),
            outputs=fields.strings("outputs"),
            origins=fields.strings("origins"),
            stitches=fields.sequence("stitches", Stitch.from_json),
            stages=fields.sequence("stages", lambda stage, at: sequence(stage, at, Group.from_json)),
            tie=fields.string("tie"),
            schedule=None if schedule is None else schedule_from_json(schedule, f"{where}.schedule"),
            cases=fields.optional("cases", Cases.from_json),
            floats=fields.strings("floats"),
        )
        fields.done()
        return group


@dataclass(frozen=True)
class HostGroup:
    """A node that numpy or the runtime's control steps execute between segments; the group has the node's name."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origins: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "origins": list(self.origins),
        }

    @staticmethod
    def from_json(data: Any, where: str = "host group") -> HostGroup:
        fields = Fields(data, where)
        group = HostGroup(
            fields.string("name"), fields.strings("inputs"), fields.strings("outputs"), fields.strings("origins")
        )
        fields.done()
        return group
