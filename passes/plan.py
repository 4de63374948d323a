"""StitchPlan: which nodes form one kernel, in which order kernels run, where values live, and why not otherwise.

Plain frozen data, JSON in and out (`to_json` and `from_json` are inverse to each other, `from_json` checks all fields).
A plan names nodes and values of the canonical graph, and carries that graph's fingerprint.

What the kinds of group promise to code generation
--------------------------------------------------
*Element-wise*: an INJECTIVE operator with numpy broadcasting, that is every one but concat, pad, iota, gather,
gather_elements and gather_nd. *Pulled*: a VIEW or INJECTIVE node that does not depend on the group's anchor or
reductions and is not stored; code generation evaluates it as an expression at whatever index its reader asks for.
*Stored*: the value is in `Group.outputs`.

Every group: `nodes` are in topological order, of kind VIEW, INJECTIVE, REDUCTION, CONTRACTION or OPAQUE, and all their
operands and results are static tensors of native dtypes. `inputs` are the non-constant values read from outside,
`constants` the constants read, both without repetition, in order of first use. `outputs` are at least one, all
different. A node may be a member of several groups (each then computes it), but a value is an output of at most one.
A group never depends on its own outputs through the outside. Any dimension may be 0 or 1; shapes may have rank 0.

injective: all nodes are VIEW or INJECTIVE. No anchor. All outputs have the same number of elements, though not always
the same shape.

rowwise: at least one REDUCTION; the first is the `anchor`. There is one iteration shape S and one set of axes A: every
REDUCTION member reads an operand of shape S over exactly the axes A (`axes`, or `axis` of arg_max and arg_min;
`keepdims` may differ). A may be any axes, also none. A *reduced shape* is S with A set to 1, or S without A.
- A node that depends on a REDUCTION member is either *full*: element-wise or broadcast_to, of result shape S;
  or *reduced*: element-wise, or a reshape of a reduced value, of a reduced shape.
  Operands of a reduced node that depend on a reduction have the node's own shape (but for reshape). Operands of a full
  node that depend on a reduction are full, or have the reduced shape with A set to 1, or, where A are the first axes
  of S, the one without A (numpy broadcasting then finds the right row).
- Reshapes and transposes of a full node's value may be stored; in the group only others of them read them.
- A node that does not depend on a REDUCTION member is pulled. If it has shape S it may be stored: it is then full, too.
- Outputs are reductions, reduced nodes, full nodes and such views of these.

contraction: exactly one CONTRACTION, the `anchor`, of result shape T, and no REDUCTION or OPAQUE.
- Prologue: pulled nodes that lead to the anchor's first operand; pulled VIEW nodes that lead to its second operand,
  none of which reads a constant.
- Epilogue: element-wise nodes of result shape exactly T that read the anchor or epilogue nodes, and these in shape T,
  thus at the same index. Their other operands are inputs, constants or pulled nodes, broadcast to T. They may change
  the dtype.
- Gates: slices of the anchor or of an epilogue node of shape T, one step apart, that cut nothing but the last axis,
  into ranges of one width H, each from a multiple of H on, where H divides T's last dimension; let T' be T with H in
  its place. Behind them are element-wise nodes of result shape exactly T', reading gates and each other in shape T'.
  A group with gates is a matmul by a constant matrix; it has no views and stores values of shape T' only. Thus the
  columns j, H + j, 2H + j... of a row are computed together (the cells of LSTM and GRU, gated linear units). GPUs take
  at most 8 ranges.
- Views: a chain of reshape and transpose, the first reading the anchor or an epilogue node, each other one the view
  before it. There is at most one chain, its end is always stored, and nothing else in the group reads it.
- Outputs are the values of the anchor, of epilogue nodes, of gates and of views.

attention: exactly two CONTRACTION nodes, both matmul: the product of queries and keys, and the product of weights and
values, which is the `anchor` and depends on the first. No OPAQUE. Every value between the two holds [heads, queries,
keys] in row-major order (views between them are reshapes), or one element for each of its rows.
- Prologue: pulled nodes that lead to the operand with the queries; pulled VIEW nodes, none of which reads a constant,
  that lead to keys and values.
- Scored: element-wise nodes and reshapes behind the first product; other operands are inputs, constants or pulled.
- Softmax: exactly reduce_max and reduce_sum over the keys, sub, exp, and div (or a product with the quotient), with
  reshapes and casts between them: weights = e / sum(e), e = exp(scores - max(scores)).
- Weighed: nodes behind it that are linear in the weights, and `select(is_nan(w), 0, w)`. A weight is NaN only where its
  whole row is.
- Epilogue and views behind the anchor as for contraction, without gates. Nothing in front of the anchor is stored.

opaque: exactly one OPAQUE node, the `anchor`. Behind window_reduce there may be an epilogue as for contraction, without
views, and the anchor is stored only if needed. All others are alone, and all their results are stored.

stitched: several groups of other kinds, its *parts*, in one kernel. `stages` holds them: the parts of a stage do not
depend on each other and run side by side (packing), each on blocks of its own; between stages the whole grid waits, and
what a stage stores the later ones read from memory (global). Every part keeps the promises of its own kind; of what
the parts store, `outputs` are the values that are needed outside, the others are temporary. A node belongs to one
part, unless it is a copy. No path leads from a part through another group to a part. A CPU has no stages but one, since
a barrier inside a kernel would be what lies between two launches anyway.

Stages are tied by a barrier, or by *bands*: then there are two stages, of a contraction and of a rowwise part, and the
grid does not wait. The blocks of the product count how many of them have stored what they have of a band of rows; the
last one computes the second part's rows of that band. So an element of the second part may depend on the product's
results in its own row only: these have R rows of N elements, N the last dimension of the anchor's result (channels
last, without groups, of a convolution), and lie in memory as the product makes them, behind reshapes at most. Of the
second part, A are the last axes, N is a multiple of the elements of A, and what depends on the product's results has as
many elements as they, element by element at the same place in row-major order, until it is reduced. GPUs only.

`fusion.legality.check_group` checks these conditions, `fusion.roles.roles_of` says which part each node plays.

Aliases: a value in `buffers.aliases` is computed by no group. It is a reshape of its root and has the root's bytes:
whoever reads it reads the root's memory. The root is no alias; a native group writes it, or it is an input of the
graph.

Places: a value in `buffers.places` is written by its group into a part of another value's memory, the *whole*, which no
group computes: concats and views put it together from its parts, each of which lies in one piece of it. Whoever reads
the whole waits for all its parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import fingerprint
from tilestitch.runtime.errors import ArtifactSchemaError
from tilestitch.runtime.jsonfields import Fields, sequence, string

from .errors import PlanError, PlanMismatchError

FORMAT = "tilestitch-plan"
VERSION = 3
ALIGNMENT = 64

Number: TypeAlias = int | float


class GroupKind(str, Enum):
    """The template of code generation that a group needs."""

    INJECTIVE = "injective"
    ROWWISE = "rowwise"
    CONTRACTION = "contraction"
    ATTENTION = "attention"
    OPAQUE = "opaque"
    STITCHED = "stitched"


SCHEMES = ("inline", "duplicate", "row", "warp", "block", "global", "prologue", "epilogue", "online", "packing",
           "band")  # fmt: skip
"""How a value gets from its producer to a reader in the same group.

