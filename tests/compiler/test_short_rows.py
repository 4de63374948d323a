"""Images that are made channels-last, with few channels: vectors run along the dimension in which they lie."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.passes.plan.cpu.loops import LoopPlan, alternating
from tilestitch.passes.plan.cpu.schedules import CpuLoopSchedule
from tilestitch.runtime import load

SCALE, ZERO = np.float32(0.03), np.uint8(126)


def quantised(shape: tuple[int | str, ...], before: int = 1, after: int = 1) -> onnx.ModelProto:
    """Quantised, padded by its zero point, and transposed, as before a first convolution."""
    pads = np.array([0, 0, before, before, 0, 0, after, after])
    stored = {"s": SCALE, "z": ZERO, "p": pads}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Pad", ["q", "p", "z"], ["w"]),
        helper.make_node("Transpose", ["w"], ["y"], perm=[0, 2, 3, 1]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.UINT8, [None] * 4)
    graph = helper.make_graph(
        nodes, "g", [x], [y], [numpy_helper.from_array(np.asarray(v), n) for n, v in stored.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def expected(x: np.ndarray, before: int = 1, after: int = 1) -> np.ndarray:
    q = np.clip(np.round(x / SCALE) + ZERO, 0, 255).astype(np.uint8)
    sides = [(0, 0), (0, 0), (before, after), (before, after)]
    return np.pad(q, sides, constant_values=ZERO).transpose(0, 2, 3, 1)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 0), (0, 2), (0, 0)])
@pytest.mark.parametrize(
    "shape", [(1, 3, 224, 224), (2, 3, 37, 53), (1, 2, 33, 64), (1, 7, 9, 41), (1, 3, 5, 5), (0, 3, 40, 40)]
)
def test_images_become_channels_last(shape: tuple[int, ...], before: int, after: int) -> None:
    compiled = compile_model(quantised(shape, before, after), num_threads=1)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 3
    with load(compiled.to_bytes(), num_threads=1) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], expected(x, before, after))


def test_no_element_is_looked_for_by_quotients() -> None:
    (group,) = compile_model(quantised((1, 3, 64, 80)), "cpu:x86-64-v4", num_threads=1).plan.groups
    assert isinstance(group.schedule, CpuLoopSchedule)
    assert (group.schedule.extents, group.schedule.order) == ((66, 3, 82), (0, 2, 1))
    assert group.schedule.cuts == (1, 81)


def test_open_images_become_channels_last() -> None:
    compiled = compile_model(quantised((1, 3, "h", "w")), num_threads=2)
    with load(compiled.to_bytes(), num_threads=2) as loaded:
        for size in ((1, 1), (30, 47), (64, 200)):
            x = np.random.default_rng(0).standard_normal((1, 3, *size)).astype(np.float32)
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], expected(x))


def turned(shape: tuple[int, ...], dtype: str, op: str, *, back: bool) -> onnx.ModelProto:
    """Made channels-last, or `back`, perhaps after something is computed."""
    last = (shape[0], *shape[2:], shape[1])
    axes = [0, len(shape) - 1, *range(1, len(shape) - 1)] if back else [0, *range(2, len(shape)), 1]
    given, made = (",".join(map(str, dims)) for dims in ((last, shape) if back else (shape, last)))
    body = f"y = Transpose<perm={axes}>(x)" if not op else f"t = {op}(x)  y = Transpose<perm={axes}>(t)"
    head = '<ir_version: 10, opset_import: ["": 21]> g '
    return onnx.parser.parse_model(f"{head} ({dtype}[{given}] x) => ({dtype}[{made}] y) {{ {body} }}")


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
@pytest.mark.parametrize("op", ["", "Neg"])
@pytest.mark.parametrize("dtype", ["float", "float16", "double", "int8", "int16", "int64"])
@pytest.mark.parametrize("shape", [(1, 3, 40, 50), (2, 4, 1201), (5, 2, 137), (1, 3, 70001), (64, 3, 17)])
def test_few_channels_are_interleaved_and_separated_in_registers(
    shape: tuple[int, ...], dtype: str, op: str, target: str, back: bool
) -> None:
    compiled = compile_model(turned(shape, dtype, op, back=back), target, num_threads=2)
    (group,) = compiled.plan.groups
    assert isinstance(group.schedule, CpuLoopSchedule)
    if back:
        (node,) = (n for n in compiled.specialisations[0].graph.nodes if n.name == group.nodes[0])
        ((last,), accesses) = (
            node.inputs,
            alternating(node.inputs, compiled.specialisations[0].graph.outputs, group.schedule),
        )
        assert accesses[0] == shape[1] and [a.value for a in accesses[1]] == [last]
    else:
        assert LoopPlan(int(np.prod(shape)), group.schedule).interleaved == shape[1]
    numpy_type = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    given = (shape[0], *shape[2:], shape[1]) if back else shape
    x = (np.random.default_rng(0).standard_normal(given) * 99).astype(numpy_type)
    with load(compiled.to_bytes(), num_threads=2) as loaded:
        wanted = np.moveaxis(-x if op else x, *((-1, 1) if back else (1, -1)))
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], wanted)


@pytest.mark.parametrize("dtype", ["float", "float16", "int8"])
@pytest.mark.parametrize("shape", [(64, 3, 16), (5, 4, 20), (3, 2, 49), (1, 6, 127), (1, 3, "n")])
def test_fewer_pixels_than_two_vectors_are_interleaved_by_narrower_ones(shape: tuple[int, ...], dtype: str) -> None:
    """As where their number is open: few are typical of it."""
    compiled = compile_model(turned(shape, dtype, "", back=False), "cpu:x86-64-v4", num_threads=1)
    schedule = compiled.plan.groups[0].schedule
    assert isinstance(schedule, CpuLoopSchedule)
    assert LoopPlan(prod(schedule.extents), schedule).interleaved == shape[1]


@pytest.mark.parametrize("nodes", [
    "t = Slice(x, one, many, axes)  y = Transpose<perm=[0, 3, 1, 2]>(t)",  # begins after the first pixel
    "t = Transpose<perm=[0, 3, 1, 2]>(x)  u = Reshape(x, there)  y = Add(t, u)",  # the operand as it lies, too
    "t = Pad(x, sides)  y = Transpose<perm=[0, 3, 1, 2]>(t)",
    "t = Concat<axis=1>(x, x)  y = Transpose<perm=[0, 3, 1, 2]>(t)",
    "t = Slice(x, one, many, last)  y = Transpose<perm=[0, 3, 1, 2]>(t)",  # two of three channels
    "t = Transpose<perm=[0, 3, 1, 2]>(x)  w = Transpose<perm=[0, 3, 1, 2]>(v)  y = Sub(t, w)",
])  # fmt: skip
def test_only_what_lies_in_turn_is_separated(nodes: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18]> g
        (float[1, 37, 53, 3] x, float[1, 37, 53, 3] v) => (float[b, c, h, w] y)
        <int64[1] one = {{1}}, int64[1] many = {{99}}, int64[1] axes = {{1}}, int64[1] last = {{3}},
         int64[4] there = {{1, 3, 37, 53}}, int64[8] sides = {{0, 1, 2, 0, 0, 3, 1, 0}}> {{ {nodes} }}""")
    random = np.random.default_rng(0)
    feeds = {name: random.random((1, 37, 53, 3), np.float32) for name in ("x", "v")}
    feeds = {value.name: feeds[value.name] for value in model.graph.input}
    with load(compile_model(model, num_threads=2).to_bytes(), num_threads=2) as loaded:
        np.testing.assert_array_equal(loaded.run(feeds)["y"], rivals.onnxruntime(model, 1)(feeds)[0])


def test_large_images_are_divided_among_threads() -> None:
    (group,) = compile_model(turned((1, 3, 640, 640), "float", "", back=False), num_threads=2).plan.groups
    assert isinstance(group.schedule, CpuLoopSchedule)
    assert LoopPlan(3 * 640 * 640, group.schedule).tasks >= 8
