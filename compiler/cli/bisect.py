"""Finds the first kernel whose result differs from the reference's, by compiling the model with intermediate results as
outputs.

All results between kernels are looked at in one go first. That changes what is fused and may hide the fault; then one
result at a time is exposed, halving the range each time: behind the first wrong result everything is taken to be wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.accuracy import Difference, difference
from tilestitch.compiler.cli.explain import read_explain
from tilestitch.compiler.cli.output import Progress

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto


@dataclass(frozen=True)
class Candidate:
    """A result between kernels: the ONNX value, the node that makes it, and the kernel that the node is in."""

    value: str
    node: str
    kernel: str


@dataclass(frozen=True)
class Search:
    """What every trial needs."""

    model: ModelProto
    inputs: Mapping[str, np.ndarray]
    against: str
    tolerance: float | None
    threads: int | None
    planner: str
    precision: str

    def differences(self, candidates: Sequence[Candidate]) -> list[Difference]:
        """The difference of each candidate when all of them are outputs."""
        from tilestitch.compiler.driver import compile_model
        from tilestitch.runtime import load

        names = [candidate.value for candidate in candidates]
        shapes = {name: tuple(array.shape) for name, array in self.inputs.items()}
        exposed = expose(self.model, names)
        compiled = compile_model(exposed, "cpu", shapes=shapes, planner=self.planner, precision=self.precision)
        model = load(compiled.to_bytes(), device="cpu", num_threads=self.threads)
        outputs = list(model.run(dict(self.inputs)).values())
        expected = rivals.CHECKERS[self.against](exposed)(self.inputs)
        count = len(candidates)
        return [
            difference(candidate.value, got, want, self.tolerance)
            for candidate, got, want in zip(candidates, outputs[-count:], expected[-count:])
        ]


def first_difference(
    artifact: Path, path: Path, inputs: Mapping[str, np.ndarray], options: argparse.Namespace
) -> dict[str, Any] | None:
    """The first kernel whose result differs: value, node, kernel, error and a sentence; None if none is found."""
    import onnx

    explained = read_explain(artifact)
    model = onnx.load(path)
    # What is compiled here is for the CPU, which has no TF32.
    precision = "fp32" if explained["precision"] == "tf32" else explained["precision"]
    search = Search(model, inputs, options.against, options.tolerance, options.threads, explained["planner"], precision)
    candidates = boundary_values(model, explained["kernels"])
    if not candidates:
        return None
    with Progress() as progress:
        progress(f"looking at {len(candidates)} intermediate results")
        for candidate, found in zip(candidates, search.differences(candidates)):
            if not found.ok:
                return _describe(candidate, found)
        return _halve(search, candidates, progress)


def _halve(search: Search, candidates: Sequence[Candidate], progress: Progress) -> dict[str, Any] | None:
    low, high = 0, len(candidates)
    wrong: dict[int, Difference] = {}
    while low < high:
        middle = (low + high) // 2
        progress(f"looking at {candidates[middle].value}")
        found = search.differences([candidates[middle]])[0]
        if found.ok:
            low = middle + 1
        else:
            wrong[middle] = found
            high = middle
    return _describe(candidates[low], wrong[low]) if low in wrong else None


def _describe(candidate: Candidate, found: Difference) -> dict[str, Any]:
    text = (
        f"the first result that differs is {candidate.value!r}, made by ONNX node {candidate.node!r} in kernel "
        f"{candidate.kernel!r}: error {found.error:.2e}, allowed {found.tolerance:.0e} {found.note}"
    )
    return {
        "value": candidate.value,
        "node": candidate.node,
        "kernel": candidate.kernel,
        **found.to_json(),
        "text": text,
    }


def boundary_values(model: ModelProto, kernels: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """The values that leave a kernel, in the model's order: made by a node of it, and read by a node outside of it."""
    kernel_of = {node: kernel["name"] for kernel in kernels for node in kernel["onnx_nodes"]}
    names = node_names(model)
    readers: dict[str, set[str]] = {}
    for node, name in zip(model.graph.node, names):
        for value in node.input:
            readers.setdefault(value, set()).add(kernel_of.get(name, name))
    visible = {output.name for output in model.graph.output}
    typed = _typed_values(model)
    return [
        Candidate(value, name, kernel_of[name])
        for node, name in zip(model.graph.node, names)
        if name in kernel_of
        for value in node.output
        if value in typed and value not in visible and readers.get(value, set()) - {kernel_of[name]}
    ]


def node_names(model: ModelProto) -> list[str]:
    """The names by which kernels refer to the model's nodes.

    Their own, or `OpType_index` counted over those without.
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
    """A copy of MODEL with VALUES as further outputs."""
    typed = _typed_values(model)
    exposed = type(model)()
    exposed.CopyFrom(model)
    exposed.graph.output.extend(typed[value] for value in values)
    return exposed
