"""Convolutions in the tile registers of AMX: results, what plans may say, and models of them.

Where the CPU has no such registers, a unit in C does the instructions of the machine code that it refuses.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.amx import cpu_with_tiles
from tests.codegen.kernel_harness import cpu_group, run_launches
from tests.codegen.test_dots import assembly
from tests.codegen.test_half_dots import conv as halves_conv
from tests.codegen.test_half_dots import rounded
from tests.codegen.test_matrix_tiles import TILES, eighths
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.ops import reference
from tilestitch.passes import PassContext, make_plan
from tilestitch.passes.plan.cpu.conv import ConvPlan
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.schedules import CpuTileConvSchedule
from tilestitch.runtime import load

HALVES = CpuTileConvSchedule(1, 16, 2, 16, 2, 1, stage=True, spill=True, dot="tdpbf16ps")
BYTES = replace(HALVES, dot="tdpbusd")


def bytes_conv(
    channels: int, out: int = 40, size: tuple[int, int] = (7, 9), kernel: int = 3, stride: int = 1, dilation: int = 1,
    groups: int = 1,
) -> Graph:  # fmt: skip
    """A padded convolution of two images of bytes."""
    graph = Graph("conv")
    x = graph.add_input("x", TensorType("uint8", (2, *size, channels)))
    w = np.random.default_rng(channels).integers(-128, 128, (kernel, kernel, channels // groups, out)).astype(np.int8)
    pads = (dilation * (kernel // 2),) * 2
    attrs = {
        "strides": (stride,) * 2, "before": pads, "after": pads, "dilations": (dilation,) * 2, "groups": groups,
        "layout": "NXC",
    }  # fmt: skip
    graph.outputs = [graph.emit("conv", x, graph.constant(w), out_dtype="int32", **attrs)]
    return graph


def convolved(graph: Graph, schedule: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel gives, and the reference."""
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=schedule))
    node = graph.nodes[0]
    w = node.inputs[1]
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs, cpu_with_tiles()).values()
    operands = [x, w.data] if x.dtype == np.uint8 else [x.astype(np.float32), w.data.astype(np.float32)]
    with np.errstate(invalid="ignore"):
        (expected,) = reference("conv")(operands, node.attrs)
    return y, expected


def check_bytes(graph: Graph, schedule: Any) -> None:
    x = np.random.default_rng(1).integers(0, 256, graph.inputs[0].shape).astype(np.uint8)
    np.testing.assert_array_equal(*convolved(graph, schedule, x))


def check_halves(graph: Graph, schedule: Any, x: np.ndarray) -> None:
    np.testing.assert_allclose(*convolved(graph, schedule, x), rtol=1e-5, atol=1e-5 * 300)


CHANGES: list[dict[str, Any]] = [
    {}, {"columns": 5}, {"rows": 2, "columns": 9}, {"rows": 2, "columns": 3, "block_tiles": 3}, {"vectors": 1},
    {"rows_outer": True, "block_panels": 2}, {"columns": 32, "block_tiles": 7},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_convolutions_are_those_of_the_plan(unit: Any, changes: dict[str, Any]) -> None:
    check_bytes(bytes_conv(64), replace(BYTES, **changes))
    check_halves(halves_conv(32), replace(HALVES, **changes), rounded(2, 7, 9, 32, seed=1))


@pytest.mark.parametrize(
    "graph",
    [
        bytes_conv(64, size=(3, 37)), bytes_conv(70, 17), bytes_conv(64, 32, (9, 40), stride=2),
        bytes_conv(1, 1, (1, 1)), bytes_conv(64, 33, (11, 11), kernel=5, dilation=2), bytes_conv(128, 64, groups=2),
        bytes_conv(64, kernel=1), bytes_conv(64, kernel=1, stride=2, size=(8, 35)),
    ],
    ids=str,
)  # fmt: skip
def test_bytes_of_odd_sizes(unit: Any, graph: Graph) -> None:
    check_bytes(graph, replace(BYTES, columns=32))


@pytest.mark.parametrize(
    "graph",
    [halves_conv(1), halves_conv(33), halves_conv(64, groups=2), halves_conv(32, stride=2, dilation=2)]
    + [halves_conv(3, layout="NCX"), halves_conv(40, layout="NCX", stride=2)],
    ids=lambda graph: str(graph.inputs[0].shape),
)
def test_halves_of_odd_sizes(unit: Any, graph: Graph) -> None:
    check_halves(graph, HALVES, rounded(*graph.inputs[0].shape, seed=1))


@pytest.mark.parametrize("channels", [32, 33])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_reaches_its_windows_only(unit: Any, value: float, channels: int) -> None:
    """What lies in the workspace beside channels, and after the last pixel, is multiplied by nothing that counts."""
    x = rounded(2, 7, 9, channels, seed=1)
    x[0, 3, 8, 5] = value
    check_halves(halves_conv(channels), HALVES, x)


def test_volumes_and_lines(unit: Any) -> None:
    for space in ((21,), (3, 4, 21)):
        graph = Graph("conv")
        x = graph.add_input("x", TensorType("bfloat16", (2, *space, 32)))
        kernel = (3,) * len(space)
        ones, pads = (1,) * len(space), (1,) * len(space)
        attrs = {"strides": ones, "before": pads, "after": pads, "dilations": ones, "groups": 1, "layout": "NXC"}
        w = graph.constant(rounded(*kernel, 32, 20), "bfloat16")
        graph.outputs = [graph.emit("conv", x, w, out_dtype="float32", **attrs)]
        check_halves(graph, HALVES, rounded(2, *space, 32, seed=1))


@pytest.mark.parametrize(
    ("graph", "dot"), [(bytes_conv(128, 64, (14, 14)), "tdpbusd"), (halves_conv(128), "tdpbf16ps")]
)
def test_what_is_large_is_multiplied_in_tiles(graph: Graph, dot: str) -> None:
    """In the main loop are loads and multiplications of tiles only."""
    (group,) = make_plan(graph, PassContext(TILES)).groups
    assert isinstance(group.schedule, CpuTileConvSchedule) and group.schedule.dot == dot
    (launch,) = lower_group(graph, group)
    text = assembly(launch, parse_target("cpu:sapphirerapids"))
    names = re.findall(r"^\s(tile\w+|tdp\w+|ldtilecfg)\b", text, re.MULTILINE)
    assert names[0] == "ldtilecfg" and "tilerelease" in names
    assert re.findall(rf"(?:tileloadd ){{4}}(?:{dot} ){{4}}", " ".join(names) + " ")


def test_few_channels_are_not() -> None:
    """Three of a picture would be filled up to 64."""
    (group,) = make_plan(bytes_conv(3, 64, (56, 56)), PassContext(TILES)).groups
    assert not isinstance(group.schedule, CpuTileConvSchedule)


def test_channels_come_in_whole_tiles() -> None:
    shape = ConvShape(1, 70, 40, (7, 9), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), 1, "uint8", "int8", "int32")
    plan = ConvPlan.of(shape, replace(BYTES, columns=32, rows=1))
    assert plan.packing.shape == (1, 2, 9 * 32, 32 * 4) and plan.staged_shape == (1, 4, 11 * 128)
    assert plan.sums_rows == 16 and plan.staged_bytes == 4 * 11 * 128 + 15 * 128


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": 3}, "one or two tiles of 16 pixels"), ({"columns": 33}, "one or two tiles of 16 pixels"),
        ({"rows": 2, "columns": 17}, "one or two tiles of 16 pixels"), ({"vectors": 3}, "of 16 channels"),
        ({"stage": False}, "rows that are copied first"), ({"spill": False}, "rows that are copied first"),
        ({"prefetch_next": True}, "ask for no other"), ({"dot": "vpdpbusd"}, "no instruction 'vpdpbusd' multiplies so"),
        ({"dot": "tdpbf16ps"}, "multiplies bfloat16 by bfloat16"), ({"widen_right": True}, "none to widen"),
    ],
)  # fmt: skip
def test_what_cannot_be_emitted_is_refused(changes: dict[str, Any], reason: str) -> None:
    graph = bytes_conv(64)
    with pytest.raises(KernelError, match=reason):
        lower_group(graph, replace(cpu_group(graph), schedule=replace(BYTES, **changes)))


