"""Sliding windows whose threads have several channels of several windows, on the emulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import check, run
from tests.codegen.cuda.cuda_harness import target
from tests.codegen.kernel_harness import one_group
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.types import TensorType
from tilestitch.passes.plan.access.windows import why_not_windows, window_schedules
from tilestitch.passes.plan.schedules import WindowSchedule
from tilestitch.runtime.emulator import EmulatorOptions, Requests


def pool(
    image: Sequence[int], kernel: Sequence[int], channels: int, *, reducer: str = "max", stride: int = 1,
    dilation: int = 1, pads: tuple[int, int] = (0, 0), dtype: str = "float32", epilogue: bool = True,
) -> Graph:  # fmt: skip
    """A window over two images with channels last, times a number of each channel, plus a residual."""
    rank = len(image)
    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, (2, *image, channels)))
    y = graph.emit(
        "window_reduce", x, layout="NXC", reducer=reducer, kernel=tuple(kernel), strides=(stride,) * rank,
        dilations=(dilation,) * rank, before=(pads[0],) * rank, after=(pads[1],) * rank,
    )  # fmt: skip
    if epilogue:
        scaled = graph.emit("mul", y, graph.add_input("s", TensorType(y.dtype, (channels,))))
        y = graph.emit("add", scaled, graph.add_input("r", y.tensor_type))
    graph.outputs = [y]
    return graph


def launched(graph: Graph, schedule: WindowSchedule) -> tuple[CudaLaunch, ...]:
    return lower_group(graph, replace(one_group(graph), schedule=schedule), target())


@pytest.mark.parametrize(
    ("graph", "lanes", "pixels"),
    [
        (pool((7, 8), (3, 3), 24, stride=2, pads=(1, 1)), 4, 4),
        (pool((5, 9), (3, 3), 8, pads=(1, 2), dtype="float16"), 8, 2),
        (pool((6, 8), (5, 5), 8, pads=(2, 2), dtype="float16"), 8, 4),
        (pool((5, 6), (2, 3), 12, reducer="sum", pads=(1, 1)), 4, 1),
        (pool((8, 8), (2, 2), 8, reducer="sum", stride=2, dtype="bfloat16"), 8, 4),
        (pool((9, 11), (3, 3), 16, dilation=2, pads=(2, 2), dtype="int8"), 4, 1),
        (pool((4, 4), (2, 2), 8, dtype="uint8", pads=(1, 0)), 8, 2),
        (pool((13,), (4,), 6, pads=(1, 1)), 2, 4),
        (pool((3, 4, 5), (2, 1, 2), 4, stride=1), 4, 4),
        (pool((1, 1), (3, 3), 8, pads=(1, 1), dtype="float16"), 8, 1),
        (pool((3, 8), (1, 1), 4, dtype="float64", stride=2), 2, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ["in_order", "adversarial"])
def test_several_windows_a_thread(graph: Graph, lanes: int, pixels: int, order: str) -> None:
    schedule = WindowSchedule(32, lanes, pixels)
    check(graph, lambda _: launched(graph, schedule), EmulatorOptions(block_order=order))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nothing_but_nan_hides_lowest_elements(dtype: str) -> None:
    """What lies outside of the image is less than all that lies in it, and no number."""
    graph = pool((2, 4), (3, 3), 8, pads=(1, 1), dtype=dtype, epilogue=False)
    x = np.full((2, 2, 4, 8), -np.inf, dtype)
    x[0, 0, 0, :4] = np.nan
    x[1, :, 3] = np.finfo(dtype).min
    launches = launched(graph, WindowSchedule(32, 4, 2))
    found = run(launches, {"x": x}, graph.outputs)[graph.outputs[0].name]
    assert np.isnan(found[0, :2, :2, :4]).all() and not np.isnan(found[1]).any()
    assert (found[1, :, :2] == -np.inf).all() and (found[1, :, 2:] == np.finfo(dtype).min).all()


@pytest.mark.parametrize(
    ("graph", "schedule", "reason"),
    [
        (pool((5, 7), (3, 3), 8, pads=(1, 1)), WindowSchedule(32, 4, 2), "no whole number"),
        (pool((5, 8), (3, 3), 6, pads=(1, 1)), WindowSchedule(32, 4, 2), "no whole number"),
        (pool((5, 8), (3, 3), 8, pads=(1, 1)), WindowSchedule(32, 8, 2), "bytes"),
        (pool((7, 8), (7, 7), 8, pads=(3, 3)), WindowSchedule(32, 4, 2), "more than 32"),
        (pool((7, 8), (3, 3), 8, pads=(1, 1)), WindowSchedule(32, 4, 0), "one at least"),
    ],
)
def test_windows_that_a_thread_cannot_have(graph: Graph, schedule: WindowSchedule, reason: str) -> None:
    (anchor, *_), inputs = graph.nodes, graph.inputs
    problem = why_not_windows(anchor, inputs, schedule)
    assert problem is not None and reason in problem
    assert all(why_not_windows(anchor, inputs, one) is None for one in window_schedules(anchor, inputs, 32))


def test_neighbouring_windows_share_what_is_read() -> None:
    """Of four windows of 3 x 3 at stride 2: three rows of nine columns."""
    graph = pool((15, 16), (3, 3), 16, stride=2, pads=(1, 1), dtype="float16", epilogue=False)
    found: list[Requests] = []
    options = EmulatorOptions(on_requests=lambda _, requests: found.extend(requests))
    check(graph, lambda _: launched(graph, WindowSchedule(32, 8, 4)), options)
    reads = sum(one.requests for one in found if one.space == "global" and not one.is_write)
    warps = 2  # of 64 threads
    assert reads <= warps * 3 * 9