inline: recomputed or kept in a register at the reader's index; duplicate: likewise, and the producer belongs to another
group too; row: the reader needs the whole row, so it lies in a buffer of the task; warp, block: the same on a GPU,
where the threads of a row exchange it in registers or through shared memory; global: it goes through global memory,
behind a barrier of the whole grid; prologue: computed as the anchor fetches its operand; epilogue: computed on the
anchor's result before it is stored; online: scores and weights of attention, of which a task holds a tile at a time;
packing: the one does not read the other, both are computed side by side in one launch; band: through global memory,
read by the last block that stored some of a band of rows.
"""

TIES = ("barrier", "band")
"""What lies between the stages of a stitched group."""


@dataclass(frozen=True)
class WhyNot:
    """A refusal: `subject` (what was not done), `rule` (who refused), `reason` in words, and the numbers behind it."""

    subject: str
    rule: str
    reason: str
    numbers: Mapping[str, Number] = field(default_factory=dict)

    def __str__(self) -> str:
        figures = ", ".join(f"{k}={v}" for k, v in self.numbers.items())
        return f"{self.subject}: {self.reason}{f' ({figures})' if figures else ''} [{self.rule}]"

    def to_json(self) -> dict[str, Any]:
        return {"subject": self.subject, "rule": self.rule, "reason": self.reason, "numbers": dict(self.numbers)}

    @staticmethod
    def from_json(data: Any, where: str = "refusal") -> WhyNot:
        fields = Fields(data, where)
        numbers = fields.mapping("numbers")
        if not all(isinstance(v, (int, float)) for v in numbers.values()):
            raise PlanError(f"{where}.numbers holds something that is no number")
        why = WhyNot(fields.string("subject"), fields.string("rule"), fields.string("reason"), numbers)
        fields.done()
        return why


@dataclass(frozen=True)
class Stitch:
    """Inside a group the node `consumer` reads the node `producer` by `scheme`, as the fusion rule `rule` wanted.

    By packing it reads nothing: the two stand for the parts that they belong to.
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
    """One kernel (or a few launches): see the module's docstring for what each kind promises."""

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

    def __post_init__(self) -> None:
        where = f"group {self.name}"
        if not self.nodes or not self.outputs:
            raise PlanError(f"{where} has no {'outputs' if self.nodes else 'nodes'}")
        for label in ("nodes", "inputs", "constants", "outputs"):
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
            raise PlanError(f"{where} has stages tied by {self.tie!r}, not {' or '.join(TIES)}")
        if self.tie == "band" and [len(stage) for stage in self.stages] != [1, 1]:
            raise PlanError(f"{where} is tied by bands, which takes two stages of one part each")

    @property
    def parts(self) -> tuple[Group, ...]:
        """The parts of all stages, in order; none but for a stitched group."""
        return tuple(part for stage in self.stages for part in stage)

    @property
    def schemes(self) -> tuple[str, ...]:
        """The composition schemes in use, without repetition."""
        return tuple(dict.fromkeys(s.scheme for s in self.stitches))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "kind": self.kind.value, "anchor": self.anchor, "nodes": list(self.nodes),
            "inputs": list(self.inputs), "constants": list(self.constants), "outputs": list(self.outputs),
            "origins": list(self.origins),
            "stitches": [s.to_json() for s in self.stitches],
            "stages": [[part.to_json() for part in stage] for stage in self.stages], "tie": self.tie,
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str = "group") -> Group:
        fields = Fields(data, where)
        anchor = fields.take("anchor")
        group = Group(
            name=fields.string("name"),
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
        )
        fields.done()
        return group


