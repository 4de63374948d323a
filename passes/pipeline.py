"""Running passes in order: contract checks, listeners, bisection, nested graphs, and the default pipelines."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO

from tilestitch.compiler.ir import Graph, IRError
from tilestitch.compiler.ir.text import print_graph
from tilestitch.compiler.ir.verify import verify
from tilestitch.runtime.archive import atomic_file

from .contract import PLACES, Pass, PassContext, PassResult, broken_interface, interface_of
from .errors import PassContractError
from .group_gemms import GroupGemms
from .pipeline_text import parse_pipeline
from .rewrite import REWRITES
from .rewrite.rounded_products import RoundedProducts

CLEAN_UP = "fixpoint{limit=8}(canonicalise,algebra,fold_constants,dead_branches,cse,dce)"

MOTION = "fixpoint{limit=16}(transpose_motion,reshape_motion,refine_axes,canonicalise,fold_constants,cse,dce)"

LAYOUT = f"split_columns,fold_scale_shift,channels_last,{MOTION},pointwise,fold_transposes,merge_gemms,split_pools"

CANONICAL = f"integers,float8,weight_only,{CLEAN_UP},tables,requantise,batch_loops,unroll,{MOTION}"
"""The beginning of the default pipelines."""

CPU_PIPELINE = f"{CANONICAL},{LAYOUT},{CLEAN_UP}"
"""The default CPU pipeline where the precision is not lowered."""


@dataclass(frozen=True)
class Fixpoint:
    """Run `body` again and again until nothing changes, at most `limit` times."""

    body: tuple[Any, ...]
    limit: int = 8
    name: ClassVar[str] = "fixpoint"

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit is {self.limit}; it must be at least 1")

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        modified, notes = False, list[str]()
        for _ in range(self.limit):
            changed = False
            for pass_ in self.body:
                result = run_pass(pass_, graph, context)
                graph, changed = result.graph, changed or result.modified
                notes.extend(result.notes)
            if not changed:
                break
            modified = True
        return PassResult(graph, modified, tuple(notes))


def pass_table() -> dict[str, type]:
    """Return the built-in passes by name."""
    return {Fixpoint.name: Fixpoint, GroupGemms.name: GroupGemms, **REWRITES}


def default_pipeline(target: str, precision: str = "fp32") -> str:
    """Return the text of the default pipeline for `target`. The precision is lowered once weights and layouts are
    settled.
    """
    lowered = CPU_PIPELINE if precision == "fp32" else f"{CPU_PIPELINE},precision{{to={precision}}},{CLEAN_UP}"
    rounded = f"{lowered},{RoundedProducts.name}"
    return rounded if target == "cpu" else f"{rounded},{GroupGemms.name}"


def run_pipeline(
    graph: Graph, context: PassContext, passes: Sequence[Any] | str | None = None, extra: Sequence[Any] = ()
) -> Graph:
    """Run `passes` (objects or text; default: the target's pipeline) and `extra`, on a copy of `graph`.

    Passes of `extra` run at the `place` that they name, else after all others; where `passes` are given, `imported` and
    `canonical` both lie before them. Output values keep the names they had, where the value is not also an input, a
    constant or another output. Raises PipelineError for a bad text and PassError if a pass fails.
    """
    first: Sequence[Any] = ()
    if passes is None:
        passes = default_pipeline(context.target.name, context.options.get("precision", "fp32"))
        first = parse_pipeline(CANONICAL, pass_table())
    if isinstance(passes, str):
        passes = parse_pipeline(passes, pass_table())[len(first) :]
    imported, canonical, final = (_placed(extra, place) for place in PLACES)
    names = [v.name for v in graph.outputs]
    graph = graph.clone()
    for pass_ in (*imported, *first, *canonical, *passes, *final):
        graph = run_pass(pass_, graph, context).graph
    _restore_names(graph, names)
    return graph


def _placed(extra: Sequence[Any], place: str) -> tuple[Any, ...]:
    """Return the passes of `extra` that run at `place`, followed by the clean-up."""
    found = [pass_ for pass_ in extra if getattr(pass_, "place", PLACES[-1]) == place]
    return (*found, *parse_pipeline(CLEAN_UP, pass_table())) if found else ()


def run_pass(pass_: Pass, graph: Graph, context: PassContext) -> PassResult:
    """Run one pass on `graph` and the graphs nested in it, tell the listeners, check the contract.

    Raises PassContractError if the pass returns anything but a PassResult, or changes the graph's interface.
    """
    if isinstance(pass_, Fixpoint):
        return pass_.run(graph, context)
    if not context.may_run():
        return PassResult(graph, False, (f"{pass_.name}: left out by bisection",))
    nested, notes = _run_on_bodies(pass_, graph, context)
    for listener in context.listeners:
        listener.before(pass_, graph)
    interface = interface_of(graph)
    start = time.perf_counter()
    result = pass_.run(graph, context)
    seconds = time.perf_counter() - start
    if not isinstance(result, PassResult):
        raise PassContractError(f"pass {pass_.name} returned {type(result).__name__}; run must return a PassResult")
    broken = broken_interface(interface, result.graph)
    if broken:
        raise PassContractError(f"pass {pass_.name} {broken}")
    result = PassResult(result.graph, result.modified or nested, (*notes, *result.notes))
    for listener in context.listeners:
        listener.after(pass_, result, seconds)
    return result


def _run_on_bodies(pass_: Pass, graph: Graph, context: PassContext) -> tuple[bool, list[str]]:
    """Run a pass on the graphs nested in `graph`; return whether any changed, and the notes of the pass."""
    modified, notes = False, list[str]()
    for node in graph.nodes:
        for key, attr in list(node.attrs.items()):
            if isinstance(attr, Graph):
                inner = PassContext(context.target, context.options)
                result = run_pass(pass_, attr, inner)
                node.attrs[key] = result.graph
                modified = modified or result.modified
                notes += [f"in {node.name}.{key}: {note}" for note in result.notes]
    return modified, notes


def _restore_names(graph: Graph, names: Sequence[str]) -> None:
    taken = {v.name for v in (*graph.inputs, *graph.constants)}
    taken.update(out.name for node in graph.nodes for out in node.outputs)
    for value, name in zip(graph.outputs, names, strict=True):
        if value.producer is None or name in taken or value.name in names:
            continue
        graph.fresh_name(name)  # reserves it
        taken.discard(value.name)
        taken.add(name)
        value.name = name


# -- listeners -------------------------------------------------------------------------------------------------------


@dataclass
class VerifyListener:
    """Verifies the graph after every pass; raises PassContractError naming the pass."""

    def before(self, pass_: Pass, graph: Graph) -> None:
        pass

    def after(self, pass_: Pass, result: PassResult, seconds: float) -> None:
        try:
            verify(result.graph)
        except IRError as error:
            raise PassContractError(f"pass {pass_.name} broke the graph: {error}") from error


@dataclass
class NotesListener:
    """Collects the notes of passes, each once, as pairs of the pass's name and the note."""

    notes: dict[tuple[str, str], None] = field(default_factory=dict)

    def before(self, pass_: Pass, graph: Graph) -> None:
        pass

    def after(self, pass_: Pass, result: PassResult, seconds: float) -> None:
        self.notes.update(((pass_.name, note), None) for note in result.notes)


@dataclass
class DumpListener:
    """Writes the graph after every pass that changed it to `directory/NNN-pass.tsir`."""

    directory: Path
    count: int = 0

    def before(self, pass_: Pass, graph: Graph) -> None:
        pass

    def after(self, pass_: Pass, result: PassResult, seconds: float) -> None:
        self.count += 1
        if not result.modified:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.count:03d}-{pass_.name}.tsir"
        with atomic_file(path) as file:
            file.write(f"{print_graph(result.graph)}\n".encode())


@dataclass
class TimingListener:
    """Adds up seconds and executions by pass name."""

    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def before(self, pass_: Pass, graph: Graph) -> None:
        pass

    def after(self, pass_: Pass, result: PassResult, seconds: float) -> None:
        self.seconds[pass_.name] = self.seconds.get(pass_.name, 0.0) + seconds
        self.runs[pass_.name] = self.runs.get(pass_.name, 0) + 1

    def print(self, file: TextIO = sys.stderr) -> None:
        for name, total in sorted(self.seconds.items(), key=lambda item: -item[1]):
            print(f"{total * 1e3:9.1f} ms {self.runs[name]:4d}x {name}", file=file)
