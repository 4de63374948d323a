"""Operators whose shapes, axes or bounds are graph inputs: a host step each, typed as far as possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

from tests.frontend.host_models import check, model, ops, tensor
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir import AnyRankTensor, TensorType
from tilestitch.runtime import load

node = helper.make_node
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
U = "?"


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CASES: list[tuple[str, list[Any], dict[str, Any], tuple[Any, ...]]] = [
    # operator, operands (all graph inputs), attributes, the shape that is known at compile time
    ("Reshape", [X, ints(4, -1)], {}, (U, U)),
    ("Expand", [X[:, :1], ints(5, 1, 3, 1)], {}, (U, 2, U, 4)),
    ("Expand", [X, ints(1)], {}, (2, 3, 4)),
    ("Tile", [X, ints(1, 2, 1)], {}, (U, U, U)),
    ("Slice", [X, ints(1), ints(3), ints(2)], {}, (U, U, U)),
    ("Pad", [X, ints(0, 0, 1, 0, 0, 2)], {}, (U, U, U)),
    ("Squeeze", [X[:1], ints(0)], {}, (U, U)),
    ("Unsqueeze", [X, ints(1, -1)], {}, (U,) * 5),
    ("Range", [np.int64(1), np.int64(9), np.int64(3)], {}, (U,)),
    ("ConstantOfShape", [ints(2, 0, 1)], {}, (U, U, U)),
    ("CenterCropPad", [X, ints(5, 2)], {"axes": [0, 2]}, (U, 3, U)),
    ("OneHot", [ints(0, 2), np.int64(3), ints(0, 1)], {}, (2, U)),
    ("CumSum", [X, np.int64(1)], {}, (2, 3, 4)),
    ("TopK", [X, ints(2)], {"axis": 1}, (2, U, 4)),
    ("ReduceSum", [X, ints(0, 2)], {"keepdims": 0}, (U,)),
    ("ReduceMean", [X, ints(1)], {}, (U, U, U)),
    ("ReduceMax", [X, ints(-1)], {"keepdims": 0}, (U, U)),
    ("Compress", [X, np.array([True, False])], {"axis": 0}, (U, 3, 4)),
    ("Resize", [X[None], None, np.array([1, 1, 2, 0.5], np.float32)], {"mode": "linear"}, (U,) * 4),
    ("Resize", [X[None], None, None, ints(5, 2)], {"axes": [2, 3]}, (1, 2, U, U)),
    ("AffineGrid", [np.ones((1, 2, 3), np.float32), ints(1, 1, 2, 3)], {}, (1, U, U, 2)),
    ("Col2Im", [np.ones((1, 5, 5), np.float32), ints(5, 5), ints(1, 5)], {}, (1, U, U, U)),
    ("DFT", [X[..., None], None, np.int64(1)], {}, (U, U, U, 2)),
    ("DFT", [X[..., None], np.int64(5)], {}, (2, 3, U, 2)),
    ("STFT", [X.reshape(1, 24, 1), np.int64(3), np.ones(8, np.float32)], {}, (1, U, U, 2)),
    ("HannWindow", [np.int64(7)], {}, (U,)),
]


@pytest.mark.parametrize(("op", "operands", "attrs", "shape"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_run_time_operands_make_a_host_step(
    op: str, operands: list[Any], attrs: dict[str, Any], shape: tuple[Any, ...]
) -> None:
    feeds = {f"x{i}": np.asarray(v) for i, v in enumerate(operands) if v is not None}
    names = ["" if v is None else f"x{i}" for i, v in enumerate(operands)]
    outputs = ["y", "z"] if op == "TopK" else ["y"]
    result = check(model([node(op, names, outputs, **attrs)], {n: tensor(v) for n, v in feeds.items()}, outputs), feeds)
    assert f"host.{op}" in ops(result)
    type_ = result.outputs[0].type
    assert isinstance(type_, TensorType)
    assert type_.shape == shape


def test_constant_operands_still_give_the_known_dimensions() -> None:
    """The data's own shape is unknown, but what is asked for is not."""
    x = {"x": tensor(X, shape=("n", "m", 4))}
    cases = {
        "Expand": (("n", "m", 4), {"shape": ints(1, 1, 1)}),
        "Reshape": (("n", 2, "?"), {"shape": ints(0, 2, -1)}),
        "Unsqueeze": ((1, "n", "m", 4), {"axes": ints(0)}),
        "Tile": (("?", "?", 12), {"repeats": ints(2, 1, 3)}),
        "Slice": (("n", "m", 2), {"starts": ints(-1), "ends": ints(-9), "axes": ints(2), "steps": ints(-2)}),
        "Pad": (("?", "?", 7), {"pads": ints(1, 0, 0, 0, 2, 3)}),
        "ReduceMean": (("n", 1, 4), {"axes": ints(1)}),
    }
    feeds = {"x": X[:, :2]}
    for op, (shape, constants) in cases.items():
        result = check(model([node(op, ["x", *constants], ["y"])], x, ["y"], constants), feeds)
        assert isinstance(result.outputs[0].type, TensorType)
        assert result.outputs[0].type.shape == shape, op


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_constant_places_in_what_is_of_unknown_size(axis: int) -> None:
    constants = {"places": ints(1, -1, 0)}
    proto = model(
        [node("Gather", ["x", "places"], ["y"], axis=axis)], {"x": tensor(X, shape=("n", "m", 4))}, ["y"], constants
    )
    check(proto, {"x": X})


