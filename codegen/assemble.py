"""From planned graphs to the contents of an artifact: lower every group, compile, link, and have programs written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from tilestitch.codegen.backend import Backend, Progress
from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.launch import PackedArg
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.errors import UndecidedError
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.runtime import program as rt
from tilestitch.runtime.artifact_writer import ArtifactContents
from tilestitch.runtime.kernel_signature import KernelSignature
from tilestitch.runtime.manifest import PluginInfo

from .parameters import Parameters
from .program_types import runtime_symbols
from .program_writer import ProgramWriter, values_by_name
from .schedule import KernelsOfPlugins, Schedule, lower_with
from .signature import LoweredOnce
from .tensors import TensorTable, read_plainly, shared_tables

Lowered: TypeAlias = dict[tuple[int, str], tuple[tuple[Any, ...], ...]]
"""The launches of each group, by the id of its plan and its name: for each case, in order."""


@dataclass(frozen=True)
class Planned:
    """One specialisation: its graph, its plan, and the user's names of its outputs."""

    graph: Graph
    plan: StitchPlan
    output_names: tuple[str, ...]
    caches: tuple[rt.Cache, ...] = ()


@dataclass(frozen=True)
class Assembled:
    """The contents of an artifact, except the compiler's version, and the launches of every group as JSON data."""

    contents: ArtifactContents
    _launches: Mapping[tuple[int, str], tuple[tuple[dict[str, Any], ...], ...]]

    def launches(self, plan: StitchPlan, group: str) -> tuple[tuple[dict[str, Any], ...], ...]:
        """Return the descriptions (`Backend.describe`) of the launches of a group of a plan, or of its nested ones, for
        each case.
        """
        return self._launches[id(plan), group]


def _lowered(lower: LoweredOnce, graph: Graph, group: Group) -> tuple[Any, ...]:
    try:
        return lower(graph, group)
    except UndecidedError as error:
        computed = ", ".join(f"%{value}" for value in group.outputs)
        raise KernelError(
            f"kernel {group.name}, which computes {computed}, cannot be generated for all sizes: {error}; compile for "
            "fixed sizes (--shape) or narrower ranges (--dim)", group.origins,
        ) from error  # fmt: skip


def _with_shared_tables(
    graph: Graph, plan: StitchPlan, lowered: Lowered,
    lower: Callable[[Graph, Group, Mapping[str, PackedArg]], tuple[Any, ...]],
) -> Lowered:  # fmt: skip
    """Return the groups that read tables packed by other groups, lowered to read the packed form."""
    before = {g: lowered[id(plan), g.name] for g in plan.groups}
    tables = shared_tables(graph, plan, chain.from_iterable(chain(*before.values())))
    readers = [g for g, cases in before.items() if read_plainly(tables, chain(*cases))]
    after = {g: tuple(lower(graph, case, tables) for case in g.by_case) for g in readers}
    kept = read_plainly(tables, chain.from_iterable(chain(*{**before, **after}.values())))
    return {(id(plan), g.name): after[g] for g in readers if not kept & set(g.constants)}


def assemble(
    planned: Sequence[Planned],
    backend: Backend,
    *,
    keep_source: bool,
    progress: Progress,
    schedules: Sequence[Schedule] = (),
) -> Assembled:
    """Lower and compile all groups of all specialisations; `schedules` of plug-ins take precedence.

    Raises KernelError, with ONNX nodes, for a group that cannot be emitted or compiled, and the backend's own errors.
    """
    units = [unit for p in planned for unit in _nested(p.graph, p.plan)]
    lowered = _lowered_groups(units, backend, schedules, progress)
    launches = [launch for group in lowered.values() for case in group for launch in case]
    tensors = TensorTable()
    signatures = [
        signature for graph, plan in units for signature in _signatures(graph, plan, backend, lowered, tensors)
    ]
    digests = [signature.digest for signature in signatures]
    compiled = backend.compile(launches, digests, keep_source=keep_source, progress=progress)
    symbols = iter(compiled.symbols)
    named = {
        key: tuple(tuple((next(symbols), launch) for launch in case) for case in group)
        for key, group in lowered.items()
    }
    programs = tuple(
        ProgramWriter(p.graph, p.plan, backend, named, tensors).write(p.output_names, p.caches) for p in planned
    )
    plugins = (plugin for item in planned for plugin in item.plan.plugins)
    contents = ArtifactContents(
        programs=programs,
        weights=tensors.arrays,
        kernels=compiled.kernels,
        target=backend.info(frozenset().union(*(group.instructions for _, plan in units for group in plan.groups))),
        compiler_version="",
        plan=[p.plan.to_json() for p in planned],
        plugins=tuple(dict.fromkeys(PluginInfo(p.name, p.owner, p.content_hash, p.arguments) for p in plugins)),
        extra=compiled.extra,
        signatures=dict(zip(compiled.symbols, signatures, strict=True)),
    )
    described = {
        key: tuple(tuple(backend.describe(symbol, launch, compiled) for symbol, launch in case) for case in group)
        for key, group in named.items()
    }
    return Assembled(contents, described)


def _lowered_groups(
    units: Sequence[tuple[Graph, StitchPlan]], backend: Backend, schedules: Sequence[Schedule], progress: Progress
) -> Lowered:
    """Return the launches of every group; equal groups share them."""
    total = sum(len(plan.groups) for _, plan in units)
    kernels_of = KernelsOfPlugins(schedules, backend.target_of_schedules)
    lower = LoweredOnce(
        lambda graph, group: lower_with(kernels_of, backend, graph, group),
        ((graph, case) for graph, plan in units for group in plan.groups for case in group.by_case),
        ranges=not schedules,
        scalars=not schedules and backend.scalars_as_arguments,
    )
    lowered: Lowered = {}
    for graph, plan in units:
        for group in plan.groups:
            progress("generate kernels", len(lowered), total)
            lowered[id(plan), group.name] = tuple(_lowered(lower, graph, case) for case in group.by_case)
        lowered.update(_with_shared_tables(graph, plan, lowered, partial(lower_with, kernels_of, backend)))
    return lowered


def _signatures(
    graph: Graph,
    plan: StitchPlan,
    backend: Backend,
    lowered: Lowered,
    tensors: TensorTable,
) -> Iterator[KernelSignature]:
    """Yield the signatures of all launches of a plan, in order."""
    values = values_by_name(graph)
    symbols = runtime_symbols(graph)
    parameters = Parameters(values, lambda arg: tensors.arrays[tensors.packed(values[arg.source], arg)], symbols)
    for group in plan.groups:
        for launch in (launch for case in lowered[id(plan), group.name] for launch in case):
            yield parameters.signature(group, launch.args, backend.placed("", launch, ()).extent)


def _nested(graph: Graph, plan: StitchPlan) -> Iterator[tuple[Graph, StitchPlan]]:
    yield graph, plan
    for key, body in plan.bodies.items():
        yield from _nested(body_graph(graph, key), body)


def body_graph(graph: Graph, key: str) -> Graph:
    """Return the nested graph under the key `node.attribute` of a plan's `bodies`."""
    node, _, attribute = key.rpartition(".")
    inner = graph.node(node).attrs[attribute]
    assert isinstance(inner, Graph)
    return inner
