"""Helpers for tests of plug-ins: plans without code generation, runs on the emulated device, and comparisons.

compiled = compile_model(model, target="emulator", passes=[MyRule()])
assert_same_values(compiled, model)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import VerifyListener, run_pipeline
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan
from tilestitch.runtime import load
from tilestitch.runtime.dtypes import numpy_dtype

from .load import Installed, load_plugins

if TYPE_CHECKING:
    import onnx

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Tolerances by dtype, relative to the largest magnitude of a tensor; other dtypes must match exactly."""


class Artifact(Protocol):
    """The interface of what `compile_model` returns."""

    def to_bytes(self) -> bytes: ...


def plan_of(
    model: onnx.ModelProto | str | os.PathLike[str] | Graph,
    passes: Sequence[Any] = (),
    *,
    target: str = "cpu",
    planner: str = "stitch",
    shapes: Mapping[str, Sequence[int]] | None = None,
    sync: str = "off",
) -> StitchPlan:
    """Return the plan for a model, or for a graph, with the plug-ins `passes` and no installed ones; nothing is
    compiled.

    target: cpu or cuda. sync: how dependent kernels wait for each other, as for `compile_model`.
    """
    return _planned(model, passes, target, planner, shapes, sync)[1]


def kernels_of(
    model: onnx.ModelProto | str | os.PathLike[str] | Graph,
    passes: Sequence[Any] = (),
    *,
    target: str = "cpu",
    planner: str = "stitch",
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> list[list[str]]:
    """Return the operators of each kernel of `plan_of`, by name, in launch order: `[["reduce_max", "sub"],
    ["exp"]]`.
    """
    graph, plan = _planned(model, passes, target, planner, shapes)
    ops = {node.name: node.op for node in graph.nodes}
    groups = {group.name: group for group in plan.groups}
    return [[ops[node] for node in groups[name].nodes] for name in plan.launch_order if name in groups]


def _planned(
    model: Any, passes: Sequence[Any], target: str, planner: str, shapes: Mapping[str, Sequence[int]] | None,
    sync: str = "off",
) -> tuple[Graph, StitchPlan]:  # fmt: skip
    plugins = load_plugins(passes, Installed())
    options = {"planner": planner, "sync": sync}
    context = PassContext(TargetInfo(target), options, [VerifyListener()], plugins.rules, plugins.records)
    if plugins.cost_model is not None:
        context.cost_model = plugins.cost_model
    graph = run_pipeline(_graph(model, shapes), context, extra=plugins.passes)
    return graph, make_plan(graph, context)


def run(artifact: Artifact | bytes, inputs: Mapping[str, Any], *, device: str = "cpu") -> dict[str, Any]:
    """Return the results of an artifact by name. device: `cpu`, or `emulator` for artifacts compiled for it."""
    data = artifact if isinstance(artifact, bytes) else artifact.to_bytes()
    with load(data, device=device) as module:
        return dict(module.run(dict(inputs)))


def assert_same_values(
    artifact: Artifact | bytes,
    model: onnx.ModelProto | str | os.PathLike[str],
    inputs: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    seed: int = 0,
) -> None:
    """Raise AssertionError unless an artifact computes the same as its model, evaluated with numpy operator by
    operator.

    inputs: missing ones are drawn at random from `seed`: floats from a normal distribution, integers 0 or 1.
    """
    data = artifact if isinstance(artifact, bytes) else artifact.to_bytes()
    with load(data, device=device) as module:
        random = np.random.default_rng(seed)
        feeds = {spec.name: _drawn(random, spec) for spec in module.inputs}
        feeds.update(inputs or {})
        actual = dict(module.run(feeds))
    from tilestitch.compiler.frontend import import_model

    imported = import_model(model, shapes={name: np.shape(feed) for name, feed in feeds.items()})
    expected = evaluate(imported.graph, feeds)
    for name, wanted in zip(imported.output_names, expected, strict=True):
        _compare(name, np.asarray(actual[name]), np.asarray(wanted))


def _drawn(random: np.random.Generator, spec: Any) -> np.ndarray:
    floats = spec.dtype.startswith(("float", "bfloat"))
    values = random.standard_normal(spec.shape) if floats else random.integers(0, 2, spec.shape)
    return np.asarray(values).astype(numpy_dtype(spec.dtype))


def _compare(name: str, actual: np.ndarray, expected: np.ndarray) -> None:
    """Raise AssertionError unless results agree; infinities and NaN must be where they are expected."""
    same = (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert same, f"{name} is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
    tolerance = TOLERANCES.get(str(expected.dtype))
    if tolerance is None:
        assert np.array_equal(actual, expected), f"{name} differs in {int((actual != expected).sum())} elements"
        return
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    odd = ~((a == b) | (np.isnan(a) & np.isnan(b)) | finite)
    assert not odd.any(), f"{name} differs in {int(odd.sum())} elements that are infinite or NaN"
    difference = np.abs(np.subtract(a, b, out=np.zeros_like(b), where=finite))
    scale = max(1.0, float(np.abs(b[finite]).max(initial=0)))
    assert np.isfinite(difference).all(), f"{name} is not finite where it must be"
    worst = float(difference.max(initial=0))
    assert worst <= tolerance * scale, f"{name} is off by {worst:.3g}; {tolerance * scale:.3g} is allowed"


def _graph(model: Any, shapes: Mapping[str, Sequence[int]] | None) -> Graph:
    if isinstance(model, Graph):
        return model
    from tilestitch.compiler.frontend import import_model

    return import_model(model, shapes=shapes or {}).graph