def test_what_follows_an_unknown_rank_still_converts() -> None:
    """A shape of unknown length: every later operator works on tensors of unknown rank."""
    nodes = [
        node("Reshape", ["x", "shape"], ["r"]),
        node("Relu", ["r"], ["a"]),
        node("Add", ["a", "one"], ["b"]),
        node("Transpose", ["b"], ["t"]),
        node("Softmax", ["t"], ["s"]),
        node("Concat", ["s", "t"], ["c"], axis=-1),
        node("ReduceSum", ["c", "last"], ["d"]),
        node("Gather", ["d", "zero"], ["g"], axis=0),
        node("Unsqueeze", ["g", "zero"], ["u"]),
        node("Squeeze", ["u", "zero"], ["q"]),
        node("Slice", ["q", "zero", "one_i", "zero"], ["v"]),
        node("MatMul", ["t", "b"], ["m"]),
        node("Shape", ["m"], ["ms"]),
        node("ReduceMean", ["v"], ["mean"], keepdims=0),
        node("ArgMax", ["v"], ["top"], axis=-1),
        node("Size", ["top"], ["n"]),
    ]
    constants = {"one": np.float32(1), "last": ints(-1), "zero": ints(0), "one_i": ints(1)}
    proto = model(nodes, {"x": tensor(X), "shape": tensor(ints(1), shape=("r",))}, ["mean", "ms", "n"], constants)
    result = check(proto, {"x": X, "shape": ints(6, 4)})
    assert result.nodes[0].output.type == AnyRankTensor("float32")
    assert result.outputs[0].type == TensorType("float32", ())


@pytest.mark.parametrize(
    ("op", "attrs", "shape", "opset"),
    [
        ("Squeeze", {"axes": [0]}, (1, "n", 4), 11),
        ("Unsqueeze", {"axes": [0, -1]}, ("n", "m", 4), 11),
        ("Slice", {"starts": [1], "ends": [2], "axes": [1]}, ("n", "m", 4), 9),
        ("Pad", {"pads": [0, 1, 0, 0, 0, 2], "value": 5.0}, ("n", "m", 4), 10),
        ("ReduceSum", {"axes": [0], "keepdims": 0}, ("n", "m", 4), 11),
        ("ReduceMax", {"axes": [-1]}, ("n", "m", 4), 13),
    ],
)
def test_older_opsets_give_parameters_as_attributes(
    op: str, attrs: dict[str, Any], shape: tuple[Any, ...], opset: int
) -> None:
    x = X[:1] if op == "Squeeze" else X
    check(model([node(op, ["x"], ["y"], **attrs)], {"x": tensor(x, shape=shape)}, ["y"], opset=opset), {"x": x})


def test_upsample_is_a_resize_that_rounds_down() -> None:
    scales = np.array([1, 1, 2, 3], np.float32)
    proto = model([node("Upsample", ["x", "s"], ["y"])], {"x": tensor(X[None]), "s": tensor(scales)}, ["y"], opset=9)
    from tilestitch.compiler.frontend.importer import import_model
    from tilestitch.compiler.ir.evaluate import evaluate

    (y,) = evaluate(import_model(proto).graph, [X[None], scales])
    np.testing.assert_array_equal(y, X[None].repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("sizes", [ints(1, 2), None])
def test_split_with_run_time_sizes_or_dimension(sizes: np.ndarray | None) -> None:
    names, feeds = (["x"], {"x": X}) if sizes is None else (["x", "s"], {"x": X, "s": sizes})
    types = {"x": tensor(X, shape=(2, "m", 4))} | ({} if sizes is None else {"s": tensor(sizes)})
    attrs = {"num_outputs": 2} if sizes is None else {}
    result = check(model([node("Split", names, ["a", "b"], axis=1, **attrs)], types, ["a", "b"]), feeds)
    assert [v.type for v in result.outputs] == [TensorType("float32", (2, U, 4))] * 2


@pytest.mark.parametrize("training", [False, True])
def test_dropout_asks_for_its_mode_at_run_time(training: bool) -> None:
    from tilestitch.compiler.frontend.importer import import_model
    from tilestitch.compiler.ir.evaluate import evaluate

    flag = np.array(training)
    nodes = [node("Dropout", ["x", "ratio", "t"], ["y", "mask"])]
    proto = model(nodes, {"x": tensor(X), "t": tensor(flag)}, ["y", "mask"], {"ratio": np.float32(0.5)})
    y, mask = evaluate(import_model(proto).graph, [X, flag])
    np.testing.assert_allclose(y, np.where(mask, X * 2, 0) if training else X)


def test_gather_nd_by_coordinates_of_unknown_number() -> None:
    indices = np.array([[0, 1], [1, 2]])
    nodes = [node("GatherND", ["x", "i"], ["r"]), node("ReduceSum", ["r"], ["y"], keepdims=0)]
    proto = model(nodes, {"x": tensor(X), "i": tensor(indices, shape=("n", "k"))}, ["y"])
    result = check(proto, {"x": X, "i": indices})
    assert result.nodes[0].output.type == AnyRankTensor("float32")


def test_a_tensor_of_unknown_rank_is_reshaped_to_a_size_that_a_run_tells() -> None:
    """It need not be empty."""
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, int64[1] k, float[m] a, int64[r] ranks) => (float[1, l] y)
        <int64[1] zero = {0}, int64[1] one = {1}> {
            part = Slice (x, zero, k)
            any_rank = Reshape (a, ranks)
            size = Shape (part)
            shape = Concat <axis = 0> (one, size)
            rows = Reshape (any_rank, shape)
            y = Add (rows, part)
        }""")
    x, ranks = np.arange(5, dtype=np.float32), np.array([1, -1, 1])
    with load(compile_model(proto, "cpu").to_bytes(), device="cpu") as module:
        for count in (3, 1):
            feeds = {"x": x, "k": np.array([count]), "a": np.ones(count, np.float32), "ranks": ranks}
            np.testing.assert_array_equal(module.run(feeds)["y"], 1 + x[None, :count])
