"""The whole plan of a graph, as JSON data and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.sizes import FAR, Symbol
from tilestitch.compiler.ir.text import fingerprint
from tilestitch.passes.errors import PlanError, PlanMismatchError
from tilestitch.passes.plan.launches.launch import Edge, Lane, Launch
from tilestitch.runtime.archive import atomic_file
from tilestitch.runtime.errors import ArtifactSchemaError
from tilestitch.runtime.jsonfields import Fields, parse_json, sequence

from .buffers import BufferPlan
from .group import Group, HostGroup
from .open_sizes import Scope, reading, symbol_from_json, symbol_to_json, with_texts
from .refusal import WhyNot
from .slices import Slices
from .target import TargetInfo

FORMAT = "tilestitch-plan"
VERSION = 5
T = TypeVar("T")


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
class PluginRecord:
    """A plug-in that took part: its name, its owner, the hash of its files, its arguments (`{field=value}`)."""

    name: str
    owner: str
    content_hash: str
    arguments: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "owner": self.owner, "content_hash": self.content_hash, "arguments": self.arguments,
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str = "plugin") -> PluginRecord:
        fields = Fields(data, where)
        record = PluginRecord(*(fields.string(name) for name in ("name", "owner", "content_hash", "arguments")))
        fields.done()
        return record


@dataclass(frozen=True)
class StitchPlan:
    """The whole plan of one graph. `bodies` holds the plans of nested graphs, by `node.attribute`.

    `segments`, concatenated, give the order of the groups; `launches` are in that order, and `edges` tell which wait
    for which (on a CPU they run in order); `lanes` are the branch and priority of each launch (none on a CPU). None:
    still to be derived from the rest. With `slices`, launches of an open graph process a batch a few images at a time.

    `symbols` are those of an open graph: sizes may be expressions over them. `scope` tells which sizes of a model the
    graph represents; None if unspecified, and for nested graphs.
    """

    graph: str
    fingerprint: str
    planner: str
    target: TargetInfo
    groups: tuple[Group, ...] = ()
    host_groups: tuple[HostGroup, ...] = ()
    segments: tuple[Segment, ...] = ()
    buffers: BufferPlan = field(default_factory=BufferPlan)
    launches: tuple[Launch, ...] | None = None
    edges: tuple[Edge, ...] | None = None
    lanes: tuple[Lane, ...] | None = None
    refusals: tuple[WhyNot, ...] = ()
    plugins: tuple[PluginRecord, ...] = ()
    bodies: Mapping[str, StitchPlan] = field(default_factory=dict)
    symbols: tuple[Symbol, ...] = ()
    scope: Scope | None = None
    slices: Slices | None = None

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
        """Return the native group with that name. Raises PlanError if there is none."""
        for g in self.groups:
            if g.name == name:
                return g
        raise PlanError(f"the plan of {self.graph} has no native group {name!r}")

    @property
    def launch_order(self) -> tuple[str, ...]:
        return tuple(name for s in self.segments for name in s.groups)

    def walk(self) -> Iterator[StitchPlan]:
        """Yield this plan and the plans of all nested graphs."""
        yield self
        for body in self.bodies.values():
            yield from body.walk()

    @property
    def kernel_count(self) -> int:
        """Number of kernels, including those of nested graphs."""
        return len(self.groups) + sum(body.kernel_count for body in self.bodies.values())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data. Symbols, scope and slices are omitted where there are none."""
        data = {
            "format": FORMAT, "version": VERSION, "graph": self.graph, "fingerprint": self.fingerprint,
            "planner": self.planner, "target": self.target.to_json(), "groups": [g.to_json() for g in self.groups],
            "host_groups": [g.to_json() for g in self.host_groups],
            "segments": [s.to_json() for s in self.segments],
            "launches": None if self.launches is None else [launch.to_json() for launch in self.launches],
            "edges": None if self.edges is None else [edge.to_json() for edge in self.edges],
            "lanes": None if self.lanes is None else [lane.to_json() for lane in self.lanes],
            "buffers": self.buffers.to_json(),
            "refusals": [r.to_json() for r in self.refusals], "plugins": [p.to_json() for p in self.plugins],
            "bodies": {k: b.to_json() for k, b in self.bodies.items()},
        }  # fmt: skip
        if self.symbols:
            data["symbols"] = [symbol_to_json(symbol) for symbol in self.symbols]
        if self.scope is not None:
            data["scope"] = self.scope.to_json()
        if self.slices is not None:
            data["slices"] = self.slices.to_json()
        return with_texts(data) if self.symbols else data

    @staticmethod
    def from_json(data: Any, where: str = "plan") -> StitchPlan:
        """Return the plan in JSON data. Raises PlanError if `data` is not as `to_json` writes it."""
        try:
            return _plan_from_json(data, where)
        except ArtifactSchemaError as error:
            raise PlanError(f"{error.problem}; write the plan again with `tilestitch compile`") from None

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON text, atomically. Raises ArtifactWriteError."""
        with atomic_file(path) as file:
            file.write(f"{json.dumps(self.to_json(), indent=1, ensure_ascii=False)}\n".encode())

    @staticmethod
    def load(path: str | Path) -> StitchPlan:
        """Read a plan. Raises PlanError, naming the file, if it is no plan, and OSError if it cannot be read."""
        try:
            data = parse_json(Path(path).read_bytes())
        except ValueError as error:
            raise PlanError(f"{path} is no JSON text: {error}; give a plan that `tilestitch compile` wrote") from None
        try:
            return StitchPlan.from_json(data)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from None

    def check_replay(self, graph: Graph, target: TargetInfo | None = None) -> None:
        """Raise PlanMismatchError unless this plan was made for exactly this graph, and for `target` if it is given."""
        problem = None if target is None else self.target.why_not_on(target)
        if problem is not None:
            raise PlanMismatchError(
                f"the plan of {self.graph!r}: {problem}; give --target as then, or leave out --plan"
            )
        given, wanted = (", ".join(map(_range_of, symbols)) for symbols in (graph.symbols, self.symbols))
        if given != wanted:
            raise PlanMismatchError(
                f"the plan of {self.graph!r} is for {wanted or 'known sizes'}, but this graph is for "
                f"{given or 'known sizes'}; give the ranges of then, or leave out --plan"
            )
        actual = fingerprint(graph)
        if actual != self.fingerprint:
            raise PlanMismatchError(
                f"the plan was made for graph {self.graph!r}, fingerprint {self.fingerprint[:12]}, but this graph is "
                f"{graph.name!r} with {actual[:12]}; compile the same model with the same passes, shapes and version, "
                "or leave out --plan"
            )


def _range_of(symbol: Symbol) -> str:
    """Return a text such as `batch 1..8`."""
    high = "" if symbol.high == FAR else symbol.high
    return f"{symbol.name} {'0 or ' if symbol.or_empty else ''}{symbol.low}..{high}"


def _plan_from_json(data: Any, where: str) -> StitchPlan:
    fields = Fields({"symbols": [], "scope": None, "slices": None, **data} if isinstance(data, dict) else data, where)
    if fields.string("format") != FORMAT:
        raise PlanError(f"{where} is no StitchPlan")
    version = fields.integer("version")
    if version != VERSION:
        raise PlanError(f"{where} has version {version}, this tilestitch reads {VERSION}; write the plan again")
    symbols = fields.sequence("symbols", symbol_from_json)
    with reading(symbols):
        plan = _read(fields, where, symbols)
    fields.done()
    return plan


def _read(fields: Fields, where: str, symbols: tuple[Symbol, ...]) -> StitchPlan:
    scope, slices = fields.take("scope"), fields.take("slices")
    return StitchPlan(
        graph=fields.string("graph"),
        fingerprint=fields.string("fingerprint"),
        planner=fields.string("planner"),
        target=TargetInfo.from_json(fields.take("target"), f"{where}.target"),
        groups=fields.sequence("groups", Group.from_json),
        host_groups=fields.sequence("host_groups", HostGroup.from_json),
        segments=fields.sequence("segments", Segment.from_json),
        buffers=BufferPlan.from_json(fields.take("buffers"), f"{where}.buffers"),
        launches=_if_any(fields.take("launches"), f"{where}.launches", Launch.from_json),
        edges=_if_any(fields.take("edges"), f"{where}.edges", Edge.from_json),
        lanes=_if_any(fields.take("lanes"), f"{where}.lanes", Lane.from_json),
        refusals=fields.sequence("refusals", WhyNot.from_json),
        plugins=fields.sequence("plugins", PluginRecord.from_json),
        bodies={k: _plan_from_json(v, f"{where}.bodies[{k!r}]") for k, v in fields.mapping("bodies").items()},
        symbols=symbols,
        scope=None if scope is None else Scope.from_json(scope, f"{where}.scope"),
        slices=None if slices is None else Slices.from_json(slices, f"{where}.slices"),
    )


def _if_any(data: Any, where: str, item: Callable[[Any, str], T]) -> tuple[T, ...] | None:
    return None if data is None else sequence(data, where, item)
