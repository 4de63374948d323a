"""RNN, LSTM and GRU against ONNX Runtime: directions, lengths, activations, clipping, peepholes, long sequences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import assert_all_close, assert_close, check_node, floats, node_model, run
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError
from tilestitch.runtime import load

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
OUTPUTS = {"RNN": 2, "LSTM": 3, "GRU": 2}
STEPS, BATCH, SIZE, HIDDEN = 5, 3, 4, 6


def operands(op: str, directions: int = 1, steps: int = STEPS) -> list[np.ndarray | None]:
    gates = GATES[op]
    return [
        floats(steps, BATCH, SIZE),
        floats(directions, gates * HIDDEN, SIZE, seed=1),
        floats(directions, gates * HIDDEN, HIDDEN, seed=2) / 2,
        floats(directions, 2 * gates * HIDDEN, seed=3),
    ]


def check(op: str, given: list[np.ndarray | None], attrs: dict[str, object]) -> None:
    attrs = {"hidden_size": HIDDEN, **attrs}
    check_node(op, given, attrs, opset=14, outputs=OUTPUTS[op], against="onnxruntime", constants={1, 2, 3, 7})


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, (5, 2, 1)])
def test_directions_and_lengths(op: str, direction: str, lengths: tuple[int, ...] | None) -> None:
    given = operands(op, 2 if direction == "bidirectional" else 1)
    given.append(None if lengths is None else np.array(lengths, np.int32))
    check(op, given, {"direction": direction})


@pytest.mark.parametrize("op", GATES)
def test_initial_states(op: str) -> None:
    states = [floats(1, BATCH, HIDDEN, seed=9 + i) for i in range(OUTPUTS[op] - 1)]
    check(op, [*operands(op), None, *states], {})


def test_peepholes_and_coupled_gates() -> None:
    states = [floats(1, BATCH, HIDDEN, seed=i) for i in (8, 9)]
    check("LSTM", [*operands("LSTM"), None, *states, floats(1, 3 * HIDDEN, seed=5)], {})
    check("LSTM", operands("LSTM"), {"input_forget": 1})


@pytest.mark.parametrize("reset", [0, 1])
def test_gru_reset_placement(reset: int) -> None:
    check("GRU", operands("GRU"), {"linear_before_reset": reset})


@pytest.mark.parametrize(("names", "attrs"), [
    (["Relu"], {}), (["Affine"], {"activation_alpha": [0.5], "activation_beta": [0.2]}),
    (["LeakyRelu"], {"activation_alpha": [0.3]}),
    (["HardSigmoid"], {"activation_alpha": [0.3], "activation_beta": [0.4]}),
    (["ScaledTanh"], {"activation_alpha": [0.7], "activation_beta": [0.8]}), (["Softsign"], {}), (["Softplus"], {}),
    (["Elu"], {"activation_alpha": [0.6]}), (["ThresholdedRelu"], {"activation_alpha": [0.2]}),
])  # fmt: skip
def test_activations(names: list[str], attrs: dict[str, object]) -> None:
    check("RNN", operands("RNN"), {"activations": names, **attrs})


def test_clip() -> None:
    check("RNN", operands("RNN"), {"clip": 0.3})


def test_batch_first_layout_is_the_transposed_one() -> None:
    given = operands("GRU")
    x = given[0]
    assert x is not None
    feeds = {f"x{i}": v for i, v in enumerate(given)}
    plain = run(node_model("GRU", given, {"hidden_size": HIDDEN}, opset=14, outputs=2), feeds)
    swapped = [x.transpose(1, 0, 2), *given[1:]]
    feeds["x0"] = x.transpose(1, 0, 2)
    y, h = run(node_model("GRU", swapped, {"hidden_size": HIDDEN, "layout": 1}, opset=14, outputs=2), feeds)
    assert_close(y, plain[0].transpose(2, 0, 1, 3))
    assert_close(h, plain[1].transpose(1, 0, 2))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_long_sequences_are_a_scan(op: str, direction: str) -> None:
    steps = 131
    given = operands(op, 2 if direction == "bidirectional" else 1, steps)
    given.append(np.array([131, 2, 77], np.int32))
    attrs = {"direction": direction, "hidden_size": HIDDEN}
    check_node(op, given, attrs, opset=14, outputs=OUTPUTS[op], against="onnxruntime")
    model = node_model(op, given, attrs, opset=14, outputs=OUTPUTS[op])
    assert "scan" in {n.op for n in import_model(model).graph.nodes}


def test_a_scan_agrees_with_the_unrolled_loop() -> None:
    given = operands("LSTM", 1, 129)
    feeds = {f"x{i}": v for i, v in enumerate(given)}
    scanned = run(node_model("LSTM", given, {"hidden_size": HIDDEN}, opset=14, outputs=3), feeds)
    assert given[0] is not None
    short = [given[0][:100], *given[1:]]
    unrolled = run(node_model("LSTM", short, {"hidden_size": HIDDEN}, opset=14, outputs=3), {**feeds, "x0": short[0]})
    assert_all_close([scanned[0][:100]], [unrolled[0]])


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_weights_of_open_sizes_are_as_the_layer_needs_them(op: str, gates: int) -> None:
    """They were refused as not fitting."""
    operands = [floats(4, 2, 3), floats(1, gates * 5, 3), floats(1, gates * 5, 5)]
    model = node_model(op, operands, {"hidden_size": 5})
    for value, names in zip(model.graph.input[1:], ("dg", "dgh"), strict=True):
        for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
            dim.dim_param = name
    with load(compile_model(model, num_threads=1).to_bytes()) as module:
        assert [value.type.shape for value in module.inputs[1:]] == [(1, gates * 5, 3), (1, gates * 5, 5)]
    with pytest.raises(ConversionError, match="hidden_size is 4"):
        import_model(node_model(op, operands, {"hidden_size": 4}))
