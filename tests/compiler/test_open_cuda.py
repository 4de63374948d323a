"""CUDA kernels over open sizes on the emulated device: compiled once, right at every size."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from onnx import NodeProto, numpy_helper, parser

from tests.compiled import assert_close
from tests.compiler.test_open_kernels import HEAD, KERNELS, SIZES, inputs
from tests.compiler.test_open_results import MODELS_BY_NAME
from tests.open_models.catalogue import fixture_of
from tests.open_models.sizes import spread
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.passes.plan.schedules import OpenElementwiseSchedule
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")
if shutil.which("g++") is None:
    pytest.skip("the emulated device needs g++", allow_module_level=True)

DIMS = {"b": (1, 64), "s": (1, 1 << 20)}
OWN = {
    "product": "(float[b, s, 24] x, float[b, 24, s] w) => (float[b, s, s] y) { y = MatMul(x, w) }",
    "steps": "(float[b, 8, s] x, float[b, s, 8] w) => (float[b, 8, 8] y) { y = MatMul(x, w) }",
    "image": "(float[b, 3, s, 5] x, float[8, 3, 3, 3] w) => (float[b, 8, s, 5] y)\n"
    "{ c = Conv<pads=[1, 1, 1, 1]>(x, w)  p = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(c)  y = Relu(p) }",
    "turned": "(float[b, s, 2, 8] x) => (float[b, 2, s, 8] y) { t = Transpose<perm=[0, 2, 1, 3]>(x)  y = Tanh(t) }",
}
NATIVE = {**KERNELS, **OWN}


def test_one_kernel_is_right_at_every_size() -> None:
    """All of them in one artifact would be one graph; here, each is loaded for itself."""
    for name, text in NATIVE.items():
        model = parser.parse_model(HEAD + text)
        compiled = compile_model(model, "emulator", dims=DIMS)
        assert compiled.explain()["host"]["steps"] == 0, name
        reference = rivals.onnxruntime(model, 1)
        with load(compiled.to_bytes(), device="emulator") as module:
            for b, s in SIZES[:6]:
                feeds = inputs(model, {"b": b, "s": s})
                for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                    assert_close(actual, wanted, MODELS[wanted.dtype.name if wanted.dtype.kind == "f" else "float32"])


@pytest.mark.parametrize("width", [32, 128])
def test_gates_of_few_rows_are_those_of_their_units(width: int) -> None:
    """Several warps computed one unit, and none the next ones, as columns were counted by periods."""
    model = parser.parse_model(
        f"{HEAD}(float[1, s, 64] x) => (float[1, 1, s, {width}] y) {{ y = LSTM<hidden_size={width}>(x, w, r) }}"
    )
    rng = np.random.default_rng(0)
    for name, depth in (("w", 64), ("r", width)):
        values = (rng.standard_normal((1, 4 * width, depth)) / depth**0.5).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    compiled = compile_model(model, "emulator")
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), device="emulator") as module:
        for rows in (1, 3, 8, 9):
            feeds = inputs(model, {"s": rows})
            (found,), (wanted,) = module.run(feeds).values(), reference(feeds)
            assert_close(found, wanted, MODELS["float32"])


@pytest.mark.parametrize(("count", "width"), [(2, 5), (5, 32), (33, 32)])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_operands_of_a_concat_along_a_known_dimension_have_code_of_their_own(
    count: int, width: int, dtype: str
) -> None:
    """Every thread loaded an element of all."""
    names = [f"x{number}" for number in range(count)]
    given = ", ".join(f"{dtype}[b, 3, {width}] {name}" for name in names)
    text = f"({given}) => ({dtype}[b, {3 * count}, {width}] y) {{ y = Concat<axis=1>({', '.join(names)}) }}"
    model = parser.parse_model(HEAD + text)
    compiled = compile_model(model, "emulator", dims={"b": (0, 64)})
    schedules = [group.schedule for plan in compiled.plans for group in plan.groups]
    assert [s.cuts for s in schedules if isinstance(s, OpenElementwiseSchedule)]
    assert all(s.cuts for s in schedules if isinstance(s, OpenElementwiseSchedule))
    with load(compiled.to_bytes(), device="emulator") as module:
        for b in (0, 1, 7):
            feeds = inputs(model, {"b": b})
            (found,) = module.run(feeds).values()
            np.testing.assert_array_equal(found, np.concatenate([feeds[name] for name in names], 1))


FOUR_SIZES = [
    "encoder.script", "gpt2.dynamo", "llama.script", "whisper.dynamo", "resnet.dynamo", "mobilenet.script",
    "keras_cnn.keras", "dlrm.script",
]  # fmt: skip
"""Each of the models that have to compile with no host step, in one of its styles."""


@pytest.mark.parametrize("is_given", [True, False], ids=["ranges", "default"])
@pytest.mark.parametrize("name", FOUR_SIZES)
def test_open_models_are_right_at_four_sizes_and_leave_nothing_to_the_host(name: str, is_given: bool) -> None:
    fixture = fixture_of(name)
    compiled = compile_model(fixture.model, "emulator", dims=dict(fixture.ranges) if is_given else None)
    assert compiled.explain()["host"]["steps"] == 0
    reference = rivals.onnxruntime(fixture.model, 1)
    with load(compiled.to_bytes(), device="emulator") as module:
        for number, sizes in enumerate(spread(fixture.ranges, 4)):
            feeds = fixture.feeds(sizes, np.random.default_rng(number))
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])


def test_accesses_are_as_wide_as_sizes_certainly_allow() -> None:
    def lanes(text: str) -> int:
        compiled = compile_model(parser.parse_model(HEAD + text), "emulator", dims=DIMS)
        (group,) = compiled.specialisations[0].plan.groups
        assert isinstance(group.schedule, OpenElementwiseSchedule)
        return group.schedule.lanes

    assert lanes("(float[b, s, 24] x) => (float[b, s, 24] y) { y = Neg(x) }") == 4
    assert lanes("(float[b, s, 6] x) => (float[b, s, 6] y) { y = Neg(x) }") == 2
    assert lanes("(float[b, s] x) => (float[b, s] y) { y = Neg(x) }") == 1


def test_what_has_no_kernel_for_all_sizes_is_left_to_the_host_with_the_reason() -> None:
    model = parser.parse_model(
        HEAD + "(float[b, 8] x, bool[b] m) => (float[8, 8] y)\n"
        "{ g = Compress<axis=0>(x, m)  t = Transpose<perm=[1, 0]>(g)  y = MatMul(t, g) }"
    )
    compiled = compile_model(model, "emulator")
    (reason,) = (each for each in compiled.explain()["host"]["reasons"] if each["rule"] == "host.open_kernel")
    assert reason["reason"].startswith("matmul has a result where") and reason["reason"].endswith("no kernel for that")
    with load(compiled.to_bytes(), device="emulator") as module:
        for kept in (0, 2, 3):
            feeds = {"x": inputs(model, {"b": 3})["x"], "m": np.arange(3) < kept}
            assert_close(module.run(feeds)["y"], feeds["x"][:kept].T @ feeds["x"][:kept], MODELS["float32"])


LINES = {
    "float32": "(float[a, s, b] x) => (float[a, 4, b] y, int64[a, 4, b] i) <int64[1] k = {4}>\n"
    "{ y, i = TopK<axis=1>(x, k) }",
    "float16": "(float16[s, b] x) => (float16[4, b] y, int64[4, b] i) <int64[1] k = {4}>\n"
    "{ y, i = TopK<axis=0, largest=0>(x, k) }",
    "int64": "(int64[b, s] x) => (int64[b, 4] y, int64[b, 4] i) <int64[1] k = {4}>\n{ y, i = TopK<largest=0>(x, k) }",
}


@pytest.mark.parametrize("dtype", LINES)
def test_the_best_of_lines_of_any_length(dtype: str) -> None:
    """Of elements that are often equal, and NaN, which is the largest."""
    model = parser.parse_model(HEAD + LINES[dtype])
    compiled = compile_model(model, "emulator")
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes(), device="emulator") as module:
        for a, b, s in [(1, 1, 4), (2, 3, 5), (1, 2, 255), (1, 1, 256), (2, 1, 257), (1, 1, 521)]:
            (x,) = inputs(model, {"a": a, "b": b, "s": s}).values()
            x = np.round(x)
            if x.dtype.kind == "f":
                x.reshape(-1)[x.size // 2] = np.nan
            wanted = stable_best(x, model.graph.node[0])
            for actual, expected in zip(module.run({"x": x}).values(), wanted, strict=True):
                np.testing.assert_array_equal(actual, expected)


def stable_best(x: np.ndarray, node: NodeProto) -> tuple[np.ndarray, np.ndarray]:
    """The first four along the axis, and their places; of equal ones those that come first."""
    given = {each.name: each.i for each in node.attribute}
    axis = given.get("axis", -1)
    keys = x if x.dtype.kind != "f" else np.where(np.isnan(x), np.inf, x.astype(np.float64))
    order = np.argsort(-keys if given.get("largest", 1) else keys, axis=axis, kind="stable")
    places = np.take(order, range(4), axis=axis)
    return np.take_along_axis(x, places, axis), places


def test_a_favoured_point_has_the_plan_of_a_static_model() -> None:
    model = parser.parse_model(HEAD + KERNELS["softmax"])
    compiled = compile_model(model, "emulator", dims=DIMS, favour=[{"b": 3, "s": 64}])
    static = compile_model(model, "emulator", shapes={"x": (3, 64)})
    assert compiled.specialisations[0].plan.groups == static.specialisations[0].plan.groups
    with load(compiled.to_bytes(), device="emulator") as module:
        for b, s in [(3, 64), (3, 65)]:
            feeds = inputs(model, {"b": b, "s": s})
            assert_close(module.run(feeds)["y"], rivals.onnxruntime(model, 1)(feeds)[0], MODELS["float32"])


def test_what_is_for_known_sizes_only_is_told() -> None:
    model = parser.parse_model(HEAD + "(float[b, s] x, float[b, s] u) => (float[b, s] y, float[b, s] z)\n"
                               "{ y = Softmax<axis=-1>(x)  z = Softmax<axis=-1>(u) }")  # fmt: skip
    compiled = compile_model(model, "emulator", dims={"b": (1, 9), "s": (1, 9)}, sync="tile")
    assert {"launch.open", "sync.open"} <= {each["rule"] for each in compiled.explain()["refusals"]}


@pytest.mark.parametrize("name", ["rows_by_mask", "twice", "sums_of_none", "joined_with_all"])
def test_what_follows_a_size_that_the_data_decides_is_in_kernels(name: str) -> None:
    """With none, one, some and all of the rows."""
    model = parser.parse_model(HEAD + MODELS_BY_NAME[name])
    compiled = compile_model(model, "emulator", dims={"n": (1, 1000)})
    assert {reason["rule"] for reason in compiled.explain()["host"]["reasons"]} == {"host.data_dependent"}
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), device="emulator") as module:
        for rows, kept in [(1, 0), (17, 0), (17, 1), (97, 50), (64, 64)]:
            feeds = {**inputs(model, {"n": rows}), "m": np.arange(rows)[::-1] < kept}
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])


def test_what_is_not_launched_has_no_time() -> None:
    model = parser.parse_model(HEAD + MODELS_BY_NAME["matmul"])
    feeds = {**inputs(model, {"n": 17}), "m": np.ones(17, np.bool_)}
    with load(compile_model(model, "emulator").to_bytes(), device="emulator") as module:
        assert any("MatMul_0" in each.origins for each in module.profile(feeds))
        feeds["m"][:] = False
        assert not any("MatMul_0" in each.origins for each in module.profile(feeds))


def test_memory_of_a_kernel_alone_lies_after_what_is_of_open_size() -> None:
    """The claims that updates lay to the places of a tensor, so that the last of several wins."""
    model = parser.parse_model(
        HEAD
        + """(float[3, s] x, float[4, 3] e, int64[5, 1] i, float[5, 3] u) => (float[4, s] y)
        { t = Softmax(x)  r = ScatterND(e, i, u)  y = MatMul(r, t) }"""
    )
    random = np.random.default_rng(4)
    shapes = {"e": (4, 3), "u": (5, 3)}
    feeds = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    feeds["i"] = np.array([[1], [3], [1], [0], [3]])
    with load(compile_model(model, "emulator", dims={"s": (1, 64)}).to_bytes(), device="emulator") as module:
        for s in (1, 7, 64):
            x = random.standard_normal((3, s), np.float32)
            (wanted,) = rivals.onnxruntime(model, 1)({**feeds, "x": x})
            assert_close(module.run({**feeds, "x": x})["y"], wanted, MODELS["float32"])