def network(size: str) -> onnx.ModelProto:
    """Three convolutions, one of stride 2, and a residual sum."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]>\n'
        f"net (float[1, 64, {size}] x) => (float[1, 72, h, w] y) {{"
        " a = Conv<pads=[1,1,1,1]>(x, u) r = Relu(a) b = Conv<pads=[1,1,1,1]>(r, v) s = Add(b, x)"
        " y = Conv<pads=[1,1,1,1], strides=[2,2]>(s, t) }"
    )
    for name, out, seed in (("u", 64, 0), ("v", 64, 1), ("t", 72, 2)):
        data = np.round(eighths(out, 64, 3, 3, seed=seed)) / np.float32(8)
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    return model


def of_network(x: np.ndarray) -> np.ndarray:
    """With rounding where kernels round: before each convolution."""
    u, v, t = (numpy_helper.to_array(w).astype(ml_dtypes.bfloat16) for w in network("8, 8").graph.initializer)

    def conv(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
        attrs = {
            "strides": (stride,) * 2, "before": (1, 1), "after": (1, 1), "dilations": (1, 1), "groups": 1,
            "layout": "NCX",
        }  # fmt: skip
        (y,) = reference("conv")([x.astype(ml_dtypes.bfloat16).astype(np.float32), w.astype(np.float32)], attrs)
        return np.asarray(y)

    return conv(conv(np.maximum(conv(x, u, 1), 0), v, 1) + x.astype(ml_dtypes.bfloat16).astype(np.float32), t, 2)


def check_network(found: np.ndarray, x: np.ndarray) -> None:
    """Sums of all convolutions but the last are exact, and rounded alike."""
    expected = of_network(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_network_of_images(permitted: None, unit: Any, threads: int) -> None:
    compiled = compile_model(network("15, 18"), str(cpu_with_tiles()), precision="bf16", num_threads=threads)
    templates = {group.schedule.template for group in compiled.plan.groups if group.anchor}
    assert templates == {"cpu_tile_conv"}
    x = eighths(1, 64, 15, 18)
    with load(compiled.to_bytes(), num_threads=threads) as module:
        check_network(module.run({"x": x})["y"], x)


def test_images_of_any_size(permitted: None, unit: Any) -> None:
    compiled = compile_model(
        network("height, width"), str(cpu_with_tiles()), precision="bf16", num_threads=1,
        dims={"height": (4, 40), "width": (4, 40)},
    )  # fmt: skip
    with load(compiled.to_bytes(), num_threads=1) as module:
        for height, width in ((4, 4), (7, 17), (16, 16), (5, 40), (33, 31)):
            x = eighths(1, 64, height, width, seed=width)
            check_network(module.run({"x": x})["y"], x)
