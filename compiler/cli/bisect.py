"""Finds the first kernel or host step whose result differs from the reference, by recompiling the model with
intermediate results as outputs, for the same target, precision, passes and planner as the artifact.

It first replays the artifact's own plan, and exposes what its kernels store for each other. Stored values of the model
are compared with the reference; and all of them, in any layout, with numpy's evaluation of the kernel's part of the
graph on the operands that the kernel read (unless a dimension is open, or known at run time only). That finds a kernel
that computes its part wrongly. If none does, or if the options lead to the same plan, all results between kernels
become outputs of the model, and if none differs, one at a time, by bisection: that finds faults of the graph rewrites
before planning.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.accuracy import Difference, Limits, difference, differences
from tilestitch.compiler.cli.output import Progress

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from tilestitch.compiler.compiled import CompiledModel
    from tilestitch.passes.plan import StitchPlan

NOTHING = (
    "no intermediate result differs when the model is compiled again to look at it: the fault depends on how operators "
    "are fused"
)
NESTED = "; what nested programs compute is not looked at"
AS_READ = ", beside what numpy makes of what the kernel read"
ANOTHER = (
    "compiling the model with the options that the artifact records does not lead to its plan: the artifact is of "
    "another model, or of another version of tilestitch or of a plug-in"
)


@dataclass(frozen=True)
class Candidate:
    """A result between kernels: its name, the ONNX node that computes it, and the kernel or host step of that node."""

    value: str
    node: str
    kernel: str
    named: bool = True
    """Whether it is a value of the model."""
    kind: str = "kernel"


@dataclass(frozen=True)
class Search:
    """State of a search. `explained` is the artifact's explanation of the specialisation that `inputs` fit."""

    model: ModelProto
    inputs: Mapping[str, np.ndarray]
    explained: Mapping[str, Any]
    against: str
    rtol: float | None
    atol: float | None
    threads: int | None
    device: str

    @property
    def is_open(self) -> bool:
        """Whether this specialisation has open dimensions, for which numpy evaluates no part of the graph."""
        return bool(self.explained.get("sizes", {}).get("symbols"))

    @property
    def has_nested(self) -> bool:
        """Whether some results are of kernels outside the plan itself: in called or repeated parts of the graph, which
        a plan cannot expose.
        """
        calls = any("body" in kernel for kernel in self.explained["kernels"])
        return self.is_open or calls or bool(self.explained["bodies"])

    def compiled(self, model: ModelProto, plan: StitchPlan | None = None, names: Sequence[str] = ()) -> CompiledModel:
        """Return `model`, compiled as the artifact was."""
        from tilestitch.compiler.driver import compile_model

        made = self.explained["options"]
        return compile_model(
            model,
            made["target"],
            shapes=made["shapes"],
            dims=None if plan is not None else made.get("dims"),
            precision=made["precision"],
            keep_fp32=made.get("keep_fp32", ()),
            winograd=made.get("winograd", True),
            passes=made["passes"],
            installed_plugins=made["installed_plugins"],
            planner=made["planner"],
            cost_model=made.get("cost_model"),
            sync=made.get("sync", "off"),
            records=made.get("records"),
            frozen=made.get("frozen", False),
            plan=plan,
            num_threads=made["threads"],
            keep_source=self.device == "emulator",
            expose=names,
        )

    def shown(self, compiled: CompiledModel, count: int) -> tuple[list[Any], list[Limits]]:
        """Run and return the last `count` outputs, and their tolerances."""
        from tilestitch.runtime import load

        with load(compiled.to_bytes(), device=self.device, num_threads=self.threads) as module:
            outputs = list(module.run(dict(self.inputs)).values())
        inside = compiled.explain()["arithmetic"]
        return outputs[-count:], [Limits(one, self.rtol, self.atol) for one in inside[-count:]]

    def from_reference(
        self, candidates: Sequence[Candidate], results: Sequence[Any], limits: Sequence[Limits]
    ) -> list[Difference]:
        """Return the difference of each candidate, a value of the model, from the reference."""
        names, count = [candidate.value for candidate in candidates], len(candidates)
        exposed = expose(self.model, names)
        expected = rivals.CHECKERS[self.against](exposed)(self.inputs)[-count:]

        def again() -> list[Sequence[Any]]:
            return [run[-count:] for run in rivals.on_jittered(self.against, exposed, self.inputs)]

        return differences(names, results, expected, limits, again)

    def with_candidates(self, candidates: Sequence[Candidate]) -> list[Difference]:
        """Return the difference of each candidate when all of them are outputs of the model."""
        exposed = expose(self.model, [candidate.value for candidate in candidates])
        return self.from_reference(candidates, *self.shown(self.compiled(exposed), len(candidates)))


