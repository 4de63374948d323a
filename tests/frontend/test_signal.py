"""Fourier transforms."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from tests.frontend.checks import assert_close, check_node, floats, host_steps, ints, node_model, run
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError


@pytest.mark.parametrize("length", [None, 5, 7, 10])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_dft(length: int | None, parts: int, inverse: int) -> None:
    x = floats(2, 7, 3, parts)
    given = None if length is None else np.array(length, np.int64)
    operands = [x, given, np.array(1, np.int64)]
    model = node_model("DFT", operands, {"inverse": inverse}, constants={1, 2})
    (y,) = run(model, {"x0": x})
    signal = x[..., 0] + 1j * x[..., 1] if parts == 2 else x[..., 0]
    spectrum = (np.fft.ifft if inverse else np.fft.fft)(signal, length, 1)
    assert_close(y, np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32))


@pytest.mark.parametrize("length", [6, 7])
def test_one_sided_transforms(length: int) -> None:
    x = floats(2, length, 1)
    (y,) = run(node_model("DFT", [x, None, np.array(1)], {"onesided": 1}, constants={2}), {"x0": x})
    spectrum = np.fft.rfft(x[..., 0])
    assert_close(y, np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32))
    model = node_model("DFT", [y, np.array(length), np.array(1)], {"onesided": 1, "inverse": 1}, constants={1, 2})
    assert_close(run(model, {"x0": y})[0], x)


def test_opset_17_has_the_axis_as_attribute() -> None:
    x = floats(2, 5, 1)
    (y,) = run(node_model("DFT", [x], {"axis": 1}, opset=17), {"x0": x})
    spectrum = np.fft.fft(x[..., 0])
    assert_close(y, np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32))


def test_very_long_transforms_run_on_the_host() -> None:
    assert host_steps(check_node("DFT", [floats(1, 5000, 1), None, np.array(1)], constants={2})) != []


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_stft(onesided: int, windowed: bool) -> None:
    window = np.hanning(8).astype(np.float32) if windowed else None
    operands = [floats(2, 33, 1), np.array(5), window, np.array(8)]
    check_node("STFT", operands, {"onesided": onesided}, constants={1, 2, 3})


@pytest.mark.parametrize("parts", [1, 2])
def test_stft_of_signals_of_open_length_is_compiled(parts: int) -> None:
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g (float[b, n, {parts}] x) => (float[b, f, 7, 2] y)
        <int64 step = {{5}}, int64 length = {{7}}> {{ y = STFT<onesided = 0>(x, step, , length) }}"""
    )
    compiled = compile_model(proto, num_threads=1)
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes(), num_threads=1) as module:
        for batch, length in ((1, 7), (2, 11), (3, 12), (1, 101)):
            x = floats(batch, length, parts)
            (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
            assert_close(module.run({"x": x})["y"], expected)
        with pytest.raises(InputError, match="must be from 7"):
            module.run({"x": floats(1, 6, parts)})


def test_losses() -> None:
    scores, target = floats(4, 5, 3), ints(*np.random.default_rng(0).integers(0, 5, (4, 3)))
    weight = np.abs(floats(5, seed=1))
    for reduction in ("none", "sum", "mean"):
        for extra in ({}, {"ignore_index": 2}):
            attrs = {"reduction": reduction, **extra}
            check_node("SoftmaxCrossEntropyLoss", [scores, target, weight], attrs, outputs=2, opset=13)
            check_node("NegativeLogLikelihoodLoss", [scores, target], attrs, opset=13)
