"""Weights in blocks of 4 and 8 bits stay packed, and results are ONNX Runtime's, or numpy's over dequantised ones."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = os.environ["ORT_TELEMETRY_DISABLED"] = "1"

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.codegen.kernel_harness import cpu_group, run_launches
from tests.compiler.quantised_models import unoptimised
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.ir import Graph, TensorType, reference
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan.cpu.schedules import CpuBlockGemmSchedule, CpuGemmSchedule
from tilestitch.passes.planner import check_plan
from tilestitch.passes.rewrite import weight_only
from tilestitch.passes.schedule.cpu.gemm import MOST_STREAMED
from tilestitch.runtime import load

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
"""Of the largest result."""


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def model(nodes: list[Any], x: np.ndarray, width: int, constants: Mapping[str, np.ndarray], opset: int = 21) -> bytes:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    stored = [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()]
    inputs = [helper.make_tensor_value_info("x", kind, x.shape)]
    outputs = [helper.make_tensor_value_info("y", kind, (*x.shape[:-1], width))]
    graph = helper.make_graph(nodes, "blocks", inputs, outputs, stored)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString())


def n_bits(x: np.ndarray, width: int, bits: int = 4, block: int = 32, zeros: bool = False, bias: bool = False) -> bytes:
    depth = x.shape[-1]
    blocks = -(-depth // block)
    constants = {
        "w": random(1).integers(0, 256, (width, blocks, block * bits // 8)).astype(np.uint8),
        "s": (random(2).random((width, blocks)) * 0.1).astype(x.dtype),
    }
    if zeros:
        constants["z"] = random(3).integers(0, 256, (width, -(-blocks * bits // 8))).astype(np.uint8)
    if bias:
        constants["b"] = random(4).standard_normal(width).astype(x.dtype)
    names = ["x", "w", "s", "z" if zeros else "", "", "b" if bias else ""]
    attrs = {"K": depth, "N": width, "bits": bits, "block_size": block, "domain": "com.microsoft"}
    return model([helper.make_node("MatMulNBits", names, ["y"], **attrs)], x, width, constants)


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random(7).standard_normal(shape).astype(dtype)


def packed_kernels(compiled: CompiledModel) -> int:
    parts = [part for group in compiled.plan.groups for part in group.parts or (group,)]
    return sum(isinstance(part.schedule, CpuBlockGemmSchedule) for part in parts)


def check(data: bytes, x: np.ndarray, expected: np.ndarray | None = None, target: str = "cpu") -> CompiledModel:
    """Equal, and of kernels that read the blocks."""
    compiled = compile_model(data, target, num_threads=1)
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        actual = loaded.run({"x": x})["y"]
    wanted = unoptimised(data, {"x": x}) if expected is None else expected
    assert actual.shape == wanted.shape and actual.dtype == wanted.dtype
    wide, close = actual.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(close)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(close))
    np.testing.assert_array_equal(wide[~finite], close[~finite])
    tolerance = TOLERANCE[x.dtype.name] * np.abs(close[finite]).max(initial=1e-30)
    assert np.abs(wide[finite] - close[finite]).max(initial=0) <= tolerance
    assert packed_kernels(compiled) == (1 if actual.size else 0)
    return compiled


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 64), (4, 128), (4, 256), (8, 32), (2, 16)])
def test_blocks_of_all_sizes(bits: int, block: int, zeros: bool) -> None:
    x = floats(3, 200)
    check(n_bits(x, 70, bits, block, zeros), x)


def by_index(data: bytes, groups: np.ndarray) -> bytes:
    """The model with `g_idx`."""
    loaded = onnx.load_from_string(data)
    loaded.graph.initializer.append(numpy_helper.from_array(groups.astype(np.int32), "g"))
    loaded.graph.node[0].input[4] = "g"
    return bytes(loaded.SerializeToString())


def dequantised(data: bytes, groups: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What the standard says, in float64."""
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(data).graph.initializer}
    codes, points = (
        np.stack([part & 15, part >> 4], -1).reshape(len(part), -1)
        for part in (stored["w"].reshape(len(stored["w"]), -1), stored["z"])
    )
    w = (codes[:, : len(groups)].astype(np.float64) - points[:, groups]) * stored["s"][:, groups]
    return np.asarray(x @ w.T + stored["b"], np.float32)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize(("depth", "block"), [(128, 32), (100, 16)])
