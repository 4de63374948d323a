"""Convolutions on the emulated device, against numpy: implicit GEMMs, narrow groups, transposed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.contraction_harness import check, target
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.codegen.launch import CountersArg
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.types import to_numpy_dtype

LAYOUTS = ["NCX", "NXC"]


def check_conv(
    layout: str, spatial: tuple[int, ...], kernel: tuple[int, ...], channels: int, out: int, *, op: str = "conv",
    images: int = 2, groups: int = 1, dtype: str = "float32", out_dtype: str | None = None,
    precision: str | None = None, **attrs: Any,
) -> tuple[CudaLaunch, ...]:  # fmt: skip
    """maximum(conv(x, w) + bias, 0) against numpy."""
    graph, last, rank = Graph(), layout == "NXC", len(spatial)
    x = (images, *spatial, channels) if last else (images, channels, *spatial)
    pair = (channels // groups, out) if op == "conv" else (channels, out // groups)
    w = (*kernel, *pair) if last else (*(pair if op == "conv_transpose" else pair[::-1]), *kernel)
    defaults = {"strides": 1, "before": 0, "after": 0, "dilations": 1}
    defaults.update({"output_padding": 0} if op == "conv_transpose" else {})
    given = {name: attrs.get(name, default) for name, default in defaults.items()}
    spread = {name: v if isinstance(v, tuple) else (v,) * rank for name, v in given.items()}
    operands = [graph.add_input(n, TensorType(dtype, s)) for n, s in (("x", x), ("w", w))]
    more = {name: v for name, v in (("out_dtype", out_dtype), ("precision", precision)) if v is not None}
    y = graph.add(op, operands, {**spread, "groups": groups, "layout": layout, **more}).output
    bias = graph.add_input("b", TensorType(y.dtype, (out,) if last else (out, *(1,) * rank)))
    zero = graph.constant(np.zeros((), to_numpy_dtype(y.dtype)))
    graph.outputs = [graph.emit("maximum", graph.emit("add", y, bias), zero)]
    return check(graph, tf32=precision == "tf32")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("spatial", "kernel", "groups", "attrs"),
    [
        ((11,), (3,), 1, {"before": 1, "after": 2}),
        ((9, 7), (1, 1), 1, {"strides": 2}),
        ((9, 7), (3, 3), 1, {"before": 1, "after": 1}),
        ((9, 7), (3, 2), 2, {"strides": (2, 1), "dilations": (1, 2), "before": (0, 3), "after": (2, 1)}),
        ((5, 6, 4), (2, 3, 1), 1, {"before": 1}),
    ],
)
def test_convolutions(
    layout: str, spatial: tuple[int, ...], kernel: tuple[int, ...], groups: int, attrs: dict[str, Any]
) -> None:
    check_conv(layout, spatial, kernel, 6, 10, groups=groups, **attrs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("channels", "out", "groups"), [(16, 24, 1), (32, 48, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_wide_groups_are_gemms(layout: str, channels: int, out: int, groups: int, dtype: str) -> None:
    launches = check_conv(layout, (6, 5), (3, 3), channels, out, groups=groups, dtype=dtype, before=1, after=1)
    assert launches[0].kind == ("gemm_simt" if dtype == "float32" else "gemm_mma")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_pixels_and_many_channels_reduce_in_parts(layout: str) -> None:
    launches = check_conv(layout, (4, 4), (3, 3), 128, 36, images=1, before=1, after=1)
    assert any(isinstance(arg, CountersArg) for launch in launches for arg in launch.args), "in parts"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_depthwise_convolutions_are_direct(layout: str, multiplier: int, dtype: str) -> None:
    (launch,) = check_conv(
        layout, (8, 7), (3, 3), 19, 19 * multiplier, groups=19, dtype=dtype, before=1, after=1, strides=2
    )
    assert launch.kind == "conv_direct"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("channels", "out"), [(4, 6), (20, 24)])
def test_transposed_convolutions(layout: str, groups: int, channels: int, out: int) -> None:
    attrs: dict[str, Any] = {
        "strides": (2, 3),
        "before": (1, 0),
        "after": (0, 1),
        "dilations": (1, 2),
        "output_padding": (1, 0),
    }
    check_conv(layout, (5, 4), (3, 2), channels, out, op="conv_transpose", groups=groups, **attrs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_convolutions_on_the_tensor_cores(layout: str, stride: int) -> None:
    check_conv(layout, (5, 4), (3, 3), 16, 24, op="conv_transpose", dtype="float16", strides=stride, before=1, after=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("out", "kind"), [(12, "gemm_mma"), (4, "gemv")])
def test_images_of_three_channels(layout: str, out: int, kind: str) -> None:
    (launch,) = check_conv(layout, (9, 8), (3, 3), 3, out, dtype="float16", before=1, after=1, strides=2)
    assert launch.kind == kind


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
@pytest.mark.parametrize(("channels", "out", "groups"), [(9, 13, 1), (32, 48, 2)])
def test_tf32_where_it_is_allowed(layout: str, op: str, channels: int, out: int, groups: int) -> None:
    attrs: dict[str, Any] = {"groups": groups, "before": 1, "after": 1, "precision": "tf32", "op": op}
    (launch,) = check_conv(layout, (7, 6), (3, 3), channels, out, **attrs)
    assert launch.kind == "gemm_mma"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("channels", "out", "groups"), [(5, 11, 1), (32, 48, 2)])
def test_bytes_on_the_tensor_cores(layout: str, dtype: str, channels: int, out: int, groups: int) -> None:
    attrs: dict[str, Any] = {"groups": groups, "before": 1, "after": 1, "dtype": dtype, "out_dtype": "int32"}
    (launch,) = check_conv(layout, (7, 6), (3, 3), channels, out, strides=(1, 2), **attrs)
    assert launch.kind == "gemm_mma"


@pytest.mark.parametrize(("channels", "shared"), [(64, True), (40, False)])
def test_a_kernel_position_is_found_once_for_all_channels_of_a_step(channels: int, shared: bool) -> None:
    """Where channels are whole steps of the reduction, nothing is divided for each element that is fetched."""
    (launch,) = check_conv("NXC", (5, 6), (3, 3), channels, 32, dtype="float16", before=1, after=1)
    body = kernel_text(launch.func, target()).split("__global__")[1]
    assert (f"/ {channels})" not in body and f"% {channels})" not in body) == shared
