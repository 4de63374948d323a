"""Gather and scatter families and other operators that read or write at indices."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tests.frontend.checks import assert_close, check_node, floats, host_steps, ints, node_model, run
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError, InvalidNodeError
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis: int, dtype: str) -> None:
    check_node("Gather", [floats(3, 4, 5), ints([0, -1], [2, 1], dtype=dtype)], {"axis": axis})


def test_gather_of_a_scalar_index_drops_the_axis() -> None:
    check_node("Gather", [floats(3, 4), np.array(-2, np.int64)], {"axis": 1})


def test_gather_elements_and_nd() -> None:
    check_node("GatherElements", [floats(3, 4), ints([0, -1, 2, 1])], {"axis": 0})
    check_node("GatherND", [floats(2, 3, 4), ints([[0, 1], [1, -1]])])
    check_node("GatherND", [floats(2, 3, 4), ints([[1], [0]], [[2], [2]])], {"batch_dims": 1})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_elements(reduction: str) -> None:
    indices = ints([1, 0, 2]) if reduction == "none" else ints([1, 1, -1])
    check_node("ScatterElements", [floats(2, 3), indices, floats(1, 3, seed=1)], {"axis": 1, "reduction": reduction})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction: str) -> None:
    check_node("ScatterND", [floats(4, 3), ints([1], [3]), floats(2, 3, seed=1)], {"reduction": reduction})


def test_legacy_scatter() -> None:
    x, updates = floats(2, 3), floats(1, 2, seed=1)
    operands = [x, ints([2, 0]), updates]
    (y,) = run(node_model("Scatter", operands, {"axis": 1}, opset=9), {f"x{i}": v for i, v in enumerate(operands)})
    expected = x.copy()
    expected[0, [2, 0]] = updates[0]
    assert_close(y, expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot_with_negative_and_outside_indices(axis: int) -> None:
    operands = [ints([0, -1, 4], [1, 2, -9]), np.array(4, np.int64), floats(2, seed=1)]
    assert not host_steps(check_node("OneHot", operands, {"axis": axis}, constants={1}))


def test_compress_with_a_constant_condition_is_a_gather() -> None:
    condition = np.array([True, False, True])
    imported = check_node("Compress", [floats(3, 4), condition], {"axis": 0}, constants={1})
    assert not host_steps(imported)
    check_node("Compress", [floats(2, 3), condition], constants={1})


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence(time: int, batch: int) -> None:
    lengths = ints(*range(1, 5)) if batch == 1 else ints(2, 0, 3, 1, 2)
    x = floats(5, 4, 2)
    attrs = {"time_axis": time, "batch_axis": batch}
    if batch == 1:
        check_node("ReverseSequence", [x, lengths], attrs)
        return
    (y,) = run(node_model("ReverseSequence", [x, lengths], attrs), {"x0": x, "x1": lengths})
    expected = x.copy()
    for b, n in enumerate(lengths):
        expected[b, :n] = x[b, :n][::-1]
    assert_close(y, expected)


def test_sequences_are_reversed_along_the_first_two_axes() -> None:
    with pytest.raises(ConversionError, match="are not 0 and 1"):
        import_model(node_model("ReverseSequence", [floats(5, 4, 3), ints(3, 2, 1)], {"time_axis": 0, "batch_axis": 2}))


@pytest.mark.parametrize("time", [0, 1])
def test_reversed_sequences_of_open_sizes(time: int) -> None:
    """Whole rows are read: neighbours have one source."""
    attrs = {"time_axis": time, "batch_axis": 1 - time}
    model = node_model("ReverseSequence", [floats(5, 4, 20), ints(4, 2, 1, 3)], attrs)
    for value in (model.graph.input[0], model.graph.output[0]):
        for axis, name in enumerate("ab"):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "ab"[1 - time]
    with load(compile_model(model, num_threads=1).to_bytes()) as module:
        for steps, count in [(1, 1), (7, 3), (4, 1), (2, 9)]:
            x = floats(*((steps, count) if time == 0 else (count, steps)), 20)
            lengths = np.random.default_rng(0).integers(0, steps + 1, count)
            expected = np.moveaxis(x, time, 0).copy()
            for number, length in enumerate(lengths):
                expected[:length, number] = expected[:length, number][::-1].copy()
            assert_close(module.run({"x0": x, "x1": lengths})["y0"], np.moveaxis(expected, 0, time))


def test_reversed_sequences_have_a_length_each() -> None:
    """One length for several was read as that of all."""
    model = node_model("ReverseSequence", [floats(5, 4, 2), ints(3)])
    with pytest.raises(ConversionError, match="are not one for each batch entry"):
        import_model(model)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_param = "batch"
    with load(compile_model(model, num_threads=1).to_bytes()) as module:
        assert module.run([floats(5, 1, 2), ints(3)])["y0"].shape == (5, 1, 2)
        with pytest.raises(InputError, match=r"expected \(x0: float32\[5, 1, 2\]"):
            module.run([floats(5, 4, 2), ints(3)])


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    starts = ints(1, 2) if mode == "linear" else ints(3, 4)
    check_node("TensorScatter", [floats(2, 3, 5, 4), floats(2, 3, 2, 4, seed=1), starts], {"mode": mode})


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND", "GatherElements"])
def test_operands_that_would_be_read_past_their_end_are_refused(op: str) -> None:
    x, updates = floats(4, 2), floats(2, 2)
    indices = np.zeros((4, 3 if op == "GatherElements" else 1 if op == "ScatterND" else 2), np.int64)
    operands = [x, indices] if op == "GatherElements" else [x, indices, updates]
    proto = node_model(op, operands)
    with pytest.raises(InvalidNodeError, match=r"the data 2|updates must be of shape"):
        import_model(proto)
    for formal in proto.graph.input[1:]:
        for axis, dim in enumerate(formal.type.tensor_type.shape.dim):
            dim.dim_param = f"{formal.name}_{axis}"
    with load(compile_model(proto).to_bytes()) as module, pytest.raises(InputError, match=r"give inputs|agree"):
        module.run({f"x{i}": operand for i, operand in enumerate(operands)})


def test_gather_nd_has_as_many_lists_of_indices_as_the_data_has_batches() -> None:
    """It read past the end of the data, or took no indices for some of them."""
    operands = [floats(2, 5), np.zeros((7, 3, 1), np.int64)]
    proto = node_model("GatherND", operands, {"batch_dims": 1})
    with pytest.raises(InvalidNodeError, match="1 first dimensions differ"):
        import_model(proto)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with load(compile_model(proto).to_bytes()) as module:
        assert module.run({"x0": floats(7, 5), "x1": operands[1]})["y0"].shape == (7, 3)
        with pytest.raises(InputError, match="expected"):
            module.run({f"x{i}": operand for i, operand in enumerate(operands)})


def test_updates_of_sizes_that_are_named_apart() -> None:
    """One specialisation is for no indices, whatever the size of the updates is called."""
    head = '<ir_version: 10, opset_import: ["" : 18]> g '
    text = "(float[4, 2] x, int64[n, m] i, float[k, l] u) => (float[4, 2] y) { y = ScatterElements(x, i, u) }"
    with load(compile_model(parser.parse_model(head + text)).to_bytes()) as module:
        for size in (0, 1, 2):
            u, i = floats(3, size), np.tile(ints([2], [0], [1]), size)
            want = np.zeros((4, 2), np.float32)
            want[[2, 0, 1], :size] = u
            np.testing.assert_array_equal(module.run({"x": np.zeros((4, 2), np.float32), "i": i, "u": u})["y"], want)