@dataclass(frozen=True)
class HostGroup:
    """One node that numpy or the runtime's control steps execute between segments; its name is the node's."""

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


@dataclass(frozen=True)
class Segment:
    """A maximal run of native groups (one native call), or of host groups, by name and in launch order."""

    native: bool
    groups: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"native": self.native, "groups": list(self.groups)}

    @staticmethod
    def from_json(data: Any, where: str = "segment") -> Segment:
        fields = Fields(data, where)
        native = fields.take("native")
        if not isinstance(native, bool):
            raise PlanError(f"{where}.native is no boolean")
        segment = Segment(native, fields.strings("groups"))
        fields.done()
        return segment


@dataclass(frozen=True)
class Buffer:
    """A value in the arena: `nbytes` at `offset_bytes`, alive from launch `first` to launch `last`.

    Both launches are included; they are counted over all segments.
    """

    value: str
    offset_bytes: int
    nbytes: int
    first: int
    last: int

    def to_json(self) -> list[Any]:
        return [self.value, self.offset_bytes, self.nbytes, self.first, self.last]

    @staticmethod
    def from_json(data: Any, where: str = "buffer") -> Buffer:
        if not (
            isinstance(data, list)
            and len(data) == 5
            and isinstance(data[0], str)
            and all(type(n) is int and n >= 0 for n in data[1:])
        ):
            raise PlanError(f"{where} is not [value, offset_bytes, nbytes, first, last]")
        return Buffer(*data)


@dataclass(frozen=True)
class Place:
    """A part of the memory of the value `whole`, from `offset_bytes` on."""

    whole: str
    offset_bytes: int