def first_difference(
    plan: Any, explained: Mapping[str, Any], model: Path, inputs: Mapping[str, np.ndarray], options: argparse.Namespace
) -> tuple[dict[str, Any] | None, str]:
    """Find the first kernel whose result differs: value, node, kernel, and the difference; and a sentence about it.

    `plan` (JSON data) and `explained` are of the specialisation that the inputs fit. None if no kernel is found.
    """
    from tilestitch.compiler.frontend.importer import load_model
    from tilestitch.passes.errors import PlanMismatchError

    search = Search(
        load_model(model, external_data=True), inputs, explained, options.against, options.rtol, options.atol,
        options.threads, options.device,
    )  # fmt: skip
    order = _in_order(explained)
    with Progress() as progress:
        try:
            found = _by_both(search, plan, progress)
        except PlanMismatchError:
            return None, ANOTHER
    first = min(found, key=lambda one: order.index(one["kernel"]), default=None)
    return first, first["text"] if first else NOTHING + (NESTED if search.has_nested else "")


def _by_both(search: Search, plan: Any, progress: Progress) -> list[dict[str, Any]]:
    """Search by the artifact's plan; and by names, if the options lead to that plan or it shows no difference."""
    from tilestitch.passes.plan import StitchPlan

    found = _by_plan(search, StitchPlan.from_json(plan), progress)
    usual = search.compiled(search.model).plan.to_json() == plan
    return [*_by_names(search, progress), *found] if usual or not found else found


def _by_plan(search: Search, plan: StitchPlan, progress: Progress) -> list[dict[str, Any]]:
    """Search the values that the artifact's own kernels store: the first that differs from the reference, and the first
    that its kernel computes wrongly from its operands.
    """
    from tilestitch.compiler.ir.symbol_uses import symbols_within

    candidates = stored_values(search.model, search.explained)
    if search.is_open:
        candidates = [candidate for candidate in candidates if candidate.named]
    if not candidates:
        return []
    progress(f"looking at {len(candidates)} results of the plan's kernels")
    compiled = search.compiled(search.model, plan, [candidate.value for candidate in candidates])
    results, limits = search.shown(compiled, len(candidates))
    named = [i for i, candidate in enumerate(candidates) if candidate.named]
    known = [candidates[i] for i in named]
    compared = search.from_reference(known, [results[i] for i in named], [limits[i] for i in named]) if known else []
    # A rewrite may have kept a value's name for one of another layout.
    alike = [(one, found) for one, found in zip(known, compared) if not found.note.startswith(("dtype", "shape"))]
    if symbols_within(compiled.specialisations[0].graph):
        return _first_of(alike, "")
    made = _made_by_kernels(compiled, candidates, search.inputs, results, limits)
    return [*_first_of(alike, ""), *_first_of(list(zip(candidates, made)), AS_READ)]


def _made_by_kernels(
    compiled: CompiledModel,
    candidates: Sequence[Candidate],
    inputs: Mapping[str, np.ndarray],
    results: Sequence[Any],
    limits: Sequence[Limits],
) -> list[Difference]:
    """Return the difference of each candidate from numpy's evaluation of the same part of the graph on the kernel's
    operands, so that differences do not propagate between kernels.
    """
    from tilestitch.compiler.ir.evaluate import evaluate

    names = [candidate.value for candidate in candidates]
    with np.errstate(all="ignore"):
        outputs = evaluate(compiled.specialisations[0].graph, inputs, given=dict(zip(names, results)))
    expected = outputs[-len(names) :]
    return [difference(*one) for one in zip(names, results, expected, limits, strict=True)]


def _first_of(compared: Sequence[tuple[Candidate, Difference]], remark: str) -> list[dict[str, Any]]:
    wrong = [(candidate, found) for candidate, found in compared if not found.ok]
    return [_describe(*wrong[0], remark)] if wrong else []


def _by_names(search: Search, progress: Progress) -> list[dict[str, Any]]:
    """Search the model's values between kernels, exposed by recompiling."""
    candidates = boundary_values(search.model, search.explained)
    if not candidates:
        return []
    progress(f"looking at {len(candidates)} intermediate results")
    found = _first_of(list(zip(candidates, search.with_candidates(candidates))), "")
    return found or _halve(search, candidates, progress)


def _halve(search: Search, candidates: Sequence[Candidate], progress: Progress) -> list[dict[str, Any]]:
    """Search by bisection: everything after the first wrong result is assumed to be wrong."""
    low, high = 0, len(candidates)
    wrong: dict[int, Difference] = {}
    while low < high:
        middle = (low + high) // 2
        progress(f"looking at {candidates[middle].value}")
        found = search.with_candidates([candidates[middle]])[0]
        if found.ok:
            low = middle + 1
        else:
            wrong[middle] = found
            high = middle
    return [_describe(candidates[low], wrong[low])] if low in wrong else []


