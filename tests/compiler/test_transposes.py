"""Transposes on CPUs: elements are exchanged in registers, of known and of open sizes, alone or beside arithmetic."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest

from tilestitch.compiler import compile_model
from tilestitch.passes.plan.cpu.loops import LoopPlan, alternating, interleaves, lying_across
from tilestitch.passes.plan.cpu.schedules import CpuLoopSchedule
from tilestitch.runtime import load

NUMPY = {"float": "float32", "double": "float64", "bfloat16": "uint16"}


def model(given: str, nodes: str, dtype: str = "float", head: str = "") -> onnx.ModelProto:
    result = "bool" if "Equal" in nodes else dtype
    rank = given.split(")")[0].split("]")[0].count(",") + 1
    dims = ",".join("abcde"[:rank])
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({given}) => ({result}[{dims}] r) {head} {{ {nodes} }}'
    )


def loops_of(compiled: object) -> CpuLoopSchedule:
    (group,) = compiled.plan.groups  # type: ignore[attr-defined]
    assert isinstance(group.schedule, CpuLoopSchedule)
    return group.schedule


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", ["float", "uint8", "float16", "int64"])
@pytest.mark.parametrize("channels", [2, 3, 5, 6, 7, 8, 12])
def test_vectors_of_few_channels_and_any_number_of_pixels(channels: int, dtype: str, back: bool) -> None:
    given = f"{dtype}[n, h, w, {channels}] x" if back else f"{dtype}[n, {channels}, h, w] x"
    nodes = f"r = Transpose<perm={[0, 3, 1, 2] if back else [0, 2, 3, 1]}>(x)"
    compiled = compile_model(model(given, nodes, dtype), "cpu:x86-64-v4", num_threads=2)
    schedule = loops_of(compiled)
    graph = compiled.specialisations[0].graph
    (node,) = graph.nodes
    if back:
        assert alternating(node.inputs, graph.outputs, schedule)[0] == channels
    else:
        assert LoopPlan(graph.outputs[0].tensor_type.num_elements, schedule).interleaved == channels
    with load(compiled.to_bytes(), num_threads=2) as loaded:
        for batch, height, width in [(1, 1, 1), (2, 3, 5), (1, 16, 16), (3, 37, 53), (1, 200, 300)]:
            shape = (batch, height, width, channels) if back else (batch, channels, height, width)
            x = np.random.default_rng(0).integers(0, 255, shape).astype(NUMPY.get(dtype, dtype))
            np.testing.assert_array_equal(loaded.run({"x": x})["r"], np.moveaxis(x, *((-1, 1) if back else (1, -1))))


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("dtype", ["float", "uint8", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(64, 200), (33, 17), (9, 100), (2, 40, 31), (3, 65, 8), (16, 2, 16), (5, 13, 13)])
def test_blocks_are_transposed_in_registers(shape: tuple[int, ...], dtype: str, target: str) -> None:
    rank = len(shape)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    nodes = f"r = Transpose<perm={perm}>(x)"
    compiled = compile_model(model(f"{dtype}{list(shape)} x", nodes, dtype), target, num_threads=2)
    schedule, graph = loops_of(compiled), compiled.specialisations[0].graph
    if not interleaves(shape[-2], schedule.lanes) and not interleaves(shape[-1], schedule.lanes):
        (access,) = lying_across(graph.nodes[0].inputs, graph.outputs, schedule)
        assert access.value is graph.inputs[0] and LoopPlan(1, schedule).block >= 4
    x = np.random.default_rng(0).integers(0, 200, shape).astype(NUMPY.get(dtype, dtype))
    with load(compiled.to_bytes(), num_threads=2) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["r"], x.transpose(perm))


@pytest.mark.parametrize("nodes", [
    "t = Transpose<perm=[1, 0]>(x)  r = Sub(t, y)",  # one operand in each direction
    "t = Transpose<perm=[1, 0]>(x)  u = Transpose<perm=[1, 0]>(z)  r = Mul(t, u)",
    "t = Transpose<perm=[1, 0]>(x)  u = Exp(t)  v = Add(u, t)  r = Neg(v)",
    "t = Transpose<perm=[1, 0]>(x)  r = Sub(t, row)",  # the same in each row
    "t = Transpose<perm=[1, 0]>(x)  u = Unsqueeze(column, one)  r = Sub(t, u)",  # the same in each column
    "t = Concat<axis=0>(x, z)  u = Transpose<perm=[1, 0]>(t)  r = Slice(u, nought, end, one)",
])  # fmt: skip
@pytest.mark.parametrize("sizes", [("45", "70"), ("n", "m"), ("n", "70"), ("45", "m")])
def test_arithmetic_beside_transposes(nodes: str, sizes: tuple[str, str]) -> None:
    n, m = sizes
    names = {"x": f"{n}, {m}", "z": f"{n}, {m}", "y": f"{m}, {n}", "row": n, "column": m}
    given = ", ".join(f"float[{dims}] {name}" for name, dims in names.items() if f"{name}" in nodes.replace("axis", ""))
    head = "<int64[1] nought = {0}, int64[1] end = {45}, int64[1] one = {1}>"
    compiled = compile_model(model(given, nodes, head=head), num_threads=2)
    random = np.random.default_rng(0)
    known = {"45": 45, "70": 70}
    reference = onnx.reference.ReferenceEvaluator(model(given, nodes, head=head))
    with load(compiled.to_bytes(), num_threads=2) as loaded:
        for rows, columns in itertools.product([1, 7, 16, 33, 45], [1, 8, 31, 70]):
            at = {n: known.get(n, rows), m: known.get(m, columns)}
            feeds = {
                i.name: random.standard_normal([at[d.strip()] for d in names[i.name].split(",")]).astype(np.float32)
                for i in loaded.inputs
            }
            want = reference.run(None, feeds)[0]
            np.testing.assert_allclose(loaded.run(feeds)["r"], want, rtol=2e-6, atol=1e-6)


def test_an_operand_that_is_also_read_as_it_lies() -> None:
    nodes = "t = Transpose<perm=[1, 0]>(x)  u = Reshape(x, back)  r = Add(t, u)"
    compiled = compile_model(model("float[45, 70] x", nodes, head="<int64[2] back = {70, 45}>"), num_threads=1)
    x = np.random.default_rng(0).random((45, 70), np.float32)
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["r"], x.T + x.reshape(70, 45))


def test_bits_stay_as_they_are() -> None:
    x = np.random.default_rng(0).integers(0, 1 << 32, (50, 70), np.uint32).view(np.float32)  # NaNs of all kinds
    compiled = compile_model(model("float[n, m] x", "r = Transpose<perm=[1, 0]>(x)"), num_threads=1)
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["r"].view(np.uint32), x.view(np.uint32).T)


@pytest.mark.parametrize("nodes", [
    "t = Pad(x, sides)  u = Slice(t, last, first, rows, back)",
    "t = Pad(x, sides)  u = Slice(t, nought, many, rows, two)",
    "t = Concat<axis=0>(x, y)  u = Slice(t, last, first, rows, back)",
])  # fmt: skip
def test_blocks_lie_within_operands(nodes: str) -> None:
    """Also where they are padded, or one of several, and traversed backwards or in steps: nothing else is read."""
    head = """<int64[4] sides = {3, 0, 7, 0}, int64[1] last = {-1}, int64[1] first = {-999}, int64[1] rows = {0},
        int64[1] back = {-1}, int64[1] nought = {0}, int64[1] many = {999}, int64[1] two = {2}>"""
    given = f"float[64, 48] x, float[{37 if 'two' in nodes else 74}, 48] z, float[10, 48] y"
    proto = model(given, f"{nodes}  v = Sub(u, z)  r = Transpose<perm=[1, 0]>(v)", head=head)
    compiled = compile_model(proto, num_threads=2)
    graph = compiled.specialisations[0].graph
    loops = CpuLoopSchedule(graph.outputs[0].shape, lanes=16, chunk=16, rows=1, edge=16)
    assert [access.value.name for access in lying_across(graph.inputs, graph.outputs, loops)] == ["z"]
    random = np.random.default_rng(0)
    with load(compiled.to_bytes(), num_threads=2) as loaded:
        feeds = {i.name: random.random(i.type.shape, np.float32) for i in loaded.inputs}
        want = onnx.reference.ReferenceEvaluator(proto).run(None, feeds)[0]
        np.testing.assert_array_equal(loaded.run(feeds)["r"], want)


@pytest.mark.parametrize(("shape", "edits"), [
    (("n", 45), {"edge": 1}),
    ((70, 45), {"edge": 1}),
    ((70, "m"), {"lanes": 1, "chunk": 1}),
    ((5, 400, 3), {"branch": 1, "branches": (0, 1, 3)}),
    ((5, 400, 3), {"branch": 0, "branches": (0, 2, 5)}),
])  # fmt: skip
def test_edited_loops_without_blocks(shape: tuple[int | str, ...], edits: dict[str, Any]) -> None:
    """Blocks of one element are none, and rows that branch are not separated."""
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    proto = model(f"float[{', '.join(map(str, shape))}] x", f"r = Transpose<perm={perm}>(x)")
    plan = compile_model(proto, num_threads=2).plan
    (group,) = plan.groups
    edited = replace(plan, groups=(replace(group, schedule=replace(group.schedule, **edits)),), launches=None)
    x = np.random.default_rng(0).random([33 if isinstance(d, str) else d for d in shape], np.float32)
    with load(compile_model(proto, plan=edited, num_threads=2).to_bytes(), num_threads=2) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["r"], x.transpose(perm))