def test_rows_of_a_block_that_lie_anywhere(depth: int, block: int, rows: int, zeros: bool) -> None:
    """As GPTQ leaves them when it goes by their importance; the last block may be a part of one."""
    x = floats(rows, depth)
    groups = random(5).permutation(np.arange(depth) // block)
    data = by_index(n_bits(x, 70, 4, block, zeros, bias=True), groups)
    check(data, x, dequantised(data, groups, x) if zeros else None)  # ONNX Runtime takes other zero points
    assert (
        len(compile_model(by_index(n_bits(x, 70, 4, block), np.arange(depth) // block), num_threads=1).plan.groups) == 1
    )


def test_blocks_of_uneven_sizes_are_dequantised() -> None:
    x = floats(3, 64)
    data = by_index(n_bits(x, 70), np.arange(64) // 40)
    compiled = compile_model(data, num_threads=1)
    assert packed_kernels(compiled) == 0
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        np.testing.assert_allclose(loaded.run({"x": x})["y"], unoptimised(data, {"x": x}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 17])
@pytest.mark.parametrize("width", [1, 64, 101])
def test_rows_and_columns(rows: int, width: int) -> None:
    x = floats(rows, 40)
    check(n_bits(x, width, zeros=True, bias=True), x)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4"])
@pytest.mark.parametrize("rows", [1, 11])
@pytest.mark.parametrize("bits", [4, 8])
def test_other_vector_units(target: str, rows: int, bits: int) -> None:
    x = floats(rows, 72)
    check(n_bits(x, 37, bits, 16, True), x, target=target)


@pytest.mark.parametrize("rows", [2, 20])
def test_more_dimensions(rows: int) -> None:
    x = floats(2, rows, 64)
    check(n_bits(x, 33), x)


@pytest.mark.parametrize("rows", [1, 12])
def test_half_floats(rows: int) -> None:
    x = floats(rows, 96, dtype=np.float16)
    check(n_bits(x, 50, zeros=True), x)


@pytest.mark.parametrize("rows", [1, 12])
def test_brain_floats(rows: int) -> None:
    x = floats(rows, 64, dtype=ml_dtypes.bfloat16)
    codes, scales = random(1).integers(-8, 8, (64, 24)), (random(2).random((2, 24)) * 0.1).astype(ml_dtypes.bfloat16)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    data = model(nodes, x, 24, {"w": codes.astype(ml_dtypes.int4), "s": scales})
    wanted = x.astype(np.float32) @ (codes * scales.astype(np.float32).repeat(32, 0))
    check(data, x, wanted.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("zeros", [False, True])
def test_what_is_no_number(value: float, rows: int, zeros: bool) -> None:
    x = floats(rows, 70)
    x[0, 3] = value
    check(n_bits(x, 20, zeros=zeros), x)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_dequantised_in_blocks(dtype: str, zeros: bool, turned: bool) -> None:
    """Along the reduction of a MatMul, or of a Gemm with a transposed matrix; the last of 5 blocks is partial."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    low, high = (-8, 8) if dtype == "int4" else (0, 16) if dtype == "uint4" else (0, 100)
    codes, points = (random(s).integers(low, high, shape) for s, shape in ((1, (70, 21)), (3, (5, 21))))
    scales = (random(2).random((5, 21)) * 0.1).astype(np.float32)
    weights = ((codes - zeros * points.repeat(16, 0)[:70]) * scales.repeat(16, 0)[:70]).astype(np.float32)
    arrays = {"w": codes.astype(kind), "s": scales} | ({"z": points.astype(kind)} if zeros else {})
    if turned:
        arrays = {name: np.ascontiguousarray(data.T) for name, data in arrays.items()}
    last = (
        helper.make_node("Gemm", ["x", "v"], ["y"], transB=1)
        if turned
        else helper.make_node("MatMul", ["x", "v"], ["y"])
    )
    nodes = [
        helper.make_node(
            "DequantizeLinear", list(("w", "s", "z")[: len(arrays)]), ["v"], axis=int(turned), block_size=16
        ),
        last,
    ]
    x = floats(4, 70)
    check(model(nodes, x, 21, arrays), x, x @ weights)


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("dtype", ["int4", "int8", "uint8"])
def test_a_scale_for_each_column_times_floats(dtype: str, axis: int | None) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    codes = random(1).integers(0, 8, (43, 21))
    scales = (random(2).random(() if axis is None else 21) * 0.1).astype(np.float32)
    zero = np.full(scales.shape, 3)
    arrays = {"w": codes.astype(kind), "s": np.asarray(scales), "z": zero.astype(kind)}
    attrs = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], **attrs),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    x = floats(4, 43)
    check(model(nodes, x, 21, arrays), x, x @ ((codes - 3) * scales).astype(np.float32))


@pytest.mark.parametrize("quant_type", [0, 1])
@pytest.mark.parametrize("rows", [1, 13])
def test_tables_of_floats(quant_type: int, rows: int) -> None:
    x = floats(rows, 128)
    arrays = {
        "w": random(1).integers(0, 256, 128 * 24 // 2).astype(np.uint8),
        "s": random(2).random(128 * 24 // 64).astype(np.float32),
    }
    attrs = {"K": 128, "N": 24, "block_size": 64, "quant_type": quant_type, "domain": "com.microsoft"}
    check(model([helper.make_node("MatMulBnb4", ["x", "w", "s"], ["y"], **attrs)], x, 24, arrays), x)


def test_two_nodes_share_weights() -> None:
    """Packed once, where both have kernels of the same panels."""
    x = floats(1, 512)
    arrays = {
        "w": random(1).integers(0, 256, (512, 16, 16)).astype(np.uint8),
        "s": (random(2).random((512, 16)) * 0.1).astype(np.float32),
    }
    attrs = {"K": 512, "N": 512, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "w", "s"], ["h"], **attrs),
        helper.make_node("MatMulNBits", ["h", "w", "s"], ["y"], **attrs),
    ]
    data = model(nodes, x, 512, arrays)
    compiled = compile_model(data, num_threads=1)
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        actual = loaded.run({"x": x})["y"]
    expected = unoptimised(data, {"x": x})
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()
    assert packed_kernels(compiled) == 2
    assert len(compiled.to_bytes()) < len(data) + 40_000


def test_weights_that_are_kept_are_neither_dequantised_nor_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for their transposes, which nothing reads any more, and not for each set of sizes."""
    x = floats(3, 200)
    encoded: list[int] = []
    joined = BlockFormat.joined

    def counted(form: BlockFormat, *data: Any) -> np.ndarray:
        encoded.append(len(encoded))
        return joined(form, *data)

    monkeypatch.setattr(BlockFormat, "joined", counted)
    monkeypatch.setattr(weight_only, "reference", lambda op: pytest.fail(f"{op} is computed"))
    proto = onnx.load_from_string(n_bits(x, 70, zeros=True))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    compiled = compile_model(proto, num_threads=1, favour=[{"rows": 1}])
    assert len(compiled.specialisations) > 1
    assert len(encoded) == 1


def test_weights_stay_packed_in_the_artifact() -> None:
    x = floats(1, 1024)
    data = n_bits(x, 1024)
    assert len(compile_model(data, num_threads=1).to_bytes()) < len(data) + 32_000


def test_what_is_not_kept_is_said_and_right() -> None:
    """Weights that something else reads too, and targets without look-ups of 16 floats."""
    x = floats(2, 64)
    arrays = {
        "w": random(1).integers(0, 256, 64 * 24 // 2).astype(np.uint8),
        "s": random(2).random(64 * 24 // 64).astype(np.float32),
    }
    attrs = {"K": 64, "N": 24, "block_size": 64, "quant_type": 1, "domain": "com.microsoft"}
    data = model([helper.make_node("MatMulBnb4", ["x", "w", "s"], ["y"], **attrs)], x, 24, arrays)
    compiled = compile_model(data, "cpu:x86-64-v3", num_threads=1)
    assert packed_kernels(compiled) == 0
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        actual = loaded.run({"x": x})["y"]
    np.testing.assert_allclose(actual, unoptimised(data, {"x": x}), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("planner", ["none", "injective", "xla", "explore"])
def test_all_planners(planner: str) -> None:
    x = floats(3, 64)
    data = n_bits(x, 20)
    compiled = compile_model(data, num_threads=1, planner=planner)
    assert packed_kernels(compiled) == 1
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        np.testing.assert_allclose(loaded.run({"x": x})["y"], unoptimised(data, {"x": x}), rtol=1e-4, atol=1e-5)


def test_rows_of_any_number() -> None:
    proto = onnx.load_from_string(n_bits(floats(2, 72), 37, zeros=True))
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    data = proto.SerializeToString()
    compiled = compile_model(data, num_threads=1)
    assert packed_kernels(compiled) == 1
    (group,) = (group for group in compiled.plan.groups if isinstance(group.schedule, CpuBlockGemmSchedule))
    assert isinstance(group.schedule, CpuBlockGemmSchedule) and group.schedule.few == MOST_STREAMED
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        for rows in (0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 40):
            x = floats(rows, 72)
            np.testing.assert_allclose(loaded.run({"x": x})["y"], unoptimised(data, {"x": x}), rtol=1e-4, atol=1e-4)


def test_code_does_not_grow_with_the_length_of_a_block() -> None:
    """A scale for each column makes one block of the whole reduction."""
    lengths = []
    for depth in (509, 4093):
        arrays = {
            "w": random(1).integers(-128, 128, (depth, 37)).astype(np.int8),
            "s": (random(2).random(37) * 0.1).astype(np.float32),
            "z": np.zeros(37, np.int8),
        }
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=1),
            helper.make_node("MatMul", ["x", "v"], ["y"]),
        ]
        proto = onnx.load_from_string(model(nodes, floats(1, depth), 37, arrays))
        for value in (proto.graph.input[0], proto.graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
        data = proto.SerializeToString()
        compiled = compile_model(data, num_threads=1, cache=False, keep_source=True)
        assert packed_kernels(compiled) == 1
        x = floats(1, depth)
        with load(compiled.to_bytes(), num_threads=1) as loaded:
            np.testing.assert_allclose(loaded.run({"x": x})["y"], unoptimised(data, {"x": x}), rtol=1e-4, atol=1e-2)
        with zipfile.ZipFile(io.BytesIO(compiled.to_bytes())) as archive:
            texts = [archive.read(name) for name in archive.namelist() if name.endswith(".tir.py")]
        lengths.append(sum(text.count(b"\n") for text in texts))
    assert lengths[1] < 1.5 * lengths[0]


# -- schedules ---------------------------------------------------------------------------------------------------------

FORM = BlockFormat("int4", 16, "float16", True, 40)
REGISTERS = CpuBlockGemmSchedule(3, 2, 16, 1, 1, 40, stage_left=True, look_up=True)
PANELS = CpuBlockGemmSchedule(2, 2, 16, 1, 1, 40, widen_right=True, look_up=True)


def block_graph(rows: int = 3, width: int = 50) -> Graph:
    graph = Graph("blocks")
    x = graph.add_input("x", TensorType("float32", (rows, FORM.depth)))
    codes, points = (
        random(s).integers(0, 16, (width, n)).astype(np.uint8) for s, n in ((1, FORM.depth), (2, FORM.blocks))
    )
    scales = random(3).random((width, FORM.blocks)).astype(np.float16)
    w = graph.constant(FORM.encode(codes, scales, points))
    graph.outputs = [graph.emit("block_matmul", x, w, **FORM.attrs)]
    return graph


@pytest.mark.parametrize(
    ("schedule", "changes", "tasks", "scratch_bytes"),
    [
        (REGISTERS, {}, 2, 3 * 48 * 4),  # rows are copied up to whole blocks
        (REGISTERS, {"rows": 2, "block_tiles": 2}, 2, 3 * 48 * 4),
        (REGISTERS, {"lanes": 8, "vectors": 3, "spill": True, "look_up": False}, 3, 3 * 48 * 4 + 3 * 24 * 4 + 32),
        (REGISTERS, {"lanes": 16, "vectors": 1, "prefetch_ahead": True}, 4, 3 * 48 * 4),
        (REGISTERS, {"look_up": False}, 2, 3 * 48 * 4),
        (PANELS, {}, 4, 48 * 32 * 4),
        (PANELS, {"look_up": False, "vectors": 3}, 4, 48 * 48 * 4),
        (PANELS, {"stage_left": True, "block_tiles": 2}, 2, 3 * 48 * 4 + 48 * 32 * 4),
        (PANELS, {"k_block": 13, "block_tiles": 2}, 2, 48 * 32 * 4 + 3 * 32 * 4),
        (PANELS, {"few": 8, "stage_left": True, "block_tiles": 2}, 2, 3 * 48 * 4 + 48 * 32 * 4),
        (PANELS, {"few": 1, "stage_left": True, "spill": True}, 4, 2 * 48 * 4 + 48 * 32 * 4 + 2 * 32 * 4),
    ],
)
def test_kernels_are_those_of_the_plan(
    schedule: CpuBlockGemmSchedule, changes: dict[str, Any], tasks: int, scratch_bytes: int
) -> None:
    graph = block_graph()
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=replace(schedule, **changes)))
    x, w = floats(3, FORM.depth), graph.nodes[0].inputs[1]
    assert w.data is not None
    (y,) = run_launches([launch], {"x": x, w.name: w.data}, graph.outputs).values()
    (expected,) = reference("block_matmul")([x, w.data], graph.nodes[0].attrs)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)
    assert launch.tasks == tasks and launch.scratch_bytes == scratch_bytes


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (CpuGemmSchedule(3, 2, 16, 1, 1, 40), "the template of blocks"),
        (replace(REGISTERS, stage_left=False), "whole blocks of 16"),
        (replace(REGISTERS, k_block=20), "one pass"),
        (replace(REGISTERS, prefetch_next=True), "one at a time"),
        (replace(PANELS, rows_outer=True), "one at a time"),
        (replace(PANELS, lanes=8), "in vectors of 16 lanes"),
        (replace(PANELS, few=4), "whole blocks of 16"),
        (replace(REGISTERS, few=4), "where panels are widened for more"),
    ],
)
def test_what_no_kernel_does_is_refused(schedule: CpuGemmSchedule, problem: str) -> None:
    graph = block_graph()
    with pytest.raises(KernelError, match=problem):
        lower_group(graph, replace(cpu_group(graph), schedule=schedule))


def test_tables_are_for_vector_units_that_look_up() -> None:
    graph = block_graph()
    plan = make_plan(graph, PassContext(TargetInfo(isa="avx512")))
    other = replace(plan, target=replace(plan.target, isa="avx2"))
    check_plan(plan, graph)
    with pytest.raises(PlanError, match="looks up floats"):
        check_plan(other, graph)


@pytest.mark.parametrize("scale", [np.inf, np.nan, 3e38])
def test_scales_that_make_infinities(scale: float) -> None:
    """0 * infinity is NaN in one sum, however it is scaled: such weights are dequantised."""
    x = floats(2, 32)
    x[0] = 0
    arrays = {"w": np.full((8, 2, 8), 0xF1, np.uint8), "s": np.full((8, 2), scale, np.float32)}
    attrs = {"K": 32, "N": 8, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
    data = model([helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], **attrs)], x, 8, arrays)
    compiled = compile_model(data, num_threads=1)
    assert packed_kernels(compiled) == 0
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        assert np.isnan(loaded.run({"x": x})["y"][0]).all()


def test_few_rows_are_dequantised_in_registers() -> None:
    def widened(rows: int) -> bool:
        (group,) = make_plan(block_graph(rows), PassContext(TargetInfo(isa="avx512"))).groups
        assert isinstance(group.schedule, CpuBlockGemmSchedule)
        return group.schedule.widen_right

    assert not widened(1) and not widened(8)
    assert widened(9) and widened(100)