@dataclass(frozen=True)
class BufferPlan:
    """One arena with reuse. Values that are graph outputs, or that a host step reads or writes, are not in it."""

    arena_bytes: int = 0
    buffers: tuple[Buffer, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for b in self.buffers:
            if b.offset_bytes % ALIGNMENT or b.offset_bytes + b.nbytes > self.arena_bytes or b.first > b.last:
                raise PlanError(
                    f"buffer {b.value}: {b.nbytes} bytes at {b.offset_bytes}, launches {b.first} to {b.last}, "
                    f"do not fit an arena of {self.arena_bytes}"
                )
        if len({b.value for b in self.buffers}) != len(self.buffers):
            raise PlanError("a value has two buffers")
        if any(root in self.aliases for root in self.aliases.values()):
            raise PlanError("the root of an alias is an alias itself")
        _check_no_overlap(self.buffers)

    def offset_of(self, value: str) -> int | None:
        """Where `value` lies in the arena, None if it does not."""
        return next((b.offset_bytes for b in self.buffers if b.value == value), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "arena_bytes": self.arena_bytes,
            "buffers": [b.to_json() for b in self.buffers],
            "aliases": dict(self.aliases),
            "places": {part: [place.whole, place.offset_bytes] for part, place in self.places.items()},
        }

    @staticmethod
    def from_json(data: Any, where: str = "buffers") -> BufferPlan:
        fields = Fields(data, where)
        aliases = {k: string(v, f"{where}.aliases") for k, v in fields.mapping("aliases").items()}
        places = {k: _place_from_json(v, f"{where}.places[{k!r}]") for k, v in fields.mapping("places").items()}
        plan = BufferPlan(fields.integer("arena_bytes"), fields.sequence("buffers", Buffer.from_json), aliases, places)
        fields.done()
        return plan


def _place_from_json(data: Any, where: str) -> Place:
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[0], str) and type(data[1]) is int):
        raise PlanError(f"{where} is not [whole, offset_bytes]")
    return Place(*data)


def wholes_of(places: Mapping[str, Place]) -> dict[str, tuple[str, ...]]:
    """The parts of each whole, in the order of their places."""
    found: dict[str, list[str]] = {}
    for part in sorted(places, key=lambda name: (places[name].whole, places[name].offset_bytes)):
        found.setdefault(places[part].whole, []).append(part)
    return {whole: tuple(parts) for whole, parts in found.items()}


def _check_no_overlap(buffers: tuple[Buffer, ...]) -> None:
    """Sweep over launches; only buffers alive together are compared. Raises PlanError on the first clash."""
    alive: list[Buffer] = []
    for b in sorted(buffers, key=lambda b: b.first):
        alive = [a for a in alive if a.last >= b.first]
        for a in alive:
            if (
                a.nbytes
                and b.nbytes
                and a.offset_bytes < b.offset_bytes + b.nbytes
                and b.offset_bytes < a.offset_bytes + a.nbytes
            ):
                raise PlanError(f"buffers of {a.value} and {b.value} overlap in place and time")
        alive.append(b)


@dataclass(frozen=True)
class PluginRecord:
    """A plug-in that took part: its name, who supplied it, and the hash of its code."""

    name: str
    owner: str
    content_hash: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "owner": self.owner, "content_hash": self.content_hash}

    @staticmethod
    def from_json(data: Any, where: str = "plugin") -> PluginRecord:
        fields = Fields(data, where)
        record = PluginRecord(fields.string("name"), fields.string("owner"), fields.string("content_hash"))
        fields.done()
        return record


