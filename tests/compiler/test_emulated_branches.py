"""Models with branches on the emulated device: blocks of independent launches interleaved, against ONNX Runtime.

The structure and branches are those of the models in `benchmarks.models`, with fewer channels, experts' columns and
pixels; `python -m benchmarks.emulated --side-by-side` runs these themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import onnxruntime
import pytest

from tests.compiled import assert_close
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions, KernelFaultError
from tilestitch.runtime.program import DeviceStep, Edge, Program

torch = pytest.importorskip("torch")
models = pytest.importorskip("benchmarks.models")
branchy = pytest.importorskip("benchmarks.branchy")


def inception(cin: int = 8, pixels: int = 5) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A block of Inception-v3 whose branches have branches."""
    both = models.Branches(models.conv_relu(8, 6, (1, 3)), models.conv_relu(8, 6, (3, 1)))
    block = models.Branches(
        models.conv_relu(cin, 8, 1),
        torch.nn.Sequential(models.conv_relu(cin, 8, 1), both),
        torch.nn.Sequential(models.conv_relu(cin, 4, 1), models.conv_relu(4, 8, 5)),
        torch.nn.Sequential(torch.nn.AvgPool2d(3, 1, 1), models.conv_relu(cin, 8, 1)),
    )
    return block, {"image": torch.randn(1, cin, pixels, pixels)}


def dien() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    inputs = {name: values % 10 for name, values in models.recommendation(4, 3).items()}
    return models.Dien(items=10, kinds=10, users=10, width=4), inputs


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor]]]] = {
    "inception": inception,
    "nasnet_a_cells": lambda: (branchy.NasnetCells(width=3, cells=1), models.image(32)),
    "experts_4": lambda: (branchy.Experts(4, 32, 48), models.tokens(5, 32)),
    "experts_16": lambda: (branchy.Experts(16, 32, 48), models.tokens(5, 32)),
    "two_towers": lambda: (branchy.TwoTowers(20_000, 20_000, 8, 16), models.user_and_item(3, 16)),
    "dien": dien,
}


@dataclass(frozen=True)
class Case:
    compiled: CompiledModel
    inputs: dict[str, np.ndarray]
    expected: np.ndarray

    @property
    def step(self) -> DeviceStep:
        (step,) = self.compiled.contents.programs[0].steps
        assert isinstance(step, DeviceStep)
        return step

    def run(self, edges: tuple[Edge, ...] | None = None, **options: object) -> np.ndarray:
        """The result, with other edges between the launches if any are given."""
        step = self.step if edges is None else replace(self.step, edges=edges)
        contents = self.compiled.contents
        programs: tuple[Program, ...] = tuple(replace(program, steps=(step,)) for program in contents.programs)
        artifact = replace(self.compiled, contents=replace(contents, programs=programs)).to_bytes()
        emulated = EmulatorOptions(side_by_side=True, **options)  # type: ignore[arg-type]
        with load(artifact, device=emulated) as model:
            (result,) = model.run(self.inputs).values()
        return np.asarray(result)


@cache
def case(name: str) -> Case:
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.onnx.export(
            module.eval(), tuple(inputs.values()), dynamo=True, opset_version=20, verbose=False,
            input_names=list(inputs),
        )  # fmt: skip
    model = exported.model_proto.SerializeToString()
    arrays = {key: value.numpy() for key, value in inputs.items()}
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return Case(compile_model(model, "emulator:sm_80"), arrays, np.asarray(session.run(None, arrays)[0]))


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_branches_in_any_order_compute_the_same(name: str) -> None:
    one = case(name)
    assert len({launch.branch for launch in one.step.launches}) > 1
    for order, seed in (("random", 0), ("random", 1), ("adversarial", 2)):
        found = one.run(block_order=order, seed=seed, resident_blocks=6)
        assert_close(found, one.expected, 2e-5)


@pytest.mark.parametrize("name", ["inception", "two_towers"])
def test_an_edge_that_is_taken_away_is_found(name: str) -> None:
    one = case(name)
    edges = one.step.dependences
    needed = [edge for edge in edges if not is_implied(edge, edges)]
    assert len(needed) > 3
    for missing in needed:
        with pytest.raises(KernelFaultError, match="an edge between the launches is missing"):
            one.run(tuple(edge for edge in edges if edge != missing), block_order="random")


def is_implied(edge: Edge, edges: tuple[Edge, ...]) -> bool:
    """Whether other edges lead from the one launch to the other."""
    reached = {edge.before}
    for other in sorted(edges, key=lambda other: other.after):
        if other != edge and other.before in reached:
            reached.add(other.after)
    return edge.after in reached
