"""Convolutions of narrow groups whose threads have several channels of several pixels, on the emulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.codegen.cuda.contraction_harness import check
from tests.codegen.cuda.cuda_harness import target
from tests.codegen.kernel_harness import one_group
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.types import TensorType
from tilestitch.passes.plan.access.windows import direct_schedules, why_not_direct
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.schedules import DirectSchedule
from tilestitch.passes.plan.sync.grid import grid_of
from tilestitch.passes.plan.view import look_up
from tilestitch.runtime.emulator import EmulatorOptions, Requests


def conv(
    image: tuple[int, ...], kernel: tuple[int, ...], channels: int, *, groups: int | None = None, stride: int = 1,
    dilation: int = 1, pad: int = 0, dtype: str = "float32", out: int | None = None,
) -> Graph:  # fmt: skip
    """tanh(conv + bias) of two images with channels last."""
    rank, groups, out = len(image), groups or channels, out or channels
    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, (2, *image, channels)))
    w = graph.add_input("w", TensorType(dtype, (*kernel, channels // groups, out)))
    y = graph.emit(
        "conv", x, w, layout="NXC", groups=groups, strides=(stride,) * rank, dilations=(dilation,) * rank,
        before=(pad,) * rank, after=(pad,) * rank, **({"out_dtype": "int32"} if dtype == "int8" else {}),
    )  # fmt: skip
    bias = graph.add_input("b", TensorType(y.dtype, (out,)))
    total = graph.emit("add", y, bias)
    graph.outputs = [total if dtype == "int8" else graph.emit("tanh", total)]
    return graph


def launched(graph: Graph, schedule: DirectSchedule) -> tuple[CudaLaunch, ...]:
    group = replace(one_group(graph), schedule=schedule)
    launches = lower_group(graph, group, target())
    grid = grid_of(look_up({node.name: node for node in graph.nodes}, group), schedule)
    assert grid is not None and grid.blocks == launches[0].grid[0]
    return launches


@pytest.mark.parametrize(
    ("graph", "lanes", "pixels"),
    [
        (conv((5, 8), (3, 3), 24, pad=1), 4, 4),
        (conv((7, 9), (3, 3), 8, stride=2, pad=1), 2, 1),
        (conv((7, 12), (3, 5), 12, pad=2, dilation=2, dtype="float16"), 4, 2),
        (conv((9, 8), (7, 7), 8, pad=3, dtype="float16"), 8, 4),
        (conv((4, 11), (2, 2), 16, stride=2, dtype="bfloat16"), 2, 1),
        (conv((13,), (4,), 8), 4, 2),
        (conv((3, 5, 6), (3, 1, 3), 4, pad=1), 4, 2),
        (conv((6, 5), (3, 3), 16, groups=4, pad=1), 4, 1),
        (conv((6, 5), (3, 3), 24, groups=12, pad=1, dtype="float16"), 8, 1),
        (conv((1, 1), (3, 3), 8, pad=1, dtype="float16"), 8, 1),
        (conv((6, 6), (3, 3), 8, pad=1, dtype="int8"), 4, 2),
        (conv((6, 6), (1, 1), 8), 2, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ["in_order", "adversarial"])
def test_several_results_a_thread(graph: Graph, lanes: int, pixels: int, order: str) -> None:
    schedule = DirectSchedule(32, lanes, pixels)
    check(graph, lambda _: launched(graph, schedule), EmulatorOptions(block_order=order))


def test_images_without_elements_are_zeros() -> None:
    check(conv((0, 2), (3, 3), 8, pad=2), lambda graph: launched(graph, DirectSchedule(32, 4, 2)))


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (conv((5, 7), (3, 3), 24, pad=1), DirectSchedule(32, 4, 2), "no whole number"),
        (conv((5, 8), (3, 3), 6, pad=1), DirectSchedule(32, 4, 2), "no whole number"),
        (conv((5, 8), (3, 3), 8, pad=1), DirectSchedule(32, 8, 1), "bytes"),
        (conv((5, 8), (3, 17), 8, pad=8), DirectSchedule(32, 4, 1), "weights of a row"),
        (conv((5, 8), (3, 3), 8, pad=1, out=16), DirectSchedule(32, 4, 1), "as many of them"),
        (conv((5, 8), (3, 3), 8, pad=1), DirectSchedule(32, 0, 1), "one at least"),
    ],
)  # fmt: skip
def test_results_that_a_thread_cannot_have(graph: Graph, schedule: DirectSchedule, reason: str) -> None:
    group = one_group(graph)
    view = AnchoredGroup.of(look_up({node.name: node for node in graph.nodes}, group))
    problem = why_not_direct(view, schedule)
    assert problem is not None and reason in problem
    assert all(why_not_direct(view, one) is None for one in direct_schedules(view, 32))


def test_operands_are_read_once_for_all_results_of_a_thread() -> None:
    """Of eight channels of four pixels: three rows of six columns and of three weights, and the bias of each pixel."""
    graph = conv((6, 8), (3, 3), 16, pad=1, dtype="float16")
    found: list[Requests] = []
    options = EmulatorOptions(on_requests=lambda _, requests: found.extend(requests))
    check(graph, lambda _: launched(graph, DirectSchedule(32, 8, 4)), options)
    reads = sum(one.requests for one in found if one.space == "global" and not one.is_write)
    warps = 2  # of 48 threads
    assert reads <= warps * (3 * 6 + 3 * 3 + 4)
