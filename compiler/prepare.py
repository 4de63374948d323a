"""From an ONNX model to its plans, one for each specialisation; and the node and the value whose size prevents that, by
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.ir import Graph, Kind, TensorType, Value, kind_of
from tilestitch.compiler.ir.errors import IRError, UndecidedError
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.contract import PassContext
from tilestitch.passes.errors import PassError
from tilestitch.passes.pipeline import DumpListener, NotesListener, run_pipeline
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.open_sizes import Scope
from tilestitch.passes.rewrite.precision import is_named
from tilestitch.passes.schedule.cpu.same_panels import PANELS, Panels, panels_of
from tilestitch.runtime.archive import atomic_files

from .arithmetic import arithmetic_of_outputs
from .caches import check_grown, length_classes, with_caches
from .errors import HostStepsError, OpenSizeError, OptionError
from .sources import Source
from .specialise import Convert, Region, ShapeSet, Variant, replayed, variants

if TYPE_CHECKING:
    from tilestitch.codegen.assemble import Planned
    from tilestitch.compiler.frontend import ImportedModel

Progress = Callable[[str, int, int], None]
"""Callback for progress: stage, number of finished parts, number of parts."""


@dataclass(frozen=True)
class Prepared:
    """A specialisation with its plan, and what its explanation holds besides the plan. `optional`: whether the artifact
    can do without it.
    """

    planned: Planned
    remarks: Mapping[str, Any]
    optional: bool = False


@dataclass(frozen=True)
class Job:
    """A model, and what all of its specialisations have in common.

    `plans`: to replay, one for each specialisation; None to make them. `scopes`: the specialisations, if known; None:
    those of the requested sizes. `options`: the record of options for `explain`. `refused`: why open dimensions are
    left to the host although that was not requested. `donate`: inputs that grow in place (`caches`).
    """

    source: Source
    context: PassContext
    passes: Sequence[Any]
    expose: tuple[str, ...]
    plans: Sequence[StitchPlan] | None
    options: Mapping[str, Any]
    dump_ir: Path | None
    host_steps: bool
    refused: str = ""
    donate: Sequence[str] = ()
    scopes: Sequence[Scope] | None = None

    def prepared(
        self, shape_sets: Sequence[ShapeSet], regions: Sequence[Region | None], tell: Progress, favoured: int = 0
    ) -> list[Prepared]:
        """Return the plans for all sets of shapes and regions, of which the first `favoured` are favoured points.

        Raises HostStepsError where nothing may be left to the host.
        """
        tell("import and plan", 0, len(shape_sets))
        if self.scopes is not None:
            found = list(replayed(self._convert(), self.scopes))
        else:
            found = list(variants(self._convert(), shape_sets, regions, favoured, self.refused))
        result: dict[int, Prepared] = {}
        panels: Panels = {}
        classes = length_classes([v.imported.graph for v in found], self.donate) if self.donate else {}
        # Favoured sizes share the weights of the specialisations that contain them.
        for done, number in enumerate(sorted(range(len(found)), key=lambda number: found[number].favoured)):
            variant = found[number]
            tell("import and plan", done, len(found))
            folder = self.dump_ir and self.dump_ir / (str(number) if len(found) > 1 else "")
            try:
                with naming_values([variant.imported.graph]):
                    replay = self.plans[number] if self.plans else None
                    optional = not (variant.asked or variant.needed or self.scopes is not None)
                    result[number] = replace(self._planned(variant, classes, replay, folder, panels), optional=optional)
                    planned = result[number].planned
                    panels = {**panels_of(planned.graph, planned.plan.groups), **panels}
            except (IRError, PassError, HostStepsError, OpenSizeError) as error:
                needed = variant.needed and not isinstance(error, HostStepsError)
                if variant.asked or self.scopes is not None or needed:
                    raise
        tell("import and plan", len(found), len(found))
        return [result[number] for number in sorted(result)]

    def _convert(self) -> Convert:
        """Return the conversion of the model, which is read and checked once, for a set of shapes and a region."""
        from tilestitch.compiler.frontend import Choosing, checked_model, convert_checked

        # Kernels of a given plan can expose only what they store.
        names = () if self.plans else self.expose
        choosing = Choosing.on(self.context.target.is_gpu, self.options["precision"])
        checked = checked_model(self.source.model, self.source.folder, choosing=choosing, donated=self.donate)
        _check_exposed(self.expose, [output.name for output in checked.proto.graph.output])

        def convert(shapes: ShapeSet, region: Region | None, whole: bool = False) -> ImportedModel:
            return convert_checked(checked, shapes, ranges=region, expose=names, whole=whole)

        return convert

    def _planned(
        self, variant: Variant, classes: Mapping[str, tuple[int, int]], replay: StitchPlan | None, folder: Path | None,
        panels: Panels,
    ) -> Prepared:  # fmt: skip
        from tilestitch.codegen.assemble import Planned
        from tilestitch.passes.batches import as_planned, plan_in_images
        from tilestitch.passes.open.regions import with_regions
        from tilestitch.passes.plan_check import check_plan
        from tilestitch.passes.planner import make_plan, storing
        from tilestitch.passes.schedule.launches import completed

        notes = NotesListener()
        dumps = [DumpListener(folder)] if folder else []
        options = {**self.context.options, PANELS: panels}
        context = replace(self.context, options=options, listeners=[*self.context.listeners, *dumps, notes])
        imported = variant.imported
        _check_kept(imported.graph, self.context.options.get("keep_fp32", ()))
        caches = with_caches(imported.graph, imported.output_names, classes) if classes else ()
        graph = run_pipeline(imported.graph, context, extra=self.passes)
        graph = with_regions(graph) if _has_symbols(graph) else graph
        stored = () if replay is None else self.expose
        if replay is None:
            plan = make_plan(graph, context)
            graph, plan = (graph, plan) if caches else plan_in_images(graph, plan, context)
            plan = replace(plan, scope=variant.scope)
        else:
            graph = as_planned(graph, replay)
            check_plan(replay, graph, context.target, context.kernels_of)
            plan = completed(replay, graph, context.kernels_of)
            plan = storing(plan, graph, stored, context.kernels_of) if stored else plan
        output_names = (*imported.output_names, *stored)
        check_grown(graph, plan, output_names, caches)
        found = arithmetic_of_outputs(imported.graph, graph, stored)
        remarks = {
            "notes": [{"pass": name, "note": note} for name, note in notes.notes],
            "arithmetic": [{"output": name, **one.to_json()} for name, one in zip(output_names, found, strict=True)],
            "options": {**self.options, **variant.options(), "planner": plan.planner},
            "sizes": {"symbols": variant.symbols(), "refused": variant.refused},
        }
        prepared = Prepared(Planned(graph, plan, output_names, caches), remarks)
        if not self.host_steps:
            _refuse_host_steps(prepared.planned)
        if folder:
            _write_views(folder, prepared.planned)
        return prepared


def _check_exposed(names: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise OptionError for a name in `expose` that is given twice or is an output of the model."""
    for number, name in enumerate(names):
        if name in outputs or name in names[:number]:
            raise OptionError(f"expose adds {name!r} to the outputs, where it is already; leave it out")


