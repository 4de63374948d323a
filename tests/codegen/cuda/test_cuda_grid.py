"""Row-wise kernels whose rows several blocks share: their parts' results go through global memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from tvm.script.ir_builder import tirx as T

from tests.codegen.cuda.cuda_harness import build, emulated, launches_of, target, text_of
from tests.codegen.cuda.test_cuda_rows import numbers, softmax
from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tests.cost_models import FreeBarriers
from tests.tolerances import DEVICE_KERNELS
from tilestitch.codegen.cuda.abi import Parameter, TemporaryArg, Thread, ValueArg, kernel_function
from tilestitch.codegen.cuda.rows.gridteam import counter_parameter, grid_barrier
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.types import TensorType
from tilestitch.passes import PassContext, make_plan
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.errors import DeviceError

ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(block_order="reversed", thread_order="reversed"),
    EmulatorOptions(block_order="adversarial", thread_order="random", seed=3),
]


def batch_norm(rows: int, channels: int, dtype: str = "float32") -> Graph:
    """Statistics over the rows of each column, and the columns normalised by them."""
    graph = Graph("batch_norm")
    x = graph.add_input("x", TensorType(dtype, (rows, channels)))
    count, epsilon = graph.constant(rows, "float32"), graph.constant(1e-3, "float32")
    wide = graph.emit("cast", x, to="float32")
    mean = graph.emit("div", graph.emit("reduce_sum", wide, axes=(0,), keepdims=True), count)
    centred = graph.emit("sub", wide, mean)
    squares = graph.emit("reduce_sum", graph.emit("mul", centred, centred), axes=(0,), keepdims=True)
    deviation = graph.emit("sqrt", graph.emit("add", graph.emit("div", squares, count), epsilon))
    graph.outputs = [graph.emit("cast", graph.emit("div", centred, deviation), to=dtype), mean]
    return graph


def scale_by_sum(shape: tuple[int, ...], dtype: str = "float32") -> Graph:
    """Everything divided by the sum of all magnitudes."""
    graph = Graph("scale")
    x = graph.add_input("x", TensorType(dtype, shape))
    total = graph.emit("reduce_sum", graph.emit("abs", x), axes=tuple(range(len(shape))), keepdims=True)
    graph.outputs = [graph.emit("div", x, total)]
    return graph


def places(shape: tuple[int, ...], axis: int, last: bool) -> Graph:
    graph = Graph("arg")
    x = graph.add_input("x", TensorType("float32", shape))
    graph.outputs = [graph.emit("arg_max", x, axis=axis, keepdims=False, select_last=last)]
    return graph


def check(graph: Graph, feeds: Mapping[str, np.ndarray], options: EmulatorOptions, factor: float = 4) -> None:
    """One cooperative launch computes the graph, in two runs: the second finds the counter as the first left it."""
    (launch,) = launches_of(graph, model=FreeBarriers())
    assert launch.cooperative and launch.grid[0] > 1
    expected = interpret(graph, feeds)
    with load(emulated(graph, pipeline="", model=FreeBarriers()), device=options) as module:
        for _ in range(2):
            for value, got in zip(graph.outputs, module.run(dict(feeds)).values(), strict=True):
                assert_close(got, expected[value], factor * DEVICE_KERNELS.get(value.dtype, 0))


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: o.block_order)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softmax_of_a_whole_tensor(options: EmulatorOptions, dtype: str) -> None:
    check(softmax((1, 32776), 1, dtype), {"x": numbers((1, 32776), dtype)}, options)


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: o.block_order)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_batch_statistics_then_normalisation(options: EmulatorOptions, dtype: str) -> None:
    check(batch_norm(1031, 37, dtype), {"x": numbers((1031, 37), dtype)}, options)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (scale_by_sum, (3, 101, 109)),
        (lambda shape: softmax(shape, 1), (2, 32771)),
        (lambda shape: softmax(shape, 0), (1040, 2)),
        (lambda shape: batch_norm(*shape), (1543, 3)),
    ],
)
def test_odd_shapes(make: Callable[[tuple[int, ...]], Graph], shape: tuple[int, ...]) -> None:
    graph = make(shape)
    check(graph, {"x": numbers(shape, "float32")}, ORDERS[0], 20)


@pytest.mark.parametrize(("shape", "axis"), [((32773,), 0), ((1100, 5), 0)])
@pytest.mark.parametrize("last", [False, True])
def test_ties_between_blocks_go_to_the_place_that_is_asked_for(shape: tuple[int, ...], axis: int, last: bool) -> None:
    data = np.random.default_rng(1).integers(0, 3, shape).astype(np.float32)
    check(places(shape, axis, last), {"x": data}, ORDERS[1])


def test_a_row_stays_in_registers_across_the_barrier() -> None:
    text = text_of(softmax((1, 65536), 1), FreeBarriers())
    assert text.count("*(float4*)(p0") == 2, "two vectors a thread, each loaded once"
    assert len(re.findall(r"^ +ts_grid_barrier\(", text, re.MULTILINE)) == 2


def test_more_blocks_than_are_resident_are_refused() -> None:
    graph = softmax((1, 65536), 1)
    artifact = emulated(graph, pipeline="", model=FreeBarriers())
    feeds = {"x": numbers((1, 65536), "float32")}
    with load(artifact, device=EmulatorOptions(cooperative_blocks=32)) as module:
        module.run(feeds)
    with (
        load(artifact, device=EmulatorOptions(cooperative_blocks=31)) as module,
        pytest.raises(DeviceError, match="needs 32 blocks at a time, the emulated device holds 31"),
    ):
        module.run(feeds)


def test_the_grid_is_within_what_the_smallest_gpu_holds() -> None:
    """sm_89 is the L4 with 58 multiprocessors as well as larger GPUs; naming the RTX 4090 gives its 128. The RTX
    4060, with 24, counts if it is named."""
    graph = softmax((1, 1 << 20), 1)
    assert launches_of(graph, name="cuda:sm_89")[0].grid[0] == 58
    assert launches_of(graph, name="cuda:rtx 4090")[0].grid[0] == 128
    assert launches_of(graph, name="cuda:rtx 4090,sm_80")[0].grid[0] == 108
    assert launches_of(graph, name="cuda:sm_89,rtx 4060")[0].grid[0] == 24
    assert launches_of(graph, name="cuda:h200/32")[0].grid[0] == 32


def test_compiles_for_real_gpus() -> None:
    build(batch_norm(1100, 40, "float16"), model=FreeBarriers())
    build(places((40000,), 0, False), model=FreeBarriers())


@pytest.mark.parametrize(
    ("shape", "axis", "scheme"),
    [((4096, 128), 1, "warp"), ((16, 4096), 1, "block"), ((300, 4), 0, "block"), ((1, 1 << 18), 1, "global")],
)
def test_the_plan_says_how_a_row_is_exchanged(shape: tuple[int, int], axis: int, scheme: str) -> None:
    graph = softmax(shape, axis)
    (group,) = make_plan(graph, PassContext(target().planned_for)).groups
    assert [s for s in group.schemes if s in ("row", "warp", "block", "global")] == [scheme]
    text = text_of(graph)
    assert ("ts_grid_barrier" in text, "__syncthreads" in text) == (scheme == "global", scheme != "warp")


def test_memory_that_thread_blocks_exchange_is_not_restricted() -> None:
    """`__restrict__` would promise that only this thread changes what it reads there."""

    def body(buffers: list[Any], thread: Thread) -> None:
        x, partials, y, counter = buffers
        T.buffer_store(partials, x[thread.block[0]], [thread.block[0]])
        grid_barrier(counter)
        T.buffer_store(y, partials[1 - thread.block[0]], [thread.block[0]])

    args = (ValueArg("x"), TemporaryArg("partials", 8), ValueArg("y"))
    parameters = [*(Parameter(arg, "float32", 2) for arg in args), counter_parameter()]
    text = kernel_text(kernel_function(parameters, (2, 1, 1), (1, 1, 1), body), target())
    (head,) = re.findall(r"__global__[^{]*", text)
    assert re.findall(r"(__restrict__ )?(p\d)", head) == [("__restrict__ ", "p0"), ("", "p1"), ("", "p2"), ("", "p3")]