@dataclass(frozen=True)
class StitchPlan:
    """The whole plan of one graph. `bodies` holds the plans of nested graphs, by `node.attribute`.

    `segments`, read one after another, are the launch order.
    """

    graph: str
    fingerprint: str
    planner: str
    target: str
    groups: tuple[Group, ...] = ()
    host_groups: tuple[HostGroup, ...] = ()
    segments: tuple[Segment, ...] = ()
    buffers: BufferPlan = BufferPlan()
    refusals: tuple[WhyNot, ...] = ()
    plugins: tuple[PluginRecord, ...] = ()
    bodies: Mapping[str, StitchPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        native, host = {g.name for g in self.groups}, {g.name for g in self.host_groups}
        if len(native) != len(self.groups) or len(host) != len(self.host_groups) or native & host:
            raise PlanError(f"plan of {self.graph}: two groups have one name")
        launched = [name for s in self.segments for name in s.groups]
        if sorted(launched) != sorted(native | host):
            odd = ", ".join(sorted(set(launched) ^ (native | host))) or "repetitions"
            raise PlanError(f"plan of {self.graph}: the segments must hold every group once; they differ in {odd}")
        for segment in self.segments:
            if not segment.groups or any((name in native) != segment.native for name in segment.groups):
                raise PlanError(f"plan of {self.graph}: a segment is empty or mixes native and host groups")
        stored = [v for g in self.groups for v in g.outputs] + [v for g in self.host_groups for v in g.outputs]
        twice = sorted({v for v in stored if stored.count(v) > 1}) if len(set(stored)) != len(stored) else []
        if twice:
            raise PlanError(f"plan of {self.graph}: two groups store {', '.join(twice)}")

    def group(self, name: str) -> Group:
        """The native group of that name; PlanError if there is none."""
        for g in self.groups:
            if g.name == name:
                return g
        raise PlanError(f"the plan of {self.graph} has no native group {name!r}")

    @property
    def launch_order(self) -> tuple[str, ...]:
        return tuple(name for s in self.segments for name in s.groups)

    def walk(self) -> Iterator[StitchPlan]:
        """This plan and the plans of all nested graphs."""
        yield self
        for body in self.bodies.values():
            yield from body.walk()

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "version": VERSION, "graph": self.graph, "fingerprint": self.fingerprint,
            "planner": self.planner, "target": self.target, "groups": [g.to_json() for g in self.groups],
            "host_groups": [g.to_json() for g in self.host_groups],
            "segments": [s.to_json() for s in self.segments], "buffers": self.buffers.to_json(),
            "refusals": [r.to_json() for r in self.refusals], "plugins": [p.to_json() for p in self.plugins],
            "bodies": {k: b.to_json() for k, b in self.bodies.items()},
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str = "plan") -> StitchPlan:
        """Raises PlanError if `data` is not what `to_json` writes."""
        try:
            return _plan_from_json(data, where)
        except ArtifactSchemaError as error:
            raise PlanError(f"{error.problem}; write the plan again with `tilestitch compile`") from None

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON text."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> StitchPlan:
        """Read a plan. Raises PlanError, naming the file, if it is no plan, and OSError if it cannot be read."""
        try:
            return StitchPlan.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PlanError(f"{path} is no JSON text: {error}; give a plan that `tilestitch compile` wrote") from None
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from None

    def check_replay(self, graph: Graph) -> None:
        """Raise PlanMismatchError unless this plan was made for exactly this graph."""
        actual = fingerprint(graph)
        if actual != self.fingerprint:
            raise PlanMismatchError(
                f"the plan was made for graph {self.graph!r}, fingerprint {self.fingerprint[:12]}, but this graph is "
                f"{graph.name!r} with {actual[:12]}; compile the same model with the same passes, shapes and version, "
                "or leave out --plan"
            )

    def with_plugins(self, plugins: tuple[PluginRecord, ...]) -> StitchPlan:
        return replace(self, plugins=plugins)


def _plan_from_json(data: Any, where: str) -> StitchPlan:
    fields = Fields(data, where)
    if fields.string("format") != FORMAT:
        raise PlanError(f"{where} is no StitchPlan")
    version = fields.integer("version")
    if version != VERSION:
        raise PlanError(f"{where} has version {version}, this tilestitch reads {VERSION}; write the plan again")
    plan = StitchPlan(
        graph=fields.string("graph"),
        fingerprint=fields.string("fingerprint"),
        planner=fields.string("planner"),
        target=fields.string("target"),
        groups=fields.sequence("groups", Group.from_json),
        host_groups=fields.sequence("host_groups", HostGroup.from_json),
        segments=fields.sequence("segments", Segment.from_json),
        buffers=BufferPlan.from_json(fields.take("buffers"), f"{where}.buffers"),
        refusals=fields.sequence("refusals", WhyNot.from_json),
        plugins=fields.sequence("plugins", PluginRecord.from_json),
        bodies={k: _plan_from_json(v, f"{where}.bodies[{k!r}]") for k, v in fields.mapping("bodies").items()},
    )
    fields.done()
    return plan
