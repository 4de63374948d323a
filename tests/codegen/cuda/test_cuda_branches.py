"""Launches that do not depend on each other are branches of the CUDA graph, and may run in any order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import emulated
from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.program import DeviceStep

X = TensorType("float32", (40, 512))


def branches(count: int, depth: int) -> Graph:
    """`count` chains of GEMMs of the same input, scaled differently, in several launches; their ends are stacked."""
    graph = Graph()
    x = graph.add_input("x", X)
    random = np.random.default_rng(0)
    ends = []
    for number in range(count):
        y = graph.emit("mul", x, graph.constant(np.float32(1 + number)))
        for _ in range(depth):
            y = graph.emit(
                "tanh", graph.emit("matmul", y, graph.constant(random.normal(0, 0.05, (512, 512)).astype("f")))
            )
        ends.append(y)
    graph.outputs = [graph.emit("concat", *ends, axis=0)]
    return graph


def device_step(artifact: bytes) -> DeviceStep:
    (step,) = read_artifact(artifact).programs[0].steps
    assert isinstance(step, DeviceStep)
    return step


def depth(step: DeviceStep) -> int:
    """Launches on the longest way through the graph."""
    depths = [1] * len(step.launches)
    for edge in step.dependences:
        depths[edge.after] = max(depths[edge.after], depths[edge.before] + 1)
    return max(depths)


def test_a_chain_stays_a_chain() -> None:
    step = device_step(emulated(branches(1, 3)))
    assert [(edge.before, edge.after) for edge in step.dependences] == [
        (i, i + 1) for i in range(len(step.launches) - 1)
    ]


def test_branches_wait_for_what_they_read_only() -> None:
    one, three = (device_step(emulated(branches(count, 2))) for count in (1, 3))
    assert len(three.launches) == 3 * len(one.launches) + 1
    assert depth(three) == depth(one) + 1  # the concat


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_branches_gives_the_same_result(seed: int) -> None:
    graph = branches(3, 2)
    feeds = {"x": np.random.default_rng(seed).normal(size=X.static_shape).astype("f")}
    with load(emulated(graph), device=EmulatorOptions(block_order="random", seed=seed, checked=False)) as module:
        (result,) = module.run(feeds).values()
    assert_close(result, interpret(graph, feeds)[graph.outputs[0]], 2e-5)