def _check_kept(graph: Graph, patterns: Sequence[str]) -> None:
    """Raise OptionError for a pattern in `keep_fp32` that matches no node of a matmul or convolution."""
    names = sorted(set(_contracted(graph))) if patterns else []
    for pattern in patterns:
        if not is_named(names, (pattern,)):
            close = get_close_matches(pattern, names, 3) or names[:3]
            told = f"there is {', '.join(close)}" if close else "the model has none; leave it out"
            raise OptionError(f"keep_fp32: no matmul or convolution is named {pattern!r}; {told}")


def _contracted(graph: Graph) -> Iterator[str]:
    """Yield the ONNX nodes of all contractions, including those of nested graphs."""
    for node in graph.nodes:
        if kind_of(node.op) is Kind.CONTRACTION:
            yield from node.origins
    for inner in graph.subgraphs():
        yield from _contracted(inner)


def _has_symbols(graph: Graph) -> bool:
    return bool(graph.symbols) or any(map(_has_symbols, graph.subgraphs()))


def _refuse_host_steps(planned: Planned) -> None:
    from tilestitch.passes.host_steps import describe_host, host_summary

    told = describe_host(host_summary(planned.graph, planned.plan, []))
    if told:
        raise HostStepsError(f"{told}\nThis was ruled out; compile without --no-host (host_steps=True) to allow it.")


def _write_views(folder: Path, planned: Planned) -> None:
    """Write the final graph for Graphviz (a box per kernel or call) and for Netron, beside the passes' dumps."""
    from tilestitch.compiler.viewers import to_dot, to_onnx

    folder.mkdir(parents=True, exist_ok=True)
    groups = {node: group.name for group in planned.plan.groups for node in group.nodes}
    with atomic_files(folder / "final.dot", folder / "final.onnx") as (dot, netron):
        dot.write(to_dot(planned.graph, groups).encode())
        netron.write(to_onnx(planned.graph).SerializeToString())


@contextmanager
def naming_values(graphs: Sequence[Graph]) -> Iterator[None]:
    """Turn UndecidedError about sizes of these graphs into an OpenSizeError that names a value with such a size."""
    try:
        yield
    except UndecidedError as error:
        raise OpenSizeError(_described(error, graphs)) from error


def _described(error: UndecidedError, graphs: Sequence[Graph]) -> str:
    names = dict.fromkeys(re.findall(r"[^\W\d]\w*", error.claim))
    symbols = [s.name for graph in graphs for s in graph.symbols if s.name in names]
    ranges = " ".join(f"--dim {name}=LOW..HIGH" for name in dict.fromkeys(symbols))
    remedy = f"compile for fixed sizes (--shape) or narrower ranges ({ranges or '--dim NAME=LOW..HIGH'})"
    value = _nearest(error.claim, [value for graph in graphs for value in graph.values()])
    if value is None:
        return f"{error}; {remedy}"
    nodes = ", ".join(value.producer.origins) if value.producer is not None else ""
    whose = f"ONNX node {nodes}" if nodes else "the model"
    return f"{error}; %{value.name} ({value.type}) of {whose} has sizes like that; {remedy}"


def _nearest(claim: str, values: Sequence[Value]) -> Value | None:
    """Return the first value with the longest size that occurs in a claim."""
    longest, nearest = 0, None
    for value in values:
        for size in value.type.shape if isinstance(value.type, TensorType) else ():
            text = str(size)
            if is_open(size) and len(text) > longest and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", claim):
                longest, nearest = len(text), value
    return nearest