def _describe(candidate: Candidate, found: Difference, remark: str = "") -> dict[str, Any]:
    text = (
        f"the first result that differs is {candidate.value!r}, made by ONNX node {candidate.node!r} in "
        f"{candidate.kind} {candidate.kernel!r}: error {found.error:.2e}, allowed {found.tolerance:.0e} "
        f"({found.rule}) {found.note}"
    ).rstrip() + remark
    return {
        "value": candidate.value,
        "node": candidate.node,
        "kernel": candidate.kernel,
        **found.to_json(),
        "text": text,
    }


def stored_values(model: ModelProto, explained: Mapping[str, Any]) -> list[Candidate]:
    """Return the values that kernels store in memory of their own, in launch order."""
    typed = _typed_values(model)
    makers = {value: name for node, name in zip(model.graph.node, node_names(model)) for value in node.output}
    visible = {output.name for output in model.graph.output}
    places = explained["buffers"]["places"]
    return [
        Candidate(value, makers.get(value) or _maker(kernel), _named(kernel), value in makers and value in typed)
        for kernel in explained["kernels"]
        if "body" not in kernel
        for value in kernel["outputs"]
        if value not in visible and value not in places
    ]


def _named(kernel: Mapping[str, Any]) -> str:
    """Return the name of a kernel, with its body's name if it is in a called part, as names may repeat there."""
    return f"{kernel['body']}: {kernel['name']}" if "body" in kernel else str(kernel["name"])


def _maker(kernel: Mapping[str, Any]) -> str:
    """Return the ONNX node that a kernel computes last."""
    return str(kernel["onnx_nodes"][-1]) if kernel["onnx_nodes"] else kernel["name"]


def boundary_values(model: ModelProto, explained: Mapping[str, Any]) -> list[Candidate]:
    """Return the values that leave a kernel or host step, in the model's order: computed by a node in it, and read by a
    node outside it.
    """
    kernel_of = {node: (step["name"], "host step") for step in explained["host_steps"] for node in step["onnx_nodes"]}
    kernel_of |= {node: (_named(kernel), "kernel") for kernel in explained["kernels"] for node in kernel["onnx_nodes"]}
    names = node_names(model)
    readers: dict[str, set[object]] = {}
    for node, name in zip(model.graph.node, names):
        for value in _reads(node):
            readers.setdefault(value, set()).add(kernel_of.get(name, name))
    visible = {output.name for output in model.graph.output}
    typed = _typed_values(model)
    return [
        Candidate(value, name, kernel_of[name][0], kind=kernel_of[name][1])
        for node, name in zip(model.graph.node, names)
        if name in kernel_of
        for value in node.output
        if value in typed and value not in visible and readers.get(value, set()) - {kernel_of[name]}
    ]


def _reads(node: NodeProto) -> Iterator[str]:
    """Yield the values that a node reads, including those in its bodies; local names of bodies cannot clash with outer
    ones.
    """
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _reads(inner)
        yield from (output.name for output in attribute.g.output)


def _in_order(explained: Mapping[str, Any]) -> list[str]:
    """Return the names of kernels and host steps in execution order; called parts run at their calls."""
    segment, placed = 0, []
    for kernel in explained["kernels"]:
        segment = segment if "body" in kernel else kernel["segment"]
        placed.append((segment, _named(kernel)))
    placed += [(step["segment"], step["name"]) for step in explained["host_steps"]]
    return [name for _, name in sorted(placed, key=lambda one: one[0])]


def node_names(model: ModelProto) -> list[str]:
    """Return the names by which kernels refer to the model's nodes.

    A node's own name, or `OpType_index`, counted over those without.
    """
    counts: dict[str, int] = {}
    names = []
    for node in model.graph.node:
        if not node.name:
            index = counts.get(node.op_type, 0)
            counts[node.op_type] = index + 1
        names.append(node.name or f"{node.op_type}_{index}")
    return names


def _typed_values(model: ModelProto) -> dict[str, Any]:
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return {info.name: info for info in inferred.graph.value_info if info.type.HasField("tensor_type")}


def expose(model: ModelProto, values: Sequence[str]) -> ModelProto:
    """Return a copy of MODEL with VALUES as further outputs."""
    typed = _typed_values(model)
    exposed = type(model)()
    exposed.CopyFrom(model)
    exposed.graph.output.extend(typed[value] for value in values)
    return exposed
